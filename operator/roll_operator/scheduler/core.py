"""The scheduler's turn: draw consequences, form batches, admit, assign.

Everything here and below is pure: time comes in as `now`, payloads go to an injected store, and what
must be written or sent is taken from `JobState.take`. The service around it owns sockets and disks;
the simulator and the tests drive the very same functions in virtual time.
"""

from __future__ import annotations

import math
from functools import partial

from roll_operator.scheduler import (
    admission,
    batching,
    groups,
    leases,
    presence,
    training,
    validation,
)
from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.lifecycle import Cause, Stage, Unit
from roll_operator.scheduler.state import COMPLETE, JobState

TOLD_SECONDS = 60.0  # a wait that is over is not told for ever


def dispatch(state: JobState, now: float) -> None:
    """Call after any number of events: afterwards nothing that could happen waits."""
    groups.settle(state, now)
    if not state.finished:
        batching.try_form(state, now)
        _finish(state, now)
    if not state.finished:
        validation.advance(state, now)
    if state.finished or state.error:
        return
    training.announce(state)
    admission.admit(state, now)
    if now >= state.resume_at:
        _assign(state, now)


def _assign(state: JobState, now: float) -> None:
    def fits(unit: Unit, worker: Worker) -> bool:
        if unit.stage != Stage.GENERATE:
            return True
        if worker.version is None:
            return False
        needed = state.min_version(unit.group)
        if unit.group.validation is not None:
            return worker.version == needed
        return worker.version >= needed or (worker.announced or -1) >= needed

    grant = partial(leases.grant, state, now)
    for pool in state.pools.values():
        pool.assign(fits, grant)


def _finish(state: JobState, now: float) -> None:
    """The job ends when its last step is committed and the last validation is done. A batch that was recorded is
    trained, also where no more are formed; a job that was given fewer steps than it has trained ends where it is."""
    last = state.formed if state.ending else max(state.settings.steps, state.reported)
    committed = state.checkpoints[-1].step if state.checkpoints else -1
    if state.reported < last or committed < last:
        return
    if state.published is None or state.published < last:
        return
    validation.abandon(state, now, Cause.JOB_ENDED, beyond=last)
    validation.schedule(state, last, last=True)
    if any(not v.finished for v in state.validations):
        return
    state.finished = state.ending or COMPLETE
    state.writes.meta["progress"] = {}  # to be written, whatever else is
    training.cancel_live(state, now, Cause.JOB_ENDED)
    training.abandon_after(state, last)
    groups.settle(state, now)
    for worker in state.workers.values():
        state.out.drains[worker.id] = state.finished


def tick(state: JobState, now: float) -> None:
    """Call about once a second, before `dispatch`."""
    presence.watch(state, now)
    _explain_waiting(state, now)


def _explain_waiting(state: JobState, now: float) -> None:
    """A trainer that waits for one long sample is told so, with the staleness that would end it.

    Told again only when it would take more than was said before, and not where something died meanwhile: that is
    what was waited for.
    """
    if now > state.waited_at + TOLD_SECONDS:
        state.notices.pop("waiting", None)
    step = state.asked
    batches = sorted(b.formed for b in state.batches.values())[-8:]
    if not step or step != state.first_open_step or len(batches) < 2:
        return
    period = (batches[-1] - batches[0]) / (len(batches) - 1)
    late = [g for g in state.slots.of(step).values() if g.unfinished]
    if not late or period <= 0 or now - batches[-1] < 3 * period + 1:
        return
    oldest = min(late, key=lambda g: g.admitted)
    away = any(worker.lost_at is not None for worker in state.workers.values())
    if away or oldest.admitted <= max(state.opened, state.worker_lost_at):
        return
    needed = math.ceil((now - oldest.admitted) / period)
    if needed <= max(state.staleness_advised, state.settings.max_staleness):
        return
    state.staleness_advised, state.waited_at = 2 * needed, now
    state.notices["waiting"] = (
        f"step {step} waited for group {oldest.id}, under way for {now - oldest.admitted:.1f} s; "
        f"rollout.maxStaleness {needed} would hide such a sample (now {state.settings.max_staleness})"
    )
