"""`kubectl apply` trains a model in pods; what is killed on the way costs time and nothing else."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from roll_cluster.project import NAMESPACE as OPERATOR_NAMESPACE
from roll_cluster.project import REPOSITORY
from roll_cluster.settings import NODE
from ruamel.yaml import YAML
from support.kubernetes import Kubernetes, Manifest, eventually, roll_cluster
from support.rljobs import Job, operator_pod, process_of, training

LONG = 1_000_000
"""Steps of a job that is still at work when all faults are over."""


def test_the_example_is_trained_to_its_end(operator: Kubernetes, namespace: str) -> None:
    operator("apply", "-n", namespace, "-f", REPOSITORY / "examples" / "arithmetic.yaml")
    job = Job(operator, namespace, "arithmetic")
    job.until_phase("Running")
    header, line = job.kubectl("get", "rljobs").splitlines()
    assert header.split() == [
        "NAME",
        "PHASE",
        "STEP",
        "READY",
        "SAMPLES/S",
        "STALE",
        "RESTARTS",
        "AGE",
    ]
    assert "trainer 1/1, inference 2/2, reward 1/1, environment 1/1" in line
    job.until_phase("Succeeded", 240)

    status = job.status()
    spec = YAML(typ="safe").load(REPOSITORY / "examples" / "arithmetic.yaml")["spec"]
    assert (status["step"], status["checkpoint"]) == (spec["steps"], spec["steps"])
    assert status["validationReward"] > 0.9
    assert job.restarts() == {}
    wide = job.kubectl("get", "rljobs", "-o", "wide").splitlines()[0].split()
    assert wide[-4:] == ["CHECKPOINT", "REWARD", "REASON", "PENDING"]
    found = job.verified_ledger()
    assert (found["problems"], found["lost"], found["trained_twice"]) == ([], 0, 0)
    assert found["trained"] == spec["steps"] * 32 * 8
    told = json.loads(job.kubectl("get", "events", "-o", "json"))["items"]
    mine = [event["reason"] for event in told if event["involvedObject"]["kind"] == "RLJob"]
    # A moment without a bound volume may be told as well.
    assert sorted(r for r in mine if r not in ("Unschedulable", "Volume")) == [
        "Running",
        "Succeeded",
    ]


def test_two_jobs_that_share_a_claim_train_at_once(operator: Kubernetes, namespace: str) -> None:
    """One was given the claim, which its weights take as well; the other's template mounts it for a file:// URI."""
    operator.apply(_claim("shared"), namespace=namespace)
    given = {"storage": {"claim": "shared"}, "weights": {"transfer": "Folder"}}
    roles = {role: {"replicas": 1} for role in ("inference", "reward", "environment")}
    roles["trainer"] = {"replicas": 1, "template": _mounting("shared", "/shared")}
    named = {"storage": {"uri": "file:///shared/team", "ledger": "Claim"}, "roles": roles}
    jobs = [
        Job.apply(operator, namespace, training("job-1", seed=1, **given)),
        Job.apply(operator, namespace, training("job-2", seed=2, **named)),
    ]
    for job in jobs:
        job.until_phase("Succeeded", 240)
    for job in jobs:
        found = job.verified_ledger()
        assert (found["problems"], found["trained"]) == ([], 10 * 16)
        assert job.restarts() == {}, job.status()["roles"]
    claims = operator.get("pvc", "-n", namespace)["items"]
    assert {c["metadata"]["name"]: c["status"]["phase"] for c in claims} == dict.fromkeys(
        ("job-1-ledger", "job-2-ledger", "shared"), "Bound"
    )
    if operator.state is not None:
        (volume,) = (c["spec"]["volumeName"] for c in claims if c["metadata"]["name"] == "shared")
        root = operator.state.root / "volumes" / volume
        kept = sorted(path.parent.relative_to(root) for path in root.rglob("step-*/manifest.json"))
        second = f"team/job-2/{jobs[1].object()['metadata']['uid']}"
        assert [str(path).rpartition("-t")[0] for path in kept] == [
            f"{place}/checkpoints/step-{step}"
            for place in ("job-1", second)
            for step in ("000005", "000010")
        ]


def _claim(name: str) -> Manifest:
    """For many pods of one node: every cluster has such."""
    asked = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": asked,
    }


def _mounting(claim: str, path: str) -> Manifest:
    """A template for the trainer's pods."""
    container = {"name": "trainer", "volumeMounts": [{"name": "given", "mountPath": path}]}
    volume = {"name": "given", "persistentVolumeClaim": {"claimName": claim}}
    return {"spec": {"containers": [container], "volumes": [volume]}}


@pytest.fixture
def long_job(operator: Kubernetes, namespace: str) -> Job:
    if operator.state is None:
        pytest.skip("kills processes of the node and of the API server")
    checkpoint = {"everySteps": 20, "keepLast": 2}
    job = Job.apply(operator, namespace, training("tough", steps=LONG, checkpoint=checkpoint))
    job.until_phase("Running")
    return job


@pytest.fixture
def open_node(operator: Kubernetes) -> Iterator[None]:
    yield
    operator("uncordon", NODE)


@pytest.mark.timeout(900)
def test_one_job_takes_all_faults(long_job: Job, open_node: None) -> None:
    job, attempts = long_job, dict.fromkeys(("scheduler", "trainer", "inference", "reward"), 0)
    attempts["environment"] = 0

    for role in attempts:
        _delete_pod(job, role)
        attempts[role] += 1
        job.until_running_with(role, attempts[role])
    assert job.restarts() == {}  # somebody took them away: no failure of theirs

    for role in ("trainer", "inference"):
        job.sigkill(role)
        attempts[role] += 1
        job.until_running_with(role, attempts[role])
        last = job.role(role)["lastFailure"]
        assert (last["exitCode"], job.role(role)["restarts"]) == (137, 1)

    before = job.uid("scheduler")
    job.sigkill("scheduler")
    job.until(
        "Running after its scheduler was restarted in place",
        lambda s: s["roles"]["scheduler"]["restarts"] == 1 and s["phase"] == "Running",
    )
    assert job.uid("scheduler") == before

    _kill_the_operator(job)
    _delete_pod(job, "reward")  # nobody is there to see it
    attempts["reward"] += 1
    job.until_running_with("reward", attempts["reward"])

    _restart_the_api_server(job.cluster)
    _delete_pod(job, "environment")
    attempts["environment"] += 1
    job.until_running_with("environment", attempts["environment"])

    _drain(job)
    for role in attempts:
        attempts[role] += 1
        job.until_running_with(role, attempts[role], 180)
    counted = {"trainer": 1, "inference": 1, "scheduler": 1}
    assert job.restarts() == counted

    job.patch({"suspend": True})
    job.until_phase("Suspended")
    assert job.pods() == {}
    status = job.status()
    assert status["checkpoint"] == status["step"] > 0
    steps = status["step"] + 5
    job.patch({"suspend": False, "steps": steps})
    job.until_phase("Succeeded", 240)
    status, found = job.status(), job.verified_ledger()
    assert (status["step"], found["steps"], found["trained"]) == (steps, steps, steps * 16)
    assert (found["problems"], found["lost"], found["trained_twice"]) == ([], 0, 0)
    assert job.restarts() == counted, status["roles"]


def _delete_pod(job: Job, role: str) -> None:
    before = job.uid(role)
    job.kubectl("delete", "pod", f"{job.name}-{role}-0", "--wait=false")
    eventually(f"{role} is another pod", lambda: job.uid(role) not in ("", before))


def _kill_the_operator(job: Job) -> None:
    """With SIGKILL, and its pod at once after it, so that the kubelet does not restart it in place."""
    pod = operator_pod(job.cluster)
    os.kill(process_of(job.cluster, pod), signal.SIGKILL)
    name = pod["metadata"]["name"]
    job.cluster("delete", "pod", name, "-n", OPERATOR_NAMESPACE, "--wait=false")


def _restart_the_api_server(cluster: Kubernetes) -> None:
    assert cluster.state is not None
    file = cluster.state.run / "kube-apiserver.pid"
    before = int(file.read_text().split()[0])
    os.kill(before, signal.SIGKILL)
    eventually("it is gone", lambda: not Path(f"/proc/{before}/exe").exists())
    roll_cluster("up")
    assert int(file.read_text().split()[0]) != before


def _drain(job: Job) -> None:
    """Everything has to leave the only node there is, the operator too."""
    before = {pod["metadata"]["uid"] for pod in job.pods().values()}
    operator = operator_pod(job.cluster)["metadata"]["uid"]
    job.cluster("drain", NODE, "--delete-emptydir-data", "--timeout=150s")
    assert operator_pod(job.cluster)["metadata"]["uid"] != operator
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in job.pods().values())
    job.cluster("uncordon", NODE)
