"""`plan(job, observed, now)`: from what is to what should be, one step at a time.

Level-triggered: the plan depends on the job, the observed pods and the record, never on what happened in
between; made twice from the same facts it is the same. The caller makes `Plan.record` durable, then acts.
"""

from dataclasses import dataclass, replace

from roll_api import JobStatus, RLJob

from roll_operator.plan.desired import Site, desired_pods, environment, grace_of, uid_of
from roll_operator.plan.model import (
    SCHEDULER,
    Action,
    FailJob,
    Failure,
    Observed,
    Pod,
    PodPhase,
    Record,
    RemovePod,
    Scope,
    StartPod,
    StopPod,
)
from roll_operator.plan.restarts import judge
from roll_operator.plan.status import project

FENCED_GRACE = 1.0
"""Seconds for a pod of an older attempt: the scheduler refuses it already, it can save nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...]
    status: JobStatus
    record: Record
    wake_at: float | None = None
    """When to plan again although nothing changed."""
    done: bool = False
    """The job ended (or is suspended) and no pod is left."""


def plan(job: RLJob, observed: Observed, now: float, site: Site) -> Plan:
    record = observed.record
    progress = observed.progress
    actions: list[Action] = []
    wake_at: float | None = None
    if progress is not None and progress.finished:
        record = replace(record, finished=True)
    if not (record.finished or record.failure or observed.suspend):
        if progress is not None and progress.error:
            failure = Failure("SchedulerError", progress.error, at=now)
            record = replace(record, failure=failure)
            actions.append(FailJob(failure))
        else:
            record, announced, wake_at = judge(job, observed, record, now)
            actions.extend(announced)
    ending = bool(record.finished or record.failure or observed.suspend)
    if ending:
        actions.extend(_wind_down(observed.pods))
    else:
        converging, later = _converge(job, observed.pods, record, now, site)
        actions.extend(converging)
        wake_at = min((at for at in (wake_at, later) if at is not None), default=None)
        record = replace(record, was_running=record.was_running or _all_ready(job, observed))
    done = ending and not observed.pods
    return Plan(tuple(actions), project(job, observed, record, now), record, wake_at, done)


def next_run(record: Record) -> Record:
    """The record with which the operator takes up a job whose pods are all gone.

    Everything is a new attempt, nothing is counted, and an earlier failure is forgiven: the user asked again.
    """
    scopes = {key: Scope(scope.attempt + 1) for key, scope in record.scopes.items()}
    return replace(
        record, scopes=scopes, recent={}, failure=None, finished=False, was_running=False
    )


def _converge(
    job: RLJob, pods: tuple[Pod, ...], record: Record, now: float, site: Site
) -> tuple[list[Action], float | None]:
    actions: list[Action] = []
    wake_at: float | None = None
    wanted = {pod.name: pod for pod in desired_pods(job)}
    blocked: set[str] = set()
    for pod in pods:
        place = wanted.get(pod.name)
        current = place is not None and pod.attempt == record.scope(place.scope).attempt
        if current:
            continue
        if place is not None:
            blocked.add(place.scope)
        if pod.phase is PodPhase.EXITED:
            actions.append(RemovePod(pod.uid, pod.name))
        elif pod.phase is PodPhase.RUNNING:
            grace, why = (FENCED_GRACE, "restart") if place else (grace_of(pod.role), "scaled down")
            actions.append(StopPod(pod.uid, pod.name, grace, why))
    present = {pod.name for pod in pods}
    for place in wanted.values():
        scope = record.scope(place.scope)
        if place.name in present or place.scope in blocked:
            continue
        if now < scope.not_before:
            wake_at = scope.not_before if wake_at is None else min(wake_at, scope.not_before)
            continue
        uid = uid_of(site.job_uid, place.name, scope.attempt)
        env = environment(job, place, scope.attempt, site)
        actions.append(StartPod(place.name, place.role, place.index, scope.attempt, uid, env))
    return actions, wake_at


def _wind_down(pods: tuple[Pod, ...]) -> list[Action]:
    """Workers first: a trainer that saves needs the scheduler's word to make it a checkpoint."""
    workers_left = any(p.role != SCHEDULER and p.phase is not PodPhase.EXITED for p in pods)
    actions: list[Action] = []
    for pod in pods:
        if pod.phase is PodPhase.EXITED:
            actions.append(RemovePod(pod.uid, pod.name))
        elif pod.phase is PodPhase.RUNNING and not (pod.role == SCHEDULER and workers_left):
            actions.append(StopPod(pod.uid, pod.name, grace_of(pod.role), "the job ends"))
    return actions


def _all_ready(job: RLJob, observed: Observed) -> bool:
    if observed.progress is None:
        return False
    running = {p.name: p.uid for p in observed.pods if p.phase is PodPhase.RUNNING}
    return all(
        place.name in running
        and (place.role == SCHEDULER or running[place.name] in observed.progress.ready)
        for place in desired_pods(job)
    )
