"""Pods that Kueue keeps by its finalizer: their places become free all the same, and nothing else is touched."""

import asyncio
from typing import Any

import pytest
from roll_api import JobStatus
from roll_operator.backends.kubernetes import read_pod
from roll_operator.controller.cluster.acts import Acts
from roll_operator.controller.cluster.reading import read_job
from roll_operator.controller.cluster.store import Store
from roll_operator.plan import ForceDelete, Plan, Record
from roll_operator.plan.objects.queue import FINALIZER
from support.operator_world import (
    FIRST,
    JOB,
    PLACES,
    Kubelet,
    Manifest,
    Start,
    World,
    attempts,
    eventually,
    names,
)

OTHER = "example.com/kept"


class QueuedNode(Kubelet):
    """A node whose pods bear Kueue's finalizer, as its webhook would have them; it ends those that are deleted."""

    finalizers: tuple[str, ...] = (FINALIZER,)

    def look_at(self, pod: Manifest) -> None:
        world, home, name = self._world, self._namespace, pod["metadata"]["name"]
        role, phase = pod["metadata"]["labels"]["roll.dev/role"], pod["status"].get("phase")
        if "deletionTimestamp" in pod["metadata"]:
            if phase == "Running":
                world.end_pod(home, name, role, 143)
            if pod["metadata"].get("deletionGracePeriodSeconds"):
                uid = {"uid": pod["metadata"]["uid"]}
                world.delete("pods", home, name, gracePeriodSeconds=0, preconditions=uid)
        elif phase == "Pending":
            world.merge("pods", home, name, {"metadata": {"finalizers": list(self.finalizers)}})
            node = {"target": {"kind": "Node", "name": "node"}, "metadata": {"name": name}}
            world.call("POST", f"{world.path('pods', home, name)}/binding", node)
            world.run_pod(home, name, role, self._ip)


class TwiceKept(QueuedNode):
    finalizers = (OTHER, FINALIZER)


@pytest.fixture
def queued(job: dict[str, Any]) -> dict[str, Any]:
    job["spec"]["scheduling"] = {"queue": "team"}
    return job


def phase(world: World, namespace: str) -> str:
    return str(world.job(namespace, "sums")["status"]["phase"])


def test_a_queued_pod_that_failed_is_counted_and_replaced_and_the_others_stay_kueues(
    world: World, namespace: str, operator: Start, queued: dict[str, Any]
) -> None:
    operator()
    world.create("rljobs", namespace, queued)
    with QueuedNode(world, namespace):
        eventually("all run", lambda: attempts(world, namespace) == FIRST)
        world.end_pod(namespace, "sums-inference-0", "inference", 1, "out of luck")
        after = FIRST | {"sums-inference-0": "1"}
        eventually("replaced", lambda: attempts(world, namespace) == after)
    status = world.job(namespace, "sums")["status"]
    assert status["restarts"] == 1
    assert status["roles"]["inference"]["lastFailure"]["message"] == "out of luck"
    kept = {tuple(p["metadata"]["finalizers"]) for p in world.all("pods", namespace)}
    assert kept == {(FINALIZER,)}


def test_a_queued_job_is_suspended_and_resumed(
    world: World, namespace: str, operator: Start, queued: dict[str, Any]
) -> None:
    operator()
    world.create("rljobs", namespace, queued)
    with QueuedNode(world, namespace):
        eventually("all run", lambda: attempts(world, namespace) == FIRST)
        world.merge("rljobs", namespace, "sums", {"spec": {"suspend": True}})
        eventually("no pods", lambda: not world.all("pods", namespace))
        eventually("suspended", lambda: phase(world, namespace) == "Suspended")
        world.merge("rljobs", namespace, "sums", {"spec": {"suspend": False}})
        again = dict.fromkeys(PLACES, "1")
        eventually("all run again", lambda: attempts(world, namespace) == again)


def test_of_a_queued_job_that_failed_only_the_pod_that_failed_is_left(
    world: World, namespace: str, operator: Start, queued: dict[str, Any]
) -> None:
    operator()
    world.create("rljobs", namespace, queued)
    with QueuedNode(world, namespace):
        eventually("all run", lambda: attempts(world, namespace) == FIRST)
        world.end_pod(namespace, "sums-reward-0", "reward", 2, "no such column")
        eventually("failed", lambda: phase(world, namespace) == "Failed")
        eventually("one", lambda: names(world.all("pods", namespace)) == ["sums-reward-0"])
    assert world.get("pods", namespace, "sums-reward-0")["metadata"]["finalizers"] == [FINALIZER]


def test_a_queued_job_that_waits_is_suspended_before_any_pod_began(
    world: World, namespace: str, operator: Start, queued: dict[str, Any]
) -> None:
    operator()
    world.create("rljobs", namespace, queued)
    eventually("all pods", lambda: names(world.all("pods", namespace)) == PLACES)
    for name in PLACES:
        world.merge("pods", namespace, name, {"metadata": {"finalizers": [FINALIZER]}})
    world.merge("rljobs", namespace, "sums", {"spec": {"suspend": True}})
    eventually("no pods", lambda: not world.all("pods", namespace))


def test_pods_of_a_queued_job_that_was_deleted_meanwhile_are_let_go_by_the_next_operator(
    world: World, namespace: str, operator: Start, queued: dict[str, Any]
) -> None:
    """The cluster's garbage collector, which the test plays, deletes them; Kueue would keep them."""
    first = operator()
    world.create("rljobs", namespace, queued)
    with TwiceKept(world, namespace):
        eventually("all run", lambda: attempts(world, namespace) == FIRST)
        first.stop()
        world.delete("rljobs", namespace, "sums")
        for name in PLACES:
            world.delete("pods", namespace, name)
        eventually("all ended", lambda: not attempts(world, namespace))
        assert names(world.all("pods", namespace)) == PLACES
        operator()

        def kept() -> list[list[str]]:
            return [p["metadata"]["finalizers"] for p in world.all("pods", namespace)]

        eventually("let go", lambda: kept() == [[OTHER]] * len(PLACES))
        for name in PLACES:
            world.merge("pods", namespace, name, {"metadata": {"finalizers": None}})
        assert world.all("pods", namespace) == []


def test_a_pod_on_a_lost_node_is_let_go_with_its_forced_deletion() -> None:
    asked: list[tuple[str, str]] = []
    metadata = {
        "name": "sums-reward-0",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"roll.dev/job": "sums", "roll.dev/role": "reward"},
        "finalizers": [FINALIZER],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"kind": "RLJob", "uid": "job", "controller": True}],
    }
    lost = {"metadata": metadata, "spec": {"nodeName": "lost"}, "status": {"phase": "Running"}}

    class Answers:
        async def delete(self, path: str, uid: str, grace: int) -> dict[str, Any]:
            asked.append(("delete", uid))
            return {**lost, "kind": "Pod"}

        async def release(self, path: str, uid: str, finalizer: str) -> dict[str, Any]:
            asked.append((finalizer, uid))
            return {"metadata": {key: metadata[key] for key in metadata if key != "finalizers"}}

    facts = read_pod(lost)
    assert facts is not None
    store = Store(lambda key: None)
    store.put_pod(facts)
    more = {"namespace": "ns", "uid": "job", "resourceVersion": "1"}
    entry = read_job({**JOB, "metadata": {**JOB["metadata"], **more}})
    assert entry.job is not None
    acts = Acts(Answers(), store, *[None] * 5)  # type: ignore[arg-type]  # only pods are touched
    asyncio.run(acts.release([facts]))
    assert asked == [], "its process may still run"
    forced = Plan((ForceDelete("u", "sums-reward-0"),), JobStatus(), Record(finished=True))
    asyncio.run(acts.carry_out(entry, entry.job, forced))
    assert asked == [("delete", "u"), (FINALIZER, "u")]
    assert store.pods("ns/sums", "job") == []
