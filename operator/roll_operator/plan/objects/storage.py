"""Where a job's files outlive its pods: its own claims, a claim that the user gave, or none, and then the trainer
keeps its checkpoints in an object store."""

from typing import Any

from roll_api import RLJob

from roll_operator.plan.model import SCHEDULER
from roll_operator.plan.objects.cluster import STORAGE, Manifest, metadata

VOLUME = "roll-storage"


def claims(job: RLJob) -> list[Manifest]:
    """Both are for one pod at a time, and go with the job."""
    storage = job.spec.storage
    result = []
    if storage.size is not None:
        result.append(_claim(job, f"{job.name}-storage", storage.size))
    if storage.claims_ledger:
        result.append(_claim(job, f"{job.name}-ledger", storage.ledger_size))
    return result


def volume(job: RLJob, role: str) -> dict[str, Any]:
    claim = _claim_of(job, role)
    if claim is None:
        return {"name": VOLUME, "emptyDir": {}}
    return {"name": VOLUME, "persistentVolumeClaim": {"claimName": claim}}


def mount() -> dict[str, Any]:
    return {"name": VOLUME, "mountPath": STORAGE}


def folder(job: RLJob, role: str) -> str:
    """Where the role's files are. Jobs that were given the same claim have a folder each, which a worker makes: one
    that a kubelet makes (`subPath`) belongs to root where volumes know no fsGroup, and nobody could write there."""
    given = role != SCHEDULER and _claim_of(job, role) == job.spec.storage.claim is not None
    return f"{STORAGE}/{job.name}" if given else STORAGE


def _claim_of(job: RLJob, role: str) -> str | None:
    storage = job.spec.storage
    if role == SCHEDULER:
        return f"{job.name}-ledger" if storage.claims_ledger else None
    if role == "trainer" and storage.size is not None:
        return f"{job.name}-storage"
    # Weights that are streamed need no shared folder: then the claim may be for one node only.
    shared = role == "trainer" or job.spec.weights.transfer != "Stream"
    return storage.claim if shared else None


def _claim(job: RLJob, name: str, size: str) -> Manifest:
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }
    if job.spec.storage.storage_class is not None:
        spec["storageClassName"] = job.spec.storage.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(job, name),
        "spec": spec,
    }
