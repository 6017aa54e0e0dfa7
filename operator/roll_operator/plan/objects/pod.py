"""The pod of one place of a job, from `StartPod` to the manifest."""

from typing import Any

from roll_api import RLJob, spec_hash
from roll_api.pods import Placement, Resources
from roll_api.roles import Gpu, Role

from roll_operator.plan.desired import grace_of
from roll_operator.plan.model import SCHEDULER, StartPod
from roll_operator.plan.objects import files, gpu, placement, storage
from roll_operator.plan.objects.cluster import (
    ATTEMPT_LABEL,
    INDEX_LABEL,
    METRICS_PORT,
    ROLE_LABEL,
    SCHEDULER_PORT,
    SMALL,
    SPEC_HASH_ANNOTATION,
    WORKER_PORT,
    Cluster,
    Manifest,
    host,
    metadata,
    site,
    source_name,
    tls_name,
)
from roll_operator.plan.objects.gang import join
from roll_operator.plan.objects.queue import enqueue
from roll_operator.plan.objects.template import merged

USER = 10001
MASTER_PORT = 29500
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def pod(
    job: RLJob,
    start: StartPod,
    cluster: Cluster,
    serial: int | str | None = None,
    *,
    starting: bool = True,
) -> Manifest:
    """`serial` names the operator's certificate (None: cert-manager's); `starting`: the pod belongs to the
    gang of the run's start (`gang.gathers`)."""
    role = _role(job, start.role)
    template = role.template if role else job.spec.scheduler.template
    result: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(job, start),
        "spec": _spec(job, start, cluster, role, serial),
    }
    join(result, job, start.role, cluster, starting)
    enqueue(result, job, start.role)
    where = f"roles.{start.role}.template" if role else "scheduler.template"
    return merged(result, template, files.PROTECTED | _protected(result), where)


def _protected(pod: Manifest) -> frozenset[str]:
    """Variables by which a process finds its job and its peers."""
    names = (variable["name"] for variable in pod["spec"]["containers"][0]["env"])
    return frozenset(name for name in names if name.startswith("ROLL_") or name in RENDEZVOUS)


def _metadata(job: RLJob, start: StartPod) -> Manifest:
    result = metadata(job, start.name)
    result["labels"] |= {
        ROLE_LABEL: start.role,
        INDEX_LABEL: str(start.index),
        ATTEMPT_LABEL: str(start.attempt),
    }
    result["annotations"] = {SPEC_HASH_ANNOTATION: spec_hash(job)}
    return result


def _spec(
    job: RLJob, start: StartPod, cluster: Cluster, role: Role | None, serial: int | str | None
) -> Manifest:
    wanted = role.gpu if role else None
    where = role.placement if role else Placement()
    spec: Manifest = {
        "hostname": start.name,
        "subdomain": job.name,
        # A worker's end is judged by the planner; the scheduler has nobody but the kubelet.
        "restartPolicy": "Never" if role else "Always",
        "serviceAccountName": job.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": round(grace_of(start.role)),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [*placement.node_loss(), *gpu.tolerations(wanted)],
        "containers": [_container(job, start, cluster, role)],
        "volumes": files.volumes(job, start.role, tls_name(job, serial)),
    }
    if cluster.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in cluster.pull_secrets]
    if job.spec.scheduling.priority_class:
        spec["priorityClassName"] = job.spec.scheduling.priority_class
    if even := placement.spread(job, start.role, where):
        spec["topologySpreadConstraints"] = even
    if affinity := _affinity(job, start.role, where, wanted):
        spec["affinity"] = affinity
    return spec


def _affinity(job: RLJob, role: str, where: Placement, wanted: Gpu | None) -> Manifest:
    result = placement.affinity(job, role, where)
    if nodes := gpu.node_affinity(wanted):
        result["nodeAffinity"] = nodes
    return result


def _container(job: RLJob, start: StartPod, cluster: Cluster, role: Role | None) -> Manifest:
    package = "roll_workers" if role else "roll_operator.scheduler"
    port = WORKER_PORT if role else SCHEDULER_PORT
    result: Manifest = {
        "name": start.role,
        "image": start.image,
        "imagePullPolicy": cluster.pull_policy,
        "command": ["python", "-m", package],
        "env": _env(job, start, cluster),
        "ports": [
            {"name": "grpc", "containerPort": port},
            {"name": "metrics", "containerPort": METRICS_PORT},
        ],
        "resources": _resources(role.resources if role else job.spec.scheduler.resources, role),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # The last lines of the log, where the process wrote no message of its own.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": files.mounts(job, start.role),
    }
    if role is None:
        result |= _probes()
    if start.role == "inference":
        # Evictions count pods that are ready: without this the last one that serves could go while another loads.
        looks = {"exec": {"command": ["test", "-f", files.READY]}}
        result["readinessProbe"] = {**looks, "periodSeconds": 5}
    return result


def _probes() -> Manifest:
    """Whether the port is open: TLS keeps the kubelet from asking more, and who stands still behind it ends by itself
    (`scheduler.watchdog`). A large ledger takes long to open."""
    knock = {"tcpSocket": {"port": SCHEDULER_PORT}}
    return {
        "startupProbe": {**knock, "periodSeconds": 1, "failureThreshold": 600},
        "readinessProbe": {**knock, "periodSeconds": 5},
        "livenessProbe": {**knock, "periodSeconds": 10, "failureThreshold": 6},
    }


def _resources(given: Resources, role: Role | None) -> Manifest:
    """GPUs are limits, which are requests too."""
    said = {kind: dict(amounts) for kind, amounts in given.model_dump().items() if amounts}
    result = said or {kind: dict(amounts) for kind, amounts in SMALL.items()}
    if devices := gpu.limits(role.gpu if role else None):
        result["limits"] = {**result.get("limits", {}), **devices}
    return result


def _env(job: RLJob, start: StartPod, cluster: Cluster) -> list[dict[str, Any]]:
    """What the planner tells every process, with the addresses and files of a cluster."""
    folder = storage.folder(job, start.role)
    values = (
        {"HOME": "/tmp"}
        | dict(start.env)
        | {
            "ROLL_TRUST": files.TRUST_FOLDER,
            "ROLL_TOKEN": f"{files.TOKEN_FOLDER}/token",
            "ROLL_HOST": host(job, start.name),
            "ROLL_METRICS_PORT": str(METRICS_PORT),
            "ROLL_STORAGE": folder,
            "ROLL_SOURCE": f"{folder}/source",
        }
    )
    if start.role in files.SERVERS:
        values["ROLL_TLS"] = files.TLS_FOLDER
    if start.role == SCHEDULER:
        values |= {
            "ROLL_LISTEN": site(job, cluster).listen,
            "ROLL_SOCKET": "/tmp/roll.sock",
            "ROLL_OPERATOR": cluster.operator_identity,
        }
    else:
        values["ROLL_PORT"] = str(WORKER_PORT)
        if source_name(job):
            values["ROLL_SOURCE_ARCHIVE"] = files.ARCHIVE
    if start.role == "trainer":
        values |= _rendezvous(job)
    if start.role == "inference":
        values["ROLL_READY"] = files.READY
    values.pop("ROLL_POD_UID", None)  # what the planner calls a uid, the API server decides
    uid = {"name": "ROLL_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    return [uid, *({"name": name, "value": values[name]} for name in sorted(values))]


def _rendezvous(job: RLJob) -> dict[str, str]:
    """Where torch's ranks meet. Who they are is the planner's word, the same on one machine."""
    return {
        "MASTER_ADDR": host(job, f"{job.name}-trainer-0"),
        "MASTER_PORT": str(MASTER_PORT),
    }


def _role(job: RLJob, role: str) -> Role | None:
    """None for the scheduler, which is no role of the job's."""
    if role == SCHEDULER:
        return None
    result: Role = getattr(job.spec.roles, role)
    return result
