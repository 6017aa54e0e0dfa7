"""`/healthz`, `/readyz` and `/metrics`.

Alive means that work goes on, not that a socket answers: nobody waits too long for a worker, and own writes
come back through the watches. An API server that is away is no reason to be restarted.

Invariant: only the leader that works tells of the line and of jobs. Every replica watches, so each knows all jobs and
has a line; but nobody takes from a standby's, and a sum over replicas would count every job twice.
"""

import json
import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from roll_operator.controller.cluster import metrics
from roll_operator.controller.cluster.proof import WatchProof
from roll_operator.controller.cluster.queue import WorkQueue
from roll_operator.controller.cluster.store import Store
from roll_operator.plan.model import Phase

LONGEST_WAIT = 120.0
"""Seconds that a job may wait for a worker, and an own write for its watch event."""

PHASES = ("New", *(phase.value for phase in Phase), "Invalid")
"""All are told, also those that no job is in: of a series that begins with 1, nobody sees that it rose."""

ANSWER_SECONDS = 30.0
"""Every operator asks for the lease every two seconds."""


class Health:
    def __init__(
        self,
        queue: WorkQueue,
        proof: WatchProof,
        store: Store,
        leads: Callable[[], bool],
        answered_at: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue, self._proof, self._store = queue, proof, store
        self._leads, self._answered_at, self._clock = leads, answered_at, clock
        self.started = False
        """The leader has read the lists and works."""

    def works(self) -> bool:
        return self.started and self._leads()

    def problems(self) -> list[str]:
        found = []
        idle = self._clock() - self._queue.finished_at
        waits = min(self._queue.oldest_wait(), idle)
        if self.works() and waits > LONGEST_WAIT:
            found.append(f"no worker took the first job in line for {waits:.0f} s")
        overdue = self._proof.overdue()
        if overdue > LONGEST_WAIT:
            found.append(f"an own write has not come back through a watch for {overdue:.0f} s")
        return found

    async def serve(self, health_port: int, metrics_port: int) -> list[web.AppRunner]:
        probes = web.Application()
        probes.router.add_get("/healthz", self._healthz)
        probes.router.add_get("/readyz", self._readyz)
        figures = web.Application()
        figures.router.add_get("/metrics", self._metrics)
        runners = []
        for app, port in ((probes, health_port), (figures, metrics_port)):
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
            await runner.setup()
            await web.TCPSite(runner, None, port).start()
            runners.append(runner)
        return runners

    async def _healthz(self, _: web.Request) -> web.Response:
        problems = self.problems()
        body = {
            "problems": problems,
            "leader": self._leads(),
            "queued": len(self._queue),
            "lastWatchEventSeconds": round(self._clock() - self._proof.seen_at, 1),
        }
        return web.Response(
            status=503 if problems else 200,
            text=json.dumps(body),
            content_type="application/json",
        )

    def ready(self) -> bool:
        """The API server answers; and who leads has begun to work. Another is ready to take over."""
        fresh = self._clock() - self._answered_at() < ANSWER_SECONDS
        return fresh and (self.started or not self._leads())

    async def _readyz(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready() else 503)

    def figures(self) -> bytes:
        """What Prometheus reads."""
        works = self.works()
        metrics.LEADER.set(self._leads())
        metrics.QUEUE_DEPTH.set(len(self._queue) if works else 0)
        metrics.QUEUE_WAIT.set(self._queue.oldest_wait() if works else 0.0)
        metrics.PODS.set(self._store.count_pods() if works else 0)
        metrics.JOBS.clear()
        for phase, count in self._jobs().items() if works else ():
            metrics.JOBS.labels(phase).set(count)
        return generate_latest()

    def _jobs(self) -> dict[str, int]:
        counts: dict[str, int] = dict.fromkeys(PHASES, 0)
        for entry in self._store.jobs():
            reported = entry.status.phase if entry.status else "New"
            counts["Invalid" if entry.problem else reported] += 1
        return counts

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.figures(), headers={"Content-Type": CONTENT_TYPE_LATEST})
