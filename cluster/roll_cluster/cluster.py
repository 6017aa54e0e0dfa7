"""The whole cluster: up, down, status.

Invariants: at most one cluster is up on a machine; `up` on a running cluster starts only what died;
after `down` no process, mount, interface, route or kernel setting of the cluster is left. Of its
files the image store and the logs stay.
"""

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from roll_cluster import binaries, manifests, network, packages
from roll_cluster.api_server import ApiServer, listens
from roll_cluster.components import LOOPBACK, Components
from roll_cluster.containers import Containers
from roll_cluster.processes import Process, run
from roll_cluster.settings import NODE, NODE_IP, POD_UID, ClusterError, State

# Which state folder owns the addresses of this machine.
OWNER = Path("/run/roll-cluster.owner")
LOCK = Path("/run/roll-cluster.lock")
KEPT = {"containerd", "log", "README"}
# Only a folder that holds this file is ever emptied.
MARK = "README"
MARK_TEXT = "The state of a test cluster. `python -m roll_cluster down --purge` removes it.\n"


class Cluster:
    def __init__(self, state: State, say: Callable[[str], None]) -> None:
        self.state = state
        self.say = say
        self.containers = Containers(state)
        self.api = ApiServer(state.root, address=NODE_IP, port=6443, with_parent=False)
        self.controller_manager = self._process("kube-controller-manager")
        self.scheduler = self._process("kube-scheduler")
        self.kubelet = self._process("kubelet")
        self.proxy = self._process("kube-proxy")
        self.coredns = self._process("coredns")
        self.volumes = self._process("volumes")

    def _process(self, name: str) -> Process:
        return Process(name, self.state.run / f"{name}.pid", self.state.log / f"{name}.log")

    @property
    def processes(self) -> list[Process]:
        """In the order in which they are stopped."""
        return [
            self.kubelet,
            self.proxy,
            self.coredns,
            self.volumes,
            self.scheduler,
            self.controller_manager,
            self.api.server,
            self.api.etcd,
            self.containers.process,
        ]

    def up(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError(
                "a cluster on this machine needs root; "
                "or set KUBECONFIG to use one that runs elsewhere"
            )
        with _alone():
            self._own_folder()
            self._claim()
            packages.install(self.say)
            binaries.build(binaries.CLUSTER, self.say)
            running = sum(process.pid is not None for process in self.processes)
            if running == len(self.processes):
                self.say("the cluster is up already")
                return
            if not running:
                self._clean()
                shutil.rmtree(self.state.log, ignore_errors=True)
            self._start()

    @contextlib.contextmanager
    def image_store(self) -> Iterator[Containers]:
        """containerd, if need be alone and until the block ends."""
        with _alone():
            self._own_folder()
            self._claim()
            was_there = self.containers.process.pid is not None
            self.containers.start()
            try:
                yield self.containers
            finally:
                if not was_there:
                    self.containers.stop()

    def _own_folder(self) -> None:
        root = self.state.root
        if root.exists() and any(root.iterdir()) and not (root / MARK).exists():
            raise ClusterError(
                f"{root} holds something else; ROLL_CLUSTER_STATE names a new folder"
            )
        root.mkdir(parents=True, exist_ok=True)
        (root / MARK).write_text(MARK_TEXT)

    def _claim(self) -> None:
        """Refuse while another state folder's cluster runs; tidy up after one that died."""
        with contextlib.suppress(FileNotFoundError):
            other = Cluster(State(Path(OWNER.read_text())), self.say)
            if other.state != self.state:
                if any(process.pid is not None for process in other.processes):
                    raise ClusterError(
                        f"another cluster is up: stop it with"
                        f" ROLL_CLUSTER_STATE={other.state.root} make cluster-down"
                    )
                other._clean()
        OWNER.write_text(str(self.state.root))

    def _start(self) -> None:
        began = time.monotonic()
        programs = binaries.require(*binaries.CLUSTER)
        self.state.run.mkdir(parents=True, exist_ok=True)
        network.up(self.state.run / "kernel.json")
        for name in manifests.volume_names():
            volume = self.state.root / "volumes" / name
            volume.mkdir(parents=True, exist_ok=True)
            os.chown(volume, POD_UID, POD_UID)

        self.say("starting etcd, kube-apiserver, containerd")
        self.containers.start()
        self.api.start()
        self.containers.provide_busybox()

        self.say("starting controller manager, scheduler, kubelet, proxy, DNS")
        components = Components(self.state, programs, self.api.keys, self.api.url)
        self.kubelet.start(components.kubelet())
        self.controller_manager.start(components.controller_manager())
        self.scheduler.start(kept_alive(components.scheduler()))
        self.proxy.start(components.proxy())
        objects = manifests.first_objects(self.state.root / "volumes")
        self.api.kubectl("apply", "--server-side", "-f", "-", stdin=objects)
        self.coredns.start(components.coredns())
        self.volumes.start(components.volumes())

        self.scheduler.wait(lambda: listens(LOOPBACK, 10259), 60)
        self.proxy.wait(lambda: listens(LOOPBACK, 10256), 60)
        self.coredns.wait(lambda: listens(NODE_IP, 53), 60)
        self.controller_manager.wait(self._default_account_exists, 60)
        self.kubelet.wait(self._node_is_ready, 90)
        self.say(f"node {NODE} is ready, {time.monotonic() - began:.0f} s after the start")

    def _default_account_exists(self) -> bool:
        return bool(
            self.api.kubectl("get", "serviceaccount", "default", "--ignore-not-found", "-o=name")
        )

    def _node_is_ready(self) -> bool:
        """Ready, and without the taint that a new node carries."""
        found = self.api.kubectl("get", "nodes", "-o", "json")
        for node in json.loads(found)["items"]:
            if node["metadata"]["name"] == NODE:
                conditions = {c["type"]: c["status"] for c in node["status"].get("conditions", [])}
                taints = {taint["key"] for taint in node["spec"].get("taints", [])}
                return conditions.get("Ready") == "True" and not any(
                    "not-ready" in t for t in taints
                )
        return False

    def down(self, *, purge: bool = False) -> None:
        if not (self.state.root / MARK).exists():
            return
        with _alone():
            self._clean()
            with contextlib.suppress(FileNotFoundError):
                if OWNER.read_text() == str(self.state.root):
                    OWNER.unlink()
            if purge:
                shutil.rmtree(self.state.root)

    def _clean(self) -> None:
        """Everything of this cluster but the image store and the logs."""
        self.kubelet.stop()  # first: it would start again what is ended now
        if self.containers.process.pid is not None or self.containers.shims():
            self.containers.start()
            self.containers.remove_all()
        for process in self.processes:
            process.stop(seconds=2)  # what they could still save is thrown away
        self.containers.stop()
        for mount in _mounts_below(self.state.root):
            run("umount", mount)
        _remove_empty_cgroups()
        network.down(self.state.run / "kernel.json")
        if (self.state.root / MARK).exists():
            for entry in self.state.root.iterdir():
                if entry.name not in KEPT:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def kept_alive(command: list[str | Path]) -> list[str | Path]:
    """What ends is started again, as a kubelet would, until its keeper ends.

    kube-scheduler 1.36 ends itself when an API server that comes back tells it another story of a pod.
    """
    loop = 'while :; do setpriv --pdeathsig KILL -- "$@"; sleep 1; done'
    return ["sh", "-c", loop, "keeper", *command]


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One `up` or `down` at a time on a machine; the second waits for the first."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _mounts_below(folder: Path) -> list[str]:
    """Innermost first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    decoded = [point.encode().decode("unicode_escape") for point in points]
    inside = [point for point in decoded if Path(point).is_relative_to(folder)]
    return list(reversed(inside))


def _remove_empty_cgroups() -> None:
    """kubelet's groups outlive it. One that still holds a process refuses to be removed."""
    for top in Path("/sys/fs/cgroup").glob("**/kubepods"):
        groups = [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]
        for group in groups:
            with contextlib.suppress(OSError):
                group.rmdir()
