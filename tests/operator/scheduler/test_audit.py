"""`roll ledger verify` finds what someone did to a ledger, by its name, and nothing in an honest one."""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from roll_operator.scheduler import audit, record
from roll_operator.scheduler.ledger import LedgerError, SqliteLedger
from roll_operator.scheduler.ledger.sqlite import connect
from roll_operator.scheduler.lifecycle import Part, Stage
from roll_operator.scheduler.settings import Settings
from roll_operator.scheduler.stages import StageGraph
from support.scheduler_world import World

SETTINGS = Settings(
    steps=6, groups_per_step=3, group_size=2, max_staleness=1, run_ahead=1.0,
    filter_by="mean", filter_above=0.1, validation_every=3, keep_checkpoints=2,
)  # fmt: skip


def make(folder: Path, *, steps: int) -> None:
    """Checkpoints at 1, 2 and 3: step 1 and 2 are pruned; a group was filtered, a sample replaced."""
    job = World(folder, SETTINGS)
    for role in ("environment", "reward", "inference"):
        job.add_worker(role, credits=64)
    job.start_trainer()
    job.begin()
    job.complete(min(g.id for g in job.state.groups.values() if g.step), rewards=[0.0])
    job.finish_all("reset")
    for _ in range(3):
        job.finish_all("generate", cause="timeout")
    for step in range(1, steps + 1):
        job.train(1)
        if step <= 3:
            job.commit_checkpoint()
    if steps == SETTINGS.steps:
        job.run_to_the_end()
    else:
        job.fetch_all()
        job.finish_all("reset")
        ready, filtered, *_ = sorted(g.id for g in job.state.groups.values() if g.unfinished)
        job.complete(ready)
        job.complete(filtered, rewards=[0.0])
    job.flush()
    job.ledger._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    job.ledger.close()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledgers")
    make(folder / "running", steps=4)
    make(folder / "finished", steps=6)
    return folder


@pytest.fixture(params=["running", "finished"])
def ledger(request: pytest.FixtureRequest, originals: Path, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "ledger"
    shutil.copytree(originals / request.param, folder)
    assert problems(folder) == []
    yield folder


@pytest.fixture
def running(originals: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "ledger"
    shutil.copytree(originals / "running", folder)
    return folder


def problems(folder: Path) -> list[str]:
    return audit.verify(folder, SETTINGS).problems


def tampered(folder: Path, change: Callable[[sqlite3.Connection], object]) -> str:
    """Every problem, after someone laid hands on the database."""
    db = sqlite3.connect(folder / "ledger.sqlite", isolation_level=None)
    before = list(db.iterdump())
    change(db)
    assert list(db.iterdump()) != before, "nothing was changed: the test shows nothing"
    db.close()
    found = problems(folder)
    assert found, "the audit saw nothing"
    return "\n".join(found)


def one(folder: Path, query: str) -> tuple[int, ...]:
    db = sqlite3.connect(folder / "ledger.sqlite")
    row: tuple[int, ...] = db.execute(query).fetchone()
    db.close()
    assert row is not None
    return row


def edit(db: sqlite3.Connection, group: int, change: Callable[[Part], Part | None]) -> None:
    """Every part of the group as `change` would have it; None: deleted."""
    for row, packed in db.execute(
        "SELECT rowid, packed FROM parts WHERE group_id = ?", (group,)
    ).fetchall():
        kept = [new for part in record.parts(packed, group) if (new := change(part)) is not None]
        if kept:
            db.execute(
                "UPDATE parts SET packed = ? WHERE rowid = ?",
                (record.pack([*chain.from_iterable(kept)]), row),
            )
        else:
            db.execute("DELETE FROM parts WHERE rowid = ?", (row,))


BATCHED = "SELECT id, step FROM groups WHERE state = 4 ORDER BY id"


def test_the_figures_of_an_honest_ledger_add_up(originals: Path) -> None:
    running = audit.verify(originals / "running", SETTINGS)
    finished = audit.verify(originals / "finished", SETTINGS)
    for found in (running, finished):
        assert found.problems == [] and found.lost == 0 and found.trained_twice == 0
        assert found.admitted == (
            found.trained + found.live + found.evaluated + sum(found.dropped.values())
        )
        assert found.dropped["filtered"] >= 2 and found.dropped["failed.timeout"] > 0
    assert (running.steps, running.trained) == (4, 24) and running.live > 0
    assert (finished.steps, finished.trained, finished.live) == (6, 36, 0)
    assert finished.evaluated == 6, "the first three failed"


def test_an_audit_writes_nothing(ledger: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in ledger.rglob("*.seg")}
    problems(ledger)
    assert {p: p.stat().st_mtime_ns for p in ledger.rglob("*.seg")} == before


def test_a_deleted_group(ledger: Path) -> None:
    group, step = one(ledger, BATCHED)
    found = tampered(ledger, lambda db: db.execute("DELETE FROM groups WHERE id = ?", (group,)))
    assert f"groups are missing: {group}" in found
    assert f"batch {step} lists groups that are not on record: {group}" in found
    assert f"parts of groups that are not on record: {group}" in found


def test_a_deleted_group_with_everything_it_had(ledger: Path) -> None:
    group, _ = one(ledger, BATCHED)

    def erase(db: sqlite3.Connection) -> None:
        for table, key in (("groups", "id"), ("parts", "group_id"), ("units", "group_id")):
            db.execute(f"DELETE FROM {table} WHERE {key} = ?", (group,))

    found = tampered(ledger, erase)
    assert f"groups are missing: {group}" in found
    assert "samples were admitted" in found and "parts of samples were recorded" in found


def test_a_deleted_open_group(running: Path) -> None:
    (group,) = one(running, "SELECT max(id) FROM groups WHERE state = 1")
    found = tampered(running, lambda db: db.execute("DELETE FROM groups WHERE id = ?", (group,)))
    assert f"groups are missing: {group}" in found


def test_a_deleted_part(ledger: Path) -> None:
    group, step = one(ledger, BATCHED)

    def delete(part: Part) -> Part | None:
        return None if (part.idx, part.stage) == (0, Stage.SCORE) else part

    found = tampered(ledger, lambda db: edit(db, group, delete))
    assert f"batch {step} is not what was recorded" in found
    assert f"group {group} (batched) was altered" in found
    assert "parts of samples were recorded" in found


def test_a_deleted_part_in_the_middle(ledger: Path) -> None:
    group, _ = one(ledger, BATCHED)

    def delete(part: Part) -> Part | None:
        return None if (part.idx, part.stage) == (1, Stage.GENERATE) else part

    found = tampered(ledger, lambda db: edit(db, group, delete))
    assert f"parts are missing in groups {group}" in found
    assert f"sample {group}.1: score is out of order" in found


def test_a_deleted_part_of_an_open_group(running: Path) -> None:
    (group,) = one(
        running, "SELECT group_id FROM parts JOIN groups ON id = group_id WHERE state = 1"
    )
    delete = "DELETE FROM parts WHERE group_id = ?"
    found = tampered(running, lambda db: db.execute(delete, (group,)))
    assert "parts of samples were recorded" in found


def test_a_group_copied_under_a_new_id(ledger: Path) -> None:
    group, _ = one(ledger, BATCHED)
    (fresh,) = one(ledger, "SELECT max(id) + 1 FROM groups")

    def double(db: sqlite3.Connection) -> None:
        row = db.execute("SELECT * FROM groups WHERE id = ?", (group,)).fetchone()
        db.execute(f"INSERT INTO groups VALUES ({','.join('?' * len(row))})", (fresh, *row[1:]))
        for part in db.execute("SELECT * FROM parts WHERE group_id = ?", (group,)).fetchall():
            marks = ",".join("?" * len(part))
            db.execute(f"INSERT INTO parts VALUES ({marks})", (fresh, *part[1:]))

    found = tampered(ledger, double)
    assert f"groups that were never admitted: {fresh}" in found
    assert f"group {fresh} says step" in found


def test_a_group_moved_to_another_step(ledger: Path) -> None:
    group, step = one(ledger, BATCHED)
    (other,) = one(ledger, f"SELECT max(step) FROM batches WHERE step != {step}")
    move = "UPDATE groups SET step = ? WHERE id = ?"
    found = tampered(ledger, lambda db: db.execute(move, (other, group)))
    assert f"group {group} says step {other}, whose batch does not list it" in found
    assert f"batch {step} lists group {group}" in found


def test_a_group_trained_in_two_steps(ledger: Path) -> None:
    group, step = one(ledger, BATCHED)
    (other,) = one(ledger, f"SELECT max(step) FROM batches WHERE step != {step}")

    def into_another(db: sqlite3.Connection) -> None:
        (ids,) = db.execute("SELECT groups FROM batches WHERE step = ?", (other,)).fetchone()
        changed = struct.pack("<q", group) + ids[8:]
        db.execute("UPDATE batches SET groups = ? WHERE step = ?", (changed, other))

    found = tampered(ledger, into_another)
    assert f"group {group} is in step" in found
    assert audit.verify(ledger, SETTINGS).trained_twice > 0


def test_a_part_moved_to_another_sample(ledger: Path) -> None:
    group, step = one(ledger, BATCHED)

    def swap(part: Part) -> Part:
        return part._replace(idx=1 - part.idx) if part.stage == Stage.SCORE else part

    found = tampered(ledger, lambda db: edit(db, group, swap))
    assert f"group {group} (batched) was altered" in found
    assert f"batch {step} is not what was recorded" in found


def test_a_part_given_to_a_sample_that_never_was(ledger: Path) -> None:
    group, _ = one(ledger, BATCHED)

    def move(part: Part) -> Part:
        return part._replace(idx=7) if (part.idx, part.stage) == (0, Stage.SCORE) else part

    found = tampered(ledger, lambda db: edit(db, group, move))
    assert f"parts of samples that were never admitted, in groups {group}" in found


@pytest.mark.parametrize("state", [3, 4, 7, 10])
def test_an_altered_reward(running: Path, state: int) -> None:
    """Of a ready, batched, filtered or evaluated group."""
    (group,) = one(running, f"SELECT id FROM groups WHERE state = {state}")

    def raised(part: Part) -> Part:
        return part._replace(score=part.score + 0.25) if part.reward is not None else part

    found = tampered(running, lambda db: edit(db, group, raised))
    assert f"group {group} (" in found and "was altered: seal differs" in found


def test_a_part_of_a_stage_that_does_not_exist(ledger: Path) -> None:
    group, _ = one(ledger, BATCHED)

    def altered(part: Part) -> Part:
        return part._replace(kind=9) if (part.idx, part.stage) == (1, Stage.SCORE) else part

    assert tampered(ledger, lambda db: edit(db, group, altered)) == (
        f"group {group} was altered: a part of its sample 1 is of kind 9, which no stage has; "
        "nothing behind it was looked at"
    )


def test_a_scheduler_opens_no_ledger_with_a_part_of_a_stage_that_does_not_exist(
    running: Path,
) -> None:
    (group,) = one(running, "SELECT id FROM groups WHERE state = 3")
    tampered(running, lambda db: edit(db, group, lambda part: part._replace(kind=9)))
    ledger = SqliteLedger(running, SETTINGS)
    with pytest.raises(
        LedgerError, match=f"group {group} was altered: .* see `roll ledger verify`"
    ):
        ledger.open(0.0)
    ledger.close()


def test_two_rows_of_a_group_that_changed_places(ledger: Path) -> None:
    group, _ = one(ledger, BATCHED)

    def swap(db: sqlite3.Connection) -> None:
        (first, a), (second, b), *_ = db.execute(
            "SELECT rowid, packed FROM parts WHERE group_id = ? ORDER BY rowid", (group,)
        ).fetchall()
        for row, packed in ((first, b), (second, a)):
            db.execute("UPDATE parts SET packed = ? WHERE rowid = ?", (packed, row))

    assert f"group {group} (batched) was altered" in tampered(ledger, swap)


def test_a_row_that_was_cut_off(ledger: Path) -> None:
    group, _ = one(ledger, BATCHED)
    cut = "UPDATE parts SET packed = substr(packed, 1, length(packed) - 1) WHERE group_id = ?"
    found = tampered(ledger, lambda db: db.execute(cut, (group,)))
    assert f"parts of group {group} are not whole" in found


def test_an_altered_version_of_a_token(ledger: Path) -> None:
    group, step = one(ledger, BATCHED)

    def altered(part: Part) -> Part:
        return part._replace(first=0, last=99) if part.oldest is not None else part

    found = tampered(ledger, lambda db: edit(db, group, altered))
    assert f"sample {group}.0 of batch {step}" in found and "allowed are" in found


def test_a_deleted_batch(ledger: Path) -> None:
    delete = "DELETE FROM batches WHERE step = ?"
    for step in (1, 3, 4):  # pruned, and not
        copy = ledger.with_name(f"copy-{step}")
        shutil.copytree(ledger, copy)
        found = tampered(copy, lambda db, s=step: db.execute(delete, (s,)))
        assert f"step {step} has no batch" in found


def test_the_last_batch_deleted(ledger: Path) -> None:
    (last,) = one(ledger, "SELECT max(step) FROM batches")
    delete = "DELETE FROM batches WHERE step = ?"
    found = tampered(ledger, lambda db: db.execute(delete, (last,)))
    assert f"step {last} has no batch" in found
    assert audit.verify(ledger, SETTINGS).lost == 6


def test_an_invented_batch(ledger: Path) -> None:
    def invent(db: sqlite3.Connection) -> None:
        row = db.execute("SELECT * FROM batches ORDER BY step DESC").fetchone()
        db.execute(f"INSERT INTO batches VALUES ({','.join('?' * len(row))})", (1, 77, *row[2:]))

    found = tampered(ledger, invent)
    assert "batches that were never recorded: 77" in found


def test_a_batch_whose_groups_changed_places(ledger: Path) -> None:
    _, step = one(ledger, BATCHED)

    def reorder(db: sqlite3.Connection) -> None:
        (ids,) = db.execute("SELECT groups FROM batches WHERE step = ?", (step,)).fetchone()
        swapped = ids[8:16] + ids[:8] + ids[16:]
        db.execute("UPDATE batches SET groups = ? WHERE step = ?", (swapped, step))

    assert f"batch {step} is not what was recorded" in tampered(ledger, reorder)


def test_two_batches_that_changed_places(ledger: Path) -> None:
    def swap(db: sqlite3.Connection) -> None:
        for source, target in ((2, 99), (3, 2), (99, 3)):
            db.execute("UPDATE batches SET step = ? WHERE step = ?", (target, source))

    assert "batch 2 is not chained to batch 1" in tampered(ledger, swap)


def test_two_batches_of_one_step(ledger: Path) -> None:
    def double(db: sqlite3.Connection) -> None:
        row = db.execute("SELECT * FROM batches WHERE step = 2").fetchone()
        db.execute(
            f"INSERT INTO batches VALUES ({','.join('?' * len(row))})", (*row[:2], 1, *row[3:])
        )

    assert "step 2 has two batches" in tampered(ledger, double)


@pytest.mark.parametrize(
    ("counter", "message"),
    [
        ("samples", "samples were admitted"),
        ("groups", "groups were admitted"),
        ("parts", "parts of samples were recorded"),
        ("filtered", "samples ended as filtered"),
        ("failed.timeout", "samples ended as failed.timeout"),
        ("evaluated", "samples ended as evaluated"),
    ],
)
@pytest.mark.parametrize("by", [-1, 1])
def test_a_changed_counter(ledger: Path, counter: str, message: str, by: int) -> None:
    def change(db: sqlite3.Connection) -> None:
        (text,) = db.execute("SELECT value FROM meta WHERE key = 'counters'").fetchone()
        counters = json.loads(text)
        counters[counter] += by
        db.execute("UPDATE meta SET value = ? WHERE key = 'counters'", (json.dumps(counters),))

    assert message in tampered(ledger, change)


def test_an_altered_record_of_what_was_pruned(ledger: Path) -> None:
    found = tampered(ledger, lambda db: db.execute("UPDATE folds SET contents = x'00'"))
    assert "the digest of the steps pruned up to" in found
    found = tampered(ledger, lambda db: db.execute("DELETE FROM folds WHERE id = 1"))
    assert "groups are missing" in found


def test_a_damaged_payload(ledger: Path) -> None:
    db = sqlite3.connect(ledger / "ledger.sqlite")
    group, part = next(
        (group, part)
        for group, packed in db.execute("SELECT group_id, packed FROM parts")
        for part in record.parts(packed, group)
        if part.stage == Stage.GENERATE
    )
    db.close()
    path = ledger / "segments" / f"{part.segment:08d}.seg"
    data = bytearray(path.read_bytes())
    data[part.start] ^= 1
    path.write_bytes(data)
    (found,) = problems(ledger)
    assert f"payload of {group}." in found and "generate is damaged" in found


def test_a_lost_segment(ledger: Path) -> None:
    (segment,) = one(ledger, "SELECT min(segment) FROM parts")
    (ledger / "segments" / f"{segment:08d}.seg").unlink()
    found = problems(ledger)
    assert found and all("No such file" in each for each in found)
    assert not (ledger / "segments" / f"{segment:08d}.seg").exists()


def test_what_is_pruned_during_an_audit_is_no_damage(tmp_path: Path) -> None:
    settings = Settings(steps=30, groups_per_step=2, group_size=2, keep_checkpoints=1)
    job = World(tmp_path, settings, segment_bytes=200)
    job.fair_turn()
    job.train(3)
    job.flush()
    snapshot, newest = (connect(tmp_path / "ledger.sqlite", read_only=True) for _ in range(2))
    snapshot.execute("BEGIN")
    assert snapshot.execute("SELECT count(*) FROM parts").fetchone() > (0,)
    for _ in range(5):
        job.commit_checkpoint()
        job.train(1)
        job.flush()
    store = job.ledger.store
    assert audit.audit(snapshot, settings, store).problems, (
        "their payloads are gone, or overwritten"
    )
    assert audit.audit(snapshot, settings, store, newest).problems == []
    for db in (snapshot, newest, job.ledger):
        db.close()


def test_two_groups_in_one_slot(running: Path) -> None:
    live = "SELECT id FROM groups WHERE state IN (1, 3) AND step > 0 ORDER BY id"
    db = sqlite3.connect(running / "ledger.sqlite")
    first, second = (i for (i,) in db.execute(live).fetchmany(2))
    db.close()
    copy = (
        "UPDATE groups SET (step, slot) = (SELECT step, slot FROM groups WHERE id = ?) WHERE id = ?"
    )
    found = tampered(running, lambda db: db.execute(copy, (first, second)))
    assert f"groups {first} and {second} hold one slot" in found


def test_agentic_ledgers_are_honest_too(tmp_path: Path) -> None:
    settings = Settings(
        steps=3, groups_per_step=2, group_size=2, graph=StageGraph(interactive=True, scored=True)
    )
    job = World(tmp_path, settings)
    for _ in range(12):
        job.fair_turn()
        assert audit.verify(tmp_path, settings).problems == []
    job.finish_all("step", cause="replay")
    job.run_to_the_end()
    found = audit.verify(tmp_path, settings)
    assert found.problems == [] and found.trained == 12
    job.ledger.close()
