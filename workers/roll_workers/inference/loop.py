"""The inference role: takes samples, decodes all of them together, hands back what the policy said.

Four tasks share one thread: `_listen` to the scheduler, `_decode` step by step, `_follow` the published
weights, and `_say_what_waits`. Because nothing else runs during a step, weights change exactly between two of
them, and a step that hangs silences all.

Invariants:
- nothing is taken before a published version is held, and no token of a task is sampled by a version
  below its `min_version`; a version is only ever replaced by a newer one;
- every task ends as one result, one failure, a return or a cancellation;
- with `partial: Resume` what was sampled survives new weights and this process; with `Discard` a sample
  that meets new weights starts over, so that all its tokens are of one version.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path

from roll_api import RLJob
from roll_wire.session_pb2 import Failure, Policy, Task

from roll_workers.builtin.models import resolve_model
from roll_workers.inference.engines import Delta, Engine, open_engine
from roll_workers.inference.rollout import CannotStart, Rollout, Sampling
from roll_workers.memory import keep_freed_memory
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.outbox import Key
from roll_workers.runtime.session import (
    Cancelled,
    Draining,
    PolicyChange,
    Session,
    lease_key,
)
from roll_workers.runtime.trajectory import ActionWriter
from roll_workers.text import Codec
from roll_workers.weights import FetchError, fetch, serve_weights

log = logging.getLogger(__name__)

PARTIAL_TOKENS, PARTIAL_SECONDS = 64, 2.0  # what a dead pod loses of a sample, at most
BEAT_SECONDS = 0.5
AHEAD_TOKENS = 4096  # of short answers as many wait here as are decoded during a round trip
LONG_STEP, BREATH = 0.02, 0.002  # seconds: a slow model's step is followed by time for the network
RETRY_SECONDS = 1.0
WEIGHTS_SECONDS = 600.0  # samples wait here no longer for weights that can't be had


async def main(config: WorkerConfig, job: RLJob) -> None:
    """Serves the pool `policy` until drained. UserError where the model can't be loaded."""
    keep_freed_memory()
    folder = resolve_model(job.spec.model.path, config.storage, config.source)
    engine = open_engine(job, folder)
    cache = config.storage / "weights-cache" / config.pod
    serving = serve_weights(cache, closed=config.tls is not None)
    session = Session(config, pool="policy", credits=0, serve=[serving])
    async with session:
        await Inference(job, engine, session, Codec.of_folder(folder), cache).run()


class Inference:
    def __init__(
        self, job: RLJob, engine: Engine, session: Session, codec: Codec, cache: Path
    ) -> None:
        self.engine, self.session, self.codec, self.cache = engine, session, codec, cache
        self.sampling = Sampling.of_job(job, engine.eos)
        self.resume = job.spec.rollout.partial == "Resume"
        ahead = AHEAD_TOKENS // self.sampling.max_new_tokens
        self.credits = engine.slots + min(engine.slots, ahead)
        self.version = (-1, -1)  # (lineage, number) that the engine holds
        self.writer = ActionWriter()
        self.running: dict[Key, Rollout] = {}
        self.early: dict[Key, Task] = {}  # need weights that are not here yet
        self.patience = job.spec.rollout.retry.no_progress_seconds
        self.newest: Policy | None = None
        self.behind: float | None = None  # since when a newer version is sought
        self.announced = asyncio.Event()
        self.work = asyncio.Event()

    async def run(self) -> None:
        """Ends when the session does; whatever goes wrong in a task goes wrong here."""
        parts = self._listen(), self._decode(), self._follow(), self._say_what_waits()
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _listen(self) -> None:
        async for event in self.session:
            if isinstance(event, Task):
                self._start(event)
            elif isinstance(event, Cancelled):
                for lease in event.leases:
                    self._forget(lease_key(lease))
            elif isinstance(event, PolicyChange):
                # The last word counts, also for an older version: the weights of the newer may be gone.
                if self.newest and _version(event.policy) < _version(self.newest):
                    self.behind = None
                self.newest = event.policy
                self.announced.set()
            elif isinstance(event, Draining):
                self._hand_back()

    async def _decode(self) -> None:
        beat = time.monotonic()
        while True:
            if not self.engine.busy:
                self.work.clear()
                await self.work.wait()
            began = time.monotonic()
            for delta in self.engine.step():
                self._on(delta)
            ended = time.monotonic()
            if ended - beat > BEAT_SECONDS:
                beat = ended
                self._report()
            await asyncio.sleep(BREATH if ended - began > LONG_STEP else 0)

    async def _follow(self) -> None:
        """Only the last word counts: what was published during a fetch is skipped. No worker goes back."""
        while True:
            await self.announced.wait()
            self.announced.clear()
            assert self.newest is not None
            policy = self.newest
            if _version(policy) <= self.version:
                continue
            self.behind = time.monotonic() if self.behind is None else self.behind
            try:
                trust = self.session.config.trust
                _, weights = await asyncio.to_thread(fetch, policy, self.cache, trust=trust)
            except FetchError as error:
                log.warning("%s; will retry", error)
                # At once when something newer is published. Not `wait_for`: until Python 3.12 it loses a
                # cancellation that comes together with the event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_SECONDS):
                        await self.announced.wait()
                self.announced.set()
                continue
            restarted = [] if self.resume else list(self.running.values())
            for rollout in restarted:
                self.engine.abort(rollout.key)
                rollout.start_over()
            first = self.version < (0, 0)
            self.version, self.behind = _version(policy), None
            self.engine.load(self.version[1], weights)
            self.session.holding(self.version)
            if first and not self.session.draining:
                self.session.set_credits(self.credits)
            for rollout in restarted:
                self.engine.submit(rollout.request)
            for task in [t for t in self.early.values() if t.min_version <= self.version[1]]:
                del self.early[lease_key(task.lease)]
                self._start(task)
            log.info("holds version %d of lineage %d", self.version[1], self.version[0])

    async def _say_what_waits(self) -> None:
        """A sample that waits here for a slot, or for weights, is not stuck: its lease goes on."""
        while True:
            await asyncio.sleep(self.patience / 4)
            waiting = [self.running.get(key) for key in self.engine.waiting()]  # type: ignore[call-overload]
            tasks = [rollout.task for rollout in waiting if rollout is not None]
            if self.behind is not None and time.monotonic() - self.behind < WEIGHTS_SECONDS:
                tasks += self.early.values()
            self.session.waiting(tasks)

    def _start(self, task: Task) -> None:
        if task.min_version > self.version[1]:
            self.early[lease_key(task.lease)] = task
            return
        try:
            rollout = Rollout.of_task(task, self.sampling, self.engine.context)
        except CannotStart as error:
            self.session.fail(task, Failure.INPUT, str(error))
            return
        self.running[rollout.key] = rollout
        if finish := rollout.ended_before(self.sampling, self.codec):
            self._finish(rollout, finish)
        else:
            self.engine.submit(rollout.request)
            self.work.set()

    def _on(self, delta: Delta) -> None:
        rollout = self.running.get(delta.id)  # type: ignore[call-overload]
        if rollout is None:  # ended by a stop text, which the engine does not see
            return
        if finish := rollout.add(delta, self.sampling, self.codec):
            if not delta.finish:
                self.engine.abort(rollout.key)
            self._finish(rollout, finish)
        elif self.resume and rollout.unreported() >= PARTIAL_TOKENS:
            self._partial(rollout)

    def _finish(self, rollout: Rollout, finish: str) -> None:
        del self.running[rollout.key]
        payload, tokens, oldest, newest = rollout.take(self.writer, finish)
        self.session.result(
            rollout.task,
            payload,
            tokens=tokens,
            oldest=(self.version[0], oldest) if tokens else None,
            newest=(self.version[0], newest) if tokens else None,
        )

    def _forget(self, key: Key) -> None:
        self.early.pop(key, None)
        if self.running.pop(key, None):
            self.engine.abort(key)

    def _report(self) -> None:
        """A sign of life of everything that runs, and what another pod could go on from."""
        for delta in self.engine.flush():
            self._on(delta)
        now = time.monotonic()
        for rollout in self.running.values():
            if self.resume and now - rollout.reported_at > PARTIAL_SECONDS and rollout.unreported():
                self._partial(rollout)
            else:
                self.session.progress(rollout.task, rollout.count)

    def _partial(self, rollout: Rollout) -> None:
        payload, _, oldest, newest = rollout.take(self.writer)
        lineage = self.version[0]
        self.session.progress(
            rollout.task, rollout.count, payload, (lineage, oldest), (lineage, newest)
        )

    def _hand_back(self) -> None:
        """Everything unfinished goes back at once, with what it has."""
        for delta in self.engine.flush():
            self._on(delta)
        for rollout in list(self.running.values()):
            if self.resume and rollout.unreported():
                self._partial(rollout)
            self._forget(rollout.key)
        self.early.clear()
        self.session.release()


def _version(policy: Policy) -> tuple[int, int]:
    return policy.version.lineage, policy.version.number
