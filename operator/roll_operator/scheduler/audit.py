"""`roll ledger verify`: from the ledger alone, does every sample have exactly one end?

It reads one consistent snapshot, also of a job that is under way, and recomputes what the scheduler
recorded: dense ids, slots held once, batches and their chained digests, seals of ended groups, counters; what
is told besides (failures, reports, versions, checkpoints, validations) in tallies.py.
A row that was deleted, doubled, moved or altered shows up as a problem with its name.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from roll_operator.scheduler import batching, groups, record, tallies
from roll_operator.scheduler.ledger import rows
from roll_operator.scheduler.ledger.segments import SegmentStore
from roll_operator.scheduler.ledger.sqlite import (
    check_format,
    connect,
    fold_digest,
    read_batch,
    read_meta,
)
from roll_operator.scheduler.lifecycle import (
    LIVE_GROUPS,
    Altered,
    BatchState,
    Group,
    GroupState,
    Part,
    SampleState,
    Stage,
)
from roll_operator.scheduler.settings import Settings
from roll_operator.scheduler.stages import StageGraph
from roll_operator.scheduler.state import Batch

TRAINED = (BatchState.TRAINED, BatchState.COMMITTED)


class Fold(NamedTuple):
    """What is left of the groups that were pruned together."""

    lineage: int
    step: int
    groups: bytes
    samples: int
    parts: int
    ends: str
    contents: bytes
    digest: bytes


FOLD = ", ".join(Fold._fields)


@dataclass(slots=True)
class Audit:
    """What was found. No problems: nothing was lost and nothing was trained twice."""

    problems: list[str] = field(default_factory=list)
    admitted: int = 0
    trained: int = 0
    live: int = 0
    lost: int = 0
    trained_twice: int = 0
    evaluated: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    redone: int = 0
    staleness_max: int = 0
    steps: int = 0

    def problem(self, text: str) -> None:
        self.problems.append(text)


def verify(folder: Path, settings: Settings, *, payloads: bool = True) -> Audit:
    """Audit the ledger in `folder`. `payloads` also reads every payload and compares checksums."""
    db = connect(folder / "ledger.sqlite", read_only=True)
    newest = connect(folder / "ledger.sqlite", read_only=True)
    store = SegmentStore(folder / "segments") if payloads else None
    try:
        db.execute("BEGIN")
        check_format(read_meta(db), folder)
        return audit(db, settings, store, newest)
    finally:
        db.close()
        newest.close()
        if store is not None:
            store.close()


def audit(
    db: sqlite3.Connection,
    settings: Settings,
    store: SegmentStore | None = None,
    newest: sqlite3.Connection | None = None,
) -> Audit:
    """Of the snapshot that `db` holds; `newest` tells what a scheduler has pruned meanwhile, with its payloads."""
    found = Audit()
    try:
        known = _look(found, db, settings)
        if store is not None:
            _check_payloads(found, known, store, newest)
    except Altered as error:
        found.problem(f"{error}; nothing behind it was looked at")
    return found


def _look(found: Audit, db: sqlite3.Connection, settings: Settings) -> list[Group]:
    """At all but the payloads; returns the groups on record."""
    meta = read_meta(db)
    counters: Counter[str] = Counter(meta.get("counters", {}))
    ids = [i for (i,) in db.execute("SELECT id FROM groups ORDER BY id")]
    known = rows.read_groups(db, settings.graph, ids)
    batches = [
        read_batch(row)
        for row in db.execute("SELECT * FROM batches ORDER BY lineage, step, edition")
    ]
    folds = [Fold(*row) for row in db.execute(f"SELECT {FOLD} FROM folds ORDER BY id")]
    folded_ids = [i for fold in folds for i in _unpack(fold.groups)]
    first, following = int(meta.get("first_group", 1)), int(meta.get("next_group", 1))
    _check_ids(found, ids, folded_ids, first, following)
    _check_folds(found, folds)
    found.admitted = sum(g.size for g in known) + sum(fold.samples for fold in folds)
    if counters["groups"] != len(ids) + len(folded_ids):
        found.problem(
            f"{counters['groups']} groups were admitted, {len(ids) + len(folded_ids)} are on record"
        )
    if found.admitted != counters["samples"]:
        found.problem(
            f"{counters['samples']} samples were admitted, {found.admitted} are on record"
        )
    _check_batches(found, settings, batches, {g.id: g for g in known}, set(folded_ids), meta)
    sizes = {group.id: group.size for group in known}
    _check_parts(found, db, sizes, counters["parts"] - sum(fold.parts for fold in folds))
    _check_slots(found, known)
    for group in known:
        _check_group(found, group)
        _check_order(found, settings.graph, group)
    _check_orphans(found, db)
    folded = [json.loads(fold.ends) for fold in folds]
    _check_ends(found, known, folded, batches, counters)
    for problem in tallies.problems(db, meta, counters, known, batches, folded):
        found.problem(problem)
    found.redone = counters["redone"]
    found.steps = max((b.step for b in batches if b.state in TRAINED), default=0)
    found.lost = max(
        0,
        counters["samples"] - found.trained - found.live - found.evaluated
        - sum(found.dropped.values()),
    )  # fmt: skip
    if found.lost:
        found.problem(f"{found.lost} samples have no end and are not in flight")
    return known


def _unpack(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 8}q", packed)


def _check_ids(found: Audit, ids: list[int], folded: list[int], first: int, following: int) -> None:
    counted = Counter(itertools.chain(ids, folded))
    for group, n in counted.items():
        if n > 1:
            found.problem(f"group {group} is on record {n} times")
    missing = [i for i in range(first, following) if i not in counted]
    if missing:
        found.problem(f"groups are missing: {_some(missing)}")
    extra = [i for i in counted if not first <= i < following]
    if extra:
        found.problem(f"groups that were never admitted: {_some(extra)}")


def _check_batches(
    found: Audit,
    settings: Settings,
    batches: list[Batch],
    known: dict[int, Group],
    folded: set[int],
    meta: dict[str, Any],
) -> None:
    current = [b for b in batches if b.state not in (BatchState.POISON, BatchState.ABANDONED)]
    by_step: dict[int, Batch] = {}
    for batch in current:
        if batch.step in by_step:
            found.problem(f"step {batch.step} has two batches")
        by_step[batch.step] = batch
    skipped = [meta[key] for key in meta if key.startswith("skipped.")]
    for step in range(1, int(meta.get("formed", 0)) + 1):
        if step not in by_step and not any(first <= step <= last for first, last in skipped):
            found.problem(f"step {step} has no batch")
    beyond = [step for step in by_step if step > int(meta.get("formed", 0))]
    if beyond:
        found.problem(f"batches that were never recorded: {_some(beyond)}")
    where: dict[int, int] = {}
    for batch in current:
        for member in batch.group_ids:
            if member in where:
                found.trained_twice += settings.group_size
                found.problem(f"group {member} is in step {where[member]} and in step {batch.step}")
            where[member] = batch.step
    for batch in batches:
        _check_batch(found, batch, known, folded, by_step)
    listed = {(batch.step, member) for batch in batches for member in batch.group_ids}
    for group in known.values():
        if group.state is GroupState.BATCHED and (group.step, group.id) not in listed:
            found.problem(f"group {group.id} says step {group.step}, whose batch does not list it")


def _check_batch(
    found: Audit, batch: Batch, known: dict[int, Group], folded: set[int], by_step: dict[int, Batch]
) -> None:  # fmt: skip
    name = f"batch {batch.step}"
    if batch.state not in (BatchState.POISON, BatchState.ABANDONED):
        before = by_step.get(batch.step - 1)
        if before is not None and batch.previous != before.digest:
            found.problem(f"{name} is not chained to batch {batch.step - 1}")
        if batch.oldest is not None:
            age = batch.step - 1 - batch.oldest
            found.staleness_max = max(found.staleness_max, age)
            if not 0 <= age <= batch.max_staleness:
                found.problem(f"{name} holds a token of version {batch.oldest}")
    members = [known[i] for i in batch.group_ids if i in known]
    if len(members) < len(batch.group_ids):
        lost = [i for i in batch.group_ids if i not in known and i not in folded]
        if lost:
            found.problem(f"{name} lists groups that are not on record: {_some(lost)}")
        return
    if batch.state is BatchState.POISON:
        return  # its groups have seals of their own
    contents = [groups.contents(group) for group in members]
    if (
        batching.digest(batch.previous, batch.lineage, batch.step, members, contents)
        != batch.digest
    ):
        found.problem(f"{name} is not what was recorded: its digest differs")
    for group in members:
        if group.state is not GroupState.BATCHED or group.step != batch.step:
            found.problem(f"{name} lists group {group.id}, which is {group.state.name.lower()}")
        for unit in group.kept:
            where = f"sample {group.id}.{unit.index} of {name}"
            if unit.state is not SampleState.SCORED or unit.reward is None:
                found.problem(f"{where} has no reward")
            if unit.oldest is not None and unit.newest is not None:
                first, last = batch.step - 1 - batch.max_staleness, batch.step - 1
                if unit.oldest < first or unit.newest > last:
                    found.problem(
                        f"{where} has tokens of versions {unit.oldest}..{unit.newest}, "
                        f"allowed are {max(0, first)}..{last}"
                    )


def _check_slots(found: Audit, known: list[Group]) -> None:
    held: dict[tuple[int, int, int], int] = {}
    for group in known:
        if group.state in LIVE_GROUPS and group.validation is None:
            place = (group.lineage, group.step, group.slot)
            if place in held:
                found.problem(f"groups {held[place]} and {group.id} hold one slot {place[1:]}")
            held[place] = group.id


def _check_group(found: Audit, group: Group) -> None:
    if group.state is GroupState.OPEN:
        expected = b""
    elif group.state in (GroupState.READY, GroupState.BATCHED):
        expected = groups.contents(group)
    else:
        expected = groups.seal(group)
    if expected != group.seal:
        found.problem(f"group {group.id} ({group.state.name.lower()}) was altered: seal differs")
    if group.state is GroupState.OPEN and group.unfinished == 0:
        found.problem(f"group {group.id} is open, but every sample has its end")
    if group.state is GroupState.READY and any(u.reward is None for u in group.kept):
        found.problem(f"group {group.id} is ready, but a sample has no reward")


def _check_order(found: Audit, graph: StageGraph, group: Group) -> None:
    """The parts of each sample follow each other as the pipeline says."""
    parts = record.by_unit(group)
    for unit in group.units if group.lead is None else [group.lead, *group.units]:
        begins = Stage.GENERATE if group.lead is not None and unit.index >= 0 else graph.first()
        expected: Stage | None = begins
        turn = 0
        for part in parts.get(unit.index, ()):
            if (part.stage, part.turn) != (expected, turn):
                found.problem(f"sample {group.id}.{unit.index}: {part.stage} is out of order")
                break
            if not part.partial:
                expected = None if unit.index < 0 else graph.after(part.stage, done=part.done)
                turn += expected == Stage.GENERATE and part.stage == Stage.STEP


def _check_parts(
    found: Audit, db: sqlite3.Connection, sizes: dict[int, int], recorded: int
) -> None:
    counted: Counter[tuple[int, int, int]] = Counter()
    last: dict[tuple[int, int, int], int] = {}
    for group, packed in db.execute("SELECT group_id, packed FROM parts"):
        if len(packed) % record.PART_BYTES:
            found.problem(f"parts of group {group} are not whole")
            continue
        for part in record.parts(packed, group):
            life = group, part.idx, part.life
            counted[life] += 1
            last[life] = max(last.get(life, 0), part.no)
    present = counted.total()
    if present != recorded:
        found.problem(f"{recorded} parts of samples were recorded, {present} are on record")
    broken = sorted({life[0] for life, n in counted.items() if n != last[life] + 1})
    if broken:
        found.problem(f"parts are missing in groups {_some(broken)}")
    strays = sorted({g for g, index, _ in counted if g in sizes and index >= sizes[g]})
    if strays:
        found.problem(f"parts of samples that were never admitted, in groups {_some(strays)}")


def _check_folds(found: Audit, folds: list[Fold]) -> None:
    previous = b""
    for fold in folds:
        if fold_digest(previous, *fold[:-1]) != fold.digest:
            found.problem(f"the digest of the steps pruned up to {fold.step} differs")
        previous = fold.digest


def _check_orphans(found: Audit, db: sqlite3.Connection) -> None:
    for table in ("parts", "units"):
        query = (
            f"SELECT DISTINCT group_id FROM {table} t"
            " WHERE NOT EXISTS (SELECT 1 FROM groups g WHERE g.id = t.group_id)"
        )
        orphans = [i for (i,) in db.execute(query)]
        if orphans:
            found.problem(f"{table} of groups that are not on record: {_some(orphans)}")


def _check_ends(
    found: Audit, known: list[Group], folded: list[dict[str, int]], batches: list[Batch],
    counters: Counter[str],
) -> None:  # fmt: skip
    ends: Counter[str] = Counter(rows.sample_ends(known))
    for part in folded:
        ends.update({name: n for name, n in part.items() if _is_end(name)})
    recorded = {n: c for n, c in counters.items() if c and _is_end(n)}
    for name in sorted(ends.keys() | recorded.keys()):
        if ends[name] != recorded.get(name, 0):
            found.problem(f"{recorded.get(name, 0)} samples ended as {name}, found {ends[name]}")
    found.evaluated = ends.pop("evaluated", 0)
    found.dropped = {n: c for n, c in ends.items() if c}
    for batch in batches:
        if batch.state in TRAINED:
            found.trained += batch.samples
        elif batch.state is BatchState.BATCHED:
            found.live += batch.samples
        elif batch.state is BatchState.ABANDONED:
            name = "cancelled.lineage"
            found.dropped[name] = found.dropped.get(name, 0) + batch.samples
    found.live += sum(len(g.kept) for g in known if g.state in LIVE_GROUPS)


def _is_end(name: str) -> bool:
    return name.split(".")[0] in ("failed", "cancelled", "filtered", "evaluated")


def _check_payloads(
    found: Audit, known: list[Group], store: SegmentStore, newest: sqlite3.Connection | None
) -> None:
    for group, index, part in _parts(known):
        try:
            problem = " is damaged" if store.read_part(part) is None else ""
        except OSError as error:
            problem = f": {error.strerror}"
        if problem and not _pruned(newest, group):
            found.problem(f"payload of {group}.{index} {part.stage}{problem}")


def _pruned(newest: sqlite3.Connection | None, group: int) -> bool:
    """Whether the group of the snapshot is on record no more."""
    if newest is None:
        return False
    return newest.execute("SELECT 1 FROM groups WHERE id = ?", (group,)).fetchone() is None


def _parts(known: list[Group]) -> Iterator[tuple[int, int, Part]]:
    for group in known:
        for index, parts in record.by_unit(group).items():
            for part in parts:
                yield group.id, index, part


def _some(values: list[int], limit: int = 8) -> str:
    text = ", ".join(str(v) for v in values[:limit])
    return text + (f" and {len(values) - limit} more" if len(values) > limit else "")
