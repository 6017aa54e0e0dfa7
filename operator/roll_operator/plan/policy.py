"""The run policy: which run of the job this is, from which spec, until when.

Invariants: a run ends for all pods together, and the next begins when none is left; pods of one run are made
from one spec, the spec of record, in which only replicas, steps and what no process reads may change, and from the
images with which the run began.
"""

from collections.abc import Iterable
from dataclasses import replace

from roll_api import ROLE_NAMES, RLJob, spec_hash
from roll_api.policy import MANAGER

from roll_operator.plan.conditions import GATED
from roll_operator.plan.desired import Site, desired_pods
from roll_operator.plan.model import (
    SCHEDULER,
    Failure,
    Observed,
    Pod,
    PodPhase,
    Progress,
    Record,
    Scope,
)
from roll_operator.plan.status import serves

SCALABLE = ("inference", "reward", "environment")


def managed(job: RLJob) -> bool:
    """False: another controller acts on this job, and this one leaves it alone."""
    return answers_to(job.spec.managed_by)


def answers_to(manager: object) -> bool:
    """Whether `managedBy` names this controller; of a job that cannot be read, too."""
    return manager in (None, MANAGER)


def next_run(record: Record) -> Record:
    """The record with which the operator takes up a job whose pods are all gone.

    Everything is a new attempt, nothing is counted, and an earlier failure is forgiven: the user asked again.
    """
    scopes = {key: Scope(scope.attempt + 1) for key, scope in record.scopes.items()}
    return Record(
        scopes=scopes,
        restarts=record.restarts,
        last_failures=record.last_failures,
        restart_id=record.restart_id,
    )


def turn(job: RLJob, observed: Observed, now: float) -> tuple[Record, bool]:
    """The record of the run that this plan is about, and whether it begins with this plan."""
    record, wanted = observed.record, job.spec.restart.id
    begins = False
    if record.restart_id is None:
        record = replace(record, restart_id=wanted)
    finishes = observed.progress is not None and observed.progress.finished
    ended = record.finished or record.failure is not None or finishes
    stops = (record.closing or observed.suspend) and not ended
    record = replace(record, closing=stops or wanted != record.restart_id)
    if record.closing and not observed.suspend and not observed.pods:
        record, begins = replace(next_run(record), restart_id=wanted), True
    if _held_back(observed):
        record = replace(record, started_at=0.0)
    elif record.started_at == 0 and not record.closing:
        record = replace(record, started_at=now)
    return record, begins


def _held_back(observed: Observed) -> bool:
    """A queue has not admitted the job, or has taken it back: its clock starts when it does, as a Job's of Kubernetes."""
    pods = observed.pods
    return bool(pods) and all(p.pending is not None and p.pending[0] == GATED for p in pods)


def with_images(job: RLJob, observed: Observed, record: Record, site: Site) -> Record:
    """The record with the images of the run: those of its pods where they came before it, else the operator's.

    A worker with a template is no witness: the image may be the template's, and not for others.
    """
    if record.scheduler_image:
        return record
    plain = [role for role in ROLE_NAMES if not job.spec.roles.get(role).template]
    oldest_first = sorted((p for p in observed.pods if p.image), key=lambda pod: pod.attempt)
    schedulers = (p.image for p in oldest_first if p.role == SCHEDULER)
    workers = (p.image for p in oldest_first if p.role in plain)
    return replace(
        record,
        scheduler_image=next(schedulers, site.scheduler_image),
        worker_image=next(workers, site.worker_image),
    )


def image_of(job: RLJob, role: str, record: Record) -> str:
    return record.scheduler_image if role == SCHEDULER else job.spec.image or record.worker_image


def spec_of_record(job: RLJob, observed: Observed, record: Record) -> RLJob:
    """The job as its pods are to be told; a run that begins takes up the whole spec."""
    running = observed.job_of_record
    if running is None or not record.spec_hash:
        return job
    new, old = job.spec, running.spec
    roles = old.roles.model_copy(
        update={
            "inference": old.roles.inference.model_copy(
                update={"replicas": new.roles.inference.replicas}
            ),
            "reward": old.roles.reward.model_copy(update={"replicas": new.roles.reward.replicas}),
            "environment": old.roles.environment.model_copy(
                update={"replicas": new.roles.environment.replicas}
            ),
        }
    )
    live = ("steps", "suspend", "failure_policy", "run_policy", "restart", "managed_by")
    spec = old.model_copy(update={name: getattr(new, name) for name in live} | {"roles": roles})
    return job.model_copy(update={"spec": spec})


def name_of_record(of_record: RLJob, observed: Observed, record: Record) -> str:
    """The hash that names the spec of record. A newer operator, whose contract has more keys, computes another one
    for the same spec: that is no change."""
    running, now = observed.job_of_record, spec_hash(of_record)
    same = running is not None and record.spec_hash and spec_hash(running) == now
    return record.spec_hash if same else now


def change_pending(job: RLJob, of_record: RLJob, observed: Observed) -> bool:
    return not observed.suspend and spec_hash(job) != spec_hash(of_record)


def overdue(
    job: RLJob, record: Record, obstacle: str, now: float
) -> tuple[Failure | None, float | None]:
    """The deadline that has passed, or when the next one does."""
    policy = job.spec.run_policy
    wake_at: float | None = None
    limits = [("DeadlineExceeded", "activeDeadlineSeconds", policy.active_deadline_seconds)]
    if not record.was_running:
        limits.append(
            (
                "NotReadyInTime",
                "preRunningDeadlineSeconds",
                policy.pre_running_deadline_seconds,
            )
        )
    for reason, key, seconds in limits:
        if seconds is None or record.started_at == 0:
            continue
        due = record.started_at + seconds
        if now >= due:
            why = f"the run has lasted {seconds} s (runPolicy.{key})"
            if reason == "NotReadyInTime":
                why = f"not all pods were ready within {seconds} s (runPolicy.{key})"
                why += f": {obstacle}" if obstacle else ""
            return Failure(reason, why, at=now), None
        wake_at = due if wake_at is None else min(wake_at, due)
    return None, wake_at


def stalled(
    job: RLJob, observed: Observed, record: Record, now: float
) -> tuple[Pod | None, float | None]:
    """The pod that holds the job up, with the words that say so; or when to look again.

    The clock runs only while all pods run and the scheduler answers: what is missing is no stall. A process that
    stands still without an end is: its pod runs, and the scheduler hears nothing of it.
    """
    limit, progress = job.spec.run_policy.progress_deadline_seconds, observed.progress
    running = {p.name: p for p in observed.pods if p.phase is PodPhase.RUNNING}
    complete = all(place.name in running for place in desired_pods(job))
    if limit is None or progress is None or not record.was_running or not complete:
        return None, None
    mute = [pod for pod in running.values() if not serves(pod, observed)]
    starts = [pod.started_at for pod in mute]  # one that still loads says nothing either
    since = max(progress.last_progress_at, record.ready_since, *starts)
    if record.stalled is not None:
        since = max(since, record.stalled.at)
    if now < since + limit:
        return None, since + limit
    held = progress.held
    pod = running.get(held.pod) if held else None
    why = f"no token, sample or step for {limit} s: "
    if mute:
        pod = mute[0]
        why += f"{pod.role} pod {pod.name} runs, and the scheduler hears nothing of it"
    elif pod is not None and held is not None:
        why += f"{pod.role} pod {pod.name} has held sample {held.sample} ({held.stage}) for {held.seconds:.0f} s"
    else:
        pod = next((p for p in running.values() if p.role == "trainer"), None)
        why += f"no sample is in work, the trainer pod {pod.name if pod else '-'} has the batch"
    if pod is None:
        return None, None
    return replace(pod, ended_at=now, exit_code=None, message=why, reasons=("Stalled",)), None


def doubtful(pods: Iterable[Pod], progress: Progress | None) -> bool:
    """A worker that ended well may have been told that the job is over: its scheduler, whose last report is older,
    is to be asked again before that end is judged."""
    return (
        progress is not None
        and not progress.finished
        and any(pod.exit_code == 0 and pod.phase is PodPhase.EXITED for pod in pods)
    )


def expired(job: RLJob, record: Record, now: float) -> tuple[bool, float | None]:
    """Whether the job's time after its end is over, or when it will be."""
    ttl = job.spec.run_policy.ttl_seconds_after_finished
    if ttl is None or record.ended_at == 0:
        return False, None
    due = record.ended_at + ttl
    return (True, None) if now >= due else (False, due)
