"""Who talks to whom: a job's pods among themselves, the operator to the scheduler, all of them to the DNS.

Policies add up: whoever needs a model hub or an object store from a pod writes a second policy that selects
`roll.dev/job`.
"""

from typing import Any

from roll_api import RLJob

from roll_operator.plan.model import SCHEDULER
from roll_operator.plan.objects.cluster import (
    JOB_LABEL,
    METRICS_PORT,
    SCHEDULER_PORT,
    Cluster,
    Manifest,
    metadata,
)
from roll_operator.plan.objects.placement import NAMESPACE_LABEL

DNS_PORT = 53
LINK_LOCAL = "169.254.0.0/16"
"""Where a node's own DNS cache listens."""


def service(job: RLJob) -> Manifest:
    """Names for the pods, also before they are ready: ranks find each other while they start."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, job.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_LABEL: job.name},
            "ports": [{"name": SCHEDULER, "port": SCHEDULER_PORT, "targetPort": SCHEDULER_PORT}],
        },
    }


def policy(job: RLJob, cluster: Cluster) -> Manifest:
    own = {"podSelector": {"matchLabels": {JOB_LABEL: job.name}}}
    operator = {
        "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: cluster.operator_namespace}},
        "podSelector": {"matchLabels": dict(cluster.operator_labels)},
    }
    ingress: list[dict[str, Any]] = [
        {"from": [own]},  # every port: collectives of a trainer choose theirs
        {"from": [operator], "ports": [_tcp(SCHEDULER_PORT)]},
    ]
    if cluster.metrics_namespaces:
        names = list(cluster.metrics_namespaces)
        among = {"key": NAMESPACE_LABEL, "operator": "In", "values": names}
        scraper = {"namespaceSelector": {"matchExpressions": [among]}}
        ingress.append({"from": [scraper], "ports": [_tcp(METRICS_PORT)]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, job.name),
        "spec": {
            "podSelector": {"matchLabels": {JOB_LABEL: job.name}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": [{"to": [own]}, _dns()],
        },
    }


def _dns() -> dict[str, Any]:
    server = {
        "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    return {
        "to": [server, {"ipBlock": {"cidr": LINK_LOCAL}}],
        "ports": [{"protocol": "UDP", "port": DNS_PORT}, _tcp(DNS_PORT)],
    }


def _tcp(port: int) -> dict[str, Any]:
    return {"protocol": "TCP", "port": port}
