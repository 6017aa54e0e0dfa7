"""Starting twice, mending, and leaving a machine as it was found."""

import os
import signal
from pathlib import Path

import pytest
from roll_cluster import ClusterError, State
from roll_cluster.cluster import Cluster
from roll_cluster.processes import end, run
from support.kubernetes import Kubernetes, eventually, roll_cluster


@pytest.fixture
def state(cluster: Kubernetes) -> State:
    if cluster.state is None:
        pytest.skip("the cluster was given by KUBECONFIG: it is not ours to stop")
    return cluster.state


def test_a_second_start_changes_nothing(state: State) -> None:
    before = [process.pid for process in Cluster(state, print).processes]
    assert "up already" in roll_cluster("up")
    assert [process.pid for process in Cluster(state, print).processes] == before


def test_a_second_cluster_is_refused_while_the_first_is_up(state: State, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=f"another cluster is up.*{state.root}"):
        roll_cluster("up", ROLL_CLUSTER_STATE=str(tmp_path), KUBECONFIG="")


def test_what_died_is_started_again(state: State) -> None:
    cluster = Cluster(state, print)
    before = {process.name: process.pid for process in cluster.processes}
    dead = cluster.scheduler.pid
    assert dead is not None and end(dead, signal.SIGKILL, 10)
    roll_cluster("up")
    after = {process.name: process.pid for process in cluster.processes}
    assert {name for name in after if after[name] != before[name]} == {"kube-scheduler"}
    assert after["kube-scheduler"] is not None


def test_a_scheduler_that_ends_by_itself_is_started_again(state: State) -> None:
    keeper = Cluster(state, print).scheduler.pid
    (before,) = _children(keeper)
    assert end(before, signal.SIGKILL, 10)
    eventually("there is another", lambda: _children(keeper) not in ([], [before]))
    assert Cluster(state, print).scheduler.pid == keeper


def _children(keeper: int | None) -> list[int]:
    """Its kube-schedulers: in between there is a pause."""
    listed = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return [int(pid) for pid in listed if "scheduler" in Path(f"/proc/{pid}/comm").read_text()]


def machine(state: State) -> dict[str, object]:
    """Everything a cluster could leave behind."""
    settings = ("net/ipv4/ip_forward", "vm/overcommit_memory", "kernel/panic")
    commands = [
        path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.parent.exists()
    ]
    return {
        "processes": [c for c in commands if str(state.root) in c or "containerd-shim" in c],
        "mounts": [
            line
            for line in Path("/proc/mounts").read_text().splitlines()
            if str(state.root) in line or "cni-" in line or "/run/netns" in line
        ],
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "addresses": run("ip", "-brief", "address", "show", "lo"),
        "routes": run("ip", "route"),
        "rules": run("nft", "list", "ruleset"),
        "hosts": Path("/etc/hosts").read_text(),
        "groups": [str(path) for path in Path("/sys/fs/cgroup").glob("*/kubepods")],
        "settings": [Path("/proc/sys", name).read_text() for name in settings],
    }


@pytest.mark.ends_the_cluster
def test_down_leaves_nothing_behind_even_after_a_crash(state: State, cluster: Kubernetes) -> None:
    if not cluster.started_here:
        pytest.skip("the cluster was up before the tests: it stays up")
    roll_cluster("down")
    clean = machine(state)
    assert (clean["processes"], clean["mounts"], clean["groups"]) == ([], [], [])

    roll_cluster("up")
    pod = ("run", "sleeper", "--image=localhost/busybox:1", "--restart=Never")
    cluster(*pod, "--", "sleep", "3600")
    cluster.wait("condition=Ready", "pod/sleeper", namespace="default")
    assert machine(state) != clean
    crashed = Cluster(state, print)
    for process in (crashed.kubelet, crashed.containers.process):  # those that would end the pod
        assert process.pid is not None and end(process.pid, signal.SIGKILL, 10)
    roll_cluster("down")
    assert machine(state) == clean
