"""One sample's whole story, told from the ledger alone."""

from __future__ import annotations

import sqlite3
import struct

from roll_wire import control_pb2, session_pb2

from roll_operator.scheduler import record
from roll_operator.scheduler.ledger import rows
from roll_operator.scheduler.lifecycle import (
    SAMPLE_ENDS,
    BatchState,
    Group,
    GroupState,
    Part,
    Unit,
)
from roll_operator.scheduler.stages import StageGraph

BATCH_WORDS = {
    BatchState.BATCHED: "batched({})",
    BatchState.TRAINED: "trained({})",
    BatchState.COMMITTED: "committed({})",
    BatchState.POISON: "failed(poison)",
    BatchState.ABANDONED: "cancelled(lineage)",
}


def read_story(
    db: sqlite3.Connection, graph: StageGraph, group: int, index: int
) -> control_pb2.SampleStory | None:
    """None when there is no such sample; of a pruned one only the step is left."""
    found = rows.read_groups(db, graph, [group])
    if not found:
        return _folded(db, group, index)
    held = found[0]
    if not 0 <= index < held.size:
        return None
    unit = held.units[index]
    events = [_event(held.admitted, "admitted", "", step=held.step, position=held.position)]
    everything = "SELECT worker, at, packed FROM parts WHERE group_id = ? ORDER BY rowid"
    for worker, at, packed in db.execute(everything, (group,)):
        for part in record.parts(packed, group):
            if part.idx in (index, -1):
                events.append(_added(part, worker, at, unit.life))
    failures = (
        "SELECT stage, turn, attempt, cause, message, worker, lease, at FROM failures"
        " WHERE group_id = ? AND idx IN (?, -1)"
    )
    for stage, turn, attempt, cause, message, worker, lease, at in db.execute(
        failures, (group, index)
    ):
        events.append(
            _event(
                at, f"{stage} failed", worker,
                turn=turn, attempt=attempt, cause=cause, message=message, lease=_lease(lease),
            )
        )  # fmt: skip
    events.sort(key=lambda e: e.at)
    state, ended = _end(db, held, unit)
    if ended is not None:
        events.append(_event(max(ended, events[-1].at), state, ""))
    return control_pb2.SampleStory(
        state=control_pb2.SampleState(
            unit=session_pb2.Unit(group=group, index=index),
            state=state,
            stage=unit.stage,
            turn=unit.turn,
            version=version_of(unit),
            attempt=unit.failures + 1,
            step=held.step,
            validation=held.validation is not None,
        ),
        events=events,
    )


def version_of(unit: Unit) -> session_pb2.PolicyVersion | None:
    """Of its oldest token; None: it has none on record."""
    if unit.oldest is None:
        return None
    return session_pb2.PolicyVersion(lineage=unit.group.lineage, number=unit.oldest)


def _added(part: Part, worker: str, at: float, lives: int) -> control_pb2.SampleEvent:
    detail: dict[str, object] = {
        "turn": part.turn, "tokens": part.tokens, "lease": _lease(part.lease),
    }  # fmt: skip
    if lives:  # an episode that was begun again
        detail["life"] = part.life
    if part.oldest is not None:
        detail["versions"] = f"{part.oldest}..{part.newest}"
    if part.reward is not None:
        detail["reward"] = part.reward
    return _event(at, "partial" if part.partial else part.stage, worker, **detail)


def _end(db: sqlite3.Connection, group: Group, unit: Unit) -> tuple[str, float | None]:
    """How it stands, and since when if that is its end or its batch."""
    if unit.state in SAMPLE_ENDS:
        return f"{unit.state.name.lower()}({unit.cause})", group.ended
    if group.state is GroupState.BATCHED:
        query = "SELECT state, formed, groups FROM batches WHERE lineage = ? AND step = ?"
        for state, formed, ids in db.execute(query, (group.lineage, group.step)):
            if group.id in struct.unpack(f"<{len(ids) // 8}q", ids):
                return BATCH_WORDS[BatchState(state)].format(group.step), formed
    if group.state in (GroupState.OPEN, GroupState.READY):
        return unit.state.name.lower(), None
    if group.state is GroupState.EVALUATED:
        return f"evaluated({group.validation})", group.ended
    return group.state.name.lower() + (f"({group.cause})" if group.cause else ""), group.ended


def _folded(db: sqlite3.Connection, group: int, index: int) -> control_pb2.SampleStory | None:
    for step, state, ids in db.execute("SELECT step, state, groups FROM batches"):
        if group in struct.unpack(f"<{len(ids) // 8}q", ids):
            word = BATCH_WORDS[BatchState(state)].format(step)
            return _pruned(group, index, word, step)
    for step, ids in db.execute("SELECT step, groups FROM folds"):
        if group in struct.unpack(f"<{len(ids) // 8}q", ids):
            return _pruned(group, index, f"ended before step {step}", 0)
    return None


def _pruned(group: int, index: int, word: str, step: int) -> control_pb2.SampleStory:
    return control_pb2.SampleStory(
        state=control_pb2.SampleState(
            unit=session_pb2.Unit(group=group, index=index),
            state=word,
            step=step,
        ),
        events=[_event(0.0, f"{word}; its details were pruned", "")],
    )


def _event(at: float, what: str, worker: str, **detail: object) -> control_pb2.SampleEvent:
    return control_pb2.SampleEvent(
        at=at, what=what, worker=worker, detail={k: str(v) for k, v in detail.items()}
    )


def _lease(lease: int) -> str:
    return f"{lease >> 40}/{lease & ((1 << 40) - 1)}"
