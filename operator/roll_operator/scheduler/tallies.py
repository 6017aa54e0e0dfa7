"""The smaller tables of a ledger against what they are the record of: a part of `roll ledger verify`.

Every row that was added to a table is there. Failures are counted, trained steps were reported and their versions
published, committed ones have a checkpoint, and validations add up to the samples that were evaluated.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from roll_operator.scheduler.lifecycle import BatchState, Group, GroupState
from roll_operator.scheduler.state import Batch

FAILURES = "failures."
# Small tables that nothing is ever deleted from: each new row is counted in `meta`, so that `verify` misses one that is
# gone. Where in a row its key is, by column.
KEYS = {
    "batches": {"lineage": 0, "step": 1, "edition": 2},
    "steps": {"lineage": 0, "step": 1},
    "versions": {"lineage": 0, "number": 1},
    "checkpoints": {"path": 2},
    "validations": {"lineage": 0, "version": 1},
    "meta": {"key": 0},
}
ALWAYS = ("term", "format", "ledger", "rows")  # rows of `meta` that a ledger has from its first day


def problems(
    db: sqlite3.Connection,
    meta: Mapping[str, Any],
    counters: Counter[str],
    known: Sequence[Group],
    batches: Sequence[Batch],
    folded: Sequence[Mapping[str, int]],
) -> Iterator[str]:
    """`known` are the groups on record, `folded` what pruned ones left: ends and failures by name."""
    yield from _rows(db, meta)
    yield from _failures(db, counters, folded)
    yield from _trained(db, meta, batches)
    evaluated = sum(ends.get("evaluated", 0) for ends in folded)
    yield from _validations(db, [g for g in known if g.state is GroupState.EVALUATED], evaluated)


def _rows(db: sqlite3.Connection, meta: Mapping[str, Any]) -> Iterator[str]:
    for key in ALWAYS:
        if key not in meta:
            yield f"meta has no row `{key}`"
    if "rows" not in meta:
        return
    for table in KEYS:
        (found,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
        added = meta["rows"].get(table, 0) + (table == "meta")  # with the one that says so
        if found != added:
            yield f"{added} rows were added to {table}, {found} are on record"


def of_groups(db: sqlite3.Connection, where: str = "", values: Iterable[str] = ()) -> Counter[str]:
    """How often samples failed, by the names that the counters use."""
    query = f"SELECT cause, count(*) FROM failures {where} GROUP BY cause"
    return Counter({FAILURES + cause: n for cause, n in db.execute(query, tuple(values))})


def _failures(
    db: sqlite3.Connection, counters: Counter[str], folded: Sequence[Mapping[str, int]]
) -> Iterator[str]:
    found = of_groups(db)
    for left in folded:
        found.update({name: n for name, n in left.items() if name.startswith(FAILURES)})
    names = {name for name in counters if name.startswith(FAILURES)} | found.keys()
    for name in sorted(names):
        if counters[name] != found[name]:
            cause = name.removeprefix(FAILURES)
            yield f"{counters[name]} failures ({cause}) were counted, {found[name]} are on record"
    before: dict[tuple[int, int], int] = {}
    for group, index, attempt in db.execute(
        "SELECT group_id, idx, attempt FROM failures ORDER BY rowid"
    ):
        # Attempts count from 1 again once the sample got past its hurdle.
        if attempt not in (1, before.get((group, index), 0) + 1):
            yield f"failures of sample {group}.{index} are not on record one after the other"
        before[group, index] = attempt


def _trained(
    db: sqlite3.Connection, meta: Mapping[str, Any], batches: Sequence[Batch]
) -> Iterator[str]:
    reported = {step for (step,) in db.execute("SELECT step FROM steps")}
    versions = {number for (number,) in db.execute("SELECT number FROM versions")}
    (saved,) = db.execute("SELECT max(step) FROM checkpoints").fetchone()
    published = meta.get("published")
    if published is not None and published not in versions:
        yield f"version {published} was published, but is not on record"
    for batch in batches:
        if batch.state not in (BatchState.TRAINED, BatchState.COMMITTED):
            continue
        if batch.step not in reported:
            yield f"step {batch.step} was trained, but its report is not on record"
        if published is not None and batch.step < published and batch.step not in versions:
            yield f"version {batch.step} was published, but is not on record"
        if batch.state is BatchState.COMMITTED and (saved is None or saved < batch.step):
            yield f"step {batch.step} was committed, but no checkpoint of it is on record"


def _validations(db: sqlite3.Connection, evaluated: Sequence[Group], folded: int) -> Iterator[str]:
    rows = db.execute(
        "SELECT lineage, version, groups, total, scored FROM validations WHERE groups >= 0"
    ).fetchall()
    rewards: dict[tuple[int, int | None], list[float]] = {}
    whole: Counter[tuple[int, int | None]] = Counter()
    for group in evaluated:
        place = group.lineage, group.validation
        whole[place] += 1
        rewards.setdefault(place, []).extend(u.reward for u in group.kept if u.reward is not None)
    scored, found = sum(row[4] for row in rows), folded + sum(map(len, rewards.values()))
    if scored != found:
        yield f"validations count {scored} samples, {found} were evaluated"
    for lineage, version, groups, total, count in rows:
        own = rewards.get((lineage, version), [])
        complete = whole[lineage, version] == groups and len(own) == count
        if complete and not math.isclose(total, math.fsum(own), rel_tol=1e-9, abs_tol=1e-9):
            yield f"the validation of version {version} adds up to {math.fsum(own):g}, not {total:g}"
