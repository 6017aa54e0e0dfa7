"""Mathematical equality by math-verify, in processes that can be killed.

math-verify's own time-outs turn a slow parse into "no answer found", which would be a zero; they are
switched off, and the process is killed instead, which is a typed failure. So is what says nothing of the
answer but that the process has no memory or no stack left; any other error of math-verify is an answer that
cannot be read, or compared, and a zero.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

from roll_workers.reward.scorers import ScoredSample, ScorerError
from roll_workers.reward.scorers.processes import ScorerProcesses

EXHAUSTED = (MemoryError, RecursionError)


class Math:
    """1 when the answer is mathematically equal to the expected one (`1/2`, `0.5`, `\\frac12`), else 0."""

    def __init__(self, timeout: float, precision: int = 6) -> None:
        self._processes = ScorerProcesses(
            f"{__name__}:verify_answer", timeout=timeout, constants={"precision": precision}
        )

    async def start(self) -> None:
        await self._processes.start()

    async def close(self) -> None:
        await self._processes.close()

    async def score(self, sample: ScoredSample) -> float:
        if sample.answer is None:
            raise ScorerError("math: the row has no answer")
        call = {"response": sample.response, "answer": str(sample.answer)}
        return (await self._processes.call(call)).value


def prepare() -> None:
    """Called once in each scorer process before its first answer, outside the time-out."""
    import logging

    import math_verify  # noqa: F401  # 2 s of import

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that we do the time-outs
    _parsed_gold("1")


def verify_answer(response: str, answer: str, precision: int) -> float:
    """Runs in the scorer's process."""
    gold = _parsed_gold(answer)
    if not gold:
        raise ScorerError(f"math: the row's answer {answer!r:.80} is not mathematics")
    given = _parsed(response)
    return 1.0 if any(_equal(g, t, precision) for g, t in product(gold, given)) else 0.0


@lru_cache(maxsize=4096)
def _parsed_gold(answer: str) -> list[Any]:
    # Latex is recognised between anchors only; a bare \frac12 would be read as the number 12.
    anchored = any(anchor in answer for anchor in ("$", "\\boxed", "\\[", "\\("))
    return _parsed(answer if anchored else f"${answer}$")


def _parsed(text: str) -> list[Any]:
    """Its readings; none where it has no mathematics."""
    from math_verify import parse

    try:
        return list(parse(text, parsing_timeout=None, raise_on_error=True))
    except EXHAUSTED:
        raise
    except Exception:  # sympy and antlr have many kinds
        return []


def _equal(gold: Any, given: Any, precision: int) -> bool:
    """One reading of each. Not all at once: one that cannot be compared would hide the next."""
    from math_verify import verify

    try:
        return bool(
            verify(gold, given, float_rounding=precision, timeout_seconds=None, raise_on_error=True)
        )
    except EXHAUSTED:
        raise
    except Exception:
        return False
