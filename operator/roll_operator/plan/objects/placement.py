"""Where a pod may stand: relative to its own role, to other jobs, and to nodes that went away."""

from typing import Any

from roll_api import RLJob
from roll_api.pods import Placement

from roll_operator.plan.objects.cluster import JOB_LABEL, ROLE_LABEL

Json = dict[str, Any]

AWAY_SECONDS = 30
"""A pod on a node that is lost is given up after this long; Kubernetes' default is 300."""

NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def node_loss() -> list[Json]:
    return [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": AWAY_SECONDS,
        }
        for state in ("not-ready", "unreachable")
    ]


def spread(job: RLJob, role: str, placement: Placement) -> list[Json]:
    """No place holds two replicas more than another; places that the pod may not use do not count."""
    if placement.mode != "Spread":
        return []
    return [
        {
            "maxSkew": 1,
            "topologyKey": placement.topology_key,
            "whenUnsatisfiable": "DoNotSchedule",
            "nodeTaintsPolicy": "Honor",
            "labelSelector": {"matchLabels": {JOB_LABEL: job.name, ROLE_LABEL: role}},
        }
    ]


def affinity(job: RLJob, role: str, placement: Placement) -> Json:
    result: Json = {}
    if placement.mode == "Pack":
        together = {
            "topologyKey": placement.topology_key,
            "labelSelector": {"matchLabels": {JOB_LABEL: job.name, ROLE_LABEL: role}},
        }
        result["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [together]}
    if placement.exclusive:
        apart = [_other_jobs_here(job, placement), _jobs_elsewhere(job, placement)]
        result["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": apart}
    return result


def _other_jobs_here(job: RLJob, placement: Placement) -> Json:
    return {
        "topologyKey": placement.topology_key,
        "labelSelector": {
            "matchExpressions": [
                {"key": JOB_LABEL, "operator": "Exists"},
                {"key": JOB_LABEL, "operator": "NotIn", "values": [job.name]},
            ]
        },
    }


def _jobs_elsewhere(job: RLJob, placement: Placement) -> Json:
    """A job of the same name in another namespace is another job."""
    here = [job.metadata.namespace]
    return {
        "topologyKey": placement.topology_key,
        "labelSelector": {"matchExpressions": [{"key": JOB_LABEL, "operator": "Exists"}]},
        "namespaceSelector": {
            "matchExpressions": [{"key": NAMESPACE_LABEL, "operator": "NotIn", "values": here}]
        },
    }
