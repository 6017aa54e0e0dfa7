"""Checkpoints in an object store: no volume at all, and pods that have no disk in common."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from roll_cluster.settings import NODE_IP
from support.kubernetes import Kubernetes, eventually
from support.rljobs import Job, training
from support.s3 import S3Server


@pytest.fixture
def s3(operator: Kubernetes, tmp_path: Path) -> Iterator[S3Server]:
    if operator.state is None:
        pytest.skip("the S3 server of the tests is on this machine: a cluster elsewhere has none")
    server = S3Server(tmp_path / "s3", NODE_IP)
    server.start()
    yield server
    server.stop()


def test_two_trainer_pods_keep_their_checkpoints_in_a_bucket_and_come_back_from_it(
    operator: Kubernetes, namespace: str, s3: S3Server
) -> None:
    given = [f"--from-literal={name}={value}" for name, value in s3.env.items()]
    operator("create", "secret", "generic", "bucket", "-n", namespace, *given)
    container = {"name": "trainer", "envFrom": [{"secretRef": {"name": "bucket"}}]}
    trainer = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    roles = {role: {"replicas": 1} for role in ("inference", "reward", "environment")}
    manifest = training(
        "sums", steps=120, storage={"uri": "s3://bucket/team"}, roles={"trainer": trainer, **roles}
    )
    job = Job.apply(operator, namespace, manifest)

    def kept() -> list[str]:
        manifests = [name for name in s3.names("team/sums") if name.endswith("manifest.json")]
        return sorted(name.split("/")[2][:11] for name in manifests)

    # The status would tell of it some seconds later: a fast machine is at the end by then.
    eventually("a checkpoint", lambda: any(step > "step-000000" for step in kept()), 300)
    job.sigkill("trainer")
    assert json.loads(job.kubectl("get", "pvc", "-o", "json"))["items"] == []

    job.until_phase("Succeeded", 300)
    assert job.restarts() == {"trainer": 1}, job.status()["roles"]
    assert job.status()["checkpoint"] == 120
    assert kept() == ["step-000115", "step-000120"]
    assert any(name.endswith("rng-00001.pt") for name in s3.names("team/sums"))


def test_a_bucket_that_is_not_there_fails_the_job_with_one_sentence(
    operator: Kubernetes, namespace: str, s3: S3Server
) -> None:
    variables = s3.env
    trainer = {"replicas": 1, "env": variables}
    roles = {role: {"replicas": 1} for role in ("inference", "reward", "environment")}
    manifest = training(
        "lost", storage={"uri": "s3://nowhere/a"}, roles={"trainer": trainer, **roles}
    )
    operator.apply(manifest, namespace=namespace)
    job = Job(operator, namespace, "lost")
    operator.wait("jsonpath={.status.phase}=Failed", "rljob/lost", namespace=namespace, seconds=300)
    status = job.status()
    assert status["reason"] == "BadInput"
    assert status["message"].endswith("it goes on from the checkpoint before")
    assert "s3://nowhere/a: the bucket does not exist" in status["message"]
