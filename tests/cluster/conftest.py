"""The cluster of this session: the one of KUBECONFIG, the one that is up, or one started for it.

A cluster that was started here is stopped at the end; one that was there before is left as it is.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from roll_cluster import State
from roll_cluster.cluster import Cluster
from support.kubernetes import Kubernetes, roll_cluster
from support.real import no_cluster

FOLDER = Path(__file__).parent
SECONDS = 900
"""For a test that finds no cluster: it waits for its start, for the images and for the chart."""
ON_THE_CLUSTER = pytest.StashKey[set[str]]()
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    on_the_cluster = config.stash[ON_THE_CLUSTER] = set()
    for item in items:
        if item.path.is_relative_to(FOLDER) and "cluster" in getattr(item, "fixturenames", ()):
            on_the_cluster.add(item.nodeid)
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SECONDS))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long the cluster was needed for, its start, the images and the chart included."""
    names = terminalreporter.config.stash.get(ON_THE_CLUSTER, set())
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    mine = [r for r in reports if isinstance(r, pytest.TestReport) and r.nodeid in names]
    if mine:
        tests, took = len({r.nodeid for r in mine}), sum(r.duration for r in mine)
        terminalreporter.write_line(f"tests on the cluster: {tests} in {took:.0f} s")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Kubernetes]:
    state = State.from_environment()
    given = os.environ.get("KUBECONFIG")
    if given and Path(given).absolute() != state.kubeconfig:
        yield Kubernetes(Path(given), None)
        return
    if why := no_cluster():
        pytest.fail(why, pytrace=False)
    was_up = all(process.pid for process in Cluster(state, print).processes)
    roll_cluster("up")
    yield Kubernetes(state.kubeconfig, state, started_here=not was_up)
    if not was_up:
        roll_cluster("down")


@pytest.fixture(scope="session")
def operator(cluster: Kubernetes) -> Kubernetes:
    """The cluster with this repository's operator, installed by its chart."""
    environment = {} if cluster.state else {"KUBECONFIG": str(cluster.kubeconfig)}
    roll_cluster("install", **environment)
    return cluster


@pytest.fixture
def namespace(cluster: Kubernetes) -> Iterator[str]:
    """A namespace of its own that admits only restricted pods."""
    name = f"test-{uuid4().hex[:8]}"
    cluster("create", "namespace", name)
    cluster("label", "namespace", name, RESTRICTED)
    yield name
    cluster("delete", "namespace", name, "--wait=false")
