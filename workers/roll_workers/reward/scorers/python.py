"""The researcher's own function, `file.py:function`, sync or async.

It gets the parameters it names out of prompt, response, answer, tag, tokens, turns and the row's other
columns; the scorer's `options` are arguments of every call. It runs in processes of its own: whether it
loops for ever, exhausts its memory or calls os._exit, the worker and the other samples go on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roll_workers.reward.scorers import Reward, ScoredSample
from roll_workers.reward.scorers.processes import ScorerProcesses


class Python:
    def __init__(
        self, reference: str, source: Path, timeout: float, options: dict[str, Any]
    ) -> None:
        self._processes = ScorerProcesses(
            reference, source=source, timeout=timeout, constants=options
        )

    async def start(self) -> None:
        await self._processes.start()

    async def close(self) -> None:
        await self._processes.close()

    async def score(self, sample: ScoredSample) -> Reward:
        call = {
            **sample.facts,
            "prompt": sample.prompt,
            "response": sample.response,
            "tag": sample.tag,
            "tokens": sample.tokens,
            "turns": sample.turns,
        }
        if sample.answer is not None:
            call["answer"] = sample.answer
        return await self._processes.call(call)
