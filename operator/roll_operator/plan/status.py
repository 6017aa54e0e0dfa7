"""What is reported: a projection of job, pods and record. Nothing is decided here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from roll_api import ROLE_NAMES, JobStatus, RLJob
from roll_api.status import (
    JobProgress,
    LastFailure,
    RolesStatus,
    RoleStatus,
    SampleCounts,
    Staleness,
)

from roll_operator.plan import conditions, model
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

TEXT = 4000
METRICS = 64
"""Most figures of a step that a status holds."""


@dataclass(frozen=True, slots=True)
class Process:
    """One place of the job and who fills it, for people."""

    name: str
    role: str
    pid: int | None
    attempt: int
    state: str
    """waiting | pending | starting | ready | stopping | exited | ended"""
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


def ready_count(shown: Sequence[Process]) -> str:
    """All processes in one figure: `7/7`."""
    return f"{sum(process.state == 'ready' for process in shown)}/{len(shown)}"


def ready_by_role(shown: Sequence[Process]) -> str:
    """`trainer 1/1, inference 2/2, …`: the roles that the job names."""
    counts = ((role, [p for p in shown if p.role == role]) for role in ROLE_NAMES)
    return ", ".join(f"{role} {ready_count(mine)}" for role, mine in counts if mine)


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


def project(
    job: RLJob, observed: Observed, record: Record, now: float, *, done: bool, spec_pending: bool
) -> JobStatus:
    before = observed.status or JobStatus()
    shown = processes(job, observed, record)
    all_ready = all(process.state == "ready" for process in shown)
    phase = phase_of(observed, record, all_ready)
    roles = {role: _role_status(role, shown, record) for role in ROLES}
    ended = phase in (Phase.SUCCEEDED, Phase.FAILED) and done
    missing = [process.name for process in shown if process.state != "ready"]
    pending = "" if done else conditions.obstacle(observed)
    truths = conditions.truths(
        phase, missing, pending, record, observed, spec_pending, before, job.spec.storage
    )
    return before.model_copy(
        update={
            **_figures(job, observed.progress),
            "phase": phase.value,
            "reason": record.failure.reason if record.failure else "",
            "message": _clip(record.failure.message) if record.failure else "",
            "observed_generation": job.metadata.generation,
            "spec_hash": record.spec_hash,
            "ready": ready_by_role(shown),
            "pending_reason": pending,
            "restarts": sum(record.restarts.values()),
            "roles": RolesStatus(**roles),
            "inference_selector": f"roll.dev/job={job.name},roll.dev/role=inference",
            "start_time": before.start_time or timestamp(now),
            "completion_time": (before.completion_time or timestamp(now)) if ended else None,
            "conditions": conditions.dated(before, truths, job.metadata.generation, timestamp(now)),
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
    state = "ready" if serves(pod, observed) else "starting"
    return Process(pod.name, pod.role, pod.pid, pod.attempt, state, pod.uid)


def serves(pod: Pod, observed: Observed) -> bool:
    """The scheduler serves when it answers, a worker when the scheduler says so."""
    progress = observed.progress
    if pod.phase is not PodPhase.RUNNING or progress is None:
        return False
    return pod.role == SCHEDULER or pod.uid in progress.ready


def _role_status(role: str, shown: tuple[Process, ...], record: Record) -> RoleStatus:
    mine = [process for process in shown if process.role == role]
    last = record.last_failures.get(role)
    return RoleStatus(
        replicas=sum(process.state not in ("waiting", "exited", "ended") for process in mine),
        ready=sum(process.state == "ready" for process in mine),
        restarts=record.restarts.get(role, 0),
        attempt=max((process.attempt for process in mine), default=0),
        last_failure=_failure(last) if last else None,
    )


def _failure(failure: model.Failure) -> LastFailure:
    return LastFailure(
        uid=failure.uid,
        pod=failure.pod,
        exit_code=failure.exit_code,
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
        "progress": _progress(job, progress),
        "samples": SampleCounts(
            per_second=_finite(progress.samples_per_second, 1) or 0.0,
            in_flight=live,
            trained=progress.trained(job.spec.rollout.samples_per_step),
            dropped=dict(sorted(progress.dropped.items())[:METRICS]),
        ),
        "staleness": Staleness(
            max=progress.staleness_max, mean=_finite(progress.staleness_mean, 4) or 0.0
        ),
        "reward": _finite(progress.reward, 4),
        "validation_reward": _finite(progress.validation[1], 4) if progress.validation else None,
        "checkpoint": progress.checkpoint,
        "lineage": progress.lineage,
    }


def _progress(job: RLJob, progress: Progress) -> JobProgress:
    steps = job.spec.steps
    left = max(0, steps - progress.step) * job.spec.rollout.samples_per_step
    rate = _finite(progress.samples_per_second, 6) or 0.0
    finite = ((name, value) for name, value in progress.metrics.items() if math.isfinite(value))
    return JobProgress(
        step=progress.step,
        steps=steps,
        percent=min(100, 100 * progress.step // steps),
        eta_seconds=math.ceil(left / rate) if rate > 0 else None,
        metrics=dict(sorted(finite)[:METRICS]),
    )


def _finite(value: float | None, digits: int) -> float | None:
    """For a column of `kubectl get`; JSON knows no other numbers, and the API server refuses all of the status."""
    return round(value, digits) if value is not None and math.isfinite(value) else None


def _clip(text: str) -> str:
    return text[:TEXT]
