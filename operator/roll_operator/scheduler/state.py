"""All that one job's scheduler knows, in plain data, with what must be written and sent next.

Invariant: whatever changes durable facts also marks them (`touch`, `touch_unit`, `writes`), and nothing
in `out` leaves the process before the writes taken together with it are on disk. So a crash at any
point loses only what nobody outside has seen.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from roll_operator.scheduler.assignment import Pool, Worker
from roll_operator.scheduler.lifecycle import (
    BatchState,
    Block,
    Cause,
    Group,
    Lease,
    Unit,
)
from roll_operator.scheduler.roster import Roster
from roll_operator.scheduler.settings import Settings
from roll_operator.scheduler.slots import Slots

Payload = bytes | memoryview


class PayloadStore(Protocol):
    """Where payloads lie. `append` only buffers: the bytes are durable with the next commit."""

    def append(self, payload: Payload) -> Block: ...

    def read(self, block: Block, first: int, length: int) -> Payload: ...


class Archive(Protocol):
    """What is on disk only."""

    def groups_of(self, batch: Batch) -> list[Group]: ...

    def samples_between(self, step: int, later: int) -> int: ...

    def has_failed(self, group: int, lease: int) -> bool: ...


@dataclass(slots=True)
class Publication:
    """Weights that can be fetched."""

    number: int
    lineage: int
    digest: str
    locations: tuple[str, ...]


@dataclass(slots=True)
class CheckpointRow:
    """A checkpoint that the ledger vouches for."""

    step: int
    lineage: int
    path: str
    digest: str


@dataclass(slots=True, eq=False)
class Batch:
    """Step N and its ordered groups. `groups` is None when they are on disk only."""

    lineage: int
    step: int
    edition: int
    group_ids: tuple[int, ...]
    samples: int
    tokens: int
    digest: bytes
    previous: bytes  # digest of the step before: the chain
    oldest: int | None
    formed: float
    state: BatchState = BatchState.BATCHED
    attempts: int = 0
    acquired_term: int = 0
    groups: list[Group] | None = None
    reward: float = 0.0
    staleness: float = 0.0  # mean over sampled tokens' oldest version per sample
    max_staleness: int = 0  # the bound when it was formed
    recorded: int = 0  # the transaction that holds its newest row


@dataclass(slots=True)
class Validation:
    """One pass over the held-out prompts with one version."""

    version: int
    lineage: int
    groups: int  # 0: waits for the data set's size
    done: int = 0
    total_reward: float = 0.0
    scored: int = 0
    finished: bool = False

    @property
    def mean(self) -> float | None:
        return self.total_reward / self.scored if self.scored else None


@dataclass(slots=True)
class TrainerSeat:
    """Who may act as the trainer: the newest complete set of ranks."""

    term: int = 0
    attempt: int = -1
    members: dict[int, str] = field(default_factory=dict)  # rank -> worker id
    joining: dict[int, str] = field(default_factory=dict)
    joining_attempt: int = -1
    world: int = 1


@dataclass(slots=True)
class Writes:
    """Rows for one transaction. Upserts carry the whole row, so their order does not matter."""

    groups: list[tuple[object, ...]] = field(default_factory=list)
    units: list[tuple[object, ...]] = field(default_factory=list)
    parts: list[tuple[object, ...]] = field(default_factory=list)
    failures: list[tuple[object, ...]] = field(default_factory=list)
    batches: list[tuple[object, ...]] = field(default_factory=list)
    checkpoints: list[tuple[object, ...]] = field(default_factory=list)
    dropped_checkpoints: list[tuple[object, ...]] = field(default_factory=list)
    versions: list[tuple[object, ...]] = field(default_factory=list)
    validations: list[tuple[object, ...]] = field(default_factory=list)
    steps: list[tuple[object, ...]] = field(default_factory=list)
    abandoned: list[tuple[object, ...]] = field(default_factory=list)
    fold: tuple[int, int] | None = None  # (lineage, step): everything up to there is folded
    meta: dict[str, object] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(
            self.groups
            or self.units
            or self.parts
            or self.failures
            or self.batches
            or self.checkpoints
            or self.dropped_checkpoints
            or self.versions
            or self.validations
            or self.steps
            or self.abandoned
            or self.fold
            or self.meta
        )


@dataclass(slots=True)
class Acks:
    """What became of each lease that a worker told of."""

    leases: list[int] = field(default_factory=list)
    verdicts: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Out:
    """Messages that wait for the commit, by worker."""

    assign: dict[str, list[Lease]] = field(default_factory=dict)
    acks: dict[str, Acks] = field(default_factory=dict)
    cancels: dict[str, list[int]] = field(default_factory=dict)
    evict: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    policies: dict[str, Publication] = field(default_factory=dict)
    welcomes: dict[str, tuple[list[int], list[tuple[int, int]]]] = field(default_factory=dict)
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)
    drains: dict[str, str] = field(default_factory=dict)
    answers: list[tuple[str, int]] = field(default_factory=list)  # (worker, call)


COMPLETE = "complete"  # the reason of a job that trained all its steps

# What the row "progress" of `meta` holds; every name is also an attribute of JobState.
COUNTED = (
    "next_group", "cursor", "lineage", "formed", "reported", "published", "folded", "ending", "finished",
    "ending_terms", "filtered", "vouched_term", "vouched_from", "rewound",
)  # fmt: skip


@dataclass(slots=True)
class JobState:
    """The whole of it. Functions in the sibling modules act on it; nothing else does."""

    settings: Settings
    store: PayloadStore
    archive: Archive
    term: int
    ledger: str = ""  # its name, given when it was made
    lineage: int = 1
    next_group: int = 1
    next_lease: int = 1
    next_ticket: int = 1
    cursor: int = 0
    formed: int = 0  # F - 1
    reported: int = 0  # the trainer's position
    published: int | None = None
    folded: int = 0  # steps up to here are folded into digests
    ending: str = ""  # why no more batches are formed, before `steps`
    ending_terms: str = ""  # the filter's, at that time
    finished: str = ""  # why the job has ended
    ledger_lost: str = ""  # how the job went on without an earlier ledger
    error: str = ""
    asked: int = 0  # the step whose batch the trainer waits for
    form_due: bool = True  # something changed that may complete it
    announce_due: bool = True  # some worker may have to be told of a version
    opened: float = 0.0
    resume_at: float = 0.0  # a re-opened scheduler re-issues nothing before
    filtered: dict[int, int] = field(
        default_factory=dict
    )  # groups, by the open step that they were to fill
    failed_in_row: int = 0
    last_failure: str = ""
    groups: dict[int, Group] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    roster: Roster = field(default_factory=Roster)
    slots: Slots = field(default_factory=lambda: Slots(1))
    batches: dict[int, Batch] = field(default_factory=dict)
    versions: dict[int, Publication] = field(default_factory=dict)
    vouched_term: int = 0  # of the trainer that published last
    vouched_from: int = 0  # the first version that it published
    rewound: int = -1  # the term of the trainer that was last told where it starts
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    trainer: TrainerSeat = field(default_factory=TrainerSeat)
    data: dict[str, tuple[int, str]] = field(default_factory=dict)  # split -> (rows, hash)
    counters: Counter[str] = field(default_factory=Counter)
    pre_policy: int = 0  # samples that have not reached their first generation
    staleness_advised: int = 0
    waited_at: float = 0.0  # when that was told
    worker_lost_at: float = 0.0
    notices: dict[str, str] = field(default_factory=dict)
    transaction: int = 1  # the number of the one that `writes` will be
    writes: Writes = field(default_factory=Writes)
    out: Out = field(default_factory=Out)
    scored: list[Unit] = field(default_factory=list)
    failed: list[tuple[Unit, Cause]] = field(default_factory=list)
    trained: list[Group] = field(default_factory=list)  # nobody asks for them any more
    dirty_groups: dict[int, Group] = field(default_factory=dict)
    dirty_units: dict[tuple[int, int], Unit] = field(default_factory=dict)
    last_progress: float = 0.0
    metrics: str = "{}"  # of the newest step, as the trainer reported them

    @property
    def first_open_step(self) -> int:
        """F: the first step without a recorded batch."""
        return self.formed + 1

    @property
    def leases(self) -> dict[int, Lease]:
        """Of all workers, by number: for questions that are asked seldom."""
        return {
            number: lease
            for worker in self.workers.values()
            for number, lease in worker.leases.items()
        }

    @property
    def newest_version(self) -> int:
        """Nothing newer exists in this lineage; -1: nothing at all."""
        return -1 if self.published is None else self.published

    @property
    def is_blank(self) -> bool:
        """Whether it knows of nothing that anybody could hold: a new job's ledger, or one in place of a lost one."""
        told = self.rewound == self.trainer.term  # its checkpoint of step 0 will be of this lineage
        return self.published is None and not self.checkpoints and not self.formed and not told

    @property
    def trainer_is_here(self) -> bool:
        """No batch is formed, and no attempt counted, for a trainer that may be dead."""
        workers = self.workers
        return all(w in workers and workers[w].connected for w in self.trainer.members.values())

    def pool(self, name: str) -> Pool:
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = Pool(name)
        return pool

    def touch(self, group: Group) -> None:
        self.dirty_groups[group.id] = group

    def touch_unit(self, unit: Unit) -> None:
        self.dirty_units[unit.key] = unit

    def count(self, name: str, by: int = 1) -> None:
        self.counters[name] += by

    def min_version(self, group: Group) -> int:
        """No token of the group may be older: step - 1 - S, or the pinned version."""
        if group.validation is not None:
            return group.validation
        oldest = group.step - 1 - self.settings.max_staleness
        return oldest if oldest > 0 else 0

    def env_seed(self, group: Group) -> int:
        """Equal for all samples of a group; the same held-out episodes in every validation."""
        return seed_of(self.settings.seed, _seed_key(group), -1)

    def sampling_seeds(self, group: Group) -> list[int]:
        """By index."""
        job, key = self.settings.seed, _seed_key(group)
        blocks = range(0, group.size, SEEDS)
        return [seed >> 1 for first in blocks for seed in _seeds(job, key, first // SEEDS)]

    def ack(self, worker: str, leases: Sequence[int], verdict: int) -> None:
        acks = self.out.acks.get(worker)
        if acks is None:
            acks = self.out.acks[worker] = Acks()
        acks.leases += leases
        acks.verdicts += [verdict] * len(leases)

    def record_batch(self, batch: Batch) -> None:
        batch.recorded = self.transaction
        self.writes.batches.append(
            (
                batch.lineage,
                batch.step,
                batch.edition,
                int(batch.state),
                struct.pack(f"<{len(batch.group_ids)}q", *batch.group_ids),
                batch.samples,
                batch.tokens,
                batch.digest,
                batch.previous,
                batch.oldest,
                batch.attempts,
                batch.reward,
                batch.staleness,
                batch.formed,
                batch.acquired_term,
                batch.max_staleness,
            )
        )

    def record_validation(self, v: Validation) -> None:
        self.writes.validations.append(
            (v.lineage, v.version, v.groups, v.done, v.total_reward, v.scored, v.finished)
        )

    def take(self) -> tuple[Writes, Out]:
        """Everything to be written now, and everything to be sent once it is."""
        self.transaction += 1
        writes, self.writes = self.writes, Writes()
        out, self.out = self.out, Out()
        for group in self.dirty_groups.values():
            writes.groups.append(
                (
                    group.id,
                    group.lineage,
                    group.position,
                    group.step,
                    group.slot,
                    group.validation,
                    int(group.state),
                    group.cause,
                    group.size,
                    group.admitted,
                    group.ended_step,
                    group.ended,
                    group.seal,
                )
            )
        for unit in self.dirty_units.values():
            writes.units.append(
                (
                    unit.group.id,
                    unit.index,
                    int(unit.state),
                    unit.cause,
                    unit.failures,
                    unit.life,
                    unit.hurdle,
                    unit.company,
                )
            )
        if writes:
            writes.meta["progress"] = {name: getattr(self, name) for name in COUNTED}
            writes.meta["counters"] = dict(self.counters)
        self.dirty_groups = {}
        self.dirty_units = {}
        for group in self.trained:
            group.dissolve()
        self.trained = []
        return writes, out


def _seed_key(group: Group) -> int:
    return group.id if group.validation is None else -1 - group.position


_three = struct.Struct("<qqq")


def seed_of(job: int, group: int, index: int) -> int:
    """H(job, group, index); the attempt is no part of it. Index -1 is the environment's."""
    return _seeds(job, group, index // SEEDS)[index % SEEDS] >> 1


SEEDS = 8  # of one digest
_eight = struct.Struct("<8Q")


@lru_cache(1024)
def _seeds(job: int, group: int, block: int) -> tuple[int, ...]:
    return _eight.unpack(hashlib.blake2b(_three.pack(job, group, block), digest_size=64).digest())
