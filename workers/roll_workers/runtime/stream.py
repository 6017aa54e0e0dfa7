"""One stream to the scheduler, opened again for ever: what it carries is decided by others.

Invariants:
- reader and sender are tasks of their own: a scheduler that does not read can't keep this worker from
  reading, so flow control never deadlocks;
- every stream begins with Hello, and goes on after Welcome with what is unacknowledged;
- only `receive` ends it, by raising, or a scheduler that goes on to deny who this worker is; a broken
  connection never does.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

import grpc
import grpc.aio
from roll_wire.session_pb2 import FromWorker, Hello, Ping, ToWorker
from roll_wire.session_pb2_grpc import SessionAsyncStub

from roll_workers.errors import Refused
from roll_workers.runtime import metrics
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.connection import Unready, to_scheduler_aio
from roll_workers.runtime.outbox import Outbox

log = logging.getLogger(__name__)

# Seconds between attempts to connect. The longest is well within `reconnectGraceSeconds`: who comes back to a scheduler
# that was away keeps what it holds.
FIRST_DELAY, LAST_DELAY = 0.1, 2.0
BEAT_SECONDS = 1.0  # signs of life are gathered for so long
BEATS_PER_PING = 5
DENIED_SECONDS = 300.0  # new keys of the cluster reach the scheduler's pod in two or three minutes


class Denied:
    """A token may be judged by keys that are not there yet: a denial counts when it lasts."""

    def __init__(self) -> None:
        self._since: float | None = None

    def check(self, code: grpc.StatusCode, details: str) -> None:
        """Raises `Refused` for a denial that stands."""
        if code == grpc.StatusCode.PERMISSION_DENIED:
            raise Refused("denied", details)
        if code != grpc.StatusCode.UNAUTHENTICATED:
            self._since = None
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= DENIED_SECONDS:
            raise Refused("unauthenticated", details)


Call = grpc.aio.StreamStreamCall[FromWorker, ToWorker]


class Stream:
    def __init__(
        self,
        config: WorkerConfig,
        outbox: Outbox,
        *,
        hello: Callable[[], Hello],
        receive: Callable[[ToWorker], None],
        lost: Callable[[], None],
    ) -> None:
        self.connected = False
        self.due = asyncio.Event()  # the outbox has something to take
        self._config, self._outbox = config, outbox
        self._denied = Denied()
        self._hello, self._receive, self._lost = hello, receive, lost

    async def run(self) -> None:
        """Keeps the stream open until it is cancelled, or `receive` raises."""
        delay = FIRST_DELAY
        while True:
            reason = await self._once()
            if self.connected:
                self.connected = False
                metrics.RECONNECTS.inc()
                delay = FIRST_DELAY
                self._lost()
            # Once for each outage, however long.
            level = logging.WARNING if delay == FIRST_DELAY else logging.DEBUG
            log.log(level, "no scheduler at %s (%s), will retry", self._config.scheduler, reason)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, LAST_DELAY)

    async def _once(self) -> str:
        """One connection from its beginning to its end; returns why it ended."""
        try:
            async with to_scheduler_aio(self._config) as channel:
                await self._converse(SessionAsyncStub(channel).Open())
            return "the stream was closed"
        except Unready as reason:
            return str(reason)
        except grpc.aio.AioRpcError as broken:
            self._denied.check(broken.code(), broken.details() or "")
            return f"{broken.code().name}: {broken.details()}"
        except asyncio.InvalidStateError as broken:  # a write met a call that was already over
            return str(broken)
        except asyncio.CancelledError:
            # grpc.aio raises this, too, when the other side cancels the call.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return "CANCELLED"

    async def _converse(self, call: Call) -> None:
        # Before Hello: what the role says from here on is not in it, and has to follow it.
        self._outbox.reconnecting()
        await call.write(FromWorker(hello=self._hello()))
        first = await call.read()
        if not isinstance(first, ToWorker):
            return
        self._receive(first)
        if not first.HasField("welcome"):
            raise RuntimeError(f"the scheduler began with {first.WhichOneof('message')}")
        self.connected = True
        self._denied = Denied()
        self.due.set()
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(each) for each in (self._read(call), self._send(call), self._beat())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        # The reader comes first: it knows why a stream ended, the sender only that it did.
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _read(self, call: Call) -> None:
        while isinstance(message := await call.read(), ToWorker):  # else EOF
            self._receive(message)

    async def _send(self, call: Call) -> None:
        while True:
            while (message := self._outbox.take()) is not None:
                await call.write(message)
            self.due.clear()
            await self.due.wait()

    async def _beat(self) -> None:
        beats = 0
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            beats += 1
            self._outbox.beat()
            if beats % BEATS_PER_PING == 0:
                self._outbox.control(FromWorker(ping=Ping(sent_at=time.time())))
            self.due.set()
