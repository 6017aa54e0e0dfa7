"""From rows back to groups: what a re-opened scheduler, the audit and the story of a sample share."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from roll_operator.scheduler import record
from roll_operator.scheduler.lifecycle import (
    SAMPLE_ENDS,
    Block,
    Group,
    GroupState,
    Part,
    SampleState,
    Stage,
    Unit,
)
from roll_operator.scheduler.stages import StageGraph

CHUNK = 500  # ids per query


def read_groups(db: sqlite3.Connection, graph: StageGraph, ids: Sequence[int]) -> list[Group]:
    """The groups with these ids, in this order, with all their parts of the current life."""
    found: dict[int, Group] = {}
    for first in range(0, len(ids), CHUNK):
        chunk = ids[first : first + CHUNK]
        marks = ",".join("?" * len(chunk))
        for row in db.execute(f"SELECT * FROM groups WHERE id IN ({marks})", chunk):
            group = _group(row, graph)
            found[group.id] = group
        for row in db.execute(f"SELECT * FROM units WHERE group_id IN ({marks})", chunk):
            _own_story(found.get(row[0]), row)
        query = f"SELECT group_id, packed FROM parts WHERE group_id IN ({marks}) ORDER BY rowid"
        for group_id, packed in db.execute(query, chunk):
            if group_id in found:
                found[group_id].record.append(packed)
    groups = [found[i] for i in ids if i in found]
    for group in groups:
        _place(group, graph)
    return groups


def _group(row: Sequence[Any], graph: StageGraph) -> Group:
    (gid, lineage, position, step, slot, pinned, state, cause, size, admitted, at, ended, seal) = (
        row
    )
    group = Group(
        id=gid, lineage=lineage, position=position, admitted=admitted, step=step, slot=slot,
        validation=pinned, state=GroupState(state), cause=cause, ended_step=at, ended=ended, seal=seal,
    )  # fmt: skip
    group.units = [Unit(group, i, graph.first(), since=group.admitted) for i in range(size)]
    if graph.group_reset:
        group.lead = Unit(group, -1, graph.first(), since=group.admitted)
    return group


def _unit(group: Group | None, index: int) -> Unit | None:
    if group is None:
        return None
    if index < 0:
        return group.lead
    return group.units[index] if index < group.size else None


def _own_story(group: Group | None, row: Sequence[Any]) -> None:
    _, index, state, cause, failures, life, hurdle, company = row
    unit = _unit(group, int(index))
    if unit is None:
        return
    unit.failures, unit.life, unit.cause = failures, life, cause
    unit.hurdle, unit.company = hurdle, company
    if SampleState(state) in SAMPLE_ENDS:
        unit.state = SampleState(state)


def _place(group: Group, graph: StageGraph) -> None:
    """Where each unit stands follows from what it has."""
    parts = record.by_unit(group)
    spread = None
    if group.lead is not None:
        spread = _walk(group.lead, parts.get(-1, ()), graph)
        if group.lead.places:
            group.lead.state = SampleState.SCORED
    for unit in group.units:
        if group.lead is not None and group.lead.places:
            unit.stage = spread or Stage.GENERATE
        following = _walk(unit, parts.get(unit.index, ()), graph)
        if following is None and unit.places and unit.state not in SAMPLE_ENDS:
            unit.state = SampleState.SCORED
    group.unfinished = sum(u.state is SampleState.WAITING for u in group.units)


def _walk(unit: Unit, parts: Iterable[Part], graph: StageGraph) -> str | None:
    """Replay the unit's parts; returns the stage that it waits for, or None when it has its reward."""
    following: str | None = unit.stage
    for part in parts:
        unit.add((Block(part.segment, 0), part.start, part.length), part.lease)
        unit.tokens += part.tokens
        unit.oldest = _least(unit.oldest, part.oldest)
        unit.newest = _most(unit.newest, part.newest)
        if part.partial:
            unit.kept += part.tokens
            continue
        unit.kept = 0
        unit.reward = part.reward if part.reward is not None else unit.reward
        following = graph.after(part.stage, done=part.done)
        if following == Stage.GENERATE and part.stage == Stage.STEP:
            unit.turn = part.turn + 1
        if following is not None:
            unit.stage = following
    return following


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _most(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def sample_ends(groups: Iterable[Group]) -> dict[str, int]:
    """How the samples of ended or batched groups ended, by the names that the counters use."""
    ends: dict[str, int] = {}
    for group in groups:
        own = [(u.state, u.cause) for u in group.units if u.state in SAMPLE_ENDS]
        count_ends(ends, group.state, group.cause, group.size, own)
    return ends


def count_ends(
    ends: dict[str, int],
    state: GroupState,
    cause: str,
    size: int,
    own: Iterable[tuple[SampleState, str]],
) -> None:
    """Add one group's samples: those with an end of their own, then those that share the group's."""
    shared = size
    for end, why in own:
        name = f"{end.name.lower()}.{why}"
        ends[name] = ends.get(name, 0) + 1
        shared -= 1
    if shared and state not in (GroupState.OPEN, GroupState.READY, GroupState.BATCHED):
        name = state.name.lower() + (f".{cause}" if cause else "")
        ends[name] = ends.get(name, 0) + shared
