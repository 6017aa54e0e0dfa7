"""Engines outlive a ledger: what a lost or newer one published is nothing that this one knows, and is trained nowhere."""

from __future__ import annotations

import shutil

import pytest
from roll_operator.scheduler import arrivals, flow, leases, training
from roll_operator.scheduler.lifecycle import Stage
from roll_operator.scheduler.state import CheckpointRow
from support.scheduler_roles import Said, message
from support.scheduler_world import MakeWorld, World, engines

LOST = (1, 57)  # the version of a ledger that is gone


def test_a_new_ledger_begins_in_a_lineage_that_no_engine_holds_anything_of(
    world: MakeWorld,
) -> None:
    job = world(workers=False)
    engine = job.add_worker("inference", credits=64)
    job.disconnect(engine)
    engine.version = LOST
    job.connect(engine)
    assert engine.refused == "" and job.state.workers[engine.id].version is None
    job.crash_scheduler()
    assert job.state.lineage == 2
    job.run_to_the_end()
    assert (job.state.finished, job.state.lineage) == ("complete", 2)
    assert engine.version == (2, 6) and job.audit().problems == []


@pytest.mark.parametrize("crash", [False, True])
def test_a_lineage_that_a_trainer_was_told_stays(world: MakeWorld, crash: bool) -> None:
    """It saves the checkpoint of step 0 in that lineage: raised under it, the commit would be fenced."""
    job = world(workers=False)
    job.start_trainer()
    state, term = job.seat()
    lineage = training.rewind(state, term, 0, job.now)
    job.flush()
    if crash:
        job.crash_scheduler()
    engine = job.add_worker("inference", credits=64)
    job.disconnect(engine)
    engine.version = LOST
    job.connect(engine)

    assert engine.refused == "fenced"
    row = CheckpointRow(0, lineage, "step-0", "digest")
    training.commit(job.state, term, row, job.now)
    job.run_to_the_end()
    assert (job.state.finished, job.state.lineage) == ("complete", lineage)
    assert job.audit().problems == []


def test_an_engine_ahead_of_a_ledger_that_was_set_back_has_to_start_again(world: MakeWorld) -> None:
    """It would never go back to the versions that come now."""
    job = world(max_staleness=1, run_ahead=1.0)
    earlier = job.folder.with_name("earlier")
    shutil.copytree(job.folder, earlier)
    job.train(2)
    job.fetch_all()
    (engine,) = engines(job)
    assert engine.version == (1, 2)
    job.folder = earlier
    job.crash_scheduler()
    job.start_trainer()
    job.connect(engine)
    assert engine.refused == "fenced" and engine.id not in job.state.workers
    job.run_to_the_end()
    assert job.state.finished == "complete" and job.audit().problems == []


def generated(job: World, newest: int, *, together: bool) -> list[int]:
    """Two samples come back with tokens up to this version; the verdicts."""
    (engine,) = engines(job)
    tasks = [task for _, task in job.tasks(Stage.GENERATE) if task.lease in job.state.leases][:2]
    said = [
        Said(t.group, t.index, t.lease, t.turn, b"tokens", tokens=2, oldest=0, newest=newest, lineage=1)
        for t in tasks
    ]  # fmt: skip
    worker = job.state.workers[engine.id]
    for some in [said] if together else [[each] for each in said]:
        arrivals.results(job.state, worker, message(Stage.GENERATE, some), job.now)
    return job.state.out.acks[worker.id].verdicts


@pytest.mark.parametrize("together", [True, False])
def test_tokens_of_a_version_that_was_never_published_are_not_stored(
    world: MakeWorld, together: bool
) -> None:
    job = world()
    job.finish_all(Stage.RESET)
    assert generated(job, 57, together=together) == [leases.FENCED] * 2
    job.flush()
    why = job.ledger.reader.execute("SELECT cause, message FROM failures").fetchall()
    assert why == [("infrastructure", "tokens of version 57, which was never published")] * 2
    assert generated(job, 0, together=together) == [leases.STORED] * 2


def test_a_partial_of_a_version_that_was_never_published_is_not_kept(world: MakeWorld) -> None:
    job = world()
    job.finish_all(Stage.RESET)
    (engine,) = engines(job)
    task = next(iter(engine.held.values()))
    unit = leases.find(job.state, task.group, task.index)
    assert unit is not None
    for newest, kept in ((57, 0), (0, 2)):
        flow.progress(
            job.state, job.state.workers[engine.id], lease=task.lease, tokens=2, now=job.now,
            partial=b"partial", partial_tokens=2, oldest=0, newest=newest,
        )  # fmt: skip
        assert unit.kept == kept
