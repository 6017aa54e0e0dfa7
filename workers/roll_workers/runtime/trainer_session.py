"""The trainer's side of the scheduler: a stream in a background thread, and blocking calls that wait it out.

Invariants:
- Welcome is the start barrier: it comes when all ranks of this attempt have said Hello;
- every call carries the term of that Welcome; once a newer term exists every call raises `Fenced`;
- a scheduler that is away makes a call slower, never wrong: all calls may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, TypeVar

import grpc
from roll_wire import trainer_pb2
from roll_wire.trainer_pb2_grpc import TrainerStub

from roll_workers.errors import Drained, Fenced
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.connection import Unready, to_scheduler
from roll_workers.runtime.session import DRAIN_SECONDS, AddService, Draining, Session
from roll_workers.runtime.stream import FIRST_DELAY, LAST_DELAY, Denied

log = logging.getLogger(__name__)

DRAIN_TRIES = 10  # of a call, over DRAIN_SECONDS, once the process is to stop
POLL_SECONDS = 0.2  # how soon a waiting call notices SIGTERM or a fence
_AWAY = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNAUTHENTICATED,
)
Answer = TypeVar("Answer")
Part = TypeVar("Part")


class TrainerSession:
    """Starts when it is made; `serve` adds services (weights) to the server of this process."""

    def __init__(self, config: WorkerConfig, *serve: AddService) -> None:
        self.config = config
        self.draining = threading.Event()
        self.calls = TrainerCalls(self)
        self.address = ""  # of this process's own services, once welcomed
        self._serve = serve
        self._welcome: Future[tuple[int, int]] = Future()
        self._error: BaseException | None = None
        self._session: Session | None = None
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._signalled)
            signal.signal(signal.SIGINT, self._signalled)
        self._thread = threading.Thread(target=self._main, name="trainer-session", daemon=True)
        self._thread.start()

    def welcome(self) -> tuple[int, int]:
        """Waits for all ranks; returns (term of this trainer, lineage)."""
        while True:
            try:
                return self._welcome.result(POLL_SECONDS)
            except TimeoutError:
                self.check(waiting=True)

    def take_term(self, term: int) -> int:
        """All calls from now on carry this term; 0: as before. Returns the term."""
        before, lineage = self.welcome()
        if term in (0, before):
            return before
        self._welcome = Future()
        self._welcome.set_result((term, lineage))
        if self._session is not None:
            self._session.trainer_term = term
        return term

    def drain(self, reason: str) -> None:
        """May be called from a signal handler and from any thread."""
        if not self.draining.is_set():
            log.info("the trainer is to stop: %s", reason)
            self.draining.set()

    def stay(self) -> None:
        """Waits until the scheduler says that the job is over, or a signal does."""
        while not self.draining.wait(POLL_SECONDS):
            self.check()

    def check(self, *, waiting: bool = False) -> None:
        """Raises what ended the session: a fence at any time, a drain to whoever only waits."""
        if self._error is not None:
            raise self._error
        if waiting and self.draining.is_set():
            raise Drained("asked to stop while waiting for the scheduler")

    def close(self) -> None:
        with suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(DRAIN_SECONDS)
        self.calls.close()

    def __enter__(self) -> TrainerSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.drain(signal.Signals(number).name)

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._stream())
        except BaseException as error:
            self._error = error

    async def _stream(self) -> None:
        following = asyncio.create_task(self._follow())
        closing = asyncio.create_task(self._closing.wait())
        await asyncio.wait({following, closing}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
        following.cancel()
        await asyncio.wait({following})

    async def _follow(self) -> None:
        """Keeps the stream until `close`: while a drained trainer saves, it is still this job's trainer."""
        async with Session(self.config, pool="trainer", credits=0, serve=self._serve) as session:
            if session.draining:
                self.drain(session.draining)
                return
            self.address, self._session = session.address, session
            self._welcome.set_result((session.trainer_term, session.lineage))
            async for event in session:
                if isinstance(event, Draining):
                    self.drain(event.reason)
                    break
            raise await session.ended()


class TrainerCalls:
    """The Trainer service, blocking. Requests need no `trainer`: it is filled in."""

    def __init__(self, session: TrainerSession) -> None:
        self._session = session
        self._channel: grpc.Channel | None = None

    def GetPosition(self, request: trainer_pb2.PositionRequest) -> trainer_pb2.Position:
        return self._call(lambda stub: stub.GetPosition, request)

    def Rewind(self, request: trainer_pb2.RewindRequest) -> trainer_pb2.RewindReply:
        return self._call(lambda stub: stub.Rewind, request)

    def AcquireBatch(self, request: trainer_pb2.BatchRequest) -> trainer_pb2.Batch:
        """Waits for the batch as long as it takes; raises `Drained` when the process is to stop."""
        while True:
            batch = self._call(lambda stub: stub.AcquireBatch, request, waiting=True)
            if not batch.retry:
                return batch

    def FetchShard(self, request: trainer_pb2.ShardRequest) -> list[trainer_pb2.ShardChunk]:
        """The whole share; a broken stream starts over."""

        def once() -> list[trainer_pb2.ShardChunk]:
            call = self._stub.FetchShard(request)
            chunks: list[trainer_pb2.ShardChunk] = []
            whole: Future[list[trainer_pb2.ShardChunk]] = Future()
            # In a thread: reading a stream waits for as long as it takes.
            threading.Thread(target=_gather, args=(call, chunks, whole), daemon=True).start()
            try:
                return self._answer(whole.result, arrived=chunks)
            finally:
                call.cancel()

        return self._repeat(request, once)

    def ReportStep(self, request: trainer_pb2.StepReport) -> trainer_pb2.Done:
        return self._call(lambda stub: stub.ReportStep, request)

    def PublishVersion(self, request: trainer_pb2.Publication) -> trainer_pb2.Done:
        return self._call(lambda stub: stub.PublishVersion, request)

    def CommitCheckpoint(
        self, request: trainer_pb2.CheckpointCommit
    ) -> trainer_pb2.CheckpointReply:
        return self._call(lambda stub: stub.CommitCheckpoint, request)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    @property
    def _stub(self) -> TrainerStub:
        if self._channel is None:
            self._channel = to_scheduler(self._session.config)
        return TrainerStub(self._channel)

    def _call(
        self,
        method: Callable[[TrainerStub], grpc.UnaryUnaryMultiCallable[Any, Answer]],
        request: Any,
        *,
        waiting: bool = False,
    ) -> Answer:
        def once() -> Answer:
            call = method(self._stub).future(request)
            try:
                return self._answer(call.result, waiting=waiting)
            finally:
                call.cancel()

        return self._repeat(request, once, waiting=waiting)

    def _answer(
        self,
        result: Callable[[float], Answer],
        *,
        waiting: bool = False,
        arrived: Sequence[object] = (),
    ) -> Answer:
        """Waits for the result; while the process is to stop only as long as more of it arrives now and then."""
        session = self._session
        count, ends = 0, time.monotonic() + DRAIN_SECONDS
        while True:
            try:
                return result(POLL_SECONDS)
            except (grpc.FutureTimeoutError, TimeoutError):
                session.check(waiting=waiting)
            now = time.monotonic()
            if not session.draining.is_set() or len(arrived) > count:
                count, ends = len(arrived), now + DRAIN_SECONDS
            elif now >= ends:
                raise Drained(
                    f"asked to stop, and the scheduler at {session.config.scheduler} does not answer"
                )

    def _repeat(
        self, request: Any, attempt: Callable[[], Answer], *, waiting: bool = False
    ) -> Answer:
        """Tries until the scheduler answers; a trainer that is to stop tries for a few seconds only."""
        session = self._session
        term, _ = session.welcome()
        request.trainer.CopyFrom(
            trainer_pb2.TrainerId(
                job_uid=session.config.job_uid, term=term, rank=session.config.rank
            )
        )
        delay, tries_while_draining, denied = FIRST_DELAY, 0, Denied()
        while True:
            session.check(waiting=waiting)
            try:
                return attempt()
            except grpc.FutureCancelledError:
                reason = "cancelled"
            except Unready as error:
                reason = str(error)
            except grpc.RpcError as error:
                code = error.code()  # type: ignore[attr-defined]
                reason = error.details() or ""  # type: ignore[attr-defined]
                if code == grpc.StatusCode.FAILED_PRECONDITION:
                    raise Fenced(reason) from error
                denied.check(code, reason)
                if code not in _AWAY:
                    raise
                if session.config.trust is not None:
                    self.close()  # the next one trusts what is to be trusted by then
            if delay == FIRST_DELAY:
                log.warning("no scheduler at %s (%s), will retry", session.config.scheduler, reason)
            if session.draining.is_set():
                tries_while_draining += 1
                if tries_while_draining > DRAIN_TRIES:
                    raise Drained(f"asked to stop, and no scheduler at {session.config.scheduler}")
                time.sleep(DRAIN_SECONDS / DRAIN_TRIES)
            else:
                session.draining.wait(delay)
                delay = min(delay * 2, LAST_DELAY)


def _gather(stream: Iterable[Part], into: list[Part], whole: Future[list[Part]]) -> None:
    try:
        for part in stream:
            into.append(part)
        whole.set_result(into)
    except BaseException as error:
        whole.set_exception(error)
