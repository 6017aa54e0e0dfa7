"""An RLJob becomes its objects on a real API server, and stays what it should be."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from roll_operator.backends.kubernetes import owner_of
from support.api_proxy import Answer, Call, Proxy
from support.minted import Pair
from support.operator_world import (
    KINDS,
    PLACES,
    Kubelet,
    Start,
    World,
    eventually,
    names,
    rights,
)


def pods(world: World, namespace: str) -> list[dict[str, Any]]:
    return [p for p in world.all("pods", namespace) if "deletionTimestamp" not in p["metadata"]]


def all_there(world: World, namespace: str) -> bool:
    return names(pods(world, namespace)) == PLACES


def test_a_job_becomes_its_objects_which_all_belong_to_it(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    operator()
    uid = world.create("rljobs", namespace, job)["metadata"]["uid"]
    eventually("all pods", lambda: all_there(world, namespace))
    found = {kind: world.all(kind, namespace) for kind in KINDS if kind not in ("rljobs", "events")}
    assert names(found["services"]) == ["sums"]
    assert names(found["serviceaccounts"]) == ["default", "sums"]
    assert names(found["networkpolicies"]) == ["sums"]
    assert names(found["persistentvolumeclaims"]) == ["sums-ledger", "sums-storage"]
    assert names(found["poddisruptionbudgets"]) == ["sums-inference"]
    assert names(found["podgroups"]) == ["sums.6"]
    spec, trust = names(found["configmaps"])
    assert spec.startswith("sums-spec-") and trust == "sums-trust"
    (secret,) = names(found["secrets"])
    assert secret.startswith("sums-tls-")
    for manifests in found.values():
        for manifest in manifests:
            if manifest["metadata"]["name"] != "default":
                assert owner_of(manifest) == uid, manifest["metadata"]["name"]
    scheduler = next(p for p in found["pods"] if p["metadata"]["name"] == "sums-scheduler-0")
    mounted = [v["secret"]["secretName"] for v in scheduler["spec"]["volumes"] if "secret" in v]
    assert mounted == [secret]
    status = eventually("a status", lambda: world.job(namespace, "sums").get("status"))
    assert status["phase"] in ("Pending", "Starting")


@pytest.mark.parametrize("phase", ["Failed", "Running"], ids=["alone", "beside a side-car"])
def test_a_pod_that_fails_is_counted_once_and_replaced_with_its_last_words(
    world: World, namespace: str, operator: Start, job: dict[str, Any], phase: str
) -> None:
    operator()
    world.create("rljobs", namespace, job)
    with Kubelet(world, namespace):
        eventually("all pods", lambda: all_there(world, namespace))
        before = world.get("pods", namespace, "sums-reward-0")
        eventually(
            "all run",
            lambda: all(p["status"]["phase"] == "Running" for p in pods(world, namespace)),
        )
        said = "the scorer is broken"
        world.end_pod(namespace, "sums-reward-0", "reward", 1, said, phase=phase)

        def replaced() -> bool:
            pod = world.get("pods", namespace, "sums-reward-0")
            return bool(pod["metadata"]["uid"] != before["metadata"]["uid"])

        eventually("a replacement", replaced)
    after = world.get("pods", namespace, "sums-reward-0")
    assert after["metadata"]["labels"]["roll.dev/attempt"] == "1"
    status = world.job(namespace, "sums")["status"]
    assert status["restarts"] == 1
    failure = status["roles"]["reward"]["lastFailure"]
    assert (failure["uid"], failure["exitCode"]) == (before["metadata"]["uid"], 1)
    assert failure["message"] == "the scorer is broken"
    told = eventually(
        "an Event",
        lambda: [e for e in world.events(namespace) if "sums-reward-0" in e["message"]],
    )
    assert len(told) == 1, told


def test_what_changes_while_running_follows_the_spec(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    operator()
    world.create("rljobs", namespace, job)
    eventually("all pods", lambda: all_there(world, namespace))
    world.merge("rljobs", namespace, "sums", {"spec": {"roles": {"inference": {"replicas": 4}}}})
    eventually("four inference pods", lambda: "sums-inference-3" in names(pods(world, namespace)))
    eventually(
        "the budget",
        lambda: (
            world.get("poddisruptionbudgets", namespace, "sums-inference")["spec"]["minAvailable"]
            == 3
        ),
    )
    world.merge("rljobs", namespace, "sums", {"spec": {"roles": {"inference": {"replicas": 1}}}})
    eventually(
        "one inference pod",
        lambda: (
            [n for n in names(world.all("pods", namespace)) if "inference" in n]
            == ["sums-inference-0"]
        ),
    )
    eventually("no budget", lambda: not world.all("poddisruptionbudgets", namespace))
    status = eventually("a status", lambda: world.job(namespace, "sums")["status"])
    assert status["restarts"] == 0


def test_an_operator_that_was_rolled_back_leaves_the_pods_of_a_newer_one_alone(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    newer = operator()
    world.create("rljobs", namespace, job)
    eventually("all pods", lambda: all_there(world, namespace))
    record = eventually("a record", lambda: world.job(namespace, "sums")["status"]["record"])
    newer.stop()
    told = world.get("configmaps", namespace, f"sums-spec-{record['spec_hash']}")
    document = json.loads(told["data"]["job.json"])
    document["spec"] |= {"ofTomorrow": True}
    name = {"name": "sums-spec-tomorrow", "ownerReferences": told["metadata"]["ownerReferences"]}
    body = {"metadata": name, "immutable": True, "data": {"job.json": json.dumps(document)}}
    world.create("configmaps", namespace, body)
    annotations = {"annotations": {"roll.dev/spec-hash": "tomorrow"}}
    for pod in PLACES:
        world.merge("pods", namespace, pod, {"metadata": annotations})
    status = {"status": {"record": {"spec_hash": "tomorrow"}}}
    world.call("PATCH", f"{world.path('rljobs', namespace, 'sums')}/status", status, "merge")
    before = {p["metadata"]["name"]: p["metadata"]["uid"] for p in pods(world, namespace)}

    operator()
    world.merge("rljobs", namespace, "sums", {"spec": {"roles": {"inference": {"replicas": 3}}}})
    eventually("one more pod", lambda: "sums-inference-2" in names(pods(world, namespace)))
    after = {p["metadata"]["name"]: p["metadata"]["uid"] for p in pods(world, namespace)}
    after.pop("sums-inference-2")
    assert after == before
    assert world.job(namespace, "sums")["status"]["record"]["spec_hash"] == "tomorrow"


def test_a_run_keeps_its_images_when_the_operator_is_upgraded_until_it_is_suspended(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    def images() -> set[str]:
        return {p["spec"]["containers"][0]["image"] for p in pods(world, namespace)}

    first = operator(ROLL_OPERATOR_IMAGE="operator:1", ROLL_WORKER_IMAGE="worker:1")
    world.create("rljobs", namespace, job)
    eventually("all pods", lambda: all_there(world, namespace))
    record = eventually("a record", lambda: world.job(namespace, "sums")["status"]["record"])
    assert (record["scheduler_image"], record["worker_image"]) == ("operator:1", "worker:1")
    first.stop()

    operator(ROLL_OPERATOR_IMAGE="operator:2", ROLL_WORKER_IMAGE="worker:2")
    taken = {"sums-scheduler-0", "sums-reward-0"}
    old = {world.get("pods", namespace, name)["metadata"]["uid"] for name in taken}
    for name in taken:
        world.delete("pods", namespace, name)
    eventually("the replaced ones", lambda: all_there(world, namespace))
    assert not old & {p["metadata"]["uid"] for p in pods(world, namespace)}
    assert images() == {"operator:1", "worker:1"}

    world.merge("rljobs", namespace, "sums", {"spec": {"suspend": True}})
    eventually("no pods", lambda: not world.all("pods", namespace))
    world.merge("rljobs", namespace, "sums", {"spec": {"suspend": False}})
    eventually("all pods again", lambda: all_there(world, namespace))
    assert images() == {"operator:2", "worker:2"}


def test_suspend_removes_the_pods_and_resume_brings_them_back(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    operator()
    world.create("rljobs", namespace, job)
    eventually("all pods", lambda: all_there(world, namespace))
    world.merge("rljobs", namespace, "sums", {"spec": {"suspend": True}})
    eventually(
        "suspended",
        lambda: (
            not world.all("pods", namespace)
            and world.job(namespace, "sums")["status"]["phase"] == "Suspended"
        ),
    )
    world.merge("rljobs", namespace, "sums", {"spec": {"suspend": False}})
    eventually("all pods again", lambda: all_there(world, namespace))
    status = eventually("a status", lambda: world.job(namespace, "sums")["status"])
    assert status["restarts"] == 0


def test_a_stranger_with_the_name_of_a_pod_is_left_alone(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    container = {"name": "c", "image": "c"}
    stranger = world.create(
        "pods",
        namespace,
        {"metadata": {"name": "sums-reward-0"}, "spec": {"containers": [container]}},
    )
    operator()
    world.create("rljobs", namespace, job)
    eventually(
        "the reason",
        lambda: "sums-reward-0" in world.job(namespace, "sums")["status"]["pendingReason"],
    )
    kept = world.get("pods", namespace, "sums-reward-0")
    assert kept["metadata"]["uid"] == stranger["metadata"]["uid"]
    world.delete("pods", namespace, "sums-reward-0", gracePeriodSeconds=0)
    eventually("all pods", lambda: all_there(world, namespace))


def test_an_object_that_is_refused_while_no_pod_waits_for_it_is_told(
    world: World, proxy: Proxy, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    operator()
    world.create("rljobs", namespace, job)
    with Kubelet(world, namespace):
        eventually("all pods", lambda: all_there(world, namespace))
        words = 'poddisruptionbudgets.policy "sums-inference" is forbidden'
        no = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": words}

        def forbid(call: Call) -> Answer | None:
            theirs = call.is_write and "/poddisruptionbudgets" in call.path
            return Answer(403, json.dumps(no)) if theirs else None

        proxy.before = forbid
        one = {"spec": {"roles": {"inference": {"replicas": 1}}}}
        world.merge("rljobs", namespace, "sums", one)

        def told() -> tuple[str, str]:
            status = world.job(namespace, "sums")["status"]
            scheduled = {c["type"]: c["status"] for c in status["conditions"]}["PodsScheduled"]
            return status["pendingReason"], scheduled

        eventually("the reason", lambda: told() == (f"Refused: sums: {words}", "True"))
        proxy.before = lambda call: None
        eventually("no budget", lambda: not world.all("poddisruptionbudgets", namespace))
        eventually("no reason", lambda: told() == ("", "True"))
    assert [e["message"] for e in world.events(namespace)] == [f"sums: {words}"]


def test_a_job_that_cannot_be_read_or_run_says_so_once_and_stops_nobody(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    later = copy.deepcopy(job)
    later["metadata"]["name"] = "later"
    later["spec"]["roles"]["inference"]["engine"] = {"kind": "vllm"}
    world.create("rljobs", namespace, later)
    job["metadata"]["name"] = "broken"
    world.create("rljobs", namespace, job)
    path = f"{world.path('rljobs', namespace, 'broken')}/status"
    world.call("PATCH", path, {"status": {"record": {"scopes": 7}}}, "merge")
    job["metadata"]["name"] = "sums"
    world.create("rljobs", namespace, job)
    running = operator()
    eventually("the sound job", lambda: set(PLACES) <= set(names(pods(world, namespace))))

    def told(name: str = "broken") -> list[tuple[str, str]]:
        conditions = world.job(namespace, name).get("status", {}).get("conditions", [])
        return [
            (c["reason"], c["message"])
            for c in conditions
            if c["type"] == "Invalid" and c["status"] == "True"
        ]

    eventually("the condition", told)
    assert told()[0][0] == "CannotBeRead" and "record" in told()[0][1]
    eventually("the other condition", lambda: told("later"))
    key = "roles.inference.engine.kind"
    assert told("later") == [("NotSupported", f"{key}: vllm is not supported yet, transformers is")]
    assert names(pods(world, namespace)) == PLACES
    events = [e for e in world.events(namespace) if e["involvedObject"]["name"] == "broken"]
    assert [e["reason"] for e in events] == ["Invalid"]
    assert running.alive()
    world.call("PATCH", path, {"status": {"record": None}}, "merge")
    eventually("its pods", lambda: "broken-trainer-0" in names(pods(world, namespace)))
    eventually("nothing is wrong any more", lambda: not told())


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"spec": {"nodeSelektor": {"a": "b"}}}, 'unknown field "spec.nodeSelektor"'),
        ({"spec": {"nodeSelector": ["a"]}}, "nodeSelector"),
        ({"sepc": {}}, "roles.reward.template.sepc: a pod template has metadata and spec only"),
        (
            {"spec": {"containers": [{"name": {"a": 1}}]}},
            "roles.reward.template.spec.containers[0].name: a text or a number is expected, not {'a': 1}",
        ),
    ],
)
def test_what_is_wrong_with_a_template_is_told_and_heals_with_it(
    world: World,
    namespace: str,
    operator: Start,
    job: dict[str, Any],
    template: dict[str, Any],
    words: str,
) -> None:
    operator()
    job["spec"]["roles"]["reward"]["template"] = template
    world.create("rljobs", namespace, job)
    told = eventually(
        "the reason", lambda: world.job(namespace, "sums").get("status", {}).get("pendingReason")
    )
    assert told.startswith("Refused: sums-reward-0: ") and words in told, told
    eventually("the others", lambda: len(pods(world, namespace)) == len(PLACES) - 1)
    warned = eventually("an Event", lambda: world.events(namespace))
    assert [(e["type"], e["reason"]) for e in warned] == [("Warning", "Refused")]
    world.merge("rljobs", namespace, "sums", {"spec": {"suspend": True}})
    eventually("no pods", lambda: not world.all("pods", namespace))
    mended = {"suspend": False, "roles": {"reward": {"template": None}}}
    world.merge("rljobs", namespace, "sums", {"spec": mended})
    eventually("all pods", lambda: all_there(world, namespace))


def test_an_error_of_the_operator_is_a_condition_of_the_job_and_stops_nobody(
    world: World, proxy: Proxy, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    """Something between operator and API server answers what nobody understands."""
    other = world.namespace(f"{namespace}-other")
    broken = world.path("pods", namespace)
    proxy.before = lambda call: (
        Answer(200, "<html>") if call.is_write and call.path == broken else None
    )
    running = operator()
    world.create("rljobs", namespace, job)
    world.create("rljobs", other, job)
    eventually("the other job", lambda: all_there(world, other))

    def told() -> list[tuple[str, str]]:
        conditions = world.job(namespace, "sums").get("status", {}).get("conditions", [])
        invalid = (c for c in conditions if c["type"] == "Invalid" and c["status"] == "True")
        return [(c["reason"], c["message"]) for c in invalid]

    ((reason, message),) = eventually("the condition", told)
    assert reason == "OperatorError" and "JSONDecodeError" in message
    eventually("it tried again", lambda: running.said().count("an error of the operator") > 2)
    assert len(world.events(namespace)) == 1
    proxy.before = lambda call: None
    eventually("all pods", lambda: all_there(world, namespace))
    eventually("nothing is wrong any more", lambda: not told())


def test_a_job_of_another_controller_is_left_alone(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    job["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    job["metadata"]["name"] = "theirs"
    world.create("rljobs", namespace, job)
    job["spec"]["pipeline"] = "SFT"
    job["metadata"]["name"] = "theirs-too"
    world.create("rljobs", namespace, job)
    del job["spec"]["managedBy"]
    job["spec"]["pipeline"] = "RLVR"
    job["metadata"]["name"] = "sums"
    operator()
    world.create("rljobs", namespace, job)
    eventually("all pods", lambda: all_there(world, namespace))
    for name in ("theirs", "theirs-too"):
        assert "status" not in world.job(namespace, name)
    assert not [e for e in world.events(namespace) if e["reason"] == "Invalid"]


def test_a_job_says_that_the_issuers_certificate_or_cert_manager_itself_is_missing(
    world: World, namespace: str, operator: Start, job: dict[str, Any], tmp_path: Path
) -> None:
    world.allow("roll-operator", rights()["certManager"])
    authority = tmp_path / "ca.crt"
    authority.write_text("of nobody")

    def told() -> str:
        status = world.job(namespace, "sums").get("status", {})
        return str(status.get("pendingReason", ""))

    operator(ROLL_CERT_MANAGER_ISSUER="ca", ROLL_CERT_MANAGER_CA=str(authority))
    world.create("rljobs", namespace, job)
    eventually("the first", lambda: f": the issuer's certificate in {authority} can't be" in told())
    authority.write_bytes(Pair.of_an_authority("ca").certificate)
    unserved = ": the cluster serves no Certificate of cert-manager.io/v1"
    eventually("the next", lambda: told().endswith(unserved))
    assert pods(world, namespace) == []
