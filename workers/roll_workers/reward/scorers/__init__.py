"""What may judge an answer, and the typed ways in which judging can fail.

Invariant: a scorer returns a finite number or raises. A failure is not a zero: it never becomes a reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(slots=True)
class ScoredSample:
    """One answer and what is known about its prompt."""

    prompt: str
    response: str  # the text of the last turn
    answer: Any = None
    tag: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # other columns of the row
    tokens: int = 0  # sampled, in all turns
    turns: list[dict[str, Any]] = field(
        default_factory=list
    )  # {response, action, observation, reward}


@dataclass(slots=True)
class Reward:
    """A scalar with named parts and, where a scorer has them, one value per turn."""

    value: float
    parts: dict[str, float] = field(default_factory=dict)
    turns: list[float] = field(default_factory=list)


class ScorerError(Exception):
    """The scorer raised or returned no number: the input's or the function's own fault."""


class ScorerTimeout(Exception):
    """The scorer did not end within its time."""


class ScorerCrash(Exception):
    """The scorer's process died; another attempt may succeed."""


class Scorer(Protocol):
    async def start(self) -> None:
        """Raises UserError where the scorer can't work at all."""

    async def score(self, sample: ScoredSample) -> float | Reward: ...

    async def close(self) -> None: ...


def as_reward(result: Any, name: str) -> Reward:
    """What a function returned: a number, named parts, or `{"value": …, "parts": …, "turns": …}`.

    Raises ScorerError for anything that is not a finite number.
    """
    if not isinstance(result, Mapping):
        return Reward(_finite(result, name))
    if "value" not in result:
        if not result:
            raise ScorerError(f"{name} returned an empty dict, expected named numbers")
        parts = {str(key): _finite(part, f"{name}[{key!r}]") for key, part in result.items()}
        return Reward(sum(parts.values()), parts)
    unknown = set(result) - {"value", "parts", "turns"}
    if unknown:
        raise ScorerError(f"{name} returned `value` and also {sorted(map(str, unknown))}")
    parts = result.get("parts") or {}
    turns = result.get("turns") or []
    return Reward(
        _finite(result["value"], name),
        {str(key): _finite(part, f"{name}[{key!r}]") for key, part in parts.items()},
        [_finite(turn, f"{name}[turns]") for turn in turns],
    )


def _finite(value: Any, name: str) -> float:
    if isinstance(value, str | bytes) or not hasattr(type(value), "__float__"):
        raise ScorerError(f"{name} returned {value!r:.80}, expected a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ScorerError(f"{name} returned {value!r:.80}: {error}") from None
    if not math.isfinite(number):
        raise ScorerError(f"{name} returned {number}, expected a finite number")
    return number
