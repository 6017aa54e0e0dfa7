"""What the operator knows of the cluster: jobs, their pods, nodes that are not ready. Small facts, no manifests.

Invariants: an object never goes back to an older version, and a deleted one never comes back, in whatever
order watches, lists and answers to own writes arrive; own writes are in the store before the next plan; whatever
is new is told, what goes as it should a little later, so that one look sees several steps of several pods.
Versions are compared as numbers, which Kubernetes allows for objects of one kind.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from roll_api import JobStatus, RLJob

from roll_operator.backends.kubernetes import PodFacts
from roll_operator.plan import Announce, PodPhase, Record, Restarted

ALIVE = (PodPhase.PENDING, PodPhase.RUNNING)
REMEMBERED_DELETIONS = 20_000


@dataclass(slots=True)
class JobEntry:
    """One RLJob as last seen, and what was last written about it."""

    namespace: str
    name: str
    uid: str
    version: int
    generation: int
    job: RLJob | None
    """None: it cannot be read, or not be run; `problem` says why."""
    problem: str = ""
    reason: str = "CannotBeRead"
    """`problem` in one word."""
    managed: bool = True
    """False: another controller's, which alone may say what is wrong with it."""
    deleting: bool = False
    status: JobStatus | None = None
    record: Record = field(default_factory=Record)
    spec_hash: str = ""
    invalid: str = ""
    """What the condition `Invalid` says on the cluster."""
    written_at: float = 0.0
    """When this process last wrote the status, on its own clock."""
    ahead: tuple[JobStatus, Record] | None = None
    """What the newest plan says and the cluster does not yet: it waits for its turn. The next plan starts from it."""
    untold: list[Announce | Restarted] = field(default_factory=list)
    """What that plan announces and nobody was told yet; the next plan will not say it again."""
    told: dict[tuple[int, str, str], int] = field(default_factory=dict)
    """How many Events, by version, reason and message."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class Store:
    """`changed` is called with the key of every job that has news, `soon` where the news can wait for a moment."""

    def __init__(
        self, changed: Callable[[str], None], soon: Callable[[str], None] | None = None
    ) -> None:
        self._changed, self._soon = changed, soon or changed
        self._jobs: dict[str, JobEntry] = {}
        self._pods: dict[str, dict[str, PodFacts]] = {}
        """Job's key → pod's uid → pod."""
        self._not_ready: set[str] = set()
        self._deleted: OrderedDict[str, None] = OrderedDict()

    def job(self, key: str) -> JobEntry | None:
        return self._jobs.get(key)

    def jobs(self) -> Iterator[JobEntry]:
        return iter(list(self._jobs.values()))

    def pods(self, key: str, uid: str) -> list[PodFacts]:
        """Pods of the job with this uid, those of lost nodes marked; not those of an earlier namesake."""
        return [
            replace(facts, pod=replace(facts.pod, node_ready=False))
            if facts.node in self._not_ready
            else facts
            for facts in self._pods.get(key, {}).values()
            if facts.owner == uid
        ]

    def pod(self, key: str, uid: str) -> PodFacts | None:
        return self._pods.get(key, {}).get(uid)

    def left_behind(self, key: str, uid: str = "") -> list[PodFacts]:
        """Pods of jobs that had this name before the one with this uid; without it, of all of them."""
        return [facts for facts in self._pods.get(key, {}).values() if facts.owner != uid]

    def count_pods(self) -> int:
        return sum(len(pods) for pods in self._pods.values())

    def versions(self) -> Iterator[tuple[str, str, int]]:
        """Kind, uid and version of everything, for a comparison with a list."""
        for entry in list(self._jobs.values()):
            yield "job", entry.uid, entry.version
        for pods in list(self._pods.values()):
            for facts in list(pods.values()):
                yield "pod", facts.pod.uid, facts.version

    def put_job(self, entry: JobEntry) -> bool:
        """Whether it was news."""
        known = self._jobs.get(entry.key)
        if entry.uid in self._deleted:
            return False
        if known is not None and known.uid == entry.uid and known.version >= entry.version:
            return False
        if known is not None and known.uid == entry.uid:
            entry.written_at = known.written_at
            if known.record == entry.record:
                entry.ahead, entry.untold = known.ahead, known.untold
            elif known.ahead is not None and known.ahead[1] == entry.record:
                entry.untold = known.untold  # the own write, seen before its answer
        self._jobs[entry.key] = entry
        self._changed(entry.key)
        return True

    def drop_job(self, key: str, uid: str) -> None:
        self._bury(uid)
        known = self._jobs.get(key)
        if known is not None and known.uid == uid:
            del self._jobs[key]
            self._changed(key)

    def put_pod(self, facts: PodFacts) -> bool:
        if facts.pod.uid in self._deleted:
            return False
        pods = self._pods.setdefault(facts.key, {})
        known = pods.get(facts.pod.uid)
        if known is not None and known.version >= facts.version:
            return False
        pods[facts.pod.uid] = facts
        (self._soon if _comes_up(known, facts) else self._changed)(facts.key)
        return True

    def touch(self, key: str) -> None:
        """The job has to be looked at again."""
        self._changed(key)

    def annotate_pod(self, facts: PodFacts) -> None:
        """Adds to what is known of a pod that is still of this version."""
        pods = self._pods.get(facts.key, {})
        known = pods.get(facts.pod.uid)
        if known is not None and known.version == facts.version:
            pods[facts.pod.uid] = facts

    def drop_pod(self, key: str, uid: str) -> None:
        self._bury(uid)
        pods = self._pods.get(key, {})
        if pods.pop(uid, None) is not None:
            self._changed(key)
        if not pods:
            self._pods.pop(key, None)

    def drop(self, uid: str) -> None:
        """An object that a list no longer has."""
        for entry in list(self._jobs.values()):
            if entry.uid == uid:
                self.drop_job(entry.key, uid)
        for key, pods in list(self._pods.items()):
            if uid in pods:
                self.drop_pod(key, uid)

    def put_node(self, name: str, ready: bool) -> None:
        if ready == (name not in self._not_ready):
            return
        (self._not_ready.discard if ready else self._not_ready.add)(name)
        for key, pods in self._pods.items():  # rare enough to spare an index
            if any(facts.node == name for facts in pods.values()):
                self._changed(key)

    def drop_node(self, name: str) -> None:
        """A node that is gone is not ready; the pods that still name it are lost."""
        self.put_node(name, ready=False)

    def _bury(self, uid: str) -> None:
        self._deleted[uid] = None
        while len(self._deleted) > REMEMBERED_DELETIONS:
            self._deleted.popitem(last=False)


def _comes_up(known: PodFacts | None, facts: PodFacts) -> bool:
    """Whether all that is new is that the pod is there, has a node, or runs."""
    before, now = known.pod if known else None, facts.pod
    if now.phase not in ALIVE or (before is None and now.restarts):
        return False
    return before is None or (before.phase in ALIVE and before.restarts == now.restarts)
