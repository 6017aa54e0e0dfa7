"""A plan's acts, carried out on the API server.

Order: what is to go goes first; Secrets, bundle and the other objects are there before the pods that need them.
Every act may be repeated or cut off anywhere: names are fixed, deletes name a UID, and what was done is in the
store before the next look.
"""

import asyncio
import logging
from collections.abc import Iterable

from roll_api import RLJob

from roll_operator.backends.kubernetes import PodFacts, read_pod
from roll_operator.controller.cluster import metrics, paths, trust
from roll_operator.controller.cluster.api import Api
from roll_operator.controller.cluster.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
)
from roll_operator.controller.cluster.events import Events
from roll_operator.controller.cluster.proof import WatchProof
from roll_operator.controller.cluster.store import JobEntry, Store
from roll_operator.controller.cluster.supports import NameTaken, Supports
from roll_operator.plan import (
    Announce,
    ForceDelete,
    Plan,
    PodPhase,
    RemovePod,
    Restarted,
    StartPod,
    StopPod,
)
from roll_operator.plan.desired import grace_of
from roll_operator.plan.model import SCHEDULER
from roll_operator.plan.objects import Cluster, pod, support
from roll_operator.plan.objects.gang import gathers
from roll_operator.plan.objects.queue import FINALIZER
from roll_operator.plan.objects.template import TemplateError

Refusals = dict[str, tuple[str, str]]
"""Pod's name → why the API server did not take it: kind and words. The job's own name: no pod waits for what was
refused, and the words say which object it is."""

log = logging.getLogger(__name__)


class Acts:
    def __init__(
        self,
        api: Api,
        store: Store,
        supports: Supports,
        keeper: trust.TrustKeeper,
        events: Events,
        proof: WatchProof,
        cluster: Cluster,
    ) -> None:
        self._api, self._store, self._proof, self._cluster = api, store, proof, cluster
        self._supports, self._keeper, self._events = supports, keeper, events
        self._refused: dict[str, Refusals] = {}
        """By the job's uid."""
        self._ensured: dict[str, tuple[object, ...]] = {}
        """Job's uid → what its objects were last made from."""

    def refused(self, uid: str) -> Refusals:
        return dict(self._refused.get(uid, {}))

    def forget(self, uid: str) -> None:
        self._refused.pop(uid, None)
        self._ensured.pop(uid, None)
        self._supports.forget(uid)

    def check_objects(self) -> None:
        """The objects of every job are compared again at its next look."""
        self._ensured.clear()

    def tell(self, entry: JobEntry) -> None:
        """Announces what was not told yet. Before the acts: one that fails must not cost an Event."""
        while entry.untold:
            match entry.untold.pop(0):
                case Restarted(role=role, counted=counted):
                    metrics.RESTARTS.labels(role, str(counted).lower()).inc()
                case Announce() as told:
                    self._events.tell(entry, told)

    async def carry_out(self, entry: JobEntry, job: RLJob, result: Plan) -> bool:
        """Whether the API server refused something that it may take later."""
        starts = [a for a in result.actions if isinstance(a, StartPod)]
        for action in result.actions:
            match action:
                case StopPod():
                    await self._delete(entry, action.name, action.uid, max(1, round(action.grace)))
                case RemovePod():
                    await self._delete(entry, action.name, action.uid, None)
                case ForceDelete():
                    await self._delete(entry, action.name, action.uid, 0)
                    await self._let_go(entry.key, action.name, action.uid)
        record = result.record
        if record.finished or record.failure is not None or record.closing:
            return self._note_refusals(entry, {})
        try:
            trusted = await self._prepare(entry, job, record.spec_hash)
        except (NameTaken, Invalid, Forbidden) as error:
            names = [a.name for a in starts] or [entry.name]
            return self._note_refusals(entry, dict.fromkeys(names, _refusal(error)))
        others = [(f.pod.scheduled, f.group) for f in self._store.pods(entry.key, entry.uid)]
        starting = not record.was_running and gathers(job, self._cluster, others)
        tries = [self._start(entry, job, action, trusted, starting) for action in starts]
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        found = {a.name: o for a, o in zip(starts, outcomes, strict=True) if isinstance(o, tuple)}
        return self._note_refusals(entry, found)

    def _note_refusals(self, entry: JobEntry, found: dict[str, tuple[str, str]]) -> bool:
        if found != self._refused.get(entry.uid, {}):
            for name, (kind, words) in found.items():
                log.warning("%s: %s: %s: %s", entry.key, kind, name, words)
            self._refused[entry.uid] = found
            self._store.touch(entry.key)  # the status has to say so
        return bool(found)

    async def _prepare(self, entry: JobEntry, job: RLJob, digest: str) -> trust.Trust:
        """Everything that pods need, in the order in which they need it."""
        empty, new = not self._store.pods(entry.key, entry.uid), not self._supports.knows(entry.uid)
        trusted = await self._keeper.of(job, new=new, empty=empty)
        made_from = (entry.generation, digest, trusted)
        if self._ensured.get(entry.uid) != made_from:
            objects = [trust.config_map(job, trusted), *support(job, self._cluster)]
            await self._supports.ensure(entry, objects, empty=empty)
            self._ensured[entry.uid] = made_from
        return trusted

    async def _start(
        self, entry: JobEntry, job: RLJob, action: StartPod, trusted: trust.Trust, starting: bool
    ) -> tuple[str, str] | None:
        """None, or why there is no such pod."""
        try:
            manifest = pod(job, action, self._cluster, trusted.serial, starting=starting)
        except TemplateError as error:
            return _refusal(error)
        try:
            made = await self._api.create(paths.home(manifest), manifest, strict=True)
        except AlreadyExists as error:
            return await self._adopt(entry, action.name, error)
        except (Forbidden, Invalid, NotFound) as error:
            return _refusal(error)
        facts = read_pod(made)
        if facts is not None:
            self._proof.expect(facts.pod.uid, facts.version)
            self._store.put_pod(facts)
        return None

    async def _adopt(self, entry: JobEntry, name: str, error: ApiError) -> tuple[str, str] | None:
        """The name is taken: by an earlier try, whose answer was lost, or by a stranger."""
        try:
            facts = read_pod(await self._api.get(paths.pod(entry.namespace, name)))
        except NotFound:
            self._store.touch(entry.key)  # gone again: the next look starts it
            return None
        if facts is None or facts.owner != entry.uid:
            return ("Refused", f"{error.message}, and it does not belong to this job")
        self._store.put_pod(facts)
        return None

    async def _delete(self, entry: JobEntry, name: str, uid: str, grace: int | None) -> None:
        try:
            left = await self._api.delete(paths.pod(entry.namespace, name), uid, grace)
        except NotFound:
            self._store.drop_pod(entry.key, uid)
            return
        except Conflict:
            if await self._is_there(entry.key, name, uid):
                raise
            self._store.drop_pod(entry.key, uid)
            return
        if left.get("kind") != "Pod" or grace == 0:
            return
        metadata = left["metadata"]
        if not metadata.get("resourceVersion") or not metadata.get("deletionTimestamp"):
            # Another's deletion came first, or nothing held it: it was gone with the answer.
            self._store.drop_pod(entry.key, uid)
        elif (facts := read_pod(left)) is not None:
            self._store.put_pod(facts)

    async def _is_there(self, key: str, name: str, uid: str) -> bool:
        """Whether the name still belongs to the pod with this uid, and not to a namesake."""
        try:
            found = await self._api.get(paths.pod(key.split("/")[0], name))
        except NotFound:
            return False
        return bool(found["metadata"]["uid"] == uid)

    async def release(self, pods: Iterable[PodFacts]) -> None:
        """Lets go the objects that only Kueue keeps. Of a job that goes on: as the plan saw them that was written
        down, so that no end is gone before it was judged."""
        for found in pods:
            if _held_by_kueue(found):
                await self._let_go(found.key, found.pod.name, found.pod.uid)

    async def _let_go(self, key: str, name: str, uid: str) -> None:
        known = self._store.pod(key, uid)
        if known is None or not known.queued:
            return
        try:
            left = await self._api.release(paths.pod(key.split("/")[0], name), uid, FINALIZER)
        except NotFound:
            self._store.drop_pod(key, uid)
            return
        except Conflict:  # a namesake, or others wrote it at the same moment
            if await self._is_there(key, name, uid):
                raise
            self._store.drop_pod(key, uid)
            return
        metadata = left["metadata"]
        if metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds"):
            if (facts := read_pod(left)) is not None:
                self._store.put_pod(facts)
        else:
            self._store.drop_pod(key, uid)  # nothing held it any more: it was gone with the answer

    async def renew(self, entry: JobEntry) -> None:
        """A scheduler whose certificate was rotated is replaced; as a deleted pod it is not counted."""
        for found in self._store.pods(entry.key, entry.uid):
            pod = found.pod
            if (
                pod.role == SCHEDULER
                and pod.phase is PodPhase.RUNNING
                and self._keeper.replaces(entry.uid, found.serial)
            ):
                await self._delete(entry, pod.name, pod.uid, round(grace_of(SCHEDULER)))


def _held_by_kueue(found: PodFacts) -> bool:
    """Deleted, and ended; or no kubelet ever had it, and none can get it any more."""
    ended = found.pod.phase is PodPhase.EXITED or not found.node
    return found.queued and found.pod.deletion_at is not None and ended


def _refusal(error: Exception) -> tuple[str, str]:
    """Kind and words of a refusal, for the job's `pendingReason`."""
    words = error.message if isinstance(error, ApiError) else str(error)
    return ("Quota" if "exceeded quota" in words else "Refused", words)
