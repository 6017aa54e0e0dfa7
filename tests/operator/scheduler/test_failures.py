"""A failure that a worker reports is told while the job runs, once for each kind."""

from roll_operator.scheduler import failures
from roll_operator.scheduler.lifecycle import Stage
from roll_operator.scheduler.report import Rate, progress
from support.scheduler_world import MakeWorld, World

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
