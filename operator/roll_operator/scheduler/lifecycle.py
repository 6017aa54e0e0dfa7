"""The life of a sample and of a group: one table of transitions, and the plain data it is about.

Invariant: a group changes its state only through `move`, which refuses whatever the table does not
list; so every admitted group, and with it every sample, reaches exactly one end.

    sample:  waiting <-> leased -> ... -> scored, then its own end or its group's
    group:   open -> complete -> ready -> batched(N) <-> trained(N) <-> committed(N)
             before batched also -> filtered | failed | cancelled; batched(N) -> failed(poison)

What a batch went through (trained, committed) is kept with the batch, not with each of its groups:
the ledger writes one row per step instead of one per sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple


class GroupState(IntEnum):
    """Where a group stands. The numbers are what the ledger stores."""

    OPEN = 1
    COMPLETE = 2
    READY = 3
    BATCHED = 4
    FILTERED = 7
    FAILED = 8
    CANCELLED = 9
    EVALUATED = 10


class BatchState(IntEnum):
    """Where a recorded batch, and so every group in it, stands."""

    BATCHED = 1
    TRAINED = 2
    COMMITTED = 3
    POISON = 4
    ABANDONED = 5  # its lineage ended


class SampleState(IntEnum):
    """Where a sample stands. FAILED and CANCELLED are ends of its own, before its group's."""

    WAITING = 1
    LEASED = 2
    SCORED = 3
    FAILED = 4
    CANCELLED = 5


class Cause(StrEnum):
    """Why something was cancelled or failed."""

    STALE = "stale"
    SURPLUS = "surplus"  # the job asks for it no more
    SIBLING = "sibling"
    LINEAGE = "lineage"
    JOB_ENDED = "job-ended"
    POISON = "poison"
    INFRASTRUCTURE = "infrastructure"
    TIMEOUT = "timeout"
    INPUT = "input"
    REPLAY = "replay"


GROUP_TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.OPEN: frozenset({GroupState.COMPLETE, GroupState.FAILED, GroupState.CANCELLED}),
    GroupState.COMPLETE: frozenset(
        {GroupState.READY, GroupState.FILTERED, GroupState.EVALUATED, GroupState.CANCELLED}
    ),
    GroupState.READY: frozenset({GroupState.BATCHED, GroupState.CANCELLED}),
    GroupState.BATCHED: frozenset({GroupState.FAILED, GroupState.CANCELLED}),
    GroupState.FILTERED: frozenset(),
    GroupState.FAILED: frozenset(),
    GroupState.CANCELLED: frozenset(),
    GroupState.EVALUATED: frozenset(),
}

BATCH_TRANSITIONS: dict[BatchState, frozenset[BatchState]] = {
    BatchState.BATCHED: frozenset({BatchState.TRAINED, BatchState.POISON, BatchState.ABANDONED}),
    BatchState.TRAINED: frozenset({BatchState.BATCHED, BatchState.COMMITTED, BatchState.ABANDONED}),
    BatchState.COMMITTED: frozenset({BatchState.BATCHED, BatchState.ABANDONED}),
    BatchState.POISON: frozenset(),
    BatchState.ABANDONED: frozenset(),
}

SAMPLE_TRANSITIONS: dict[SampleState, frozenset[SampleState]] = {
    SampleState.WAITING: frozenset({SampleState.LEASED, SampleState.FAILED, SampleState.CANCELLED}),
    SampleState.LEASED: frozenset(
        {SampleState.WAITING, SampleState.SCORED, SampleState.FAILED, SampleState.CANCELLED}
    ),
    SampleState.SCORED: frozenset({SampleState.CANCELLED}),
    SampleState.FAILED: frozenset(),
    SampleState.CANCELLED: frozenset(),
}

# The same table by number: a sample is moved six times in its life.
_after_sample_state = [tuple(SAMPLE_TRANSITIONS.get(s, ())) for s in (0, *SampleState)]

LIVE_GROUPS = (GroupState.OPEN, GroupState.READY)
SAMPLE_ENDS = FAILED, CANCELLED = SampleState.FAILED, SampleState.CANCELLED


class IllegalTransition(RuntimeError):
    """A step that the table does not list: a defect in the scheduler, never a user's mistake."""


class Stage(StrEnum):
    """The kinds of stage that the built-in pipelines use; the wire allows any."""

    RESET = "reset"
    GENERATE = "generate"
    STEP = "step"
    SCORE = "score"


RESET, GENERATE, STEP, SCORE = Stage.RESET, Stage.GENERATE, Stage.STEP, Stage.SCORE

POOL_OF: dict[str, str] = {
    Stage.RESET: "environment",
    Stage.GENERATE: "policy",
    Stage.STEP: "environment",
    Stage.SCORE: "reward",
}


KINDS = tuple(Stage)  # a stage's place here is its number in the ledger
KIND_OF: dict[str, int] = {stage: number for number, stage in enumerate(KINDS)}
PARTIAL, DONE, VERSIONED, REWARDED = 1, 2, 4, 8  # flags of a part


def milestone(stage: str, turn: int) -> int:
    """How far along its way a sample is that is about to pass this stage of this turn."""
    return turn * len(KINDS) + KIND_OF[stage]


def pool_of(milestone: int) -> str:
    """Whose workers a sample needs to pass it."""
    return POOL_OF[KINDS[milestone % len(KINDS)]]


class Part(NamedTuple):
    """What one stage (or a partial of it) added to a unit's trajectory: numbers, as the ledger packs them.

    Those of a unit are found in its group's record (`record.parts_of`); what is needed often is kept beside it.
    """

    idx: int
    life: int
    no: int  # among the parts of this life
    kind: int
    turn: int
    flags: int
    segment: int  # where its payload lies: see `PayloadStore`
    start: int
    length: int
    checksum: int
    tokens: int
    first: int  # version of the oldest token, where VERSIONED
    last: int
    score: float  # where REWARDED
    lease: int

    @property
    def stage(self) -> Stage:
        return KINDS[self.kind]

    @property
    def partial(self) -> bool:
        return bool(self.flags & PARTIAL)

    @property
    def done(self) -> bool:
        return bool(self.flags & DONE)

    @property
    def oldest(self) -> int | None:
        return self.first if self.flags & VERSIONED else None

    @property
    def newest(self) -> int | None:
        return self.last if self.flags & VERSIONED else None

    @property
    def reward(self) -> float | None:
        return self.score if self.flags & REWARDED else None


Row = tuple[Any, ...]


class Altered(RuntimeError):
    """A record that no scheduler wrote; the message says which."""


@dataclass(slots=True, eq=False)
class Block:
    """Payloads that came together and lie end to end; `data` as long as they are in memory too."""

    segment: int
    start: int
    data: bytes | memoryview | None = None


Place = tuple[Block, int, int]  # where in a block a payload begins, and its length


@dataclass(slots=True, eq=False)
class Unit:
    """A sample, or (index -1) the group itself while a stage of group scope works on it."""

    group: Group
    index: int
    stage: str
    turn: int = 0
    state: SampleState = SampleState.WAITING
    cause: str = ""
    failures: int = 0  # counted ones, since it last got past its hurdle
    hurdle: int = 0  # the furthest milestone at which it failed or was suspected, in this life or an earlier one
    life: int = 0  # rises when an episode starts again from its reset
    places: list[Place] = field(default_factory=list)  # of its parts' payloads, in this life
    size: int = 0  # of the payloads, in bytes
    brought: int = 0  # the lease that brought the newest of them
    oldest: int | None = None  # of its sampled tokens
    newest: int | None = None
    tokens: int = 0
    kept: int = 0  # tokens of the current turn that are already recorded
    reward: float | None = None
    lease: Lease | None = None
    resident: str = ""  # the worker that keeps its episode
    company: int = 0  # 0: no suspect; otherwise how many may share a worker of its hurdle's pool
    since: float = 0.0
    issued: int = 0  # leases granted for the current stage and turn
    ticket: int = 0  # its newest place in a queue; older places are void

    @property
    def key(self) -> tuple[int, int]:
        return self.group.id, self.index

    def company_in(self, pool: str) -> int:
        """The most units that it may share a worker of this pool with; 0: any number."""
        return self.company if self.company and pool_of(self.hurdle) == pool else 0

    def add(self, place: Place, lease: int) -> None:
        self.places.append(place)
        self.size += place[2]
        self.brought = lease


@dataclass(slots=True, eq=False)
class Lease:
    """The right of one worker process to bring one unit through one stage."""

    id: int  # term << 40 | number: one integer, ordered as issued
    unit: Unit
    worker: str
    stage: str
    turn: int
    deadline: float
    floor: int | None  # no token sampled under this lease is older than this version
    granted: float
    tokens: int = 0


@dataclass(slots=True, eq=False)
class Group:
    """One prompt and its samples. `size` counts every index that ever existed."""

    id: int
    lineage: int
    position: int
    admitted: float
    step: int = 0  # of its slot, then of its batch; 0: validation
    slot: int = 0
    validation: int | None = None  # the pinned version
    state: GroupState = GroupState.OPEN
    cause: str = ""
    lead: Unit | None = None
    units: list[Unit] = field(default_factory=list)
    unfinished: int = 0
    ended_step: int = 0
    ended: float = 0.0
    seal: bytes = b""
    record: list[bytes] = field(default_factory=list)  # its parts, packed, in order of arrival

    @property
    def size(self) -> int:
        return len(self.units)

    @property
    def kept(self) -> list[Unit]:
        """The samples that share their group's fate."""
        return [u for u in self.units if u.state is not FAILED and u.state is not CANCELLED]

    def dissolve(self) -> None:
        """Let go of its samples, which refer to it: memory is free at once, not at the next collection."""
        self.lead, self.units, self.record = None, [], []

    def oldest(self) -> int | None:
        """No token of this group, known or still under way, is older. None: it has none yet."""
        oldest: int | None = None
        for unit in self.units:
            for bound in (unit.oldest, unit.lease.floor if unit.lease else None):
                if bound is not None and (oldest is None or bound < oldest):
                    oldest = bound
        return oldest


def lease_id(term: int, number: int) -> int:
    return term << 40 | number


def split_lease(lease: int) -> tuple[int, int]:
    return lease >> 40, lease & ((1 << 40) - 1)


def move(group: Group, state: GroupState) -> None:
    if state not in GROUP_TRANSITIONS[group.state]:
        raise IllegalTransition(f"group {group.id}: {group.state.name} -> {state.name}")
    group.state = state


def move_unit(unit: Unit, state: SampleState) -> None:
    if state not in _after_sample_state[unit.state]:
        raise IllegalTransition(f"sample {unit.key}: {unit.state.name} -> {state.name}")
    unit.state = state


def move_units(units: Sequence[Unit], state: SampleState) -> None:
    """Like `move_unit`, for many at once."""
    for before in {unit.state for unit in units}:
        if state not in _after_sample_state[before]:
            raise IllegalTransition(f"samples: {before.name} -> {state.name}")
    for unit in units:
        unit.state = state


def live_leases(group: Group) -> Iterable[Lease]:
    units = group.units if group.lead is None else [*group.units, group.lead]
    return [u.lease for u in units if u.lease is not None]
