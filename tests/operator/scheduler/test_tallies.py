"""The tables beside groups and batches: a row of them that someone deleted, doubled, moved or altered is found."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from roll_operator.scheduler import audit
from roll_operator.scheduler.ledger import LedgerError, SqliteLedger
from roll_operator.scheduler.settings import Settings
from support.scheduler_world import World

SETTINGS = Settings(
    steps=4, groups_per_step=2, group_size=2, max_staleness=1, run_ahead=1.0, max_attempts=3,
    validation_every=2, keep_checkpoints=2,
)  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A job that ended; its first steps were pruned, samples of those and of later ones failed twice."""
    job = World(tmp_path, SETTINGS)
    for role in ("environment", "reward", "inference"):
        job.add_worker(role, credits=64)
    job.start_trainer()
    job.begin()
    for step in range(1, SETTINGS.steps + 1):
        job.fetch_all()
        job.finish_all("reset")
        for _ in range(2):
            job.finish_all("generate", cause="timeout")
        job.train(1)
        if step <= 3:
            job.commit_checkpoint()
    job.run_to_the_end()
    job.flush()
    job.ledger._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    job.ledger.close()
    found = audit.verify(tmp_path, SETTINGS)
    assert found.problems == [] and found.evaluated > 0
    return tmp_path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM failures WHERE rowid = (SELECT max(rowid) FROM failures)", "were counted"),
        ("INSERT INTO failures SELECT * FROM failures LIMIT 1", "were counted"),
        ("UPDATE failures SET cause = 'input' WHERE rowid = (SELECT max(rowid) FROM failures)",
         "failures (input) were counted, 1 are on record"),
        ("UPDATE failures SET idx = 1 - idx WHERE attempt = 2 AND rowid = "
         "(SELECT max(rowid) FROM failures)", "are not on record one after the other"),
        ("UPDATE folds SET ends = replace(ends, 'failures.timeout', 'failures.other')",
         "failures (timeout) were counted"),
        ("DELETE FROM steps WHERE step = 2", "step 2 was trained, but its report"),
        ("UPDATE steps SET step = 9 WHERE step = 4", "step 4 was trained, but its report"),
        ("DELETE FROM versions WHERE number = 4", "version 4 was published"),
        ("DELETE FROM versions WHERE number = 2", "version 2 was published"),
        ("DELETE FROM checkpoints WHERE step = (SELECT max(step) FROM checkpoints)",
         "no checkpoint of it is on record"),
        ("DELETE FROM checkpoints WHERE step = (SELECT min(step) FROM checkpoints WHERE retained)",
         "rows were added to checkpoints"),
        ("DELETE FROM checkpoints WHERE NOT retained AND step = 0", "rows were added to checkpoints"),
        ("DELETE FROM versions WHERE number = 0", "rows were added to versions"),
        ("INSERT INTO versions SELECT 9, number, term, digest, locations FROM versions LIMIT 1",
         "rows were added to versions"),
        ("DELETE FROM validations WHERE version = (SELECT max(version) FROM validations)",
         "were evaluated"),
        ("UPDATE validations SET scored = scored + 1 WHERE version = 2", "were evaluated"),
        ("UPDATE validations SET total = total + 0.5"
         " WHERE version = (SELECT max(version) FROM validations)", "adds up to"),
        ("DELETE FROM meta WHERE key = 'term'", "meta has no row `term`"),
        ("DELETE FROM meta WHERE key = 'rows'", "meta has no row `rows`"),
        *((f"DELETE FROM meta WHERE key = '{key}'", "rows were added to meta")
          for key in ("ledger", "format", "trainer", "tail", "data.train", "data.validation")),
    ],
)  # fmt: skip
def test_a_row_that_someone_laid_hands_on(ledger: Path, change: str, message: str) -> None:
    db = sqlite3.connect(ledger / "ledger.sqlite", isolation_level=None)
    assert db.execute(change).rowcount > 0, "nothing was changed: the test shows nothing"
    db.close()
    assert message in "\n".join(audit.verify(ledger, SETTINGS).problems)


def test_a_validation_without_a_score_that_someone_deleted(tmp_path: Path) -> None:
    """All its prompts failed: no sample misses it."""
    settings = replace(SETTINGS, steps=1, max_attempts=1)
    job = World(tmp_path, settings)
    for role in ("environment", "reward", "inference"):
        job.add_worker(role, credits=64)
    job.start_trainer()
    job.begin()
    for worker, task in job.tasks("reset"):
        if job.state.groups[task.group].validation is not None:
            job.finish(worker, task, cause="input")
    job.flush()
    assert [(v.version, v.finished, v.scored) for v in job.state.validations] == [(0, True, 0)]
    assert job.audit().problems == []
    job.ledger._db.execute("DELETE FROM validations WHERE version = 0")
    assert "1 rows were added to validations, 0 are on record" in job.audit().problems
    job.ledger.close()


def test_a_row_that_was_deleted_is_missed_also_when_the_job_went_on(tmp_path: Path) -> None:
    job = World(tmp_path, SETTINGS)
    for role in ("environment", "reward", "inference"):
        job.add_worker(role, credits=64)
    job.start_trainer()
    job.train(1)
    job.ledger._db.execute("DELETE FROM versions WHERE number = 0")
    job.ledger._db.execute("DELETE FROM meta WHERE key = 'trainer'")
    job.crash_scheduler()
    job.start_trainer()
    job.train(1)
    problems = "\n".join(job.audit().problems)
    assert "rows were added to versions" in problems and "rows were added to meta" in problems
    job.ledger.close()


def test_a_ledger_without_its_term_is_not_opened(ledger: Path) -> None:
    """The first term would come again, and with it the numbers of leases."""
    db = sqlite3.connect(ledger / "ledger.sqlite", isolation_level=None)
    db.execute("DELETE FROM meta WHERE key = 'term'")
    db.close()
    opened = SqliteLedger(ledger, SETTINGS)
    with pytest.raises(LedgerError, match="no term"):
        opened.open(0.0)
    opened.close()
