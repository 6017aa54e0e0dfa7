"""Every Kubernetes object of a job, as plain manifests: pure functions of the job and the operator's settings."""

from roll_operator.plan.objects.cluster import Cluster, Manifest, host, site
from roll_operator.plan.objects.pod import pod
from roll_operator.plan.objects.support import support

__all__ = ["Cluster", "Manifest", "host", "pod", "site", "support"]
