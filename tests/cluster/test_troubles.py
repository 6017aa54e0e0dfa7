"""What docs/troubleshooting.md tells of, provoked: each symptom as a user sees it, and the way out of it."""

import json
from pathlib import Path

import pytest
from support.kubernetes import Kubernetes, Manifest, eventually, roll
from support.rljobs import ROLES, Job, training, waiting

LONG = 1_000_000
"""Steps of a job that is still at work when the test is over."""


def condition(job: Job, kind: str) -> tuple[str, str]:
    """Whether it holds, and its message."""
    told = {c["type"]: c for c in job.status().get("conditions", [])}
    found = told.get(kind, {"status": "", "message": ""})
    return found["status"], found["message"]


def pending(job: Job, start: str) -> str:
    """The reason that begins so, as soon as it is told."""
    job.until(start, lambda status: status.get("pendingReason", "").startswith(start))
    said = roll(job.cluster, "status", job.name, "-n", job.namespace)
    assert said.returncode == 0, said.stderr
    return " ".join(said.stdout.split())


def until_failed(job: Job, reason: str) -> Manifest:
    eventually(f"Failed: {reason}", lambda: job.status().get("reason") == reason, 90)
    status = job.status()
    assert status["phase"] == "Failed"
    return status


def test_a_container_beyond_its_memory_is_told_as_such(
    operator: Kubernetes, namespace: str
) -> None:
    hungry = {"reward": ["python", "-c", "held = bytearray(10**9)"]}
    limit = {"reward": {"resources": {"limits": {"memory": "64Mi"}}}}
    policy = {"maxRestarts": 0}
    job = Job.apply(operator, namespace, waiting("sums", hungry, roles=limit, failurePolicy=policy))
    status = until_failed(job, "RestartsExhausted")
    last = status["roles"]["reward"]["lastFailure"]
    assert (last["reason"], last["exitCode"]) == ("OOMKilled", 137)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("activeDeadlineSeconds", "DeadlineExceeded"),
        ("preRunningDeadlineSeconds", "NotReadyInTime"),
    ],
)
def test_a_deadline_ends_the_job(
    operator: Kubernetes, namespace: str, key: str, reason: str
) -> None:
    job = Job.apply(operator, namespace, waiting("sums", runPolicy={key: 5}))
    status = until_failed(job, reason)
    assert f"runPolicy.{key}" in status["message"] and "5 s" in status["message"]
    eventually(
        "no pod runs",
        lambda: all(p["status"]["phase"] in ("Failed", "Succeeded") for p in job.pods().values()),
    )


def test_bad_input_ends_the_job_until_it_is_started_again(
    operator: Kubernetes, namespace: str
) -> None:
    words = "there is no data set builtin:nothing"
    bad = {"environment": ["bash", "-c", f"echo {words} >&2; exit 2"]}
    job = Job.apply(operator, namespace, waiting("sums", bad))
    assert words in until_failed(job, "BadInput")["message"]
    assert job.restarts() == {}
    first = job.status()["roles"]["environment"]["lastFailure"]["uid"]
    job.patch({"restart": {"id": "again"}})
    eventually(
        "it is tried again",
        lambda: job.role("environment").get("lastFailure", {}).get("uid") not in (None, first),
    )
    until_failed(job, "BadInput")


def test_a_quota_is_told_and_the_job_goes_on_when_it_is_raised(
    operator: Kubernetes, namespace: str
) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {"pods": "2"}},
    }
    operator.apply(quota, namespace=namespace)
    eventually("it counts", lambda: operator.get("quota", "few", "-n", namespace)["status"])
    job = Job.apply(operator, namespace, waiting("sums"))
    assert "exceeded quota: few" in pending(job, "Quota: sums-")
    raised = json.dumps({"spec": {"hard": {"pods": "9"}}})
    job.kubectl("patch", "quota", "few", "--type=merge", "-p", raised)
    job.until_pods_run(5)


def test_a_claim_that_is_not_bound_is_told(operator: Kubernetes, namespace: str) -> None:
    storage = {"size": "1Gi", "ledger": "EmptyDir", "storageClass": "no-such-class"}
    job = Job.apply(operator, namespace, waiting("sums", storage=storage))
    assert "PersistentVolumeClaim" in pending(job, "Volume: sums-trainer-0:")


def test_a_job_that_a_queue_holds_back_says_so_until_it_is_admitted(
    operator: Kubernetes, namespace: str
) -> None:
    """The gate is what Kueue's webhook would add, and what its controller would take away."""
    gated = {"template": {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}}}
    queue = {"queue": "team", "gang": "Never"}
    job = Job.apply(
        operator, namespace, waiting("sums", roles=dict.fromkeys(ROLES, gated), scheduling=queue)
    )
    eventually("Queued", lambda: condition(job, "Queued")[0] == "True")
    assert "sums-trainer-0" in condition(job, "Queued")[1]
    admit = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])
    for role in ROLES:
        job.kubectl("patch", "pod", f"sums-{role}-0", "--type=json", "-p", admit)
    job.until_pods_run(5)
    eventually("Admitted", lambda: condition(job, "Queued")[0] == "False")


def test_a_change_that_running_pods_cannot_take_up_waits_for_a_suspension(
    operator: Kubernetes, namespace: str
) -> None:
    job = Job.apply(operator, namespace, waiting("sums"))
    job.until_pods_run(5)
    before = job.uid("reward")
    label = {"metadata": {"labels": {"team": "blue"}}}
    job.patch({"roles": {"reward": {"template": label}}})
    eventually("told", lambda: condition(job, "SpecChangePending")[0] == "True")
    assert "suspend: true" in condition(job, "SpecChangePending")[1]
    assert job.uid("reward") == before
    job.patch({"suspend": True})
    job.until_phase("Suspended")
    job.patch({"suspend": False})
    job.until_pods_run(5)
    assert job.pod("reward")["metadata"]["labels"]["team"] == "blue"
    eventually("taken up", lambda: condition(job, "SpecChangePending")[0] == "False")


def test_a_job_that_stands_still_says_who_holds_it_up(
    operator: Kubernetes, namespace: str, tmp_path: Path
) -> None:
    """All pods serve, and one of them does not come to an end with what it was given."""
    scorer = {"python": "rewards.py:score", "timeoutSeconds": 3000.0}
    manifest = training("sums", steps=LONG, rewards=[{"name": "slow", "scorer": scorer}])
    manifest["spec"]["rollout"]["retry"]["noProgressSeconds"] = 3000
    manifest["spec"]["runPolicy"] = {"progressDeadlineSeconds": 10}
    (tmp_path / "job.yaml").write_text(json.dumps(manifest))
    slow = "import time\n\n\ndef score(response: str) -> float:\n    time.sleep(3000)\n    return 0.0\n"
    (tmp_path / "rewards.py").write_text(slow)
    said = roll(operator, "submit", tmp_path / "job.yaml", "-n", namespace)
    assert said.returncode == 0, said.stderr
    job = Job(operator, namespace, "sums")
    job.until("counted", lambda status: status.get("restarts", 0) > 0, 180)
    last = job.role("reward")["lastFailure"]
    assert (last["pod"], last["reason"]) == ("sums-reward-0", "Stalled")
    assert "no token, sample or step for 10 s: reward pod sums-reward-0 has held sample" in str(
        last["message"]
    )
    events = operator.get("events", "-n", namespace)["items"]
    told = [event["reason"] for event in events if event["involvedObject"]["kind"] == "RLJob"]
    assert "Stalled" in told


def test_a_job_whose_ledger_is_lost_goes_on_from_its_checkpoint(
    operator: Kubernetes, namespace: str
) -> None:
    storage = {"size": "1Gi", "ledger": "EmptyDir"}
    job = Job.apply(operator, namespace, training("sums", steps=LONG, storage=storage))
    job.until("has a checkpoint", lambda status: status.get("checkpoint", 0) > 0, 180)
    job.kubectl("delete", "pod", "sums-scheduler-0", "--wait=false")
    eventually("LedgerLost", lambda: condition(job, "LedgerLost")[0] == "True", 120)
    # The new ledger knows of none until the trainer has saved what it goes on from.
    job.until("has one again", lambda status: status.get("checkpoint", 0) > 0)
    kept = job.status()["checkpoint"]
    job.until(
        "trains beyond its checkpoint",
        lambda status: status["phase"] == "Running" and status["checkpoint"] > kept,
    )
    assert job.restarts() == {"trainer": 1}  # it was beyond the checkpoint from which all go on
