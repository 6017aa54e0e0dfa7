"""`kubectl roll logs`: what the pods of a job wrote, as far as the cluster still has it."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from roll_operator.backends.kubernetes import read_pod
from roll_operator.cli.cluster.connection import Cluster, Manifest, explain
from roll_operator.controller.cluster import errors, paths
from roll_operator.controller.folder import RunError
from roll_operator.plan import PodPhase


@dataclass(frozen=True, slots=True)
class Choice:
    """Which pods, and how much of them."""

    pod: str | None
    role: str | None
    lines: int
    previous: bool


@dataclass(frozen=True, slots=True)
class Log:
    """Of a pod."""

    name: str
    short: str
    role: str
    uid: str
    attempt: int
    runs: bool

    @property
    def title(self) -> str:
        return f"{self.short}.{self.attempt}"


def show_cluster_logs(job: str, namespace: str | None, choice: Choice, *, follow: bool) -> int:
    cluster = Cluster(namespace)
    found = cluster.job(job)
    logs = list(logs_of(cluster.pods(job), job))
    chosen = [log for log in logs if fits(log, choice)]
    if follow and not choice.previous:
        from roll_operator.cli.cluster.follow import follow_logs

        return follow_logs(cluster, job, choice)
    if not chosen:
        raise RunError(_nothing(found, job, logs, choice))
    for log in chosen:
        try:
            for line in _lines(cluster, log, choice):
                print(f"{log.title} | {line}" if len(chosen) > 1 else line)
        except errors.ApiError as error:
            if len(chosen) == 1:
                raise
            print(f"{log.title}: {explain(error)}", file=sys.stderr)
    return 0


def logs_of(pods: list[Manifest], job: str) -> Iterator[Log]:
    for manifest in pods:
        facts = read_pod(manifest)
        if facts is not None:
            pod = facts.pod
            short = pod.name.removeprefix(f"{job}-")
            runs = pod.phase is not PodPhase.EXITED
            yield Log(pod.name, short, pod.role, pod.uid, pod.attempt, runs)


def fits(log: Log, choice: Choice) -> bool:
    names = (log.name, log.short, f"{log.name}.{log.attempt}", log.title)
    return choice.role in (None, log.role) and (choice.pod is None or choice.pod in names)


def _lines(cluster: Cluster, log: Log, choice: Choice) -> Iterator[str]:
    query = {"container": log.role}
    if choice.lines:
        query["tailLines"] = str(choice.lines)
    if choice.previous:
        query["previous"] = "true"
    yield from cluster.lines(log_path(cluster, log), **query)


def log_path(cluster: Cluster, log: Log) -> str:
    return f"{paths.pod(cluster.namespace, log.name)}/log"


def _nothing(job: Manifest, name: str, logs: list[Log], choice: Choice) -> str:
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
