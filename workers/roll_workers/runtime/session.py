"""The session of a worker with its job's scheduler: tasks in, results out, however often the stream breaks.

Invariants:
- nothing that the role reported is forgotten before it is acknowledged: the scheduler may be away for
  minutes, or be another process when it comes back;
- `result` and `fail` never wait, and are for the thread of the event loop only;
- health says SERVING once the worker can be of use: welcomed and, if it serves the policy, holding a
  published version.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType

import grpc.aio
from roll_wire import PROTOCOL, session_pb2
from roll_wire.columns import unpack_tasks
from roll_wire.session_pb2 import Failure, FromWorker, Policy, PolicyVersion, Task, ToWorker

from roll_workers.errors import Fenced, Refused, UserError
from roll_workers.runtime import metrics
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.health import Services
from roll_workers.runtime.outbox import Cancelled, Outbox, lease_key, unit_key
from roll_workers.runtime.stream import Stream

__all__ = [
    "Cancelled",
    "Draining",
    "Event",
    "PolicyChange",
    "Session",
    "Version",
    "lease_key",
    "unit_key",
]

log = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0  # for the role to finish or return its work
LONELY_DRAIN_SECONDS = 1.0  # for the scheduler to come back and take the last results
POLICY = "policy"  # the one pool whose weights have versions
DATA_CHANGED = "data-changed"  # a reason to refuse that no restart mends

AddService = Callable[[grpc.aio.Server], None]
Version = PolicyVersion | tuple[int, int]  # (lineage, number)


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """New weights are published: fetch them, then say `holding`."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class Draining:
    """Finish or return what is held within ten seconds; then the iteration ends."""

    reason: str


Event = Task | Cancelled | PolicyChange | Draining


class Session:
    def __init__(
        self,
        config: WorkerConfig,
        *,
        pool: str,
        credits: int,
        data: Sequence[session_pb2.DataSet] = (),
        version: Version | None = None,
        address: str = "",
        serve: Sequence[AddService] = (),
    ) -> None:
        """`serve` adds services to this process's own server, whose address goes into Hello.

        `address` is for a caller that runs that server by itself.
        """
        self.config = config
        self._services = None if address else Services(config, *serve)
        self.welcomed = False  # by any scheduler yet
        self.term = 0  # the scheduler's
        self.lineage = 0
        self.trainer_term = 0
        self._ledger = ""
        self.draining = ""  # the reason, once asked
        self.error: BaseException | None = None
        self._pool, self._credits, self._data, self.address = pool, credits, data, address
        self._version = _version(version)
        self._outbox = Outbox()
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()  # something changed for whoever iterates
        self._stream = Stream(
            config,
            self._outbox,
            hello=self._hello,
            receive=self._receive,
            lost=self._news.set,
        )
        self._drain_ends = 0.0
        self._running: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._stream.connected

    # The role's side.

    def result(
        self,
        task: Task,
        payload: bytes,
        *,
        tokens: int = 0,
        oldest: Version | None = None,
        newest: Version | None = None,
        reward: float | None = None,
        done: bool = False,
        resident: bool = False,
    ) -> None:
        """Ends a task with what its stage added. A task that was cancelled meanwhile is ignored."""
        item = session_pb2.Result(
            unit=task.unit,
            lease=task.lease,
            stage=task.stage,
            turn=task.turn,
            payload=payload,
            tokens=tokens,
            oldest=_version(oldest),
            newest=_version(newest),
            has_reward=reward is not None,
            reward=reward,
            done=done,
            resident=resident,
            base_tokens=self._outbox.recorded(task),
        )
        if self._outbox.result(task, item):
            if tokens:
                metrics.TOKENS.inc(tokens)
            self._stream.due.set()

    def fail(self, task: Task, kind: Failure.Kind, message: str) -> None:
        """Ends a task without a result. A task that was cancelled meanwhile is ignored."""
        if self._outbox.failure(task, kind, message):
            metrics.FAILURES.labels(Failure.Kind.Name(kind).lower()).inc()
            self._stream.due.set()

    def progress(
        self,
        task: Task,
        tokens: int,
        partial: bytes = b"",
        oldest: Version | None = None,
        newest: Version | None = None,
    ) -> None:
        """A sign of life, cheap enough for every token: `tokens` of this turn so far, kept ones included.

        A partial holds the tokens since the last one; it is sent at once, and kept until the result is
        acknowledged, which holds only what came after it.
        """
        if not partial:
            self._outbox.alive(task, tokens)
            return
        item = session_pb2.ProgressItem(
            unit=task.unit,
            lease=task.lease,
            tokens=tokens,
            partial=partial,
            oldest=_version(oldest),
            newest=_version(newest),
            partial_tokens=tokens - self._outbox.recorded(task),
        )
        if self._outbox.partial(task, item):
            self._stream.due.set()

    def waiting(self, tasks: Iterable[Task]) -> None:
        """These have not begun, and nothing is wrong with them: say so well before `no_progress_ms` are over."""
        if self.connected and self._outbox.waiting(tasks):
            self._stream.due.set()

    def holding(self, version: Version) -> None:
        """This worker serves `version` from now on."""
        self._version = _version(version)
        self._tell(FromWorker(holding=session_pb2.Holding(version=self._version)))
        self._show_health()

    def set_credits(self, credits: int) -> None:
        """This worker can hold so many units at once from now on."""
        self._credits = credits
        self._tell(FromWorker(credit=session_pb2.Credit(credits=credits)))

    def release(self, tasks: Iterable[Task] | None = None) -> None:
        """Hands tasks back, all by default; nobody's fault, and not counted as an attempt."""
        for task in list(self._outbox.held.values() if tasks is None else tasks):
            self.fail(task, Failure.RETURNED, self.draining or "released")

    def held(self) -> list[Task]:
        """The tasks that this worker has neither finished nor failed."""
        return list(self._outbox.held.values())

    def drain(self, reason: str) -> None:
        """Takes nothing more, tells the role, and ends the iteration when all is delivered."""
        if self.draining:
            return
        self.draining = reason
        log.info("draining: %s", reason)
        loop = asyncio.get_running_loop()
        self._drain_ends = loop.time() + DRAIN_SECONDS
        for seconds in (LONELY_DRAIN_SECONDS, DRAIN_SECONDS):
            loop.call_later(seconds + 0.01, self._news.set)
        self.set_credits(0)
        self._emit(Draining(reason))

    # The iteration.

    async def __aenter__(self) -> Session:
        """Connects; waits for Welcome as long as it takes. Whatever ends the wait leaves nothing behind."""
        try:
            await self._enter()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def _enter(self) -> None:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.drain, signal.Signals(number).name)
        if self._services is not None:
            await self._services.start()
            self.address = self._services.address
        metrics.LEASES.set_function(lambda: len(self._outbox.held))
        self._running = loop.create_task(self._stream.run(), name="session")
        self._running.add_done_callback(self._ended)
        while not (self.welcomed or self.error or self.draining):
            await self._wait()
        if self.error:
            raise self.error

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().remove_signal_handler(number)
        if self._running is not None:
            self._running.remove_done_callback(self._ended)
            self._running.cancel()
            await asyncio.wait({self._running})
        if self._services is not None:
            await self._services.stop()

    def __aiter__(self) -> Session:
        return self

    async def __anext__(self) -> Event:
        while True:
            if self.error:
                raise self.error
            while self._events:
                event = self._events.popleft()
                # Cancelled before the role saw it.
                if isinstance(event, Task) and lease_key(event.lease) not in self._outbox.held:
                    continue
                return event
            if self.draining and self._is_drained():
                raise StopAsyncIteration
            await self._wait()

    async def ended(self) -> BaseException:
        """Waits for what ends the session against the role's will, without taking events."""
        while self.error is None:
            await self._wait()
        return self.error

    def _is_drained(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now >= self._drain_ends:
            return True
        if self._outbox.held:
            return False
        lonely = not self.connected and now >= (
            self._drain_ends - DRAIN_SECONDS + LONELY_DRAIN_SECONDS
        )
        return lonely or not self._outbox.unacknowledged

    def _show_health(self) -> None:
        if self._services is not None:
            self._services.show(self.welcomed and (self._pool != POLICY or bool(self._version)))

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        self._news.set()

    def _tell(self, message: FromWorker) -> None:
        self._outbox.control(message)
        self._stream.due.set()

    def _ended(self, running: asyncio.Task[None]) -> None:
        if not running.cancelled():
            self.error = running.exception()
        self._news.set()

    # What the scheduler says.

    def _receive(self, message: ToWorker) -> None:
        match message.WhichOneof("message"):
            case "assign":
                new = self._outbox.assigned(unpack_tasks(message.assign))
                if self.draining:
                    self.release(new)
                else:
                    self._events.extend(new)
                    self._news.set()
            case "ack":
                self._acknowledged(message.ack)
            case "cancel":
                self._emit(self._outbox.cancelled(message.cancel.leases, message.cancel.episodes))
            case "policy":
                self._emit(PolicyChange(message.policy))
            case "drain":
                self.drain(message.drain.reason)
            case "welcome":
                self._welcomed(message.welcome)
            case "refused":
                if message.refused.reason == DATA_CHANGED:
                    raise UserError(message.refused.message)
                raise Refused(message.refused.reason, message.refused.message)
            case other:
                log.debug("a message that this worker does not know: %s", other)

    def _acknowledged(self, ack: session_pb2.Ack) -> None:
        fenced = self._outbox.acknowledged(ack)
        for verdict in set(ack.verdicts):
            name = session_pb2.Ack.Verdict.Name(verdict).lower()
            metrics.RESULTS.labels(name).inc(list(ack.verdicts).count(verdict))
        if fenced:
            self._emit(fenced)
        if self.draining:
            self._news.set()

    def _welcomed(self, welcome: session_pb2.Welcome) -> None:
        if welcome.protocol != PROTOCOL:
            raise Refused(
                "protocol",
                f"the scheduler speaks protocol {welcome.protocol or 1}, this worker {PROTOCOL}: "
                "use images of one release",
            )
        # All calls of this trainer carry the term it began with.
        if self.config.role == "trainer" and self.trainer_term not in (0, welcome.trainer_term):
            raise Fenced(f"trainer term {welcome.trainer_term} has begun")
        if self.config.role == "trainer" and self._ledger not in ("", welcome.ledger):
            raise Fenced("the scheduler has another ledger: starting anew from a checkpoint")
        self._ledger = welcome.ledger
        self.term, self.lineage = welcome.term, welcome.lineage
        self.trainer_term = welcome.trainer_term
        self.welcomed = True
        if welcome.fenced or welcome.evicted:
            self._emit(self._outbox.cancelled(welcome.fenced, welcome.evicted))
        log.info("connected to %s, term %d", self.config.scheduler, welcome.term)
        self._show_health()
        self._news.set()

    def _hello(self) -> session_pb2.Hello:
        config = self.config
        return session_pb2.Hello(
            job_uid=config.job_uid,
            role=config.role,
            pool=self._pool,
            pod=config.pod,
            pod_uid=config.pod_uid,
            incarnation=config.incarnation,
            credits=self._credits,
            version=self._version,
            held=self._outbox.holdings(),
            rank=config.rank,
            world=config.world,
            attempt=config.attempt,
            data=self._data,
            address=self.address,
            protocol=PROTOCOL,
        )


def _version(version: Version | None) -> PolicyVersion | None:
    if isinstance(version, tuple):
        return PolicyVersion(lineage=version[0], number=version[1])
    return version
