"""What the scheduler has to know of a job: plain numbers, taken from the RLJob once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from roll_api import RLJob

from roll_operator.scheduler.stages import StageGraph


@dataclass(slots=True, frozen=True)
class Settings:
    """Times are in seconds. The defaults are those of small tests, not of the RLJob."""

    steps: int
    groups_per_step: int
    group_size: int
    max_staleness: int = 0
    run_ahead: float = 0.0
    graph: StageGraph = field(default_factory=lambda: StageGraph(interactive=False, scored=True))
    seed: int = 0
    late_drop: bool = False
    filter_by: str = "none"  # none | mean | std
    filter_above: float = -math.inf
    filter_below: float = math.inf
    filter_budget: float = 4  # filtered groups per step, in multiples of groups_per_step
    on_exhausted: str = "Keep"  # Keep | Complete | Fail
    max_attempts: int = 3
    max_replacements: int = 2
    max_batch_attempts: int = 3
    no_progress: float = 60.0
    reconnect_grace: float = 5.0
    silence: float = 20.0  # a worker that says nothing for this long gets nothing new
    validation_every: int = 0  # steps; 0: never
    validation_prompts: int = 0  # at most; 0: all rows
    keep_checkpoints: int = 3
    keep_versions: int = 2  # that can still be fetched

    @property
    def filter_terms(self) -> str:
        """All that decides whether a job ends for want of groups: one that comes back under other terms goes on."""
        between = self.filter_above, self.filter_below
        return repr((self.steps, self.filter_by, *between, self.filter_budget, self.on_exhausted))

    @classmethod
    def from_job(cls, job: RLJob) -> Settings:
        spec, rollout = job.spec, job.spec.rollout
        interactive = spec.environment is not None
        source = spec.environment if interactive else spec.data
        validation = source.validation if source else None
        return cls(
            steps=spec.steps,
            groups_per_step=rollout.groups_per_step,
            group_size=rollout.group_size,
            max_staleness=rollout.max_staleness,
            run_ahead=rollout.effective_run_ahead,
            graph=StageGraph(interactive=interactive, scored=bool(spec.rewards)),
            seed=spec.seed,
            late_drop=rollout.late == "Drop",
            filter_by=rollout.filter.by,
            filter_above=-math.inf if rollout.filter.above is None else rollout.filter.above,
            filter_below=math.inf if rollout.filter.below is None else rollout.filter.below,
            filter_budget=rollout.filter.budget,
            on_exhausted=rollout.filter.on_exhausted,
            max_attempts=rollout.retry.max_attempts,
            max_replacements=rollout.retry.max_replacements,
            max_batch_attempts=rollout.retry.max_batch_attempts,
            no_progress=rollout.retry.no_progress_seconds,
            reconnect_grace=rollout.retry.reconnect_grace_seconds,
            validation_every=validation.every_steps if validation else 0,
            validation_prompts=(validation.samples or 0) if validation else 0,
            keep_checkpoints=spec.checkpoint.keep_last,
            keep_versions=spec.weights.keep,
        )
