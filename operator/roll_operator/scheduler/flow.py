"""A unit's way through its stages: a result, a partial, what follows from them.

Invariant: a result is stored once per (unit, stage, turn), by compare-and-set on the unit's current
lease. A worker that lost its lease is told `fenced` and changes nothing.

Samples that got their reward are put on `state.scored`: what follows for their group is decided in `groups`.
"""

from __future__ import annotations

import math
from zlib import crc32

from roll_operator.scheduler import record
from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.failures import count_failure, got_past, start_over
from roll_operator.scheduler.leases import (
    DUPLICATE,
    FENCED,
    STORED,
    WAITING,
    adopt,
    adoptable,
    enqueue,
    enqueue_together,
    find,
    leave,
    release,
    settle,
)
from roll_operator.scheduler.lifecycle import (
    DONE,
    GENERATE,
    KIND_OF,
    PARTIAL,
    POOL_OF,
    RESET,
    REWARDED,
    VERSIONED,
    Cause,
    Lease,
    SampleState,
    Stage,
    Unit,
    move_unit,
)
from roll_operator.scheduler.state import JobState, Payload

SCORED = SampleState.SCORED
NONE = -1  # the version of nothing


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
        if unit is not None and adoptable(state, worker, lease, unit, stage, turn):
            held = adopt(state, worker, lease, unit, now, oldest)
    verdict = FENCED
    if unit is None:
        pass
    elif held is not None and _has_passed(worker, held, base, oldest, newest):
        start_over(state, unit, now)
    elif held is not None and base != unit.kept:
        why = f"the result builds on {base} tokens of this turn, {unit.kept} are recorded"
        count_failure(state, held, Cause.INFRASTRUCTURE, why, now)
    elif held is not None and held.stage == stage and held.turn == turn:
        following = state.settings.graph.after(held.stage, done=done)
        refusal = _refusal(state, held, following, tokens, oldest, newest, lineage, reward)
        if refusal is None:
            flags = DONE if done else 0
            _add(state, worker, held, payload, now, tokens, oldest, newest, reward, flags)
            if POOL_OF[stage] == "environment":
                settle(state, unit, worker, resident=resident and not done)
            _advance(state, held, following, reward, now)
            verdict = STORED
        else:
            count_failure(state, held, *refusal, now)
    elif any(
        p.lease == lease and p.stage == stage and p.turn == turn and not p.partial
        for p in record.parts_of(unit)
    ):
        verdict = DUPLICATE
    state.ack(worker.id, [lease], verdict)
    return verdict


def _has_passed(
    worker: Worker, lease: Lease, base: int, oldest: int | None, newest: int | None
) -> bool:
    """An engine took newer weights while it worked on a held-out sample, and can't serve its version any more."""
    pinned = lease.unit.group.validation
    if pinned is None or lease.stage != GENERATE or (worker.version or 0) <= pinned:
        return False
    pure = oldest is None or oldest == newest == pinned
    return not pure or base != lease.unit.kept


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
    if newest is not None and newest > state.newest_version:
        return Cause.INFRASTRUCTURE, f"tokens of version {newest}, which was never published"
    pinned = lease.unit.group.validation
    if pinned is not None and newest not in (None, pinned):
        return Cause.INFRASTRUCTURE, f"tokens of version {newest} are newer than the validated one"
    if following is None and (reward is None or not math.isfinite(reward)):
        return Cause.INPUT, f"{lease.stage} gave no finite reward: {reward}"
    return None


def _advance(
    state: JobState, lease: Lease, following: Stage | None, reward: float | None, now: float
) -> None:
    unit = lease.unit
    if unit.failures or unit.company:
        got_past(state, unit, lease, following)
    release(state, lease)
    state.last_progress = now
    if unit.index >= 0 and lease.stage == RESET:
        state.pre_policy -= 1
    if following == GENERATE and lease.stage != RESET:
        unit.turn += 1
    if unit.group.validation is not None:
        state.announce_due = True  # it may have been the last that needed the version
    _go_on(state, unit, following, reward, now)


def _go_on(
    state: JobState, unit: Unit, following: Stage | None, reward: float | None, now: float
) -> None:
    """The stage is done and its lease is over: the unit waits for the next one, or has its reward."""
    unit.issued = unit.kept = 0
    if unit.index < 0:
        spread(state, unit, following, now)
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
    flags: int = 0,
) -> None:
    """A part of one unit: see `Part`."""
    unit = lease.unit
    first, last, score = NONE, NONE, 0.0
    if oldest is not None and newest is not None:
        flags, first, last = flags | VERSIONED, oldest, newest
    if reward is not None:
        flags, score = flags | REWARDED, reward
    block = state.store.append(payload)
    row = (
        unit.index, unit.life, len(unit.places), KIND_OF[lease.stage], lease.turn, flags,
        block.segment, block.start, len(payload), crc32(payload), tokens, first, last, score, lease.id,
    )  # fmt: skip
    unit.add((block, 0, len(payload)), lease.id)
    record.add(state, unit.group, worker.pod, now, block.segment, record.pack(row))
    sampled(unit, tokens, oldest, newest)


def sampled(unit: Unit, tokens: int, oldest: int | None, newest: int | None) -> None:
    unit.tokens += tokens
    if oldest is not None and newest is not None:
        unit.oldest = oldest if unit.oldest is None else min(unit.oldest, oldest)
        unit.newest = newest if unit.newest is None else max(unit.newest, newest)


def spread(state: JobState, lead: Unit, following: Stage | None, now: float) -> None:
    """A stage of group scope is done: every sample goes on from it."""
    move_unit(lead, SCORED)
    waiting = [unit for unit in lead.group.units if unit.state is WAITING and not unit.ticket]
    if following is None or not waiting:
        return
    for unit in waiting:
        unit.stage = following
    state.pre_policy -= len(waiting)
    enqueue_together(state, waiting, now)


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
    waiting: bool = False,
) -> None:
    """A sign of life; with a partial, also tokens that another worker can go on from.

    `tokens` counts the turn's tokens from its beginning, so that a partial that is sent again after a
    reconnect does not count twice. A worker that hangs can't say that a unit is only `waiting` there.
    """
    held = worker.leases.get(lease)
    if held is None:
        return
    if waiting:
        held.deadline = now + state.settings.no_progress
    elif tokens != held.tokens:  # fewer: new weights, and it began again
        held.tokens = tokens
        held.deadline = now + state.settings.no_progress
        if held.stage == GENERATE:  # of other stages the count says no more than "still at it"
            state.last_progress = now
    if not partial or oldest is None or newest is None:
        return
    group = held.unit.group
    fits = state.min_version(group) <= oldest and newest <= state.newest_version
    if fits and group.validation in (None, newest) and tokens - partial_tokens == held.unit.kept:
        _add(state, worker, held, partial, now, partial_tokens, oldest, newest, None, PARTIAL)
        held.unit.kept += partial_tokens
