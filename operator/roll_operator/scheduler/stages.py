"""The stage graph of a pipeline: what a unit waits for next.

RLVR:     reset (once per group) -> generate -> score
Agentic:  reset -> (generate -> step) x turns -> score, or the episode's own return when the job
          names no reward.
"""

from __future__ import annotations

from dataclasses import dataclass

from roll_operator.scheduler.lifecycle import GENERATE, RESET, SCORE, STEP, Stage


@dataclass(slots=True, frozen=True)
class StageGraph:
    """Pure: `first` and `after` are all there is to know about the order of stages."""

    interactive: bool
    scored: bool  # a score stage follows; otherwise the environment's reward is the reward

    @property
    def group_reset(self) -> bool:
        """Every sample of a group starts from the same payload: one reset serves them all."""
        return not self.interactive

    def first(self) -> Stage:
        return RESET

    def after(self, stage: str, *, done: bool) -> Stage | None:
        """The stage that follows, or None when the sample is scored."""
        if stage == RESET:
            return self._end() if done else GENERATE
        if stage == GENERATE:
            return STEP if self.interactive else self._end()
        if stage == STEP:
            return self._end() if done else GENERATE
        return None

    def _end(self) -> Stage | None:
        return SCORE if self.scored else None
