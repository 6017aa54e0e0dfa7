"""What a job needs besides its pods."""

import json

from roll_api import RLJob, spec_hash
from roll_api.job import told_spec

from roll_operator.plan.objects import network, storage
from roll_operator.plan.objects.cluster import (
    JOB_LABEL,
    ROLE_LABEL,
    SPEC_HASH_ANNOTATION,
    Cluster,
    Manifest,
    metadata,
    spec_name,
    tls_name,
)
from roll_operator.plan.objects.gang import pod_groups


def support(job: RLJob, cluster: Cluster) -> list[Manifest]:
    """In the order in which they are created: what a pod mounts or is counted by is there before it."""
    return [
        service_account(job),
        spec_config_map(job),
        network.service(job),
        network.policy(job, cluster),
        *storage.claims(job),
        *disruption_budgets(job),
        *certificates(job, cluster),
        *pod_groups(job, cluster),
    ]


def service_account(job: RLJob) -> Manifest:
    """An identity without rights: its projected tokens are all that it is for."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(job, job.name),
        "automountServiceAccountToken": False,
    }


def spec_config_map(job: RLJob) -> Manifest:
    """The job as its pods read it. Never changed: a changed spec has another hash and so another name."""
    identity = {"name": job.name, "namespace": job.metadata.namespace, "uid": job.metadata.uid}
    told = {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": identity,
        "spec": told_spec(job),
    }
    meta = metadata(job, spec_name(job))
    meta["annotations"] = {SPEC_HASH_ANNOTATION: spec_hash(job)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta,
        "immutable": True,
        "data": {"job.json": json.dumps(told, separators=(",", ":"))},
    }


def disruption_budgets(job: RLJob) -> list[Manifest]:
    """One inference pod at a time may be drained. A number, because the eviction API would resolve a
    percentage by the job's scale, which is inference's, for whatever pods it selects. One that does not serve, because
    it loads or because its image says nothing of it, holds up no drain."""
    replicas = job.spec.roles.inference.replicas
    if replicas < 2:
        return []
    selected = {JOB_LABEL: job.name, ROLE_LABEL: "inference"}
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(job, f"{job.name}-inference"),
            "spec": {
                "minAvailable": replicas - 1,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": selected},
            },
        }
    ]


def certificates(job: RLJob, cluster: Cluster) -> list[Manifest]:
    """cert-manager makes and renews the certificate, where the operator was told an issuer."""
    if cluster.cert_manager_issuer is None:
        return []
    kind, _, name = cluster.cert_manager_issuer.rpartition("/")
    return [
        {
            "apiVersion": "cert-manager.io/v1",
            "kind": "Certificate",
            "metadata": metadata(job, job.name),
            "spec": {
                "secretName": tls_name(job),
                "dnsNames": [f"*.{job.name}.{job.metadata.namespace}.svc"],
                "duration": "8760h",
                "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
                "usages": ["digital signature", "server auth"],
                "issuerRef": {
                    "group": "cert-manager.io",
                    "kind": kind or "Issuer",
                    "name": name,
                },
            },
        }
    ]
