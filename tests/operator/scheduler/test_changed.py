"""A job that was suspended comes back with another spec: what is in flight keeps the bound that holds now."""

from __future__ import annotations

import pytest
from roll_operator.scheduler import training
from roll_operator.scheduler.audit import verify
from roll_operator.scheduler.lifecycle import Cause, GroupState, Stage
from roll_operator.scheduler.stages import StageGraph
from support.scheduler_world import MakeWorld, World, environments


def aged(world: MakeWorld) -> World:
    """Step 3 is next, at version 2. Its slots and those of step 4 hold groups whose tokens are of version 0."""
    job = world(steps=8, max_staleness=3, run_ahead=3.0)
    old = [g.id for g in job.state.groups.values() if g.step in (3, 4)]
    assert len(old) == 4
    for group in old:
        job.finish_all("reset", group)
        job.finish_all("generate", group)
    job.train(2)
    assert (job.state.first_open_step, job.state.published) == (3, 2)
    assert {g.oldest() for g in job.state.groups.values() if g.step in (3, 4)} == {0}
    return job


def test_groups_that_are_too_old_for_a_lower_bound_free_their_slots(world: MakeWorld) -> None:
    job = aged(world)
    assert [g.state for g in job.state.groups.values() if g.step == 4] == [GroupState.READY] * 2

    job.reopen(max_staleness=2, run_ahead=2.0)

    left = [
        (g.step, oldest) for g in job.state.groups.values() if (oldest := g.oldest()) is not None
    ]
    assert left.count((3, 0)) == 2, "version 0 is 2 versions behind what step 3 begins with"
    assert all(step - 1 - oldest <= 2 for step, oldest in left)
    assert job.state.slots.of(4) == {} and job.state.slots.lowest_free(4) == 1
    job.flush()
    found = job.audit()
    assert found.problems == [] and found.dropped["cancelled.stale"] >= 4


def test_groups_that_a_lower_bound_lets_begin_later_only_keep_no_environment_from_earlier_ones(
    world: MakeWorld,
) -> None:
    """Their episodes would wait for a version that waits for the step whose episode waits for a place."""
    graph = StageGraph(interactive=True, scored=False)
    job = world(
        steps=4, groups_per_step=1, group_size=2, max_staleness=3, run_ahead=3.0, graph=graph
    )
    job.finish_all("reset")
    assert {g.step for g in job.state.groups.values()} == {1, 2, 3, 4}
    for worker in list(job.workers.values()):
        job.kill_worker(worker)
    job.flush()

    job.reopen(max_staleness=0, run_ahead=0.0)

    assert {g.step for g in job.state.groups.values()} == {1}
    job.add_worker("environment", credits=2)
    job.run_to_the_end()
    assert (job.state.finished, job.audit().problems) == ("complete", [])


def test_every_batch_is_judged_by_the_bound_under_which_it_was_formed(world: MakeWorld) -> None:
    job = aged(world)
    job.train(1)
    assert job.state.batches[3].oldest == 0

    job.reopen(max_staleness=0, run_ahead=0.0)
    job.run_to_the_end()

    assert job.state.finished == "complete"
    found = verify(job.folder, job.settings)
    assert found.problems == [] and (found.trained, found.staleness_max) == (8 * 4, 2)
    bounds = {b.step: (b.max_staleness, b.oldest) for b in job.ledger.batches()}
    assert bounds[3] == (3, 0) and bounds[4] == (0, 3) and bounds[8] == (0, 7)


def test_a_higher_bound_ends_nothing(world: MakeWorld) -> None:
    job = aged(world)
    before = {g.id: (g.step, g.slot) for g in job.state.groups.values()}

    job.reopen(max_staleness=5, run_ahead=4.0)

    assert {g.id: (g.step, g.slot) for g in job.state.groups.values()} == before
    job.run_to_the_end()
    assert job.audit().problems == [] and job.audit().dropped.keys() <= {"cancelled.job-ended"}


def test_a_finished_job_that_was_shortened_goes_on_in_a_new_lineage_where_a_version_has_no_batch(
    world: MakeWorld,
) -> None:
    """Step 2 was trained and its version is out; its trainer came back at checkpoint 1 and was to stop there."""
    job = world(steps=4, max_staleness=1, run_ahead=1.0)
    job.train(1)
    job.commit_checkpoint()
    job.train(1)
    job.start_trainer()
    while job.state.reported != 1:
        job.trainer_turn()
        job.flush()
    job.reopen(steps=1)
    job.run_to_the_end()
    assert (job.state.finished, job.state.published) == ("complete", 2)

    job.reopen(steps=3)
    job.run_to_the_end()

    assert (job.state.finished, job.state.lineage) == ("complete", 2)
    found = job.audit()
    assert found.problems == [] and (found.steps, found.trained) == (3, 3 * 4)


def test_what_is_trained_stays_trained_where_a_job_is_shortened_further(world: MakeWorld) -> None:
    job = world(steps=6, max_staleness=1, run_ahead=1.0)
    job.train(3)

    job.reopen(steps=1)
    job.run_to_the_end()
    assert (job.state.finished, job.state.reported, job.audit().trained) == ("complete", 3, 3 * 4)

    job.reopen(steps=5)
    job.run_to_the_end()
    found = job.audit()
    assert (job.state.lineage, found.problems, found.trained) == (1, [], 5 * 4)


def test_an_end_that_changes_nothing_else_is_on_record(world: MakeWorld) -> None:
    job = world(steps=4, max_staleness=0, run_ahead=0.0)
    job.train(2)
    job.commit_checkpoint()
    job.flush()
    training.cancel_live(job.state, job.now, Cause.JOB_ENDED)
    job.flush()
    job.reopen(steps=2)
    job.flush()
    assert job.state.finished == "complete"
    job.crash_scheduler()
    assert job.state.finished == "complete"


def test_a_shortened_job_does_not_wait_for_held_out_answers_of_a_version_beyond_its_end(
    world: MakeWorld,
) -> None:
    """Version 2 was published, nobody has it, and a trainer that stops at step 1 does not make it again."""
    job = world(steps=4, max_staleness=0, run_ahead=0.0, validation_every=1)
    job.train(1)
    job.commit_checkpoint()
    while job.state.published == 1:
        job.fair_turn()
    assert [v.version for v in job.state.validations if not v.finished] == [2]
    job.weights[1, 2] = "gone"
    job.start_trainer()

    job.reopen(steps=1)
    job.run_to_the_end()

    assert (job.state.finished, job.state.reported) == ("complete", 1)
    assert job.audit().problems == []


def ended_early(world: MakeWorld) -> World:
    """Two steps are trained; then the filter, whose budget is one group a step, rejects two groups."""
    job = world(filter_by="mean", filter_above=0.0, filter_below=1.0, filter_budget=0.5,
                on_exhausted="Complete")  # fmt: skip
    job.train(2)
    job.fetch_all()
    for group in sorted(job.state.groups)[:2]:
        job.complete(group, rewards=[1.0])
    job.commit_checkpoint()
    job.flush()
    assert job.state.finished.startswith("filter budget exhausted")
    return job


@pytest.mark.parametrize(
    "changed", [{"filter_budget": 4.0}, {"on_exhausted": "Keep"}, {"steps": 8}]
)
def test_a_job_that_ended_for_want_of_groups_goes_on_under_other_terms(
    world: MakeWorld, changed: dict[str, object]
) -> None:
    job = ended_early(world)
    job.crash_scheduler()
    assert job.state.finished, "nothing changed, and it stays at its end"

    job.reopen(**changed)
    job.run_to_the_end()

    found = job.audit()
    assert (job.state.finished, found.problems) == ("complete", [])
    assert found.steps == job.settings.steps


def test_a_job_that_goes_on_under_other_terms_has_a_whole_budget_again(world: MakeWorld) -> None:
    job = ended_early(world)

    job.reopen(steps=8)
    job.flush()
    job.crash_scheduler()
    while not job.tasks("generate"):
        job.fair_turn()
    rejected = min(job.state.groups)
    job.complete(rejected, rewards=[1.0])

    assert rejected not in job.state.groups and job.state.filtered == {3: 1}
    assert not job.state.ending
    job.run_to_the_end()
    assert (job.state.finished, job.audit().problems) == ("complete", [])


def test_a_job_that_is_about_to_end_for_want_of_groups_goes_on_under_other_terms(
    world: MakeWorld,
) -> None:
    job = world(filter_by="mean", filter_above=0.0, filter_below=1.0, filter_budget=0.0,
                on_exhausted="Complete")  # fmt: skip
    job.train(1)
    job.fetch_all()
    job.complete(min(job.state.groups), rewards=[1.0])
    assert job.state.ending and not job.state.finished, "its last step is not saved"
    job.crash_scheduler()
    assert job.state.ending

    job.reopen(filter_by="none")
    job.run_to_the_end()
    assert (job.state.finished, job.audit().problems) == ("complete", [])


def test_a_job_that_is_validated_no_more_goes_on_without_what_was_under_way(
    world: MakeWorld,
) -> None:
    """Its environments know no held-out prompt any more: every reset of one would fail."""
    job = world(steps=2, validation_every=1, groups_per_step=2)
    held_out = [g.id for g in job.state.groups.values() if g.validation is not None]
    assert held_out

    job.reopen(validation_every=0)

    assert not any(group in job.state.groups for group in held_out)
    job.run_to_the_end()
    found = job.audit()
    assert (job.state.finished, found.problems) == ("complete", [])
    assert found.dropped == {"cancelled.surplus": len(held_out)}


def test_a_job_that_is_validated_again_may_have_other_held_out_prompts(world: MakeWorld) -> None:
    job = world(steps=3, validation_every=1)
    job.train(1)
    (environment,) = environments(job)
    job.held_out = "others"
    job.crash_scheduler()
    job.connect(environment)
    assert environment.refused == "data-changed", "while they are in use they stay the same"

    job.reopen(validation_every=0)
    job.train(1)
    job.reopen(validation_every=1)
    job.run_to_the_end()

    assert job.state.data["validation"] == (3, "others")
    assert (job.state.finished, job.audit().problems) == ("complete", [])


def test_held_out_prompts_that_all_fail_do_not_fail_the_job(world: MakeWorld) -> None:
    job = world(steps=3, groups_per_step=1, validation_every=1, max_attempts=1)
    limit = 8
    job.state.data["validation"] = (3 * limit, "held-out")
    for _ in range(400):
        if job.state.finished or job.state.error:
            break
        for worker, task in job.tasks(Stage.RESET):
            if job.state.groups[task.group].validation is not None:
                job.finish(worker, task, cause="input")
        job.fair_turn()
    assert (job.state.finished, job.state.error) == ("complete", "")
    assert job.state.counters["failed.input"] > limit
