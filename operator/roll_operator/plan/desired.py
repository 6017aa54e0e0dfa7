"""What a job consists of: the scheduler and the replicas of each role, under names that never change."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from roll_api import ROLE_NAMES, RLJob
from roll_api.roles import Role

from roll_operator.plan.model import SCHEDULER, DesiredPod

ROLES: tuple[str, ...] = (SCHEDULER, *ROLE_NAMES)

HEAVY = ("trainer", "inference")
"""Roles that compute; the others wait most of the time."""

GRACE: Mapping[str, float] = {SCHEDULER: 15.0, "trainer": 60.0}
"""Seconds between the request to end and the kill: a trainer saves a checkpoint. Others hand back in 10 s."""
DEFAULT_GRACE = 15.0

WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""A thread without work sleeps: others need the core (two threads beside an engine on two cores: 323 → 406
samples/s). A role's own `env` may say otherwise."""
TRAINING = WAITING | {"OPENBLAS_NUM_THREADS": "1"}
"""Whoever multiplies with numpy in a trainer is a thread that was counted already."""


@dataclass(frozen=True, slots=True)
class Site:
    """Addresses and folders of the place where the job runs."""

    job_uid: str
    scheduler: str
    """host:port that workers connect to."""
    listen: str
    """host:port that the scheduler listens on."""
    spec: str
    storage: str
    source: str
    host: str = "127.0.0.1"
    cores: int = 1
    keeps_ended: bool = False
    """Whether ended pods outlive the job's end, for their logs, as `cleanPodPolicy` says. Locally logs are files."""
    scheduler_image: str = ""
    worker_image: str = ""
    """What a run that begins now is made from; empty where there are no images."""


def name_of(job: str, role: str, index: int) -> str:
    return f"{job}-{role}-{index}"


def scope_of(role: str, name: str) -> str:
    """What is restarted together: the trainer as a whole role, everything else alone."""
    return "trainer" if role == "trainer" else name


def desired_pods(job: RLJob) -> tuple[DesiredPod, ...]:
    """The scheduler first, then role by role."""
    name = job.metadata.name
    pods = [DesiredPod(name_of(name, SCHEDULER, 0), SCHEDULER, 0, name_of(name, SCHEDULER, 0))]
    for role in ROLE_NAMES:
        for index in range(job.spec.roles.get(role).replicas):
            pod = name_of(name, role, index)
            pods.append(DesiredPod(pod, role, index, scope_of(role, pod)))
    return tuple(pods)


def uid_of(job_uid: str, pod: str, attempt: int) -> str:
    """The same pod and attempt have the same uid, so that a plan made twice starts nothing twice."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{job_uid}/{pod}/{attempt}"))


def threads(job: RLJob, role: str, cores: int) -> int:
    """As the job says; otherwise the cores are shared by the processes that compute.

    Several torch processes with default thread counts slow each other down 5-10 times.
    """
    if role == SCHEDULER:
        return 1
    given = _role(job, role)
    if role not in HEAVY or "threads" in given.model_fields_set:
        return given.threads
    heavy = sum(_role(job, name).replicas for name in HEAVY)
    return max(1, cores // max(1, heavy))


def grace_of(role: str) -> float:
    return GRACE.get(role, DEFAULT_GRACE)


def environment(job: RLJob, pod: DesiredPod, attempt: int, site: Site) -> dict[str, str]:
    """What a process is told, the same on a cluster and on one machine."""
    env = {
        "ROLL_JOB": job.metadata.name,
        "ROLL_JOB_UID": site.job_uid,
        "ROLL_ROLE": pod.role,
        "ROLL_INDEX": str(pod.index),
        "ROLL_POD": pod.name,
        "ROLL_POD_UID": uid_of(site.job_uid, pod.name, attempt),
        "ROLL_ATTEMPT": str(attempt),
        "ROLL_SPEC": site.spec,
        "ROLL_STORAGE": site.storage,
        "ROLL_SOURCE": site.source,
        "ROLL_HOST": site.host,
        "ROLL_PORT": "0",
        "ROLL_METRICS_PORT": "0",
        "OMP_NUM_THREADS": str(threads(job, pod.role, site.cores)),
    }
    if pod.role == SCHEDULER:
        return env | {"ROLL_LISTEN": site.listen}
    env["ROLL_SCHEDULER"] = site.scheduler
    given = _role(job, pod.role)
    usual = TRAINING if pod.role == "trainer" else WAITING
    if pod.role == "trainer":
        per_pod = given.gpu.count if given.gpu else 1
        env["RANK"] = str(pod.index * per_pod)
        env["WORLD_SIZE"] = str(given.replicas * per_pod)
        env["LOCAL_WORLD_SIZE"] = str(per_pod)
    return {**usual, **given.env, **env}


def _role(job: RLJob, role: str) -> Role:
    for name in ROLE_NAMES:
        if name == role:
            return job.spec.roles.get(name)
    raise KeyError(role)
