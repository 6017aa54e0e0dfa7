"""What the operator was installed with, and what every object of a job has in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roll_api import API_VERSION, RLJob, spec_hash

from roll_operator.plan.desired import Site
from roll_operator.plan.model import SCHEDULER

Manifest = dict[str, Any]

JOB_LABEL = "roll.dev/job"
ROLE_LABEL = "roll.dev/role"
INDEX_LABEL = "roll.dev/index"
ATTEMPT_LABEL = "roll.dev/attempt"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "roll-operator"
SPEC_HASH_ANNOTATION = "roll.dev/spec-hash"
SOURCE_ANNOTATION = "roll.dev/source"
"""On the job: the digest of the files that `roll submit` sent along."""

SCHEDULER_PORT = 7070
WORKER_PORT = 7071
METRICS_PORT = 9090
STORAGE = "/var/lib/roll"
SPEC_FILE = "/etc/roll/job/job.json"
SOURCE = f"{STORAGE}/source"

SMALL: Mapping[str, Mapping[str, str]] = {"requests": {"cpu": "100m", "memory": "256Mi"}}
"""What a pod asks for when its job says nothing: enough to be counted, little enough to fit on a laptop."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Settings of the operator."""

    operator_image: str
    worker_image: str
    operator_namespace: str
    operator_identity: str
    """Subject of the operator's token, `system:serviceaccount:<namespace>:<name>`."""
    operator_labels: Mapping[str, str] = field(
        default_factory=lambda: {"app.kubernetes.io/name": "roll-operator"}
    )
    """Labels of the operator's pods, which the jobs' NetworkPolicies let in."""
    metrics_namespaces: tuple[str, ...] = ()
    """Namespaces from which pods may be scraped."""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    pod_group_api: str | None = None
    """`group/version` of the PodGroup that the cluster serves; None where there is none."""
    pod_group_scheduler: str | None = None
    """schedulerName of members of a PodGroup. None: the usual one of the API."""
    cert_manager_issuer: str | None = None
    """`NAME` of an Issuer or `ClusterIssuer/NAME`; None: the operator makes certificates itself."""


def labels(job: RLJob) -> dict[str, str]:
    return {
        JOB_LABEL: job.name,
        MANAGED_BY_LABEL: MANAGER,
        "app.kubernetes.io/name": "rljob",
    }


def metadata(job: RLJob, name: str) -> Manifest:
    """Owned by the job, so that the cluster removes it with the job even while the operator is down."""
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": labels(job),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": "RLJob",
                "name": job.name,
                "uid": job.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }


def host(job: RLJob, pod: str) -> str:
    """The pod's name in the job's headless Service."""
    return f"{pod}.{job.name}.{job.metadata.namespace}.svc"


def spec_name(job: RLJob) -> str:
    return f"{job.name}-spec-{spec_hash(job)}"


def trust_name(job: RLJob) -> str:
    return f"{job.name}-trust"


def source_name(job: RLJob) -> str | None:
    """The ConfigMap of the files that came along; None where none did.

    Named by what is in it: a pod finds the files that its job was submitted with, or waits for them.
    """
    digest = job.metadata.annotations.get(SOURCE_ANNOTATION)
    return f"{job.name}-source-{digest[:16]}" if digest else None


def tls_name(job: RLJob, serial: int | str | None = None) -> str:
    """The Secret of a certificate that the operator made, or (without a serial) cert-manager's."""
    return f"{job.name}-tls" if serial is None else f"{job.name}-tls-{serial}"


def site(job: RLJob, cluster: Cluster) -> Site:
    """The addresses, folders and images that `plan()` starts a pod with."""
    return Site(
        job_uid=job.metadata.uid,
        scheduler=f"{host(job, f'{job.name}-{SCHEDULER}-0')}:{SCHEDULER_PORT}",
        listen=f"[::]:{SCHEDULER_PORT}",
        spec=SPEC_FILE,
        storage=STORAGE,
        source=SOURCE,
        keeps_ended=True,
        scheduler_image=cluster.operator_image,
        worker_image=cluster.worker_image,
    )
