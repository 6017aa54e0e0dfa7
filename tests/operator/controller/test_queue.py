"""The work queue and the token bucket, in a time that the test moves."""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_operator.controller.cluster.bucket import TokenBucket
from roll_operator.controller.cluster.queue import LONGEST_BACK_OFF, NEW_AT_ONCE, WorkQueue


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_key_added_often_is_looked_at_once(clock: Clock) -> None:
    queue = WorkQueue(clock)
    for _ in range(5):
        queue.add("a/x")
    assert queue.take() == "a/x"
    assert queue.take() is None


def test_keys_are_taken_in_the_order_in_which_they_came(clock: Clock) -> None:
    queue = WorkQueue(clock)
    for key in ("a", "b", "a", "c"):
        queue.add(key)
    assert [queue.take(), queue.take(), queue.take()] == ["a", "b", "c"]


def test_news_during_the_work_lead_to_one_more_look_by_nobody_else_meanwhile(clock: Clock) -> None:
    queue = WorkQueue(clock)
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a")
    queue.add("a")
    assert queue.take() is None
    queue.done("a")
    assert queue.take() == "a"
    queue.done("a")
    assert queue.take() is None


def test_a_key_is_due_at_the_earliest_of_its_times(clock: Clock) -> None:
    queue = WorkQueue(clock)
    queue.add_after("a", 30)
    queue.add_after("a", 5)
    queue.add_after("a", 60)
    clock.now += 4.9
    assert queue.take() is None
    clock.now += 0.2
    assert queue.take() == "a"
    queue.done("a")
    clock.now += 1000
    assert queue.take() is None


def test_new_keys_never_have_all_workers(clock: Clock) -> None:
    queue = WorkQueue(clock)
    queue.add("old")
    queue.take()
    queue.done("old")
    for number in range(NEW_AT_ONCE + 1):
        queue.add(f"new-{number}")
    taken = [queue.take() for _ in range(NEW_AT_ONCE)]
    assert taken == [f"new-{number}" for number in range(NEW_AT_ONCE)]
    assert queue.take() is None, "who is free now waits for what is urgent"
    queue.add("old")
    assert queue.take() == "old"
    queue.done("new-3")
    assert queue.take() == f"new-{NEW_AT_ONCE}"


def test_failures_wait_twice_as_long_each_time_and_alone(clock: Clock) -> None:
    queue = WorkQueue(clock)
    pauses = [queue.retry("bad") for _ in range(14)]
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4]
    assert pauses[-1] == LONGEST_BACK_OFF
    queue.add("good")
    assert queue.take() == "good"
    queue.succeeded("bad")
    assert queue.retry("bad") == 0.05


def test_nothing_is_due_for_a_job_that_is_forgotten(clock: Clock) -> None:
    queue = WorkQueue(clock)
    queue.add_after("a", 1)
    queue.forget("a")
    clock.now += 10
    assert queue.take() is None


def test_the_wait_of_the_first_in_line_is_known(clock: Clock) -> None:
    queue = WorkQueue(clock)
    assert queue.oldest_wait() == 0
    queue.add("a")
    clock.now += 7
    queue.add("b")
    assert queue.oldest_wait() == 7
    queue.take()
    assert queue.oldest_wait() == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "later", "take", "done", "tick"]), st.integers(0, 3)),
        max_size=60,
    )
)
def test_no_key_is_lost_and_none_is_in_two_hands(history: list[tuple[str, int]]) -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    working: set[str] = set()
    news: set[str] = set()
    for what, number in history:
        key = f"k{number}"
        if what == "add":
            queue.add(key)
            news.add(key)
        elif what == "later":
            queue.add_after(key, number)
            news.add(key)
        elif what == "take":
            taken = queue.take()
            if taken is not None:
                assert taken not in working
                working.add(taken)
                news.discard(taken)
        elif what == "done" and key in working:
            working.discard(key)
            queue.done(key)
        else:
            clock.now += 1
    clock.now += 10
    for key in list(working):
        queue.done(key)
    left = set()
    while (taken := queue.take()) is not None:
        left.add(taken)
    assert news <= left


def test_a_waiting_worker_wakes_up_for_what_becomes_due() -> None:
    async def scenario() -> list[str]:
        queue = WorkQueue()
        workers = [asyncio.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(0)
        queue.add_after("c", 0.02)
        queue.add("a")
        queue.add("b")
        async with asyncio.timeout(10):
            return sorted(await asyncio.gather(*workers))

    assert asyncio.run(scenario()) == ["a", "b", "c"]


def test_a_bucket_gives_its_burst_at_once_and_then_its_rate(clock: Clock) -> None:
    bucket = TokenBucket(rate=10, burst=3, clock=clock)
    waits = [round(bucket.reserve(), 3) for _ in range(5)]
    assert waits == [0, 0, 0, 0.1, 0.2]
    clock.now += 0.5
    assert bucket.reserve() == 0


@pytest.mark.parametrize("seconds", [1, 60])
def test_no_more_than_rate_and_burst_go_through(clock: Clock, seconds: int) -> None:
    bucket = TokenBucket(rate=20, burst=20, clock=clock)
    began = clock.now
    uses = sorted(clock.now + bucket.reserve() for _ in range(20 * seconds + 20))
    assert uses[-1] - began == pytest.approx(seconds)
    for second in range(seconds):
        assert sum(began + second < use <= began + second + 1 for use in uses) <= 20


def test_what_can_wait_leaves_tokens_for_what_cannot(clock: Clock) -> None:
    bucket = TokenBucket(rate=10, burst=10, clock=clock)
    assert sum(bucket.spare(keep=5) for _ in range(10)) == 5
    assert bucket.reserve() == 0


def test_a_pause_holds_everybody(clock: Clock) -> None:
    bucket = TokenBucket(rate=10, burst=10, clock=clock)
    bucket.pause(3)
    assert bucket.reserve() == pytest.approx(3.1)
