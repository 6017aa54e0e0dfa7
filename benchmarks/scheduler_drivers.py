"""Roles that compute nothing, for benchmarks/scheduler.py: raw messages over one channel per role.

Everything a driver says is as a worker's session says it (up to 64 items and about 1 MB a message, reader
and sender apart), and nothing is kept for a reconnect: it measures the scheduler, not itself.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from multiprocessing.connection import Connection
from typing import Any

import grpc.aio
import uvloop
from roll_wire import PROTOCOL, payloads, trainer_pb2
from roll_wire.channel import CLIENT_OPTIONS
from roll_wire.session_pb2 import (
    Assign,
    DataSet,
    FromWorker,
    Hello,
    Holding,
    PolicyVersion,
    Results,
    ToWorker,
)
from roll_wire.session_pb2_grpc import SessionAsyncStub
from roll_wire.trainer_pb2_grpc import TrainerAsyncStub

MAX_ITEMS = 64
MAX_BYTES = 1 << 20
PROMPT = b"p" * 200
SCORE = b"s" * 40
ENGINES = 4


@dataclass(frozen=True)
class Plan:
    """What the drivers of one run do."""

    address: str
    payload: int  # bytes of a generated result
    in_flight: int  # samples the engines give credit for
    checkpoint_every: int


class Tally:
    """What this process has seen, for the program that measures."""

    def __init__(self) -> None:
        self.trained = 0
        self.acks: list[float] = []  # seconds from a result's sending to its acknowledgement

    def serve(self, pipe: Connection) -> None:
        """Answers for ever, in a thread of its own: a pipe does not mix with an event loop."""
        while True:
            pipe.recv()
            acks, self.acks = self.acks, []
            used = os.times()
            pipe.send({"trained": self.trained, "acks": acks, "cpu": used.user + used.system})


Columns = dict[str, Any]  # what a driver says of every unit alike
Answer = Callable[["Worker", Assign], tuple[bytes, Columns]]


class Worker:
    """One stream of a role: every task is answered at once."""

    def __init__(
        self, plan: Plan, tally: Tally, pod: str, pool: str, credits: int, answer: Answer
    ) -> None:  # fmt: skip
        self._address, self._tally, self.answer = plan.address, tally, answer
        self._pod, self._pool, self._credits = pod, pool, credits
        self._outbox: asyncio.Queue[tuple[bytes, Sequence[int]]] = asyncio.Queue()
        self._sent: dict[int, float] = {}
        self.version = PolicyVersion()

    async def run(self) -> None:
        async with grpc.aio.insecure_channel(self._address, options=CLIENT_OPTIONS) as channel:
            call = channel.stream_stream("/roll.v1.Session/Open")()  # bytes both ways
            role = "inference" if self._pool == "policy" else self._pool
            hello = Hello(
                job_uid="benchmark", role=role, pool=self._pool, pod=self._pod, pod_uid=self._pod,
                incarnation=1, credits=self._credits, protocol=PROTOCOL,
            )  # fmt: skip
            if role == "environment":
                hello.data.append(DataSet(split="train", rows=-1, content_hash="none"))
            await call.write(FromWorker(hello=hello).SerializeToString())
            sender = asyncio.create_task(self._send(call))
            try:
                while isinstance(message := await call.read(), bytes):
                    self._receive(message)
            finally:
                sender.cancel()

    async def _send(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        while True:
            message, leases = await self._outbox.get()
            self._sent.update(zip(leases, repeat(time.perf_counter())))
            await call.write(message)

    def _say(self, message: FromWorker) -> None:
        self._outbox.put_nowait((message.SerializeToString(), ()))

    def _receive(self, data: bytes) -> None:
        message = ToWorker.FromString(data)
        match message.WhichOneof("message"):
            case "assign":
                for answer in answers(self, message.assign):
                    self._outbox.put_nowait(answer)
            case "ack":
                now = time.perf_counter()
                ack = message.ack
                if set(ack.verdicts) != {ack.STORED}:
                    raise RuntimeError("a result was not stored")
                self._tally.acks += [now - self._sent.pop(lease) for lease in ack.leases]
            case "policy":
                self.version = message.policy.version
                self._say(FromWorker(holding=Holding(version=self.version)))
            case "refused":
                raise RuntimeError(message.refused.message)


def answers(worker: Worker, assign: Assign) -> Iterable[tuple[bytes, Sequence[int]]]:
    """A result for every task: up to 64, and about 1 MB of payloads, in a message; with its leases."""
    payload, columns = worker.answer(worker, assign)
    most = max(1, min(MAX_ITEMS, MAX_BYTES // len(payload)))
    for first in range(0, len(assign.leases), most):
        leases = assign.leases[first : first + most]
        count = len(leases)
        results = Results(
            stage=assign.stage, leases=leases,
            groups=assign.groups[first : first + most],
            indices=assign.indices[first : first + most],
            **{name: [value] * count for name, value in columns.items()},
            sizes=[len(payload)] * count,
        )  # fmt: skip
        yield payloads.write(results, [payload] * count, within=payloads.RESULTS), leases


def reset(worker: Worker, assign: Assign) -> tuple[bytes, Columns]:
    return PROMPT, {}


def generator(size: int) -> Answer:
    # Random bytes: a disk or a kernel that compresses gains nothing by it.
    payload = random.Random(0).randbytes(size)

    def generate(worker: Worker, assign: Assign) -> tuple[bytes, Columns]:
        version = worker.version
        columns = {"tokens": size // 12, "lineages": version.lineage}
        return payload, columns | {"oldest": version.number, "newest": version.number}

    return generate


def score(worker: Worker, assign: Assign) -> tuple[bytes, Columns]:
    return SCORE, {"has_reward": True, "rewards": (assign.leases[0] % 3) / 2}


async def train(plan: Plan, tally: Tally) -> None:
    """The calls of a trainer of one rank, in its order."""
    options = CLIENT_OPTIONS
    async with grpc.aio.insecure_channel(plan.address, options=options) as channel:
        call = SessionAsyncStub(channel).Open()
        hello = Hello(
            job_uid="benchmark", role="trainer", pool="trainer", pod="trainer", pod_uid="trainer",
            incarnation=1, world=1, protocol=PROTOCOL,
        )  # fmt: skip
        await call.write(FromWorker(hello=hello))
        welcome = await call.read()
        if not isinstance(welcome, ToWorker):
            raise RuntimeError("the scheduler closed the trainer's stream")
        trainer = trainer_pb2.TrainerId(job_uid="benchmark", term=welcome.welcome.trainer_term)
        stub = TrainerAsyncStub(channel)
        await stub.Rewind(trainer_pb2.RewindRequest(trainer=trainer, step=0))
        step = 0
        version = PolicyVersion(lineage=1, number=step)
        await stub.PublishVersion(trainer_pb2.Publication(trainer=trainer, version=version))
        while True:
            if step % plan.checkpoint_every == 0:
                row = trainer_pb2.Checkpoint(step=step, lineage=1, path=f"{step}", digest="none")
                commit = trainer_pb2.CheckpointCommit(trainer=trainer, checkpoint=row)
                await stub.CommitCheckpoint(commit)
            step += 1
            wanted = trainer_pb2.BatchRequest(trainer=trainer, step=step)
            while (await stub.AcquireBatch(wanted)).retry:
                pass
            request = trainer_pb2.ShardRequest(trainer=trainer, step=step, world=1)
            async for chunk in stub.FetchShard(request):
                tally.trained += len(chunk.groups)
            version = PolicyVersion(lineage=1, number=step)
            await stub.ReportStep(
                trainer_pb2.StepReport(
                    trainer=trainer, step=step, metrics={"reward": 0.5},
                    publication=trainer_pb2.Publication(version=version),
                )
            )  # fmt: skip


async def _drive(plan: Plan, roles: tuple[str, ...], pipe: Connection) -> None:
    tally = Tally()
    threading.Thread(target=tally.serve, args=(pipe,), daemon=True).start()
    running = []
    if "policy" in roles:
        credits, answer = plan.in_flight // ENGINES, generator(plan.payload)
        for i in range(ENGINES):
            running.append(Worker(plan, tally, f"engine-{i}", "policy", credits, answer).run())
    if "environment" in roles:
        running.append(Worker(plan, tally, "environment", "environment", 1024, reset).run())
    if "reward" in roles:
        running.append(Worker(plan, tally, "reward", "reward", 1024, score).run())
    if "trainer" in roles:
        running.append(train(plan, tally))
    await asyncio.gather(*running)


def drive(plan: Plan, roles: tuple[str, ...], pipe: Connection) -> None:
    """The driver's process: plays `roles` until it is killed."""
    gc.freeze()
    uvloop.run(_drive(plan, roles, pipe))
