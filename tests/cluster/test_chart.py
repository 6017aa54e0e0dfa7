"""The life of a release beside a job that runs: `helm test`, upgrade, rollback, uninstall, and again."""

import os
import subprocess
from collections.abc import Iterator

import pytest
from roll_cluster.project import NAMESPACE
from support.chart import CHART, HELM
from support.kubernetes import Kubernetes, eventually, roll_cluster
from support.rljobs import Job, waiting

RELEASE = "roll-operator"


@pytest.fixture
def installed(operator: Kubernetes) -> Iterator[Kubernetes]:
    """The other tests find the release as it was."""
    if operator.state is None:
        pytest.skip("the release of a cluster that was given is not ours to remove")
    yield operator
    roll_cluster("install")


def helm(cluster: Kubernetes, *arguments: str) -> str:
    done = subprocess.run(
        [HELM, *arguments, f"--namespace={NAMESPACE}"],
        env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def operators(cluster: Kubernetes) -> set[str]:
    """The pods that are there to stay."""
    mine = ("-n", NAMESPACE, "-l", "app.kubernetes.io/name=roll-operator")
    found = cluster.get("pods", *mine)["items"]
    return {p["metadata"]["name"] for p in found if "deletionTimestamp" not in p["metadata"]}


def test_a_job_runs_through_the_whole_life_of_a_release(
    installed: Kubernetes, namespace: str
) -> None:
    cluster = installed
    job = Job.apply(cluster, namespace, waiting("sums"))
    job.until_pods_run(5)
    before = {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}

    def same_pods() -> bool:
        return {n: pod["metadata"]["uid"] for n, pod in job.pods().items()} == before

    assert "Phase:          Succeeded" in helm(cluster, "test", RELEASE)
    helm(cluster, "upgrade", RELEASE, str(CHART), "--reuse-values", "--set=replicas=2", "--wait")
    assert len(operators(cluster)) == 2
    helm(cluster, "rollback", RELEASE, "--wait")
    eventually("one operator", lambda: len(operators(cluster)) == 1)
    assert same_pods()

    helm(cluster, "uninstall", RELEASE, "--wait")
    assert operators(cluster) == set()
    assert cluster.get("crd", "rljobs.roll.dev")["metadata"]["name"] == "rljobs.roll.dev"
    assert same_pods()  # nobody needs an operator to go on

    roll_cluster("install")
    job.kubectl("delete", "pod", "sums-reward-0", "--wait=false")
    eventually("replaced", lambda: job.uid("reward") not in ("", before["sums-reward-0"]))
    job.until_pods_run(5)
    left = {name for name, pod in job.pods().items() if pod["metadata"]["uid"] == before[name]}
    assert left == before.keys() - {"sums-reward-0"}
