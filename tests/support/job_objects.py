"""Jobs for the tests of rendered objects, and the objects of a whole job."""

from dataclasses import replace
from typing import Any

from roll_api import ROLE_NAMES, RLJob
from roll_operator.plan import Observed, StartPod, plan
from roll_operator.plan.objects import Cluster, Manifest, pod, site, support

from support.objects import changed

CLUSTER = Cluster(
    operator_image="registry.example/roll-operator:1",
    worker_image="registry.example/roll-worker:1",
    operator_namespace="roll-system",
    operator_identity="system:serviceaccount:roll-system:roll-operator",
)

BASE: dict[str, Any] = {
    "apiVersion": "roll.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "sums", "namespace": "team", "uid": "4f6e", "generation": 1},
    "spec": {
        "steps": 10,
        "model": {"path": "builtin:tiny-qwen2"},
        "data": {"train": {"path": "builtin:largest-of-three"}},
        "rewards": [{"name": "exact", "scorer": {"kind": "exactMatch"}}],
        "roles": {
            "trainer": {"replicas": 1},
            "inference": {"replicas": 2},
            "reward": {"replicas": 1},
            "environment": {"replicas": 1},
        },
    },
}


def make_job(assign: dict[str, Any] | None = None, remove: list[str] | None = None) -> RLJob:
    """The base with some keys set and removed; paths are relative to the object."""
    return RLJob.parse(changed(BASE, assign, remove), cluster=True)


SIDECAR = {
    "name": "log",
    "image": "log:1",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
FULL = make_job(
    {
        "metadata.name": "full",
        "spec.image": "mine:1",
        "spec.scheduling": {"queue": "team-a", "priorityClass": "high"},
        "spec.storage": {"claim": "shared", "storageClass": "fast"},
        "spec.scheduler": {"resources": {"limits": {"memory": "1Gi"}}},
    }
    | {
        f"spec.roles.{role}": {
            "replicas": 2,
            "gpu": {"count": 2, "products": ["NVIDIA-L4"], "minMemoryMiB": 1000},
            "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}},
            "placement": {"mode": mode, "exclusive": True},
            "template": {"spec": {"containers": [SIDECAR]}},
        }
        for role, mode in zip(ROLE_NAMES, ("Pack", "Spread", "Pack", "Spread"), strict=True)
    }
)
"""A job that says everything."""


def starts(job: RLJob, cluster: Cluster = CLUSTER) -> list[StartPod]:
    actions = plan(job, Observed(), 1.0, site(job, cluster)).actions
    return [action for action in actions if isinstance(action, StartPod)]


def pods(
    job: RLJob, cluster: Cluster = CLUSTER, *, starting: bool = True, attempt: int = 0
) -> dict[str, Manifest]:
    """Every pod of the job by its name."""
    return {
        start.name: pod(job, replace(start, attempt=attempt), cluster, "7", starting=starting)
        for start in starts(job, cluster)
    }


def pod_of(job: RLJob, role: str, cluster: Cluster = CLUSTER, **options: Any) -> Manifest:
    return pods(job, cluster, **options)[f"{job.name}-{role}-0"]


def everything(job: RLJob, cluster: Cluster = CLUSTER) -> list[Manifest]:
    return [*support(job, cluster), *pods(job, cluster).values()]


def find(objects: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    (found,) = (o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"]))
    return found


def env_of(manifest: Manifest) -> dict[str, str]:
    """Plain variables of the pod's first container."""
    variables = manifest["spec"]["containers"][0]["env"]
    return {variable["name"]: variable["value"] for variable in variables if "value" in variable}
