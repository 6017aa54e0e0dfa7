"""The operator, its API server and the way between them fail; the job's objects become the same."""

import itertools
import json
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.api_proxy import Answer, Call, Proxy
from support.operator_world import (
    AFTER,
    FIRST,
    PLACES,
    Kubelet,
    OperatorProcess,
    Start,
    World,
    attempts,
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

EXPIRED = Answer(
    200,
    json.dumps(
        {
            "type": "ERROR",
            "object": {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "code": 410,
                "reason": "Expired",
                "message": "too old resource version",
            },
        }
    ),
)
"""What a watch is told that has fallen too far behind."""


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

        def expire(call: Call) -> Answer | None:
            if not call.is_watch or not call.path.endswith("/pods") or expired.is_set():
                return None
            if "sums-reward-0" in names(world.all("pods", namespace)):
                return Answer(500, '{"message": "not yet"}')
            expired.set()
            return EXPIRED

        proxy.before = expire
        proxy.cut_watches()
        world.delete("pods", namespace, "sums-reward-0", gracePeriodSeconds=0)
        eventually("the watch expired", expired.is_set)
        eventually(
            "replaced", lambda: attempts(world, namespace) == FIRST | {"sums-reward-0": "1"}, 60
        )
    assert world.job(namespace, "sums")["status"]["restarts"] == 0, "nobody's failure"
    assert running.alive()


def test_an_object_that_somebody_changed_meanwhile_is_looked_at_again_before_it_is_mended(
    world: World, proxy: Proxy, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    """As a late write of an operator that no longer leads."""
    operator()
    world.create("rljobs", namespace, job)
    budget = world.path("poddisruptionbudgets", namespace, "sums-inference")
    eventually("its budget", lambda: world.call("GET", budget))
    go, waits = threading.Event(), threading.Event()

    def hold(call: Call) -> threading.Event | None:
        if call.method != "PATCH" or call.path != budget:
            return None
        waits.set()
        return go

    proxy.hold = hold
    world.merge("rljobs", namespace, "sums", {"spec": {"roles": {"inference": {"replicas": 3}}}})
    assert waits.wait(60)
    world.call("PATCH", budget, {"metadata": {"annotations": {"by": "another"}}}, "merge")
    go.set()
    eventually("mended", lambda: world.call("GET", budget)["spec"]["minAvailable"] == 2)
    answers = [c.status for c in proxy.calls if c.method == "PATCH" and c.path == budget]
    assert answers == [409, 200]


def test_an_operator_goes_on_when_gangs_are_served_again_in_a_moment(
    world: World, proxy: Proxy, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    """As after the start of an API server."""
    running = operator()
    world.create("rljobs", namespace, job)
    eventually("its gang", lambda: world.all("podgroups", namespace))
    asked: list[Call] = []

    def hide(call: Call) -> Answer | None:
        if call.is_watch and call.path.endswith("/rljobs") and not asked:
            return EXPIRED
        if "/apis/scheduling.k8s.io/" in call.path and "podgroups" not in call.path:
            asked.append(call)
            if len({call.path for call in asked}) == len(asked):  # of each version the first time
                return Answer(404, json.dumps({"kind": "Status", "code": 404}))
        return None

    proxy.before = hide
    proxy.cut_watches()
    eventually("asked again", lambda: len({c.path for c in asked}) < len(asked))
    job["metadata"]["name"] = "later"
    world.create("rljobs", namespace, job)
    eventually(
        "its gang",
        lambda: [n for n in names(world.all("podgroups", namespace)) if n.startswith("later")],
    )
    assert running.alive()


def test_an_operator_begins_anew_when_the_cluster_serves_gangs_no_more(
    world: World, proxy: Proxy, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    """It would list them again and again, and make them for every new job."""
    running = operator()
    eventually("it works", lambda: running.http("/readyz")[0] == 200)
    expired = threading.Event()

    def uninstall(call: Call) -> Answer | None:
        if "/apis/scheduling.k8s.io/" in call.path:
            return Answer(404, json.dumps({"kind": "Status", "code": 404}))
        if call.is_watch and call.path.endswith("/rljobs") and not expired.is_set():
            expired.set()  # what the refresh is otherwise five minutes for
            return EXPIRED
        return None

    world.create("rljobs", namespace, job)
    eventually("its gang", lambda: world.all("podgroups", namespace))
    proxy.before = uninstall
    proxy.cut_watches()
    assert running.process is not None
    assert running.process.wait(60) == 0
    assert expired.is_set()
    world.delete("rljobs", namespace, "sums")
    job["metadata"]["name"] = "later"
    world.create("rljobs", namespace, job)
    operator()
    eventually("its pods", lambda: "later-trainer-0" in names(world.all("pods", namespace)))
    assert not [n for n in names(world.all("podgroups", namespace)) if n.startswith("later")]


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
        eventually("all run", lambda: attempts(world, namespace) == FIRST, 120)
        assert len(refused) > 5, "the refusals did not happen"
        refused.clear()  # what writes the restart down is refused as well
        one_failure(world, namespace)
        eventually("settled", lambda: settled(world, namespace))
    assert {("PATCH", "status"), ("DELETE", "sums-inference-0")} <= {
        (method, path.rpartition("/")[2]) for method, path in refused
    }
    assert world.job(namespace, "sums")["status"]["restarts"] == 1
    told = eventually("an Event", lambda: world.events(namespace))
    assert [(e["reason"], e["count"]) for e in told] == [("PodRestart", 1)]
    figures = running.http("/metrics")[1]
    assert 'roll_operator_restarts_total{counted="true",role="inference"} 1.0' in figures
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
