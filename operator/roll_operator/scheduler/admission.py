"""What may start: slots of steps, bounded by staleness and by the credit that is there.

Let v be the highest published version, B the groups of a step, S `maxStaleness`, A `runAhead` <= S,
F the first step without a recorded batch. A group is admitted into the lowest free slot i of a step T,
F <= T <= steps, only if (T-1)B + i <= (v+1+A)B and a policy worker at version w >= T-1-S has credit.

Why every token of batch N then lies in [N-1-S, N-1]: a token is sampled under minVersion = T-1-S by
a worker that never goes back, so it is at least that old; a group changes its step only by an
exchange that its oldest token allows; and version N is published after batch N was recorded, so
nothing newer than N-1 exists when a token of batch N is sampled. What was never published, but by a ledger that was
lost or set back, counts for nothing: neither a worker that holds it nor a token of it.
"""

from __future__ import annotations

import math

from roll_operator.scheduler import groups
from roll_operator.scheduler.state import JobState


def next_slot(state: JobState) -> tuple[int, int] | None:
    """The slot of the next group, whether or not there is credit for it."""
    if state.published is None or state.ending or state.finished or state.error:
        return None
    settings = state.settings
    per_step = settings.groups_per_step
    limit = math.floor((state.published + 1 + settings.run_ahead) * per_step + 1e-9)
    step = state.first_open_step
    while step <= settings.steps and (step - 1) * per_step < limit:
        slot = state.slots.lowest_free(step)
        if slot is not None:
            return (step, slot) if (step - 1) * per_step + slot <= limit else None
        step += 1
    return None


def has_credit(state: JobState, step: int) -> bool:
    """A policy worker new enough for `step` has credit that nobody on the way claims."""
    oldest_allowed = max(0, step - 1 - state.settings.max_staleness)
    policy = state.pool("policy")
    if policy.free(oldest_allowed) <= policy.queued + state.pre_policy:
        return False
    environment = state.pool("environment")
    return environment.free() > environment.queued


def admit(state: JobState, now: float) -> None:
    """Open groups while there is a slot and credit for it. The data cursor moves with each."""
    while (place := next_slot(state)) is not None and has_credit(state, place[0]):
        group = groups.open_group(state, now, position=state.cursor)
        state.cursor += 1
        state.slots.place(group, *place)
        groups.start(state, group, state.settings.group_size, now)
