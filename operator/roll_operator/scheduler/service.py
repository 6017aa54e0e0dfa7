"""The scheduler as a gRPC service. No decision is taken here.

Invariant: nothing leaves before what caused it is on disk. Every event changes the state in memory and
wakes the pump; the pump takes what must be written and sent, begins a transaction of it, which the writer
thread brings to the disk, and only then delivers. After a commit it lets events gather for as long as the
commit took, at most MAX_PAUSE: a busy scheduler commits in larger groups, and no acknowledgement waits much
longer than the disk makes it wait anyway. Who asks for durability by name (a trainer's call) is not made to
wait.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

import grpc
import grpc.aio
from roll_wire import (
    control_pb2,
    control_pb2_grpc,
    payloads,
    session_pb2,
    session_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
)
from roll_wire.session_pb2 import FromWorker, ToWorker

from roll_operator.scheduler import batching, core, packing, presence, recovery, report, training
from roll_operator.scheduler.guard import Guard
from roll_operator.scheduler.ledger import SqliteLedger
from roll_operator.scheduler.lifecycle import Group, Unit
from roll_operator.scheduler.messages import (
    Pieces,
    greeting_of,
    handle,
    outgoing,
    outline,
    read_pieces,
)
from roll_operator.scheduler.roster import Outdated
from roll_operator.scheduler.state import Batch, CheckpointRow, JobState, Publication

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
LONG_POLL_SECONDS = 20.0
MAX_PAUSE = 0.010

SessionContext = grpc.aio.ServicerContext[bytes, bytes]  # serialised messages: see `streams`


class Hub:
    """The state, its ledger, and the streams to the workers."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self.ledger = ledger
        self._ahead = time.time() - time.monotonic()
        self.state: JobState = ledger.open(self.now())
        self.rate = report.Rate()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._streams: dict[str, asyncio.Queue[bytes | None]] = {}
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._committed = 0  # the newest transaction that is on disk
        self._recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.turns = 0  # of the pump: the proof that it does not stand still

    def now(self) -> float:
        """The wall clock's time at the start, and what has passed since: no deadline moves when that clock is set."""
        return self._ahead + time.monotonic()

    async def run(self) -> None:
        """The pump. Ends only with an exception: a ledger that cannot be written."""
        loop = asyncio.get_running_loop()
        next_tick = rested = 0.0
        seen = self._position()
        while True:
            self.turns += 1
            await _at_most(TICK_SECONDS, self._wake)
            if (pause := rested - loop.time()) > 0:
                await _at_most(pause, self._hurry)
            self._wake.clear()
            self._hurry.clear()
            now = self.now()
            if now >= next_tick:
                core.tick(self.state, now)
                next_tick = now + TICK_SECONDS
            core.dispatch(self.state, now)
            taken = self.state.transaction
            writes, out = self.state.take()
            # For the streams of this moment: a worker that comes back during the commit has said what it holds, and
            # is to be told by its Welcome first.
            messages = [
                (self._streams.get(worker), message)
                for worker, message in outgoing(self.state, out)
            ]
            turn, self._turn = self._turn, loop.create_future()
            if writes:
                unwritten = self.ledger.store.take()
                began = loop.time()
                self.ledger.begin(writes, unwritten)
                await loop.run_in_executor(self._writer, self.ledger.finish, writes, unwritten)
                ended = loop.time()
                rested = ended + min(ended - began, MAX_PAUSE)
                self.ledger.store.done()
            self._committed = taken
            turn.set_result(None)
            if (position := self._position()) != seen:
                seen = position
                self._recorded.set_result(None)
                self._recorded = loop.create_future()
            for queue, message in messages:
                if queue is not None:
                    queue.put_nowait(message)

    def _position(self) -> tuple[object, ...]:
        """What a trainer that waits for a batch waits to see changed."""
        state = self.state
        return state.formed, state.lineage, state.trainer.term, state.ending, state.finished

    def wake(self) -> None:
        self._wake.set()

    async def durable(self, since: int | None = None) -> None:
        """Returns when everything that has happened so far is on disk, or all that transaction `since` holds."""
        if since is not None and since <= self._committed:
            return
        turn = self._turn
        self._hurry.set()
        self.wake()
        await asyncio.shield(turn)

    async def next_batch(self, seconds: float) -> None:
        """Returns when a batch was recorded, or there will be none, or time is up."""
        recorded = self._recorded
        self._hurry.set()
        self.wake()
        await asyncio.wait([recorded], timeout=seconds)

    def attach(self, worker: str) -> asyncio.Queue[bytes | None]:
        """A new stream of this worker; an older one is closed."""
        older = self._streams.get(worker)
        if older is not None:
            older.put_nowait(None)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._streams[worker] = queue
        return queue

    def detach(self, worker: str, queue: asyncio.Queue[bytes | None]) -> bool:
        """Whether this was the worker's current stream."""
        if self._streams.get(worker) is not queue:
            return False
        del self._streams[worker]
        return True

    def close(self) -> None:
        self._writer.shutdown(wait=True)
        self.ledger.close()


class SessionService(session_pb2_grpc.SessionServicer):
    """One stream per worker process."""

    def __init__(self, hub: Hub, job_uid: str, guard: Guard) -> None:
        self._hub = hub
        self._job_uid = job_uid
        self._guard = guard

    async def Open(self, requests: Any, context: Any) -> None:
        data = await context.read()
        first = FromWorker.FromString(data) if isinstance(data, bytes) else FromWorker()
        if first.WhichOneof("message") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message is Hello")
        hello = first.hello
        if hello.job_uid != self._job_uid:
            refused = session_pb2.Refused(
                reason="wrong-job", message=f"this is the scheduler of job {self._job_uid}"
            )
            await context.write(ToWorker(refused=refused).SerializeToString())
            return
        await self._guard.enter(hello, context)
        state, greeting = self._hub.state, greeting_of(hello)
        queue = self._hub.attach(greeting.worker)
        presence.hello(state, greeting, self._hub.now())
        self._hub.wake()
        log.info("hello from %s (%s)", hello.pod, greeting.worker)
        sender = asyncio.create_task(_send(context, queue))
        try:
            while True:
                message = await context.read()
                if not isinstance(message, bytes):
                    break
                worker = state.workers.get(greeting.worker)
                if worker is None:
                    break
                handle(state, worker, message, self._hub.now())
                self._hub.wake()
        finally:
            sender.cancel()
            if self._hub.detach(greeting.worker, queue):
                worker = state.workers.get(greeting.worker)
                if worker is not None:
                    log.info("%s is disconnected", worker.pod)
                    presence.disconnected(state, worker, self._hub.now())
                    self._hub.wake()


async def _at_most(seconds: float, event: asyncio.Event) -> None:
    """Returns when the event is set, which it is after so many seconds in any case."""
    timer = asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()


async def _send(context: SessionContext, queue: asyncio.Queue[bytes | None]) -> None:
    while (message := await queue.get()) is not None:
        await context.write(message)


class TrainerService(trainer_pb2_grpc.TrainerServicer):
    """Unary calls of the trainer's ranks; each answers when its effect is durable."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._waiting: list[tuple[int, int]] = []  # a trainer's term and a step, for each call

    async def GetPosition(
        self, request: trainer_pb2.PositionRequest, context: object
    ) -> trainer_pb2.Position:
        state = self._hub.state
        training.check_term(state, request.trainer.term)
        return position(state)

    async def Rewind(
        self, request: trainer_pb2.RewindRequest, context: object
    ) -> trainer_pb2.RewindReply:
        state = self._hub.state
        training.check_term(state, request.trainer.term)
        lost = recovery.recover(state, request.step, request.bookmark, request.lineage)
        term = state.trainer.term
        lineage = training.rewind(state, term, request.step, self._hub.now(), lost=lost)
        await self._hub.durable()
        return trainer_pb2.RewindReply(lineage=lineage, term=state.trainer.term)

    async def AcquireBatch(
        self, request: trainer_pb2.BatchRequest, context: object
    ) -> trainer_pb2.Batch:
        state, began = self._hub.state, self._hub.now()
        asked = request.trainer.term, request.step
        while (left := began + LONG_POLL_SECONDS - self._hub.now()) > 0:
            if state.finished or (state.ending and request.step > state.formed):
                return trainer_pb2.Batch(finished=True)
            batch = training.acquire(state, request.trainer.term, request.step, self._hub.now())
            if batch is None:
                self._waiting.append(asked)
                try:
                    await self._hub.next_batch(left)
                except asyncio.CancelledError:
                    # The call may be one whose connection died long ago, and another wait in its place.
                    if self._waiting.count(asked) == 1:
                        training.no_longer_asked(state, *asked)
                    raise
                finally:
                    self._waiting.remove(asked)
            else:
                await self._hub.durable(batch.recorded)
                return trainer_pb2.Batch(
                    step=batch.step,
                    groups=len(batch.group_ids),
                    samples=batch.samples,
                    digest=batch.digest.hex(),
                    waited_seconds=self._hub.now() - began,
                    bookmark=recovery.bookmark(state),
                    oldest=session_pb2.PolicyVersion(
                        lineage=batch.lineage, number=batch.oldest or 0
                    ),
                )
        return trainer_pb2.Batch(retry=True)

    async def FetchShard(
        self, request: trainer_pb2.ShardRequest, context: object
    ) -> AsyncIterator[bytes]:
        state = self._hub.state
        training.check_term(state, request.trainer.term)
        batch = state.batches.get(request.step)
        if batch is None:
            raise training.OutOfOrder(f"batch {request.step} is not recorded")
        for chunk in shard(self._hub.ledger, batch, request.trainer.rank, request.world or 1):
            yield chunk

    async def ReportStep(
        self, request: trainer_pb2.StepReport, context: object
    ) -> trainer_pb2.Done:
        state, now = self._hub.state, self._hub.now()
        metrics = json.dumps(dict(request.metrics))
        if request.step > state.reported:
            training.report(state, request.trainer.term, request.step, metrics, now)
            self._hub.rate.add(now, state.batches[request.step].samples)
        else:
            training.check_term(state, request.trainer.term)
        if request.HasField("publication"):
            self._publish(request.trainer.term, request.publication)
        await self._hub.durable()
        return trainer_pb2.Done()

    async def PublishVersion(
        self, request: trainer_pb2.Publication, context: object
    ) -> trainer_pb2.Done:
        self._publish(request.trainer.term, request)
        await self._hub.durable()
        return trainer_pb2.Done()

    def _publish(self, term: int, said: trainer_pb2.Publication) -> None:
        version = said.version
        publication = Publication(
            version.number, version.lineage, said.manifest_digest, tuple(said.locations)
        )
        training.publish(self._hub.state, term, publication)

    async def CommitCheckpoint(
        self, request: trainer_pb2.CheckpointCommit, context: object
    ) -> trainer_pb2.CheckpointReply:
        row = request.checkpoint
        removed = training.commit(
            self._hub.state,
            request.trainer.term,
            CheckpointRow(row.step, row.lineage, row.path, row.digest),
            self._hub.now(),
        )
        await self._hub.durable()
        return trainer_pb2.CheckpointReply(remove=removed)


def position(state: JobState) -> trainer_pb2.Position:
    return trainer_pb2.Position(
        checkpoints=[
            trainer_pb2.Checkpoint(step=c.step, lineage=c.lineage, path=c.path, digest=c.digest)
            for c in reversed(state.checkpoints)
        ],
        lineage=state.lineage,
        batched=state.formed,
        published=-1 if state.published is None else state.published,
        steps=state.settings.steps,
        oldest_batch=state.folded + 1,
        bookmark=recovery.bookmark(state),
    )


def shard(ledger: SqliteLedger, batch: Batch, rank: int, world: int) -> Iterable[bytes]:
    """A rank's share of a batch: serialised ShardChunks of about 1 MB.

    What is sent is settled at once, before the trainer can report the step; only payloads are read later.
    """
    members: list[Group] = batch.groups or ledger.groups_of(batch)
    rewards = {group.id: [u.reward or 0.0 for u in group.kept] for group in members}
    units: list[Unit] = [unit for group in members for unit in group.kept]
    places = batching.share([u.tokens for u in units], rank, world)
    mine = [units[place] for place in places]
    sizes, pieces = outline(mine)
    settled: list[tuple[trainer_pb2.ShardChunk, list[Pieces]]] = []
    for first, last in packing.chunks(sizes, len(sizes)):
        groups = [unit.group.id for unit in mine[first:last]]
        runs = [rewards[group] for group, _ in groupby(groups)]
        chunk = trainer_pb2.ShardChunk(
            groups=groups,
            indices=[unit.index for unit in mine[first:last]],
            positions=places[first:last],
            rewards=[unit.reward or 0.0 for unit in mine[first:last]],
            group_sizes=[len(run) for run in runs],
            group_rewards=[reward for run in runs for reward in run],
            sizes=sizes[first:last],
        )
        settled.append((chunk, pieces[first:last]))
    return (payloads.write(chunk, read_pieces(ledger.store, of)) for chunk, of in settled)


class ControlService(control_pb2_grpc.ControlServicer):
    """The operator's side."""

    def __init__(self, hub: Hub, job_uid: str) -> None:
        self._hub = hub
        self._job_uid = job_uid

    async def SyncPods(self, request: control_pb2.Pods, context: Any) -> control_pb2.PodsReply:
        state, now = self._hub.state, self._hub.now()
        if request.authoritative:
            current = {pod.uid: pod.role for pod in request.current}
            try:
                if request.job_uid != self._job_uid:
                    raise Outdated(f"this is the scheduler of job {self._job_uid}")
                presence.pods_are(state, current, request.leader, now)
            except Outdated as error:
                log.warning("refused the list of pods: %s", error)
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        presence.pods_gone(state, request.gone, now)
        await self._hub.durable()
        return control_pb2.PodsReply()

    async def GetProgress(
        self, request: control_pb2.ProgressRequest, context: object
    ) -> control_pb2.JobProgress:
        now = self._hub.now()
        progress = report.progress(self._hub.state, self._hub.rate, now)
        progress.last_progress_at += time.time() - now  # the operator goes by the wall clock
        return progress

    async def ListSamples(
        self, request: control_pb2.SamplesRequest, context: object
    ) -> control_pb2.SampleList:
        return report.samples(self._hub.state, request.limit, self._hub.now())

    async def GetSample(
        self, request: control_pb2.SampleRequest, context: Any
    ) -> control_pb2.SampleStory:
        unit = request.unit
        story = report.story(
            self._hub.state, self._hub.ledger, unit.group, unit.index, self._hub.now()
        )
        if story is not None:
            return story
        missing = f"no sample {unit.group}.{unit.index} on record"
        await context.abort(grpc.StatusCode.NOT_FOUND, missing)
        raise LookupError(missing)
