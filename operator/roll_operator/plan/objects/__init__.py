"""Every Kubernetes object of a job, as plain manifests: pure functions of the job and the operator's settings."""

from roll_operator.plan.objects.change import PRUNED_KINDS, Change, change
from roll_operator.plan.objects.cluster import Cluster, Manifest, host, site, tls_name
from roll_operator.plan.objects.files import audience
from roll_operator.plan.objects.pod import pod
from roll_operator.plan.objects.support import support, tls_secret, trust_config_map

__all__ = [
    "PRUNED_KINDS",
    "Change",
    "Cluster",
    "Manifest",
    "audience",
    "change",
    "host",
    "pod",
    "site",
    "support",
    "tls_name",
    "tls_secret",
    "trust_config_map",
]
