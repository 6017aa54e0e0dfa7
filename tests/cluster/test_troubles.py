"""What docs/troubleshooting.md tells of, provoked: each symptom as a user sees it, and the way out of it."""

import json

import pytest
from support.kubernetes import Kubernetes, Manifest, eventually, roll
from support.rljobs import ROLES, Job, waiting


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
