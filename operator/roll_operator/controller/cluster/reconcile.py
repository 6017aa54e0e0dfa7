"""One look at one job: what is → plan → status → acts. Level-triggered; nothing is decided here.

Order: what a plan counts is on the cluster before its first act; what it only reports comes afterwards, and not
at all where the acts have changed what there is to report.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic import ValidationError
from roll_api import RLJob

from roll_operator.backends.kubernetes import PodFacts, wants_log, with_log
from roll_operator.controller.cluster import paths
from roll_operator.controller.cluster.acts import Acts
from roll_operator.controller.cluster.api import Api
from roll_operator.controller.cluster.errors import ApiError, Conflict, NotFound
from roll_operator.controller.cluster.events import Events
from roll_operator.controller.cluster.links import LinkPool, Target
from roll_operator.controller.cluster.reading import read_job
from roll_operator.controller.cluster.status import StatusWriter
from roll_operator.controller.cluster.store import JobEntry, Store
from roll_operator.controller.cluster.trust import TrustKeeper
from roll_operator.plan import (
    Announce,
    DeleteJob,
    Observed,
    Plan,
    Pod,
    PodPhase,
    Progress,
    Record,
    StopPod,
    doubtful,
    plan,
)
from roll_operator.plan.desired import name_of
from roll_operator.plan.model import SCHEDULER
from roll_operator.plan.objects.cluster import Cluster, host, site

LOG_SECONDS = 2.0
LOG_LINES = "20"
REFUSED_SECONDS = 10.0
"""A pod that the API server refused is offered again after this time."""
UNHEARD_SECONDS = 2.0
"""A scheduler that did not say whether its job stands still is asked again after this time."""
ERROR_WORDS = 500
"""Characters of an error that a condition quotes."""
KEY_SECONDS = 10.0
"""A certificate that takes longer is asked about."""

log = logging.getLogger(__name__)


class Reconciler:
    def __init__(
        self,
        api: Api,
        store: Store,
        links: LinkPool,
        status: StatusWriter,
        acts: Acts,
        keeper: TrustKeeper,
        events: Events,
        cluster: Cluster,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._store, self._links, self._status = api, store, links, status
        self._acts, self._keeper, self._events, self._wall = acts, keeper, events, wall
        self._cluster = cluster
        self._of_record: dict[str, tuple[str, RLJob]] = {}
        """Job's uid → the job as its pods were told, under the hash that names it."""

    async def look(self, key: str) -> float | None:
        """One look; the seconds until the next one is due although nothing happens."""
        entry = self._store.job(key)
        if entry is None or entry.deleting:
            self._links.point(key, None)
            self._status.turns.leave(key)
            await self._acts.release(self._store.left_behind(key))
            return None
        await self._acts.release(self._store.left_behind(key, entry.uid))
        if entry.job is None or not entry.managed:
            await self._judge(entry, entry.problem, entry.reason)
            self._links.point(key, None)
            return None
        wait = await self._carry_out(entry, entry.job)
        if self._store.job(key) is entry:
            await self._judge(entry, "")
        return wait

    async def report(self, key: str, error: Exception) -> None:
        """The look ended by an error that nobody thought of: the job says so until one succeeds."""
        entry = self._store.job(key)
        if entry is not None and not entry.deleting:
            said = f"{type(error).__name__}: {error}"[:ERROR_WORDS]
            problem = f"an error of the operator, whose log tells more: {said}"
            await self._judge(entry, problem, "OperatorError")

    def forget(self, uid: str) -> None:
        """The job is gone for good."""
        self._of_record.pop(uid, None)
        self._acts.forget(uid)
        self._keeper.forget(uid)

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
        status, record = entry.ahead or (entry.status, entry.record)
        record = _with_spec(record, facts)
        observed = Observed(
            pods=await self._explained(job, facts, now),
            record=record,
            progress=await self._progress(key, facts),
            suspend=job.spec.suspend,
            status=status,
            job_of_record=await self._job_of_record(entry, record),
            fenced=self._links.acknowledged(key),
            refused=self._acts.refused(entry.uid),
        )
        where = site(job, self._cluster)
        result = plan(job, observed, now, where)
        if _finds_stall(observed, result):  # by a report that may be older than the deadline
            latest = await self._links.last_word(key)
            if latest is None:
                return UNHEARD_SECONDS
            observed = replace(observed, progress=latest)
            result = plan(job, observed, now, where)
        last = _stops_scheduler(job, result)
        if last:  # what the workers saved on their way out is newer than its report
            latest = await self._links.last_word(key)
            result = plan(
                job, replace(observed, progress=_final(observed.progress, latest)), now, where
            )
        await self._status.before_acts(entry, result, at_once=last)
        self._acts.tell(entry)
        if any(isinstance(a, DeleteJob) for a in result.actions):
            await self._delete_job(entry)
            return None
        refused = await self._acts.carry_out(entry, result.job or job, result)
        await self._acts.release(facts)
        await self._acts.renew(entry)
        self._links.point(key, await self._target(entry, job, result))
        waits = [result.wake_at - self._wall() if result.wake_at is not None else None]
        newest = self._store.job(key) is entry and self._store.pods(key, entry.uid) == facts
        waits.append(await self._status.after_acts(entry, result, newest=newest))
        waits.append(REFUSED_SECONDS if refused else None)
        return min((max(0.0, w) for w in waits if w is not None), default=None)

    async def _progress(self, key: str, facts: Sequence[PodFacts]) -> Progress | None:
        known = self._links.progress(key)
        if doubtful((f.pod for f in facts), known):
            return await self._links.last_word(key) or known
        return known

    async def _explained(
        self, job: RLJob, facts: Sequence[PodFacts], now: float
    ) -> tuple[Pod, ...]:
        """The job's pods in order. Of a key that is not there the kubelet tells in Events alone."""
        pods = sorted((f.pod for f in facts), key=lambda pod: pod.name)
        waits = [p for p in pods if p.role == SCHEDULER and _hangs(p, now)]
        words = await self._keeper.unissued(job) if waits else ""
        if not words:
            return tuple(pods)
        return tuple(replace(p, pending=("Certificate", words)) if p in waits else p for p in pods)

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
        return [spoken.get(f.pod.uid, f) for f in facts]

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

    async def _job_of_record(self, entry: JobEntry, record: Record) -> RLJob | None:
        """The job as its pods were told, where the spec has changed since."""
        wanted = record.spec_hash
        if not wanted or wanted == entry.spec_hash:
            return None
        known = self._of_record.get(entry.uid)
        if known is not None and known[0] == wanted:
            return known[1]
        try:
            found = await self._api.get(
                paths.config_map(entry.namespace, f"{entry.name}-spec-{wanted}")
            )
            job = RLJob.parse_stored(json.loads(found["data"]["job.json"]))
        except (NotFound, KeyError, ValueError, ValidationError) as error:
            log.warning("%s: the spec of its pods cannot be read: %s", entry.key, error)
            return None
        self._of_record[entry.uid] = (wanted, job)
        return job

    async def _judge(self, entry: JobEntry, problem: str, reason: str = "") -> None:
        """What is wrong with a job is said once, and again when it changes."""
        if problem == entry.invalid or not entry.managed:
            return
        await self._status.say_invalid(entry, problem, reason, self._wall())
        if problem:
            self._events.tell(entry, Announce("Warning", "Invalid", problem))

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


def _hangs(pod: Pod, now: float) -> bool:
    """A kubelet has it for a while, and neither starts it nor says why."""
    began = pod.started_at
    return pod.phase is PodPhase.PENDING and not pod.pending and 0 < began < now - KEY_SECONDS


def _with_spec(record: Record, facts: Sequence[PodFacts]) -> Record:
    """Pods may be there before their record: what they were made from is written on them."""
    made_from = next((f.pod.spec_hash for f in facts if f.pod.spec_hash), "")
    return record if record.spec_hash else replace(record, spec_hash=made_from)


def _final(known: Progress | None, latest: Progress | None) -> Progress | None:
    """The rate fades while workers end; what counts is that of the time when they trained."""
    if known is None or latest is None:
        return latest or known
    return replace(latest, samples_per_second=known.samples_per_second)


def _finds_stall(observed: Observed, result: Plan) -> bool:
    return result.record.stalled not in (None, observed.record.stalled)


def _stops_scheduler(job: RLJob, result: Plan) -> bool:
    name = name_of(job.name, SCHEDULER, 0)
    return any(isinstance(action, StopPod) and action.name == name for action in result.actions)
