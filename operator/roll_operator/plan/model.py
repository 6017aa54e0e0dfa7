"""Plain data that the planner reads and writes.

Invariant: everything that must outlive a crash of the operator is in `Record`, and `Record` alone. A plan's
record is durable before any of the plan's actions is carried out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from roll_api import JobStatus

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
    """The last error line of an exited pod."""
    disrupted: bool = False
    """Evicted, preempted or lost with its node: nobody's failure."""


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

    def scope(self, key: str) -> Scope:
        return self.scopes.get(key, Scope())


@dataclass(frozen=True, slots=True)
class Progress:
    """What the scheduler reports. Only `finished`, `error` and `ready` decide anything."""

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

    def trained(self, samples_per_step: int) -> int:
        """Samples in all trained steps: every batch holds equally many."""
        return self.step * samples_per_step


@dataclass(frozen=True, slots=True)
class Observed:
    """The world as it is."""

    pods: tuple[Pod, ...] = ()
    record: Record = Record()
    progress: Progress | None = None
    """None: the scheduler does not answer."""
    suspend: bool = False
    status: JobStatus | None = None
    """What was reported last: times of conditions, and figures while the scheduler does not answer."""


@dataclass(frozen=True, slots=True)
class StartPod:
    name: str
    role: str
    index: int
    attempt: int
    uid: str
    env: Mapping[str, str] = field(default_factory=dict)


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


Action = StartPod | StopPod | RemovePod | FailJob | Restarted
