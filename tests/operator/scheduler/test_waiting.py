"""A step that waits for one long sample says so, with the staleness that would hide it; unless something died."""

from collections.abc import Callable

import pytest
from support.scheduler_world import MakeWorld, World


def held_up(world: MakeWorld, *, by: Callable[[World], None] = lambda _: None) -> World:
    """One group does not get on, for far longer than a step takes."""
    job = world(steps=50, max_staleness=2)
    job.train(5)
    slow = min(job.state.groups)
    by(job)
    for _ in range(30):
        job.fair_turn(skip=slow)
    return job


def test_a_long_sample_is_told_and_forgotten_a_minute_later(world: MakeWorld) -> None:
    job = held_up(world)
    assert "would hide such a sample" in job.state.notices["waiting"]
    for _ in range(62):
        job.fair_turn()
    assert "waiting" not in job.state.notices


@pytest.mark.parametrize("death", ["inference", "scheduler"])
def test_a_wait_after_a_death_needs_no_advice(world: MakeWorld, death: str) -> None:
    def kill(job: World) -> None:
        if death == "scheduler":
            job.crash_scheduler()
            return
        for worker in [w for w in job.workers.values() if w.role == death]:
            job.kill_worker(worker)

    assert "waiting" not in held_up(world, by=kill).state.notices
