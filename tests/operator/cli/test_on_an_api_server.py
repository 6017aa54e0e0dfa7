"""`roll submit` and `kubectl roll …` against a real API server; pods are played by the test."""

import base64
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from roll_cluster import ApiServer
from support.operator_world import JOB, World

pytestmark = pytest.mark.api_server

CRD = Path(__file__).resolve().parents[3] / "crds/rljobs.roll.dev.yaml"
FILE = """\
apiVersion: roll.dev/v1alpha1
kind: RLJob
metadata: {name: sums}
spec:
  steps: 40
  model: {path: "builtin:tiny-qwen2"}
  data: {train: {path: "data.jsonl"}}
  rewards: [{name: mine, scorer: {python: "rewards.py:score"}}]
  roles:
    trainer: {replicas: 1}
    inference: {replicas: 1}
    reward: {replicas: 1}
    environment: {replicas: 1}
"""
Said = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ApiServer(tmp_path_factory.mktemp("api")) as server:
        server.kubectl("apply", "--server-side", "-f", CRD)
        yield World(server)


@pytest.fixture
def namespace(world: World) -> str:
    return world.namespace(f"test-{uuid4().hex[:8]}")


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(FILE)
    (tmp_path / "rewards.py").write_text("def score(response):\n    return 1.0\n")
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    return tmp_path / "job.yaml"


def roll(world: World, *arguments: str | Path, kubeconfig: Path | None = None) -> Said:
    return subprocess.run(
        [sys.executable, "-m", "roll_operator.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"KUBECONFIG": str(kubeconfig or world.server.kubeconfig)},
    )


def sources(world: World, namespace: str) -> list[dict[str, Any]]:
    maps = world.all("configmaps", namespace)
    return [found for found in maps if "-source-" in found["metadata"]["name"]]


def set_phase(world: World, namespace: str, phase: str, **more: Any) -> None:
    path = f"{world.path('rljobs', namespace, 'sums')}/status"
    world.call("PATCH", path, {"status": {"phase": phase, **more}}, "merge")


def refused(said: Said, *words: str) -> None:
    """One line, no traceback, exit code 2."""
    assert said.returncode == 2, said
    assert said.stderr.startswith("error: "), said
    assert said.stderr.count("\n") == 1, said
    for word in words:
        assert word in said.stderr


def who_may(world: World, namespace: str, *kinds: tuple[str, str]) -> Path:
    """The kubeconfig of somebody who may do everything with these kinds, and nothing else."""
    somebody = world.server.folder / f"half-{namespace}"
    world.server.keys.kubeconfig(somebody, world.server.url, "half", "nobody")
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rules = [{"apiGroups": [group], "resources": [kind], "verbs": ["*"]} for group, kind in kinds]
    world.call("POST", f"{rbac}/roles", {"metadata": {"name": "half"}, "rules": rules})
    subject = {"kind": "User", "name": "half", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "Role", "name": "half", "apiGroup": "rbac.authorization.k8s.io"}
    binding = {"metadata": {"name": "half"}, "subjects": [subject], "roleRef": role}
    world.call("POST", f"{rbac}/rolebindings", binding)
    return somebody


def test_a_job_and_its_files_arrive_together(world: World, namespace: str, job_file: Path) -> None:
    said = roll(world, "submit", job_file, "-n", namespace)
    assert (said.returncode, said.stderr) == (0, "")
    assert "RLJob sums" in said.stdout
    assert "2 files go along" in said.stdout
    job = world.job(namespace, "sums")
    digest = job["metadata"]["annotations"]["roll.dev/source"]
    (source,) = sources(world, namespace)
    assert source["metadata"]["name"] == f"sums-source-{digest[:16]}"
    assert source["immutable"] is True
    (owner,) = source["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("RLJob", job["metadata"]["uid"])
    packed = base64.b64decode(source["binaryData"]["source.tar.gz"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert tar.getnames() == ["data.jsonl", "rewards.py"]


def test_submitting_again_changes_nothing(world: World, namespace: str, job_file: Path) -> None:
    assert roll(world, "submit", job_file, "-n", namespace).returncode == 0
    set_phase(world, namespace, "Running")
    before = world.job(namespace, "sums")["metadata"]["resourceVersion"]
    assert roll(world, "submit", job_file, "-n", namespace).returncode == 0
    assert world.job(namespace, "sums")["metadata"]["resourceVersion"] == before


def test_the_files_of_a_job_that_runs_are_not_changed(
    world: World, namespace: str, job_file: Path
) -> None:
    assert roll(world, "submit", job_file, "-n", namespace).returncode == 0
    before = sources(world, namespace)
    (job_file.parent / "rewards.py").write_text("def score(response):\n    return 0.5\n")
    set_phase(world, namespace, "Running")
    refused(roll(world, "submit", job_file, "-n", namespace), "sums is Running", "suspend")
    assert sources(world, namespace) == before
    set_phase(world, namespace, "Suspended")
    assert roll(world, "submit", job_file, "-n", namespace).returncode == 0
    (after,) = sources(world, namespace)
    assert after["metadata"]["name"] != before[0]["metadata"]["name"]
    annotations = world.job(namespace, "sums")["metadata"]["annotations"]
    assert after["metadata"]["name"].endswith(annotations["roll.dev/source"][:16])


def test_a_namesake_that_came_later_gets_files_of_its_own(
    world: World, namespace: str, job_file: Path
) -> None:
    """Nothing collects garbage here: the files of the first job are still there."""
    assert roll(world, "submit", job_file, "-n", namespace).returncode == 0
    world.delete("rljobs", namespace, "sums")
    assert roll(world, "submit", job_file, "-n", namespace).returncode == 0
    (source,) = sources(world, namespace)
    owners = [owner["uid"] for owner in source["metadata"]["ownerReferences"]]
    assert owners == [world.job(namespace, "sums")["metadata"]["uid"]]


def test_a_dry_run_sends_nothing(world: World, namespace: str, job_file: Path) -> None:
    said = roll(world, "submit", job_file, "-n", namespace, "--dry-run")
    assert said.returncode == 0
    assert "rewards.py" in said.stdout
    assert (world.all("rljobs", namespace), sources(world, namespace)) == ([], [])


def test_what_the_api_server_refuses_is_told_in_its_words(
    world: World, namespace: str, job_file: Path
) -> None:
    assert roll(world, "submit", job_file, "-n", namespace).returncode == 0
    set_phase(world, namespace, "Running")
    job_file.write_text(FILE.replace("steps: 40", "steps: 40\n  seed: 7"))
    refused(roll(world, "submit", job_file, "-n", namespace), "seed")


def test_two_namespaces_for_one_job_are_one_too_many(world: World, job_file: Path) -> None:
    job_file.write_text(FILE.replace("{name: sums}", "{name: sums, namespace: a}"))
    refused(roll(world, "submit", job_file, "-n", "b"), "says namespace a")


def test_a_namespace_that_is_not_there(world: World, job_file: Path) -> None:
    refused(roll(world, "submit", job_file, "-n", "nowhere"), 'namespaces "nowhere" not found')


@pytest.mark.parametrize(
    "command", [["status"], ["samples"], ["logs"], ["ledger", "verify"]], ids=" ".join
)
def test_a_job_that_is_not_there_is_one_line(
    world: World, namespace: str, command: list[str]
) -> None:
    refused(roll(world, *command, "sums", "-n", namespace), "no RLJob sums", namespace)


@pytest.mark.parametrize("command", ["status", "samples", "logs"])
def test_who_may_not_look_is_told_so(world: World, namespace: str, command: str) -> None:
    stranger = world.server.folder / "stranger"
    world.server.keys.kubeconfig(stranger, world.server.url, "stranger", "nobody")
    said = roll(world, command, "sums", "-n", namespace, kubeconfig=stranger)
    refused(said, "forbidden", "stranger")


def test_who_may_not_send_files_sends_no_job(world: World, namespace: str, job_file: Path) -> None:
    half = who_may(world, namespace, ("roll.dev", "rljobs"))
    said = roll(world, "submit", job_file, "-n", namespace, kubeconfig=half)
    refused(said, "forbidden", "configmaps")
    assert world.all("rljobs", namespace) == []


def test_a_cluster_without_the_operator_says_so(tmp_path: Path, job_file: Path) -> None:
    with ApiServer(tmp_path / "bare") as bare:
        for command in (["status", "sums"], ["submit", str(job_file)]):
            said = roll(World(bare), *command, "-n", "default")
            refused(said, "knows no RLJobs", "helm install")


def test_a_cluster_that_does_not_answer_is_one_line(world: World, tmp_path: Path) -> None:
    away = tmp_path / "away"
    world.server.keys.kubeconfig(away, "https://127.0.0.1:1", "roll-admin", "system:masters")
    refused(roll(world, "status", "sums", "-n", "default", kubeconfig=away), "does not answer")


@pytest.fixture
def running(world: World, namespace: str) -> str:
    """A job with pods, and a status as the operator writes it."""
    world.create("rljobs", namespace, JOB)
    status = {
        "ready": "trainer 1/1, inference 1/2, reward 1/1, environment 1/1",
        "step": 7,
        "progress": {"step": 7, "steps": 40},
        "checkpoint": 5,
        "reward": 0.25,
        "samples": {"trained": 1792, "perSecond": 99.5},
        "restarts": 1,
        "roles": {
            "trainer": {
                "restarts": 1,
                "lastFailure": {"uid": "u", "pod": "sums-trainer-0", "message": "a\nout of memory"},
            }
        },
        "pendingReason": "Unschedulable: sums-inference-1: 0/1 nodes are available",
        "conditions": [
            {"type": "LedgerLost", "status": "True", "reason": "LedgerLost", "message": "anew"},
            {"type": "Stalled", "status": "False", "reason": "Progressing"},
        ],
        "record": {"secret": 1},
    }
    set_phase(world, namespace, "Recovering", **status)
    uid = world.job(namespace, "sums")["metadata"]["uid"]
    for role, index, attempt in (("scheduler", 0, 0), ("trainer", 0, 1), ("inference", 1, 0)):
        world.create("pods", namespace, pod(uid, role, index, attempt))
    world.run_pod(namespace, "sums-trainer-0", "trainer")
    return namespace


def pod(uid: str, role: str, index: int, attempt: int) -> dict[str, Any]:
    owner = {"apiVersion": "roll.dev/v1alpha1", "kind": "RLJob", "name": "sums", "uid": uid}
    return {
        "metadata": {
            "name": f"sums-{role}-{index}",
            "labels": {
                "roll.dev/job": "sums",
                "roll.dev/role": role,
                "roll.dev/index": str(index),
                "roll.dev/attempt": str(attempt),
            },
            "ownerReferences": [owner | {"controller": True}],
        },
        "spec": {"nodeName": "far-away", "containers": [{"name": role, "image": "x"}]},
    }


def test_the_status_of_a_job_looks_like_that_of_a_run(world: World, running: str) -> None:
    text = roll(world, "status", "sums", "-n", running).stdout
    for line in (
        "phase      Recovering",
        "ready      trainer 1/1, inference 1/2, reward 1/1, environment 1/1",
        "step       7/40, checkpoint 5",
        "reward     0.250",
        "samples    1792 trained, 99.5/s, stale 0",
        "restarts   trainer 1",
        "pending    Unschedulable: sums-inference-1: 0/1 nodes are available",
        "condition  LedgerLost: anew",
        "failure    sums-trainer-0: ended: out of memory",
    ):
        assert line in text.splitlines(), text
    rows = [line.split() for line in text.splitlines() if line.startswith("sums-")]
    assert rows == [
        ["sums-inference-1", "far-away", "0", "starting"],
        ["sums-scheduler-0", "far-away", "0", "starting"],
        ["sums-trainer-0", "far-away", "1", "running"],
    ]
    document = json.loads(roll(world, "status", "sums", "-n", running, "-o", "json").stdout)
    assert (document["step"], document["running"]) == (7, True)
    assert "secret" not in json.dumps(document)


def test_a_job_that_no_operator_has_seen_says_so(world: World, namespace: str) -> None:
    world.create("rljobs", namespace, JOB)
    assert "no operator" in roll(world, "status", "sums", "-n", namespace).stdout


def test_a_scheduler_that_is_away_is_one_line(world: World, running: str) -> None:
    refused(roll(world, "samples", "sums", "-n", running), "sums-scheduler-0 is Pending")
    world.delete("pods", running, "sums-scheduler-0", gracePeriodSeconds=0)
    refused(roll(world, "samples", "sums", "-n", running), "sums-scheduler-0 is not there")


def test_a_node_that_does_not_answer_is_one_line(world: World, running: str) -> None:
    """The API server finds no kubelet to ask."""
    world.run_pod(running, "sums-scheduler-0", "scheduler")
    refused(roll(world, "samples", "sums", "-n", running), "pod sums-scheduler-0")
    refused(roll(world, "logs", "sums", "trainer-0", "-n", running))


def test_who_may_see_pods_and_not_their_logs_does_not_wait_for_them(
    world: World, running: str
) -> None:
    reader = who_may(world, running, ("roll.dev", "rljobs"), ("", "pods"))
    said = roll(world, "logs", "sums", "--follow", "-n", running, kubeconfig=reader)
    refused(said, "forbidden", "pods/log", '"half"')


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (["trainer-0.0"], ["trainer-0.1", "last words of trainer-0", "out of memory"]),
        (["critic-0"], ["no pod of sums fits critic-0", "inference-1.0, scheduler-0.0"]),
        (["--role", "reward"], ["no pod of sums fits reward"]),
    ],
    ids=["an attempt that is gone", "nobody", "a role without pods"],
)
def test_logs_of_nobody_name_those_that_exist(
    world: World, running: str, chosen: list[str], words: list[str]
) -> None:
    refused(roll(world, "logs", "sums", *chosen, "-n", running), *words)
