"""Held-out prompts beside training: pinned to one version, in no slot, ended as evaluated(v).

Invariant: while a held-out sample may still need the version that is validated, the workers that hold it stay at it;
training goes on with what staleness allows. Scoring needs no weights, so nobody waits for it. If every worker has gone
past the version, what is left moves to the oldest one held. All tokens of a held-out sample are of the version that it
is pinned to.
"""

from __future__ import annotations

from roll_operator.scheduler import failures, groups
from roll_operator.scheduler.lifecycle import GENERATE, SCORE, Cause, Group, GroupState, SampleState
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


def generating(state: JobState) -> Validation | None:
    """The validation whose version is needed: the first that has not begun, or has a sample that is not at its score
    yet. From there none comes back."""
    for validation in state.validations:
        if not validation.finished and (not validation.groups or _generates(state, validation)):
            return validation
    return None


def _generates(state: JobState, validation: Validation) -> bool:
    return any(
        unit.stage != SCORE and unit.state is not SampleState.SCORED
        for group in state.groups.values()
        if group.validation == validation.version
        for unit in group.kept
    )


def advance(state: JobState, now: float) -> None:
    """Start the validation that is due, or move one that no worker can serve any more."""
    validation = generating(state)
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
        _move_if_passed(state, validation, now)


def _move_if_passed(state: JobState, validation: Validation, now: float) -> None:
    # A worker whose stream broke may come back with its samples, so it counts until it is lost; one that hangs
    # gets nothing, so nobody waits for it.
    here = [w for w in state.pool("policy").workers.values() if not w.silent]
    held = [w.version for w in here if w.version is not None]
    if not held or min(held) <= validation.version:
        return
    passed, validation.version = validation.version, min(held)
    state.announce_due = True
    for other in [v for v in state.validations if not (v.finished or v.groups)]:
        if other.version <= validation.version:  # would measure the same version again
            state.validations.remove(other)
            _supersede(state, other.lineage, other.version)
    for group in state.groups.values():
        if group.validation == passed:
            group.validation = validation.version
            state.touch(group)
            _start_over(state, group, now)
    _supersede(state, validation.lineage, passed)
    state.record_validation(validation)


def _start_over(state: JobState, group: Group, now: float) -> None:
    """Whatever has tokens of the version before, or is about to, begins again."""
    for unit in group.kept:
        generates = unit.lease is not None and unit.lease.stage == GENERATE
        if generates or unit.oldest is not None:
            failures.start_over(state, unit, now)


def _supersede(state: JobState, lineage: int, version: int) -> None:
    state.writes.validations.append((lineage, version, -1, 0, 0.0, 0, True))


def abandon(state: JobState, now: float, cause: Cause, *, beyond: int = -1) -> None:
    """The lineage, the job, or its wish to be validated ended: nothing of versions `beyond` is waited for."""
    given_up = [v for v in state.validations if not v.finished and v.version > beyond]
    for group in list(state.groups.values()):
        if group.validation is not None and group.validation > beyond:
            groups.end(state, group, GroupState.CANCELLED, cause, now)
    for validation in given_up:
        validation.finished = True
        state.record_validation(validation)
        state.announce_due = True
