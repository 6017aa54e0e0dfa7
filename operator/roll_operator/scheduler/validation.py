"""Held-out prompts beside training: pinned to one version, in no slot, ended as evaluated(v).

Invariant: while a version is validated, the workers that hold it stay at it; training goes on with
what staleness allows. If every worker has gone past it, what is left moves to the oldest version held.
"""

from __future__ import annotations

from roll_operator.scheduler import groups
from roll_operator.scheduler.lifecycle import Cause, GroupState
from roll_operator.scheduler.state import JobState, Validation

# Episodes of a validation in an endless environment, when the job names no number.
EPISODES = 64


def schedule(state: JobState, version: int, *, last: bool = False) -> None:
    """Version `version` was published for the first time, or turned out to be the last."""
    every = state.settings.validation_every
    if not every or (version % every and version != state.settings.steps and not last):
        return
    if any(v.version >= version and v.lineage == state.lineage for v in state.validations):
        return
    validation = Validation(version, state.lineage, groups=0)
    state.validations.append(validation)
    state.record_validation(validation)


def advance(state: JobState, now: float) -> None:
    """Start the validation that is due, or move one that no worker can serve any more."""
    validation = next((v for v in state.validations if not v.finished), None)
    if validation is None or "validation" not in state.data:
        return
    if validation.groups == 0:
        rows, _ = state.data["validation"]
        limit = state.settings.validation_prompts
        count = min(rows, limit or rows) if rows >= 0 else limit or EPISODES
        validation.groups = count
        validation.finished = count == 0
        for row in range(count):
            group = groups.open_group(state, now, position=row, validation=validation.version)
            groups.start(state, group, 1, now)
        state.record_validation(validation)
    if now >= state.resume_at:
        _move_if_passed(state, validation)


def _move_if_passed(state: JobState, validation: Validation) -> None:
    # A worker whose stream broke may come back with its samples, so it counts until it is lost.
    held = [w.version for w in state.pool("policy").workers.values() if w.version is not None]
    if not held or min(held) <= validation.version:
        return
    passed, validation.version = validation.version, min(held)
    state.announce_due = True
    for other in [v for v in state.validations if not v.finished and v is not validation]:
        if other.version <= validation.version:  # would measure the same version again
            state.validations.remove(other)
            _supersede(state, other.lineage, other.version)
    for group in state.groups.values():
        if group.validation == passed:
            group.validation = validation.version
            state.touch(group)
    _supersede(state, validation.lineage, passed)
    state.record_validation(validation)


def _supersede(state: JobState, lineage: int, version: int) -> None:
    state.writes.validations.append((lineage, version, -1, 0, 0.0, 0, True))


def abandon(state: JobState, now: float, cause: Cause) -> None:
    """The lineage, or the job, ended: nothing of it is waited for."""
    for group in [g for g in state.groups.values() if g.validation is not None]:
        groups.end(state, group, GroupState.CANCELLED, cause, now)
    state.announce_due = True
    for validation in state.validations:
        if not validation.finished:
            validation.finished = True
            state.record_validation(validation)
