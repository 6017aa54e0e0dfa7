"""Failures, retries, suspects, episodes that begin again.

A failure never becomes a reward. Attempts are counted for failures that a worker reported and for
crashes that a unit had to itself; units that shared a worker that died are only suspects, and are
tried again in ever smaller company, so that one poison prompt does not condemn its neighbours.

Invariant: attempts and suspicion are forgotten only when the unit gets past the milestone where it earned them, its
hurdle. An episode that begins again meets it again, so that a sample whose episode always ends the same way comes to
an end, whatever goes well before that.

Samples that failed for good are put on `state.failed`: what follows for their group is decided in `groups`.
"""

from __future__ import annotations

from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.leases import (
    FENCED,
    STORED,
    WAITING,
    current,
    enqueue,
    find,
    leave,
    release,
)
from roll_operator.scheduler.lifecycle import (
    GENERATE,
    KINDS,
    POOL_OF,
    RESET,
    STEP,
    Cause,
    Lease,
    Stage,
    Unit,
    lease_id,
    milestone,
    move_unit,
    pool_of,
)
from roll_operator.scheduler.state import JobState

# Company of a suspect: a worker's leases at its death, over this, down to one.
SHRINK = 8
TOLD = 300  # characters of a message that a notice repeats


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
    held = current(worker, lease, unit) if unit is not None else None
    if held is None:
        state.ack(worker.id, [lease], FENCED)
        return FENCED
    if cause == "returned":
        leave(state, held.unit)
        put_back(state, held, now)
    else:
        count_failure(state, held, Cause(cause), message, now)
        if cause != Cause.REPLAY:  # episodes that begin again are no news
            _tell_first(state, held, cause, message)
    state.ack(worker.id, [lease], STORED)
    return STORED


def _tell_first(state: JobState, lease: Lease, cause: str, message: str) -> None:
    """The first failure of a kind is told while the job runs; the story of each is in the ledger."""
    unit = lease.unit
    name = f"{unit.group.id}.{unit.index}"
    what = f"group {unit.group.id}" if unit.index < 0 else f"sample {name}"
    more = "" if unit.index < 0 else f"; `roll samples RUN --id {name}` tells more"
    state.notices.setdefault(
        f"failed.{lease.stage}.{cause}",
        f"{lease.stage} of {what} failed (try {unit.failures} of {state.settings.max_attempts}): "
        f"{message[:TOLD]}{more}",
    )


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
        count_failure(state, lease, why, f"{lease.worker} ended while it held only this", now)
        return
    unit.hurdle = _hurdle_of_suspect(unit, lease)
    unit.company = max(1, min(shared, unit.company or shared) // SHRINK)
    state.touch_unit(unit)
    put_back(state, lease, now)


def _hurdle_of_suspect(unit: Unit, lease: Lease) -> int:
    """Not before one where failures were counted, and at a stage of the pool where it is a suspect now."""
    place, pool = milestone(lease.stage, lease.turn), POOL_OF[lease.stage]
    if not (unit.failures or unit.company_in(pool)):
        return place  # a suspicion in another pool gives way to this one
    if pool_of(unit.hurdle) == pool:
        return max(unit.hurdle, place)
    while place < unit.hurdle:
        place += len(KINDS)  # the same stage, a turn later
    return place


def count_failure(state: JobState, lease: Lease, cause: Cause, message: str, now: float) -> None:
    """Count the attempt, then try again, or end the sample for good."""
    unit = lease.unit
    unit.failures += 1
    unit.hurdle = max(unit.hurdle, milestone(lease.stage, lease.turn))
    unit.brought = max(unit.brought, lease.id + 1)  # this lease is over, whoever names it again
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
        if cause is Cause.REPLAY and lease.stage == STEP:
            restart(state, unit)
        enqueue(state, unit, now)
        return
    state.failed.append((unit, cause))


def got_past(state: JobState, unit: Unit, lease: Lease, following: Stage | None) -> None:
    """A stage is done, or with it all: forget what was held against the unit, if that lies behind it now."""
    if following is None or milestone(lease.stage, lease.turn) >= unit.hurdle:
        unit.failures = unit.company = unit.hurdle = 0
        state.touch_unit(unit)


def start_over(state: JobState, unit: Unit, now: float) -> None:
    """What the unit has is of no use any more, and nobody is to blame."""
    if unit.lease is not None:
        state.out.cancels.setdefault(unit.lease.worker, []).append(unit.lease.id)
        release(state, unit.lease)
        move_unit(unit, WAITING)
    elif unit.ticket:
        state.pool(POOL_OF[unit.stage]).withdraw(unit)
    restart(state, unit)
    enqueue(state, unit, now)


def restart(state: JobState, unit: Unit) -> None:
    """The sample starts again, from its reset or its group's; what it had stays on record as an earlier life."""
    leave(state, unit, tell=True)
    if unit.group.lead is not None:
        unit.stage = GENERATE
    elif unit.stage != RESET:
        state.pre_policy += 1
        unit.stage = RESET
    unit.life += 1
    unit.turn = unit.kept = unit.tokens = 0
    unit.oldest = unit.newest = None
    unit.places, unit.size = [], 0
    unit.brought = lease_id(state.term, state.next_lease)  # no lease of an earlier life is taken up
    state.touch_unit(unit)
