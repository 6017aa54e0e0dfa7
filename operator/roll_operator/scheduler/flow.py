"""A unit's way through its stages: leases, results, failures, retries, replacement.

Invariant: a result is stored once per (unit, stage, turn), by compare-and-set on the unit's current
lease. A worker that lost its lease is told `fenced` and changes nothing.

Samples that got their reward, or failed for good, are put on `state.scored` and `state.failed`: what
follows for their group is decided in `groups`.

A failure never becomes a reward. Attempts are counted for failures that a worker reported and for
crashes that a unit had to itself; units that shared a worker that died are only suspects, and are
tried again in ever smaller company, so that one poison prompt does not condemn its neighbours.
"""

from __future__ import annotations

import math

from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.lifecycle import (
    POOL_OF,
    Cause,
    Lease,
    Part,
    SampleState,
    Stage,
    Unit,
    lease_id,
    move_unit,
    split_lease,
)
from roll_operator.scheduler.state import JobState

STORED, DUPLICATE, FENCED = 1, 2, 3
# Company of a suspect: a worker's leases at its death, over this, down to one.
SHRINK = 8


def enqueue(state: JobState, unit: Unit, now: float) -> None:
    """The unit waits for its stage: at the worker that keeps its episode, or in the pool's line."""
    unit.since = now
    if unit.stage == Stage.STEP and unit.resident:
        worker = state.workers.get(unit.resident)
        if worker is not None:
            if worker.connected:
                grant(state, now, unit, worker)
            return  # a broken stream: it waits until its episode is back, or lost
    state.next_ticket += 1
    state.pool(POOL_OF[unit.stage]).enqueue(unit, state.next_ticket)


def grant(state: JobState, now: float, unit: Unit, worker: Worker) -> Lease:
    if unit.stage == Stage.STEP and unit.resident and unit.resident != worker.id:
        leave(state, unit, tell=True)  # replayed elsewhere
    lease = Lease(
        id=lease_id(state.term, state.next_lease),
        unit=unit,
        worker=worker.id,
        stage=unit.stage,
        turn=unit.turn,
        deadline=now + state.settings.no_progress,
        floor=_floor(state, unit, worker),
        granted=now,
    )
    state.next_lease += 1
    if unit.issued:
        state.count("redone")
    unit.issued += 1
    hold(state, lease, worker)
    leases = state.out.assign.get(worker.id)
    if leases is None:
        leases = state.out.assign[worker.id] = []
    leases.append(lease)
    return lease


def _floor(state: JobState, unit: Unit, worker: Worker) -> int | None:
    if unit.stage != Stage.GENERATE:
        return None
    needed, held = state.min_version(unit.group), worker.version
    return needed if held is None or held < needed else held


def hold(state: JobState, lease: Lease, worker: Worker) -> None:
    """Make the lease the unit's current one, held by the worker."""
    unit = lease.unit
    move_unit(unit, SampleState.LEASED)
    unit.lease = lease
    state.leases[lease.id] = lease
    worker.leases[lease.id] = lease
    if not worker.residents or unit.key not in worker.residents:
        worker.load += 1
    if unit.company:
        worker.company = min(worker.company, unit.company) if worker.company else unit.company
    state.pool(worker.pool).offer(worker)


def release(state: JobState, lease: Lease) -> None:
    """The lease is over, whatever its outcome; its credit is free again."""
    unit = lease.unit
    unit.lease = None
    state.leases.pop(lease.id, None)
    worker = state.workers.get(lease.worker)
    if worker is None or worker.leases.pop(lease.id, None) is None:
        return
    if not worker.residents or unit.key not in worker.residents:
        worker.load -= 1
    if worker.company:
        worker.company = min(
            (x.unit.company for x in worker.leases.values() if x.unit.company), default=0
        )
    state.pool(worker.pool).offer(worker)


def settle(state: JobState, unit: Unit, worker: Worker, *, resident: bool) -> None:
    """Keep or end the unit's residence at the worker, whose lease on it is about to be released."""
    if resident:
        worker.residents.add(unit.key)
        unit.resident = worker.id
    else:
        leave(state, unit)


def leave(state: JobState, unit: Unit, *, tell: bool = False) -> None:
    """The unit's episode, if some worker keeps one, is over."""
    if not unit.resident:
        return
    worker = state.workers.get(unit.resident)
    unit.resident = ""
    if worker is None or unit.key not in worker.residents:
        return
    worker.residents.discard(unit.key)
    if unit.lease is None or unit.lease.worker != worker.id:
        worker.load -= 1
    if tell:
        state.out.evict.setdefault(worker.id, []).append(unit.key)
    state.pool(worker.pool).offer(worker)


def find(state: JobState, group: int, index: int) -> Unit | None:
    held = state.groups.get(group)
    if held is None:
        return None
    if index < 0:
        return held.lead
    return held.units[index] if index < held.size else None


def current(state: JobState, worker: Worker, lease: int, unit: Unit | None) -> Lease | None:
    """The lease if it is the unit's current one, held by this worker."""
    held = state.leases.get(lease)
    return held if held is not None and held.worker == worker.id and held.unit is unit else None


def adoptable(state: JobState, lease: int, unit: Unit, stage: str, turn: int) -> bool:
    """A lease of an earlier scheduler that no newer one has replaced."""
    return (
        split_lease(lease)[0] < state.term
        and unit.state is SampleState.WAITING
        and unit.stage == stage
        and unit.turn == turn
        # Issued before what is on record: a lease of an earlier life of the episode.
        and (not unit.parts or lease >= unit.parts[-1].lease)
    )


def adopt(
    state: JobState, worker: Worker, lease: int, unit: Unit, now: float, floor: int | None
) -> Lease:
    if unit.ticket:
        state.pool(POOL_OF[unit.stage]).withdraw(unit)
    adopted = Lease(
        id=lease,
        unit=unit,
        worker=worker.id,
        stage=unit.stage,
        turn=unit.turn,
        deadline=now + state.settings.no_progress,
        floor=floor,
        granted=now,
    )
    unit.issued += 1
    hold(state, adopted, worker)
    return adopted


def result(
    state: JobState,
    worker: Worker,
    *,
    group: int,
    index: int,
    lease: int,
    stage: str,
    turn: int,
    payload: bytes,
    now: float,
    tokens: int = 0,
    oldest: int | None = None,
    newest: int | None = None,
    lineage: int | None = None,
    reward: float | None = None,
    done: bool = False,
    resident: bool = False,
    base: int = 0,
) -> int:
    """A stage's outcome. Returns the verdict that is also put into the acknowledgement."""
    unit = find(state, group, index)
    verdict = FENCED
    if unit is not None:
        held = current(state, worker, lease, unit)
        if held is None and adoptable(state, lease, unit, stage, turn):
            held = adopt(state, worker, lease, unit, now, oldest)
        if held is not None and base != unit.kept:
            why = f"the result builds on {base} tokens of this turn, {unit.kept} are recorded"
            _failed(state, held, Cause.INFRASTRUCTURE, why, now)
        elif held is not None and held.stage == stage and held.turn == turn:
            verdict = _store(
                state,
                worker,
                held,
                payload,
                now,
                tokens,
                oldest,
                newest,
                lineage,
                reward,
                done,
                resident,
            )
        elif any(
            p.lease == lease and p.stage == stage and p.turn == turn and not p.partial
            for p in unit.parts
        ):
            verdict = DUPLICATE
    state.ack(worker.id, lease, verdict)
    return verdict


def _store(
    state: JobState,
    worker: Worker,
    lease: Lease,
    payload: bytes,
    now: float,
    tokens: int,
    oldest: int | None,
    newest: int | None,
    lineage: int | None,
    reward: float | None,
    done: bool,
    resident: bool,
) -> int:
    unit = lease.unit
    if tokens and (oldest is None or newest is None):
        _failed(state, lease, Cause.INFRASTRUCTURE, "sampled tokens without their version", now)
        return FENCED
    if oldest is not None and (
        oldest < state.min_version(unit.group) or lineage not in (None, state.lineage)
    ):
        _failed(state, lease, Cause.INFRASTRUCTURE, f"tokens of version {oldest} are too old", now)
        return FENCED
    following = state.settings.graph.after(lease.stage, done=done)
    if following is None and (reward is None or not math.isfinite(reward)):
        _failed(state, lease, Cause.INPUT, f"{lease.stage} gave no finite reward: {reward}", now)
        return FENCED
    _add(state, worker, lease, payload, now, tokens, oldest, newest, reward, done=done)
    if POOL_OF[lease.stage] == "environment":
        settle(state, unit, worker, resident=resident and not done)
    release(state, lease)
    if unit.failures:
        state.touch_unit(unit)
    unit.failures = unit.company = unit.issued = unit.kept = 0
    state.last_progress = now
    if unit.index < 0:
        _spread(state, unit, following, now)
        return STORED
    if lease.stage == Stage.RESET:
        state.pre_policy -= 1
    if following is None:
        move_unit(unit, SampleState.SCORED)
        unit.reward = reward
        leave(state, unit, tell=True)
        state.scored.append(unit)
    else:
        if following == Stage.GENERATE and lease.stage != Stage.RESET:
            unit.turn += 1
        move_unit(unit, SampleState.WAITING)
        unit.stage = following
        enqueue(state, unit, now)
    return STORED


def _add(
    state: JobState,
    worker: Worker,
    lease: Lease,
    payload: bytes,
    now: float,
    tokens: int,
    oldest: int | None,
    newest: int | None,
    reward: float | None,
    *,
    partial: bool = False,
    done: bool = False,
) -> None:
    unit = lease.unit
    part = Part(
        lease.stage, lease.turn, state.store.append(payload), lease.id, tokens, oldest, newest, reward,
        worker.pod, now, partial, unit.life, done,
    )  # fmt: skip
    state.record_part(unit, part)
    unit.tokens += tokens
    if oldest is not None and newest is not None:
        unit.oldest = oldest if unit.oldest is None else min(unit.oldest, oldest)
        unit.newest = newest if unit.newest is None else max(unit.newest, newest)


def _spread(state: JobState, lead: Unit, following: Stage | None, now: float) -> None:
    """A stage of group scope is done: every sample goes on from it."""
    group = lead.group
    move_unit(lead, SampleState.SCORED)
    for unit in group.units:
        if unit.state is SampleState.WAITING and not unit.ticket and following is not None:
            unit.stage = following
            state.pre_policy -= 1
            enqueue(state, unit, now)


def progress(
    state: JobState,
    worker: Worker,
    *,
    lease: int,
    tokens: int,
    now: float,
    partial: bytes = b"",
    partial_tokens: int = 0,
    oldest: int | None = None,
    newest: int | None = None,
) -> None:
    """A sign of life; with a partial, also tokens that another worker can go on from.

    `tokens` counts the turn's tokens from its beginning, so that a partial that is sent again after a
    reconnect does not count twice.
    """
    held = state.leases.get(lease)
    if held is None or held.worker != worker.id:
        return
    if tokens > held.tokens:
        held.tokens = tokens
        held.deadline = now + state.settings.no_progress
        state.last_progress = now
    if not partial or oldest is None or newest is None:
        return
    fresh = oldest >= state.min_version(held.unit.group)
    if fresh and tokens - partial_tokens == held.unit.kept:
        _add(state, worker, held, partial, now, partial_tokens, oldest, newest, None, partial=True)
        held.unit.kept += partial_tokens


def failure(
    state: JobState,
    worker: Worker,
    *,
    group: int,
    index: int,
    lease: int,
    cause: str,
    message: str,
    now: float,
) -> int:
    """A worker reports that it could not bring a unit through its stage."""
    unit = find(state, group, index)
    held = current(state, worker, lease, unit) if unit is not None else None
    if held is None:
        state.ack(worker.id, lease, FENCED)
        return FENCED
    if cause == "returned":
        leave(state, held.unit)
        put_back(state, held, now)
    else:
        _failed(state, held, Cause(cause), message, now)
    state.ack(worker.id, lease, STORED)
    return STORED


def put_back(state: JobState, lease: Lease, now: float) -> None:
    """The unit waits again, and nobody is to blame."""
    unit = lease.unit
    release(state, lease)
    move_unit(unit, SampleState.WAITING)
    enqueue(state, unit, now)


def suspect(state: JobState, lease: Lease, shared: int, why: Cause, now: float) -> None:
    """The worker died, or fell silent, with `shared` leases: this one may be the reason."""
    unit = lease.unit
    if shared <= 1:
        _failed(state, lease, why, f"{lease.worker} ended while it held only this", now)
        return
    unit.company = max(1, min(shared, unit.company or shared) // SHRINK)
    put_back(state, lease, now)


def _failed(state: JobState, lease: Lease, cause: Cause, message: str, now: float) -> None:
    """Count the attempt, then try again, or end the sample for good."""
    unit = lease.unit
    unit.failures += 1
    state.count(f"failures.{cause}")
    state.last_failure = f"{lease.stage} failed ({cause}): {message}"
    worker = state.workers.get(lease.worker)
    state.writes.failures.append(
        (
            unit.group.id,
            unit.index,
            lease.stage,
            lease.turn,
            unit.failures,
            str(cause),
            message[:2000],
            worker.pod if worker else "",
            lease.id,
            now,
        )
    )
    state.touch_unit(unit)
    release(state, lease)
    move_unit(unit, SampleState.WAITING)
    if unit.failures < state.settings.max_attempts:
        if cause is Cause.REPLAY and state.settings.graph.interactive:
            restart(state, unit)
        enqueue(state, unit, now)
        return
    state.failed.append((unit, cause))


def restart(state: JobState, unit: Unit) -> None:
    """The episode starts again from its reset; what it had stays on record as an earlier life."""
    leave(state, unit, tell=True)
    if unit.stage != Stage.RESET:
        state.pre_policy += 1
    unit.life += 1
    unit.stage = state.settings.graph.first()
    unit.turn = unit.kept = unit.tokens = 0
    unit.oldest = unit.newest = None
    unit.parts = []
    state.touch_unit(unit)
