"""The scheduler's process on real sockets: what it says, and that it says nothing before it is on disk."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from roll_api import RLJob
from roll_operator.scheduler import audit, leases, presence, record
from roll_operator.scheduler.ledger import SqliteLedger
from roll_operator.scheduler.presence import Greeting
from roll_operator.scheduler.service import ControlService, Hub, TrainerService
from roll_operator.scheduler.settings import Settings
from roll_wire import control_pb2, session_pb2_grpc, trainer_pb2
from roll_wire.columns import pack_results, unpack_samples
from roll_wire.session_pb2 import (
    Ack,
    Call,
    DataSet,
    Failure,
    Failures,
    FromWorker,
    Held,
    Ping,
    PolicyVersion,
    ToWorker,
    Unit,
)
from support.scheduler_process import JOB_UID, SECONDS, Job, Peer, Scheduler, job_document


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    made = Scheduler(tmp_path)
    yield made
    made.close()


def settings_of(scheduler: Scheduler) -> Settings:
    return Settings.from_job(RLJob.from_json((scheduler.folder / "job.json").read_text()))


def verify(scheduler: Scheduler) -> audit.Audit:
    return audit.verify(scheduler.folder / "ledger", settings_of(scheduler))


def test_a_whole_step_over_the_wire(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    resets = job.environment.assigned(2)
    assert [t.stage for t in resets] == ["reset", "reset"]
    assert [t.unit.index for t in resets] == [-1, -1]
    assert sorted(t.position for t in resets) == [0, 1]
    assert job.environment.finish(*resets) == [Ack.STORED] * 2
    tasks = job.engine.assigned(4)
    for task in tasks:
        assert (task.stage, task.attempt, task.min_version) == ("generate", 1, 0)
        assert task.payload == f"reset-{task.unit.group}.-1;".encode()
    assert len({task.seed for task in tasks}) == 4, "each sample has a seed of its own"
    assert job.engine.finish(*tasks) == [Ack.STORED] * 4
    scores = job.reward.assigned(4)
    assert all(b"reset-" in t.payload and b"generate-" in t.payload for t in scores)
    assert job.reward.finish(*scores) == [Ack.STORED] * 4
    batch = job.acquire(1)
    assert (batch.step, batch.groups, batch.samples, batch.finished) == (1, 2, 4, False)
    (chunk,) = job.fetch(1)
    for sample in unpack_samples(chunk):
        own = "{}.{};".format(*sample.unit)
        group = f"reset-{sample.unit[0]}.-1;"
        assert sample.payload.decode() == f"{group}generate-{own}score-{own}"
        assert (sample.reward, list(sample.group_rewards)) == (0.5, [0.5, 0.5])
    version = PolicyVersion(lineage=1, number=1)
    report = trainer_pb2.StepReport(
        trainer=job.who(), step=1, metrics={"loss": 0.25},
        publication=trainer_pb2.Publication(version=version, manifest_digest="d"),
    )  # fmt: skip
    scheduler.trainer.ReportStep(report)
    scheduler.trainer.ReportStep(report)  # the answer was lost: said again
    assert job.engine.expect("policy").version == version
    progress = scheduler.control.GetProgress(control_pb2.ProgressRequest())
    assert (progress.step, progress.published, progress.checkpoint) == (1, 1, 0)
    assert progress.reward == 0.5 and not progress.finished
    assert verify(scheduler).problems == []


def test_an_acknowledged_result_survives_kill_9(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    tasks = job.environment.assigned(2)
    assert job.environment.finish(*tasks) == [Ack.STORED] * 2
    scheduler.kill()  # directly after the Ack
    ledger = SqliteLedger(scheduler.folder / "ledger", settings_of(scheduler))
    state = ledger.open(time.time())
    for task in tasks:
        lead = state.groups[task.unit.group].lead
        assert lead is not None and len(record.parts_of(lead)) == 1
        payload = state.store.read(*lead.places[0])
        assert payload == f"reset-{task.unit.group}.-1;".encode()
    ledger.close()
    assert verify(scheduler).problems == []


class SlowDisk:
    """A hub whose commits wait for `is_done`, and a worker whose Hello makes one."""

    def __init__(self, folder: Path) -> None:
        self.hub = Hub(SqliteLedger(folder, Settings(steps=1, groups_per_step=1, group_size=1)))
        self.under_way, self.is_done = threading.Event(), threading.Event()
        finish = self.hub.ledger.finish

        def slowly(*rows: Any) -> None:
            self.under_way.set()
            assert self.is_done.wait(SECONDS)
            finish(*rows)

        self.hub.ledger.finish = slowly  # type: ignore[method-assign]
        self.queue = self.hub.attach("uid/1")
        self.transaction = self.hub.state.transaction
        data = {"train": (7, "hash")}  # what makes the Hello worth a row
        self.greeting = Greeting("uid/1", "pod", "uid", "environment", "environment", 1, data=data)
        presence.hello(self.hub.state, self.greeting, time.time())
        self.hub.wake()

    async def __aenter__(self) -> SlowDisk:
        self.pump = asyncio.create_task(self.hub.run())
        assert await asyncio.to_thread(self.under_way.wait, SECONDS)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_done.set()
        self.pump.cancel()
        self.hub.close()


def test_a_clock_that_is_set_back_stops_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        settings = Settings(steps=1, groups_per_step=1, group_size=1, reconnect_grace=0.1)
        hub = Hub(SqliteLedger(tmp_path, settings))
        pump = asyncio.create_task(hub.run())
        greeting = Greeting("uid/1", "pod", "uid", "reward", "reward", 1)
        worker = presence.hello(hub.state, greeting, hub.now())
        assert worker is not None
        await hub.durable()  # the pump has ticked by the clock as it was
        an_hour_ago = time.time() - 3600.0
        monkeypatch.setattr(time, "time", lambda: an_hour_ago)
        presence.disconnected(hub.state, worker, hub.now())
        async with asyncio.timeout(SECONDS):
            while worker.id in hub.state.workers:
                await hub.durable()
        progress = await ControlService(hub, JOB_UID).GetProgress(
            control_pb2.ProgressRequest(), None
        )
        assert 0.0 <= an_hour_ago - progress.last_progress_at < SECONDS, "as the operator counts"
        pump.cancel()
        hub.close()

    asyncio.run(main())


def test_nothing_is_said_while_the_commit_is_under_way(tmp_path: Path) -> None:
    """A disk that takes its time: the Welcome of a worker waits for it."""

    async def story() -> None:
        async with SlowDisk(tmp_path) as disk:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(disk.queue.get(), 0.5)
            disk.is_done.set()
            assert await asyncio.wait_for(disk.queue.get(), SECONDS)

    asyncio.run(story())


def test_a_worker_that_comes_back_during_a_commit_hears_its_welcome_first(tmp_path: Path) -> None:
    """What was meant for its broken stream is not sent on the new one: Hello and Welcome settle it."""

    async def story() -> None:
        async with SlowDisk(tmp_path) as disk:
            state = disk.hub.state
            disk.is_done.set()
            await asyncio.wait_for(disk.queue.get(), SECONDS)
            disk.is_done.clear()
            disk.under_way.clear()
            state.ack("uid/1", [7], leases.FENCED)
            state.writes.meta["progress"] = {}
            disk.hub.wake()
            assert await asyncio.to_thread(disk.under_way.wait, SECONDS)
            again = disk.hub.attach("uid/1")
            presence.hello(state, disk.greeting, time.time())
            disk.is_done.set()
            first = await asyncio.wait_for(again.get(), SECONDS)
            assert first and ToWorker.FromString(first).HasField("welcome")

    asyncio.run(story())


def test_who_needs_a_transaction_waits_for_that_one_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with SlowDisk(tmp_path) as disk:
            await asyncio.wait_for(disk.hub.durable(0), 0.5)
            waiting = asyncio.create_task(disk.hub.durable(disk.transaction))
            await asyncio.wait([waiting], timeout=0.5)
            assert not waiting.done(), "it is under way"
            disk.is_done.set()
            await asyncio.wait_for(waiting, SECONDS)
            disk.is_done.clear()
            await asyncio.wait_for(disk.hub.durable(disk.transaction), 0.5)

    asyncio.run(story())


def test_each_result_has_its_verdict(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    first, second = job.environment.assigned(2)
    assert job.environment.finish(first) == [Ack.STORED]
    assert job.environment.finish(first) == [Ack.DUPLICATE]
    foreign = Peer(scheduler, "environment", pod="environment-1", pod_uid="uid-other")
    foreign.expect("welcome")
    assert foreign.finish(second) == [Ack.FENCED], "it is another worker's lease"
    foreign.break_stream()
    failure = Failure(
        unit=second.unit, lease=second.lease, stage="reset", kind=Failure.TIMEOUT, message="slow"
    )
    job.environment.send(failures=Failures(items=[failure]))
    assert job.environment.verdicts(1) == [Ack.STORED]
    (again,) = job.environment.assigned()
    assert again.unit == second.unit and again.lease != second.lease and again.attempt == 2
    assert job.environment.finish(second) == [Ack.FENCED], "its lease is over"


@pytest.mark.parametrize(
    "broken",
    [{"sizes": [1]}, {"sizes": [1, 2]}, {"turns": [1]}, {"groups": [1]}, {"rewards": [1.0]}],
)
def test_results_that_do_not_fit_together_are_refused_with_the_reason(
    scheduler: Scheduler, broken: dict[str, list[Any]]
) -> None:
    job = Job.begin(scheduler.start())
    tasks = job.environment.assigned(2)
    message = pack_results([job.environment.result(t, b"ok") for t in tasks])
    message.has_reward[:] = [True, True]
    message.rewards[:] = [0.5, 0.5]
    for name, values in broken.items():
        getattr(message, name)[:] = values
    job.environment.send(results=message)
    refused = job.environment.expect("refused")
    assert refused.reason == "protocol" and "environment-0" in refused.message
    job.environment.break_stream()
    job.environment.connect()
    again = job.environment.assigned(2)
    assert {t.unit.group for t in again} == {t.unit.group for t in tasks}, "nothing was stored"
    assert job.environment.finish(*again) == [Ack.STORED] * 2


def test_many_items_fit_in_one_message(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start(groupsPerStep=40, groupSize=4))
    resets = job.environment.assigned(16)
    payload = b"p" * 20_000
    for first in range(0, 16, 8):
        items = [job.environment.result(t, payload) for t in resets[first : first + 8]]
        job.environment.send(results=pack_results(items))
    assert job.environment.verdicts(16) == [Ack.STORED] * 16
    messages = []
    while sum(len(m.leases) for m in messages) < 64:
        messages.append(job.engine.expect("assign"))
    assert all(len(m.leases) <= 64 and m.ByteSize() < 1.2e6 for m in messages)
    assert len(messages) >= 2, "64 trajectories of 20 kB are more than 1 MB"


def test_a_worker_that_reconnects_keeps_its_leases(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    tasks = job.environment.assigned(2)
    job.environment.break_stream()
    held = [Held(unit=t.unit, lease=t.lease, stage=t.stage) for t in tasks]
    job.environment.connect(held=held)
    welcome = job.environment.expect("welcome")
    assert list(welcome.fenced) == []
    assert job.environment.gets_nothing("assign", 1.0), "nothing is issued twice"
    assert job.environment.finish(*tasks) == [Ack.STORED] * 2


def test_an_assign_that_never_arrived_is_issued_again(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    lost = job.environment.assigned(2)
    job.environment.break_stream()
    job.environment.connect(held=[])
    job.environment.expect("welcome")
    again = job.environment.assigned(2)
    assert {t.unit.group for t in again} == {t.unit.group for t in lost}
    assert not {t.lease.number for t in again} & {t.lease.number for t in lost}
    assert {t.attempt for t in again} == {1}, "nobody's fault"


def test_leases_survive_a_killed_scheduler_and_are_not_issued_twice(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    first, second = job.environment.assigned(2)
    scheduler.kill()
    scheduler.start()
    held = [Held(unit=t.unit, lease=t.lease, stage=t.stage) for t in (first, second)]
    job.environment.connect(held=held)
    welcome = job.environment.expect("welcome")
    assert welcome.term == 2 and list(welcome.fenced) == []
    other = Peer(scheduler, "environment", pod="environment-1", pod_uid="uid-other")
    other.expect("welcome")
    assert other.gets_nothing("assign", 4.0), "also not after the grace"
    assert job.environment.finish(first, second) == [Ack.STORED] * 2
    assert verify(scheduler).problems == []


def test_leases_of_a_worker_that_does_not_return_go_elsewhere(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    held = job.environment.assigned(2)
    scheduler.kill()
    scheduler.start()
    other = Peer(scheduler, "environment", pod="environment-1", pod_uid="uid-other")
    engine = Peer(scheduler, "inference", "policy")
    engine.expect("welcome")
    other.expect("welcome")
    began = time.monotonic()
    again = other.assigned(2)
    assert time.monotonic() - began > 1.0, "not before the grace is over"
    assert {t.unit.group for t in again} == {t.unit.group for t in held}
    job.environment.connect(held=[Held(unit=t.unit, lease=t.lease, stage="reset") for t in held])
    assert len(job.environment.expect("welcome").fenced) == 2
    assert job.environment.finish(*held) == [Ack.FENCED] * 2
    assert other.finish(*again) == [Ack.STORED] * 2


def test_gone_pods_are_fenced_and_their_work_goes_on_at_once(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    held = job.environment.assigned(2)  # both, before there is anybody to share them with
    other = Peer(scheduler, "environment", pod="environment-1", pod_uid="uid-other")
    other.expect("welcome")
    scheduler.control.SyncPods(control_pb2.Pods(job_uid=JOB_UID, gone=["uid-environment"]))
    (first,) = other.assigned()  # suspects: one may have killed the pod, so each is tried alone
    assert other.finish(first) == [Ack.STORED]
    (second,) = other.assigned()
    assert {first.unit.group, second.unit.group} == {t.unit.group for t in held}
    for incarnation in (1, 2):
        back = Peer(scheduler, "environment", incarnation=incarnation)
        refused = back.expect("refused")
        assert refused.reason == "fenced" and "environment-0" in refused.message
    scheduler.kill()
    scheduler.start()
    assert Peer(scheduler, "environment", incarnation=3).expect("refused").reason == "fenced"


def test_the_worker_of_another_job_is_refused(scheduler: Scheduler) -> None:
    scheduler.start()
    refused = Peer(scheduler, "reward", job_uid="another").expect("refused")
    assert refused.reason == "wrong-job" and JOB_UID in refused.message


def test_changed_data_are_refused_with_what_to_do(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    assert job.environment
    changed = [DataSet(split="train", rows=100, content_hash="other")]
    refused = Peer(scheduler, "environment", pod_uid="uid-2", data=changed).expect("refused")
    assert refused.reason == "data-changed" and "--fresh" in refused.message


def test_the_first_message_is_hello(scheduler: Scheduler) -> None:
    scheduler.start()
    stub = session_pb2_grpc.SessionStub(scheduler.channel())
    with pytest.raises(grpc.RpcError) as raised:
        list(stub.Open(iter([FromWorker(ping=Ping())]), timeout=SECONDS))
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_call_is_answered_with_an_error_until_calls_are_served(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    job.reward.send(call=Call(id=7, stage="generate@policy"))
    answer = job.reward.expect("answer")
    assert answer.id == 7 and "not served" in answer.error


# The trainer.


def test_an_old_term_is_a_failed_precondition(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    old = job.who()
    newer = Peer(
        scheduler, "trainer", pod="trainer-0", pod_uid="uid-t9", rank=0, world=1, attempt=1
    )
    assert newer.expect("welcome").trainer_term == job.term + 1
    calls = scheduler.trainer
    checkpoint = trainer_pb2.Checkpoint(step=0, lineage=1, path="p", digest="d")
    for call in (
        lambda: calls.GetPosition(trainer_pb2.PositionRequest(trainer=old)),
        lambda: calls.Rewind(trainer_pb2.RewindRequest(trainer=old, step=0)),
        lambda: calls.AcquireBatch(trainer_pb2.BatchRequest(trainer=old, step=1)),
        lambda: list(calls.FetchShard(trainer_pb2.ShardRequest(trainer=old, step=1, world=1))),
        lambda: calls.ReportStep(trainer_pb2.StepReport(trainer=old, step=1)),
        lambda: calls.ReportStep(trainer_pb2.StepReport(trainer=old, step=0)),
        lambda: calls.PublishVersion(trainer_pb2.Publication(trainer=old)),
        lambda: calls.CommitCheckpoint(
            trainer_pb2.CheckpointCommit(trainer=old, checkpoint=checkpoint)
        ),
    ):
        with pytest.raises(grpc.RpcError) as raised:
            call()
        assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def test_calls_out_of_order_are_out_of_range(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    for call in (lambda: job.acquire(3), lambda: job.fetch(1), lambda: job.commit(2)):
        with pytest.raises(grpc.RpcError) as raised:
            call()
        assert raised.value.code() == grpc.StatusCode.OUT_OF_RANGE


def test_a_trainer_that_waits_is_answered_when_the_batch_is_there(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(job.acquire(1)))
    waiting.start()
    job.generate_and_score()
    finished = time.monotonic()
    waiting.join(SECONDS)
    assert time.monotonic() - finished < 5.0 and answers
    assert answers[0].samples == 4 and answers[0].waited_seconds > 0  # type: ignore[attr-defined]


def test_no_batch_is_formed_for_a_trainer_that_stopped_waiting(scheduler: Scheduler) -> None:
    """As one does that is drained. It would count as an attempt of a batch that nobody was handed."""
    job = Job.begin(scheduler.start())
    with pytest.raises(grpc.RpcError) as gone:
        job.acquire(1, seconds=0.5)
    assert gone.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    job.generate_and_score()
    request = trainer_pb2.PositionRequest(trainer=job.who())
    assert scheduler.trainer.GetPosition(request).batched == 0
    assert job.acquire(1).samples == 4


def test_a_dead_call_that_is_noticed_late_does_not_end_the_wait_of_the_next(tmp_path: Path) -> None:
    """A trainer that lost its connection asks again on a new one before the old one's end is known."""

    async def main() -> None:
        hub = Hub(SqliteLedger(tmp_path, Settings(steps=1, groups_per_step=1, group_size=1)))
        pump = asyncio.create_task(hub.run())
        trainer = Greeting("uid/1", "trainer-0", "uid", "trainer", "trainer", attempt=0)
        presence.hello(hub.state, trainer, hub.now())
        service = TrainerService(hub)
        request = trainer_pb2.BatchRequest(trainer=trainer_pb2.TrainerId(term=1), step=1)
        calls = [asyncio.create_task(service.AcquireBatch(request, None)) for _ in range(2)]
        await hub.durable()
        for call, asked in zip(calls, (1, 0), strict=True):
            call.cancel()
            await asyncio.wait([call])
            assert hub.state.asked == asked
        pump.cancel()
        hub.close()

    asyncio.run(main())


def test_a_trainer_fenced_while_it_waits_is_told(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    codes: list[grpc.StatusCode] = []

    def wait() -> None:
        try:
            job.acquire(1)
        except grpc.RpcError as error:
            codes.append(error.code())

    waiting = threading.Thread(target=wait)
    waiting.start()
    newer = Peer(
        scheduler, "trainer", pod="trainer-0", pod_uid="uid-t9", rank=0, world=1, attempt=1
    )
    newer.expect("welcome")
    waiting.join(SECONDS)
    assert codes == [grpc.StatusCode.FAILED_PRECONDITION]


def test_two_ranks_are_welcomed_together_and_share_a_batch(scheduler: Scheduler) -> None:
    scheduler.start(groupsPerStep=40, groupSize=4)
    first = Peer(scheduler, "trainer", pod="trainer-0", pod_uid="uid-t0", rank=0, world=2)
    assert first.gets_nothing("welcome", 0.5)
    first.break_stream()
    job = Job.begin(scheduler, world=2)
    payload = b"p" * 9_000
    done = 0
    while done < 40:
        resets = job.environment.assigned()
        job.environment.send(
            results=pack_results([job.environment.result(t, payload) for t in resets])
        )
        job.environment.verdicts(len(resets))
        done += len(resets)
        tasks = job.engine.assigned(4 * len(resets))
        for at in range(0, len(tasks), 32):
            items = [job.engine.result(t, payload) for t in tasks[at : at + 32]]
            job.engine.send(results=pack_results(items))
        job.engine.verdicts(len(tasks))
        scores = job.reward.assigned(4 * len(resets))
        for at in range(0, len(scores), 32):
            job.reward.finish(*scores[at : at + 32])
    assert job.acquire(1).samples == 160
    shares = [job.fetch(1, rank, 2) for rank in (0, 1)]
    for share in shares:
        assert len(share) > 1 and all(chunk.ByteSize() < 1.2e6 for chunk in share)
    places = [s.position for share in shares for chunk in share for s in unpack_samples(chunk)]
    assert sorted(places) == list(range(160))
    assert [sum(len(c.groups) for c in share) for share in shares] == [80, 80]


def test_a_batch_is_the_same_after_kill_9(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    job.generate_and_score()
    before = (job.acquire(1).digest, job.fetch(1))
    scheduler.kill()
    scheduler.start()
    job.ranks[0].connect()
    assert job.ranks[0].expect("welcome").trainer_term == job.term
    assert (job.acquire(1).digest, job.fetch(1)) == before


# The operator's side.


def test_samples_in_flight_and_one_samples_story(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    resets = job.environment.assigned(2)
    listed = scheduler.control.ListSamples(control_pb2.SamplesRequest())
    assert [(s.stage, s.state, s.worker) for s in listed.samples] == [
        ("reset", "leased", "environment-0")
    ] * 2
    assert not any(s.HasField("version") for s in listed.samples), "nothing was sampled yet"
    job.environment.finish(*resets)
    tasks = job.engine.assigned(4)
    listed = scheduler.control.ListSamples(control_pb2.SamplesRequest(limit=3))
    assert listed.total == 4 and len(listed.samples) == 3
    assert {(s.stage, s.worker) for s in listed.samples} == {("generate", "inference-0")}
    job.engine.finish(tasks[0])
    story = scheduler.control.GetSample(control_pb2.SampleRequest(unit=tasks[0].unit))
    assert [e.what for e in story.events] == ["admitted", "reset", "generate"]
    assert story.state.stage == "score"
    assert story.state.HasField("version") and story.state.version.number == 0
    with pytest.raises(grpc.RpcError) as raised:
        scheduler.control.GetSample(control_pb2.SampleRequest(unit=Unit(group=99)))
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


def test_progress_tells_who_is_there(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    job.environment.assigned(2)
    progress = scheduler.control.GetProgress(control_pb2.ProgressRequest())
    workers = {w.pod: (w.role, w.connected, w.ready, w.leases) for w in progress.workers}
    assert workers == {
        "trainer-0": ("trainer", True, True, 0),
        "environment-0": ("environment", True, True, 2),
        "inference-0": ("inference", True, True, 0),
        "reward-0": ("reward", True, True, 0),
    }
    assert progress.samples["waiting"] == 4 and progress.lineage == 1


# The process.


def test_sigterm_ends_it_well_and_soon(scheduler: Scheduler) -> None:
    job = Job.begin(scheduler.start())
    job.environment.assigned(2)
    assert scheduler.process
    began = time.monotonic()
    scheduler.process.send_signal(signal.SIGTERM)
    assert scheduler.process.wait(SECONDS) == 0
    assert time.monotonic() - began < 5.0
    assert verify(scheduler).problems == []


def test_a_port_in_use_is_one_line_and_exit_2(scheduler: Scheduler) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", scheduler.port))
        taken.listen()
        process = scheduler.launch()
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert said.splitlines()[-1] == (
        f"error: the scheduler cannot listen on {scheduler.address}: is the port in use?"
    )


def test_a_ledger_with_a_second_writer_ends_it_for_a_restart(scheduler: Scheduler) -> None:
    """Exit 2 would end the job: but the other one may be gone soon."""
    process = scheduler.start().process
    assert process
    other = sqlite3.connect(scheduler.folder / "ledger" / "ledger.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(grpc.RpcError):
        scheduler.control.SyncPods(control_pb2.Pods(gone=["uid"]), timeout=SECONDS)
    _, said = process.communicate(timeout=SECONDS)
    other.close()
    assert process.returncode == 1
    assert "another process writes to it" in said.splitlines()[-1]


def test_a_scheduler_whose_ledger_was_opened_by_a_newer_one_ends_in_one_line(
    scheduler: Scheduler,
) -> None:
    process = scheduler.start().process
    assert process
    newer = SqliteLedger(scheduler.folder / "ledger", Settings(1, 1, 1))
    newer.open(0.0)
    with pytest.raises(grpc.RpcError):
        scheduler.control.SyncPods(control_pb2.Pods(gone=["uid"]), timeout=SECONDS)
    _, said = process.communicate(timeout=SECONDS)
    newer.close()
    assert process.returncode == 1
    last = said.splitlines()[-1]
    assert last.startswith("error: ") and "a newer scheduler has opened it (term 2" in last


def test_a_ledger_that_is_no_ledger_is_one_line_and_exit_2(scheduler: Scheduler) -> None:
    (scheduler.folder / "ledger").mkdir()
    (scheduler.folder / "ledger" / "ledger.sqlite").write_bytes(os.urandom(8192))
    process = scheduler.launch()
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert said.splitlines()[-1].startswith("error: ") and "ledger" in said.splitlines()[-1]


def test_the_job_of_these_tests_is_a_valid_one() -> None:
    assert RLJob.model_validate(job_document()).spec.rollout.groups_per_step == 2
