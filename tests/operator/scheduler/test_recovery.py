"""A ledger that knows no checkpoint takes a job over from the bookmark in a checkpoint's manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from roll_operator.scheduler import recovery, training
from roll_operator.scheduler.audit import verify
from roll_operator.scheduler.ledger import SqliteLedger
from roll_operator.scheduler.settings import Settings
from roll_operator.scheduler.state import CheckpointRow, JobState

SETTINGS = Settings(steps=8, groups_per_step=2, group_size=2)
NOW = 1_000.0
MARK = {
    "ledger": "another",
    "cursor": 40,
    "next_group": 31,
    "lineage": 2,
    "term": 5,
    "trainer_term": 7,
}


def opened(folder: Path) -> tuple[SqliteLedger, JobState]:
    ledger = SqliteLedger(folder, SETTINGS)
    state = ledger.open(NOW)
    state.trainer.term = max(state.trainer.term, 1)
    return ledger, state


def saved(ledger: SqliteLedger, state: JobState) -> None:
    writes, _ = state.take()
    ledger.commit(writes, ledger.store.take())
    ledger.store.done()


def test_a_bookmark_tells_where_the_job_stands(tmp_path: Path) -> None:
    _, state = opened(tmp_path)
    state.cursor, state.next_group, state.lineage, state.trainer.term = 40, 31, 2, 7
    assert json.loads(recovery.bookmark(state)) == MARK | {
        "ledger": state.ledger,
        "term": state.term,
    }


def test_the_job_goes_on_with_its_data_and_with_numbers_that_nobody_has_seen(
    tmp_path: Path,
) -> None:
    ledger, state = opened(tmp_path)
    lost = recovery.recover(state, 6, json.dumps(MARK), 4)
    lineage = training.rewind(state, state.trainer.term, 6, NOW, lost=lost)
    assert lineage == 5, "beyond what the trainer's storage has seen, too"
    assert (state.cursor, state.reported, state.formed) == (40, 6, 6)
    assert state.term > 5 and state.trainer.term > 7
    assert state.next_group > 31 + 1_000, "the lost ledger went on after the bookmark"
    saved(ledger, state)
    state.writes.meta["progress"] = {}
    saved(ledger, state)  # it is the owner of the ledger still, whose term it has raised
    ledger.close()

    _, again = opened(tmp_path)
    assert again.term == state.term + 1
    assert (again.cursor, again.next_group) == (40, state.next_group)
    assert (again.lineage, again.trainer.term) == (5, state.trainer.term)
    assert "checkpoint of step 6" in again.ledger_lost == state.ledger_lost


def test_what_the_lost_ledger_leased_out_is_not_taken(tmp_path: Path) -> None:
    _, state = opened(tmp_path)
    before = state.next_group
    recovery.recover(state, 6, json.dumps(MARK), 0)
    assert before < MARK["next_group"] < state.next_group, "a worker's old unit is not found"


def test_a_ledger_that_is_lost_before_the_first_step_was_saved_has_given_out_versions(
    tmp_path: Path,
) -> None:
    ledger, state = opened(tmp_path / "one")
    mark = recovery.bookmark(state)  # in the checkpoint of step 0
    lost = recovery.recover(state, 0, mark, 1)
    assert not lost, "its own: the trainer died before it was committed"
    assert training.rewind(state, state.trainer.term, 0, NOW, lost=lost) == 1
    ledger.close()

    ledger, state = opened(tmp_path / "two")
    lost = recovery.recover(state, 0, mark, 1)
    assert training.rewind(state, state.trainer.term, 0, NOW, lost=lost) == 2
    assert (state.formed, state.cursor) == (0, 0)
    saved(ledger, state)
    ledger.close()
    assert opened(tmp_path / "two")[1].lineage == 2
    assert verify(tmp_path / "two", SETTINGS).problems == []


@pytest.mark.parametrize("case", ["a new job", "a checkpoint on record", "a batch on record"])
def test_a_ledger_that_knows_the_job_needs_no_bookmark(tmp_path: Path, case: str) -> None:
    _, state = opened(tmp_path)
    step = 0 if case == "a new job" else 2
    if case == "a checkpoint on record":
        state.checkpoints.append(CheckpointRow(0, 1, "checkpoints/step-000000-t1", ""))
    if case == "a batch on record":
        state.formed = 2
    before = (state.term, state.trainer.term, state.cursor, state.next_group, state.lineage)
    mark, lineage = ("", 0) if case == "a new job" else (json.dumps(MARK), 4)
    assert not recovery.recover(state, step, mark, lineage)
    after = (state.term, state.trainer.term, state.cursor, state.next_group, state.lineage)
    assert after == before
    assert state.ledger_lost == ""


def test_a_checkpoint_without_a_bookmark_serves_too(tmp_path: Path) -> None:
    _, state = opened(tmp_path)
    lost = recovery.recover(state, 3, "", 1)
    assert training.rewind(state, state.trainer.term, 3, NOW, lost=lost) == 2
    assert state.cursor == 0, "the data is read again from its beginning"


def test_where_no_checkpoint_is_intact_the_job_starts_again_in_a_new_lineage(
    tmp_path: Path,
) -> None:
    _, state = opened(tmp_path)
    lost = recovery.recover(state, 0, "", 3)
    assert training.rewind(state, state.trainer.term, 0, NOW, lost=lost) == 4
    assert "started again from the model" in state.ledger_lost
    assert state.term > 1_000 and state.trainer.term > 1_000 and state.next_group > 1_000


def test_a_ledger_keeps_its_name_and_another_one_has_another(tmp_path: Path) -> None:
    first, state = opened(tmp_path / "one")
    first.close()
    assert opened(tmp_path / "one")[1].ledger == state.ledger
    assert opened(tmp_path / "two")[1].ledger != state.ledger
