"""Held-out prompts beside training: pinned to a version, in no slot, each evaluated once."""

from __future__ import annotations

from roll_operator.scheduler.lifecycle import GroupState, Stage
from roll_operator.scheduler.stages import StageGraph
from support.scheduler_world import MakeWorld, SimWorker, World


def engine_of(job: World) -> SimWorker:
    return next(w for w in job.workers.values() if w.role == "inference")


def pinned(job: World) -> set[int | None]:
    return {g.validation for g in job.state.groups.values() if g.validation is not None}


def test_the_first_every_nth_and_last_version_are_validated(world: MakeWorld) -> None:
    job = world(steps=5, validation_every=2)
    job.run_to_the_end()
    assert [v.version for v in job.state.validations] == [0, 2, 4, 5]
    assert all(v.finished and v.groups == v.done == v.scored == 3 for v in job.state.validations)
    assert [v.mean for v in job.state.validations] == [0.5] * 4
    found = job.audit()
    assert found.problems == [] and found.evaluated == 12 and found.trained == 20


def test_a_job_that_completes_early_validates_its_last_version(world: MakeWorld) -> None:
    job = world(filter_by="mean", filter_above=0.0, filter_below=1.0, filter_budget=0.5,
                on_exhausted="Complete", validation_every=10)  # fmt: skip
    job.train(2)
    job.fetch_all()
    for group in sorted(g.id for g in job.state.groups.values() if g.step)[:2]:
        job.complete(group, rewards=[1.0])
    assert job.state.ending
    job.commit_checkpoint()
    job.flush()
    assert not job.state.finished and pinned(job) == {2}
    job.run_to_the_end()
    assert job.state.finished == job.state.ending
    assert [(v.version, v.scored) for v in job.state.validations] == [(0, 3), (2, 3)]
    assert job.audit().problems == []


def test_each_prompt_is_one_sample_in_no_slot(world: MakeWorld) -> None:
    job = world(validation_every=1)
    held_out = [g for g in job.state.groups.values() if g.validation is not None]
    assert [(g.position, g.size, g.step, g.slot) for g in held_out] == [
        (0, 1, 0, 0), (1, 1, 0, 0), (2, 1, 0, 0),
    ]  # fmt: skip
    assert sorted(job.state.slots.of(1)) == [1, 2], "training has its slots"
    assert job.state.cursor == 2, "and the data cursor counts training only"


def test_a_number_of_prompts_limits_them(world: MakeWorld) -> None:
    job = world(validation_every=1, validation_prompts=2)
    assert len([g for g in job.state.groups.values() if g.validation is not None]) == 2


def test_every_validation_sees_the_same_seeds(world: MakeWorld) -> None:
    job = world(steps=2, validation_every=1)
    seeds = []
    for _ in range(60):
        if job.state.finished:
            break
        for group in job.state.groups.values():
            if group.validation is not None:
                said = (
                    group.validation,
                    group.position,
                    job.state.env_seed(group),
                    job.state.sampling_seeds(group)[0],
                )
                if said not in seeds:
                    seeds.append(said)
        job.fair_turn()
    by_row: dict[int, set[tuple[int, int]]] = {}
    for _, row, env, sampling in seeds:
        by_row.setdefault(row, set()).add((env, sampling))
    assert len(seeds) == 9 and all(len(each) == 1 for each in by_row.values())


def test_engines_stay_at_the_version_until_it_is_validated(world: MakeWorld) -> None:
    job = world(validation_every=1, max_staleness=2, run_ahead=1.0)
    engine = engine_of(job)
    held_out = [g.id for g in job.state.groups.values() if g.validation is not None]
    step_beside(job, held_out)
    job.fetch_all()
    assert engine.version == (1, 0) and pinned(job) == {0}
    for group in held_out:
        job.complete(group)
    job.fetch_all()
    assert engine.version == (1, 1) and job.state.validations[0].finished
    assert pinned(job) == {1}


def step_beside(job: World, held_out: list[int]) -> None:
    """Step 1 is trained and its version published, while nobody works on what is held out."""
    for _ in range(60):
        if job.state.published == 1:
            return
        for group in [g for g in job.state.groups if g not in held_out]:
            job.complete(group)
        job.trainer_turn()
        job.flush()
    raise AssertionError(job.describe())


def test_engines_move_on_when_all_that_is_held_out_waits_for_its_score(world: MakeWorld) -> None:
    job = world(validation_every=2, max_staleness=2, run_ahead=1.0)
    held_out = [g.id for g in job.state.groups.values() if g.validation is not None]
    step_beside(job, held_out)
    for group in held_out:
        job.finish_all(Stage.RESET, group)
    for group in held_out[:-1]:
        job.finish_all(Stage.GENERATE, group)
    job.fetch_all()
    assert engine_of(job).version == (1, 0), "one of them still needs it"
    job.finish_all(Stage.GENERATE, held_out[-1])
    job.fetch_all()
    assert engine_of(job).version == (1, 1)
    job.crash_scheduler()
    job.run_to_the_end()
    assert [(v.version, v.scored) for v in job.state.validations] == [
        (0, 3),
        (2, 3),
        (4, 3),
        (6, 3),
    ]
    assert job.impure() == [] and job.audit().problems == []


def test_the_next_validation_begins_while_the_one_before_is_scored(world: MakeWorld) -> None:
    job = world(steps=2, validation_every=1, max_staleness=2, run_ahead=1.0)
    held_out = [g.id for g in job.state.groups.values() if g.validation is not None]
    step_beside(job, held_out)
    for group in held_out:
        job.finish_all(Stage.RESET, group)
        job.finish_all(Stage.GENERATE, group)
    job.fetch_all()
    assert pinned(job) == {0, 1}
    job.run_to_the_end()
    assert [(v.version, v.scored) for v in job.state.validations] == [(0, 3), (1, 3), (2, 3)]
    assert job.impure() == [] and job.audit().problems == []


def test_an_episode_under_way_may_come_back_to_its_version(world: MakeWorld) -> None:
    graph = StageGraph(interactive=True, scored=True)
    job = world(validation_every=2, max_staleness=2, run_ahead=1.0, graph=graph)
    held_out = [g.id for g in job.state.groups.values() if g.validation is not None]
    for _ in range(60):
        if job.state.published == 1:
            break
        for worker, task in [x for x in job.tasks() if x[1].group not in held_out]:
            job.finish(worker, task, done=task.stage == Stage.STEP)
        job.trainer_turn()
        job.flush()
    for group in held_out:
        job.finish_all(Stage.RESET, group)
        job.finish_all(Stage.GENERATE, group)
    job.fetch_all()
    assert engine_of(job).version == (1, 0), "their steps are not taken yet"
    for group in held_out:
        job.finish_all(Stage.STEP, group, done=True)
    job.fetch_all()
    assert engine_of(job).version == (1, 1)


def test_when_every_engine_has_passed_the_version_the_rest_moves_on(world: MakeWorld) -> None:
    job = world(validation_every=1, max_staleness=2, run_ahead=1.0)
    engine = engine_of(job)
    first = min(g.id for g in job.state.groups.values() if g.validation is not None)
    job.complete(first)
    job.train(2)
    pending = [v.version for v in job.state.validations if not v.finished]
    assert pending, "something is left to be moved"
    job.restart_in_place(engine)  # a new process takes the newest version
    job.fetch_all()
    assert engine.version == (1, 2)
    assert pinned(job) <= {2}
    left = [v for v in job.state.validations if not v.finished]
    assert [v.version for v in left] == [2], "validations that would measure the same are one"
    job.crash_scheduler()
    assert [v.version for v in job.state.validations if not v.finished] == [2]
    job.run_to_the_end()
    assert job.state.finished == "complete" and job.audit().problems == []


def test_a_held_out_sample_that_met_newer_weights_is_generated_again(world: MakeWorld) -> None:
    job = world(steps=2, validation_every=1, max_attempts=1)
    engine = engine_of(job)
    job.finish_all(Stage.RESET)
    held_out = [g for g in job.state.groups.values() if g.validation == 0]
    begun = [job.tasks(Stage.GENERATE, group.id)[0] for group in held_out]
    job.take_version(engine, 1)
    for worker, task in begun:
        job.finish(worker, task)
    units = [group.units[0] for group in held_out]
    assert [(u.life, u.failures, u.stage, u.oldest) for u in units] == [
        (1, 0, "generate", None)
    ] * 3
    job.flush()
    assert pinned(job) == {1}, "nobody holds the version any more"
    for group in held_out:
        job.complete(group.id)
    assert {group.state for group in held_out} == {GroupState.EVALUATED}
    assert [(u.oldest, u.newest) for u in units] == [(1, 1)] * 3
    assert job.impure() == [] and job.audit().problems == []


def test_what_moves_to_another_version_begins_again(world: MakeWorld) -> None:
    graph = StageGraph(interactive=True, scored=True)
    job = world(steps=2, validation_every=1, graph=graph, max_attempts=1)
    engine = engine_of(job)
    job.finish_all(Stage.RESET)
    held_out = [g for g in job.state.groups.values() if g.validation == 0]
    waits, steps, _ = (group.id for group in held_out)  # the third generates
    job.finish_all(Stage.GENERATE, group=steps)
    job.finish_all(Stage.GENERATE, group=waits)
    job.finish_all(Stage.STEP, group=waits)
    job.take_version(engine, 1)
    job.flush()
    assert pinned(job) == {1}
    assert [group.units[0].life for group in held_out] == [1, 1, 1]
    assert [task.stage for group in held_out for _, task in job.tasks(group=group.id)] == [
        "reset"
    ] * 3
    job.crash_scheduler()
    job.run_to_the_end()
    assert job.impure() == []


def test_an_engine_whose_stream_broke_keeps_the_pin_for_its_grace(world: MakeWorld) -> None:
    job = world(validation_every=1, max_staleness=2, run_ahead=1.0, reconnect_grace=5.0)
    old = engine_of(job)
    job.finish_all(Stage.RESET)
    new = job.add_worker("inference", credits=64)
    job.take_version(new, 1)
    job.disconnect(old)
    job.flush()
    assert pinned(job) == {0}, "it may come back with what it holds"
    job.now += 6.0
    job.flush()
    assert pinned(job) == {1}


def test_an_engine_that_fell_silent_keeps_no_pin(world: MakeWorld) -> None:
    """Nothing is given to it, so nobody could ever serve what is left."""
    job = world(steps=2, validation_every=1, max_staleness=2, run_ahead=1.0, no_progress=3.0)
    hung = engine_of(job)
    job.finish_all(Stage.RESET)
    new = job.add_worker("inference", credits=64)
    job.take_version(new, 1)
    job.flush()
    assert pinned(job) == {0}
    hung.hung = True
    for _ in range(22):
        job.now += 1.0
        for worker in job.workers.values():
            job.ping(worker)
        job.flush()
    assert pinned(job) == {1}


def test_a_held_out_sample_that_fails_is_counted_and_not_replaced(world: MakeWorld) -> None:
    job = world(steps=1, validation_every=1, max_attempts=1)
    doomed = next(g for g in job.state.groups.values() if g.validation is not None)
    job.finish_all(group=doomed.id, cause="input")
    assert (doomed.state, doomed.size) == (GroupState.FAILED, 1)
    job.run_to_the_end()
    first = job.state.validations[0]
    assert (first.done, first.scored, first.mean) == (3, 2, 0.5), "a failure is not a zero"
    assert job.state.finished == "complete" and job.audit().problems == []


def test_a_reopened_scheduler_goes_on_with_the_validation(world: MakeWorld) -> None:
    job = world(steps=1, validation_every=1)
    first = min(g.id for g in job.state.groups.values() if g.validation is not None)
    job.complete(first, rewards=[1.0])
    job.crash_scheduler()
    validation = job.state.validations[0]
    assert (validation.groups, validation.done, validation.total_reward) == (3, 1, 1.0)
    job.run_to_the_end()
    assert job.state.validations[0].mean == 2.0 / 3


def test_an_empty_held_out_set_is_done_at_once(world: MakeWorld) -> None:
    job = world(workers=False, steps=1, validation_every=1)
    job.state.data["validation"] = (0, "held-out")
    job.run_to_the_end()
    assert job.state.finished == "complete"
    assert all(v.finished and v.mean is None for v in job.state.validations)
