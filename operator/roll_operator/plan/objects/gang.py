"""All pods of a job get their nodes at once, or none does: PodGroups, where the cluster serves them.

A run starts as one gang: the pods that are created before one of them has a node belong to the group `<job>`.
Afterwards a lost pod must not wait for others, nor others for it, so replacements and added pods stand alone;
only the ranks of a trainer, which restart together, are a gang again: `<job>.trainer` (a job's name has no
dot). Where a PodGroup cannot be changed, its size is part of its name, and a run that starts with another size
is another group: what is added to a gang that still waits stands alone, too.
"""

from collections.abc import Iterable
from typing import Any

from roll_api import RLJob

from roll_operator.plan.desired import desired_pods
from roll_operator.plan.objects.cluster import Cluster, Manifest, metadata

IN_TREE = "scheduling.k8s.io"
COSCHEDULING = "scheduling.x-k8s.io"
VOLCANO = "scheduling.volcano.sh"
COSCHEDULING_LABEL = f"{COSCHEDULING}/pod-group"
VOLCANO_ANNOTATION = "scheduling.k8s.io/group-name"

SCHEDULERS = {COSCHEDULING: "scheduler-plugins-scheduler", VOLCANO: "volcano"}
"""The schedulers that read a PodGroup, under the names of their charts; the in-tree one is the default."""

FIXED = (f"{IN_TREE}/v1alpha2",)
"""APIs whose PodGroups cannot be changed; later ones let minCount change."""


def pod_groups(job: RLJob, cluster: Cluster) -> list[Manifest]:
    api = _api(job, cluster)
    if api is None:
        return []
    gangs = [(_all(job, api), len(desired_pods(job)))]
    if _trainers(job) > 1:
        gangs.append((_ranks(job, api), _trainers(job)))
    return [
        {
            "apiVersion": api,
            "kind": "PodGroup",
            "metadata": metadata(job, name),
            "spec": _spec(job, api, size),
        }
        for name, size in gangs
    ]


def join(pod: Manifest, job: RLJob, role: str, cluster: Cluster, starting: bool) -> None:
    """Makes the pod a member of its group, in the way that the API's scheduler looks for."""
    api = _api(job, cluster)
    if api is None:
        return
    name = _group_of(job, role, api, starting)
    group = api.split("/")[0]
    scheduler = cluster.pod_group_scheduler or SCHEDULERS.get(group)
    if scheduler:  # of all pods: two schedulers on the same nodes would compete for them
        pod["spec"]["schedulerName"] = scheduler
    if name is None:
        return
    if group == IN_TREE:
        pod["spec"]["schedulingGroup"] = {"podGroupName": name}
    elif group == COSCHEDULING:
        pod["metadata"]["labels"][COSCHEDULING_LABEL] = name
    else:
        pod["metadata"]["annotations"][VOLCANO_ANNOTATION] = name


def gathers(job: RLJob, cluster: Cluster, others: Iterable[tuple[bool, str]]) -> bool:
    """Whether a pod that is created now belongs to the gang of the run's start.

    `others`: of each pod of the job that is there, whether it has a node, and its group.
    """
    api = _api(job, cluster)
    return api is not None and all(
        not scheduled and group == _all(job, api) for scheduled, group in others
    )


def group_of(pod: Manifest) -> str:
    """The group that the pod is a member of; empty: none."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    return str(
        (spec.get("schedulingGroup") or {}).get("podGroupName")
        or (metadata.get("labels") or {}).get(COSCHEDULING_LABEL)
        or (metadata.get("annotations") or {}).get(VOLCANO_ANNOTATION)
        or ""
    )


def _api(job: RLJob, cluster: Cluster) -> str | None:
    api = cluster.pod_group_api if job.spec.scheduling.gang == "Auto" else None
    known = (IN_TREE, COSCHEDULING, VOLCANO)
    return api if api and api.split("/")[0] in known else None


def _group_of(job: RLJob, role: str, api: str, starting: bool) -> str | None:
    if starting:
        return _all(job, api)
    return _ranks(job, api) if role == "trainer" and _trainers(job) > 1 else None


def _all(job: RLJob, api: str) -> str:
    return f"{job.name}.{len(desired_pods(job))}" if api in FIXED else job.name


def _ranks(job: RLJob, api: str) -> str:
    return f"{job.name}.trainer" + (f".{_trainers(job)}" if api in FIXED else "")


def _trainers(job: RLJob) -> int:
    return job.spec.roles.trainer.replicas


def _spec(job: RLJob, api: str, size: int) -> dict[str, Any]:
    if api.startswith(f"{IN_TREE}/"):
        return {"schedulingPolicy": {"gang": {"minCount": size}}}
    spec: dict[str, Any] = {"minMember": size}
    if api.startswith(f"{VOLCANO}/") and job.spec.scheduling.priority_class:
        spec["priorityClassName"] = job.spec.scheduling.priority_class
    return spec
