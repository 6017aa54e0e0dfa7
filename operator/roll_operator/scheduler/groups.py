"""A group's fate: opened, complete when every sample is scored, then kept, filtered, failed, cancelled.

Invariant: a group that ends before it is batched frees its slot in the same transaction, and the
filter's decision is taken once and recorded. Each step has a budget of its own of groups that are filtered, whenever
they are complete; an exhausted one ends the job when that step is the next, and no sooner.
"""

from __future__ import annotations

import hashlib
import statistics
import struct

from roll_operator.scheduler import leases
from roll_operator.scheduler.lifecycle import (
    CANCELLED,
    FAILED,
    POOL_OF,
    SAMPLE_ENDS,
    Cause,
    Group,
    GroupState,
    SampleState,
    Stage,
    Unit,
    live_leases,
    move,
    move_unit,
)
from roll_operator.scheduler.settings import Settings
from roll_operator.scheduler.state import JobState, Validation

# Groups that fail for good one after the other, in multiples of a step, before the job is given up.
HOPELESS_STEPS = 2


def open_group(
    state: JobState, now: float, *, position: int, validation: int | None = None
) -> Group:
    group = Group(
        id=state.next_group,
        lineage=state.lineage,
        position=position,
        admitted=now,
        validation=validation,
    )
    state.next_group += 1
    state.groups[group.id] = group
    state.count("groups")
    state.touch(group)
    return group


def start(state: JobState, group: Group, samples: int, now: float) -> None:
    """Give the group its samples and put them in line for their first stage."""
    _add_samples(state, group, samples)
    if state.settings.graph.group_reset:
        group.lead = Unit(group, -1, state.settings.graph.first(), since=now)
        leases.enqueue(state, group.lead, now)
    else:
        for unit in group.units:
            leases.enqueue(state, unit, now)


def _add_samples(state: JobState, group: Group, count: int) -> None:
    first = state.settings.graph.first()
    group.units += [Unit(group, index, first) for index in range(group.size, group.size + count)]
    group.unfinished += count
    state.pre_policy += count
    state.count("samples", count)


def settle(state: JobState, now: float) -> None:
    """Draw the consequences of every sample that was scored or failed for good."""
    while state.scored or state.failed:
        scored, state.scored = state.scored, []
        failed, state.failed = state.failed, []
        for unit in scored:
            group = unit.group
            group.unfinished -= 1
            if not group.unfinished and group.state is GroupState.OPEN:
                _complete(state, group, now)
        for unit, cause in failed:
            if unit.group.state is GroupState.OPEN and unit.state is SampleState.WAITING:
                _sample_failed(state, unit, cause, now)


def _complete(state: JobState, group: Group, now: float) -> None:
    """Every sample is scored."""
    move(group, GroupState.COMPLETE)
    if group.validation is not None:
        end(state, group, GroupState.EVALUATED, "", now)
        return
    state.failed_in_row = 0
    if _filtered_out(state, group):
        end(state, group, GroupState.FILTERED, "", now)
    else:
        move(group, GroupState.READY)
        group.seal = contents(group)
        state.slots.now_ready(group)
        state.form_due = True
        state.touch(group)


def _filtered_out(state: JobState, group: Group) -> bool:
    """The filter's one decision about this group; an exhausted budget overrules it."""
    settings = state.settings
    if not _is_rejected(settings, group):
        return False
    if not _is_spent(state, group.step):
        state.filtered[group.step] = state.filtered.get(group.step, 0) + 1
        return True
    if settings.on_exhausted == "Keep":
        state.notices["filter"] = (
            f"steps take groups that rollout.filter would drop, since its budget ({settings.filter_budget:g} × "
            f"{settings.groups_per_step} groups a step) is spent: usual while nearly all answers are wrong, or right"
        )
    elif group.step == state.first_open_step:
        _exhausted(state)
    return False


def next_step(state: JobState) -> None:
    """Another step is the first open one. If its budget was exhausted before, while earlier ones could still be
    formed, that has its consequence now: the group that did it waits in its slot."""
    step = state.first_open_step
    if not _is_spent(state, step):
        return
    ready = [g for g in state.slots.of(step).values() if g.state is GroupState.READY]
    if any(exhausts(state.settings, group) for group in ready):
        _exhausted(state)


def exhausts(settings: Settings, ready: Group) -> bool:
    """Whether it is ready only because its step's budget is spent, and ends the job when that step is next: it is
    trained in no step."""
    return settings.on_exhausted != "Keep" and _is_rejected(settings, ready)


def _is_rejected(settings: Settings, group: Group) -> bool:
    rewards = [u.reward for u in group.kept if u.reward is not None]
    return not keeps(settings.filter_by, settings.filter_above, settings.filter_below, rewards)


def _is_spent(state: JobState, step: int) -> bool:
    budget = state.settings.filter_budget * state.settings.groups_per_step
    return state.filtered.get(step, 0) >= budget


def _exhausted(state: JobState) -> None:
    """The first open step can't be filled with what the filter lets through."""
    settings, step = state.settings, state.first_open_step
    why = (
        f"filter budget exhausted: {state.filtered.get(step, 0)} groups were filtered while step {step} "
        f"waited for {settings.groups_per_step}"
    )
    if settings.on_exhausted == "Complete":
        state.ending = state.ending or why
        state.ending_terms = settings.filter_terms
    elif settings.on_exhausted == "Fail":
        state.error = state.error or f"{why}; loosen rollout.filter or raise its budget"


def keeps(by: str, above: float, below: float, rewards: list[float]) -> bool:
    """Whether above < figure < below, for the mean or the standard deviation of a group's rewards."""
    if by == "none":
        return True
    figure = statistics.fmean(rewards) if by == "mean" else statistics.pstdev(rewards)
    return above < figure < below


def _sample_failed(state: JobState, unit: Unit, cause: Cause, now: float) -> None:
    """A sample failed for good: a new one takes its place, or its group fails with it."""
    group = unit.group
    if unit.index < 0:
        end(state, group, GroupState.FAILED, cause, now)
        return
    _detach(state, unit)
    _end_unit(state, unit, SampleState.FAILED, cause)
    group.unfinished -= 1
    replacements = group.size - state.settings.group_size
    if group.validation is None and replacements < state.settings.max_replacements:
        _add_samples(state, group, 1)
        fresh = group.units[-1]
        state.touch(group)
        if group.lead is not None:
            fresh.stage = Stage.GENERATE
            state.pre_policy -= 1
        leases.enqueue(state, fresh, now)
        return
    end(state, group, GroupState.FAILED, cause, now)


def _end_unit(state: JobState, unit: Unit, to: SampleState, cause: str) -> None:
    move_unit(unit, to)
    unit.cause = str(cause)
    state.count(f"{to.name.lower()}.{cause}")
    state.touch_unit(unit)


def _detach(state: JobState, unit: Unit) -> None:
    """The unit waits nowhere and lives nowhere any more."""
    if unit.ticket:
        state.pool(POOL_OF[unit.stage]).withdraw(unit)
    if unit.index >= 0 and unit.stage == Stage.RESET and unit.state not in SAMPLE_ENDS:
        state.pre_policy -= 1
    leases.leave(state, unit, tell=True)


def end(state: JobState, group: Group, to: GroupState, cause: str, now: float) -> None:
    """The group's one end. Leases are cancelled, its slot is free, its row is sealed."""
    for lease in live_leases(group):
        state.out.cancels.setdefault(lease.worker, []).append(lease.id)
        leases.release(state, lease)
    for unit in group.units if group.lead is None else [*group.units, group.lead]:
        _detach(state, unit)
    if to is GroupState.FAILED:
        own = any(u.state is SampleState.FAILED for u in group.units)
        for unit in group.kept:
            if own:
                _end_unit(state, unit, SampleState.CANCELLED, Cause.SIBLING)
            else:
                _end_unit(state, unit, SampleState.FAILED, cause)
        # Held-out prompts say nothing about what can be trained on.
        state.failed_in_row += group.validation is None
    else:
        name = to.name.lower()
        state.count(f"{name}.{cause}" if cause else name, len(group.kept))
    if group.validation is None:
        state.slots.release(group)
        state.form_due = True
    else:
        _evaluated(state, group, to)
    move(group, to)
    group.cause = str(cause)
    group.ended_step = state.first_open_step
    group.ended = now
    group.seal = seal(group)
    state.groups.pop(group.id, None)
    state.touch(group)
    _give_up_if_hopeless(state)


def end_stale(state: JobState, now: float) -> None:
    """A job that was suspended may come back with a lower maxStaleness: what is too old for its step by that is not
    trained. Nor is what could only begin with a version that is not there yet: it would keep the environments that
    the steps before it need. Without such a change there is nothing of the kind."""
    for group in list(state.groups.values()):
        oldest = group.oldest()
        first = state.newest_version if oldest is None else oldest
        if group.validation is None and first < state.min_version(group):
            end(state, group, GroupState.CANCELLED, Cause.STALE, now)


def _evaluated(state: JobState, group: Group, to: GroupState) -> None:
    for validation in state.validations:
        if not validation.finished and validation.version == group.validation:
            _add_to(validation, group, to)
            state.announce_due = True
            state.record_validation(validation)
            return


def _add_to(validation: Validation, group: Group, to: GroupState) -> None:
    validation.done += 1
    if to is GroupState.EVALUATED:
        rewards = [u.reward for u in group.kept if u.reward is not None]
        validation.total_reward += sum(rewards)
        validation.scored += len(rewards)
    validation.finished = validation.done >= validation.groups


def _give_up_if_hopeless(state: JobState) -> None:
    limit = max(8, HOPELESS_STEPS * state.settings.groups_per_step)
    if state.failed_in_row >= limit and not state.error:
        state.error = (
            f"{state.failed_in_row} groups failed one after the other and none came through; "
            f"last: {state.last_failure}"
        )


def seal(group: Group) -> bytes:
    """A digest of the group's end and of all that its samples hold: what `verify` recomputes."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(
        struct.pack(
            "<qqqqqq",
            group.id,
            group.lineage,
            group.position,
            int(group.state),
            group.ended_step,
            -1 if group.validation is None else group.validation,
        )
    )
    digest.update(group.cause.encode())
    digest.update(contents(group))
    return digest.digest()


_of_unit = struct.Struct("<qqq")


def contents(group: Group) -> bytes:
    """How many samples, what is their own, and all parts as they are on record: the group's part of every digest."""
    digest = hashlib.blake2b(_of_unit.pack(group.size, 0, 0), digest_size=16)
    for unit in group.units if group.lead is None else [group.lead, *group.units]:
        ended = unit.state is FAILED or unit.state is CANCELLED
        if ended or unit.life:
            digest.update(_of_unit.pack(unit.index, unit.state if ended else 0, unit.life))
    for packed in group.record:
        digest.update(packed)
    return digest.digest()
