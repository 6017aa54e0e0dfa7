"""Workers take keys from the queue and look at jobs. Whatever happens to one job, the others go on."""

import asyncio
import logging
import random
import time

from roll_operator.controller.cluster import metrics
from roll_operator.controller.cluster.errors import (
    ApiError,
    Conflict,
    NotFound,
    NotLeader,
    Throttled,
)
from roll_operator.controller.cluster.queue import WorkQueue
from roll_operator.controller.cluster.reconcile import Reconciler
from roll_operator.controller.cluster.store import Store

RESYNC_SECONDS = 30.0

log = logging.getLogger(__name__)


class Workers:
    def __init__(self, queue: WorkQueue, store: Store, reconciler: Reconciler) -> None:
        self._queue, self._store, self._reconciler = queue, store, reconciler
        self._uids: dict[str, str] = {}
        """Key → uid of the job that was last seen under it."""

    async def run(self, count: int) -> None:
        """Returns never; raises NotLeader when a write found the lease gone."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(count):
                workers.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            began = time.monotonic()
            result = "done"
            try:
                result = await self._look(key)
            finally:
                self._queue.done(key)
                metrics.RECONCILE_SECONDS.labels(result).observe(time.monotonic() - began)

    async def _look(self, key: str) -> str:
        """How it went, in one word."""
        try:
            wait = await self._reconciler.look(key)
        except NotLeader:
            raise
        except (Conflict, NotFound) as error:
            # The plan was made from an old view of the job: read it and look again.
            log.debug("%s: %s", key, error)
            self._queue.retry(key)
            await self._reread(key)
            return "conflict"
        except Throttled as error:
            self._queue.add_after(key, max(1.0, error.retry_after) * random.uniform(1.0, 1.5))
            return "throttled"
        except ApiError as error:
            pause = self._queue.retry(key)
            log.warning("%s: %s; again in %.1f s", key, error, pause)
            return "failed"
        except Exception as error:
            # A mistake in this program, or an object that nobody thought of, concerns this job alone.
            pause = self._queue.retry(key)
            log.exception("%s: an error of the operator; again in %.1f s", key, pause)
            await self._report(key, error)
            return "error"
        self._queue.succeeded(key)
        self._settle(key, wait)
        return "done"

    async def _reread(self, key: str) -> None:
        try:
            await self._reconciler.reread(key)
        except ApiError as error:
            log.warning("%s: %s", key, error)

    async def _report(self, key: str, error: Exception) -> None:
        try:
            await self._reconciler.report(key, error)
        except NotLeader:
            raise
        except Exception as failed:
            log.warning("%s: its error is not in its status: %s", key, failed)

    def _settle(self, key: str, wait: float | None) -> None:
        entry = self._store.job(key)
        uid = entry.uid if entry is not None else ""
        before = self._uids.get(key, "")
        if before and before != uid:
            self._reconciler.forget(before)
        if entry is None:
            self._uids.pop(key, None)
            self._queue.forget(key)
            return
        self._uids[key] = uid
        resync = RESYNC_SECONDS * random.uniform(0.9, 1.1)
        self._queue.add_after(key, resync if wait is None else min(wait, resync))
