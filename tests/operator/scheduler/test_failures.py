"""A failure that a worker reports is told while the job runs, once for each kind; none is retried for ever."""

from typing import Any

from roll_operator.scheduler import failures
from roll_operator.scheduler.lifecycle import Cause, Stage, milestone
from roll_operator.scheduler.report import Rate, progress
from roll_operator.scheduler.stages import StageGraph
from support.scheduler_world import MakeWorld, World, engines, environments, kill

WHY = "rewards.py:score raised: rewards.py, line 4: RuntimeError: no"


def fail(job: World, stage: Stage, cause: str, message: str, *, nth: int = 0) -> str:
    """The nth unit of the stage fails; its name."""
    worker, task = job.tasks(stage)[nth]
    failures.failure(
        job.state,
        job.state.workers[worker.id],
        group=task.group,
        index=task.index,
        lease=task.lease,
        cause=cause,
        message=message,
        now=job.now,
    )
    return f"{task.group}.{task.index}"


def told(job: World) -> list[str]:
    return list(progress(job.state, Rate(), job.now).notices)


def test_the_first_failure_of_a_reward_is_told_with_its_message(world: MakeWorld) -> None:
    job = world(groups_per_step=1, group_size=4, max_attempts=3)
    job.finish_all(Stage.RESET)
    job.finish_all(Stage.GENERATE)
    first = fail(job, Stage.SCORE, "input", WHY)
    assert told(job) == [
        f"score of sample {first} failed (try 1 of 3): {WHY}; `roll samples RUN --id {first}` tells more"
    ]
    fail(job, Stage.SCORE, "input", "another", nth=1)
    assert len(told(job)) == 1, "one note of a kind"
    fail(job, Stage.SCORE, "timeout", "rewards.py:score did not end within 2 s", nth=2)
    assert "did not end within 2 s" in told(job)[1]


def test_the_reset_of_a_group_is_told_without_a_samples_story(world: MakeWorld) -> None:
    job = world(groups_per_step=1, group_size=1)
    name = fail(job, Stage.RESET, "input", "no such row")
    group = name.partition(".")[0]
    assert told(job) == [f"reset of group {group} failed (try 1 of 3): no such row"]


def test_an_episode_that_begins_again_is_no_news(world: MakeWorld) -> None:
    job = world(groups_per_step=1, group_size=1)
    fail(job, Stage.RESET, "replay", "the replay differs")
    assert told(job) == []


def without_replay(world: MakeWorld, **chosen: Any) -> World:
    """Episodes of two turns, in an environment that cannot make one again that was lost."""
    graph = StageGraph(interactive=True, scored=False)
    job = world(**{"groups_per_step": 1, "graph": graph, "max_attempts": 3} | chosen)
    job.replays = False
    return job


def test_an_action_that_always_raises_ends_its_sample_where_no_episode_can_be_replayed(
    world: MakeWorld,
) -> None:
    """Each new life begins well; what counts is that it never gets past where the one before ended."""
    job = without_replay(world, steps=1, group_size=2)
    first = min(job.state.groups)
    job.raises.add((first, 0, 1))
    job.run_to_the_end(turns=100)
    assert job.state.finished == "complete"
    story = job.ledger.reader.execute("SELECT stage, attempt, cause FROM failures").fetchall()
    assert story == [("step", 1, "input"), ("step", 2, "replay"), ("step", 3, "input")]
    assert job.state.counters["failed.input"] == 1 and job.audit().problems == []


def test_what_failed_in_an_earlier_life_survives_the_scheduler(world: MakeWorld) -> None:
    job = without_replay(world, steps=1, group_size=1)
    unit = job.state.groups[min(job.state.groups)].units[0]
    job.raises.add((*unit.key, 0))
    while unit.life == 0:
        job.fair_turn()
    before = unit.failures, unit.hurdle
    job.finish_all(Stage.RESET)
    job.crash_scheduler()
    again = job.state.groups[unit.group.id].units[0]
    assert (again.failures, again.hurdle) == before == (2, milestone(Stage.STEP, 0))


def test_an_episode_that_gets_past_where_it_failed_is_forgiven(world: MakeWorld) -> None:
    job = without_replay(world, steps=1, group_size=1)
    unit = job.state.groups[min(job.state.groups)].units[0]
    job.raises.add((*unit.key, 0))
    while unit.life == 0:
        job.fair_turn()
    job.raises.clear()
    while unit.turn == 0:
        assert unit.failures == 2
        job.fair_turn()
    assert (unit.failures, unit.hurdle) == (0, 0)


def test_a_step_that_kills_its_environment_ends_alone_where_no_episode_can_be_replayed(
    world: MakeWorld,
) -> None:
    """A suspect keeps its small company through its next lives, also between turns, and in no other pool."""
    job = without_replay(world, groups_per_step=8, group_size=2, steps=1)
    poison = (min(job.state.groups), 1)
    shared = []
    for _ in range(200):
        if job.state.finished:
            break
        for keeper in environments(job):
            steps = [t for t in keeper.held.values() if t.at_home and t.turn == 1]
            if any((t.group, t.index) == poison for t in steps):
                shared.append(len(keeper.held))
                kill(job, keeper)
        for engine in engines(job):
            assert not job.state.workers[engine.id].company
        job.fair_turn()
    assert job.state.finished == "complete"
    assert shared == [16, 2, 1]
    assert {n: c for n, c in job.state.counters.items() if n.startswith("failed")} == {
        "failed.infrastructure": 1
    }
    assert job.audit().problems == []


def test_an_environment_that_keeps_a_suspects_episode_takes_few_others_after_a_crash_too(
    world: MakeWorld,
) -> None:
    job = without_replay(world, groups_per_step=8, group_size=2, steps=1)
    job.finish_all(Stage.RESET)
    job.finish_all(Stage.GENERATE)
    (first,) = environments(job)
    kill(job, first)
    keeper = job.add_worker("environment", credits=64)
    while not keeper.residents:
        job.finish_all(Stage.STEP)
        job.finish_all(Stage.RESET)
    assert job.state.workers[keeper.id].company == 2
    job.crash_scheduler()
    job.connect(keeper)
    assert job.state.workers[keeper.id].company == 2


def test_failures_are_not_forgotten_when_the_worker_of_an_earlier_turn_dies(
    world: MakeWorld,
) -> None:
    """The new life is a suspect for the engine's death, at its first turn; it failed at its second."""
    job = without_replay(world, steps=1, group_size=2)
    unit = job.state.groups[min(job.state.groups)].units[0]
    job.raises.add((*unit.key, 1))
    while not unit.life:
        job.fair_turn()
    counted = unit.failures
    while unit.lease is None or unit.lease.stage != Stage.GENERATE:
        job.fair_turn()
    failures.suspect(job.state, unit.lease, 16, Cause.INFRASTRUCTURE, job.now)
    job.flush()
    assert unit.company_in("policy") == 2
    job.finish_all(Stage.GENERATE)
    assert unit.failures == counted and unit.hurdle >= milestone(Stage.STEP, 1)
    job.run_to_the_end(turns=100)
    assert job.state.finished == "complete" and job.state.counters["failed.input"] == 1
