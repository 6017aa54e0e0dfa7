"""What the operator reports about a job."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from roll_api.base import Model

Phase = Literal["Pending", "Starting", "Running", "Recovering", "Suspended", "Succeeded", "Failed"]
Text = Annotated[str, Field(max_length=1024)]
Time = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]


class Reported(Model):
    """A part of the status; keys that a newer operator wrote are passed over."""

    model_config = ConfigDict(extra="ignore")


class Condition(Reported):
    """One aspect of the job's state, as Kubernetes tools read it."""

    type: Annotated[str, Field(max_length=316)]
    """Aspect."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Text = ""
    """Cause in one word."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """Cause in a sentence."""
    last_transition_time: Time | None = None
    """When it last changed."""
    observed_generation: int | None = None
    """Generation of the spec that was judged."""


class LastFailure(Reported):
    """The end of one process, counted once by its UID."""

    uid: Annotated[str, Field(max_length=64)]
    """Pod UID, or process incarnation on one machine."""
    pod: Annotated[str, Field(max_length=63)] = ""
    """Pod name."""
    exit_code: int | None = None
    """Exit code, 128 + n for signal n."""
    reason: Text = ""
    """Cause in one word."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """Last lines of its log."""
    time: Time | None = None
    """When it ended."""


class RoleStatus(Reported):
    """The processes of one role."""

    replicas: int = 0
    """Processes that exist."""
    ready: int = 0
    """Processes that serve."""
    restarts: int = 0
    """Restarts since the job began."""
    attempt: int = 0
    """Attempt of the role as a whole, for roles that restart as a whole."""
    last_failure: LastFailure | None = None
    """Newest failure."""


class RolesStatus(Reported):
    """The processes of each role."""

    scheduler: RoleStatus = RoleStatus()
    """Follows every sample."""
    trainer: RoleStatus = RoleStatus()
    """Turns batches into weights."""
    inference: RoleStatus = RoleStatus()
    """Generates answers."""
    reward: RoleStatus = RoleStatus()
    """Runs the scorers."""
    environment: RoleStatus = RoleStatus()
    """Supplies prompts and takes actions."""


class SampleCounts(Reported):
    """Where the samples are."""

    per_second: float = 0.0
    """Samples trained per second, lately."""
    in_flight: int = 0
    """Admitted, not yet at an end."""
    trained: int = 0
    """In a trained step."""
    dropped: Annotated[dict[str, int], Field(max_length=64)] = {}
    """Ended untrained, by reason."""


class Staleness(Reported):
    """Age of trained tokens in versions."""

    max: int = 0
    """Oldest token of any batch so far."""
    mean: float = 0.0
    """Mean over the tokens of the last batch."""


class JobProgress(Reported):
    """How far the job is."""

    step: int = 0
    """Last step trained."""
    steps: int = 0
    """Steps after which the job has succeeded."""
    percent: int = 0
    """Share of the steps that are trained."""
    eta_seconds: int | None = None
    """Seconds until the end at the present rate."""
    metrics: Annotated[dict[str, float], Field(max_length=64)] = {}
    """Figures of the last step, as the trainer names them."""


class JobStatus(Reported):
    """Where the job stands."""

    phase: Phase = "Pending"
    """Where the job stands in its life."""
    reason: Text = ""
    """Cause of the phase in one word."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """Cause of the phase in a sentence."""
    observed_generation: int | None = None
    """Generation of the spec that was acted on."""
    spec_hash: Annotated[str, Field(max_length=64)] = ""
    """Hash of the spec that runs."""
    step: int = 0
    """Last step trained."""
    ready: Annotated[str, Field(max_length=128)] = ""
    """Processes that serve, of those wanted, by role."""
    pending_reason: Annotated[str, Field(max_length=2048)] = ""
    """Worst obstacle of pods that do not start, in the cluster's words."""
    progress: JobProgress = JobProgress()
    """How far the job is."""
    samples: SampleCounts = SampleCounts()
    """Where the samples are."""
    staleness: Staleness = Staleness()
    """Age of trained tokens in versions."""
    reward: float | None = None
    """Mean reward of the last batch."""
    validation_reward: float | None = None
    """Mean reward of the last validation."""
    checkpoint: int | None = None
    """Step of the newest complete checkpoint."""
    lineage: int = 0
    """Count of starts that recorded batches could not serve."""
    restarts: int = 0
    """Restarts of all roles since the job began."""
    roles: RolesStatus = RolesStatus()
    """The processes of each role."""
    inference_selector: Annotated[str, Field(max_length=512)] = ""
    """Label selector of the inference pods, for autoscalers."""
    start_time: Time | None = None
    """When the job was first acted on."""
    completion_time: Time | None = None
    """When the job ended."""
    conditions: Annotated[list[Condition], Field(max_length=32)] = []
    """Aspects of the state, one per type."""
    record: dict[str, Any] | None = None
    """What the operator has to remember; nobody else writes it."""
