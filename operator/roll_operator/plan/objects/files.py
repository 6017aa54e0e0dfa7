"""The files in a pod: its job, whom it trusts, who it is, and where it may write."""

from typing import Any

from roll_api import RLJob

from roll_operator.plan.model import SCHEDULER
from roll_operator.plan.objects import storage
from roll_operator.plan.objects.cluster import source_name, spec_name, trust_name
from roll_operator.trust.identity import audience

Json = dict[str, Any]

JOB_FOLDER = "/etc/roll/job"
TRUST_FOLDER = "/etc/roll/trust"
TLS_FOLDER = "/etc/roll/tls"
ARCHIVE_FOLDER = "/etc/roll/source"
ARCHIVE = f"{ARCHIVE_FOLDER}/source.tar.gz"
TOKEN_FOLDER = "/var/run/secrets/roll"
TOKEN_SECONDS = 3600
READY = "/tmp/roll-ready"
"""An inference process keeps this file while it holds a published version."""

SERVERS = (SCHEDULER, "trainer", "inference")
"""Roles that others connect to: they hold the job's certificate."""

PROTECTED = frozenset({"roll-job", "roll-trust", "roll-tls", "roll-token"})
"""Volumes that a template cannot replace."""


def volumes(job: RLJob, role: str, tls: str) -> list[Json]:
    token = {
        "path": "token",
        "audience": audience(job.metadata.uid),
        "expirationSeconds": TOKEN_SECONDS,
    }
    result = [
        {"name": "roll-job", "configMap": {"name": spec_name(job)}},
        {"name": "roll-trust", "configMap": {"name": trust_name(job)}},
        {"name": "roll-token", "projected": {"sources": [{"serviceAccountToken": token}]}},
        {"name": "roll-tmp", "emptyDir": {}},
        storage.volume(job, role),
    ]
    if role in SERVERS:
        keys = [{"key": key, "path": key} for key in ("tls.crt", "tls.key")]
        # For the group, because the volume's files belong to root.
        secret = {"secretName": tls, "items": keys, "defaultMode": 0o440}
        result.append({"name": "roll-tls", "secret": secret})
    if role != SCHEDULER and (archive := source_name(job)):
        result.append({"name": "roll-archive", "configMap": {"name": archive}})
    if _gpu(job, role):
        # Libraries that move tensors between processes need more than a container's 64 MB.
        result.append({"name": "roll-shm", "emptyDir": {"medium": "Memory"}})
    return result


def mounts(job: RLJob, role: str) -> list[Json]:
    result: list[Json] = [
        {"name": "roll-job", "mountPath": JOB_FOLDER, "readOnly": True},
        {"name": "roll-trust", "mountPath": TRUST_FOLDER, "readOnly": True},
        {"name": "roll-token", "mountPath": TOKEN_FOLDER, "readOnly": True},
        {"name": "roll-tmp", "mountPath": "/tmp"},
        storage.mount(),
    ]
    if role in SERVERS:
        result.append({"name": "roll-tls", "mountPath": TLS_FOLDER, "readOnly": True})
    if role != SCHEDULER and source_name(job):
        result.append({"name": "roll-archive", "mountPath": ARCHIVE_FOLDER, "readOnly": True})
    if _gpu(job, role):
        result.append({"name": "roll-shm", "mountPath": "/dev/shm"})
    return result


def _gpu(job: RLJob, role: str) -> bool:
    return role != SCHEDULER and getattr(job.spec.roles, role).gpu is not None
