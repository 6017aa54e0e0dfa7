"""What may start: worked by hand from (T-1)B + i <= (v+1+A)B and T <= w+1+S."""

from __future__ import annotations

import pytest
from roll_operator.scheduler import admission, groups, training
from roll_operator.scheduler.lifecycle import Stage
from support.scheduler_world import MakeWorld, World


def admitted(world: World) -> list[tuple[int, int]]:
    live = [g for g in world.state.groups.values() if g.validation is None]
    return sorted((g.step, g.slot) for g in live)


@pytest.mark.parametrize(
    ("staleness", "ahead", "expected"),
    [
        (0, 0.0, [(1, 1), (1, 2), (1, 3), (1, 4)]),
        (1, 0.25, [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1)]),
        (1, 0.5, [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2)]),
        (1, 0.7, [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2)]),  # 2.8 slots are 2
        (3, 1.0, [(step, slot) for step in (1, 2) for slot in (1, 2, 3, 4)]),
        (3, 1.5, [(s, i) for s in (1, 2, 3) for i in (1, 2, 3, 4) if (s, i) < (3, 3)]),
    ],
)
def test_at_version_0_run_ahead_counts_the_slots(
    world: MakeWorld, staleness: int, ahead: float, expected: list[tuple[int, int]]
) -> None:
    job = world(groups_per_step=4, group_size=1, max_staleness=staleness, run_ahead=ahead)
    assert admitted(job) == expected


def test_a_third_of_a_batch_is_not_lost_to_rounding(world: MakeWorld) -> None:
    job = world(groups_per_step=3, group_size=1, max_staleness=1, run_ahead=1 / 3)
    assert admitted(job) == [(1, 1), (1, 2), (1, 3), (2, 1)]


def test_nothing_starts_before_version_0(world: MakeWorld) -> None:
    job = world(workers=False)
    for role in ("environment", "reward", "inference"):
        job.add_worker(role, credits=64)
    job.start_trainer()
    job.flush()
    assert job.state.published is None and admitted(job) == []
    assert admission.next_slot(job.state) is None
    job.begin()
    assert admitted(job) == [(1, 1), (1, 2)]


def test_no_engine_at_the_version_no_admission(world: MakeWorld) -> None:
    job = world(workers=False)
    job.add_worker("environment", credits=64)
    engine = job.add_worker("inference", credits=64)
    job.start_trainer()
    while job.state.published is None:
        job.trainer_turn()
        job.flush()
    assert engine.offered == (1, 0) and engine.version is None
    assert admission.next_slot(job.state) == (1, 1)
    assert not admission.has_credit(job.state, 1) and admitted(job) == []
    job.fetch_all()
    assert admitted(job) == [(1, 1), (1, 2)]


def test_credit_of_engines_bounds_admission(world: MakeWorld) -> None:
    job = world(workers=False, groups_per_step=8, group_size=2)
    job.add_worker("environment", credits=64)
    job.add_worker("inference", credits=5)
    job.start_trainer()
    job.begin()
    # The third group would need credits 5 and 6; it starts while one is free, and one sample waits.
    assert admitted(job) == [(1, 1), (1, 2), (1, 3)]
    job.finish_all(Stage.RESET)
    assert len(job.tasks(Stage.GENERATE)) == 5
    assert job.state.pool("policy").queued == 1
    assert not admission.has_credit(job.state, 1)


def test_credit_of_environments_bounds_admission(world: MakeWorld) -> None:
    job = world(workers=False, groups_per_step=8)
    job.add_worker("environment", credits=3)
    job.add_worker("inference", credits=64)
    job.start_trainer()
    job.begin()
    assert admitted(job) == [(1, 1), (1, 2), (1, 3)]


def test_an_old_engine_has_credit_only_for_the_steps_its_version_allows(world: MakeWorld) -> None:
    job = world(workers=False, max_staleness=1, run_ahead=1.0, steps=9)
    for role in ("environment", "reward", "inference"):
        job.add_worker(role, credits=64)
    job.start_trainer()
    job.begin()
    job.train(2)
    old = next(w for w in job.state.workers.values() if w.role == "inference")
    pool = job.state.pool("policy")
    for version, allowed in ((0, [1, 2]), (1, [1, 2, 3]), (2, [1, 2, 3, 4])):
        old.version = version
        pool.offer(old)
        assert [step for step in range(1, 7) if admission.has_credit(job.state, step)] == allowed


def test_steps_with_a_batch_take_no_more_groups(world: MakeWorld) -> None:
    job = world(max_staleness=2, run_ahead=1.0)
    job.train(2)
    assert job.state.first_open_step == 3
    assert admitted(job) and min(admitted(job)) >= (3, 1)


def test_no_group_starts_beyond_the_last_step(world: MakeWorld) -> None:
    job = world(steps=2, max_staleness=3, run_ahead=3.0)
    assert admitted(job) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert admission.next_slot(job.state) is None


def test_a_freed_slot_is_the_next_to_be_filled(world: MakeWorld) -> None:
    job = world(
        groups_per_step=3, max_staleness=2, run_ahead=1.0, max_replacements=0, max_attempts=1
    )
    first = next(g for g in job.state.groups.values() if (g.step, g.slot) == (1, 2))
    cursor = job.state.cursor
    worker, task = next(t for t in job.tasks(Stage.RESET) if t[1].group == first.id)
    job.finish(worker, task, cause="input")
    groups.settle(job.state, job.now)
    assert admission.next_slot(job.state) == (1, 2)
    job.flush()
    held = job.state.slots.of(1)[2]
    assert held.id != first.id and held.position == cursor, "the cursor never goes back"


@pytest.mark.parametrize("why", ["ending", "finished", "error"])
def test_a_job_that_ends_admits_nothing(world: MakeWorld, why: str) -> None:
    job = world(max_staleness=1, run_ahead=0.5)
    assert admission.next_slot(job.state) is None  # full
    job.train(1)
    job.state.slots.release(next(g for g in job.state.groups.values()))
    assert admission.next_slot(job.state) is not None
    setattr(job.state, why, "because")
    assert admission.next_slot(job.state) is None


def test_a_new_version_makes_room_for_one_more_batch(world: MakeWorld) -> None:
    job = world(max_staleness=0)
    assert admitted(job) == [(1, 1), (1, 2)]
    for group in list(job.state.groups):
        job.complete(group)
    assert training.acquire(*job.seat(), 1, job.now) is None
    job.flush()
    assert job.state.formed == 1 and admission.next_slot(job.state) is None
    training.report(*job.seat(), 1, "{}", job.now)
    job.trainer.step, job.trainer.published = 1, False  # type: ignore[union-attr]
    job.trainer_turn()
    job.flush()
    assert job.state.published == 1 and admitted(job) == []  # the engine is not there yet
    job.fetch_all()
    assert admitted(job) == [(2, 1), (2, 2)]
