"""What a worker's word is worth, under a lease, and while it keeps an episode."""

from __future__ import annotations

from typing import Any

import pytest
from roll_operator.scheduler import arrivals, failures, flow, leases, presence, record
from roll_operator.scheduler.lifecycle import GroupState, Stage
from roll_operator.scheduler.presence import Greeting
from roll_operator.scheduler.stages import StageGraph
from support.scheduler_dump import dump
from support.scheduler_roles import Said, message
from support.scheduler_world import (
    Held,
    MakeWorld,
    SimWorker,
    World,
    engines,
    environments,
    kill,
    start,
)

EPISODES = StageGraph(interactive=True, scored=False)


def outcome(task: Held, **changed: Any) -> Said:
    said = Said(
        task.group, task.index, task.lease, task.turn, b"x", tokens=2, oldest=0, newest=0, lineage=1
    )
    return said._replace(**changed)


def result(job: World, worker: SimWorker, task: Held, **changed: Any) -> int:
    stage = str(changed.pop("stage", task.stage))
    said = message(stage, [outcome(task, **changed)])
    arrivals.results(job.state, job.state.workers[worker.id], said, job.now)
    return job.state.out.acks[worker.id].verdicts[-1]


@pytest.mark.parametrize(
    ("changed", "failures"),
    [
        ({}, None),
        ({"lease": 1 << 40 | 999}, 0),
        ({"idx": 7}, 0),
        ({"group": 99}, 0),
        ({"turn": 1}, 0),
        ({"stage": "score"}, 0),
        ({"oldest": None}, 1),  # sampled tokens without their version
        ({"lineage": 7}, 1),
        ({"base": 3}, 1),  # builds on tokens that are not on record
    ],
)
def test_a_result_is_stored_only_on_its_own_lease(
    world: MakeWorld, changed: dict[str, object], failures: int | None
) -> None:
    job = world(groups_per_step=1, group_size=1)
    job.finish_all(Stage.RESET)
    ((worker, task),) = job.tasks(Stage.GENERATE)
    unit = leases.find(job.state, task.group, task.index)
    assert unit is not None
    verdict = result(job, worker, task, **changed)
    if failures is None:
        assert verdict == leases.STORED and len(record.parts_of(unit)) == 1
        assert result(job, worker, task, reward=9.0) == leases.DUPLICATE
        assert len(record.parts_of(unit)) == 1
    else:
        assert verdict == leases.FENCED
        assert record.parts_of(unit) == [] and unit.failures == failures


def test_one_bad_result_in_a_message_does_not_touch_the_others(world: MakeWorld) -> None:
    """Of two equal jobs one gets a message at a time, the other a message for each of its results."""
    told: list[tuple[object, object]] = []
    for together in (True, False):
        job = world(groups_per_step=2, group_size=4)
        job.finish_all(Stage.RESET)
        (engine,) = engines(job)
        said = [outcome(task) for _, task in job.tasks(Stage.GENERATE)]
        said[2] = said[2]._replace(lineage=7)
        said[3] = said[1]
        said[5] = said[5]._replace(lease=1 << 40 | 999)
        known = job.state.workers[engine.id]
        for some in [said] if together else [[one] for one in said]:
            arrivals.results(job.state, known, message(Stage.GENERATE, some), job.now)
        verdicts = job.state.out.acks[engine.id].verdicts
        job.flush()
        told.append((verdicts, dump(job.state)))
    stored, fenced = leases.STORED, leases.FENCED
    assert told[0][0] == [stored, stored, fenced, leases.DUPLICATE, stored, fenced, stored, stored]
    assert told[0] == told[1]


def test_a_message_of_good_results_is_stored_as_each_of_them_would_be(world: MakeWorld) -> None:
    told = []
    for together in (True, False):
        job = world(groups_per_step=2, group_size=4)
        for stage in (Stage.RESET, Stage.GENERATE, Stage.SCORE):
            worker = job.tasks(stage)[0][0]
            reward = None if stage == Stage.RESET else 0.5
            said = [
                outcome(task, reward=reward, tokens=2 * (n % 2))  # a turn may add no token
                if stage == Stage.GENERATE
                else Said(task.group, task.index, task.lease, 0, b"s", reward=reward)
                for n, (_, task) in enumerate(job.tasks(stage))
            ]
            assert len(said) == (2 if stage == Stage.RESET else 8)
            known = job.state.workers[worker.id]
            if together:
                arrivals.results(job.state, known, message(stage, said), job.now)
            else:
                for group, index, lease, turn, payload, *rest in said:
                    flow.result(
                        job.state, known, group, index, lease, stage, turn, payload, job.now, *rest
                    )
            job.flush()
        assert known.load == len(known.leases) == 0
        told.append(dump(job.state))
    assert told[0] == told[1]


def test_tokens_older_than_the_step_allows_are_refused(world: MakeWorld) -> None:
    job = world(max_staleness=0)
    job.train(1)
    job.fetch_all()
    job.finish_all(Stage.RESET)
    worker, task = job.tasks(Stage.GENERATE)[0]
    unit = leases.find(job.state, task.group, task.index)
    assert unit is not None and task.min_version == 1
    known = job.state.workers[worker.id]
    flow.progress(job.state, known, lease=task.lease, tokens=3, now=job.now, partial=b"old",
                  partial_tokens=3, oldest=0, newest=1)  # fmt: skip
    assert unit.kept == 0 and record.parts_of(unit) == [], "nor does a partial bring them in"
    assert result(job, worker, task, oldest=0, newest=1) == leases.FENCED
    assert unit.failures == 1 and "version 0 are too old" in job.state.last_failure


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_a_failure_and_not_a_zero(
    world: MakeWorld, reward: float | None
) -> None:
    job = world(groups_per_step=1, group_size=1, max_attempts=1, max_replacements=0)
    job.finish_all(Stage.RESET)
    job.finish_all(Stage.GENERATE)
    ((worker, task),) = job.tasks(Stage.SCORE)
    verdict = result(job, worker, task, tokens=0, oldest=None, newest=None, reward=reward)
    assert verdict == leases.FENCED
    group = job.state.groups[task.group]
    job.flush()
    assert (group.state, group.cause) == (GroupState.FAILED, "input")
    assert all(u.reward is None for u in group.units)


def test_a_partial_is_kept_when_its_worker_dies(world: MakeWorld) -> None:
    job = start(world(workers=False, groups_per_step=1, group_size=1))
    job.finish_all(Stage.RESET)
    ((worker, task),) = job.tasks(Stage.GENERATE)
    job.send_partial(worker, task, 3, again=True)
    job.flush()
    kill(job, worker)
    job.add_worker("inference")
    job.fetch_all()
    ((_, again),) = job.tasks(Stage.GENERATE)
    assert again.kept == 3 and again.lease != task.lease
    unit = leases.find(job.state, task.group, task.index)
    assert unit is not None and [p.partial for p in record.parts_of(unit)] == [True]


def test_a_sample_that_waits_in_its_engine_does_not_time_out(world: MakeWorld) -> None:
    job = world(groups_per_step=1, group_size=2, no_progress=10.0)
    job.finish_all(Stage.RESET)
    (engine, waits), (_, hangs) = job.tasks(Stage.GENERATE)
    known, began = job.state.workers[engine.id], job.state.last_progress
    for _ in range(8):
        job.now += 2.5
        flow.progress(job.state, known, lease=waits.lease, tokens=0, now=job.now, waiting=True)
        flow.progress(job.state, known, lease=hangs.lease, tokens=7, now=job.now)
        job.flush()
    assert waits.lease in known.leases and hangs.lease not in known.leases
    assert job.state.leases[waits.lease].tokens == 0
    assert job.state.last_progress == began + 2.5, (
        "of the seven tokens: nothing moves while it waits"
    )


def test_a_sample_that_starts_over_at_new_weights_is_alive(world: MakeWorld) -> None:
    """`partial: Discard`: its count of tokens begins again."""
    job = world(groups_per_step=1, group_size=1, no_progress=10.0)
    job.finish_all(Stage.RESET)
    ((engine, task),) = job.tasks(Stage.GENERATE)
    for tokens in (500, 3, 6):
        job.now += 6.0
        known = job.state.workers[engine.id]
        flow.progress(job.state, known, lease=task.lease, tokens=tokens, now=job.now)
        job.flush()
    assert task.lease in job.state.leases


# Episodes.


def play(job: World) -> tuple[SimWorker, SimWorker, tuple[int, int]]:
    """Two environments, one of which keeps the one episode; its first action is being generated."""
    job.finish_all(Stage.RESET)
    ((_, task),) = job.tasks(Stage.GENERATE)
    keeper = next(w for w in environments(job) if w.residents)
    other = next(w for w in environments(job) if w is not keeper)
    return keeper, other, (task.group, task.index)


def episodes(world: MakeWorld, **chosen: object) -> World:
    return start(
        world(workers=False, graph=EPISODES, groups_per_step=1, group_size=1,
              **({"reconnect_grace": 5.0} | chosen)),
        environment=[1, 1],
    )  # fmt: skip


def test_a_step_goes_to_the_worker_that_keeps_the_episode(world: MakeWorld) -> None:
    job = episodes(world)
    keeper, other, _ = play(job)
    for turn in range(4):
        known = job.state.workers[keeper.id]
        assert (known.load, known.free, len(known.leases)) == (1, 0, 0), "the credit is kept"
        job.finish_all(Stage.GENERATE)
        ((worker, task),) = job.tasks(Stage.STEP)
        assert worker is keeper and task.turn == turn
        job.finish(worker, task)
        job.flush()
    assert other.sent == []


def test_the_credit_is_free_when_the_episode_is_over(world: MakeWorld) -> None:
    job = episodes(world)
    keeper, _, _ = play(job)
    job.finish_all(Stage.GENERATE)
    job.finish_all(Stage.STEP, done=True)
    known = job.state.workers[keeper.id]
    assert known.load == 0 and not known.residents and not keeper.residents


def test_a_lost_keepers_episode_goes_on_elsewhere(world: MakeWorld) -> None:
    job = episodes(world)
    keeper, other, unit = play(job)
    kill(job, keeper)
    job.finish_all(Stage.GENERATE)
    ((worker, task),) = job.tasks(Stage.STEP)
    assert worker is other and (task.group, task.index) == unit and task.turn == 0


def test_a_step_waits_for_a_keeper_whose_stream_broke(world: MakeWorld) -> None:
    job = episodes(world)
    keeper, _, _ = play(job)
    job.disconnect(keeper)
    job.finish_all(Stage.GENERATE)
    assert job.tasks(Stage.STEP) == [], "within the grace nobody replays it"
    job.now += 2.0
    job.connect(keeper)
    ((worker, _),) = job.tasks(Stage.STEP)
    assert worker is keeper


def test_after_the_grace_the_step_goes_elsewhere_and_the_late_keeper_is_told(
    world: MakeWorld,
) -> None:
    job = episodes(world)
    keeper, other, _ = play(job)
    job.disconnect(keeper)
    job.finish_all(Stage.GENERATE)
    job.now += 6.0
    job.flush()
    ((worker, task),) = job.tasks(Stage.STEP)
    assert worker is other
    job.connect(keeper)
    assert keeper.residents == {}, "its episode is not the newest any more"
    assert job.state.workers[keeper.id].load == 0
    job.finish(worker, task)
    job.flush()
    assert job.state.workers[keeper.id].load == 0


def test_a_keeper_finds_its_episode_again_after_a_scheduler_crash(world: MakeWorld) -> None:
    job = episodes(world)
    keeper, other, _ = play(job)
    job.finish_all(Stage.GENERATE)
    ((_, task),) = job.tasks(Stage.STEP)
    # The Assign is lost with the scheduler: only the episode itself is left at the worker.
    keeper.held.clear()
    keeper.residents[task.group, task.index] = next(
        o.task for o in keeper.sent if o.task.stage == Stage.RESET
    )
    job.crash_scheduler()
    job.connect(other)
    job.connect(keeper)
    ((worker, again),) = job.tasks(Stage.STEP)
    assert worker is keeper and again.lease != task.lease


def test_an_episode_is_not_believed_to_live_where_none_are_played(world: MakeWorld) -> None:
    job = episodes(world)
    keeper, _, _ = play(job)
    job.finish_all(Stage.GENERATE)
    ((_, task),) = job.tasks(Stage.STEP)
    keeper.held.clear()
    engine = next(w for w in job.workers.values() if w.role == "inference")
    engine.residents[task.group, task.index] = next(
        o.task for o in keeper.sent if o.task.stage == Stage.RESET
    )
    job.crash_scheduler()
    job.connect(engine)
    unit = leases.find(job.state, task.group, task.index)
    assert unit is not None and unit.resident == ""


def test_a_returned_step_is_not_given_to_the_one_that_drains(world: MakeWorld) -> None:
    job = episodes(world)
    keeper, other, _ = play(job)
    job.finish_all(Stage.GENERATE)
    presence.credit(job.state, job.state.workers[keeper.id], 0)
    ((_, task),) = job.tasks(Stage.STEP)
    job.finish(keeper, task, cause="returned")
    job.flush()
    ((worker, again),) = job.tasks(Stage.STEP)
    assert worker is other and again.turn == task.turn
    unit = leases.find(job.state, task.group, task.index)
    assert unit is not None and unit.failures == 0


def test_steps_that_hang_together_go_on_at_another_worker(world: MakeWorld) -> None:
    """Neither is the only one that hung, so no attempt is counted; but their keeper does not get them back."""
    job = start(
        world(workers=False, graph=EPISODES, groups_per_step=1, group_size=2, no_progress=30.0)
    )
    job.finish_all(Stage.RESET)
    (keeper,) = environments(job)
    other = job.add_worker("environment", credits=64)
    job.finish_all(Stage.GENERATE)
    assert [worker for worker, _ in job.tasks(Stage.STEP)] == [keeper, keeper]
    keeper.hung = True
    for _ in range(31):
        job.now += 1.0
        job.ping(other)
        job.flush()
    assert [worker for worker, _ in job.tasks(Stage.STEP)] == [other], "suspects: one at a time"
    job.finish_all(Stage.STEP, done=True)
    assert [worker for worker, _ in job.tasks(Stage.STEP)] == [other]
    job.finish_all(Stage.STEP, done=True)
    known = job.state.workers[keeper.id]
    assert known.load == 0 and not known.residents and not keeper.residents
    assert job.state.counters["failures.timeout"] == 0


def test_a_step_is_not_given_to_a_keeper_that_fell_silent(world: MakeWorld) -> None:
    job = episodes(world)
    keeper, other, _ = play(job)
    keeper.hung = True
    job.now += 21.0
    for worker in job.workers.values():
        job.ping(worker)
    job.flush()
    job.finish_all(Stage.GENERATE)
    ((worker, _),) = job.tasks(Stage.STEP)
    assert worker is other and keeper.residents == {}


def test_a_replay_that_differs_starts_the_episode_again(world: MakeWorld) -> None:
    job = episodes(world)
    _, _, key = play(job)
    job.finish_all(Stage.GENERATE)
    job.finish_all(Stage.STEP)
    job.finish_all(Stage.GENERATE)
    unit = leases.find(job.state, *key)
    assert unit is not None and len(record.parts_of(unit)) == 4 and unit.turn == 1
    job.finish_all(Stage.STEP, cause="replay")
    assert (unit.life, unit.turn, record.parts_of(unit), unit.oldest) == (1, 0, [], None)
    ((_, task),) = job.tasks(Stage.RESET)
    assert (task.group, task.index) == key
    assert unit.failures == 1, "a replay that differs is an attempt"
    assert unit.resident == "" and all(w.load <= 1 for w in job.state.workers.values())
    job.run_to_the_end()
    assert job.state.finished == "complete" and job.audit().problems == []


def test_a_late_result_of_an_earlier_life_is_fenced(world: MakeWorld) -> None:
    """Even by a scheduler that opened since and would adopt a lease it does not know."""
    job = episodes(world)
    _, _, key = play(job)
    ((engine, old),) = job.tasks(Stage.GENERATE)
    job.finish_all(Stage.GENERATE)
    job.finish_all(Stage.STEP, cause="replay")
    job.finish_all(Stage.RESET)
    job.crash_scheduler()
    job.connect(engine)
    unit = leases.find(job.state, *key)
    assert unit is not None and (unit.life, unit.stage, unit.turn) == (1, Stage.GENERATE, 0)
    assert result(job, engine, old) == leases.FENCED
    assert len(record.parts_of(unit)) == 1


def test_another_workers_lease_is_no_right_to_speak(world: MakeWorld) -> None:
    job = start(world(workers=False, groups_per_step=1, group_size=1), inference=[4, 4])
    job.finish_all(Stage.RESET)
    ((worker, task),) = job.tasks(Stage.GENERATE)
    thief = next(w for w in engines(job) if w is not worker)
    assert result(job, thief, task) == leases.FENCED
    known = job.state.workers[thief.id]
    flow.progress(job.state, known, lease=task.lease, tokens=9, now=job.now, partial=b"p",
                  partial_tokens=9, oldest=0, newest=0)  # fmt: skip
    said = {"group": task.group, "index": task.index, "lease": task.lease, "message": ""}
    assert failures.failure(job.state, known, cause="input", now=job.now, **said) == leases.FENCED
    unit = leases.find(job.state, task.group, task.index)
    assert unit is not None and record.parts_of(unit) == [] and unit.failures == 0
    assert result(job, worker, task) == leases.STORED


def test_a_lease_of_a_stage_that_the_worker_does_not_serve_is_not_adopted(world: MakeWorld) -> None:
    """A scheduler that has just opened knows no leases: it takes no reward worker for an engine."""
    job = world(groups_per_step=1, group_size=1)
    job.finish_all(Stage.RESET)
    ((engine, task),) = job.tasks(Stage.GENERATE)
    scorer = next(w for w in job.workers.values() if w.role == "reward")
    job.crash_scheduler()
    scorer.held[task.lease] = task
    job.connect(scorer)
    assert task.lease not in scorer.held and task.lease not in job.state.leases
    assert result(job, scorer, task) == leases.FENCED
    job.connect(engine)
    assert result(job, engine, task) == leases.STORED


def test_a_worker_of_another_release_is_refused_in_one_sentence(world: MakeWorld) -> None:
    job = world(workers=False)
    greeting = Greeting("old/1", "engine-0", "old", "inference", "policy", 4, protocol=0)
    assert presence.hello(job.state, greeting, job.now) is None
    reason, why = job.state.out.refused["old/1"]
    assert reason == "protocol"
    assert why == "engine-0 speaks protocol 1, this scheduler 3: use images of one release"
