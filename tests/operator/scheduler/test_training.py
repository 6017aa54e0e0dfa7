"""The trainer's side: terms, the start barrier, rewinding, poison, lineages, versions, checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest
from roll_operator.scheduler import presence, report, training
from roll_operator.scheduler.lifecycle import BatchState, GroupState
from roll_operator.scheduler.presence import Greeting
from roll_operator.scheduler.service import shard
from roll_operator.scheduler.state import Batch, CheckpointRow, Publication
from roll_wire.columns import unpack_samples
from roll_wire.trainer_pb2 import ShardChunk
from support.scheduler_world import MakeWorld, World


def rank(
    job: World, number: int, *, world: int = 2, attempt: int = 0, pod: str = "", process: int = 1
) -> str:
    """A rank says Hello; its worker id."""
    uid = pod or f"trainer-{attempt}-{number}"
    greeting = Greeting(
        worker=f"{uid}/{process}/{number}", pod=f"trainer-{number}", pod_uid=uid, role="trainer",
        pool="trainer", rank=number, world=world, attempt=attempt,
    )  # fmt: skip
    presence.hello(job.state, greeting, job.now)
    return greeting.worker


def welcomed(job: World) -> set[str]:
    _, out = job.state.take()
    return set(out.welcomes)


def served(job: World, step: int, world: int = 1) -> list[list[tuple[int, int, bytes, float]]]:
    """What each rank gets of a batch."""
    batch = job.state.batches[step]
    return [
        [
            (*s.unit, s.payload, s.reward)
            for chunk in shard(job.ledger, batch, r, world)
            for s in unpack_samples(ShardChunk.FromString(chunk))
        ]
        for r in range(world)
    ]


def restart(job: World) -> None:
    """A new trainer is welcomed, takes the newest good checkpoint and publishes its version."""
    job.start_trainer()
    for _ in range(2):  # rewound, published
        job.trainer_turn()
        job.flush()


def acquire(job: World, step: int) -> Batch | None:
    batch = training.acquire(*job.seat(), step, job.now)
    job.flush()
    return batch or job.state.batches.get(step)


# Terms and the start barrier.


def test_ranks_are_welcomed_when_all_of_them_are_there(world: MakeWorld) -> None:
    job = world(workers=False)
    zero = rank(job, 0)
    assert welcomed(job) == set() and job.state.trainer.term == 0
    one = rank(job, 1)
    assert welcomed(job) == {zero, one} and job.state.trainer.term == 1


def test_the_ranks_of_one_pod_are_all_welcome_and_go_with_it(world: MakeWorld) -> None:
    job = world(workers=False)
    ranks = {rank(job, number, world=3, pod="pod") for number in range(2)}
    ranks.add(rank(job, 2, world=3, pod="other"))
    assert welcomed(job) == ranks == set(job.state.workers)
    presence.pods_gone(job.state, ["pod"], job.now)
    assert set(job.state.workers) == {"other/1/2"}
    late = rank(job, 1, world=3, pod="pod", process=2)
    assert job.state.out.refused[late][0] == "fenced"


def test_a_new_process_of_a_rank_replaces_the_old_one_and_no_other_rank(world: MakeWorld) -> None:
    job = world(workers=False)
    zero = rank(job, 0, pod="pod")
    rank(job, 1, pod="pod")
    again = rank(job, 1, pod="pod", process=2)
    assert set(job.state.workers) == {zero, again}


def test_a_rank_that_left_before_the_others_came_is_waited_for(world: MakeWorld) -> None:
    job = world(workers=False)
    zero = rank(job, 0)
    presence.disconnected(job.state, job.state.workers[zero], job.now)
    rank(job, 1)
    assert job.state.trainer.term == 0
    rank(job, 0)
    assert job.state.trainer.term == 1


def test_a_rank_that_reconnects_keeps_its_term(world: MakeWorld) -> None:
    job = world(workers=False)
    rank(job, 0)
    one = rank(job, 1)
    job.state.take()
    presence.disconnected(job.state, job.state.workers[one], job.now)
    assert rank(job, 1) == one
    assert welcomed(job) == {one} and job.state.trainer.term == 1


def test_the_ranks_of_a_term_are_known_after_a_crash(world: MakeWorld) -> None:
    job = world(workers=False)
    zero, one = rank(job, 0), rank(job, 1)
    job.flush()
    job.crash_scheduler()
    rank(job, 0)
    assert welcomed(job) == {zero} and job.state.trainer.term == 1
    rank(job, 1)
    assert welcomed(job) == {one} and job.state.trainer.term == 1


def test_a_newer_attempt_replaces_the_old_one(world: MakeWorld) -> None:
    job = world(workers=False)
    rank(job, 0), rank(job, 1)
    rank(job, 0, attempt=1)
    training.check_term(job.state, 1)  # until the new one is complete
    rank(job, 1, attempt=1)
    with pytest.raises(training.Fenced):
        training.check_term(job.state, 1)
    training.check_term(job.state, 2)
    late = rank(job, 0, attempt=0, process=2)
    assert job.state.out.refused[late][0] == "fenced"


def test_a_straggler_of_an_old_attempt_does_not_undo_a_barrier(world: MakeWorld) -> None:
    job = world(workers=False)
    rank(job, 0, attempt=2)
    straggler = rank(job, 1, attempt=1)
    assert job.state.out.refused[straggler][0] == "fenced"
    rank(job, 1, attempt=2)
    assert (job.state.trainer.term, job.state.trainer.attempt) == (1, 2)


def test_every_call_with_an_old_term_is_fenced_and_changes_nothing(world: MakeWorld) -> None:
    job = world()
    job.train(1)
    _, old = job.seat()
    restart(job)
    state, current = job.seat()
    assert current == old + 1
    before = (state.reported, state.formed, state.published, list(state.checkpoints), state.asked)
    row = CheckpointRow(1, 1, "late", "digest")
    for term in (old, 0, current + 1):
        for call in (
            lambda t=term: training.acquire(state, t, 2, job.now),
            lambda t=term: training.report(state, t, 2, "{}", job.now),
            lambda t=term: training.publish(state, t, Publication(1, 1, "d", ())),
            lambda t=term: training.commit(state, t, row, job.now),
            lambda t=term: training.rewind(state, t, 0, job.now),
        ):
            with pytest.raises(training.Fenced):
                call()
    after = (state.reported, state.formed, state.published, list(state.checkpoints), state.asked)
    assert after == before


def test_calls_out_of_order_are_refused(world: MakeWorld) -> None:
    job = world()
    state, term = job.seat()
    for call in (
        lambda: training.acquire(state, term, 2, job.now),
        lambda: training.acquire(state, term, 7, job.now),
        lambda: training.report(state, term, 1, "{}", job.now),
        lambda: training.publish(state, term, Publication(1, 1, "d", ())),
        lambda: training.commit(state, term, CheckpointRow(1, 1, "p", "d"), job.now),
    ):
        with pytest.raises(training.OutOfOrder):
            call()


# Rewinding.


def test_a_trainer_that_comes_back_is_handed_the_same_batches_byte_for_byte(
    world: MakeWorld,
) -> None:
    job = world(max_staleness=2, run_ahead=1.0, group_size=3)
    job.train(1)
    job.commit_checkpoint()
    job.train(3)
    recorded = {step: (job.state.batches[step].digest, served(job, step)) for step in (2, 3, 4)}
    restart(job)
    assert job.state.reported == 1 and job.state.published == 4, "the highest version stays"
    assert [b.state for b in job.state.batches.values() if b.step > 1] == [BatchState.BATCHED] * 3
    for step in (2, 3, 4):
        batch = acquire(job, step)
        assert batch is not None
        assert (batch.digest, served(job, step)) == recorded[step]
        training.report(*job.seat(), step, "{}", job.now)
    assert job.audit().problems == []


def test_the_batches_are_the_same_after_a_scheduler_crash(world: MakeWorld) -> None:
    job = world(max_staleness=1, run_ahead=1.0)
    job.train(2)
    recorded = {step: (job.state.batches[step].digest, served(job, step, 2)) for step in (1, 2)}
    job.crash_scheduler()
    restart(job)
    assert {s: (job.state.batches[s].digest, served(job, s, 2)) for s in (1, 2)} == recorded


def test_two_ranks_get_everything_once(world: MakeWorld) -> None:
    job = world(group_size=3)
    job.train(1)
    zero, one = served(job, 1, 2)
    assert len(zero) == len(one) == 3
    assert sorted(zero + one) == sorted(served(job, 1)[0])


def test_steps_after_the_checkpoint_are_no_longer_committed(world: MakeWorld) -> None:
    job = world()
    job.train(2)
    job.commit_checkpoint()
    assert job.state.batches[2].state is BatchState.COMMITTED
    job.broken_checkpoints.add(job.state.checkpoints[-1].path)
    restart(job)
    assert job.state.reported == 0 and job.state.batches[2].state is BatchState.BATCHED
    assert [c.step for c in job.state.checkpoints] == [0]
    job.run_to_the_end()
    found = job.audit()
    assert found.problems == [] and found.trained_twice == 0 and found.steps == 6


def test_a_damaged_checkpoint_falls_back_to_the_one_before(world: MakeWorld) -> None:
    job = world(keep_checkpoints=3)
    for _ in range(3):
        job.train(1)
        job.commit_checkpoint()
        job.flush()
    assert [c.step for c in job.state.checkpoints] == [1, 2, 3]
    job.broken_checkpoints.add(job.state.checkpoints[-1].path)
    restart(job)
    assert job.state.reported == 2 and job.state.lineage == 1
    assert [c.step for c in job.state.checkpoints] == [1, 2]


# Poison.


def test_a_batch_that_kills_the_trainer_too_often_is_formed_anew(world: MakeWorld) -> None:
    job = world(max_batch_attempts=2, max_staleness=1, run_ahead=1.0)
    job.train(1)
    for group in list(job.state.groups):
        job.complete(group)
    poison = acquire(job, 2)
    assert poison is not None and poison.attempts == 1
    restart(job)
    job.state.reported = 1  # trained again up to here
    assert acquire(job, 2) is poison and poison.attempts == 2
    restart(job)
    job.state.reported = 1
    assert training.acquire(*job.seat(), 2, job.now) is None
    job.flush()
    assert poison.state is BatchState.POISON and 2 not in job.state.batches
    members = job.ledger.groups_of(poison)
    assert {(g.state, g.cause) for g in members} == {(GroupState.FAILED, "poison")}
    assert job.state.counters["failed.poison"] == 4
    assert "batch 2 ended the trainer 2 times" in job.state.notices["poison"]
    assert (job.state.formed, job.state.lineage) == (1, 1)
    assert job.audit().problems == []
    job.run_to_the_end()
    found = job.audit()
    assert found.problems == [] and found.steps == 6 and found.dropped == {"failed.poison": 4}
    again = next(b for b in job.ledger.batches() if b.step == 2 and b.edition == 1)
    assert not set(again.group_ids) & set(poison.group_ids)


def test_a_scheduler_crash_is_no_attempt_of_a_batch(world: MakeWorld) -> None:
    job = world(max_batch_attempts=1)
    for group in list(job.state.groups):
        job.complete(group)
    assert acquire(job, 1) is not None
    for _ in range(3):
        job.crash_scheduler()
        job.join_trainer()
        batch = acquire(job, 1)
        assert batch is not None and batch.attempts == 1


def test_no_attempt_is_counted_for_a_trainer_that_died_while_it_waited(world: MakeWorld) -> None:
    job = world(max_batch_attempts=1)
    assert acquire(job, 1) is None
    assert job.trainer
    presence.disconnected(job.state, job.state.workers[job.trainer.id], job.now)
    for group in list(job.state.groups):
        job.complete(group)
    assert job.state.formed == 0, "nobody is there to take it"
    restart(job)
    assert acquire(job, 1) is not None


def test_a_trainer_that_reconnects_gets_the_batch_it_asked_for(world: MakeWorld) -> None:
    job = world()
    assert acquire(job, 1) is None
    assert job.trainer
    presence.disconnected(job.state, job.state.workers[job.trainer.id], job.now)
    for group in list(job.state.groups):
        job.complete(group)
    job.join_trainer()
    assert job.state.formed == 1


def poisoned_with_later_versions(world: MakeWorld) -> World:
    """Step 1 was trained and published once; coming back to it then kills each trainer."""
    job = world(max_batch_attempts=1, max_staleness=1, run_ahead=1.0, steps=4)
    job.train(2)
    restart(job)
    assert acquire(job, 1) is not None
    restart(job)
    return job


def test_poison_with_later_versions_opens_a_lineage_and_sends_the_trainer_away(
    world: MakeWorld,
) -> None:
    job = poisoned_with_later_versions(world)
    live = len(job.state.groups)
    assert live
    with pytest.raises(training.Fenced, match="lineage 2"):
        training.acquire(*job.seat(), 1, job.now)
    job.flush()
    state = job.state
    assert (state.lineage, state.formed, state.reported, state.published) == (2, 0, 0, None)
    assert state.counters["cancelled.lineage"] == 2 * live
    assert {b.state for b in job.ledger.batches()} == {BatchState.ABANDONED}
    found = job.audit()
    assert found.problems == [] and found.trained == 0
    assert found.dropped == {"cancelled.lineage": 2 * live + 8}
    assert report.dropped(state.counters) == found.dropped, "and so says the status"


def test_a_trainer_that_never_heard_it_is_fenced_all_the_same(world: MakeWorld) -> None:
    job = poisoned_with_later_versions(world)
    with pytest.raises(training.Fenced, match="lineage 2"):
        training.acquire(*job.seat(), 1, job.now)
    job.flush()
    job.crash_scheduler()  # before the answer was sent
    with pytest.raises(training.Fenced, match="not the current one"):
        training.acquire(*job.seat(), 1, job.now)


def test_after_that_the_job_still_reaches_its_last_step(world: MakeWorld) -> None:
    job = poisoned_with_later_versions(world)
    job.run_to_the_end()
    assert job.state.finished == "complete" and job.state.lineage == 2
    found = job.audit()
    assert found.problems == [] and found.steps == 4 and found.trained == 16


# Lineages.


def test_a_start_that_the_batches_cannot_serve_opens_a_lineage(world: MakeWorld) -> None:
    """keepLast 1: once step 2 is committed, the payloads of 1 and 2 are gone."""
    job = world(keep_checkpoints=1, max_staleness=1, run_ahead=1.0)
    job.train(2)
    job.commit_checkpoint()
    job.flush()
    assert job.state.folded == 2
    job.train(1)
    job.broken_checkpoints |= {c.path for c in job.state.checkpoints}
    engine = next(w for w in job.workers.values() if w.role == "inference")
    restart(job)
    assert (job.state.lineage, job.state.published, job.state.formed) == (2, 0, 0)
    assert job.state.workers[engine.id].version is None, "version 3 of lineage 1 is nothing here"
    assert "lineage 2" in job.state.notices["lineage"]
    found = job.audit()
    assert found.problems == [] and found.trained == 0
    assert found.dropped["cancelled.lineage"] >= 12
    job.run_to_the_end()
    found = job.audit()
    assert job.state.finished == "complete"
    assert found.problems == [] and found.steps == 6 and found.trained == 24
    assert found.admitted == found.trained + sum(found.dropped.values())


def test_a_version_of_an_earlier_lineage_is_not_published(world: MakeWorld) -> None:
    job = world(keep_checkpoints=1)
    job.train(1)
    job.commit_checkpoint()
    job.broken_checkpoints |= {c.path for c in job.state.checkpoints}
    restart(job)
    assert job.state.lineage == 2
    with pytest.raises(training.Fenced):
        training.publish(*job.seat(), Publication(0, 1, "d", ("/w",)))
    with pytest.raises(training.Fenced):
        training.commit(*job.seat(), CheckpointRow(0, 1, "p", "d"), job.now)


def test_a_ledger_that_knows_less_than_the_trainer_starts_where_the_trainer_is(
    world: MakeWorld,
) -> None:
    job = world(workers=False, steps=5)
    for role in ("environment", "reward", "inference"):
        job.add_worker(role, credits=64)
    job.start_trainer()
    assert job.trainer
    job.trainer.lineage = training.rewind(*job.seat(), 3, job.now)
    job.trainer.step = 3
    training.commit(*job.seat(), CheckpointRow(3, 2, "from-elsewhere", "d"), job.now)
    job.flush()
    job.run_to_the_end()
    found = job.audit()
    assert job.state.finished == "complete" and found.problems == [] and found.steps == 5
    assert sorted(b.step for b in job.ledger.batches()) == [4, 5]


# Versions and checkpoints.


def test_publishing_twice_changes_only_where_it_lies(world: MakeWorld) -> None:
    job = world()
    job.train(2)
    before = (job.state.published, job.state.next_group)
    training.publish(*job.seat(), Publication(1, 1, "digest", ("/elsewhere",)))
    job.flush()
    assert (job.state.published, job.state.next_group) == before
    assert job.state.versions[1].locations == ("/elsewhere",)
    job.crash_scheduler()
    assert job.state.published == 2 and job.state.versions[1].locations == ("/elsewhere",)


def test_an_engine_is_told_of_the_newest_version_once(world: MakeWorld) -> None:
    job = world()
    engine = next(w for w in job.workers.values() if w.role == "inference")
    job.train(1)
    assert engine.offered == (1, 1)
    engine.offered = None
    training.publish(*job.seat(), job.state.versions[1])
    job.flush()
    assert engine.offered is None, "it knows"
    job.restart_in_place(engine)
    assert engine.offered == (1, 1), "a new process does not"


def engine(job: World, name: str, version: int | None = None) -> tuple[str, ...]:
    """An engine says Hello and what it holds; where it is told to find the newest version."""
    greeting = Greeting(
        worker=f"{name}/1/0", pod=name, pod_uid=name, role="inference", pool="policy",
        address=f"{name}:1", version=version, lineage=job.state.lineage,
    )  # fmt: skip
    presence.hello(job.state, greeting, job.now)
    training.announce(job.state)
    _, out = job.state.take()
    return out.policies[greeting.worker].locations


def test_an_engine_is_told_who_else_holds_weights_that_are_streamed(world: MakeWorld) -> None:
    job = world(workers=False)
    job.start_trainer()
    job.begin()
    where = ("/w", "grpc:trainer:1")
    training.publish(*job.seat(), Publication(0, 1, "digest", where))
    assert engine(job, "a") == where, "nobody else is there"
    assert engine(job, "b") == (*where, "grpc:a:1"), "it may hold them by then"
    for name in "cdef":
        engine(job, name, version=0)
    told = [engine(job, name) for name in "gh"]
    assert all(each[:2] == where for each in told), "the trainer first"
    peers = [set(each[2:]) for each in told]
    assert all(len(each) == 3 and each < {f"grpc:{n}:1" for n in "cdef"} for each in peers)
    assert peers[0] != peers[1], "each asks others"
    training.publish(*job.seat(), Publication(0, 1, "digest", ("/w",)))
    assert engine(job, "i") == ("/w",), "by the folder alone"


def test_an_engine_is_told_again_of_a_version_that_has_other_weights_now(world: MakeWorld) -> None:
    """A trainer that died after it published came to other bits, and nobody has the first ones."""
    job = world(max_staleness=0)
    engine = next(w for w in job.workers.values() if w.role == "inference")
    job.train(1)
    assert engine.offered == (1, 1) and engine.version == (1, 0)
    job.start_trainer()
    while job.trainer and not (job.trainer.step == 1 and job.trainer.published):
        job.trainer_turn()
        job.flush()
    assert engine.digest == job.state.versions[1].digest == "of trainer 1"
    job.fetch_all()
    assert engine.version == (1, 1)
    training.publish(*job.seat(), Publication(1, 1, "other", ("/w",)))
    job.flush()
    assert engine.digest == "of trainer 1", "it holds this version, and keeps it as it is"
    job.run_to_the_end()


def test_after_a_set_back_engines_are_told_of_what_their_trainer_has(world: MakeWorld) -> None:
    """Version 1 was published and fetched by nobody; the next trainer begins at 0 and comes to it again."""
    job = world()
    engine = next(w for w in job.workers.values() if w.role == "inference")
    job.train(1)
    assert (engine.offered, engine.version) == ((1, 1), (1, 0))
    job.restart_in_place(engine)
    job.weights[1, 1] = "gone"
    job.start_trainer()
    while not (job.trainer and job.trainer.published):
        job.trainer_turn()
        job.flush()
    assert (engine.offered, job.state.published) == ((1, 0), 1)
    job.fetch_all()
    assert engine.version == (1, 0), "its trainer's, which is there"
    job.run_to_the_end()
    assert job.state.finished == "complete"


def test_after_a_long_set_back_engines_are_told_at_once(world: MakeWorld) -> None:
    """Twenty versions were published beyond the checkpoint: more than are remembered."""
    job = world(steps=30)
    engine = next(w for w in job.workers.values() if w.role == "inference")
    job.train(1)
    job.commit_checkpoint()
    job.train(20)
    job.start_trainer()
    job.restart_in_place(engine)
    while not (job.trainer and job.trainer.published):
        job.trainer_turn()
        job.flush()
    assert (job.trainer.step, job.state.published, engine.offered) == (1, 21, (1, 1))
    job.crash_scheduler()
    job.restart_in_place(engine)
    job.flush()
    assert engine.offered == (1, 1), "the next scheduler knows it, too"


def test_a_held_out_version_of_an_earlier_trainer_is_left_behind(world: MakeWorld) -> None:
    """It is pinned to version 1, the engine is at 0, and the trainer came back at 2."""
    job = world(validation_every=1, steps=4)
    engine = next(w for w in job.workers.values() if w.role == "inference")
    job.train(1)
    while not (late := [g.id for g in job.state.groups.values() if g.validation == 1]):
        job.fair_turn()
    while job.state.published != 2:
        job.fair_turn(skip=late[0])
    job.commit_checkpoint()
    pinned = next(v for v in job.state.validations if v.version == 1)
    assert not pinned.finished
    job.restart_in_place(engine)
    engine.version = (1, 0)
    job.connect(engine)
    job.weights |= {(1, n): "gone" for n in range(3)}
    job.start_trainer()
    job.run_to_the_end()
    assert job.state.finished == "complete" and pinned.version == 2
    assert job.audit().problems == []


def test_keep_last_retains_checkpoints_and_what_they_need(world: MakeWorld) -> None:
    job = world(keep_checkpoints=2)
    removed = []
    for step in range(1, 5):
        job.train(1)
        row = CheckpointRow(step, 1, f"checkpoint-{step}", "d")
        removed.append(training.commit(*job.seat(), row, job.now))
        job.flush()
    assert removed == [[], ["step-0-t1-l1"], ["checkpoint-1"], ["checkpoint-2"]]
    assert [c.path for c in job.state.checkpoints] == ["checkpoint-3", "checkpoint-4"]
    assert job.state.folded == 3
    batched = job.ledger.reader.execute("SELECT DISTINCT step FROM groups WHERE state = 4")
    assert sorted(batched.fetchall()) == [(4,)], "from the oldest retained checkpoint on"
    assert {b.step for b in job.ledger.batches()} == {1, 2, 3, 4}
    found = job.audit()
    assert found.problems == [] and found.trained == 16


def test_a_checkpoint_made_again_replaces_the_one_of_the_same_step(world: MakeWorld) -> None:
    job = world()
    job.train(1)
    assert training.commit(*job.seat(), CheckpointRow(1, 1, "old", "d"), job.now) == []
    assert training.commit(*job.seat(), CheckpointRow(1, 1, "old", "d"), job.now) == []
    assert training.commit(*job.seat(), CheckpointRow(1, 1, "new", "d"), job.now) == ["old"]
    job.flush()
    job.crash_scheduler()
    assert [(c.step, c.path) for c in job.state.checkpoints] == [(0, "step-0-t1-l1"), (1, "new")]


def test_a_step_reported_twice_counts_once(world: MakeWorld) -> None:
    job = world()
    job.train(1)
    training.report(*job.seat(), 1, "{}", job.now)
    assert job.state.reported == 1


def test_a_batch_beyond_the_last_step_of_a_shortened_job_is_abandoned(world: MakeWorld) -> None:
    job = world(groups_per_step=1, max_staleness=1, run_ahead=1.0)
    first, second = sorted(g.id for g in job.state.groups.values())[:2]
    job.complete(first)
    assert acquire(job, 1) is not None
    job.complete(second)
    training.report(*job.seat(), 1, "{}", job.now)
    training.commit(*job.seat(), CheckpointRow(1, 1, "checkpoint-1", "d"), job.now)
    assert acquire(job, 2) is not None
    job.settings = replace(job.settings, steps=1)
    job.crash_scheduler()
    job.run_to_the_end()
    job.flush()
    found = job.audit()
    assert (found.problems, found.live, found.trained) == ([], 0, 2)
