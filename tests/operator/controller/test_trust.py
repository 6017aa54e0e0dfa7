"""A job's certificate: made once, rotated in time, and never named before its key is stored."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from roll_operator.backends.kubernetes import read_pod
from roll_operator.controller.cluster.errors import NotFound, Unavailable
from roll_operator.controller.cluster.reading import read_job
from roll_operator.controller.cluster.settings import BadSettings, Settings
from roll_operator.controller.cluster.trust import (
    KEYS_SECONDS,
    SPREAD_SECONDS,
    Trust,
    TrustKeeper,
    config_map,
)
from roll_operator.controller.cluster.workers import RESYNC_SECONDS
from roll_operator.trust import certificates
from roll_workers.runtime.stream import DENIED_SECONDS
from support.minted import Pair
from support.operator_world import JOB

DAY = 86400.0


class Server:
    """ConfigMaps and Secrets of one namespace; Secrets cannot be read."""

    def __init__(self) -> None:
        self.config_maps: dict[str, Any] = {}
        self.secrets: list[str] = []
        self.keys: dict[str, Any] = {"keys": [{"kid": "one"}]}
        self.down = False
        self.asked: list[str] = []
        self.certificate: dict[str, Any] = {}

    async def get(self, path: str, accept: str = "") -> Any:
        name = path.rsplit("/", 1)[1]
        self.asked.append(name)
        await asyncio.sleep(0)  # others go on while it answers
        if path == "/openid/v1/jwks":
            return self.keys
        if path == f"/apis/cert-manager.io/v1/namespaces/ns/certificates/{name}":
            return self.certificate
        if name not in self.config_maps:
            raise NotFound(404, "NotFound", name)
        return self.config_maps[name]

    async def create(self, path: str, body: Any) -> Any:
        if self.down:
            raise Unavailable(0, "", "away")
        assert path == "/api/v1/namespaces/ns/secrets"
        self.secrets.append(body["metadata"]["name"])
        return body


@pytest.fixture
def job() -> Any:
    metadata = {"namespace": "ns", "uid": "u1", "resourceVersion": "1", "generation": 1}
    return read_job({**JOB, "metadata": JOB["metadata"] | metadata}).job


def test_a_certificate_is_made_once_and_rotated_at_two_thirds_of_its_life(job: Any) -> None:
    server, now = Server(), [1_000_000_000.0]

    def keeper() -> TrustKeeper:
        return TrustKeeper(server, wall=lambda: now[0])  # type: ignore[arg-type]

    async def scenario() -> None:
        first = keeper()
        made = await first.of(job, new=True)
        assert server.asked == ["jwks"], "there was nothing to be read"
        assert server.secrets == [f"sums-tls-{made.serial}"]
        assert await first.of(job) is made
        server.config_maps["sums-trust"] = config_map(job, made)
        successor = keeper()
        assert (await successor.of(job)).serial == made.serial
        assert len(server.secrets) == 1, "read from the bundle"
        now[0] += 242 * DAY
        assert (await successor.of(job)).serial == made.serial
        now[0] += 2 * DAY
        rotated = await successor.of(job)
        assert rotated.serial != made.serial and len(server.secrets) == 2
        assert made.bundle.strip() in rotated.bundle, (
            "the old one is trusted for as long as it is valid"
        )
        assert not successor.replaces("u1", str(made.serial)), (
            "not every pod trusts the new one yet"
        )
        now[0] += SPREAD_SECONDS
        assert successor.replaces("u1", str(made.serial))
        assert not successor.replaces("u1", str(rotated.serial))

    asyncio.run(scenario())


def test_a_bundle_names_no_certificate_whose_key_was_not_stored(job: Any) -> None:
    server = Server()
    server.down = True
    keeper = TrustKeeper(server)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        asyncio.run(keeper.of(job))
    assert asyncio.run(keeper.bundle(job)) == b""


def test_after_a_change_of_leaders_a_job_that_ends_is_still_known_by_its_bundle(job: Any) -> None:
    server = Server()

    async def scenario() -> None:
        made = await TrustKeeper(server).of(job)  # type: ignore[arg-type]
        server.config_maps["sums-trust"] = config_map(job, made)

        successor = TrustKeeper(server)  # type: ignore[arg-type]

        assert await successor.bundle(job) == made.bundle
        assert len(server.secrets) == 1, "nothing is made for a job that ends"

    asyncio.run(scenario())


def test_a_new_leader_too_waits_until_every_pod_trusts_a_new_certificate(job: Any) -> None:
    server, now = Server(), [1_000_000_000.0]

    async def scenario() -> None:
        first = TrustKeeper(server, wall=lambda: now[0])  # type: ignore[arg-type]
        server.config_maps["sums-trust"] = config_map(job, old := await first.of(job))
        now[0] += 300 * DAY
        server.config_maps["sums-trust"] = config_map(job, await first.of(job))
        successor = TrustKeeper(server, wall=lambda: now[0])  # type: ignore[arg-type]
        await successor.of(job)
        assert not successor.replaces("u1", str(old.serial))
        now[0] += SPREAD_SECONDS
        assert successor.replaces("u1", str(old.serial))

    asyncio.run(scenario())


def test_what_cert_manager_makes_is_known_by_the_authority_that_the_operator_was_given(
    job: Any, tmp_path: Path
) -> None:
    server, authority = Server(), tmp_path / "ca.crt"
    first, following = (Pair.of_an_authority(name).certificate for name in ("first", "next"))
    authority.write_bytes(first)
    keeper = TrustKeeper(server, authority)  # type: ignore[arg-type]

    async def scenario() -> None:
        trusted = await keeper.of(job)
        assert (trusted.bundle, trusted.serial, server.secrets) == (first, None, [])
        server.config_maps["sums-trust"] = config_map(job, trusted)
        assert server.config_maps["sums-trust"]["data"]["ca.crt"] == first.decode()
        assert await keeper.of(job) is trusted
        authority.write_bytes(following)
        assert (await keeper.of(job)).bundle == await keeper.bundle(job) == following + first
        assert (await keeper.of(job, empty=True)).bundle == following, "nobody serves with it"

    asyncio.run(scenario())


def test_pods_are_trusted_whoever_made_their_certificates_until_none_is_left(
    job: Any, tmp_path: Path
) -> None:
    """From the operator's own to one issuer, to another, and back: its pods keep what they were started with."""
    server, now = Server(), [1_000_000_000.0]
    issuers = {name: Pair.of_an_authority(name, now[0]).certificate for name in ("one", "two")}

    async def told(name: str = "", empty: bool = False) -> tuple[TrustKeeper, Trust]:
        """By an operator that starts with this issuer."""
        authority = None
        if name:
            authority = tmp_path / f"{name}.crt"
            authority.write_bytes(issuers[name])
        keeper = TrustKeeper(server, authority, lambda: now[0])  # type: ignore[arg-type]
        trust = await keeper.of(job, empty=empty)
        server.config_maps["sums-trust"] = config_map(job, trust)
        now[0] += DAY
        return keeper, trust

    async def scenario() -> None:
        _, own = await told()
        first = str(own.serial)
        keeper, issued = await told("one")
        assert (issued.serial, issued.bundle) == (None, issuers["one"] + own.bundle)
        assert not keeper.replaces("u1", first), "it is valid, and trusted"
        _, other = await told("two")
        assert other.bundle == issuers["two"] + issued.bundle
        keeper, back = await told()
        assert (back.serial, back.bundle) == (first, other.bundle), "its own is still there"
        assert not keeper.replaces("u1", ""), "cert-manager renews what its pods serve with"

        keeper, _ = await told("one")
        now[0] += 250 * DAY
        assert keeper.replaces("u1", first), "cert-manager's takes its place before it expires"
        assert not keeper.replaces("u1", "")

        _, fresh = await told("one", empty=True)
        assert fresh.bundle == issuers["one"]
        _, again = await told()
        assert again.serial != first and server.secrets[1:] == [f"sums-tls-{again.serial}"]
        assert again.bundle.endswith(issuers["one"]), "an authority is nobody's own certificate"
        _, alone = await told(empty=True)
        assert alone.serial == again.serial and again.bundle == alone.bundle + issuers["one"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("secret", "serial"),
    [
        ("sums-tls-0123456789abcdef", "0123456789abcdef"),
        ("sums-tls", ""),
        ("sums-tls-2-tls-0123456789abcdef", "0123456789abcdef"),
        ("sums-tls-2-tls", ""),
    ],
)
def test_only_a_secret_of_the_operators_own_is_named_by_a_serial(secret: str, serial: str) -> None:
    owner = {"kind": "RLJob", "controller": True, "uid": "u1"}
    labels = {"roll.dev/job": "sums", "roll.dev/role": "scheduler"}
    metadata = {"name": "sums-scheduler-0", "namespace": "ns", "uid": "p1", "resourceVersion": "1"}
    metadata |= {"labels": labels, "ownerReferences": [owner]}
    volumes = [{"name": "roll-tls", "secret": {"secretName": secret}}]
    found = read_pod({"metadata": metadata, "spec": {"volumes": volumes}})
    assert found is not None and found.serial == serial


def test_a_certificate_that_is_not_issued_is_told_with_its_issuer(job: Any, tmp_path: Path) -> None:
    server, authority = Server(), tmp_path / "ca.crt"
    keeper = TrustKeeper(server, authority)  # type: ignore[arg-type]

    def told(*conditions: dict[str, str]) -> str:
        reference = {"group": "cert-manager.io", "kind": "Issuer", "name": "ours"}
        status = {"status": {"conditions": list(conditions)}} if conditions else {}
        server.certificate = {"spec": {"issuerRef": reference}} | status
        return asyncio.run(keeper.unissued(job))

    waits = "Issuer ours has not issued certificate sums: "
    # As cert-manager 1.21 writes them while there is no such issuer.
    words = {"message": "Issuing certificate as Secret does not exist"}
    issuing = words | {"type": "Issuing", "status": "True", "reason": "DoesNotExist"}
    ready = words | {"type": "Ready", "status": "False", "reason": "DoesNotExist"}
    assert told(issuing, ready) == waits + words["message"]
    assert told() == waits + "cert-manager has not looked at it"
    assert told(ready | {"status": "True"}) == ""
    assert asyncio.run(TrustKeeper(server).unissued(job)) == "", "nobody asked cert-manager"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given", [{"ROLL_CERT_MANAGER_ISSUER": "ca"}, {"ROLL_CERT_MANAGER_CA": "/ca.crt"}]
)
def test_an_issuer_without_its_certificate_is_refused_at_the_start(given: dict[str, str]) -> None:
    enough = {
        "ROLL_OPERATOR_NAMESPACE": "roll",
        "ROLL_OPERATOR_IMAGE": "operator",
        "ROLL_WORKER_IMAGE": "worker",
    }
    assert Settings.read(enough).authority is None
    with pytest.raises(BadSettings, match="ROLL_CERT_MANAGER_CA"):
        Settings.read(enough | given)


def test_new_keys_of_the_cluster_reach_the_bundle(job: Any) -> None:
    server, now = Server(), [1_000_000_000.0]
    keeper = TrustKeeper(server, wall=lambda: now[0])  # type: ignore[arg-type]

    async def scenario() -> None:
        before = await keeper.of(job)
        server.config_maps["sums-trust"] = config_map(job, before)
        server.keys = {"keys": [{"kid": "one"}, {"kid": "two"}]}
        now[0] += KEYS_SECONDS
        after = await keeper.of(job)
        assert "two" in after.keys and after.serial == before.serial
        assert certificates.newest_serial(after.bundle) == after.serial

    asyncio.run(scenario())


def test_the_clusters_keys_are_asked_for_once_however_many_jobs_are_looked_at(job: Any) -> None:
    server, now = Server(), [1_000_000_000.0]
    keeper = TrustKeeper(server, wall=lambda: now[0])  # type: ignore[arg-type]

    async def scenario() -> None:
        for _ in range(3):
            await asyncio.gather(*(keeper.of(job, new=True) for _ in range(8)))
            now[0] += KEYS_SECONDS
        assert server.asked.count("jwks") == 3

    asyncio.run(scenario())


def test_workers_wait_longer_for_new_keys_than_these_take() -> None:
    kubelet = 60.0 * 1.5  # its sync period, with its jitter
    assert KEYS_SECONDS + RESYNC_SECONDS * 1.1 + kubelet < DENIED_SECONDS
