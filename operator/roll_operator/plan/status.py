"""What is reported: a projection of job, pods and record. Nothing is decided here."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from roll_api import JobStatus, RLJob, spec_hash
from roll_api.status import (
    Condition,
    Failure,
    RolesStatus,
    RoleStatus,
    SampleCounts,
    Staleness,
)

from roll_operator.plan import model
from roll_operator.plan.desired import ROLES, desired_pods
from roll_operator.plan.model import (
    SCHEDULER,
    DesiredPod,
    Observed,
    Phase,
    Pod,
    PodPhase,
    Progress,
    Record,
)

ENDS = ("trained", "evaluated", "filtered", "failed", "cancelled")
"""States of a sample after which nothing follows."""


@dataclass(frozen=True, slots=True)
class Process:
    """One place of the job and who fills it, for people."""

    name: str
    role: str
    pid: int | None
    attempt: int
    state: str
    """waiting | starting | ready | stopping | exited | ended"""
    uid: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "role": self.role,
            "pid": self.pid,
            "attempt": self.attempt,
            "state": self.state,
            "uid": self.uid,
        }


def processes(job: RLJob, observed: Observed, record: Record) -> tuple[Process, ...]:
    """Every place of the job; a pod that is about to leave its place is shown in it."""
    by_name = {pod.name: pod for pod in observed.pods}
    shown = [
        _process(place, by_name.get(place.name), observed, record) for place in desired_pods(job)
    ]
    return tuple(shown)


def phase_of(observed: Observed, record: Record, all_ready: bool) -> Phase:
    if record.failure is not None:
        return Phase.FAILED
    if record.finished:
        return Phase.SUCCEEDED
    if observed.suspend and not observed.pods:
        return Phase.SUSPENDED
    if record.was_running:
        return Phase.RUNNING if all_ready or observed.suspend else Phase.RECOVERING
    return Phase.STARTING if observed.pods else Phase.PENDING


def project(job: RLJob, observed: Observed, record: Record, now: float) -> JobStatus:
    before = observed.status or JobStatus()
    shown = processes(job, observed, record)
    ready = sum(process.state == "ready" for process in shown)
    all_ready = ready == len(shown)
    phase = phase_of(observed, record, all_ready)
    roles = {role: _role_status(role, shown, record) for role in ROLES}
    ended = phase in (Phase.SUCCEEDED, Phase.FAILED) and not observed.pods
    figures = _figures(job, observed.progress)
    return before.model_copy(
        update={
            **figures,
            "phase": phase.value,
            "reason": record.failure.reason if record.failure else "",
            "message": _clip(record.failure.message) if record.failure else "",
            "observed_generation": job.metadata.generation,
            "spec_hash": spec_hash(job),
            "ready": f"{ready}/{len(shown)}",
            "restarts": sum(record.restarts.values()),
            "roles": RolesStatus(**roles),
            "start_time": before.start_time or timestamp(now),
            "completion_time": (before.completion_time or timestamp(now)) if ended else None,
            "conditions": _conditions(before, phase, shown, record, observed, now),
        }
    )


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _process(place: DesiredPod, pod: Pod | None, observed: Observed, record: Record) -> Process:
    if pod is None:
        attempt = record.scope(place.scope).attempt
        over = record.finished or record.failure is not None or observed.suspend
        return Process(place.name, place.role, None, attempt, "ended" if over else "waiting")
    if pod.phase is not PodPhase.RUNNING:
        pid = pod.pid if pod.phase is PodPhase.STOPPING else None
        return Process(pod.name, pod.role, pid, pod.attempt, pod.phase.value, pod.uid)
    progress = observed.progress
    serves = progress is not None and (pod.role == SCHEDULER or pod.uid in progress.ready)
    state = "ready" if serves else "starting"
    return Process(pod.name, pod.role, pod.pid, pod.attempt, state, pod.uid)


def _role_status(role: str, shown: tuple[Process, ...], record: Record) -> RoleStatus:
    mine = [process for process in shown if process.role == role]
    last = record.last_failures.get(role)
    return RoleStatus(
        replicas=sum(process.state not in ("waiting", "exited", "ended") for process in mine),
        ready=sum(process.state == "ready" for process in mine),
        restarts=record.restarts.get(role, 0),
        attempt=max((process.attempt for process in mine), default=0),
        failures=[_failure(last)] if last else [],
    )


def _failure(failure: model.Failure) -> Failure:
    return Failure(
        uid=failure.uid,
        name=failure.pod,
        reason=failure.reason,
        message=_clip(failure.message),
        time=timestamp(failure.at),
    )


def _figures(job: RLJob, progress: Progress | None) -> dict[str, Any]:
    if progress is None:
        return {}
    live = sum(n for state, n in progress.samples.items() if state not in ENDS)
    return {
        "step": progress.step,
        "samples": SampleCounts(
            per_second=progress.samples_per_second,
            in_flight=live,
            trained=progress.trained(job.spec.rollout.samples_per_step),
            dropped=dict(progress.dropped),
        ),
        "staleness": Staleness(max=progress.staleness_max, mean=progress.staleness_mean),
        "reward": progress.reward,
        "validation_reward": progress.validation[1] if progress.validation else None,
        "checkpoint": progress.checkpoint,
        "lineage": progress.lineage,
    }


def _conditions(
    before: JobStatus,
    phase: Phase,
    shown: tuple[Process, ...],
    record: Record,
    observed: Observed,
    now: float,
) -> list[Condition]:
    missing = [process.name for process in shown if process.state != "ready"]
    failure = record.failure
    truths = {
        "PodsReady": (not missing, "NotReady" if missing else "AllReady", ", ".join(missing)),
        "SchedulerReachable": (observed.progress is not None, "", ""),
        "Running": (phase is Phase.RUNNING, phase.value, ""),
        "Suspended": (phase is Phase.SUSPENDED, "", ""),
        "Complete": (phase is Phase.SUCCEEDED, "", ""),
        "Failed": (
            failure is not None,
            failure.reason if failure else "",
            _clip(failure.message) if failure else "",
        ),
    }
    known = {condition.type: condition for condition in before.conditions}
    conditions = []
    for kind, (holds, reason, message) in truths.items():
        status: Literal["True", "False"] = "True" if holds else "False"
        old = known.get(kind)
        since = old.last_transition_time if old and old.status == status else timestamp(now)
        conditions.append(
            Condition(
                type=kind,
                status=status,
                reason=reason,
                message=message[:1000],
                last_transition_time=since,
            )
        )
    return conditions


def _clip(text: str) -> str:
    return text[:4000]
