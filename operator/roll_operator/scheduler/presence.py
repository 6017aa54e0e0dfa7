"""Workers come, go and come back: Hello, credit, versions, silence, loss.

Invariant: a unit is re-issued only when its holder can no longer have its result stored: the lease is
revoked first, and a pod that the operator declared gone never says Hello again. No worker counts as holding a version
that this ledger did not publish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from roll_wire import PROTOCOL

from roll_operator.scheduler import failures, leases, record
from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.lifecycle import POOL_OF, Cause, SampleState, Stage, Unit, milestone
from roll_operator.scheduler.roster import Standing
from roll_operator.scheduler.state import JobState


@dataclass(slots=True)
class HeldLease:
    """A lease that a worker says it still works on."""

    group: int
    index: int
    lease: int
    stage: str
    turn: int
    resident: bool = False


@dataclass(slots=True)
class Greeting:
    """What a Hello says."""

    worker: str  # pod uid / incarnation / rank
    pod: str
    pod_uid: str
    role: str
    pool: str
    credits: int = 0
    address: str = ""
    version: int | None = None
    lineage: int | None = None
    held: list[HeldLease] = field(default_factory=list)
    rank: int = 0
    world: int = 1
    attempt: int = 0
    data: dict[str, tuple[int, str]] = field(default_factory=dict)
    protocol: int = PROTOCOL


def hello(state: JobState, greeting: Greeting, now: float) -> Worker | None:
    """A worker process says who it is. None: it was refused."""
    _begin_beyond(state, greeting)
    refusal = _reason_to_refuse(state, greeting)
    if refusal is not None:
        state.out.refused[greeting.worker] = refusal
        return None
    worker = state.workers.get(greeting.worker)
    if worker is None:
        # A pod of several ranks is several processes; each replaces its own predecessor only.
        who = greeting.pod_uid, greeting.rank
        for older in [w for w in state.workers.values() if (w.pod_uid, w.rank) == who]:
            lost(state, older, now)
        worker = Worker(
            id=greeting.worker,
            pod=greeting.pod,
            pod_uid=greeting.pod_uid,
            role=greeting.role,
            pool=greeting.pool,
            credits=greeting.credits,
            rank=greeting.rank,
        )
        state.workers[worker.id] = worker
    worker.connected, worker.draining, worker.silent = True, False, False
    worker.lost_at = None
    worker.last_seen = now
    worker.credits = greeting.credits
    worker.address = greeting.address
    worker.announced = None
    state.announce_due = True
    worker.version = (
        greeting.version if greeting.lineage == state.lineage else None
    )  # or it is refused
    if greeting.role == "trainer":
        _join(state, worker, greeting)
        return worker
    state.pool(worker.pool).add(worker)
    fenced, evicted = _reconcile(state, worker, greeting.held, now)
    state.out.welcomes[worker.id] = (fenced, evicted)
    return worker


def _is_ahead(state: JobState, greeting: Greeting) -> bool:
    """Whether it holds a version that this ledger never published: another one did, which was lost or is newer."""
    if greeting.version is None or greeting.lineage is None:
        return False
    return (greeting.lineage, greeting.version) > (state.lineage, state.newest_version)


def _begin_beyond(state: JobState, greeting: Greeting) -> None:
    """Before there is anything of a lineage, it can be one that nobody holds anything of."""
    if state.is_blank and greeting.lineage is not None and _is_ahead(state, greeting):
        state.lineage = greeting.lineage + 1
        state.writes.meta["progress"] = {}  # to be written, whatever else is


def _reason_to_refuse(state: JobState, greeting: Greeting) -> tuple[str, str] | None:
    if greeting.protocol != PROTOCOL:
        return "protocol", (
            f"{greeting.pod} speaks protocol {greeting.protocol or 1}, this scheduler {PROTOCOL}: "
            "use images of one release"
        )
    if state.roster.standing(greeting.pod_uid) is Standing.GONE:
        return "fenced", f"pod {greeting.pod} was declared gone"
    if state.finished:
        return "job-ended", state.finished
    if _is_ahead(state, greeting):
        # It never goes back to an older version, so it is of no use before it starts again.
        return "fenced", (
            f"{greeting.pod} holds version {greeting.version} of lineage {greeting.lineage}, which this ledger never "
            "published: it was set back"
        )
    seat = state.trainer
    if greeting.role == "trainer" and greeting.attempt < max(seat.attempt, seat.joining_attempt):
        return "fenced", f"trainer attempt {greeting.attempt} has been replaced"
    changed = _changed_data(state, greeting)
    return ("data-changed", changed) if changed else None


def _changed_data(state: JobState, greeting: Greeting) -> str:
    for split, (rows, digest) in greeting.data.items():
        known = state.data.get(split)
        if known is None:
            state.data[split] = (rows, digest)
            state.writes.meta[f"data.{split}"] = [rows, digest]
        elif known[1] != digest:
            return (
                f"the {split} data changed while the job was under way "
                f"(content {known[1][:12]} -> {digest[:12]}); restore it, or start over with --fresh"
            )
    return ""


def _join(state: JobState, worker: Worker, greeting: Greeting) -> None:
    """The start barrier: a term begins when every rank of an attempt has said Hello."""
    seat = state.trainer
    state.form_due = True
    if seat.term and seat.members.get(greeting.rank) == worker.id:
        state.out.welcomes[worker.id] = ([], [])
        return
    if greeting.attempt != seat.joining_attempt or greeting.world != seat.world:
        seat.joining, seat.joining_attempt, seat.world = {}, greeting.attempt, greeting.world
    seat.joining[greeting.rank] = worker.id
    alive = {
        rank: name
        for rank, name in seat.joining.items()
        if name in state.workers and state.workers[name].connected
    }
    if len(alive) < greeting.world:
        return
    seat.term += 1
    seat.attempt = greeting.attempt
    seat.members, seat.joining, seat.joining_attempt = alive, {}, -1
    state.asked = 0
    state.writes.meta["trainer"] = [seat.term, seat.attempt, seat.world, seat.members]
    for name in alive.values():
        state.out.welcomes[name] = ([], [])


def _reconcile(
    state: JobState, worker: Worker, held: Iterable[HeldLease], now: float
) -> tuple[list[int], list[tuple[int, int]]]:
    """Compare what the worker says it holds with what it should: adopt, fence, put back."""
    fenced: list[int] = []
    evicted: list[tuple[int, int]] = []
    claimed: set[int] = set()
    for item in held:
        claimed.add(item.lease)
        unit = leases.find(state, item.group, item.index)
        if unit is not None and (lease := leases.current(worker, item.lease, unit)) is not None:
            lease.deadline = now + state.settings.no_progress
        elif unit is not None and leases.adoptable(
            state, worker, item.lease, unit, item.stage, item.turn
        ):
            floor = state.min_version(unit.group) if item.stage == Stage.GENERATE else None
            leases.adopt(state, worker, item.lease, unit, now, floor)
        elif item.resident and unit is not None and _lives_here(worker, unit, item.lease):
            if unit.key not in worker.residents:
                worker.residents.add(unit.key)
                worker.load += 1
            unit.resident = worker.id
            if unit.ticket and unit.stage == Stage.STEP:
                state.pool(worker.pool).withdraw(unit)
        else:
            fenced.append(item.lease)
            if item.resident:
                evicted.append((item.group, item.index))
    for lease in [x for x in worker.leases.values() if x.id not in claimed]:
        failures.put_back(state, lease, now)  # the Assign never arrived
    for key in list(worker.residents):
        unit = leases.find(state, *key)
        if unit is not None and _waits_for_step(unit):
            leases.enqueue(state, unit, now)
    leases.limit_company(state, worker)
    state.pool(worker.pool).offer(worker)
    return fenced, evicted


def _lives_here(worker: Worker, unit: Unit, lease: int) -> bool:
    """The episode that `lease` left at the worker is the unit's newest."""
    made = [p for p in record.parts_of(unit) if p.stage in (Stage.RESET, Stage.STEP)]
    elsewhere = (
        unit.stage == Stage.STEP and unit.lease is not None and unit.lease.worker != worker.id
    )
    return (
        worker.pool == POOL_OF[Stage.STEP]
        and unit.resident in ("", worker.id)
        and unit.state in (SampleState.WAITING, SampleState.LEASED)
        and not elsewhere
        and bool(made)
        and made[-1].lease == lease
        # A suspect at its hurdle: whoever kept its episode hung, or died, with it.
        and not (unit.company_in(worker.pool) and milestone(unit.stage, unit.turn) == unit.hurdle)
    )


def _waits_for_step(unit: Unit) -> bool:
    waits = unit.stage == Stage.STEP and unit.state is SampleState.WAITING
    return waits and not unit.ticket


def seen(state: JobState, worker: Worker, now: float) -> None:
    worker.last_seen = now
    if worker.silent:
        worker.silent = False
        state.pool(worker.pool).offer(worker)


def credit(state: JobState, worker: Worker, credits: int) -> None:
    worker.credits = credits
    state.pool(worker.pool).offer(worker)


def holding(state: JobState, worker: Worker, lineage: int, version: int) -> None:
    known = lineage == state.lineage and version <= state.newest_version
    if known and (worker.version is None or version > worker.version):
        worker.version = version
        state.pool(worker.pool).offer(worker)


def disconnected(state: JobState, worker: Worker, now: float) -> None:
    """The stream broke. Its leases go back after a short grace, unless it reconnects."""
    if not worker.connected:
        return
    worker.connected = False
    worker.lost_at = now + state.settings.reconnect_grace
    if worker.role != "trainer":
        state.pool(worker.pool).offer(worker)


def pods_gone(state: JobState, uids: Iterable[str], now: float) -> None:
    """The operator's word: these pods are gone, and may not come back."""
    new = state.roster.dismiss(uids)
    if not new:
        return
    state.writes.meta |= state.roster.record()
    for worker in [w for w in state.workers.values() if w.pod_uid in new]:
        lost(state, worker, now)


def pods_are(state: JobState, current: Mapping[str, str], leader: int, now: float) -> None:
    """The operator's whole truth, uid -> role: whoever is not in it is gone. Outdated."""
    first = not state.roster.heard
    before = state.roster.record()
    left = state.roster.replace(current, leader)
    if first and state.resume_at:
        # Until now nobody could come back to say what it holds.
        state.resume_at = now + state.settings.reconnect_grace
    strangers = [w.pod_uid for w in state.workers.values() if w.pod_uid not in current]
    pods_gone(state, [*left, *strangers], now)
    if state.roster.record() != before:
        state.writes.meta |= state.roster.record()


def lost(state: JobState, worker: Worker, now: float) -> None:
    """The process is gone: put its leases back, with care for what may have killed it."""
    state.workers.pop(worker.id, None)
    if worker.role == "trainer":
        return
    state.worker_lost_at = now
    state.pool(worker.pool).remove(worker)
    shared = len(worker.leases)
    for lease in list(worker.leases.values()):
        worker.residents.discard(lease.unit.key)
        if lease.unit.resident == worker.id:
            lease.unit.resident = ""
        failures.suspect(state, lease, shared, Cause.INFRASTRUCTURE, now)
    for key in worker.residents:
        unit = leases.find(state, *key)
        if unit is not None and unit.resident == worker.id:
            unit.resident = ""
            if _waits_for_step(unit):
                leases.enqueue(state, unit, now)


def _fell_silent(state: JobState, worker: Worker, now: float) -> bool:
    late = now - worker.last_seen > state.settings.silence
    return late and worker.connected and not worker.silent


def watch(state: JobState, now: float) -> None:
    """Once a second: graces that ran out, silent workers, leases without progress."""
    for worker in list(state.workers.values()):
        if worker.lost_at is not None and now >= worker.lost_at:
            lost(state, worker, now)
        elif worker.role != "trainer" and _fell_silent(state, worker, now):
            worker.silent = True
            state.pool(worker.pool).offer(worker)
    held = [x for worker in state.workers.values() for x in worker.leases.values()]
    overdue = [x for x in held if now >= x.deadline]
    by_worker: dict[str, int] = {}
    for lease in overdue:
        by_worker[lease.worker] = by_worker.get(lease.worker, 0) + 1
    for lease in overdue:
        state.out.cancels.setdefault(lease.worker, []).append(lease.id)
        if lease.unit.resident == lease.worker:  # who hangs with an episode does not keep it
            leases.leave(state, lease.unit, tell=True)
        failures.suspect(state, lease, by_worker[lease.worker], Cause.TIMEOUT, now)
