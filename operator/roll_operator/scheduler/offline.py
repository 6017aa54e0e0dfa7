"""A finished or stopped job, read from its ledger: what `roll status` and `roll samples` show then."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from roll_wire import control_pb2, session_pb2

from roll_operator.scheduler.ledger import rows
from roll_operator.scheduler.ledger.sqlite import check_format, connect, read_meta
from roll_operator.scheduler.ledger.story import read_story, version_of
from roll_operator.scheduler.settings import Settings


def list_samples(folder: Path, settings: Settings) -> control_pb2.SampleList:
    """The samples that were in flight when the scheduler last wrote."""
    db = _open(folder)
    try:
        ids = [i for (i,) in db.execute("SELECT id FROM groups WHERE state IN (1, 3) ORDER BY id")]
        now = time.time()
        listed = [
            control_pb2.SampleState(
                unit=session_pb2.Unit(group=group.id, index=unit.index),
                state=unit.state.name.lower(),
                stage=unit.stage,
                turn=unit.turn,
                version=version_of(unit),
                age_seconds=now - group.admitted,
                attempt=unit.failures + 1,
                step=group.step,
                validation=group.validation is not None,
            )
            for group in rows.read_groups(db, settings.graph, ids)
            for unit in group.kept
        ]
        return control_pb2.SampleList(samples=listed, total=len(listed))
    finally:
        db.close()


def held_out(folder: Path) -> list[tuple[int, float]]:
    """The mean reward on held-out prompts by version; a version that two lineages validated counts once."""
    db = connect(folder / "ledger.sqlite", read_only=True)
    try:
        means = db.execute(
            "SELECT version, total / scored FROM validations WHERE finished AND scored > 0"
            " ORDER BY lineage"
        )
        return sorted(dict(means).items())
    finally:
        db.close()


def sample_story(
    folder: Path, settings: Settings, group: int, index: int
) -> control_pb2.SampleStory | None:
    db = _open(folder)
    try:
        return read_story(db, settings.graph, group, index)
    finally:
        db.close()


def _open(folder: Path) -> sqlite3.Connection:
    path = folder / "ledger.sqlite"
    db = connect(path, read_only=True)
    check_format(read_meta(db), path)
    return db
