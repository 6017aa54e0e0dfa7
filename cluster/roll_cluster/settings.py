"""What the cluster is called, where it lives on disk and which addresses it takes.

All addresses are private to this machine: the node's is on the loopback interface, and the ranges of
pods and Services are black holes until an interface for them exists.
"""

import os
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "v1.36.3"
KWOK = "v0.8.0"
VERSITYGW = "v1.8.0"

NODE = "roll-node"
NODE_IP = "10.99.0.1"
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
DOMAIN = "cluster.local"
ISSUER = "https://kubernetes.default.svc"
FEATURE_GATES = "GenericWorkload=true,GangScheduling=true"
BUSYBOX = "localhost/busybox:1"

# The workers' uid: volumes belong to it, because a restricted pod may not change an owner.
POD_UID = 10001
STORAGE_CLASS = "roll-hostpath"
VOLUMES = 16


class ClusterError(Exception):
    """What went wrong and what to do, in words for the user."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "roll"


def binaries_folder() -> Path:
    return cache() / f"kubernetes-{KUBERNETES}" / "bin"


@dataclass(frozen=True)
class State:
    """The folder of one cluster."""

    root: Path

    @classmethod
    def from_environment(cls) -> "State":
        given = os.environ.get("ROLL_CLUSTER_STATE")
        return cls(Path(given).absolute() if given else cache() / "cluster")

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def unprepared(self) -> Path:
        """Says why tests cannot have a cluster here; not there where they can."""
        return self.root / "unprepared"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def containerd_socket(self) -> Path:
        return self.root / "run" / "containerd.sock"
