"""Leases: the right of one worker process to bring one unit through one stage.

Invariant: a unit has at most one current lease, which its worker holds too, and a worker's load counts what it
holds: its leases, and the episodes that live there between turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.lifecycle import (
    GENERATE,
    POOL_OF,
    STEP,
    Lease,
    SampleState,
    Unit,
    lease_id,
    move_units,
    split_lease,
)
from roll_operator.scheduler.state import JobState

STORED, DUPLICATE, FENCED = 1, 2, 3  # what becomes of a result or failure
WAITING, LEASED = SampleState.WAITING, SampleState.LEASED


def enqueue(state: JobState, unit: Unit, now: float) -> None:
    """The unit waits for its stage: at the worker that keeps its episode, or in the pool's line."""
    unit.since = now
    keeper = state.workers.get(unit.resident) if unit.resident and unit.stage == STEP else None
    if keeper is not None and keeper.silent:
        leave(state, unit, tell=True)  # replayed elsewhere: a silent worker gets nothing
    elif keeper is not None:
        if keeper.connected:
            grant(state, now, [unit], keeper)
        return  # a broken stream: it waits until its episode is back, or lost
    state.next_ticket += 1
    state.pool(POOL_OF[unit.stage]).enqueue(unit, state.next_ticket)


def enqueue_together(state: JobState, units: Sequence[Unit], now: float) -> None:
    """Units of one group that wait for the same stage of the same turn; no episode or suspect among them."""
    for unit in units:
        unit.since = now
    state.pool(POOL_OF[units[0].stage]).enqueue_together(units, state.next_ticket + 1)
    state.next_ticket += len(units)


def grant(state: JobState, now: float, units: Sequence[Unit], worker: Worker) -> None:
    """Lease units of one group, which wait for the same stage, to the worker."""
    first = units[0]
    stage = first.stage
    floor = None
    if stage == GENERATE:
        needed, held = state.min_version(first.group), worker.version
        floor = needed if held is None or held < needed else held
    deadline = now + state.settings.no_progress
    number = lease_id(state.term, state.next_lease)
    state.next_lease += len(units)
    granted = []
    for unit in units:
        if stage == STEP and unit.resident and unit.resident != worker.id:
            leave(state, unit, tell=True)  # replayed elsewhere
        if unit.issued:
            state.count("redone")
        unit.issued += 1
        granted.append(Lease(number, unit, worker.id, stage, unit.turn, deadline, floor, now))
        number += 1
    hold(state, granted, worker)
    state.out.assign.setdefault(worker.id, []).extend(granted)


def hold(state: JobState, leases: Sequence[Lease], worker: Worker) -> None:
    """Make each lease its unit's current one, held by the worker."""
    units = [lease.unit for lease in leases]
    move_units(units, LEASED)
    held, residents = worker.leases, worker.residents
    for lease, unit in zip(leases, units, strict=True):
        unit.lease = held[lease.id] = lease
        if unit.company and (most := unit.company_in(worker.pool)):
            worker.company = min(worker.company, most) if worker.company else most
    here = [unit for unit in units if unit.key in residents] if residents else ()
    worker.load += len(units) - len(here)
    state.pools[worker.pool].offer(worker)


def release(state: JobState, lease: Lease) -> None:
    """The lease is over, whatever its outcome; its credit is free again."""
    unit = lease.unit
    unit.lease = None
    worker = state.workers.get(lease.worker)
    if worker is None or worker.leases.pop(lease.id, None) is None:
        return
    if not worker.residents or unit.key not in worker.residents:
        worker.load -= 1
    if worker.company:
        limit_company(state, worker)
    state.pools[worker.pool].offer(worker)


def limit_company(state: JobState, worker: Worker) -> None:
    """To what its suspects allow. One whose episode lives here counts between its turns, too: its next step comes
    here, whoever has moved in meanwhile."""
    units = [lease.unit for lease in worker.leases.values()]
    units += [unit for key in worker.residents if (unit := find(state, *key)) is not None]
    worker.company = min((most for u in units if (most := u.company_in(worker.pool))), default=0)


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
    if worker.company:
        limit_company(state, worker)
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


def current(worker: Worker, lease: int, unit: Unit | None) -> Lease | None:
    """The lease if it is the unit's current one, held by this worker."""
    held = worker.leases.get(lease)
    return held if held is not None and held.unit is unit else None


def adoptable(
    state: JobState, worker: Worker, lease: int, unit: Unit, stage: str, turn: int
) -> bool:
    """A lease of an earlier scheduler that is not over, for a stage that the worker serves."""
    return (
        split_lease(lease)[0] < state.term
        and unit.state is WAITING
        and unit.stage == stage
        and POOL_OF[unit.stage] == worker.pool
        and unit.turn == turn
        # Issued before what is on record: a lease of an earlier life of the episode.
        and lease >= unit.brought
        # Its failure was counted; only the acknowledgement did not get through.
        and not (unit.failures and state.archive.has_failed(unit.group.id, lease))
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
    hold(state, [adopted], worker)
    return adopted
