"""A small real gRPC server that plays the scheduler's side of a session, and can be killed and started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from roll_wire import PROTOCOL, credentials, session_pb2, session_pb2_grpc
from roll_wire.channel import SERVER_OPTIONS
from roll_wire.columns import lease_number, pack_tasks, unpack_results
from roll_wire.session_pb2 import (
    Ack,
    FromWorker,
    Hello,
    LeaseId,
    Refused,
    Task,
    ToWorker,
    Unit,
    Welcome,
)
from roll_workers.runtime.config import WorkerConfig

TIMEOUT = 20.0


def run(main: Callable[[], Awaitable[None]], timeout: float = TIMEOUT) -> None:
    async def limited() -> None:
        await asyncio.wait_for(main(), timeout)

    asyncio.run(limited())


def config_for(scheduler: int, folder: Path = Path("."), **changes: Any) -> WorkerConfig:
    values: dict[str, Any] = {
        "job": "j",
        "job_uid": "job-uid",
        "role": "reward",
        "index": 0,
        "pod": "j-reward-0",
        "pod_uid": "pod-uid",
        "attempt": 0,
        "scheduler": f"127.0.0.1:{scheduler}",
        "spec": folder / "job.json",
        "storage": folder,
        "source": folder,
    }
    return WorkerConfig(**(values | changes))


def task(number: int, *, group: int | None = None, stage: str = "score", turn: int = 0) -> Task:
    return Task(
        unit=Unit(group=number if group is None else group, index=0),
        lease=LeaseId(term=1, number=number),
        stage=stage,
        turn=turn,
        attempt=1,
    )


class Scheduler(session_pb2_grpc.SessionServicer):
    """Welcomes whoever says Hello; records what it is told; acknowledges when `acknowledge` is set."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.acknowledge: Ack.Verdict | None = Ack.STORED
        self.refuse: Refused | None = None
        self.deny: tuple[grpc.StatusCode, str] | None = None
        self.shown: list[str] = []  # by each stream, to prove who it is
        self.aborts = 0  # so many streams are cancelled before Welcome
        self.before_welcome = asyncio.Event()
        self.before_welcome.set()
        self.welcome = Welcome(protocol=PROTOCOL, term=1, trainer_term=7, lineage=1)
        self.hellos: list[Hello] = []
        self.messages: list[FromWorker] = []
        self.changed = asyncio.Condition()
        self.outgoing: asyncio.Queue[ToWorker] = asyncio.Queue()
        self.server: grpc.aio.Server | None = None

    async def start(self, *add: Callable[[grpc.aio.Server], None], tls: Path | None = None) -> None:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        session_pb2_grpc.add_SessionServicer_to_server(self, server)
        for each in add:
            each(server)
        if tls is None:
            server.add_insecure_port(f"127.0.0.1:{self.port}")
        else:
            server.add_secure_port(f"127.0.0.1:{self.port}", credentials.server(tls))
        await server.start()
        self.server = server

    async def kill(self) -> None:
        assert self.server is not None
        await self.server.stop(grace=None)
        self.outgoing = asyncio.Queue()

    def assign(self, *tasks: Task) -> None:
        self.outgoing.put_nowait(ToWorker(assign=pack_tasks(tasks)))

    def say(self, **message: Any) -> None:
        self.outgoing.put_nowait(ToWorker(**message))

    async def until(self, condition: Callable[[], Any]) -> None:
        async with self.changed:
            await self.changed.wait_for(condition)

    def results(self) -> list[session_pb2.Result]:
        return [item for message in self.messages for item in unpack_results(message.results)]

    def failures(self) -> list[session_pb2.Failure]:
        return [item for message in self.messages for item in message.failures.items]

    async def Open(
        self, request_iterator: AsyncIterator[FromWorker], context: Any
    ) -> AsyncIterator[ToWorker]:
        first = await anext(aiter(request_iterator))
        self.hellos.append(first.hello)
        self.shown.append(str(dict(context.invocation_metadata()).get("authorization", "")))
        await self._notify()
        if self.deny is not None:
            await context.abort(*self.deny)
        if self.aborts:
            self.aborts -= 1
            await context.abort(grpc.StatusCode.CANCELLED, "not now")
        await self.before_welcome.wait()
        if self.refuse is not None:
            yield ToWorker(refused=self.refuse)
            return
        yield ToWorker(welcome=self.welcome)
        reading = asyncio.create_task(self._read(request_iterator))
        try:
            while True:
                yield await self.outgoing.get()
        finally:
            reading.cancel()

    async def _read(self, request_iterator: AsyncIterator[FromWorker]) -> None:
        async for message in request_iterator:
            self.messages.append(message)
            leases = [*message.results.leases]
            leases += [lease_number(item.lease) for item in message.failures.items]
            if leases and self.acknowledge is not None:
                self.say(ack=Ack(leases=leases, verdicts=[self.acknowledge] * len(leases)))
            await self._notify()

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()
