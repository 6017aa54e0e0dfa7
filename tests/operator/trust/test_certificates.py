"""A job's certificate: for its names alone, trusted by its bundle alone, replaced in time."""

import datetime
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from roll_operator.trust import certificates
from roll_wire import credentials

NOW = 1_800_000_000.0
DAY = 86_400.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[int, certificates.KeyPair]]:
    """A server with the certificate of job `sums` in namespace `lab`."""
    pair = certificates.make(certificates.names("sums", "lab"), time.time())
    write(tmp_path, pair)
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    port = server.add_secure_port("localhost:0", credentials.server(tmp_path))
    server.start()
    yield port, pair
    server.stop(grace=None).wait()


def write(folder: Path, pair: certificates.KeyPair) -> None:
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)


def reach(port: int, roots: bytes, name: str) -> str:
    options = [("grpc.ssl_target_name_override", name), ("grpc.enable_http_proxy", 0)]
    with grpc.secure_channel(f"localhost:{port}", credentials.client(roots), options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sums-scheduler-0.sums.lab.svc", "OK"),
        ("sums-trainer-0.sums.lab.svc", "OK"),
        ("other-scheduler-0.other.lab.svc", "UNAVAILABLE"),
        ("sums-scheduler-0.sums.elsewhere.svc", "UNAVAILABLE"),
        ("sums.lab.svc", "UNAVAILABLE"),
    ],
)
def test_it_is_for_the_pods_of_its_job(
    served: tuple[int, certificates.KeyPair], name: str, expected: str
) -> None:
    port, pair = served
    assert reach(port, pair.certificate, name) == expected


def test_another_jobs_bundle_does_not_trust_it(served: tuple[int, certificates.KeyPair]) -> None:
    other = certificates.make(certificates.names("sums", "lab"), time.time())
    assert reach(served[0], other.certificate, "sums-scheduler-0.sums.lab.svc") == "UNAVAILABLE"


def test_during_a_rotation_both_are_trusted(served: tuple[int, certificates.KeyPair]) -> None:
    port, pair = served
    following = certificates.make(certificates.names("sums", "lab"), time.time() + 1)
    bundle = certificates.extended(pair.certificate, following.certificate, time.time())
    assert certificates.newest_serial(bundle) == following.serial != pair.serial
    assert reach(port, bundle, "sums-scheduler-0.sums.lab.svc") == "OK"


def test_a_renewed_pair_is_served_from_the_next_connection_on(
    served: tuple[int, certificates.KeyPair], tmp_path: Path
) -> None:
    """As cert-manager renews it and the kubelet writes it, into the folder of a process that runs."""
    port, old = served
    name = "sums-scheduler-0.sums.lab.svc"
    new = certificates.make(certificates.names("sums", "lab"), time.time())
    write(tmp_path, new)
    assert reach(port, new.certificate, name) == "OK"
    assert reach(port, old.certificate, name) == "UNAVAILABLE"
    (tmp_path / "tls.key").unlink()  # half of it is there: what served before goes on
    assert reach(port, new.certificate, name) == "OK"


def test_grpc_is_handed_a_pair_only_when_it_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It frees the one of before under connections that are just being made: two at once ended a scheduler."""
    asks: list[Callable[[], object]] = []
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda _, again: asks.append(again))
    write(tmp_path, certificates.make(["localhost"], time.time()))
    credentials.server(tmp_path)
    [again] = asks
    assert again() is None
    write(tmp_path, certificates.make(["localhost"], time.time()))
    assert again() is not None
    assert again() is None
    (tmp_path / "tls.key").unlink()
    assert again() is None


def test_it_is_replaced_after_two_thirds_of_its_life() -> None:
    pair = certificates.make(["localhost"], NOW)
    due = certificates.rotates_at(pair.certificate)
    assert (due - NOW) / DAY == pytest.approx(365 * 2 / 3, abs=0.1)
    [certificate] = x509.load_pem_x509_certificates(pair.certificate)
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc > (
        datetime.timedelta(days=365)
    )


def test_a_bundle_that_does_not_exist_yet_is_due_at_once() -> None:
    assert certificates.rotates_at(b"") == 0.0
    assert certificates.newest_serial(b"") == ""


def test_a_bundle_forgets_what_has_expired_and_nothing_else() -> None:
    old, current, new = (certificates.make(["localhost"], NOW + x * DAY) for x in (0, 300, 560))
    bundle = certificates.extended(b"", old.certificate, NOW)
    bundle = certificates.extended(bundle, current.certificate, NOW + 300 * DAY)
    assert bundle.count(b"BEGIN CERTIFICATE") == 2
    bundle = certificates.extended(bundle, new.certificate, NOW + 560 * DAY)
    assert bundle == new.certificate + current.certificate
    assert certificates.extended(bundle, new.certificate, NOW + 560 * DAY) == bundle


def test_the_serial_fits_into_an_objects_name() -> None:
    serials = {certificates.make(["localhost"], NOW).serial for _ in range(8)}
    assert len(serials) == 8
    assert all(len(s) == 16 and set(s) <= set("0123456789abcdef") for s in serials)
