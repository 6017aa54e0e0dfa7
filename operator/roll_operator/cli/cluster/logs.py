"""`kubectl roll logs`: what the pods of a job wrote, as far as the cluster still has it."""

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from roll_operator.backends.kubernetes import read_pod
from roll_operator.cli.cluster.connection import Cluster, Manifest, explain
from roll_operator.cli.cluster.status import AT_REST
from roll_operator.controller.cluster import errors, paths
from roll_operator.controller.folder import RunError

POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Choice:
    """Which pods, and how much of them."""

    pod: str | None
    role: str | None
    lines: int
    previous: bool


@dataclass(frozen=True, slots=True)
class _Log:
    name: str
    short: str
    role: str
    uid: str
    attempt: int
    restarts: int

    @property
    def title(self) -> str:
        return f"{self.short}.{self.attempt}"


def show_cluster_logs(job: str, namespace: str | None, choice: Choice, *, follow: bool) -> int:
    cluster = Cluster(namespace)
    found = cluster.job(job)
    logs = list(_logs(cluster.pods(job), job))
    chosen = [log for log in logs if _fits(log, choice)]
    if follow:
        return _follow(cluster, job, choice)
    if not chosen:
        raise RunError(_nothing(found, job, logs, choice))
    for log in chosen:
        try:
            for line in _lines(cluster, log, choice, follow=False):
                print(f"{log.title} | {line}" if len(chosen) > 1 else line)
        except errors.ApiError as error:
            if len(chosen) == 1:
                raise
            print(f"{log.title}: {explain(error)}", file=sys.stderr)
    return 0


def _logs(pods: list[Manifest], job: str) -> Iterator[_Log]:
    for manifest in pods:
        facts = read_pod(manifest)
        if facts is not None:
            pod = facts.pod
            short = pod.name.removeprefix(f"{job}-")
            yield _Log(pod.name, short, pod.role, pod.uid, pod.attempt, pod.restarts)


def _fits(log: _Log, choice: Choice) -> bool:
    names = (log.name, log.short, f"{log.name}.{log.attempt}", log.title)
    return choice.role in (None, log.role) and (choice.pod is None or choice.pod in names)


def _lines(cluster: Cluster, log: _Log, choice: Choice, *, follow: bool) -> Iterator[str]:
    query = {"container": log.role}
    if choice.lines:
        query["tailLines"] = str(choice.lines)
    if choice.previous:
        query["previous"] = "true"
    if follow:
        query["follow"] = "true"
    yield from cluster.lines(f"{paths.pod(cluster.namespace, log.name)}/log", **query)


def _nothing(job: Manifest, name: str, logs: list[_Log], choice: Choice) -> str:
    """A pod that is gone takes its log along; what it said last is in the status."""
    there = ", ".join(log.title for log in logs) or "none"
    wanted = (choice.pod or choice.role or "").removeprefix(f"{name}-")
    said = f"no pod of {name} fits {wanted}" if wanted else f"{name} has no pods now"
    for failure in _failures(job):
        short = failure.get("pod", "").removeprefix(f"{name}-")
        if short and wanted.startswith(short):
            last = " / ".join((failure.get("message") or "").strip().splitlines()[-3:])
            return f"{said}; there are: {there}. The last words of {short} before it was replaced: {last}"
    return f"{said}; there are: {there}. The log of a pod that is gone is gone with it"


def _failures(job: Manifest) -> Iterator[Manifest]:
    roles = (job.get("status") or {}).get("roles") or {}
    for role in roles.values():
        if role.get("lastFailure"):
            yield role["lastFailure"]


def _follow(cluster: Cluster, job: str, choice: Choice) -> int:
    """A thread per container, new ones as pods are replaced, until the job is at rest and all is told."""
    known: dict[tuple[str, int], _Follower] = {}
    lock = threading.Lock()
    while True:
        found = cluster.find(paths.job(cluster.namespace, job))
        for log in _logs(cluster.pods(job), job):
            key = (log.uid, log.restarts)
            if _fits(log, choice) and (key not in known or known[key].came_too_early()):
                known[key] = _Follower(cluster, log, choice, lock)
                known[key].start()
        if any(follower.unread for follower in known.values()):
            raise BrokenPipeError  # `| head` has seen enough
        phase = ((found or {}).get("status") or {}).get("phase")
        if (found is None or phase in AT_REST) and not any(t.is_alive() for t in known.values()):
            return 0
        time.sleep(POLL_SECONDS)


class _Follower(threading.Thread):
    def __init__(self, cluster: Cluster, log: _Log, choice: Choice, lock: threading.Lock) -> None:
        super().__init__(daemon=True)
        self._cluster, self._log, self._choice, self._lock = cluster, log, choice, lock
        self.began = self.unread = False

    def came_too_early(self) -> bool:
        """The container had not started: it is to be asked again."""
        return not self.is_alive() and not self.began

    def run(self) -> None:
        try:
            for line in _lines(self._cluster, self._log, self._choice, follow=True):
                self.began = True
                with self._lock:
                    print(f"{self._log.title} | {line}", flush=True)
        except BrokenPipeError:
            self.unread = True
        except (errors.ApiError, RunError):
            return
