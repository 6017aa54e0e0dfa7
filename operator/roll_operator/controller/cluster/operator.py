"""The operator as a whole: who acts, what is watched, who works; and its end.

Every replica watches, so that a new leader knows the cluster already; only the leader looks at jobs, and only
after it has read the lists itself. A leader that loses its lease stops acting at once and exits; one that finds other
APIs than it began with exits too, and whoever leads next begins with these.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import kopf

from roll_operator.controller.cluster import handlers
from roll_operator.controller.cluster.acts import Acts
from roll_operator.controller.cluster.api import Api, connect
from roll_operator.controller.cluster.bucket import TokenBucket
from roll_operator.controller.cluster.discovery import pod_group_api
from roll_operator.controller.cluster.errors import ApiError, NotLeader
from roll_operator.controller.cluster.events import Events
from roll_operator.controller.cluster.health import Health
from roll_operator.controller.cluster.leader import Leader
from roll_operator.controller.cluster.links import LinkPool
from roll_operator.controller.cluster.listing import refresh
from roll_operator.controller.cluster.proof import WatchProof
from roll_operator.controller.cluster.queue import WorkQueue
from roll_operator.controller.cluster.reconcile import Reconciler
from roll_operator.controller.cluster.settings import Settings
from roll_operator.controller.cluster.status import StatusWriter
from roll_operator.controller.cluster.store import Store
from roll_operator.controller.cluster.supports import Supports
from roll_operator.controller.cluster.tokens import OperatorTokens
from roll_operator.controller.cluster.trust import TrustKeeper
from roll_operator.controller.cluster.turns import status_bucket
from roll_operator.controller.cluster.workers import Workers
from roll_operator.plan.objects import Cluster

REFRESH_SECONDS = 300.0
"""The lists are read again this often, and soon after a watch began anew."""
AFTER_RELIST_SECONDS = 2.0
RETRY_SECONDS = 2.0
SETTLED_SECONDS = 10.0
"""An API server that has just started does not serve all of its APIs yet."""
SOON_SECONDS, CROWD_SECONDS = 0.1, 1.0
"""A look at a job whose pods come up waits so long for the next one's news; longer while new jobs wait."""

LOST_LEASE = 3
"""Exit code of a leader that lost its lease."""

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class ClusterChanged(Exception):
    """The cluster serves another API for gangs of pods than this operator's objects are made for."""


class Operator:
    def __init__(self, settings: Settings, api: Api, lease: Api, leader: Leader) -> None:
        """`lease`: the leader's line, which it shares with nobody."""
        self.settings, self.api, self.lease, self.leader = settings, api, lease, leader
        self.queue = WorkQueue()
        self.store = Store(self.queue.add, self._look_soon)
        self.proof = WatchProof()
        self.health = Health(
            self.queue,
            self.proof,
            self.store,
            leader.holds,
            lambda: max(api.answered_at, lease.answered_at),
        )
        self._relisted = asyncio.Event()

    async def run(self) -> int:
        """Until a signal or the loss of the lease; the exit code."""
        probes = await self.health.serve(self.settings.health_port, self.settings.metrics_port)
        watching = asyncio.create_task(self._watch())
        acting = asyncio.create_task(self._act())
        leading = asyncio.create_task(self.leader.run())
        try:
            done, _ = await asyncio.wait(
                {watching, acting, leading}, return_when=asyncio.FIRST_COMPLETED
            )
            if leading in done or self.leader.lost.is_set():
                log.error("the lease is lost: another operator acts from now on")
                return LOST_LEASE
            problem = next((task.exception() for task in done if task.exception()), None)
            if problem is not None:
                log.error("stopped by an error: %s", problem, exc_info=problem)
            return 0 if problem is None else 1
        finally:
            for task in (acting, leading, watching):
                task.cancel()
            await asyncio.gather(acting, leading, watching, return_exceptions=True)
            await self.leader.release()
            for probe in probes:
                await probe.cleanup()
            await self.api.close()
            await self.lease.close()

    async def _watch(self) -> None:
        namespaces = self.settings.watch_namespaces
        registry = handlers.registry(
            self.store, self.proof, self._relisted.set, self.settings.watch_nodes
        )
        await kopf.operator(
            registry=registry,
            settings=handlers.watching(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
        )

    async def _act(self) -> None:
        await self.leader.acquired.wait()
        log.info("this operator leads")
        given = self.settings
        links = LinkPool(
            self.queue.add,
            OperatorTokens(self.api, given.namespace, given.service_account).of,
            lambda: self.leader.term,
            time.monotonic,
            busy=self._busy,
        )
        cluster = await self._cluster()
        supports = Supports(self.api, cluster.pod_group_api)
        status = StatusWriter(
            self.api,
            status_bucket(self.settings.status_qps),
            self.proof,
            self.queue.add,
            busy=self._busy,
        )
        keeper = TrustKeeper(self.api, self.settings.authority)
        events = Events(self.api, self.settings.identity)
        acts = Acts(self.api, self.store, supports, keeper, events, self.proof, cluster)
        reconciler = Reconciler(self.api, self.store, links, status, acts, keeper, events, cluster)
        workers = Workers(self.queue, self.store, reconciler)
        try:
            await self._refresh(supports)
            self.queue.open()
            self.health.started = True
            async with asyncio.TaskGroup() as group:
                group.create_task(workers.run(self.settings.workers))
                group.create_task(links.run())
                group.create_task(status.turns.run())
                group.create_task(self._keep_fresh(supports, acts))
        except* ClusterChanged as changed:
            log.warning(
                "%s: the next operator begins with what is served now", changed.exceptions[0]
            )
        except* NotLeader:
            log.warning("a write was not sent: the lease is not held any more")
            self.leader.lost.set()
        finally:
            await links.close()
            await events.close()

    def _busy(self) -> bool:
        return self.queue.newcomers() > 0

    def _look_soon(self, key: str) -> None:
        self.queue.add_after(key, CROWD_SECONDS if self._busy() else SOON_SECONDS)

    async def _cluster(self) -> Cluster:
        given = self.settings
        return Cluster(
            operator_image=given.operator_image,
            worker_image=given.worker_image,
            operator_namespace=given.namespace,
            operator_identity=given.user,
            metrics_namespaces=given.metrics_namespaces,
            pull_policy=given.pull_policy,
            pull_secrets=given.pull_secrets,
            pod_group_api=await _until_answered(lambda: pod_group_api(self.api)),
            pod_group_scheduler=given.pod_group_scheduler or None,
            cert_manager_issuer=given.cert_manager_issuer or None,
        )

    async def _refresh(self, supports: Supports) -> None:
        async def read() -> None:
            await self._reread(supports)
            await supports.refresh(self.settings.watch_namespaces)

        await _until_answered(read)

    async def _reread(self, supports: Supports) -> None:
        serves = await pod_group_api(self.api)
        if serves != supports.pod_group_api:
            await asyncio.sleep(SETTLED_SECONDS)
            serves = await pod_group_api(self.api)
        if serves != supports.pod_group_api:
            raise ClusterChanged(f"PodGroups: {serves}, no longer {supports.pod_group_api}")
        for uid in await refresh(self.api, self.store, self.settings.watch_namespaces):
            self.proof.gone(uid)

    async def _keep_fresh(self, supports: Supports, acts: Acts) -> None:
        while True:
            self._relisted.clear()
            try:
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._relisted.wait()
                await asyncio.sleep(AFTER_RELIST_SECONDS)  # kopf reads its pages meanwhile
                self._relisted.clear()
                await self._reread(supports)
            except TimeoutError:
                await self._refresh(supports)
                acts.check_objects()
            except ApiError as error:
                log.warning("the lists could not be read: %s", error)


async def _until_answered(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    while True:
        try:
            return await ask()
        except ApiError as error:
            log.warning("%s; again in %.0f s", error, RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)


def settle_memory() -> None:
    """Each run of the collector looks at all that is known of the cluster: many objects have to come first."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


async def run(settings: Settings) -> int:
    settle_memory()
    bucket = TokenBucket(settings.qps, settings.burst)
    holds: list[Callable[[], bool]] = []

    def leads() -> bool:
        return all(check() for check in holds)

    api = Api(await connect(), bucket, leads)
    # A renewal that waited until one of many calls has its answer would come too late on a slow API server.
    lease = Api(await connect(), bucket, leads)
    leader = Leader(lease, settings.namespace, settings.lease_name, settings.identity)
    holds.append(leader.holds)
    return await Operator(settings, api, lease, leader).run()
