"""A plan's acts, carried out on the API server.

Order: what is to go goes first; Secrets, bundle and the other objects are there before the pods that need them.
Every act may be repeated or cut off anywhere: names are fixed, deletes name a UID, and what was done is in the
store before the next look.
"""

import asyncio

from roll_api import RLJob

from roll_operator.backends.kubernetes import read_pod
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

Refusals = dict[str, tuple[str, str]]
"""Pod's name → why the API server did not take it: kind and words."""


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
                case Restarted():
                    metrics.RESTARTS.labels(action.role, str(action.counted).lower()).inc()
                case Announce():
                    self._events.tell(entry, action)
        record = result.record
        if record.finished or record.failure is not None or record.closing:
            return self._note_refusals(entry, {})
        try:
            trusted = await self._prepare(entry, job, record.spec_hash)
        except (NameTaken, Invalid, Forbidden) as error:
            return self._note_refusals(entry, {a.name: _refusal(error) for a in starts})
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
            self._refused[entry.uid] = found
            self._store.touch(entry.key)  # the status has to say so
        return bool(found)

    async def _prepare(self, entry: JobEntry, job: RLJob, digest: str) -> trust.Trust:
        """Everything that pods need, in the order in which they need it."""
        trusted = await self._keeper.of(job, new=not self._supports.knows(entry.uid))
        made_from = (entry.generation, digest, trusted)
        if self._ensured.get(entry.uid) != made_from:
            objects = [trust.config_map(job, trusted), *support(job, self._cluster)]
            empty = not self._store.pods(entry.key, entry.uid)
            await self._supports.ensure(entry, objects, empty=empty)
            self._ensured[entry.uid] = made_from
        return trusted

    async def _start(
        self, entry: JobEntry, job: RLJob, action: StartPod, trusted: trust.Trust, starting: bool
    ) -> tuple[str, str] | None:
        """None, or why the API server refused the pod."""
        manifest = pod(job, action, self._cluster, trusted.serial, starting=starting)
        try:
            made = await self._api.create(paths.home(manifest), manifest)
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
            if await self._is_there(entry, name, uid):
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

    async def _is_there(self, entry: JobEntry, name: str, uid: str) -> bool:
        """Whether the name still belongs to the pod with this uid, and not to a namesake."""
        try:
            found = await self._api.get(paths.pod(entry.namespace, name))
        except NotFound:
            return False
        return bool(found["metadata"]["uid"] == uid)

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


def _refusal(error: Exception) -> tuple[str, str]:
    """Kind and words of a refusal, for the job's `pendingReason`."""
    words = error.message if isinstance(error, ApiError) else str(error)
    return ("Quota" if "exceeded quota" in words else "Refused", words)
