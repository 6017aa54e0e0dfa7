"""Certificates and who makes them change under a job that runs: no pod of it is lost, and new ones find theirs."""

from base64 import b64decode
from pathlib import Path
from time import time
from typing import Any

import pytest
from roll_operator.trust import certificates
from roll_operator.trust.certificates import KeyPair
from support.minted import Pair
from support.operator_world import PLACES, Kubelet, OperatorProcess, Start, World, eventually

ISSUERS = {name: Pair.of_an_authority(name).certificate.decode() for name in ("one", "two")}


def bundle(world: World, namespace: str) -> str:
    return str(world.get("configmaps", namespace, "sums-trust")["data"]["ca.crt"])


def uids(world: World, namespace: str) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in world.all("pods", namespace)
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def serves_with(world: World, namespace: str, role: str) -> str:
    """The Secret of the role's pod."""
    pod = world.get("pods", namespace, f"sums-{role}-0")
    (name,) = (
        volume["secret"]["secretName"]
        for volume in pod["spec"]["volumes"]
        if volume["name"] == "roll-tls"
    )
    return str(name)


def replaced(world: World, namespace: str, role: str) -> str:
    """The Secret of the pod that takes the place of one that was taken away."""
    name, before = f"sums-{role}-0", uids(world, namespace)
    world.delete("pods", namespace, name, gracePeriodSeconds=0)
    eventually(
        f"{role} is replaced",
        lambda: uids(world, namespace).get(name, before[name]) != before[name],
    )
    return serves_with(world, namespace, role)


@pytest.mark.usefixtures("certificates")
def test_a_job_outlives_every_change_of_issuers(
    world: World, namespace: str, operator: Start, job: dict[str, Any], tmp_path: Path
) -> None:
    def told(issuer: str, before: OperatorProcess) -> OperatorProcess:
        """The operator is started again, with other values of the chart."""
        before.stop()
        authority = tmp_path / f"{issuer}.crt"
        authority.write_text(ISSUERS[issuer])
        return operator(
            ROLL_CERT_MANAGER_ISSUER=f"ClusterIssuer/{issuer}", ROLL_CERT_MANAGER_CA=str(authority)
        )

    def issuer() -> str:
        spec = world.get("certificates", namespace, "sums")["spec"]
        assert spec["secretName"] == "sums-tls"
        return str(spec["issuerRef"]["name"])

    def trusted(*names: str) -> bool:
        """These in front, and behind them what the operator made."""
        front = "".join(ISSUERS[name] for name in names)
        found = bundle(world, namespace)
        return found.startswith(front) and found.count("BEGIN") > len(names)

    with Kubelet(world, namespace):
        running = operator()
        world.create("rljobs", namespace, job)
        eventually("all run", lambda: sorted(uids(world, namespace)) == PLACES)
        own = serves_with(world, namespace, "scheduler")

        running = told("one", running)
        eventually("the first issuer is trusted, too", lambda: trusted("one"))
        eventually("and asked", lambda: issuer() == "one")
        assert serves_with(world, namespace, "scheduler") == own, "it runs on"
        assert replaced(world, namespace, "trainer") == "sums-tls"
        assert replaced(world, namespace, "scheduler") == "sums-tls"

        running = told("two", running)
        eventually("the second issuer is trusted, too", lambda: trusted("two", "one"))
        eventually("and asked for the same Secret", lambda: issuer() == "two")

        for suspend in (True, False):
            world.merge("rljobs", namespace, "sums", {"spec": {"suspend": suspend}})
            wanted = [] if suspend else PLACES
            eventually("so it is", lambda w=wanted: sorted(uids(world, namespace)) == w)
        assert bundle(world, namespace) == ISSUERS["two"], "nobody serves with another's"
        before = uids(world, namespace)

        running.stop()
        operator()
        name = replaced(world, namespace, "trainer")
        assert name not in ("sums-tls", own)
        secret = b64decode(world.get("secrets", namespace, name)["data"]["tls.crt"])
        assert bundle(world, namespace) == secret.decode() + ISSUERS["two"]
        after = uids(world, namespace)
        assert {name for name in before if before[name] != after[name]} == {"sums-trainer-0"}
        assert replaced(world, namespace, "scheduler") == name
    assert world.job(namespace, "sums")["status"]["restarts"] == 0


DAY = 86_400.0


def made(ago: float, namespace: str) -> KeyPair:
    """A certificate of the job as the operator would have made it so many seconds before."""
    return certificates.make(certificates.names("sums", namespace), time() - ago)


def test_a_certificate_is_rotated_in_time_and_a_scheduler_follows_when_all_trust_it(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    """What takes months is told to the next operator by the bundle, which is all that it reads."""

    def found(bundle: bytes, before: OperatorProcess) -> OperatorProcess:
        before.stop()
        world.merge("configmaps", namespace, "sums-trust", {"data": {"ca.crt": bundle.decode()}})
        return operator()

    old, new = made(300 * DAY, namespace), made(600, namespace)
    with Kubelet(world, namespace):
        running = operator()
        world.create("rljobs", namespace, job)
        eventually("all run", lambda: sorted(uids(world, namespace)) == PLACES)
        before = uids(world, namespace)

        running = found(old.certificate, running)
        eventually("rotated", lambda: bundle(world, namespace).encode() != old.certificate)
        rotated = bundle(world, namespace).encode()
        assert rotated.endswith(old.certificate), "it is still valid, and served"
        serial = certificates.newest_serial(rotated)
        secret = world.get("secrets", namespace, f"sums-tls-{serial}")
        assert b64decode(secret["data"]["tls.crt"]) + old.certificate == rotated
        assert uids(world, namespace) == before, "not every pod trusts the new one yet"

        metadata = {"name": f"sums-tls-{new.serial}"}
        pair = {"tls.crt": new.certificate.decode(), "tls.key": new.key.decode()}
        world.create("secrets", namespace, {"metadata": metadata, "stringData": pair})
        found(new.certificate, running)
        name = "sums-scheduler-0"
        eventually(
            "followed", lambda: uids(world, namespace).get(name, before[name]) != before[name]
        )
        assert serves_with(world, namespace, "scheduler") == f"sums-tls-{new.serial}"
        after = uids(world, namespace)
        assert {place for place in before if after[place] != before[place]} == {name}
    assert world.job(namespace, "sums")["status"]["restarts"] == 0, "nobody's failure"
