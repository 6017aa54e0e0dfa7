"""A real Kubernetes of ordinary processes on one machine, for development and tests (see ../README.md)."""

from roll_cluster.api_server import ApiServer, kubectl
from roll_cluster.settings import ClusterError, State

__all__ = ["ApiServer", "ClusterError", "State", "kubectl"]
