"""A message of results: stored together where each is just what was asked for.

Invariant: a message leaves the state that its results would leave one by one. Nearly all of them come as they were
asked for, and a look at each column costs a fraction of a look at each result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, repeat
from typing import Any
from zlib import crc32

from roll_operator.scheduler import flow, record
from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.leases import STORED, WAITING, enqueue, enqueue_together, leave
from roll_operator.scheduler.lifecycle import (
    KIND_OF,
    POOL_OF,
    RESET,
    REWARDED,
    STEP,
    VERSIONED,
    Block,
    Lease,
    Stage,
    Unit,
    move_units,
)
from roll_operator.scheduler.state import JobState, Payload


@dataclass(slots=True)
class Arrived:
    """A message of results of one stage, in columns: entry i of each is about result i."""

    stage: str
    groups: Sequence[int]
    indices: Sequence[int]
    leases: Sequence[int]
    turns: Sequence[int]
    sizes: Sequence[int]
    payloads: Payload  # end to end
    tokens: Sequence[int]
    lineages: Sequence[int]  # 0: nothing was sampled
    oldest: Sequence[int]
    newest: Sequence[int]
    has_reward: Sequence[bool]
    rewards: Sequence[float]
    done: Sequence[bool]
    resident: Sequence[bool]
    base: Sequence[int]  # tokens of the turn that are on record already

    def pieces(self) -> list[Payload]:
        """Each payload, without a copy."""
        whole = memoryview(self.payloads)
        return [whole[start:end] for start, end in pairwise(accumulate(self.sizes, initial=0))]

    def each(self) -> Iterator[dict[str, Any]]:
        """What `result` is to be told, one by one."""
        for (
            group, index, lease, turn, payload, tokens, lineage, oldest, newest, has_reward, reward,
            done, resident, base,
        ) in zip(
            self.groups, self.indices, self.leases, self.turns, self.pieces(), self.tokens,
            self.lineages, self.oldest, self.newest, self.has_reward, self.rewards, self.done,
            self.resident, self.base, strict=True,
        ):  # fmt: skip
            yield {
                "group": group, "index": index, "lease": lease, "turn": turn, "payload": payload,
                "tokens": tokens, "oldest": oldest if lineage else None,
                "newest": newest if lineage else None, "lineage": lineage or None,
                "reward": reward if has_reward else None, "done": done, "resident": resident,
                "base": base,
            }  # fmt: skip


def results(state: JobState, worker: Worker, arrived: Arrived, now: float) -> None:
    """A message of results: together when each is just what was asked for, otherwise one by one."""
    leases = _as_asked(state, worker, arrived)
    if leases:
        _store(state, worker, arrived, leases, now)
        return
    for said in arrived.each():
        flow.result(state, worker, stage=arrived.stage, now=now, **said)


def _as_asked(state: JobState, worker: Worker, arrived: Arrived) -> list[Lease]:
    """The leases, if each is held, every result fits its own, and no episode, suspect or retry is among them.

    A reset counts here where it serves a whole group.
    """
    stage, numbers = arrived.stage, arrived.leases
    if worker.residents or worker.company or stage not in POOL_OF or stage == STEP:
        return []
    if stage == RESET and max(arrived.indices, default=0) >= 0:
        return []
    if any(arrived.done) or any(arrived.resident) or any(arrived.base):
        return []
    held, distinct = worker.leases, set(numbers)
    if len(distinct) < len(numbers) or not held.keys() >= distinct:
        return []
    leases = [held[number] for number in numbers]
    units = [lease.unit for lease in leases]
    if any(unit.failures or unit.company for unit in units):
        return []
    fits = (
        [unit.index for unit in units] == arrived.indices
        and [unit.group.id for unit in units] == arrived.groups
        and [lease.turn for lease in leases] == arrived.turns
        and {lease.stage for lease in leases} == {stage}
        and [unit.kept for unit in units] == arrived.base
    )
    return leases if fits and _storable(state, units, arrived) else []


def _storable(state: JobState, units: Sequence[Unit], arrived: Arrived) -> bool:
    """What `flow` asks of each, of all; False also when they differ in what they bring."""
    if any(arrived.lineages):
        if set(arrived.lineages) != {state.lineage} or max(arrived.newest) > state.newest_version:
            return False
        floors = {group: state.min_version(group) for group in {unit.group for unit in units}}
        for unit, oldest in zip(units, arrived.oldest, strict=True):
            if oldest < floors[unit.group]:
                return False
        pinned = {group: group.validation for group in floors if group.validation is not None}
        if pinned and any(
            newest != pinned.get(unit.group, newest)
            for unit, newest in zip(units, arrived.newest, strict=True)
        ):
            return False
    elif any(arrived.tokens):
        return False
    if not any(arrived.has_reward):
        return state.settings.graph.after(arrived.stage, done=False) is not None
    return all(arrived.has_reward) and all(map(math.isfinite, arrived.rewards))


def _store(
    state: JobState, worker: Worker, arrived: Arrived, leases: Sequence[Lease], now: float
) -> None:
    """Results that are just what was asked for."""
    units = [lease.unit for lease in leases]
    block = state.store.append(arrived.payloads)
    packed = record.pack(_fields(arrived, units, block))
    places = zip(repeat(block), accumulate(arrived.sizes, initial=0), arrived.sizes, strict=False)
    held = worker.leases
    for number, unit, place in zip(arrived.leases, units, places, strict=True):
        del held[number]
        unit.lease = None
        unit.places.append(place)
        unit.size += place[2]
        unit.brought = number
        unit.issued = 0
    if any(arrived.lineages):
        for unit, tokens, oldest, newest in zip(
            units, arrived.tokens, arrived.oldest, arrived.newest, strict=True
        ):
            flow.sampled(unit, tokens, oldest, newest)
    following = state.settings.graph.after(arrived.stage, done=False)
    if arrived.stage == RESET:
        for lead in units:
            flow.spread(state, lead, following, now)
    else:
        _go_on_together(state, units, following, arrived.rewards)
    first = 0
    for after in range(1, len(units) + 1):
        group = units[first].group
        if after < len(units) and units[after].group is group:
            continue
        own = packed[first * record.PART_BYTES : after * record.PART_BYTES]
        record.add(state, group, worker.pod, now, block.segment, own)
        if group.validation is not None:
            state.announce_due = True  # it may have been the last that needed the version
        if following == STEP or (following and any(arrived.turns)):
            for unit in units[first:after]:
                enqueue(state, unit, now)
        elif following and arrived.stage != RESET:
            enqueue_together(state, units[first:after], now)
        first = after
    state.ack(worker.id, arrived.leases, STORED)
    worker.load -= len(units)
    state.pools[worker.pool].offer(worker)
    state.last_progress = now


def _fields(arrived: Arrived, units: Sequence[Unit], block: Block) -> list[Any]:
    """The parts that the results add, one after the other: see `Part`."""
    count = len(units)
    flags, oldest, newest = 0, arrived.oldest, arrived.newest
    if any(arrived.lineages):
        flags |= VERSIONED
    else:
        oldest = newest = [flow.NONE] * count
    if any(arrived.has_reward):
        flags |= REWARDED
    columns = (
        arrived.indices, [unit.life for unit in units], [len(unit.places) for unit in units],
        [KIND_OF[arrived.stage]] * count, arrived.turns, [flags] * count, [block.segment] * count,
        list(accumulate(arrived.sizes[:-1], initial=block.start)), arrived.sizes,
        list(map(crc32, arrived.pieces())), arrived.tokens, oldest, newest, arrived.rewards,
        arrived.leases,
    )  # fmt: skip
    fields: list[Any] = [0] * (record.FIELDS * count)
    for place, column in enumerate(columns):
        fields[place :: record.FIELDS] = column
    return fields


def _go_on_together(
    state: JobState, units: Sequence[Unit], following: Stage | None, rewards: Sequence[float]
) -> None:
    if following is None:
        move_units(units, flow.SCORED)
        for unit, reward in zip(units, rewards, strict=True):
            unit.reward = reward
            if unit.resident:
                leave(state, unit, tell=True)
        state.scored += units
        return
    move_units(units, WAITING)
    for unit in units:
        unit.stage = following
