"""Plain data that the planner reads and writes.

Invariant: everything that must outlive a crash of the operator is in `Record`, and `Record` alone. A plan's
record is durable before any of the plan's actions is carried out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from roll_api import JobStatus, RLJob

SCHEDULER = "scheduler"


class Phase(StrEnum):
    """Where the job stands in its life."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"


class PodPhase(StrEnum):
    """What a pod does, as the backend sees it."""

    PENDING = "pending"
    """It exists and no container of it has started yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class DesiredPod:
    """A place that one pod at a time fills."""

    name: str
    role: str
    index: int
    scope: str
    """What is restarted together: the whole trainer role, otherwise the pod alone."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod (locally: one process) that exists; an exited one exists until it is removed."""

    name: str
    role: str
    index: int
    uid: str
    attempt: int
    phase: PodPhase
    pid: int | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    exit_code: int | None = None
    """As a shell counts: 128 + number of the signal."""
    message: str = ""
    """The last lines of an exited pod's log."""
    disrupted: bool = False
    """Evicted, preempted or lost with its node: nobody's failure."""
    ran: bool = True
    """False: its process never started (a kubelet turned the pod away, or found no such command)."""
    restarts: int = 0
    """How often the pod restarted in place. `exit_code`, `reasons`, `message` and `ended_at` then tell its last end."""
    reasons: tuple[str, ...] = ()
    """Reasons of the pod, of its containers' end and of its conditions; the most telling first."""
    conditions: frozenset[str] = frozenset()
    """Types of the conditions that are true."""
    pending: tuple[str, str] | None = None
    """Why it does not start: kind (Unschedulable, ImagePullBackOff, …) and the cluster's own words."""
    scheduled: bool = True
    deletion_at: float | None = None
    """When the grace of its deletion is over; None while nobody asked to delete it."""
    node_ready: bool = True
    """False: its node is not Ready, or not there any more."""
    lingers: bool = False
    """It exited, and side-cars of its template still run."""
    spec_hash: str = ""
    """Hash of the spec that it was made from, where that is known."""
    image: str = ""
    """Of its own container; empty where there are no images."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a pod, or the job, failed."""

    reason: str
    message: str
    pod: str = ""
    uid: str = ""
    exit_code: int | None = None
    at: float = 0.0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Scope:
    """What is known of one restart scope."""

    attempt: int = 0
    """The attempt that should run. A pod of an older one was judged and only has to go."""
    started: Mapping[str, str] = field(default_factory=dict)
    """Name → uid of the pods of this attempt that were seen."""
    streak: int = 0
    """Failures in a row."""
    not_before: float = 0.0
    """When the next attempt may start."""
    in_place: int = 0
    """Restarts in place of the pod in `started` that were judged."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the operator remembers of a job; a part of its status."""

    scopes: Mapping[str, Scope] = field(default_factory=dict)
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Counted restarts by role, for ever."""
    recent: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Times of the counted restarts by role that the budget still sees."""
    last_failures: Mapping[str, Failure] = field(default_factory=dict)
    """By role."""
    failure: Failure | None = None
    """Why the job failed."""
    finished: bool = False
    was_running: bool = False
    """All pods of this run were ready once."""
    closing: bool = False
    """This run ends (suspend, restart.id) and the job does not: the next run begins when no pod is left."""
    spec_hash: str = ""
    """Names the spec that pods are made from: the spec of record."""
    scheduler_image: str = ""
    """Of this run: pods that are replaced run what the others run, whatever the operator has become meanwhile."""
    worker_image: str = ""
    """Of this run, where the spec of record names none."""
    restart_id: str | None = None
    """The `restart.id` that was obeyed; None before the first plan."""
    started_at: float = 0.0
    """When this run began, and from when its deadlines count; 0: not yet, or a queue holds all its pods back."""
    ended_at: float = 0.0
    """When the job ended; 0: not yet."""
    ready_since: float = 0.0
    """Since when all pods are ready; 0: they are not."""
    stalled: Failure | None = None
    """What held the job up when nothing had happened for too long; None again after any progress."""
    fenced: tuple[str, ...] = ()
    """Uids that may never say Hello again although their pod objects are still there."""

    def scope(self, key: str) -> Scope:
        return self.scopes.get(key, Scope())


@dataclass(frozen=True, slots=True)
class Held:
    """The sample that a worker has held for the longest time."""

    pod: str
    sample: str
    """group/index"""
    stage: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """What the scheduler reports. `finished`, `error`, `ready`, `last_progress_at` and `held` decide, the rest is shown."""

    finished: bool = False
    error: str = ""
    ready: frozenset[str] = frozenset()
    """Uids of the pods that can work. The scheduler itself is ready when it answers."""
    step: int = 0
    checkpoint: int | None = None
    lineage: int = 0
    reward: float | None = None
    validation: tuple[float, float] | None = None
    """First and last mean reward on held-out prompts."""
    validation_step: int = 0
    """Of the last one."""
    samples_per_second: float = 0.0
    staleness_mean: float = 0.0
    staleness_max: int = 0
    samples: Mapping[str, int] = field(default_factory=dict)
    """By state."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    redone: int = 0
    tokens: int = 0
    notices: tuple[str, ...] = ()
    last_progress_at: float = 0.0
    held: Held | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures of the newest step."""
    ledger_lost: str = ""
    """How the job went on without its ledger; empty: it never had to."""

    def trained(self, samples_per_step: int) -> int:
        """Samples in all trained steps: every batch holds equally many."""
        return self.step * samples_per_step


@dataclass(frozen=True, slots=True)
class Observed:
    """The world as it is."""

    pods: tuple[Pod, ...] = ()
    record: Record = Record()
    progress: Progress | None = None
    """None: the scheduler does not answer. Only the word of the scheduler pod that runs now counts."""
    suspend: bool = False
    """The user wants the job stopped (Ctrl-C, `spec.suspend`)."""
    status: JobStatus | None = None
    """What was reported last: times of conditions, and figures while the scheduler does not answer."""
    job_of_record: RLJob | None = None
    """The job as its running pods were told (ConfigMap `<job>-spec-<record.spec_hash>`); None: as it is now."""
    fenced: frozenset[str] = frozenset()
    """Uids that the running scheduler was told are gone, and that it acknowledged."""
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Pods that the API server did not accept: name → kind (Quota, Refused) and its words. Under the job's name:
    an object for which no pod waits."""


@dataclass(frozen=True, slots=True)
class StartPod:
    name: str
    role: str
    index: int
    attempt: int
    uid: str
    env: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    """Empty where there are no images: processes of this machine."""


@dataclass(frozen=True, slots=True)
class StopPod:
    """Ask the pod to end; kill it when the grace is over."""

    uid: str
    name: str
    grace: float
    why: str


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Forget an exited pod: its place becomes free."""

    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class FailJob:
    """Announces, once, that the job failed. The record already says so."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Restarted:
    """Announces, once, that a failure was judged and another attempt follows."""

    failure: Failure
    role: str
    counted: bool
    wait: float


@dataclass(frozen=True, slots=True)
class FencePod:
    """Tell the scheduler that this pod is gone, though its object is there: its node is lost. The record says so."""

    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class ForceDelete:
    """Delete the object of a fenced pod with grace 0, by its uid."""

    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class Announce:
    """One Event for people, at a transition."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the RLJob: its time to live after the end is over."""

    why: str


Action = (
    StartPod
    | StopPod
    | RemovePod
    | FencePod
    | ForceDelete
    | DeleteJob
    | Announce
    | FailJob
    | Restarted
)
"""`Announce` says on a cluster what `FailJob` and `Restarted` say to the local view."""
