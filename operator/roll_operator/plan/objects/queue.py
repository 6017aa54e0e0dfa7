"""A job in a Kueue queue: its pods are one plain pod group, admitted together.

Kueue's rules: the group's name and size stand on every pod, and all pods name the same queue and size; pods
of one role share a role hash (given here, because two roles of the same shape would otherwise become one);
a pod beyond the size is deleted, so replicas change only while suspended and a replacement is created only
when its predecessor is gone, which is the planner's rule anyway. Kueue would wait the other way round: by a
finalizer it keeps the object of a pod that ended until it sees another in its place, and of the whole group until
that has finished or its Workload is deleted. Names are fixed here, so neither would ever move: the operator takes the
finalizer from a pod that was deleted and has ended. `retriable-in-group: false` is never set, since what fails is
replaced; the group ends when its pods are deleted. `pod-group-fast-admission` is never set: it would count the first
pod's shape for all.
"""

from roll_api import RLJob

from roll_operator.plan.desired import desired_pods
from roll_operator.plan.objects.cluster import Manifest

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
TOTAL_ANNOTATION = "kueue.x-k8s.io/pod-group-total-count"
ROLE_ANNOTATION = "kueue.x-k8s.io/role-hash"
FINALIZER = "kueue.x-k8s.io/managed"
"""Kueue's webhook puts it on every member of a group."""


def enqueue(pod: Manifest, job: RLJob, role: str) -> None:
    queue = job.spec.scheduling.queue
    if queue is None:
        return
    pod["metadata"]["labels"] |= {QUEUE_LABEL: queue, GROUP_LABEL: job.name}
    pod["metadata"]["annotations"] |= {
        TOTAL_ANNOTATION: str(len(desired_pods(job))),
        ROLE_ANNOTATION: role,
    }
