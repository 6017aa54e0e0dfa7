"""Batches: shares of ranks, the chain of digests, the filter and its budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_operator.scheduler import batching, groups, training
from roll_operator.scheduler.lifecycle import GroupState
from support.scheduler_world import MakeWorld, World

token_counts = st.lists(st.integers(0, 5000), max_size=60)
worlds = st.integers(1, 9)


@given(tokens=token_counts, world=worlds)
def test_shares_are_a_partition_of_the_batch(tokens: list[int], world: int) -> None:
    shares = [batching.share(tokens, rank, world) for rank in range(world)]
    assert sorted(p for share in shares for p in share) == list(range(len(tokens)))
    assert all(share == sorted(share) for share in shares)


@given(tokens=token_counts, world=worlds)
def test_shares_are_equally_many(tokens: list[int], world: int) -> None:
    counts = [len(batching.share(tokens, rank, world)) for rank in range(world)]
    assert max(counts) - min(counts) <= 1


@given(tokens=token_counts, world=worlds, rank=st.integers(0, 8))
def test_a_share_is_a_pure_function_of_the_batch(tokens: list[int], world: int, rank: int) -> None:
    before = list(tokens)
    first = batching.share(tokens, rank % world, world)
    assert tokens == before
    assert batching.share(tuple(before), rank % world, world) == first


@given(tokens=st.lists(st.integers(1, 5000), min_size=8, max_size=64), world=st.integers(2, 4))
def test_shares_are_balanced_by_tokens(tokens: list[int], world: int) -> None:
    """Longest first to the least loaded: two ranks differ by one sample's tokens at most, where counts allow."""
    tokens = tokens[: len(tokens) // world * world]
    loads = [sum(tokens[p] for p in batching.share(tokens, rank, world)) for rank in range(world)]
    naive = [sum(tokens[rank::world]) for rank in range(world)]
    assert max(loads) <= max(max(naive), sum(tokens) / world + max(tokens))


def test_long_samples_are_spread_over_the_ranks() -> None:
    tokens = [900, 800, 700, 600, 10, 10, 10, 10]
    loads = [sum(tokens[p] for p in batching.share(tokens, rank, 2)) for rank in (0, 1)]
    assert loads == [1520, 1520]


def test_one_rank_has_it_all_in_order() -> None:
    assert batching.share([3, 9, 1], 0, 1) == [0, 1, 2]


def test_each_digest_contains_the_one_before(world: MakeWorld) -> None:
    job = world(steps=4)
    job.run_to_the_end()
    batches = sorted(job.ledger.batches(), key=lambda b: b.step)
    assert batches[0].previous == b""
    assert [b.previous for b in batches[1:]] == [b.digest for b in batches[:-1]]
    members = job.ledger.groups_of(batches[-1])
    contents = [groups.contents(g) for g in members]
    last = batches[-1]
    assert batching.digest(last.previous, 1, 4, members, contents) == last.digest
    assert batching.digest(b"other", 1, 4, members, contents) != last.digest
    assert batching.digest(last.previous, 1, 4, members[::-1], contents[::-1]) != last.digest


@pytest.mark.parametrize(
    ("by", "above", "below", "rewards", "kept"),
    [
        ("none", 0.0, 1.0, [0.0, 0.0], True),
        ("mean", 0.0, 1.0, [0.0, 0.0], False),
        ("mean", 0.0, 1.0, [1.0, 1.0], False),
        ("mean", 0.0, 1.0, [0.0, 1.0], True),
        ("mean", 0.5, 1.0, [0.0, 1.0], False),  # above is strict
        ("mean", 0.0, 0.5, [0.0, 1.0], False),  # so is below
        ("std", 0.0, 9.0, [0.3, 0.3], False),
        ("std", 0.0, 9.0, [0.3, 0.4], True),
        ("std", 0.5, 9.0, [0.0, 1.0], False),  # the population's: 0.5
    ],
)
def test_the_filter_keeps_what_lies_between(
    by: str, above: float, below: float, rewards: list[float], kept: bool
) -> None:
    assert groups.keeps(by, above, below, rewards) is kept


def test_a_filtered_group_frees_its_slot_and_another_takes_it(world: MakeWorld) -> None:
    job = world(filter_by="mean", filter_above=0.0, filter_below=1.0, filter_budget=2.0)
    first = min(job.state.groups.values(), key=lambda g: g.id)
    job.complete(first.id, rewards=[1.0])
    assert first.state is GroupState.FILTERED
    assert job.state.counters["filtered"] == 2 and job.state.filtered == {1: 1}
    refill = job.state.slots.of(1)[first.slot]
    assert refill.id > first.id and refill.state is GroupState.OPEN
    assert job.audit().problems == []


def exhausted(world: MakeWorld, then: str) -> World:
    """A budget of one group a step, and two groups that the filter rejects."""
    job = world(
        filter_by="mean", filter_above=0.0, filter_below=1.0, filter_budget=0.5, on_exhausted=then
    )
    doomed = sorted(job.state.groups)[:2]
    for group in doomed:
        job.complete(group, rewards=[1.0])
    return job


def test_an_exhausted_budget_with_keep_lets_groups_through(world: MakeWorld) -> None:
    job = exhausted(world, "Keep")
    assert job.state.counters["filtered"] == 2
    assert [g.state for g in job.state.groups.values()].count(GroupState.READY) == 1
    assert "its budget (0.5 × 2 groups a step) is spent" in job.state.notices["filter"]
    job.run_to_the_end()
    assert job.state.finished == "complete"
    assert "filter" not in job.state.notices, "it was true of the first step only"


def test_the_budget_is_fresh_for_every_step(world: MakeWorld) -> None:
    job = exhausted(world, "Keep")
    job.train(1)
    assert job.state.filtered == {}
    assert job.state.counters["filtered"] == 2


def test_the_budget_of_a_step_is_its_own_however_early_its_groups_are_complete(
    world: MakeWorld,
) -> None:
    job = world(filter_by="mean", filter_above=0.0, filter_below=1.0, filter_budget=0.5,
                max_staleness=2, run_ahead=2.0)  # fmt: skip
    first, second = ([g.id for g in job.state.groups.values() if g.step == n] for n in (1, 2))
    job.complete(second[0], rewards=[1.0])
    assert job.state.filtered == {2: 1}, "step 2 has spent what it may"
    job.complete(first[0], rewards=[1.0])
    assert job.state.filtered == {1: 1, 2: 1}, "and step 1 has not"
    job.complete(second[1], rewards=[1.0])
    assert job.state.groups[second[1]].state is GroupState.READY
    job.crash_scheduler()
    assert job.state.filtered == {1: 1, 2: 1}
    job.train(1)
    assert job.state.filtered == {2: 1}, "what step 2 spent before it was next counts"
    job.run_to_the_end()
    assert job.audit().problems == []


@pytest.mark.parametrize("then", ["Complete", "Fail"])
def test_the_exhausted_budget_of_a_later_step_ends_the_job_when_that_step_is_next(
    world: MakeWorld, then: str
) -> None:
    job = world(filter_by="mean", filter_above=0.0, filter_below=1.0, filter_budget=0.5,
                max_staleness=2, run_ahead=2.0, on_exhausted=then)  # fmt: skip
    for group in [g.id for g in job.state.groups.values() if g.step == 2]:
        job.complete(group, rewards=[1.0])
    assert job.state.filtered == {2: 1}
    assert not job.state.ending and not job.state.error, "step 1 can still be formed"
    job.crash_scheduler()
    job.train(1)
    why = "filter budget exhausted: 1 groups were filtered while step 2 waited for 2"
    assert (job.state.ending or job.state.error).startswith(why)
    job.commit_checkpoint()
    job.flush()
    assert job.state.finished or job.state.error
    assert job.state.formed == 1 and job.audit().problems == []


@pytest.mark.parametrize("then", ["Complete", "Fail"])
def test_a_group_that_exhausts_a_budget_takes_no_place_in_an_earlier_step(
    world: MakeWorld, then: str
) -> None:
    job = world(filter_by="mean", filter_above=0.0, filter_below=1.0, filter_budget=0.5,
                max_staleness=2, run_ahead=2.0, on_exhausted=then)  # fmt: skip
    first, second = ([g.id for g in job.state.groups.values() if g.step == n] for n in (1, 2))
    for group in second:
        job.complete(group, rewards=[1.0])
    job.complete(first[0])
    training.acquire(*job.seat(), 1, job.now)
    job.flush()
    assert job.state.formed == 0, "the other group of step 1 is waited for"
    job.complete(first[1])
    assert list(job.state.batches[1].group_ids) == first
    assert (job.state.ending or job.state.error).startswith("filter budget exhausted")


def test_an_exhausted_budget_with_complete_ends_the_job(world: MakeWorld) -> None:
    job = exhausted(world, "Complete")
    assert job.state.ending.startswith("filter budget exhausted")
    assert job.state.formed == 0, "no more batches"
    # Step 0 is committed as checkpoint 0: nothing is left to wait for.
    assert job.state.finished == job.state.ending
    assert job.audit().problems == [] and job.audit().live == 0
    assert job.state.counters["cancelled.job-ended"] > 0


def test_a_job_that_completes_early_waits_for_its_last_checkpoint(world: MakeWorld) -> None:
    job = world(filter_by="mean", filter_above=0.0, filter_below=1.0, filter_budget=0.5,
                on_exhausted="Complete")  # fmt: skip
    job.train(2)
    job.fetch_all()
    for group in sorted(job.state.groups)[:2]:
        job.complete(group, rewards=[1.0])
    assert job.state.ending and not job.state.finished
    training.acquire(*job.seat(), 3, job.now)
    job.flush()
    assert job.state.formed == 2, "no more batches"
    job.commit_checkpoint()
    job.flush()
    assert job.state.finished == job.state.ending
    assert job.state.checkpoints[-1].step == 2


def test_a_job_that_completes_early_trains_what_was_recorded(world: MakeWorld) -> None:
    """Its trainer dies after the last step and before that step's checkpoint: the batch is there, and is trained again."""
    job = world(filter_by="mean", filter_above=0.0, filter_below=1.0, filter_budget=0.5,
                on_exhausted="Complete")  # fmt: skip
    job.train(2)
    job.commit_checkpoint()
    job.train(1)
    job.fetch_all()
    for group in sorted(job.state.groups)[:2]:
        job.complete(group, rewards=[1.0])
    assert job.state.ending and job.state.checkpoints[-1].step == 2
    job.kill_trainer()
    job.start_trainer()
    job.trainer_turn()
    job.trainer_turn()
    job.flush()
    assert job.state.reported == 2 and not job.state.finished
    job.train(1)
    job.commit_checkpoint()
    job.flush()
    assert job.state.finished == job.state.ending
    assert job.state.checkpoints[-1].step == 3
    assert job.audit().problems == [] and job.audit().live == 0


def test_an_exhausted_budget_with_fail_says_what_to_do(world: MakeWorld) -> None:
    job = exhausted(world, "Fail")
    assert "filter budget exhausted" in job.state.error
    assert "loosen rollout.filter" in job.state.error
    assert not job.state.finished
    before = job.state.next_group
    job.flush()
    assert job.state.next_group == before, "nothing is admitted any more"


def test_an_error_ends_the_run_and_not_the_job(world: MakeWorld) -> None:
    job = exhausted(world, "Fail")
    job.crash_scheduler()
    assert job.state.error == "", "the user changed something and runs it again"
    assert job.audit().problems == []


def test_groups_that_all_fail_end_the_job_with_the_last_reason(world: MakeWorld) -> None:
    job = world(max_attempts=1, max_replacements=0)
    for _ in range(20):
        if not job.state.error:
            job.finish_all("reset", cause="input")
    assert "8 groups failed one after the other" in job.state.error
    assert "reset failed (input): provoked" in job.state.error
    assert job.audit().problems == []
