"""What the operator does with its rights, by the audit log of a real API server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from roll_operator.plan.objects.queue import FINALIZER
from support.api_proxy import Answer, Call, Proxy
from support.minted import Pair
from support.operator_world import (
    ACCOUNT,
    AFTER,
    FIRST,
    PLACES,
    SYSTEM,
    Kubelet,
    OperatorProcess,
    Start,
    World,
    attempts,
    eventually,
    names,
    rights,
)

MANAGED = "app.kubernetes.io/managed-by"
APPLIED = "roll.dev/applied"
MENDED = ("services", "configmaps", "networkpolicies", "poddisruptionbudgets", "podgroups")
KEPT = ("serviceaccounts", "persistentvolumeclaims")


def calls(world: World, user: str = ACCOUNT) -> list[dict[str, Any]]:
    """What this user asked for, of objects."""
    lines = world.server.audit_log.read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    return [e for e in entries if e["user"]["username"] == user and "objectRef" in e]


def right(entry: dict[str, Any]) -> tuple[str, str, str]:
    about = entry["objectRef"]
    sub = f"/{about['subresource']}" if "subresource" in about else ""
    return about.get("apiGroup", ""), about["resource"] + sub, entry["verb"]


def one_failure(world: World, namespace: str) -> None:
    eventually("all run", lambda: attempts(world, namespace) == FIRST)
    world.end_pod(namespace, "sums-inference-0", "inference", 1)
    eventually("replaced", lambda: attempts(world, namespace) == AFTER)


class Life:
    """Most of what can happen to a job, so that every right is used."""

    def __init__(
        self, world: World, namespace: str, proxy: Proxy, operator: Start, folder: Path
    ) -> None:
        self.world, self.namespace, self.proxy = world, namespace, proxy
        self._operator, self._folder = operator, folder

    def begin(self, job: dict[str, Any]) -> OperatorProcess:
        """Somebody has the name of a pod, and somebody else changes the job before its status is written."""
        world, namespace = self.world, self.namespace
        container = {"name": "c", "image": "c"}
        stranger = {"metadata": {"name": "sums-reward-0"}, "spec": {"containers": [container]}}
        world.create("pods", namespace, stranger)
        hurried: list[str] = []

        def hurry(call: Call) -> Answer | None:
            if call.path.endswith("/rljobs/sums/status") and not hurried:
                hurried.append(call.path)
                world.merge("rljobs", namespace, "sums", {"metadata": {"labels": {"by": "hand"}}})
            return None

        self.proxy.before = hurry
        running = self._operator()
        world.create("rljobs", namespace, job)
        eventually(
            "the reason",
            lambda: "sums-reward-0" in world.job(namespace, "sums")["status"]["pendingReason"],
        )
        world.delete("pods", namespace, "sums-reward-0", gracePeriodSeconds=0)
        return running

    def held_by_kueue(self) -> None:
        """A pod that ended is kept until somebody takes the finalizer away."""
        world, namespace, name = self.world, self.namespace, "sums-reward-0"
        before = attempts(world, namespace)[name]
        world.merge("pods", namespace, name, {"metadata": {"finalizers": [FINALIZER]}})
        world.end_pod(namespace, name, "reward", 1)
        eventually("replaced", lambda: attempts(world, namespace).get(name, before) != before)

    def scale(self) -> None:
        world, namespace = self.world, self.namespace
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

    def suspend_and_resume(self, replicas: int) -> None:
        """With another number of pods: the gang of before is nobody's any more."""
        world, namespace = self.world, self.namespace
        spec: dict[str, Any] = {"suspend": True, "roles": {"inference": {"replicas": replicas}}}
        world.merge("rljobs", namespace, "sums", {"spec": spec})
        eventually(
            "suspended",
            lambda: (
                not world.all("pods", namespace)
                and world.job(namespace, "sums")["status"]["phase"] == "Suspended"
            ),
        )
        world.merge("rljobs", namespace, "sums", {"spec": {"suspend": False}})
        eventually("resumed", lambda: sorted(attempts(world, namespace)) == PLACES)
        eventually("one gang", lambda: names(self._owned("podgroups")) == ["sums.6"])

    def meddle(self) -> None:
        """Somebody takes away what the operator knows the job's objects by, and what they were made from."""
        change = {"labels": {MANAGED: None}, "annotations": {APPLIED: "another"}}
        for kind in (*MENDED, *KEPT):
            for manifest in self._managed(kind):
                name = manifest["metadata"]["name"]
                self.world.merge(kind, self.namespace, name, {"metadata": change})

    def mended(self) -> bool:
        found = [m for kind in MENDED for m in self._owned(kind) if not m.get("immutable")]
        return bool(found) and all(MANAGED in m["metadata"]["labels"] for m in found)

    def told(self, issuer: str, before: OperatorProcess) -> OperatorProcess:
        """The operator is started again, with another issuer."""
        before.stop()
        self.meddle()
        authority = self._folder / f"{issuer}.crt"
        authority.write_bytes(Pair.of_an_authority(issuer).certificate)
        running = self._operator(
            ROLL_CERT_MANAGER_ISSUER=issuer, ROLL_CERT_MANAGER_CA=str(authority)
        )
        eventually("mended", self.mended)
        eventually("another issuer", lambda: self._issuer() == issuer)
        return running

    def end(self) -> None:
        """For good: with the exit code of a mistake that only its user can mend."""
        self.world.end_pod(self.namespace, "sums-trainer-0", "trainer", 2, "no such file")
        eventually("its time is over", lambda: not self.world.all("rljobs", self.namespace))

    def _issuer(self) -> str:
        found = self.world.get("certificates", self.namespace, "sums")
        return str(found["spec"]["issuerRef"]["name"])

    def _owned(self, kind: str) -> list[dict[str, Any]]:
        """Without PodGroups that wait for the controller that would let them go."""
        return [
            manifest
            for manifest in self.world.all(kind, self.namespace)
            if "ownerReferences" in manifest["metadata"]
            and "deletionTimestamp" not in manifest["metadata"]
        ]

    def _managed(self, kind: str) -> list[dict[str, Any]]:
        return [m for m in self._owned(kind) if MANAGED in m["metadata"]["labels"]]


@pytest.mark.usefixtures("certificates")
def test_it_used_what_it_was_granted_and_nothing_else(
    world: World,
    proxy: Proxy,
    namespace: str,
    operator: Start,
    job: dict[str, Any],
    tmp_path: Path,
) -> None:
    """The audit log against rbac.yaml, in both directions, after most of what can happen to a job."""
    job["spec"]["runPolicy"] = {"ttlSecondsAfterFinished": 1}
    life = Life(world, namespace, proxy, operator, tmp_path)
    running = life.begin(job)
    with Kubelet(world, namespace):
        one_failure(world, namespace)
        life.held_by_kueue()
        life.scale()
        life.suspend_and_resume(replicas=2)
        for issuer in ("one", "two"):
            running = life.told(issuer, running)
        life.end()
    granted = {
        (group, resource, verb)
        for rules in rights().values()
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    used = {right(entry) for entry in calls(world)}
    assert used <= granted, "asked for without being granted"
    # Of gangs one API is used, and this server serves that of Kubernetes itself.
    elsewhere = {
        ("scheduling.x-k8s.io", "podgroups"),
        ("scheduling.volcano.sh", "podgroups"),
    }
    unused = {g for g in granted - used if g[:2] not in elsewhere}
    assert not unused, "granted and never used"


@pytest.fixture
def elsewhere(world: World) -> Iterator[str]:
    name = world.namespace(f"test-{uuid4().hex[:8]}")
    yield name
    world.delete("rljobs", name, "sums")
    world.call("DELETE", f"/api/v1/namespaces/{name}")


def test_an_operator_of_one_namespace_needs_nothing_of_any_other(
    world: World, namespace: str, elsewhere: str, operator: Start, job: dict[str, Any]
) -> None:
    account = f"operator-{uuid4().hex[:8]}"
    world.account(account)
    world.allow(account, rights()["jobs"], namespace)
    for place in (elsewhere, namespace):
        world.create("rljobs", place, job)

    operator(
        ROLL_OPERATOR_SERVICE_ACCOUNT=account,
        ROLL_WATCH_NAMESPACES=namespace,
        ROLL_WATCH_NODES="false",
    )
    with Kubelet(world, namespace):
        one_failure(world, namespace)
        eventually("counted", lambda: world.job(namespace, "sums")["status"]["restarts"] == 1)

    assert "status" not in world.job(elsewhere, "sums")
    assert not world.all("pods", elsewhere)
    asked = calls(world, f"system:serviceaccount:{SYSTEM}:{account}")
    assert {entry["objectRef"].get("namespace") for entry in asked} == {namespace, SYSTEM}
    assert not [entry for entry in asked if entry["responseStatus"]["code"] == 403]
