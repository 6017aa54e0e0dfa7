"""How a job runs and ends: deadlines, what is left behind, and what a failure means."""

from typing import Annotated, Literal

from pydantic import Field

from roll_api.base import Label, Model

MANAGER = "roll.dev/operator"
"""The one value of `managedBy` that this operator answers to."""

Seconds = Annotated[int, Field(ge=1, le=31_536_000)]
Word = Annotated[str, Field(min_length=1, max_length=128)]


class RunPolicy(Model):
    """Deadlines, and what is left behind at the end. What concerns pods has no effect on one machine."""

    active_deadline_seconds: Seconds | None = None
    """Seconds that a run may last before the job fails; a resumed job's clock begins anew."""

    pre_running_deadline_seconds: Seconds | None = None
    """Seconds within which all pods must have been ready once."""

    progress_deadline_seconds: Seconds | None = None
    """Seconds without a token, a sample or a step after which what holds the job up is restarted."""

    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """Seconds after its end at which the job is deleted."""

    clean_pod_policy: Literal["Running", "All", "None"] = "Running"
    """Pods that are removed at the end: those that still run, all, or none."""


class Restart(Model):
    """A wish to begin again."""

    id: Annotated[str, Field(max_length=63)] = ""
    """Any other text than before restarts all pods from the newest checkpoint and forgives earlier failures."""


class FailureRule(Model):
    """What one kind of failure means; what is not given fits everything."""

    name: Label
    """Name that the job's reason shows."""

    roles: Annotated[
        list[Literal["scheduler", "trainer", "inference", "reward", "environment"]],
        Field(max_length=5),
    ] = []
    """Roles that the rule is about. Empty: all."""

    exit_codes: Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(max_length=64)] = []
    """Exit codes that fit, 128 + n for signal n."""

    reasons: Annotated[list[Word], Field(max_length=16)] = []
    """Reasons that fit, e.g. OOMKilled, Evicted or Stalled."""

    conditions: Annotated[list[Word], Field(max_length=16)] = []
    """Pod conditions of which one must be true, e.g. DisruptionTarget."""

    action: Literal["FailJob", "RestartRole", "RestartPod", "Ignore"]
    """What follows: the job fails, the role or the pod is restarted and counted, or restarted uncounted."""
