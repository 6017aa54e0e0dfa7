"""The operator, its API server and the way between them fail; the job's objects become the same."""

import itertools
import json
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.api_proxy import Answer, Call, Proxy
from support.operator_world import (
    ACCOUNT,
    PLACES,
    RBAC,
    Kubelet,
    OperatorProcess,
    Start,
    World,
    eventually,
    names,
)

COMPARED = (
    "pods",
    "services",
    "configmaps",
    "serviceaccounts",
    "persistentvolumeclaims",
    "poddisruptionbudgets",
    "networkpolicies",
    "podgroups",
)


def attempts(world: World, namespace: str) -> dict[str, str]:
    """Name and attempt of every pod that runs."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["labels"]["roll.dev/attempt"]
        for pod in world.all("pods", namespace)
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


FIRST = dict.fromkeys(PLACES, "0")
AFTER = FIRST | {"sums-inference-0": "1"}


def objects(world: World, namespace: str) -> dict[str, list[str]]:
    return {kind: names(world.all(kind, namespace)) for kind in COMPARED}


def unsupervised(holds: Callable[[], bool]) -> Callable[[], bool]:
    return holds


def one_failure(
    world: World, namespace: str, supervised: Callable[..., Callable[[], bool]] = unsupervised
) -> None:
    """The life of a job up to the replacement of a pod that failed once."""
    all_run = supervised(lambda: attempts(world, namespace) == FIRST)
    eventually(f"{namespace}: all run", all_run, 120)
    world.end_pod(namespace, "sums-inference-0", "inference", 1, "out of luck")
    replaced = supervised(lambda: attempts(world, namespace) == AFTER)
    eventually(f"{namespace}: replaced", replaced, 120)


def settled(world: World, namespace: str) -> bool:
    """The status knows the new pod: nothing is left to be written."""
    status = world.job(namespace, "sums")["status"]
    uid = world.get("pods", namespace, "sums-inference-0")["metadata"]["uid"]
    return bool(
        status["record"]["scopes"]["sums-inference-0"].get("started", {}).get("sums-inference-0")
        == uid
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_after_each_write_for_every_write_it_makes_the_same_objects(
    world: World, proxy: Proxy, operator: Start, job: dict[str, Any]
) -> None:
    """Round k ends the operator after its k-th write of job k, before it hears the answer; its successor
    finishes job k and is ended in job k+1. The undisturbed job is number 0, and the last is the one that
    was done before its k-th write: how many there are is the operator's to say, and differs by what it
    learns at once."""
    current: list[OperatorProcess] = []
    seen: dict[str, int] = {}
    deadly: dict[str, int] = {}
    killed: set[str] = set()

    def count(call: Call) -> None:
        namespace = call.path.split("namespaces/")[-1].split("/")[0]
        if call.is_write and namespace.startswith("kill-"):
            seen[namespace] = seen.get(namespace, 0) + 1
            if seen[namespace] == deadly.get(namespace):
                current[-1].kill()
                killed.add(namespace)

    def supervised(holds: Callable[[], bool]) -> Callable[[], bool]:
        """As a kubelet would: an operator that ended, for whatever reason, is followed by another."""

        def look() -> bool:
            if not current[-1].alive():
                current.append(operator())
            return holds()

        return look

    proxy.after = count
    current.append(operator())
    results: list[tuple[dict[str, list[str]], dict[str, Any]]] = []
    for number in itertools.count():
        namespace = world.namespace(f"kill-{number}")
        if number:
            deadly[namespace] = number
        with Kubelet(world, namespace):
            world.create("rljobs", namespace, job)
            one_failure(world, namespace, supervised)
            eventually("settled", supervised(lambda ns=namespace: settled(world, ns)), 120)
        results.append((objects(world, namespace), world.job(namespace, "sums")["status"]))
        world.delete("rljobs", namespace, "sums")
        for pod in world.all("pods", namespace):
            world.delete("pods", namespace, pod["metadata"]["name"], gracePeriodSeconds=0)
        if number and namespace not in killed:
            break
    assert len(killed) > 15, "the kills did not happen"
    undisturbed, status = results[0]
    for number, (found, told) in enumerate(results[1:], 1):
        assert found == undisturbed, f"killed after write {number}"
        assert told["restarts"] == status["restarts"] == 1, f"killed after write {number}"
        assert told["roles"]["inference"]["lastFailure"]["message"] == "out of luck"


def test_a_leader_that_was_stopped_and_goes_on_changes_nothing(
    world: World, proxy: Proxy, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    first = operator(ROLL_IDENTITY="first")
    with Kubelet(world, namespace):
        world.create("rljobs", namespace, job)
        eventually("all run", lambda: attempts(world, namespace) == FIRST)
        second = operator(ROLL_IDENTITY="second")
        eventually("the second watches", lambda: second.http("/healthz")[0] == 200)
        first.signal(signal.SIGSTOP)
        # It is stopped with news on its way, so that it would act on them when it goes on.
        world.end_pod(namespace, "sums-inference-0", "inference", 1, "out of luck")
        eventually("the second replaced it", lambda: attempts(world, namespace) == AFTER, 90)
        eventually("the record", lambda: settled(world, namespace))
        proxy.calls.clear()
        first.signal(signal.SIGCONT)
        assert first.process is not None
        assert first.process.wait(60) == 3, "a leader without its lease exits"
    done = [c for c in proxy.calls if c.who == "operator-0" and c.is_write and c.status < 300]
    assert not done
    assert world.job(namespace, "sums")["status"]["restarts"] == 1
    assert attempts(world, namespace) == AFTER
    assert second.alive()


def test_a_write_of_an_old_leader_that_arrives_late_is_refused(
    world: World, proxy: Proxy, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    """Its status write was on its way when it was stopped; the next leader wrote meanwhile."""
    first = operator(ROLL_IDENTITY="first")
    with Kubelet(world, namespace):
        world.create("rljobs", namespace, job)
        eventually("all run", lambda: attempts(world, namespace) == FIRST)
        eventually(
            "known", lambda: len(world.job(namespace, "sums")["status"]["record"]["scopes"]) == 6
        )
        arrived, go = threading.Event(), threading.Event()

        def hold(call: Call) -> threading.Event | None:
            if call.who != "operator-0" or not call.path.endswith("/status"):
                return None
            arrived.set()
            return go

        proxy.hold = hold
        world.end_pod(namespace, "sums-inference-0", "inference", 1, "out of luck")
        assert arrived.wait(30)
        first.signal(signal.SIGSTOP)
        operator(ROLL_IDENTITY="second")
        eventually("the second replaced it", lambda: attempts(world, namespace) == AFTER, 90)
        eventually("the record", lambda: settled(world, namespace))
        proxy.calls.clear()
        go.set()
        late = eventually(
            "its answer",
            lambda: [
                c.status
                for c in proxy.calls
                if c.who == "operator-0" and c.path.endswith("/status") and c.is_write
            ][-1:],
        )
    assert late == [409]
    assert world.job(namespace, "sums")["status"]["restarts"] == 1


def test_a_second_operator_takes_over_at_once_when_the_first_ends_in_order(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    first = operator(ROLL_IDENTITY="first")
    eventually("the first leads", lambda: '"leader": true' in first.http("/healthz")[1])
    second = operator(ROLL_IDENTITY="second")
    eventually("the second watches", lambda: second.http("/healthz")[0] == 200)
    began = time.monotonic()
    assert first.stop() == 0
    eventually("the second leads", lambda: '"leader": true' in second.http("/healthz")[1])
    assert time.monotonic() - began < 15, "sooner than the lease would end by itself"
    world.create("rljobs", namespace, job)
    eventually("all pods", lambda: names(world.all("pods", namespace)) == PLACES)


def test_it_goes_on_after_a_restart_of_the_api_server(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    """An outage that outlasts the lease ends the operator, and the kubelet starts it again."""
    running = operator()
    with Kubelet(world, namespace):
        world.create("rljobs", namespace, job)
        eventually("all run", lambda: attempts(world, namespace) == FIRST)
        world.server.stop()
        world.server.start()
        world.end_pod(namespace, "sums-inference-0", "inference", 1, "out of luck")

        def replaced() -> bool:
            nonlocal running
            if not running.alive():
                assert running.process is not None and running.process.returncode == 3
                running = operator()
            return attempts(world, namespace) == AFTER

        eventually("replaced", replaced, 120)
    assert world.job(namespace, "sums")["status"]["restarts"] == 1


def test_what_vanished_while_a_watch_was_expired_is_noticed(
    world: World, proxy: Proxy, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    running = operator()
    with Kubelet(world, namespace):
        world.create("rljobs", namespace, job)
        eventually("all run", lambda: attempts(world, namespace) == FIRST)
        expired = threading.Event()
        gone = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410}
        gone |= {"reason": "Expired", "message": "too old resource version"}

        def expire(call: Call) -> Answer | None:
            if not call.is_watch or not call.path.endswith("/pods") or expired.is_set():
                return None
            if "sums-reward-0" in names(world.all("pods", namespace)):
                return Answer(500, '{"message": "not yet"}')
            expired.set()
            return Answer(200, json.dumps({"type": "ERROR", "object": gone}))

        proxy.before = expire
        proxy.cut_watches()
        world.delete("pods", namespace, "sums-reward-0", gracePeriodSeconds=0)
        eventually("the watch expired", expired.is_set)
        eventually(
            "replaced", lambda: attempts(world, namespace) == FIRST | {"sums-reward-0": "1"}, 60
        )
    assert world.job(namespace, "sums")["status"]["restarts"] == 0, "nobody's failure"
    assert running.alive()


@pytest.mark.parametrize(
    ("status", "reason", "headers"),
    [
        (409, "Conflict", {}),
        (429, "TooManyRequests", {"Retry-After": "1"}),
        (500, "InternalError", {}),
        (503, "ServiceUnavailable", {}),
    ],
)
def test_every_write_may_be_refused_once(
    world: World,
    proxy: Proxy,
    namespace: str,
    operator: Start,
    job: dict[str, Any],
    status: int,
    reason: str,
    headers: dict[str, str],
) -> None:
    refused: set[tuple[str, str]] = set()

    def refuse(call: Call) -> Answer | None:
        what = (call.method, call.path)
        if not call.is_write or namespace not in call.path or what in refused:
            return None
        if call.path.endswith("/events") or "/secrets" in call.path:
            return None
        refused.add(what)
        body = {"kind": "Status", "status": "Failure", "code": status, "reason": reason}
        return Answer(status, json.dumps({**body, "message": "not now"}), headers)

    proxy.before = refuse
    running = operator()
    world.create("rljobs", namespace, job)
    with Kubelet(world, namespace):
        one_failure(world, namespace)
        eventually("settled", lambda: settled(world, namespace))
    assert len(refused) > 5, "the refusals did not happen"
    assert world.job(namespace, "sums")["status"]["restarts"] == 1
    assert running.alive()


def test_a_job_deleted_while_the_operator_is_down_leaves_only_what_it_owned(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    """The cluster's garbage collector takes what names the job as its owner; there is no finalizer."""
    first = operator()
    uid = world.create("rljobs", namespace, job)["metadata"]["uid"]
    eventually("all pods", lambda: names(world.all("pods", namespace)) == PLACES)
    first.stop()
    world.delete("rljobs", namespace, "sums")
    with pytest.raises(Exception, match="404"):
        world.job(namespace, "sums")
    for kind in (*COMPARED, "secrets"):
        for manifest in world.all(kind, namespace):
            if manifest["metadata"]["name"] != "default":
                owners = [o["uid"] for o in manifest["metadata"].get("ownerReferences", [])]
                assert owners == [uid], manifest["metadata"]["name"]
                assert not manifest["metadata"].get("finalizers") or kind in (
                    "persistentvolumeclaims",
                    "podgroups",
                )
    # A namesake made before the collector came is another job and takes nothing over.
    second = operator()
    world.create("rljobs", namespace, job)
    eventually("the next one leads", lambda: '"leader": true' in second.http("/healthz")[1])
    eventually(
        "the reason",
        lambda: "does not belong" in world.job(namespace, "sums")["status"]["pendingReason"],
    )


def test_it_used_what_it_was_granted_and_nothing_else(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    """The audit log against rbac.yaml, in both directions, after most of what can happen to a job."""
    operator()
    with Kubelet(world, namespace):
        world.create("rljobs", namespace, job)
        eventually("all run", lambda: attempts(world, namespace) == FIRST)
        world.end_pod(namespace, "sums-inference-0", "inference", 1)
        eventually("replaced", lambda: attempts(world, namespace) == AFTER)
        for replicas in (3, 1):
            inference = {"roles": {"inference": {"replicas": replicas}}}
            world.merge("rljobs", namespace, "sums", {"spec": inference})
            eventually(
                "scaled",
                lambda n=replicas: (
                    len(world.all("poddisruptionbudgets", namespace)) == (n > 1)
                    and f"sums-inference-{n}" not in attempts(world, namespace)
                    and f"sums-inference-{n - 1}" in attempts(world, namespace)
                ),
            )
    rules = YAML(typ="safe").load(RBAC.read_text())
    granted = {
        (group, resource, verb)
        for part in ("jobs", "certManager", "cluster", "own")
        for rule in rules[part]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    used = set()
    for line in world.server.audit_log.read_text().splitlines():
        entry = json.loads(line)
        if entry["user"]["username"] != ACCOUNT or "objectRef" not in entry:
            continue
        about = entry["objectRef"]
        resource = about["resource"]
        if "subresource" in about:
            resource += f"/{about['subresource']}"
        used.add((about.get("apiGroup", ""), resource, entry["verb"]))
    assert used <= granted, "asked for without being granted"
    elsewhere = {
        ("scheduling.x-k8s.io", "podgroups"),
        ("scheduling.volcano.sh", "podgroups"),
        ("cert-manager.io", "certificates"),
    }
    unused = {g for g in granted - used if g[:2] not in elsewhere}
    # What an operator needs when a name is taken, a list was read late, or a cluster changes its keys.
    rare = {
        ("roll.dev", "rljobs", "delete"),
        ("roll.dev", "rljobs", "get"),
        ("", "pods", "get"),
        ("", "services", "get"),
        ("", "services", "patch"),
        ("", "configmaps", "patch"),
        ("", "serviceaccounts", "get"),
        ("", "persistentvolumeclaims", "get"),
        ("policy", "poddisruptionbudgets", "get"),
        ("networking.k8s.io", "networkpolicies", "get"),
        ("networking.k8s.io", "networkpolicies", "patch"),
        ("scheduling.k8s.io", "podgroups", "get"),
        ("scheduling.k8s.io", "podgroups", "patch"),
        ("scheduling.k8s.io", "podgroups", "delete"),
    }
    assert unused <= rare, "granted and never used"
