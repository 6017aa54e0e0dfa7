"""Who gets a unit: credits, load, rotation, and suspects."""

from __future__ import annotations

from collections import Counter

from roll_operator.scheduler import failures, flow, leases, presence
from roll_operator.scheduler.lifecycle import SampleState, Stage
from roll_operator.scheduler.stages import StageGraph
from support.scheduler_world import MakeWorld, engines, kill, start

EPISODES = StageGraph(interactive=True, scored=False)


def test_no_worker_ever_holds_more_than_its_credits(world: MakeWorld) -> None:
    job = start(
        world(workers=False, groups_per_step=8, group_size=4, max_staleness=1, run_ahead=1.0),
        inference=[1, 2, 3], environment=[2, 1], reward=[1],
    )  # fmt: skip
    full = 0
    for _ in range(60):
        for worker in job.state.workers.values():
            if worker.role != "trainer":
                assert worker.load <= worker.credits
                full += worker.load == worker.credits
        job.fair_turn()
    assert full > 10, "credits never were the limit: the test shows nothing"


def test_a_credit_taken_back_stops_new_work(world: MakeWorld) -> None:
    job = world(max_staleness=1, run_ahead=1.0)
    job.finish_all(Stage.RESET)
    engine = job.state.workers[engines(job)[0].id]
    held = engine.load
    presence.credit(job.state, engine, 0)
    job.finish_all(Stage.GENERATE)
    assert held == 8 and engine.load == 0
    assert not job.tasks(Stage.GENERATE)


def test_the_least_loaded_worker_is_next(world: MakeWorld) -> None:
    job = start(world(workers=False, groups_per_step=6, group_size=2), inference=[64, 64, 64])
    job.finish_all(Stage.RESET)
    assert sorted(len(w.held) for w in engines(job)) == [4, 4, 4]


def test_the_samples_of_a_group_share_a_worker(world: MakeWorld) -> None:
    job = start(world(workers=False, groups_per_step=3, group_size=4), inference=[64, 64, 64])
    job.finish_all(Stage.RESET)
    assert [len({t.group for t in w.held.values()}) for w in engines(job)] == [1, 1, 1]


def test_equals_take_turns(world: MakeWorld) -> None:
    job = start(
        world(workers=False, groups_per_step=1, group_size=1, steps=12), inference=[4, 4, 4]
    )
    served: Counter[str] = Counter()
    for _ in range(200):
        if job.state.finished:
            break
        served.update(w.name for w, t in job.tasks(Stage.GENERATE))
        job.fair_turn()
    assert sum(served.values()) == 12
    assert max(served.values()) - min(served.values()) <= 1 and len(served) == 3


def test_a_next_turn_goes_before_a_new_sample(world: MakeWorld) -> None:
    job = start(
        world(workers=False, graph=EPISODES, groups_per_step=2, group_size=1, max_staleness=1,
              run_ahead=1.0),
        inference=[1],
    )  # fmt: skip
    job.finish_all(Stage.RESET)
    (worker, first), *_ = job.tasks(Stage.GENERATE)
    job.finish(worker, first)
    job.flush()
    step = next(t for t in job.tasks(Stage.STEP) if t[1].group == first.group)
    # The engine has taken another sample; that one and the next turn now wait for its one credit.
    job.finish(*step)
    job.finish_all(Stage.GENERATE)
    assert [(t.group, t.turn) for _, t in job.tasks(Stage.GENERATE)] == [(first.group, 1)]


def test_a_validation_goes_only_to_engines_at_exactly_its_version(world: MakeWorld) -> None:
    job = start(world(workers=False, validation_every=2, max_staleness=2, run_ahead=1.0),
                inference=[64, 64])  # fmt: skip
    slow, fast = engines(job)
    job.take_version(fast, 1)
    job.finish_all(Stage.RESET)
    assert [t.validation for t in slow.held.values()].count(True) == 3
    assert [t.validation for t in fast.held.values()].count(True) == 0
    assert fast.held, "it has credit, and takes training samples"


# Suspects.


def test_company_shrinks_until_a_suspect_is_alone(world: MakeWorld) -> None:
    """128 share the first death, then an eighth of that, down to one."""
    job = start(
        world(workers=False, groups_per_step=16, group_size=8, max_attempts=2), inference=[128]
    )
    job.finish_all(Stage.RESET)
    poison = leases.find(job.state, min(job.state.groups), 3)
    assert poison is not None
    shared = []
    while poison.failures == 0:
        (engine,) = engines(job)
        if any((t.group, t.index) == poison.key for t in engine.held.values()):
            shared.append(len(engine.held))
            kill(job, engine)
            job.add_worker("inference", credits=128)
            job.fetch_all()
        else:
            job.finish_all(Stage.GENERATE)
    assert shared == [128, 16, 2, 1]
    assert all(
        u.failures == 0 for g in job.state.groups.values() for u in g.units if u is not poison
    )


def test_a_solo_crash_is_counted(world: MakeWorld) -> None:
    job = start(world(workers=False, groups_per_step=1, group_size=1, max_attempts=2))
    job.finish_all(Stage.RESET)
    (engine,) = engines(job)
    unit = next(iter(job.state.leases.values())).unit
    kill(job, engine)
    assert (unit.failures, unit.state) == (1, SampleState.WAITING)
    job.add_worker("inference")
    job.fetch_all()
    kill(job, engines(job)[0])
    assert (unit.state, unit.cause) == (SampleState.FAILED, "infrastructure")


def test_a_poison_prompt_ends_alone_and_its_neighbours_survive(world: MakeWorld) -> None:
    job = start(
        world(workers=False, steps=3, groups_per_step=4, group_size=4, max_attempts=2,
              max_replacements=1),
        inference=[16],
    )  # fmt: skip
    job.finish_all(Stage.RESET)
    poison = (min(job.state.groups), 2)
    killed = 0
    for _ in range(300):
        if job.state.finished or job.state.error:
            break
        for engine in engines(job):
            if any((t.group, t.index) == poison for t in engine.held.values()):
                kill(job, engine)
                killed += 1
        job.fair_turn()
    assert killed >= 3
    assert job.state.finished == "complete"
    ends = {n: c for n, c in job.state.counters.items() if n.startswith(("failed", "cancelled"))}
    assert ends == {"failed.infrastructure": 1}
    assert job.audit().problems == []


def test_leases_without_progress_are_taken_back_and_suspected(world: MakeWorld) -> None:
    job = world(no_progress=10.0)
    job.finish_all(Stage.RESET)
    engine = engines(job)[0]
    held = [t.lease for t in engine.held.values()]
    alive = held[0]
    job.now += 6.0
    flow.progress(job.state, job.state.workers[engine.id], lease=alive, tokens=5, now=job.now)
    job.now += 6.0
    job.flush()
    assert alive in job.state.leases
    assert not set(held[1:]) & set(job.state.leases), "the others said nothing for 12 s"
    assert not set(held[1:]) & set(engine.held), "and were cancelled"


def test_tokens_that_are_told_again_are_no_progress(world: MakeWorld) -> None:
    job = world(no_progress=10.0, groups_per_step=1, group_size=1)
    job.finish_all(Stage.RESET)
    engine = engines(job)[0]
    (lease,) = engine.held
    for _ in range(3):
        flow.progress(job.state, job.state.workers[engine.id], lease=lease, tokens=5, now=job.now)
        job.now += 5.0
        job.flush()
    assert lease not in job.state.leases
    assert job.state.counters["failures.timeout"] == 1


def test_the_episodes_of_suspects_stay_where_they_live(world: MakeWorld) -> None:
    """An engine died with them; the environment that keeps them has nothing to do with it, and comes back."""
    job = start(world(workers=False, graph=EPISODES, groups_per_step=2, group_size=2))
    job.finish_all(Stage.RESET)
    (engine,) = engines(job)
    assert len(engine.held) > 1
    kill(job, engine)
    keeper = next(w for w in job.workers.values() if w.residents)
    before = dict(keeper.residents)
    job.disconnect(keeper)
    job.connect(keeper)
    job.flush()
    known = job.state.workers[keeper.id]
    assert keeper.residents == before and known.residents == set(before)


def test_a_suspect_that_begins_again_waits_in_one_line_only(world: MakeWorld) -> None:
    """Suspected by a reward worker's death, it is sent back to generation before another one comes."""
    job = world(group_size=2)
    job.finish_all(Stage.RESET)
    job.finish_all(Stage.GENERATE)
    judge = next(w for w in job.workers.values() if w.role == "reward")
    assert len(judge.held) > 1
    job.kill_worker(judge)
    job.flush()
    rewards, policy = job.state.pool("reward"), job.state.pool("policy")
    _, unit = rewards.suspects[0]
    waiting = rewards.queued, policy.queued
    failures.start_over(job.state, unit, job.now)
    assert (rewards.queued, policy.queued) == (waiting[0] - 1, waiting[1] + 1)
    job.add_worker("reward", credits=64)
    job.flush()
    assert rewards.queued >= 0 and policy.queued >= 0
    assert unit.lease is None or unit.lease.stage == Stage.GENERATE
    job.run_to_the_end()
    assert job.audit().problems == []
