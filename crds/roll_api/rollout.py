"""What the sample scheduler does: which samples start, how old they may get, what ends them."""

from typing import Annotated, Literal

from pydantic import Field

from roll_api.base import Model


class Sampling(Model):
    """How tokens are drawn while training."""

    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Sampling temperature."""

    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Probability mass that is sampled from. 1 is all of it."""

    top_k: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Number of tokens that are sampled from. 0 is all of them."""

    max_new_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 512
    """Tokens of one answer (one turn), at most."""

    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=16)
    ] = []
    """Texts that end an answer, beside the end-of-text token."""


class Filter(Model):
    """Which complete groups are worth training on: `above` < figure < `below`."""

    by: Literal["none", "mean", "std"] = "none"
    """Figure of a group's rewards that is judged."""

    above: Annotated[float, Field(ge=-1_000_000, le=1_000_000)] | None = None
    """Groups at or below this figure are filtered."""

    below: Annotated[float, Field(ge=-1_000_000, le=1_000_000)] | None = None
    """Groups at or above this figure are filtered."""

    budget: Annotated[float, Field(ge=0, le=1000)] = 4.0
    """Refills per step, as a multiple of `groupsPerStep`."""

    on_exhausted: Literal["Keep", "Complete", "Fail"] = "Keep"
    """What happens when the budget is spent. `Keep` trains on such groups, `Complete` ends the job with what was trained, `Fail` fails it."""

    @property
    def lets_something_pass(self) -> bool:
        if self.above is None or self.below is None:
            return not (self.above is None and self.below is None)
        return self.above < self.below


class Retry(Model):
    """How often a thing is tried again before it counts as failed."""

    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Attempts at one stage of a sample."""

    max_replacements: Annotated[int, Field(ge=0, le=1000)] = 2
    """Samples of a group that are replaced before the group fails."""

    max_batch_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Deaths of the trainer on one batch before that batch is given up."""

    no_progress_seconds: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """Seconds without a token or a turn after which a sample is given to another worker."""

    reconnect_grace_seconds: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """Seconds that a worker with a broken connection keeps its samples."""


class Rollout(Model):
    """The scheduler's part. Every token of batch N was sampled by a version in [N-1-maxStaleness, N-1]."""

    groups_per_step: Annotated[int, Field(ge=1, le=65_536)] = 32
    """Prompts per training step."""

    group_size: Annotated[int, Field(ge=1, le=4096)] = 8
    """Samples per prompt."""

    max_staleness: Annotated[int, Field(ge=0, le=1000)] = 3
    """Versions that the oldest token of a batch may lag behind. 0 is on-policy."""

    run_ahead: Annotated[float, Field(ge=0, le=1000)] | None = None
    """Batches that may be in the making beyond the current one. Without it: the smaller of `maxStaleness` and 1.5."""

    late: Literal["Wait", "Drop"] = "Wait"
    """Whether a step waits for its slowest group or drops it.

    It waits in any case while too few others are ready, and always with `maxStaleness` 0. What `Drop` does to
    the lengths of answers is told as a notice.
    """

    partial: Literal["Resume", "Discard"] = "Resume"
    """What happens to unfinished answers at a weight update or a pod's death."""

    sampling: Sampling = Sampling()
    """How tokens are drawn while training."""

    filter: Filter = Filter()
    """Which complete groups are worth training on."""

    retry: Retry = Retry()
    """How often a thing is tried again."""

    @property
    def effective_run_ahead(self) -> float:
        if self.run_ahead is None:
            return min(float(self.max_staleness), 1.5)
        return self.run_ahead

    @property
    def samples_per_step(self) -> int:
        return self.groups_per_step * self.group_size
