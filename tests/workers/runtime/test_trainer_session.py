"""A trainer's calls wait out a scheduler that is away, and stop at once when a newer trainer exists."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from roll_wire import trainer_pb2, trainer_pb2_grpc
from roll_wire.columns import ShardSample, pack_samples, unpack_samples
from roll_wire.ports import free_port
from roll_wire.session_pb2 import Drain, Refused
from roll_workers import errors
from roll_workers.runtime.trainer_session import TrainerSession
from scheduler import TIMEOUT, Scheduler, config_for


class Batches(trainer_pb2_grpc.TrainerServicer):
    def __init__(self) -> None:
        self.term = 7
        self.not_yet = 0
        self.requests: list[Any] = []
        self.breaks = 0
        self.hangs = False  # takes calls, and answers none

    async def AcquireBatch(self, request: Any, context: Any) -> trainer_pb2.Batch:
        self.requests.append(request)
        if request.trainer.term < self.term:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"term {self.term} has begun")
        if self.not_yet:
            self.not_yet -= 1
            return trainer_pb2.Batch(step=request.step, retry=True)
        return trainer_pb2.Batch(step=request.step, samples=2)

    async def FetchShard(self, request: Any, context: Any) -> AsyncIterator[trainer_pb2.ShardChunk]:
        yield pack_samples([ShardSample((0, 0), 0, 0.0, (0.0,), b"")])
        if self.hangs:
            await asyncio.Event().wait()
        if self.breaks:
            self.breaks -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "going away")
        yield pack_samples([ShardSample((0, 1), 1, 0.0, (0.0,), b"")])

    async def CommitCheckpoint(self, request: Any, context: Any) -> trainer_pb2.CheckpointReply:
        if self.hangs:
            await asyncio.Event().wait()
        return trainer_pb2.CheckpointReply()


class Running:
    """The scheduler in a thread of its own: the trainer's side blocks."""

    def __init__(self) -> None:
        self.port = free_port()
        self.batches = Batches()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.do(self._make())

    async def _make(self) -> None:
        self.scheduler = Scheduler(self.port)

    def do(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(TIMEOUT)

    def start(self) -> None:
        def add(server: grpc.aio.Server) -> None:
            trainer_pb2_grpc.add_TrainerServicer_to_server(self.batches, server)

        self.do(self.scheduler.start(add))

    def kill(self) -> None:
        self.do(self.scheduler.kill())

    def say(self, **message: Any) -> None:
        self.loop.call_soon_threadsafe(lambda: self.scheduler.say(**message))

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        threading.Timer(seconds, act).start()


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running()
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    yield running
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if running.scheduler.server is not None:
        running.kill()
    running.loop.call_soon_threadsafe(running.loop.stop)


def trainer(running: Running, **changes: Any) -> TrainerSession:
    named = {"role": "trainer", "pod": "j-trainer-0", "rank": 1, "world": 2, "attempt": 4}
    return TrainerSession(config_for(running.port, **(named | changes)))


def test_hello_names_rank_world_and_attempt_and_every_call_carries_the_term(
    running: Running,
) -> None:
    running.start()
    with trainer(running) as session:
        assert session.welcome() == (7, 1)
        session.calls.AcquireBatch(trainer_pb2.BatchRequest(step=3))
    [hello] = running.scheduler.hellos
    assert (hello.role, hello.rank, hello.world, hello.attempt) == ("trainer", 1, 2, 4)
    [request] = running.batches.requests
    assert (request.trainer.job_uid, request.trainer.term, request.trainer.rank) == (
        "job-uid",
        7,
        1,
    )


def test_a_batch_that_is_not_complete_is_asked_for_again(running: Running) -> None:
    running.start()
    running.batches.not_yet = 3
    with trainer(running) as session:
        batch = session.calls.AcquireBatch(trainer_pb2.BatchRequest(step=3))
    assert batch.samples == 2
    assert len(running.batches.requests) == 4


def test_a_call_waits_for_a_scheduler_that_is_away(running: Running) -> None:
    running.start()
    with trainer(running) as session:
        session.welcome()
        running.kill()
        running.later(0.5, running.start)
        batch = session.calls.AcquireBatch(trainer_pb2.BatchRequest(step=3))
    assert batch.step == 3


def test_a_broken_shard_is_fetched_from_the_start(running: Running) -> None:
    running.start()
    running.batches.breaks = 2
    with trainer(running) as session:
        chunks = session.calls.FetchShard(trainer_pb2.ShardRequest(step=3, world=2))
    assert running.batches.breaks == 0
    assert [s.position for chunk in chunks for s in unpack_samples(chunk)] == [0, 1]


def test_an_older_term_is_fenced(running: Running) -> None:
    running.start()
    with trainer(running) as session:
        session.welcome()
        running.batches.term = 8
        with pytest.raises(errors.Fenced, match="term 8 has begun"):
            session.calls.AcquireBatch(trainer_pb2.BatchRequest(step=3))


def test_a_refusal_on_the_stream_reaches_a_call_that_waits(running: Running) -> None:
    running.start()
    running.batches.not_yet = 1_000_000
    with trainer(running) as session:
        session.welcome()
        running.later(0.3, lambda: running.say(refused=Refused(reason="fenced")))
        with pytest.raises(errors.Refused, match="fenced"):
            session.calls.AcquireBatch(trainer_pb2.BatchRequest(step=3))


@pytest.mark.parametrize("by", ["signal", "scheduler"])
def test_a_drain_interrupts_waiting_but_not_saving(running: Running, by: str) -> None:
    running.start()
    running.batches.not_yet = 1_000_000
    with trainer(running) as session:
        session.welcome()
        if by == "signal":
            running.later(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM))
        else:
            running.later(0.3, lambda: running.say(drain=Drain(reason="suspended")))
        with pytest.raises(errors.Drained):
            session.calls.AcquireBatch(trainer_pb2.BatchRequest(step=3))
        assert session.draining.is_set()
        assert session.calls.FetchShard(trainer_pb2.ShardRequest(step=3, world=2))


def test_a_drained_trainer_does_not_wait_for_a_scheduler_for_ever(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roll_workers.runtime.trainer_session.DRAIN_SECONDS", 1.0)
    running.start()
    with trainer(running) as session:
        session.welcome()
        session.drain("SIGTERM")
        running.kill()
        running.later(0.4, running.start)
        assert session.calls.FetchShard(trainer_pb2.ShardRequest(step=3)), "it came back in time"
        running.kill()
        with pytest.raises(errors.Drained, match="no scheduler"):
            session.calls.FetchShard(trainer_pb2.ShardRequest(step=3))
        running.start()


@pytest.mark.parametrize("call", ["FetchShard", "CommitCheckpoint"])
def test_a_drained_trainer_does_not_wait_for_a_scheduler_that_hangs(
    running: Running, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr("roll_workers.runtime.trainer_session.DRAIN_SECONDS", 1.0)
    running.start()
    running.batches.hangs = True
    requests = {
        "FetchShard": trainer_pb2.ShardRequest(step=3, world=2),
        "CommitCheckpoint": trainer_pb2.CheckpointCommit(),
    }
    with trainer(running) as session:
        session.welcome()
        running.later(0.5, lambda: session.drain("SIGTERM"))
        with pytest.raises(errors.Drained, match="does not answer"):
            getattr(session.calls, call)(requests[call])


def test_a_refusal_on_the_stream_reaches_a_share_that_does_not_come(running: Running) -> None:
    running.start()
    running.batches.hangs = True
    with trainer(running) as session:
        session.welcome()
        running.later(0.3, lambda: running.say(refused=Refused(reason="fenced")))
        with pytest.raises(errors.Refused, match="fenced"):
            session.calls.FetchShard(trainer_pb2.ShardRequest(step=3, world=2))


def test_a_drain_before_all_ranks_are_there_ends_the_wait(running: Running) -> None:
    with trainer(running) as session:
        running.later(0.3, lambda: session.drain("SIGTERM"))
        with pytest.raises(errors.Drained):
            session.welcome()


def test_a_port_in_use_is_a_clear_error(running: Running) -> None:
    running.start()
    with (
        trainer(running, port=running.port) as session,
        pytest.raises(errors.UserError, match=f"port {running.port}.*in use"),
    ):
        session.welcome()
