"""Which groups form the batch of step N, and which share of it a rank gets.

Invariant: batches are recorded in order, each group is in at most one of them, and a group whose
oldest token does not allow step N is never in batch N.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections import Counter, deque
from collections.abc import Sequence

from roll_operator.scheduler import groups
from roll_operator.scheduler.lifecycle import Cause, Group, GroupState, Unit, move
from roll_operator.scheduler.state import Batch, JobState


def try_form(state: JobState, now: float) -> Batch | None:
    """Form batch F if the trainer asks for it and it is, or by exchanges can be made, complete."""
    step = state.first_open_step
    if state.asked != step or not state.form_due or state.ending or state.finished or state.error:
        return None
    if not state.trainer_is_here:
        return None
    held = state.slots.of(step)
    if state.slots.ready[step] < state.settings.groups_per_step:
        if now < state.resume_at:
            return None  # workers that come back may hold tokens that nobody here knows of
        state.form_due = False
        if not _exchange(state, step, now):
            return None
    return _record(state, step, [held[slot] for slot in sorted(held)], now)


def _exchange(state: JobState, step: int, now: float) -> bool:
    """Fill every unfinished or free slot of `step` with a ready group of a later step.

    An unfinished group takes the ready one's place, at most at step oldest + 1 + S, the tightest
    first. Either all of them find one, or nothing is changed. With `late: Drop` those that find none are
    cancelled, as few as can be; where too few groups are ready (always, if S = 0) it waits all the same.
    """
    slots, settings = state.slots, state.settings
    missing = settings.groups_per_step - slots.ready[step]
    if sum(n for later, n in slots.ready.items() if later > step) < missing:
        return False
    late = [g for g in slots.of(step).values() if g.state is not GroupState.READY]
    late.sort(key=lambda g: (_latest_step(g, settings.max_staleness), g.slot))
    nearest = min(later for later, n in slots.ready.items() if later > step and n)
    if late and not settings.late_drop and _latest_step(late[0], settings.max_staleness) < nearest:
        return False
    ready = deque(
        group
        for later in slots.steps()
        if later > step
        for _, group in sorted(slots.of(later).items())
        if group.state is GroupState.READY and not groups.exhausts(settings, group)
    )
    if len(ready) < missing:
        return False
    swaps: list[tuple[Group | None, Group]] = []
    # Every place that a tight group may take suits the looser ones behind it: this finds all that find one.
    without: list[Group | None] = [None] * (missing - len(late))
    for group in late:
        if ready[0].step <= _latest_step(group, settings.max_staleness):
            swaps.append((group, ready.popleft()))
        elif settings.late_drop:
            without.append(group)
        else:
            return False
    swaps += zip(without, ready, strict=False)
    for unfinished, taken in swaps:
        _swap(state, step, unfinished, taken, now)
    return True


def _latest_step(group: Group, max_staleness: int) -> float:
    oldest = group.oldest()
    return math.inf if oldest is None else oldest + 1 + max_staleness


def _swap(state: JobState, step: int, late: Group | None, ready: Group, now: float) -> None:
    later, place = ready.step, ready.slot
    state.slots.release(ready)
    if late is None:
        slot = state.slots.lowest_free(step)
        assert slot is not None
    else:
        slot = late.slot
        if later > _latest_step(late, state.settings.max_staleness):
            _tell_of_lengths(state, late)
            groups.end(state, late, GroupState.CANCELLED, Cause.STALE, now)
        else:
            state.slots.release(late)
            state.slots.place(late, later, place)
            state.touch(late)
    state.slots.place(ready, step, slot)
    state.touch(ready)


def _tell_of_lengths(state: JobState, late: Group) -> None:
    """Slow samples are long ones, so that what is left to train on is shorter than what the policy says.

    Told with the first group that is dropped, the second, the fourth, the eighth, ...
    """
    counters = state.counters
    state.count("late_groups")
    state.count("late_samples", len(late.kept))
    state.count("late_tokens", sum(_tokens_so_far(unit) for unit in late.kept))
    dropped, trained = counters["late_samples"], max(counters["batched_samples"], 1)
    if counters["late_groups"].bit_count() == 1:
        state.notices["late"] = (
            f"late: Drop has cancelled {dropped} slow samples, {counters['late_tokens'] / dropped:.0f} "
            f"tokens long on average when they were cut; those in batches have "
            f"{counters['batched_tokens'] / trained:.0f}: training sees shorter answers than the policy gives"
        )


def length_ratio(counters: Counter[str]) -> float:
    """Mean length of what was batched, over that of what was batched or dropped for its slowness; 1: no bias."""
    tokens, samples = counters["batched_tokens"], counters["batched_samples"]
    everything = (tokens + counters["late_tokens"]) * samples
    return tokens * (samples + counters["late_samples"]) / everything if everything else 1.0


def _tokens_so_far(unit: Unit) -> int:
    unrecorded = unit.lease.tokens - unit.kept if unit.lease is not None else 0
    return unit.tokens + max(unrecorded, 0)


def _record(state: JobState, step: int, members: list[Group], now: float) -> Batch:
    before = state.batches.get(step - 1)
    edition = state.counters[f"editions.{state.lineage}.{step}"]
    samples = [u for g in members for u in g.kept]
    ages = [step - 1 - u.oldest for u in samples if u.oldest is not None]
    batch = Batch(
        lineage=state.lineage,
        step=step,
        edition=edition,
        group_ids=tuple(g.id for g in members),
        samples=len(samples),
        tokens=sum([u.tokens for u in samples]),
        previous=before.digest if before else b"",
        digest=b"",
        oldest=min([u.oldest for u in samples if u.oldest is not None], default=None),
        formed=now,
        attempts=1,  # it is formed for the trainer that asks
        acquired_term=state.trainer.term,
        groups=members,
        reward=math.fsum([u.reward or 0.0 for u in samples]) / len(samples),
        staleness=sum(ages) / len(ages) if ages else 0.0,
        max_staleness=state.settings.max_staleness,
    )
    state.count("batched_samples", batch.samples)
    state.count("batched_tokens", batch.tokens)
    batch.digest = digest(batch.previous, batch.lineage, step, members, [g.seal for g in members])
    for group in members:
        move(group, GroupState.BATCHED)
        del state.groups[group.id]
        state.touch(group)
    state.slots.forget(step)
    state.batches[step] = batch
    state.record_batch(batch)
    state.formed = step
    state.asked = 0
    filtered = state.filtered.pop(step, 0)
    if filtered < state.settings.filter_budget * state.settings.groups_per_step:
        state.notices.pop("filter", None)
    groups.next_step(state)
    if ages:
        state.counters["staleness_max"] = max(state.counters["staleness_max"], max(ages))
    return batch


def digest(
    previous: bytes, lineage: int, step: int, members: Sequence[Group], contents: Sequence[bytes]
) -> bytes:
    """Of the batch and, through `previous`, of every batch before it."""
    chained = hashlib.blake2b(previous, digest_size=16)
    chained.update(struct.pack("<qq", lineage, step))
    for group, content in zip(members, contents, strict=True):
        chained.update(struct.pack("<qqq", group.id, group.position, group.slot))
        chained.update(content)
    return chained.digest()


def share(tokens: Sequence[int], rank: int, world: int) -> list[int]:
    """The positions of a batch that a rank trains: equally many for each, balanced by tokens.

    Longest first, each to the rank with the fewest tokens that still has room. Pure: the same batch
    and world give the same shares, whoever asks.
    """
    if world == 1:
        return list(range(len(tokens)))
    room = [len(tokens) // world + (1 if r < len(tokens) % world else 0) for r in range(world)]
    load = [0] * world
    mine: list[int] = []
    for position in sorted(range(len(tokens)), key=lambda p: (-tokens[p], p)):
        chosen = min((r for r in range(world) if room[r]), key=lambda r: (load[r], r))
        room[chosen] -= 1
        load[chosen] += tokens[position]
        if chosen == rank:
            mine.append(position)
    return sorted(mine)
