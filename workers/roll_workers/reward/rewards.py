"""The rewards of a job: which scorers judge a row, and how their scores become one number.

Invariant: a sample's reward is the weighted sum over all entries whose tags match, or it has no reward:
where one of them fails, the sample's scoring fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll_workers.errors import UserError
from roll_workers.reward.scorers import Reward, ScoredSample, Scorer, ScorerError
from roll_workers.reward.scorers.matching import ExactMatch

if TYPE_CHECKING:
    from roll_api.rewards import Reward as RewardSpec
    from roll_api.rewards import Scorer as ScorerSpec


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    tags: frozenset[str]  # empty: all rows
    weight: float
    scorer: Scorer


class Rewards:
    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self._by_tag: dict[str, tuple[Entry, ...]] = {}
        # Whether `score` ends without ever waiting: then it needs no task of its own.
        self.immediate = len(self.entries) == 1 and isinstance(self.entries[0].scorer, ExactMatch)

    @classmethod
    def of_job(cls, specs: Iterable[RewardSpec], source: Path) -> Rewards:
        """Builds the scorers; UserError for options they do not know."""
        return cls(
            [
                Entry(spec.name, frozenset(spec.tags), spec.weight, make_scorer(spec, source))
                for spec in specs
            ]
        )

    async def start(self) -> None:
        await asyncio.gather(*(entry.scorer.start() for entry in self.entries))

    async def close(self) -> None:
        await asyncio.gather(*(entry.scorer.close() for entry in self.entries))

    async def score(self, sample: ScoredSample) -> Reward:
        entries = self._by_tag.get(sample.tag)
        if entries is None:
            entries = tuple(e for e in self.entries if not e.tags or sample.tag in e.tags)
            self._by_tag[sample.tag] = entries
        if not entries:
            raise ScorerError(f"no reward has the tag {sample.tag!r} of this row")
        if len(entries) == 1:
            scores = [await entries[0].scorer.score(sample)]
        else:
            scores = await asyncio.gather(*(entry.scorer.score(sample) for entry in entries))
        return combine(entries, scores, last_turn=max(len(sample.turns) - 1, 0))


def combine(entries: Sequence[Entry], scores: Sequence[float | Reward], last_turn: int) -> Reward:
    """Parts: each score under its reward's name, before the weight; a score's own parts as `name.part`.

    Turns: where one score has them, a score without them is its last turn's. So a sum over turns leaves out none.
    """
    total, of_the_whole = Reward(0.0), 0.0
    for entry, score in zip(entries, scores, strict=True):
        reward = score if isinstance(score, Reward) else Reward(score)
        total.value += entry.weight * reward.value
        total.parts[entry.name] = reward.value
        for part, value in reward.parts.items():
            total.parts[f"{entry.name}.{part}"] = value
        if not reward.turns:
            of_the_whole += entry.weight * reward.value
        _reach(total.turns, len(reward.turns))
        for turn, value in enumerate(reward.turns):
            total.turns[turn] += entry.weight * value
    if total.turns and of_the_whole:
        _reach(total.turns, last_turn + 1)
        total.turns[last_turn] += of_the_whole
    return total


def _reach(turns: list[float], count: int) -> None:
    turns += [0.0] * (count - len(turns))


def make_scorer(spec: RewardSpec, source: Path) -> Scorer:
    scorer, options = spec.scorer, dict(spec.scorer.options)
    try:
        return _scorer(scorer, options, source)
    except TypeError as error:  # unknown or missing options
        reason = str(error).partition(" ")[2]
        raise UserError(f"rewards: {spec.name}: options of {scorer.kind}: {reason}") from error
    except UserError as error:
        raise UserError(f"rewards: {spec.name}: {error}") from error


def _scorer(spec: ScorerSpec, options: dict[str, Any], source: Path) -> Scorer:
    if spec.python is not None:
        from roll_workers.reward.scorers.python import Python

        return Python(spec.python, source, spec.timeout_seconds, options)
    if spec.kind == "exactMatch":
        return ExactMatch(**options)
    if spec.kind == "regex":
        from roll_workers.reward.scorers.matching import Regex

        return Regex(timeout=spec.timeout_seconds, **options)
    if spec.kind == "math":
        from roll_workers.reward.scorers.maths import Math

        return Math(timeout=spec.timeout_seconds, **options)
    raise UserError("a scorer needs `kind` or `python`")
