"""An RLJob becomes its objects on a real API server, and stays what it should be."""

import copy
from pathlib import Path
from typing import Any

from roll_operator.backends.kubernetes import owner_of
from support.operator_world import KINDS, PLACES, SYSTEM, Kubelet, Start, World, eventually, names


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


def test_a_pod_that_fails_is_counted_once_and_replaced_with_its_last_words(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
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
        world.end_pod(namespace, "sums-reward-0", "reward", 1, "the scorer is broken")

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


def test_a_job_of_another_controller_is_left_alone(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    job["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    job["metadata"]["name"] = "theirs"
    world.create("rljobs", namespace, job)
    del job["spec"]["managedBy"]
    job["metadata"]["name"] = "sums"
    operator()
    world.create("rljobs", namespace, job)
    eventually("all pods", lambda: all_there(world, namespace))
    assert "status" not in world.job(namespace, "theirs")


def test_without_cert_manager_a_job_says_what_the_cluster_does_not_serve(
    world: World, namespace: str, operator: Start, job: dict[str, Any], tmp_path: Path
) -> None:
    rbac, name = "/apis/rbac.authorization.k8s.io/v1", f"{namespace}-certificates"
    may = {"apiGroups": ["cert-manager.io"], "resources": ["certificates"], "verbs": ["create"]}
    world.call("POST", f"{rbac}/clusterroles", {"metadata": {"name": name}, "rules": [may]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    who = {"kind": "ServiceAccount", "name": "roll-operator", "namespace": SYSTEM}
    binding = {"metadata": {"name": name}, "subjects": [who], "roleRef": role}
    world.call("POST", f"{rbac}/clusterrolebindings", binding)
    authority = tmp_path / "ca.crt"
    authority.write_text("of nobody")

    operator(ROLL_CERT_MANAGER_ISSUER="ca", ROLL_CERT_MANAGER_CA=str(authority))
    world.create("rljobs", namespace, job)
    told = eventually(
        "a reason", lambda: world.job(namespace, "sums").get("status", {}).get("pendingReason")
    )
    assert told.endswith(": the cluster serves no Certificate of cert-manager.io/v1"), told
    assert pods(world, namespace) == []
