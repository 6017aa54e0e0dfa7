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
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.lifecycle import (
    GENERATE,
    LEASE,
    POOL_OF,
    RESET,
    STEP,
    Cause,
    Lease,
    SampleState,
    Stage,
    Unit,
    lease_id,
    move_unit,
    split_lease,
)
from roll_operator.scheduler.state import JobState, Payload

STORED, DUPLICATE, FENCED = 1, 2, 3
WAITING, LEASED, SCORED = SampleState.WAITING, SampleState.LEASED, SampleState.SCORED
# Company of a suspect: a worker's leases at its death, over this, down to one.
SHRINK = 8


def enqueue(state: JobState, unit: Unit, now: float) -> None:
    """The unit waits for its stage: at the worker that keeps its episode, or in the pool's line."""
    unit.since = now
    if unit.resident and unit.stage == STEP:
        worker = state.workers.get(unit.resident)
        if worker is not None:
            if worker.connected:
                grant(state, now, [unit], worker)
            return  # a broken stream: it waits until its episode is back, or lost
    state.next_ticket += 1
    state.pool(POOL_OF[unit.stage]).enqueue(unit, state.next_ticket)


def grant(state: JobState, now: float, units: Sequence[Unit], worker: Worker) -> None:
    """Lease units of one group, which wait for the same stage, to the worker."""
    first = units[0]
    stage = first.stage
    floor = None
    if stage == GENERATE:
        needed, held = state.min_version(first.group), worker.version
        floor = needed if held is None or held < needed else held
    deadline = now + state.settings.no_progress
    leases = state.out.assign.get(worker.id)
    if leases is None:
        leases = state.out.assign[worker.id] = []
    number = lease_id(state.term, state.next_lease)
    state.next_lease += len(units)
    for unit in units:
        if unit.resident and unit.resident != worker.id and stage == STEP:
            leave(state, unit, tell=True)  # replayed elsewhere
        if unit.issued:
            state.count("redone")
        unit.issued += 1
        lease = Lease(number, unit, worker.id, stage, unit.turn, deadline, floor, now)
        number += 1
        hold(state, lease, worker)
        leases.append(lease)


def hold(state: JobState, lease: Lease, worker: Worker) -> None:
    """Make the lease the unit's current one, held by the worker."""
    unit = lease.unit
    move_unit(unit, LEASED)
    unit.lease = lease
    state.leases[lease.id] = lease
    worker.leases[lease.id] = lease
    if not worker.residents or unit.key not in worker.residents:
        worker.load += 1
    if unit.company:
        worker.company = min(worker.company, unit.company) if worker.company else unit.company
    state.pools[worker.pool].offer(worker)


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
    state.pools[worker.pool].offer(worker)


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
        and unit.state is WAITING
        and unit.stage == stage
        and unit.turn == turn
        # Issued before what is on record: a lease of an earlier life of the episode.
        and (not unit.rows or lease >= unit.rows[-1][LEASE])
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


class Outcome(NamedTuple):
    """What a worker says about one lease that it ends by a result."""

    group: int
    idx: int
    lease: int
    turn: int
    payload: Payload
    tokens: int = 0
    oldest: int | None = None
    newest: int | None = None
    lineage: int | None = None
    reward: float | None = None
    done: bool = False
    resident: bool = False
    base: int = 0  # tokens of this turn that are on record already


Said = tuple[
    int,
    int,
    int,
    int,
    Payload,
    int,
    int | None,
    int | None,
    int | None,
    float | None,
    bool,
    bool,
    int,
]  # an Outcome, or a plain tuple of the same


def results(
    state: JobState, worker: Worker, stage: str, outcomes: Sequence[Said], now: float
) -> None:
    """A message of results: together when each is just what was asked for, otherwise one by one."""
    if not _as_asked(state, worker, stage, outcomes):
        for (
            group, index, lease, turn, payload, tokens, oldest, newest, lineage, reward, done,
            resident, base,
        ) in outcomes:  # fmt: skip
            result(
                state, worker, group, index, lease, stage, turn, payload, now, tokens, oldest, newest,
                lineage, reward, done, resident, base,
            )  # fmt: skip
        return
    following = state.settings.graph.after(stage, done=False)
    append, rows, held, pod = state.store.append, state.writes.parts, worker.leases, worker.pod
    for group, index, number, turn, payload, tokens, oldest, newest, _, reward, *_ in outcomes:
        unit = held.pop(number).unit
        del state.leases[number]
        unit.lease = None
        row = (
            group, index, unit.life, len(unit.rows), stage, turn, False, *append(payload),
            crc32(payload), tokens, oldest, newest, reward, pod, number, now, False,
        )  # fmt: skip
        unit.rows.append(row)
        rows.append(row)
        if oldest is not None:
            _sampled(unit, tokens, oldest, newest)
        _go_on(state, unit, following, reward, now)
        state.ack(worker.id, number, STORED)
    worker.load -= len(outcomes)
    state.pools[worker.pool].offer(worker)
    state.last_progress = now


def _as_asked(state: JobState, worker: Worker, stage: str, outcomes: Sequence[Said]) -> bool:
    """Every lease is held, every result fits it, and no episode or suspect is among them."""
    if worker.residents or worker.company or POOL_OF.get(stage) == "environment":
        return False
    following = state.settings.graph.after(stage, done=False)
    held, seen = worker.leases, set()
    for (
        group, index, number, turn, _, tokens, oldest, newest, lineage, reward, done, resident, base,
    ) in outcomes:  # fmt: skip
        lease = held.get(number)
        if lease is None or done or resident:
            return False
        unit = lease.unit
        if unit.index != index or unit.group.id != group or unit.kept != base:
            return False
        if lease.turn != turn or lease.stage != stage:
            return False
        if _refusal(state, lease, following, tokens, oldest, newest, lineage, reward) is not None:
            return False
        seen.add(number)
    return len(seen) == len(outcomes)


def result(
    state: JobState,
    worker: Worker,
    group: int,
    index: int,
    lease: int,
    stage: str,
    turn: int,
    payload: Payload,
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
    held = worker.leases.get(lease)
    if held is not None and held.unit.index == index and held.unit.group.id == group:
        unit: Unit | None = held.unit
    else:
        held, unit = None, find(state, group, index)
        if unit is not None and adoptable(state, lease, unit, stage, turn):
            held = adopt(state, worker, lease, unit, now, oldest)
    verdict = FENCED
    if unit is None:
        pass
    elif held is not None and base != unit.kept:
        why = f"the result builds on {base} tokens of this turn, {unit.kept} are recorded"
        _failed(state, held, Cause.INFRASTRUCTURE, why, now)
    elif held is not None and held.stage == stage and held.turn == turn:
        following = state.settings.graph.after(held.stage, done=done)
        refusal = _refusal(state, held, following, tokens, oldest, newest, lineage, reward)
        if refusal is None:
            _add(state, worker, held, payload, now, tokens, oldest, newest, reward, done=done)
            if POOL_OF[stage] == "environment":
                settle(state, unit, worker, resident=resident and not done)
            _advance(state, held, following, reward, now)
            verdict = STORED
        else:
            _failed(state, held, *refusal, now)
    elif any(
        p.lease == lease and p.stage == stage and p.turn == turn and not p.partial
        for p in unit.parts
    ):
        verdict = DUPLICATE
    state.ack(worker.id, lease, verdict)
    return verdict


def _refusal(
    state: JobState,
    lease: Lease,
    following: Stage | None,
    tokens: int,
    oldest: int | None,
    newest: int | None,
    lineage: int | None,
    reward: float | None,
) -> tuple[Cause, str] | None:
    """Why an outcome cannot be stored, if so."""
    if tokens and (oldest is None or newest is None):
        return Cause.INFRASTRUCTURE, "sampled tokens without their version"
    if oldest is not None and (
        oldest < state.min_version(lease.unit.group) or lineage not in (None, state.lineage)
    ):
        return Cause.INFRASTRUCTURE, f"tokens of version {oldest} are too old"
    if following is None and (reward is None or not math.isfinite(reward)):
        return Cause.INPUT, f"{lease.stage} gave no finite reward: {reward}"
    return None


def _advance(
    state: JobState, lease: Lease, following: Stage | None, reward: float | None, now: float
) -> None:
    unit = lease.unit
    release(state, lease)
    state.last_progress = now
    if unit.index >= 0 and lease.stage == RESET:
        state.pre_policy -= 1
    if following == GENERATE and lease.stage != RESET:
        unit.turn += 1
    _go_on(state, unit, following, reward, now)


def _go_on(
    state: JobState, unit: Unit, following: Stage | None, reward: float | None, now: float
) -> None:
    """The stage is done and its lease is over: the unit waits for the next one, or has its reward."""
    if unit.failures:
        state.touch_unit(unit)
    unit.failures = unit.company = unit.issued = unit.kept = 0
    if unit.index < 0:
        _spread(state, unit, following, now)
        return
    if following is None:
        move_unit(unit, SCORED)
        unit.reward = reward
        leave(state, unit, tell=True)
        state.scored.append(unit)
        return
    move_unit(unit, WAITING)
    unit.stage = following
    enqueue(state, unit, now)


def _add(
    state: JobState,
    worker: Worker,
    lease: Lease,
    payload: Payload,
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
    segment, start, length = state.store.append(payload)
    row = (
        unit.group.id, unit.index, unit.life, len(unit.rows), lease.stage, lease.turn, partial,
        segment, start, length, crc32(payload), tokens, oldest, newest, reward,
        worker.pod, lease.id, now, done,
    )  # fmt: skip
    unit.rows.append(row)
    state.writes.parts.append(row)
    _sampled(unit, tokens, oldest, newest)


def _sampled(unit: Unit, tokens: int, oldest: int | None, newest: int | None) -> None:
    unit.tokens += tokens
    if oldest is not None and newest is not None:
        unit.oldest = oldest if unit.oldest is None else min(unit.oldest, oldest)
        unit.newest = newest if unit.newest is None else max(unit.newest, newest)


def _spread(state: JobState, lead: Unit, following: Stage | None, now: float) -> None:
    """A stage of group scope is done: every sample goes on from it."""
    group = lead.group
    move_unit(lead, SCORED)
    for unit in group.units:
        if unit.state is WAITING and not unit.ticket and following is not None:
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
    move_unit(unit, WAITING)
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
    move_unit(unit, WAITING)
    if unit.failures < state.settings.max_attempts:
        if cause is Cause.REPLAY and state.settings.graph.interactive:
            restart(state, unit)
        enqueue(state, unit, now)
        return
    state.failed.append((unit, cause))


def restart(state: JobState, unit: Unit) -> None:
    """The episode starts again from its reset; what it had stays on record as an earlier life."""
    leave(state, unit, tell=True)
    if unit.stage != RESET:
        state.pre_policy += 1
    unit.life += 1
    unit.stage = state.settings.graph.first()
    unit.turn = unit.kept = unit.tokens = 0
    unit.oldest = unit.newest = None
    unit.rows = []
    state.touch_unit(unit)
