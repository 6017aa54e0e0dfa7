"""`plan(job, observed, now)`: from what is to what should be, one step at a time.

Level-triggered: the plan depends on the job, the observed pods and the record, never on what happened in
between; made twice from the same facts it is the same. The caller makes `Plan.record` durable, then acts.
"""

from dataclasses import dataclass, field, replace

from roll_api import JobStatus, RLJob, spec_hash

from roll_operator.plan import policy
from roll_operator.plan.announce import announcements
from roll_operator.plan.conditions import obstacle
from roll_operator.plan.desired import Site, desired_pods, environment, grace_of, uid_of
from roll_operator.plan.fencing import fence
from roll_operator.plan.model import (
    SCHEDULER,
    Action,
    DeleteJob,
    FailJob,
    Failure,
    Observed,
    Pod,
    PodPhase,
    Record,
    RemovePod,
    StartPod,
    StopPod,
)
from roll_operator.plan.restarts import WORDS, adopt, failure_of, judge, settle
from roll_operator.plan.rules import classify, rules_of
from roll_operator.plan.status import project, serves

FENCED_GRACE = 1.0
"""Seconds for a pod of an older attempt: the scheduler refuses it already, it can save nothing."""

COUNTS_STEPS = (SCHEDULER, "trainer")
"""Roles that read `steps` once, when they start."""

ALIVE = (PodPhase.PENDING, PodPhase.RUNNING)


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...]
    status: JobStatus
    record: Record
    wake_at: float | None = None
    """When to plan again although nothing changed."""
    done: bool = False
    """The job ended (or is suspended) and nothing is left to be removed."""
    job: RLJob | None = field(default=None, compare=False)
    """The spec of record: what objects and pods are made from. `record.spec_hash` names it."""


def plan(job: RLJob, observed: Observed, now: float, site: Site) -> Plan:
    if not policy.managed(job):
        return Plan((), observed.status or JobStatus(), observed.record, job=job)
    record, begins = policy.turn(job, observed, now)
    if begins:
        observed = replace(observed, progress=None)  # the last run's scheduler said it
    of_record = policy.spec_of_record(job, observed, record)
    name = policy.name_of_record(of_record, observed, record)
    record = adopt(observed, replace(record, spec_hash=name))

    record, actions, wakes = _live(of_record, observed, record, now)
    ending = _ends(record) or record.closing
    record, fencing, later = fence(observed, record, now)
    wakes.append(later)
    if ending:
        moves, done = _wind_down(of_record, observed.pods, record, site)
    else:
        record = policy.with_images(of_record, observed, record, site)
        moves, later = _converge(of_record, observed.pods, record, now, site)
        wakes.append(later)
        done = False
    if _ends(record) and record.ended_at == 0:
        record = replace(record, ended_at=now)
    expired, later = policy.expired(of_record, record, now)
    if expired and done and not record.closing:
        moves.append(DeleteJob("runPolicy.ttlSecondsAfterFinished has passed"))
    wakes.append(later)

    pending = policy.change_pending(job, of_record, observed)
    status = project(of_record, observed, record, now, done=done, spec_pending=pending)
    actions += [*fencing, *moves]
    actions += announcements(observed.status, status, actions)
    wake_at = min((at for at in wakes if at is not None), default=None)
    return Plan(tuple(actions), status, record, wake_at, done, of_record)


def _ends(record: Record) -> bool:
    return record.finished or record.failure is not None


def _live(
    job: RLJob, observed: Observed, record: Record, now: float
) -> tuple[Record, list[Action], list[float | None]]:
    """What the scheduler, the clock and the ends of pods mean for a job that is not at its end."""
    progress = observed.progress
    if progress is not None and progress.finished:
        record = replace(record, finished=True)
    if _ends(record) or record.closing:
        return record, [], []
    if progress is not None and progress.error:
        failure = Failure("SchedulerError", progress.error[:WORDS], at=now)
        return replace(record, failure=failure), [FailJob(failure)], []
    late, deadline = policy.overdue(job, record, obstacle(observed), now)
    if late is not None:
        return replace(record, failure=late), [FailJob(late)], []
    record = _readiness(job, observed, record, now)
    record, announced, look_again = judge(job, observed, record, now)
    actions, wakes = list(announced), [deadline, look_again]
    if record.failure is None:
        record, stall, later = _stall(job, observed, record, now)
        actions += stall
        wakes.append(later)
    return record, actions, wakes


def _stall(
    job: RLJob, observed: Observed, record: Record, now: float
) -> tuple[Record, list[Action], float | None]:
    """A pod that holds everything up is judged as if it had failed, by the same rules and budgets."""
    progress = observed.progress
    if record.stalled is not None and progress and progress.last_progress_at > record.stalled.at:
        record = replace(record, stalled=None)
    pod, later = policy.stalled(job, observed, record, now)
    place = next((p for p in desired_pods(job) if pod is not None and p.name == pod.name), None)
    if pod is None or place is None or pod.attempt != record.scope(place.scope).attempt:
        return record, [], later
    rule = classify(pod, rules_of(job))
    record = replace(record, stalled=failure_of(pod, rule))
    record, actions = settle(job, record, place, pod, rule, now)
    return record, actions, later


def _converge(
    job: RLJob, pods: tuple[Pod, ...], record: Record, now: float, site: Site
) -> tuple[list[Action], float | None]:
    actions: list[Action] = []
    wake_at: float | None = None
    wanted = {pod.name: pod for pod in desired_pods(job)}
    outdated = _outdated(pods, (record.spec_hash, spec_hash(job)))
    blocked = {"trainer"} if outdated else set()
    for pod in pods:
        place = wanted.get(pod.name)
        current = place is not None and pod.attempt == record.scope(place.scope).attempt
        if current:
            if pod in outdated and pod.phase in ALIVE:
                why = "the number of steps changed"
                actions.append(StopPod(pod.uid, pod.name, grace_of(pod.role), why))
            continue
        if place is not None:
            blocked.add(place.scope)
        if pod.phase is PodPhase.EXITED:
            actions.append(RemovePod(pod.uid, pod.name))
        elif pod.phase in ALIVE:
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
        image = policy.image_of(job, place.role, record)
        actions.append(
            StartPod(place.name, place.role, place.index, scope.attempt, uid, env, image)
        )
    return actions, wake_at


def _outdated(pods: tuple[Pod, ...], names: tuple[str, str]) -> list[Pod]:
    """Pods to be replaced because they count other steps: trainers first, they save with the scheduler's help."""
    old = [p for p in pods if p.spec_hash and p.spec_hash not in names]
    trainers = [p for p in old if p.role == "trainer"]
    return trainers or [p for p in old if p.role in COUNTS_STEPS]


def _wind_down(
    job: RLJob, pods: tuple[Pod, ...], record: Record, site: Site
) -> tuple[list[Action], bool]:
    """Workers first: a trainer that saves needs the scheduler's word to make it a checkpoint."""
    keeps = site.keeps_ended and not record.closing
    clean = job.spec.run_policy.clean_pod_policy if keeps else "All"
    if clean == "None":
        return [], True
    workers_left = any(p.role != SCHEDULER and p.phase is not PodPhase.EXITED for p in pods)
    actions: list[Action] = []
    for pod in pods:
        if pod.phase is PodPhase.EXITED and not pod.lingers:
            if clean == "All":
                actions.append(RemovePod(pod.uid, pod.name))
        elif pod.phase is not PodPhase.STOPPING and not (pod.role == SCHEDULER and workers_left):
            actions.append(StopPod(pod.uid, pod.name, grace_of(pod.role), "the job ends"))
    left = [p for p in pods if clean == "All" or p.phase is not PodPhase.EXITED or p.lingers]
    return actions, not left


def _readiness(job: RLJob, observed: Observed, record: Record, now: float) -> Record:
    serving = {pod.name for pod in observed.pods if serves(pod, observed)}
    if not all(place.name in serving for place in desired_pods(job)):
        return replace(record, ready_since=0.0)
    return replace(record, was_running=True, ready_since=record.ready_since or now)
