"""What the store keeps, whatever order news arrive in; and what a pod's manifest is understood as."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_api import JobStatus
from roll_operator.backends.kubernetes import PodFacts, read_pod, wants_log, with_log
from roll_operator.controller.cluster.acts import Acts
from roll_operator.controller.cluster.events import name_of
from roll_operator.controller.cluster.metrics import kind_of
from roll_operator.controller.cluster.proof import WatchProof
from roll_operator.controller.cluster.reading import read_job
from roll_operator.controller.cluster.settings import BadSettings, Settings
from roll_operator.controller.cluster.store import Store
from roll_operator.plan import Announce, Plan, PodPhase, Record, RemovePod
from support.operator_world import JOB

LATER = JOB["spec"]["roles"] | {
    "inference": {"engine": {"kind": "vllm"}},
    "trainer": {"strategy": {"kind": "fsdp2"}},
}


def manifest(uid: str = "u1", version: int = 1, **more: Any) -> dict[str, Any]:
    metadata = {
        "name": "sums-reward-0",
        "namespace": "ns",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": {
            "roll.dev/job": "sums",
            "roll.dev/role": "reward",
            "roll.dev/index": "0",
            "roll.dev/attempt": "2",
        },
        "annotations": {"roll.dev/spec-hash": "abc"},
        "ownerReferences": [{"kind": "RLJob", "uid": "job", "controller": True}],
    }
    return {
        "metadata": metadata | more.get("metadata", {}),
        "spec": more.get("spec", {}),
        "status": more.get("status", {"phase": "Pending"}),
    }


def facts(uid: str = "u1", version: int = 1, **more: Any) -> PodFacts:
    result = read_pod(manifest(uid, version, **more))
    assert result is not None
    return result


def ended(code: int, **more: Any) -> dict[str, Any]:
    state = {"exitCode": code, "reason": "Error", "finishedAt": "2026-01-01T00:00:09Z"}
    container = {"name": "reward", "state": {"terminated": state | more}, "restartCount": 0}
    return {"phase": "Failed", "containerStatuses": [container]}


@pytest.mark.parametrize(
    ("answer", "stays"),
    [
        ({"deletionTimestamp": "2026-01-01T00:00:09Z", "resourceVersion": "2"}, True),
        ({"resourceVersion": "2"}, False),
        ({"deletionTimestamp": "2026-01-01T00:00:09Z", "resourceVersion": ""}, False),
    ],
    ids=["it ends", "nothing held it", "another deleted it first"],
)
def test_a_deleted_pod_is_gone_when_the_answer_says_so(answer: dict[str, str], stays: bool) -> None:
    class Deleting:
        async def delete(self, *_: object) -> dict[str, Any]:
            left = manifest(metadata=answer)
            return {
                **left,
                "kind": "Pod",
                "metadata": {k: v for k, v in left["metadata"].items() if v},
            }

    store, more = Store(lambda key: None), {"namespace": "ns", "uid": "job", "resourceVersion": "1"}
    store.put_pod(facts())
    job = read_job({**JOB, "metadata": {**JOB["metadata"], **more}})
    acts = Acts(Deleting(), store, *[None] * 5)  # type: ignore[arg-type]  # only pods are touched
    asked = Plan((RemovePod("u1", "sums-reward-0"),), JobStatus(), Record(finished=True))
    assert job.job is not None
    asyncio.run(acts.carry_out(job, job.job, asked))
    assert bool(store.pods("ns/sums", "job")) == stays


def test_an_older_version_changes_nothing_and_is_no_news() -> None:
    news: list[str] = []
    store = Store(news.append)
    assert store.put_pod(facts(version=5, status={"phase": "Running"}))
    assert not store.put_pod(facts(version=4))
    assert not store.put_pod(facts(version=5))
    assert news == ["ns/sums"]
    assert store.pods("ns/sums", "job")[0].pod.phase is PodPhase.RUNNING


def test_pods_that_come_up_are_looked_at_soon_and_those_that_end_at_once() -> None:
    soon: list[str] = []
    at_once: list[str] = []
    store = Store(at_once.append, soon.append)
    store.put_pod(facts(version=1))
    store.put_pod(facts(version=2, spec={"nodeName": "n1"}))
    store.put_pod(facts(version=3, status={"phase": "Running"}))
    assert (len(soon), at_once) == (3, [])
    container = {"name": "reward", "restartCount": 1}
    again = {"phase": "Running", "containerStatuses": [container]}
    store.put_pod(facts(version=4, status=again))
    store.put_pod(facts(version=5, status=ended(1)))
    store.drop_pod("ns/sums", "u1")
    store.put_pod(facts("u2", version=6, status=again))
    assert (len(soon), len(at_once)) == (3, 4)


def test_a_deleted_pod_never_comes_back() -> None:
    store = Store(lambda key: None)
    store.put_pod(facts(version=5))
    store.drop_pod("ns/sums", "u1")
    assert not store.put_pod(facts(version=9))
    assert store.pods("ns/sums", "job") == []


@given(st.permutations([*range(1, 6), "deleted"]))
def test_any_order_of_news_ends_the_same(order: list[int | str]) -> None:
    store = Store(lambda key: None)
    for what in order:
        if what == "deleted":
            store.drop_pod("ns/sums", "u1")
        else:
            store.put_pod(facts(version=int(what)))
    assert store.pods("ns/sums", "job") == []


def test_pods_of_an_earlier_job_of_that_name_are_not_this_jobs() -> None:
    store = Store(lambda key: None)
    store.put_pod(facts())
    assert store.pods("ns/sums", "another job") == []


def test_a_node_that_is_lost_marks_its_pods_and_is_news_for_their_jobs() -> None:
    news: list[str] = []
    store = Store(news.append)
    store.put_pod(facts(spec={"nodeName": "n1"}))
    store.put_node("n1", ready=True)
    assert news == ["ns/sums"]
    store.put_node("n1", ready=False)
    assert news == ["ns/sums", "ns/sums"]
    assert not store.pods("ns/sums", "job")[0].pod.node_ready
    store.put_node("n1", ready=True)
    assert store.pods("ns/sums", "job")[0].pod.node_ready
    store.drop_node("n1")
    assert not store.pods("ns/sums", "job")[0].pod.node_ready


def test_nothing_is_kept_of_where_pods_once_were() -> None:
    news: list[str] = []
    store = Store(news.append)
    store.put_pod(facts(spec={"nodeName": "n1"}))
    store.drop_pod("ns/sums", "u1")
    news.clear()

    store.put_node("n1", ready=False)

    assert news == []


WAITING = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
CREATING = {"name": "reward", "state": {"waiting": {"reason": "ContainerCreating"}}}
INITIALIZING = {"name": "reward", "state": {"waiting": {"reason": "PodInitializing"}}}
UNBOUND = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, {"phase": PodPhase.PENDING, "attempt": 2, "spec_hash": "abc", "scheduled": False}),
        ({"status": {"phase": "Running"}}, {"phase": PodPhase.RUNNING}),
        (
            {
                "spec": {
                    "containers": [
                        {"name": "log", "image": "l:1"},
                        {"name": "reward", "image": "w:1"},
                    ]
                }
            },
            {"image": "w:1"},
        ),
        ({"status": ended(1)}, {"phase": PodPhase.EXITED, "exit_code": 1, "reasons": ("Error",)}),
        (
            {"status": ended(137, reason="OOMKilled")},
            {"exit_code": 137, "reasons": ("OOMKilled",), "ended_at": 1767225609.0},
        ),
        (
            {"status": ended(1) | {"phase": "Running"}, "spec": {"restartPolicy": "Never"}},
            {"phase": PodPhase.EXITED, "exit_code": 1, "lingers": True},
        ),
        (
            {"status": ended(1) | {"phase": "Pending"}, "spec": {"restartPolicy": "Never"}},
            {"phase": PodPhase.EXITED, "lingers": True},
        ),
        (
            {"status": ended(1) | {"phase": "Running"}, "spec": {"restartPolicy": "Always"}},
            {"phase": PodPhase.RUNNING, "lingers": False},
        ),
        (
            {
                "metadata": {"deletionTimestamp": "2026-01-01T00:00:09Z"},
                "status": ended(1) | {"phase": "Running"},
                "spec": {"restartPolicy": "Never"},
            },
            {"phase": PodPhase.STOPPING, "lingers": False},
        ),
        (
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:09Z"}},
            {"phase": PodPhase.STOPPING, "deletion_at": 1767225609.0},
        ),
        (
            {"status": {"phase": "Failed", "reason": "Evicted", "message": "disk is full"}},
            {"phase": PodPhase.EXITED, "disrupted": True, "message": "disk is full", "ran": False},
        ),
        ({"status": ended(1, startedAt="2026-01-01T00:00:01Z")}, {"ran": True}),
        (
            {"status": ended(128, reason="StartError", startedAt="1970-01-01T00:00:00Z")},
            {"ran": False, "reasons": ("StartError",)},
        ),
        (
            {
                "status": ended(143)
                | {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "E"}]}
            },
            {"disrupted": True, "reasons": ("E", "Error")},
        ),
        (
            {"status": {"containerStatuses": [{"name": "reward", **WAITING}]}},
            {"pending": ("ImagePullBackOff", "no such image")},
        ),
        (
            {"status": {"containerStatuses": [{"name": "log", **WAITING}, CREATING]}},
            {"pending": ("ImagePullBackOff", "no such image")},
        ),
        (
            {
                "status": {
                    "initContainerStatuses": [{"name": "first", **WAITING}],
                    "containerStatuses": [INITIALIZING, INITIALIZING | {"name": "log"}],
                }
            },
            {"pending": ("ImagePullBackOff", "no such image")},
        ),
        (
            {
                "status": {
                    "initContainerStatuses": [{"name": "first", **WAITING}],
                    "containerStatuses": [
                        {"name": "log", **WAITING},
                        {"name": "reward", "state": {"waiting": {"reason": "InvalidImageName"}}},
                    ],
                }
            },
            {"pending": ("InvalidImageName", "")},
        ),
        ({"status": {"containerStatuses": [CREATING]}}, {"pending": None}),
        (
            {"status": {"conditions": [UNSCHEDULABLE | {"message": "0/3 nodes"}]}},
            {"pending": ("Unschedulable", "0/3 nodes"), "scheduled": False},
        ),
        (
            {"status": {"conditions": [UNSCHEDULABLE | {"message": UNBOUND}]}},
            {"pending": ("Volume", UNBOUND), "scheduled": False},
        ),
        ({"status": {"startTime": "not a time"}}, {"started_at": 0.0}),
        ({"status": {}}, {"phase": PodPhase.PENDING}),
    ],
)
def test_a_pods_manifest_is_understood(more: dict[str, Any], told: dict[str, Any]) -> None:
    pod = facts(**more).pod
    assert {key: getattr(pod, key) for key in told} == told


def test_a_restart_in_place_tells_how_the_last_one_ended() -> None:
    last = {"terminated": {"exitCode": 1, "reason": "Error", "message": "disk full"}}
    container = {
        "name": "reward",
        "restartCount": 3,
        "state": {"running": {}},
        "lastState": last,
    }
    pod = facts(status={"phase": "Running", "containerStatuses": [container]}).pod
    assert (pod.phase, pod.restarts, pod.exit_code) == (PodPhase.RUNNING, 3, 1)
    assert pod.message == "disk full"


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (ended(1), True),
        (ended(0), False),
        (ended(1, message="said it already"), False),
        ({"phase": "Failed", "reason": "Evicted"}, False),
        ({"phase": "Running"}, False),
    ],
)
def test_the_log_is_read_once_where_it_tells_something(
    status: dict[str, Any], wanted: bool
) -> None:
    pod = facts(status=status)
    assert wants_log(pod) == wanted
    assert not wants_log(with_log(pod, "Traceback …"))
    assert not wants_log(with_log(pod, ""))


@pytest.mark.parametrize("field", ["ownerReferences", "labels"])
def test_a_pod_that_is_no_jobs_is_passed_over(field: str) -> None:
    foreign = manifest()
    foreign["metadata"][field] = None
    assert read_pod(foreign) is None


def stored(version: int = 1, **more: Any) -> dict[str, Any]:
    metadata = {"namespace": "ns", "uid": "job", "resourceVersion": str(version), "generation": 1}
    metadata["managedFields"] = [{"manager": "x"}]
    return {**JOB, "metadata": JOB["metadata"] | metadata, **more}


def test_an_unchanged_spec_is_not_read_again() -> None:
    first = read_job(stored())
    second = read_job(stored(2, status={"phase": "Running"}), first)
    assert second.job is first.job and first.job is not None
    assert second.status is not None and second.status.phase == "Running"
    assert "managedFields" not in (first.job.metadata.model_extra or {})


def test_each_transition_between_two_writes_is_an_event_of_its_own() -> None:
    running = Announce("Normal", "Running", "all pods are ready")
    entry = read_job(stored())
    first, second = name_of(entry, running), name_of(entry, running)
    assert second != first
    assert name_of(read_job(stored()), running) == first, "the next operator's"
    assert name_of(read_job(stored(2)), running) not in (first, second)


@pytest.mark.parametrize(
    ("written", "kept"),
    [({}, True), ({"restarts": {"reward": 1}}, True), ({"restarts": {"reward": 2}}, False)],
    ids=["of another part", "the own write", "of another record"],
)
def test_what_is_to_be_told_outlives_news_of_the_job(written: dict[str, Any], kept: bool) -> None:
    store = Store(lambda key: None)
    before = read_job(stored())
    store.put_job(before)
    before.ahead = JobStatus(), Record(restarts={"reward": 1})
    before.untold.append(Announce("Warning", "PodRestart", "sums-reward-0: Crashed"))
    after = read_job(stored(2, status={"record": written}))
    store.put_job(after)
    assert bool(after.untold) == kept, "a plan from another record says it again"
    before.untold.clear()
    assert not after.untold, "told when the answer to the write came, and not again"


@pytest.mark.parametrize(
    ("more", "said", "reason"),
    [
        ({"spec": {}}, "spec.model", "CannotBeRead"),
        ({"spec": {**JOB["spec"], "steps": "many"}}, "spec.steps", "CannotBeRead"),
        ({"status": {"record": {"scopes": 7}}}, "record", "CannotBeRead"),
        (
            {"spec": {**JOB["spec"], "pipeline": "SFT"}},
            "pipeline: SFT is not supported yet, RLVR and Agentic are",
            "NotSupported",
        ),
        (
            {"spec": {**JOB["spec"], "roles": LATER}},
            "roles.inference.engine.kind: vllm is not supported yet, transformers is; "
            "roles.trainer.strategy.kind: fsdp2 is not supported yet, torch is",
            "NotSupported",
        ),
    ],
)
def test_a_job_that_cannot_be_run_is_kept_with_the_reason(
    more: dict[str, Any], said: str, reason: str
) -> None:
    entry = read_job(stored(**more))
    assert entry.job is None and said in entry.problem
    assert entry.reason == reason
    assert read_job(stored(2), entry).job is not None, "mended"


@pytest.mark.parametrize("spec", [{"steps": "many"}, {**JOB["spec"], "pipeline": "SFT"}])
def test_what_is_wrong_with_a_job_of_another_controller_is_not_said_here(
    spec: dict[str, Any],
) -> None:
    theirs = {**spec, "managedBy": "kueue.x-k8s.io/multikueue"}
    entry = read_job(stored(spec=theirs))
    assert not entry.managed
    assert entry.problem == ""
    assert read_job(stored(spec=spec | {"managedBy": "roll.dev/operator"})).problem != ""


def test_a_run_under_way_goes_on_although_its_job_now_asks_for_what_is_not_there_yet() -> None:
    status = {"phase": "Running", "record": {"spec_hash": "of-the-run"}}
    spec = {**JOB["spec"], "roles": LATER}
    entry = read_job(stored(2, spec=spec, status=status))
    assert entry.job is not None and not entry.problem
    status["record"]["finished"] = True  # type: ignore[index]
    assert read_job(stored(3, spec=spec, status=status)).reason == "NotSupported"


def test_own_writes_that_do_not_come_back_prove_that_a_watch_is_dead() -> None:
    now = [0.0]
    proof = WatchProof(lambda: now[0])
    proof.expect("a", 7)
    now[0] = 50.0
    assert proof.overdue() == 50.0
    proof.seen("a", 6)
    assert proof.overdue() == 50.0
    proof.seen("a", 7)
    assert proof.overdue() == 0.0
    proof.expect("a", 7)
    assert proof.overdue() == 0.0, "the event was faster than the answer"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/api/v1/namespaces/ns/pods", "pods"),
        ("/api/v1/namespaces/ns/pods/p/log", "pods/log"),
        ("/api/v1/pods", "pods"),
        ("/apis/roll.dev/v1alpha1/namespaces/ns/rljobs/sums/status", "rljobs/status"),
        ("/apis", "apis"),
        ("/apis/scheduling.k8s.io/v1", "apis"),
        ("/openid/v1/jwks", "jwks"),
    ],
)
def test_calls_are_counted_by_kind_not_by_name(path: str, kind: str) -> None:
    assert kind_of(path) == kind


def test_all_that_is_wrong_with_the_environment_is_said_at_once() -> None:
    env = {"ROLL_QPS": "fast", "ROLL_METRICS_PORT": "http", "ROLL_IMAGE_PULL_POLICY": "Maybe"}
    with pytest.raises(BadSettings) as caught:
        Settings.read(env)
    for name in (*env, "ROLL_OPERATOR_NAMESPACE", "ROLL_OPERATOR_IMAGE", "ROLL_WORKER_IMAGE"):
        assert name in str(caught.value)
