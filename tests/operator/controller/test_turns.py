"""Whose status is written, and when: what acts wait for at once, the rest in turn."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from roll_operator.controller.cluster.bucket import TokenBucket
from roll_operator.controller.cluster.errors import Unavailable
from roll_operator.controller.cluster.proof import WatchProof
from roll_operator.controller.cluster.queue import WorkQueue
from roll_operator.controller.cluster.reading import INVALID, read_job
from roll_operator.controller.cluster.status import StatusWriter, binding, due
from roll_operator.controller.cluster.store import JobEntry, Store
from roll_operator.controller.cluster.turns import (
    ARRIVED,
    CROWD,
    FIGURES,
    KEPT,
    ON_ITS_WAY,
    PATIENCE,
    Turns,
    status_bucket,
)
from roll_operator.plan import Failure, Observed, Plan, Record, plan
from roll_operator.plan.model import Scope
from roll_operator.plan.objects.cluster import site
from roll_operator.plan.record import write_record
from support.job_objects import CLUSTER
from support.operator_world import JOB

RATE = 20.0


def stopped(tokens: float) -> TokenBucket:
    """A bucket whose time stands still."""
    bucket = TokenBucket(RATE, RATE, clock=lambda: 0.0)
    for _ in range(int(RATE - tokens)):
        bucket.reserve()
    return bucket


def test_who_finds_a_token_writes_at_once_and_who_finds_none_is_called_later() -> None:
    turns = Turns(stopped(KEPT[ARRIVED] + 1), lambda key: None)
    assert turns.take("a", ARRIVED)
    assert not turns.take("b", ARRIVED)


def test_tokens_stay_for_writes_that_an_act_waits_for() -> None:
    bucket = stopped(KEPT[ARRIVED])
    assert not Turns(bucket, lambda key: None).take("a", ARRIVED)
    assert bucket.reserve() == 0.0


def test_who_arrived_goes_first_then_who_is_on_its_way_then_figures() -> None:
    called: list[str] = []
    bucket = TokenBucket(1000.0, RATE)
    turns = Turns(bucket, called.append, clock=lambda: time.monotonic() * 1000)
    bucket.pause(0.05)
    for key, line in (("f", FIGURES), ("w", ON_ITS_WAY), ("a", ARRIVED), ("x", ON_ITS_WAY)):
        assert not turns.take(key, line)
    assert not turns.take("x", ARRIVED), "it arrived meanwhile"
    assert not turns.take("a", FIGURES), "it keeps the better place"

    async def until_all() -> None:
        running = asyncio.create_task(turns.run())
        async with asyncio.timeout(10):
            while len(called) < 4:  # noqa: ASYNC110  # nothing tells of a call
                await asyncio.sleep(0.005)
        running.cancel()

    asyncio.run(until_all())
    assert called == ["a", "x", "w", "f"]
    assert turns.take("w", ON_ITS_WAY)


def test_in_a_crowd_who_is_on_its_way_waits_and_is_written_once_when_it_arrives() -> None:
    called: list[str] = []
    bucket, now = TokenBucket(1000.0, RATE), [0.0]
    turns = Turns(bucket, called.append, clock=lambda: now[0])

    async def history() -> None:
        running = asyncio.create_task(turns.run())
        assert turns.take("alone", ON_ITS_WAY), "nobody else is in line"
        bucket.pause(0.01)
        assert not turns.take("a", ON_ITS_WAY)
        assert not turns.take("b", ON_ITS_WAY)
        await asyncio.sleep(0.1)
        assert called == [], "there are tokens, but they may arrive soon"
        assert not turns.take("c", ON_ITS_WAY), "it does not overtake"
        assert turns.take("a", ARRIVED)
        now[0] += PATIENCE[ON_ITS_WAY]
        assert not turns.take("d", FIGURES)
        await asyncio.sleep(0.1)
        assert called == ["b", "c", "d"], "and who does not arrive is written all the same"
        running.cancel()

    asyncio.run(history())


def test_while_new_jobs_wait_who_is_on_its_way_stands_in_line_and_who_arrives_does_not() -> None:
    turns = Turns(stopped(RATE), lambda key: None, busy=lambda: True)
    assert not turns.take("a", ON_ITS_WAY)
    assert turns.take("b", ARRIVED)
    assert turns.take("a", ARRIVED)


def test_a_large_crowd_waits_longer_and_one_that_has_gone_holds_up_nobody() -> None:
    called: list[str] = []
    bucket, now = TokenBucket(1000.0, RATE), [0.0]
    turns = Turns(bucket, called.append, clock=lambda: now[0])
    crowd = [f"j{number}" for number in range(1000)]

    async def history() -> None:
        running = asyncio.create_task(turns.run())
        bucket.pause(0.01)
        for key in crowd:
            assert not turns.take(key, ON_ITS_WAY)
        now[0] = len(crowd) / CROWD - 1
        await asyncio.sleep(0.05)
        assert called == []
        for key in crowd[1:]:
            turns.leave(key)
        await asyncio.sleep(0.05)
        assert called == crowd[:1], "it has waited long enough for a crowd of one"
        assert turns.take("newcomer", ON_ITS_WAY)
        running.cancel()

    asyncio.run(history())


def test_figures_wait_for_a_crowd_and_not_for_ever() -> None:
    called: list[str] = []
    bucket, now = TokenBucket(1000.0, RATE), [0.0]
    turns = Turns(bucket, called.append, clock=lambda: now[0])

    async def history() -> None:
        running = asyncio.create_task(turns.run())
        bucket.pause(0.01)
        assert not turns.take("newcomer", ON_ITS_WAY)
        assert not turns.take("figures", FIGURES)
        for number in range(6):  # every few seconds somebody else is on its way
            now[0] += PATIENCE[ON_ITS_WAY] / 2
            assert not turns.take(f"n{number}", ON_ITS_WAY)
            await asyncio.sleep(0.02)
        assert called[0] == "newcomer" and "figures" not in called
        now[0] = PATIENCE[FIGURES]
        assert not turns.take("last", ON_ITS_WAY)
        await asyncio.sleep(0.1)
        assert called[-1] == "figures" and "last" not in called
        running.cancel()

    asyncio.run(history())


def test_who_left_is_not_called() -> None:
    called: list[str] = []
    bucket = TokenBucket(1000.0, RATE)
    turns = Turns(bucket, called.append)
    bucket.pause(0.02)
    turns.take("a", ARRIVED)
    turns.take("b", ARRIVED)
    turns.leave("a")

    async def a_while() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await turns.run()

    asyncio.run(a_while())
    assert called == ["b"]


def test_acts_wait_for_what_is_counted_and_for_nothing_that_can_be_seen_again() -> None:
    seen = Record(
        scopes={"trainer": Scope(0, {"t-0": "u"})}, spec_hash="h", restart_id="", started_at=9.0
    )
    assert not binding(Record(), seen)
    assert not binding(seen, replace(seen, scheduler_image="s:1", worker_image="w:1"))
    assert not binding(seen, replace(seen, was_running=True, ready_since=7.0))
    assert not binding(seen, replace(seen, scopes={"trainer": Scope(0, {"t-0": "u", "t-1": "v"})}))
    assert binding(seen, replace(seen, scopes={"trainer": Scope(1)}))
    assert binding(seen, replace(seen, restarts={"reward": 1}))
    assert binding(seen, replace(seen, fenced=("u",)))
    assert binding(seen, replace(seen, failure=Failure("a", "b")))
    assert binding(seen, replace(seen, closing=True))
    assert binding(seen, replace(seen, spec_hash="other"))
    assert binding(Record(), replace(seen, finished=True))
    assert binding(Record(), replace(seen, scopes={"trainer": Scope(3, {"t-0": "u"})}))


class Written:
    """Counts what would go to the API server."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []

    async def apply(self, path: str, body: Any, manager: str) -> Any:
        self.bodies.append(body)
        return {"metadata": {"resourceVersion": str(100 + len(self.bodies))}}


def entry() -> JobEntry:
    more = {"namespace": "ns", "uid": "u", "resourceVersion": "1", "generation": 1}
    return read_job({**JOB, "metadata": {**JOB["metadata"], **more}})


def planned(job: JobEntry) -> Plan:
    assert job.job is not None
    return plan(job.job, Observed(), time.time(), site(job.job, CLUSTER))


def test_a_status_that_waits_for_its_turn_is_planned_from_and_outlives_news_of_the_job() -> None:
    api, job = Written(), entry()
    writer = StatusWriter(api, stopped(0), WatchProof(), lambda key: None)  # type: ignore[arg-type]
    result = planned(job)
    asyncio.run(writer.before_acts(job, result))
    asyncio.run(writer.after_acts(job, result, newest=True))
    assert api.bodies == []
    assert job.ahead == (result.status, result.record)
    store = Store(lambda key: None)
    store.put_job(job)
    newer = entry()
    newer.version = 2
    store.put_job(newer)
    assert newer.ahead == job.ahead
    rewritten = entry()
    rewritten.version, rewritten.record = 3, Record(finished=True)
    store.put_job(rewritten)
    assert rewritten.ahead is None, "somebody else wrote the record"


def test_what_is_counted_is_written_without_a_turn() -> None:
    api, job = Written(), entry()
    writer = StatusWriter(api, stopped(1), WatchProof(), lambda key: None)  # type: ignore[arg-type]
    result = planned(job)
    counted = replace(result, record=replace(result.record, restarts={"reward": 1}))
    asyncio.run(writer.before_acts(job, counted))
    assert [body["status"]["record"]["restarts"] for body in api.bodies] == [{"reward": 1}]
    assert job.ahead is None and job.record == counted.record


def test_other_files_are_not_taken_up_before_the_spec_changes() -> None:
    """An annotation names the files of a job: pods of one run share them."""
    before = entry()
    marked = {"namespace": "ns", "uid": "u", "resourceVersion": "2", "generation": 1}
    manifest = {**JOB, "metadata": {**JOB["metadata"], **marked, "annotations": {"a": "b"}}}
    assert read_job(manifest, before).job is before.job
    manifest["metadata"]["generation"] = 2
    after = read_job(manifest, before).job
    assert after is not None and after.metadata.annotations == {"a": "b"}


def test_what_a_failed_write_was_to_say_is_where_the_next_plan_begins() -> None:
    class Refusing(Written):
        async def apply(self, *_: object) -> dict[str, object]:
            raise Unavailable(0, "", "the API server is away")

    job = entry()
    writer = StatusWriter(Refusing(), stopped(1), WatchProof(), lambda key: None)  # type: ignore[arg-type]
    result = planned(job)
    counted = replace(result, record=replace(result.record, restarts={"reward": 1}))
    with pytest.raises(Unavailable):
        asyncio.run(writer.before_acts(job, counted))
    assert job.ahead == (counted.status, counted.record)


def test_a_status_that_differs_by_the_condition_of_a_job_once_invalid_is_not_written_again() -> (
    None
):
    job = entry()
    result = planned(job)
    status = result.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    status["record"] = write_record(result.record)
    status["conditions"].append(
        {"type": INVALID, "status": "False", "reason": "Read", "message": ""}
        | {"lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}
    )
    more = {"namespace": "ns", "uid": "u", "resourceVersion": "9", "generation": 1}
    mended = read_job({**JOB, "metadata": {**JOB["metadata"], **more}, "status": status})
    assert due(mended, result) is None


def test_a_write_that_changed_nothing_is_not_expected_to_come_back() -> None:
    class Unchanged(Written):
        async def apply(self, *_: object) -> dict[str, object]:
            return {"metadata": {"resourceVersion": "1"}}

    now = [0.0]
    job, proof = entry(), WatchProof(lambda: now[0])
    writer = StatusWriter(Unchanged(), stopped(1), proof, lambda key: None)  # type: ignore[arg-type]
    asyncio.run(writer.before_acts(job, planned(job), at_once=True))
    now[0] = 1000.0
    assert proof.overdue() == 0.0


def test_every_line_has_its_turn_however_few_writes_are_allowed() -> None:
    assert all(Turns(status_bucket(0.5), lambda key: None).take("a", n) for n in range(len(KEPT)))


def test_a_job_that_is_known_does_not_wait_for_a_crowd_of_new_ones() -> None:
    queue = WorkQueue()
    queue.add("old")
    assert queue.take() == "old"
    queue.done("old")
    for number in range(10):
        queue.add(f"new-{number}")
    queue.add("old")
    assert queue.take() == "old"
    assert queue.take() == "new-0"
    assert len(queue) == 9


def test_new_jobs_are_looked_at_however_busy_the_known_ones_are() -> None:
    queue = WorkQueue()
    for key in ("a", "b"):
        queue.add(key)
        queue.take()
        queue.done(key)
    queue.add("new")
    taken = []
    for _ in range(8):
        queue.add("a")
        queue.add("b")
        key = queue.take()
        assert key is not None
        taken.append(key)
        queue.done(key)
    assert "new" in taken


def test_a_job_that_is_forgotten_is_new_again() -> None:
    queue = WorkQueue()
    queue.add("a")
    queue.take()
    queue.done("a")
    queue.forget("a")
    queue.add("first")
    queue.add("a")
    assert queue.take() == "first"
