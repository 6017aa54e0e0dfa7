"""The durable record: what was committed is there again, whatever happened to the process or the disk."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import sqlite3
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from roll_operator.scheduler.audit import verify
from roll_operator.scheduler.ledger import (
    LedgerBusy,
    LedgerError,
    LedgerTaken,
    SegmentStore,
    SqliteLedger,
    segments,
)
from roll_operator.scheduler.ledger.sqlite import read_meta
from roll_operator.scheduler.lifecycle import Block, Part, Stage
from roll_operator.scheduler.settings import Settings
from roll_operator.scheduler.stages import StageGraph
from roll_operator.scheduler.state import Writes
from support.scheduler_dump import dump
from support.scheduler_world import MakeWorld, World

AGENTIC = StageGraph(interactive=True, scored=True)


def reopened(job: World) -> dict[str, Any]:
    job.crash_scheduler()
    return dump(job.state)


@pytest.mark.parametrize("seed", range(12))
def test_a_reopened_scheduler_knows_what_the_old_one_knew(world: MakeWorld, seed: int) -> None:
    """Random moments of jobs with partials, failures, several lives, validations, filtered groups."""
    chance = random.Random(seed)
    job = world(
        steps=5, groups_per_step=3, group_size=2, max_staleness=2, run_ahead=1.0,
        graph=AGENTIC if seed % 2 else StageGraph(False, True), keep_checkpoints=1 + seed % 2,
        filter_by="mean", filter_above=0.1, validation_every=2, max_attempts=3,
    )  # fmt: skip
    for _ in range(30):
        for worker, task in job.tasks():
            roll = chance.random()
            if task.stage == Stage.GENERATE and roll < 0.15:
                job.send_partial(worker, task, 2, again=False)
            elif roll < 0.25:
                replays = task.stage == Stage.STEP and chance.random() < 0.5
                job.finish(worker, task, cause="replay" if replays else "timeout")
            elif roll < 0.85:
                job.finish(worker, task, reward=chance.random(), done=task.turn >= 1)
        if chance.random() < 0.2:
            job.commit_checkpoint()
        job.trainer_turn()
        job.flush()
        job.fetch_all()
    before = dump(job.state)
    assert reopened(job) == before
    job.run_to_the_end()
    assert job.audit().problems == []


def test_attempts_of_a_stage_that_ended_well_are_forgotten_durably(world: MakeWorld) -> None:
    job = world(groups_per_step=1, group_size=1)
    job.finish_all(Stage.RESET)
    job.finish_all(Stage.GENERATE, cause="timeout")
    job.finish_all(Stage.GENERATE, cause="timeout")
    (unit,) = next(iter(job.state.groups.values())).units
    assert unit.failures == 2
    job.finish_all(Stage.GENERATE)
    assert unit.stage == Stage.SCORE and unit.failures == 0
    job.crash_scheduler()
    (unit,) = next(iter(job.state.groups.values())).units
    assert unit.stage == Stage.SCORE and unit.failures == 0


def test_attempts_are_on_record_before_the_next_one(world: MakeWorld) -> None:
    job = world(groups_per_step=1, group_size=1, max_attempts=2, max_replacements=1)
    job.finish_all(Stage.RESET)
    job.finish_all(Stage.GENERATE, cause="timeout")
    job.crash_scheduler()
    for worker in job.workers.values():
        worker.held.clear()
        job.connect(worker)
    job.now += 10.0
    job.flush()
    ((worker, task),) = job.tasks(Stage.GENERATE)
    job.finish(worker, task, cause="timeout")
    job.flush()
    assert job.state.counters["failed.timeout"] == 1, "the attempt before the crash counts"


def test_a_failure_that_was_not_acknowledged_is_counted_once(world: MakeWorld) -> None:
    job = world(groups_per_step=1, group_size=1, max_attempts=3)
    job.finish_all(Stage.RESET)
    ((engine, task),) = job.tasks(Stage.GENERATE)
    job.finish(engine, task, cause="input")
    job.flush(deliver=False)
    job.connect(engine)
    (unit,) = next(iter(job.state.groups.values())).units
    assert unit.failures == 1 and job.state.counters["failures.input"] == 1
    assert engine.unacked == {} and task.lease not in job.state.leases
    job.run_to_the_end()
    assert job.audit().problems == []


def test_a_scheduler_that_was_replaced_writes_nothing(world: MakeWorld) -> None:
    job = world(groups_per_step=1, group_size=1)
    newer = SqliteLedger(job.folder, job.settings, sync=False)
    newer.open(job.now)
    before = read_meta(newer.reader)
    with pytest.raises(LedgerTaken) as raised:
        job.finish_all(Stage.RESET)
    assert "term 2, this one has 1" in str(raised.value)
    assert read_meta(newer.reader) == before
    assert newer.reader.execute("SELECT count(*) FROM parts").fetchone() == (0,)
    newer.commit(Writes(meta={"progress": {}}), [])
    newer.close()


def test_a_ledger_is_read_when_its_last_owner_has_ended_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(steps=2, groups_per_step=1, group_size=1)
    older, newer = (SqliteLedger(tmp_path, settings, sync=False) for _ in range(2))
    state = older.open(0.0)
    state.next_group = 50
    state.writes.meta["progress"] = {}
    writes, _ = state.take()
    older.begin(writes, [])
    waits, wait = threading.Event(), newer._begin

    def begin() -> None:
        waits.set()
        wait()

    monkeypatch.setattr(newer, "_begin", begin)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(newer.open, 0.0)
        assert waits.wait(60)
        older.finish(writes, [])
        after = opening.result(60)
    assert (after.next_group, after.term) == (50, state.term + 1)
    older.close()
    newer.close()


def test_every_scheduler_has_a_term_of_its_own(world: MakeWorld) -> None:
    job = world(workers=False)
    terms = [job.state.term]
    for _ in range(3):
        job.crash_scheduler()
        terms.append(job.state.term)
    assert terms == [1, 2, 3, 4]


def test_gone_pods_stay_gone_after_a_crash(world: MakeWorld) -> None:
    job = world()
    engine = next(w for w in job.workers.values() if w.role == "inference")
    job.kill_worker(engine)
    job.flush()
    job.crash_scheduler()
    job.workers[engine.uid] = engine
    job.connect(engine)
    assert engine.refused == "fenced"


# Crashes around a commit.


def on_disk(folder: Path, block: Block, length: int) -> bytes:
    """What another process finds there."""
    store = SegmentStore(folder)
    try:
        return store.read_at(block.segment, block.start, length)
    finally:
        store.close()


def test_payloads_of_a_commit_that_never_came_are_written_over(world: MakeWorld) -> None:
    job = world(groups_per_step=1, group_size=1)
    before = dump(job.state)
    ((worker, task),) = job.tasks(Stage.RESET)
    job.finish(worker, task)
    job.state.take()
    orphans = job.ledger.store.take()
    job.ledger.store.write(orphans)  # on disk, but no row says so
    job.crash_scheduler()
    assert dump(job.state) == before
    first = job.state.store.append(b"after the crash")
    assert (first.segment, first.start) == (orphans[0].segment, orphans[0].start)
    job.ledger.store.write(job.ledger.store.take())
    assert on_disk(job.folder / "segments", first, 15) == b"after the crash"


def test_a_segment_that_no_row_refers_to_is_removed_at_the_next_start(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path, segment_bytes=100)
    blocks = [store.append(bytes([n]) * 60) for n in range(4)]
    store.write(store.take())
    store.close()
    again = SegmentStore(tmp_path, segment_bytes=100)
    again.resume(blocks[1].segment, blocks[1].start + 60)
    assert again.segments() == {1, 2}
    assert again.append(b"x" * 60).segment == 3
    again.close()


def test_a_failed_transaction_leaves_no_row(world: MakeWorld) -> None:
    job = world()
    before = list(job.ledger.reader.execute("SELECT * FROM meta ORDER BY key"))
    job.finish_all(Stage.RESET)
    committed = list(job.ledger.reader.execute("SELECT * FROM meta ORDER BY key"))
    assert before != committed
    job.state.count("samples")
    job.state.touch(next(iter(job.state.groups.values())))
    writes, _ = job.state.take()
    writes.groups.append((None,) * 13)  # NOT NULL
    with pytest.raises(sqlite3.IntegrityError):
        job.ledger.commit(writes, [])
    assert list(job.ledger.reader.execute("SELECT * FROM meta ORDER BY key")) == committed


def test_payloads_that_cannot_be_written_leave_no_row_and_are_written_later(
    world: MakeWorld,
) -> None:
    job = world(groups_per_step=1, group_size=1)
    before = list(job.ledger.reader.execute("SELECT * FROM meta ORDER BY key"))
    ((worker, task),) = job.tasks(Stage.RESET)
    job.finish(worker, task)
    writes, _ = job.state.take()
    payloads = job.ledger.store.take()
    assert writes.parts and payloads
    with files_no_larger_than(1), pytest.raises(OSError, match="too large"):
        job.ledger.commit(writes, payloads)
    assert list(job.ledger.reader.execute("SELECT * FROM meta ORDER BY key")) == before
    assert list(job.ledger.reader.execute("SELECT * FROM parts")) == []
    job.ledger.commit(writes, payloads)
    check_nothing_is_lost(job, dump(job.state))


def test_an_opening_that_fails_tells_why(world: MakeWorld) -> None:
    """As with a full disk, SQLite has ended the transaction by itself."""
    job = world(workers=False)
    job.ledger.close()
    with sqlite3.connect(job.folder / "ledger.sqlite") as db:
        db.execute(
            "CREATE TRIGGER full BEFORE INSERT ON meta BEGIN SELECT RAISE(ROLLBACK, 'no room'); END"
        )
    with pytest.raises(sqlite3.IntegrityError, match="no room"):
        job.open()


def test_a_second_writer_is_waited_for_briefly(world: MakeWorld) -> None:
    job = world(workers=False)
    other = sqlite3.connect(job.folder / "ledger.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(LedgerBusy) as raised:
        job.ledger.begin(Writes(meta={"cursor": 1}), [])
    assert time.monotonic() - began < 10.0, "the event loop stands still meanwhile"
    assert str(raised.value) == (
        f"{job.folder}/ledger.sqlite: another process writes to it; "
        "end that one, a job has one scheduler"
    )
    other.close()
    job.ledger.commit(Writes(meta={"cursor": 1}), [])


def test_a_large_transaction_is_written_when_it_ends(world: MakeWorld) -> None:
    job = world(workers=False)
    log = job.folder / "ledger.sqlite-wal"
    before = log.stat().st_size
    writes = Writes(meta={f"large.{n}": "x" * 100_000 for n in range(80)})
    job.ledger.begin(writes, [])
    assert log.stat().st_size == before, "the event loop does not write to the disk"
    job.ledger.finish(writes, [])
    assert log.stat().st_size > before + 8_000_000


# Segments.


def test_segments_rotate_and_read_back(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path, segment_bytes=1000)
    payloads = [os.urandom(random.Random(n).randrange(0, 400)) for n in range(50)] + [b"y" * 5000]
    blocks = []
    for n, payload in enumerate(payloads):
        blocks.append(store.append(payload))
        if n % 7 == 0:
            store.write(store.take())
            store.done()
    for block, payload in zip(blocks, payloads, strict=True):
        assert store.read(block, 0, len(payload)) == payload, "also what is not written yet"
        assert store.read(block, 2, 3) == payload[2:5]
    store.write(store.take())
    store.done()
    store.close()
    for block, payload in zip(blocks, payloads, strict=True):
        assert on_disk(tmp_path, block, len(payload)) == payload
    assert len(store.segments()) == blocks[-1].segment > 5


def test_small_payloads_do_not_pile_up_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What keeps eight bytes findable takes many times as much; what is given up is read from the disk."""
    monkeypatch.setattr(segments, "RECENT_BYTES", 100_000)
    store = SegmentStore(tmp_path)
    tracemalloc.start()
    first = store.append(bytes(8))
    for n in range(10_000):
        last = store.append(memoryview(n.to_bytes(8)))
        if n % 50 == 0:
            store.write(store.take())
            store.done()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 500_000
    assert first.data is None and last.data is not None
    store.write(store.take())
    assert (store.read(first, 0, 8), store.read(last, 0, 8)) == (bytes(8), (9_999).to_bytes(8))
    store.close()


def test_an_empty_payload_is_not_its_neighbours(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path)
    empty = store.append(b"")
    full = store.append(b"full")
    assert (store.read(empty, 0, 0), store.read(full, 0, 4)) == (b"", b"full")
    store.write(store.take())
    store.close()
    assert (on_disk(tmp_path, empty, 0), on_disk(tmp_path, full, 4)) == (b"", b"full")


def test_reading_never_makes_a_file(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path)
    block = store.append(b"payload")
    store.write(store.take())
    store.close()
    (tmp_path / "00000001.seg").unlink()
    with pytest.raises(FileNotFoundError):
        on_disk(tmp_path, block, 7)
    assert list(tmp_path.iterdir()) == []


def test_a_dropped_segment_becomes_a_later_one(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path, segment_bytes=100)
    old = [store.append(bytes([n]) * 60) for n in range(6)]
    store.write(store.take())
    store.drop({block.segment for block in old[:4]})
    store.close()
    spares = {path.stat().st_ino for path in tmp_path.glob("*.spare")}
    assert store.segments() == {5, 6} and len(spares) == segments.SPARES, "only a few are kept"
    again = SegmentStore(tmp_path, segment_bytes=100)
    again.resume(6, 60)
    new = [again.append(bytes([10 + n]) * 60) for n in range(segments.SPARES)]
    long = again.append(b"l" * 150)
    again.write(again.take())
    again.close()
    assert {(tmp_path / f"{b.segment:08d}.seg").stat().st_ino for b in new} == spares
    assert [on_disk(tmp_path, block, 60) for block in new] == [b"\x0a" * 60, b"\x0b" * 60]
    assert [on_disk(tmp_path, block, 60) for block in old[4:]] == [b"\x04" * 60, b"\x05" * 60]
    assert on_disk(tmp_path, long, 150) == b"l" * 150


def test_who_reads_a_segment_that_is_written_again_notices(tmp_path: Path) -> None:
    store, reader = (SegmentStore(tmp_path, segment_bytes=100) for _ in range(2))
    old = store.append(b"o" * 60)
    store.write(store.take())
    numbers = dict.fromkeys(Part._fields, 0)
    numbers |= {"segment": old.segment, "length": 60, "checksum": crc32(b"o" * 60)}
    part = Part(**numbers)
    assert reader.read_part(part) == b"o" * 60
    store.append(b"m" * 60)
    store.write(store.take())
    store.drop({old.segment})
    store.append(b"n" * 60)
    store.write(store.take())
    assert reader.read_at(part.segment, part.start, part.length) == b"n" * 60
    assert reader.read_part(part) is None
    store.close()
    reader.close()


def test_segments_of_pruned_steps_are_deleted(tmp_path: Path) -> None:
    settings = Settings(steps=30, groups_per_step=2, group_size=2, keep_checkpoints=1)
    job = World(tmp_path, settings, segment_bytes=200)
    job.fair_turn()
    most = 0
    for _ in range(25):
        job.train(1)
        job.commit_checkpoint()
        job.flush()
        most = max(most, len(job.ledger.store.segments()))
    newest = max(job.ledger.store.segments())
    assert newest > 15 and most < 6, "old ones go as new ones come"
    assert job.audit().problems == []
    parts = job.ledger.reader.execute("SELECT min(segment) FROM parts").fetchone()[0]
    assert parts is None or parts >= min(job.ledger.store.segments())
    job.ledger.close()


# What a start costs.


def cost_of_opening(folder: Path, settings: Settings) -> int:
    """In units of 50 instructions of SQLite's machine: no clock is involved."""
    ledger = SqliteLedger(folder, settings, sync=False)
    ticks = 0

    def tick() -> int:
        nonlocal ticks
        ticks += 1
        return 0

    ledger._db.set_progress_handler(tick, 50)
    state = ledger.open(0.0)
    assert state.reported > 0
    ledger.close()
    return ticks


def test_a_long_history_does_not_slow_the_start(tmp_path: Path) -> None:
    costs = []
    for steps in (40, 400):
        settings = Settings(steps=1000, groups_per_step=1, group_size=1, keep_checkpoints=1)
        job = World(tmp_path / str(steps), settings)
        job.fair_turn()
        while job.state.reported < steps:
            job.train(1)
            if job.state.reported % 10 == 0:
                job.commit_checkpoint()
        job.flush()
        job.ledger.close()
        costs.append(cost_of_opening(tmp_path / str(steps), settings))
    assert costs[1] < 2 * costs[0], f"ten times the history costs {costs}"


# Disks in trouble.


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    """A file system of that size; where mounting is not allowed, no file may grow beyond it."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)
        return
    with files_no_larger_than(kilobytes):
        yield


@contextmanager
def files_no_larger_than(kilobytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def run_until_trouble(job: World) -> tuple[Exception, dict[str, Any]]:
    """What went wrong, and what the last good commit described."""
    committed: dict[str, Any] = dump(job.state)
    commit = job.ledger.commit

    def watched(writes: Any, payloads: Any) -> None:
        nonlocal committed
        commit(writes, payloads)
        committed = dump(job.state)

    job.ledger.commit = watched  # type: ignore[method-assign]
    for _ in range(3000):
        try:
            job.fair_turn()
        except (OSError, sqlite3.Error) as error:
            return error, committed
    raise AssertionError("the disk never was full")


def a_long_job(folder: Path) -> World:
    settings = Settings(
        steps=900, groups_per_step=4, group_size=4, max_staleness=1, run_ahead=1.0,
        keep_checkpoints=50,
    )  # fmt: skip
    job = World(folder, settings)
    for role in ("environment", "reward", "inference"):
        job.add_worker(role, credits=64)
    return job


def check_nothing_is_lost(job: World, committed: dict[str, Any]) -> None:
    job.ledger.close()
    job.open()
    assert dump(job.state) == committed
    found = job.audit()
    assert found.problems == [] and found.lost == 0


def test_a_full_disk_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 768):
        job = a_long_job(tmp_path / "disk" / "ledger")
        error, committed = run_until_trouble(job)
        if isinstance(error, OSError):
            assert error.errno in (errno.ENOSPC, errno.EFBIG)
        else:
            assert "full" in str(error) or "I/O" in str(error)
        assert committed["reported"] > 0
        job.ledger.close()
        room = tmp_path / "room"
        subprocess.run(["cp", "-r", str(job.folder), str(room)], check=True)
    job.folder = room
    job.open()
    assert dump(job.state) == committed, "room again: the same ledger goes on elsewhere"
    assert job.audit().problems == []
    job.crash_scheduler()
    step = job.state.reported
    job.train(2)
    assert job.state.reported == step + 2 and job.audit().problems == []
    job.ledger.close()


def test_a_file_that_may_not_grow_loses_nothing_either(tmp_path: Path) -> None:
    job = a_long_job(tmp_path)
    with files_no_larger_than(256):
        _, committed = run_until_trouble(job)
    check_nothing_is_lost(job, committed)
    job.ledger.close()


def test_a_read_only_folder_is_a_message(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    with small_disk(folder, 2048):
        job = World(folder / "ledger", Settings(steps=2, groups_per_step=1, group_size=1))
        job.ledger.close()
        remount = ["mount", "-o", "remount,ro", str(folder)]
        if subprocess.run(remount, capture_output=True, check=False).returncode != 0:
            for path in (folder / "ledger", *(folder / "ledger").rglob("*")):
                path.chmod(0o555 if path.is_dir() else 0o444)
        with pytest.raises((LedgerError, sqlite3.OperationalError, OSError)) as raised:
            job.open()
        assert "read" in str(raised.value) or "permission" in str(raised.value).lower()


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a#b %41?"
    job = World(folder, Settings(steps=2, groups_per_step=1, group_size=1))
    job.run_to_the_end()
    job.ledger.close()
    assert verify(folder, job.settings).trained == 2
    assert [entry.name for entry in tmp_path.iterdir()] == [folder.name]


def test_a_ledger_of_another_format_is_refused(world: MakeWorld) -> None:
    job = world(workers=False)
    job.ledger.close()
    with sqlite3.connect(job.folder / "ledger.sqlite") as db:
        db.execute("INSERT OR REPLACE INTO meta VALUES ('format', '99')")
    with pytest.raises(LedgerError, match="format 99"):
        job.open()
