"""One look at one job: what is → plan → status → acts. Level-triggered; nothing is decided here.

Order: the record of a plan is on the cluster before its first act; Secrets, bundle and the other objects are
there before the pods that need them. Every act may be repeated or cut off anywhere: names are fixed, deletes
name a UID, and what was done is in the store before the next look.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic import ValidationError
from roll_api import RLJob

from roll_operator.backends.kubernetes import PodFacts, read_pod, wants_log, with_log
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
from roll_operator.controller.cluster.links import LinkPool, Target
from roll_operator.controller.cluster.proof import WatchProof
from roll_operator.controller.cluster.reading import read_job
from roll_operator.controller.cluster.status import StatusWriter
from roll_operator.controller.cluster.store import JobEntry, Store
from roll_operator.controller.cluster.supports import NameTaken, Supports
from roll_operator.plan import (
    Announce,
    DeleteJob,
    ForceDelete,
    Observed,
    Plan,
    PodPhase,
    Progress,
    RemovePod,
    Restarted,
    StartPod,
    StopPod,
    managed,
    plan,
)
from roll_operator.plan.desired import grace_of, name_of
from roll_operator.plan.model import SCHEDULER
from roll_operator.plan.objects import Cluster, pod, support
from roll_operator.plan.objects.cluster import host, site
from roll_operator.plan.objects.gang import gathers

LOG_SECONDS = 2.0
LOG_LINES = "20"
REFUSED_SECONDS = 10.0
"""A pod that the API server refused is offered again after this time."""

log = logging.getLogger(__name__)


class Reconciler:
    def __init__(
        self,
        api: Api,
        store: Store,
        links: LinkPool,
        status: StatusWriter,
        supports: Supports,
        keeper: trust.TrustKeeper,
        events: Events,
        proof: WatchProof,
        cluster: Cluster,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._store, self._links = api, store, links
        self._status, self._supports, self._keeper = status, supports, keeper
        self._events, self._proof, self._cluster, self._wall = events, proof, cluster, wall
        self._refused: dict[str, dict[str, tuple[str, str]]] = {}
        """Job's uid → pod's name → why the API server did not take it."""
        self._of_record: dict[str, tuple[str, RLJob]] = {}
        self._ensured: dict[str, tuple[object, ...]] = {}
        """Job's uid → what its objects were last made from."""

    async def look(self, key: str) -> float | None:
        """One look; the seconds until the next one is due although nothing happens."""
        entry = self._store.job(key)
        if entry is None or entry.deleting:
            self._links.point(key, None)
            return None
        if entry.problem or entry.invalid:
            await self._judge(entry)
        if entry.job is None or not managed(entry.job):
            self._links.point(key, None)
            return None
        return await self._carry_out(entry, entry.job)

    def forget(self, uid: str) -> None:
        """The job is gone for good."""
        for memory in (self._refused, self._of_record, self._ensured):
            memory.pop(uid, None)
        self._supports.forget(uid)
        self._keeper.forget(uid)

    def check_objects(self) -> None:
        """The objects of every job are compared again at its next look."""
        self._ensured.clear()

    async def reread(self, key: str) -> None:
        """What was known of the job was not the newest."""
        namespace, name = key.split("/")
        known = self._store.job(key)
        try:
            manifest = await self._api.get(paths.job(namespace, name))
        except NotFound:
            if known is not None:
                self._store.drop_job(key, known.uid)
            return
        self._store.put_job(read_job(manifest, known))

    async def _carry_out(self, entry: JobEntry, job: RLJob) -> float | None:
        key, now = entry.key, self._wall()
        facts = await self._last_words(self._store.pods(key, entry.uid))
        observed = Observed(
            pods=tuple(sorted((f.pod for f in facts), key=lambda pod: pod.name)),
            record=entry.record,
            progress=self._links.progress(key),
            suspend=job.spec.suspend,
            status=entry.status,
            job_of_record=await self._job_of_record(entry),
            fenced=self._links.acknowledged(key),
            refused=dict(self._refused.get(entry.uid, {})),
        )
        where = replace(site(job), keeps_ended=True)
        result = plan(job, observed, now, where)
        last = _stops_scheduler(job, result)
        if last:  # what the workers saved on their way out is newer than its report
            latest = await self._links.last_word(key)
            result = plan(
                job, replace(observed, progress=_final(observed.progress, latest)), now, where
            )
        later = await self._status.write(entry, result, at_once=last)
        if any(isinstance(a, DeleteJob) for a in result.actions):
            await self._delete_job(entry)
            return None
        refused = await self._act(entry, result.job or job, result)
        await self._renew(entry)
        self._links.point(key, await self._target(entry, job, result))
        waits = [result.wake_at - self._wall() if result.wake_at is not None else None, later]
        waits.append(REFUSED_SECONDS if refused else None)
        return min((max(0.0, w) for w in waits if w is not None), default=None)

    async def _act(self, entry: JobEntry, job: RLJob, result: Plan) -> bool:
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
                    await self._events.tell(entry, action)
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
        trusted = await self._keeper.of(job)
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
        facts = read_pod(left) if left.get("kind") == "Pod" else None
        if facts is not None and facts.pod.deletion_at is not None and grace != 0:
            self._store.put_pod(facts)

    async def _is_there(self, entry: JobEntry, name: str, uid: str) -> bool:
        """Whether the name still belongs to the pod with this uid, and not to a namesake."""
        try:
            found = await self._api.get(paths.pod(entry.namespace, name))
        except NotFound:
            return False
        return bool(found["metadata"]["uid"] == uid)

    async def _renew(self, entry: JobEntry) -> None:
        """A scheduler whose certificate was rotated is replaced; as a deleted pod it is not counted."""
        for found in self._store.pods(entry.key, entry.uid):
            pod = found.pod
            if (
                pod.role == SCHEDULER
                and pod.phase is PodPhase.RUNNING
                and self._keeper.replaces(entry.uid, found.serial)
            ):
                await self._delete(entry, pod.name, pod.uid, round(grace_of(SCHEDULER)))

    async def _delete_job(self, entry: JobEntry) -> None:
        try:
            await self._api.delete(paths.job(entry.namespace, entry.name), entry.uid, None)
        except (NotFound, Conflict):
            await self.reread(entry.key)

    async def _last_words(self, facts: Sequence[PodFacts]) -> list[PodFacts]:
        """Failed pods with the end of their log, which is read once, before they are deleted."""
        silent = [f for f in facts if wants_log(f)]
        lines = await asyncio.gather(*(self._log(f) for f in silent))
        spoken = {f.pod.uid: with_log(f, text) for f, text in zip(silent, lines, strict=True)}
        for told in spoken.values():
            self._store.annotate_pod(told)
        return [replace(f, pod=spoken[f.pod.uid].pod) if f.pod.uid in spoken else f for f in facts]

    async def _log(self, facts: PodFacts) -> str:
        namespace = facts.key.split("/")[0]
        path = f"{paths.pod(namespace, facts.pod.name)}/log"
        try:
            return await self._api.text(
                path, LOG_SECONDS, container=facts.pod.role, tailLines=LOG_LINES, limitBytes="8000"
            )
        except ApiError as error:
            log.info("%s: the log of %s cannot be read: %s", facts.key, facts.pod.name, error)
            return ""

    async def _job_of_record(self, entry: JobEntry) -> RLJob | None:
        """The job as its pods were told, where the spec has changed since."""
        wanted = entry.record.spec_hash
        if not wanted or wanted == entry.spec_hash:
            return None
        known = self._of_record.get(entry.uid)
        if known is not None and known[0] == wanted:
            return known[1]
        try:
            found = await self._api.get(
                paths.config_map(entry.namespace, f"{entry.name}-spec-{wanted}")
            )
            job = RLJob.from_json(found["data"]["job.json"])
        except (NotFound, KeyError, ValueError, ValidationError) as error:
            log.warning("%s: the spec of its pods cannot be read: %s", entry.key, error)
            return None
        self._of_record[entry.uid] = (wanted, job)
        return job

    async def _judge(self, entry: JobEntry) -> None:
        """A job that cannot be read says so once, and again when the reason changes."""
        if entry.problem == entry.invalid:
            return
        await self._status.say_invalid(entry, self._wall())
        if entry.problem:
            await self._events.tell(entry, Announce("Warning", "Invalid", entry.problem))

    async def _target(self, entry: JobEntry, job: RLJob, result: Plan) -> Target | None:
        pods = self._store.pods(entry.key, entry.uid)
        for found in pods:
            pod, fenced = found.pod, set(result.record.fenced)
            if pod.role == SCHEDULER and found.ip and pod.phase is PodPhase.RUNNING:
                bundle = await self._keeper.bundle(job)
                if not bundle:
                    return None  # nothing to know it by: whoever answers could say anything
                workers = (f.pod for f in pods if f.pod.role != SCHEDULER)
                return Target(
                    job_uid=entry.uid,
                    scheduler=f"{pod.uid}/{pod.restarts}",
                    ip=found.ip,
                    name=host(job, pod.name),
                    bundle=bundle,
                    current=tuple(
                        p for p in workers if p.phase is not PodPhase.EXITED and p.uid not in fenced
                    ),
                    gone=tuple(sorted(fenced)),
                )
        return None


def _final(known: Progress | None, latest: Progress | None) -> Progress | None:
    """The rate fades while workers end; what counts is that of the time when they trained."""
    if known is None or latest is None:
        return latest or known
    return replace(latest, samples_per_second=known.samples_per_second)


def _stops_scheduler(job: RLJob, result: Plan) -> bool:
    name = name_of(job.name, SCHEDULER, 0)
    return any(isinstance(action, StopPod) and action.name == name for action in result.actions)


def _refusal(error: Exception) -> tuple[str, str]:
    """Kind and words of a refusal, for the job's `pendingReason`."""
    words = error.message if isinstance(error, ApiError) else str(error)
    return ("Quota" if "exceeded quota" in words else "Refused", words)
