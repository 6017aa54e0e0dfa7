"""The jobs of the benchmark: as RLJobs for the operator, and as the objects that it would make of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from roll_api import RLJob
from roll_cluster.kwok import TOLERATION
from roll_operator.controller.cluster import paths, trust
from roll_operator.controller.cluster.api import Api
from roll_operator.controller.cluster.supports import digest_of, signed
from roll_operator.plan import Observed, StartPod, plan
from roll_operator.plan.objects import Cluster, pod, support
from roll_operator.plan.objects.cluster import site
from roll_operator.trust import certificates

Manifest = dict[str, Any]

ROLES = ("trainer", "inference", "reward", "environment")
PODS = len(ROLES) + 1
JOBS_PER_NAMESPACE = 100
AT_ONCE = 32
CLAIM = "data"


def namespace(number: int) -> str:
    return f"fleet-{number // JOBS_PER_NAMESPACE}"


def homes(jobs: int) -> list[Manifest]:
    """Namespaces, each with a claim for its jobs that is bound already: nobody makes volumes here."""
    room = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    result: list[Manifest] = []
    for name in sorted({namespace(i) for i in range(jobs)}):
        result += [
            {"kind": "Namespace", "metadata": {"name": name}},
            {
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": room
                | {
                    "capacity": {"storage": "1Ti"},
                    "claimRef": {"namespace": name, "name": CLAIM},
                    "nfs": {"server": "nowhere", "path": "/"},
                },
            },
            {
                "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": CLAIM,
                    "namespace": name,
                    "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
                },
                "spec": room | {"volumeName": name, "resources": {"requests": {"storage": "1Ti"}}},
            },
        ]
    return [{"apiVersion": "v1"} | item for item in result]


def rljob(number: int) -> Manifest:
    tolerant = {"template": {"spec": {"tolerations": [TOLERATION]}}}
    return {
        "apiVersion": "roll.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": f"job-{number}", "namespace": namespace(number)},
        "spec": {
            "steps": 1_000_000,
            "model": {"path": "builtin:tiny-qwen2"},
            "data": {"train": {"path": "builtin:largest-of-three"}},
            "rewards": [{"name": "exact", "scorer": {"kind": "exactMatch"}}],
            "roles": {role: {"replicas": 1} | tolerant for role in ROLES},
            "scheduler": tolerant,
            "storage": {"claim": CLAIM, "ledger": "EmptyDir"},
            "scheduling": {"gang": "Never"},
        },
    }


def at_rest() -> Manifest:
    """A suspended job, which has no objects."""
    manifest = rljob(0)
    manifest["metadata"] = {"name": "first", "namespace": "default"}
    manifest["spec"]["suspend"] = True
    return manifest


def objects(number: int, cluster: Cluster, keys: str) -> tuple[list[Manifest], list[Manifest]]:
    """What the operator would create for a job: what stands beside its pods, and the pods. `keys`: the cluster's."""
    manifest = rljob(number)
    manifest["metadata"]["uid"] = f"00000000-0000-4000-8000-{number:012d}"
    job = RLJob.from_json(json.dumps(manifest))
    pair = certificates.make(certificates.names(job.name, job.metadata.namespace), time.time())
    trusted = trust.Trust(pair.certificate, keys, pair.serial, made_at=0.0, rotates_at=0.0)
    made = [trust.config_map(job, trusted), *support(job, cluster)]
    beside = [trust.secret_of(job, pair), *(signed(m, digest_of(m)) for m in made)]
    planned = plan(job, Observed(), time.time(), site(job, cluster))
    starts = [action for action in planned.actions if isinstance(action, StartPod)]
    pods = [pod(job, start, cluster, pair.serial, starting=False) for start in starts]
    return beside, pods


async def create(api: Api, made: Sequence[tuple[list[Manifest], list[Manifest]]]) -> None:
    """Of each job first what stands beside its pods, then all pods together; many jobs at once."""

    async def one(job: tuple[list[Manifest], list[Manifest]]) -> None:
        beside, pods = job
        for manifest in beside:
            await api.create(paths.home(manifest), manifest)
        await asyncio.gather(*(api.create(paths.home(p), p) for p in pods))

    await each(made, one)


async def submit(api: Api, jobs: int) -> None:
    async def one(number: int) -> None:
        manifest = rljob(number)
        await api.create(paths.home(manifest), manifest)

    await each(range(jobs), one)


async def each(items: Sequence[Any], act: Callable[[Any], Awaitable[None]]) -> None:
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await act(item)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


def is_ready(item: Manifest) -> bool:
    """A pod that is ready, or a job whose pods all are."""
    wanted = "PodsReady" if item["kind"] == "RLJob" else "Ready"
    conditions = (item.get("status") or {}).get("conditions") or []
    return any(c["type"] == wanted and c["status"] == "True" for c in conditions)


def failed(role: str) -> Manifest:
    """The status of a pod whose process ended, as a kubelet writes it: with the last lines of its log."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ended = {"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now}
    container = {
        "name": role,
        "image": "none",
        "imageID": "none",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended | {"message": "the benchmark ended it"}},
    }
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "False"},
    ]
    return {"phase": "Failed", "conditions": conditions, "containerStatuses": [container]}
