"""A worker on a cluster: TLS, a token for each stream and each call, and what becomes of a denial."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
import torch
from roll_operator.trust import certificates
from roll_wire import credentials
from roll_wire.ports import free_port
from roll_wire.session_pb2 import Policy, PolicyVersion
from roll_wire.weights_pb2 import FetchRequest, ManifestRequest
from roll_wire.weights_pb2_grpc import WeightsStub
from roll_workers.errors import Refused, UserError
from roll_workers.runtime import stream
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.health import Services
from roll_workers.runtime.session import Session
from roll_workers.weights import FetchError, fetch, publish, serve_weights
from scheduler import TIMEOUT, Scheduler, config_for, run
from support.minted import Pki

UNAUTHENTICATED = (grpc.StatusCode.UNAUTHENTICATED, "the token has expired")
DENIED = (grpc.StatusCode.PERMISSION_DENIED, "pod j-reward-0 is trainer, not reward")


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


def config_of(pki: Pki, port: int, **changes: object) -> WorkerConfig:
    token = pki.token("worker", "first")
    config = config_for(port, pki.folder, trust=pki.trust, token=token, **changes)
    return replace(config, scheduler=f"localhost:{port}")


def renew(pki: Pki) -> None:
    """Another key and certificate, trusted from now on."""
    pair = certificates.make(["localhost"], time.time())
    (pki.tls / "tls.crt").write_bytes(pair.certificate)
    (pki.tls / "tls.key").write_bytes(pair.key)
    (pki.trust / "ca.crt").write_bytes(pair.certificate)


def test_every_stream_shows_the_token_of_its_time(pki: Pki) -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start(tls=pki.tls)
        async with Session(config_of(pki, scheduler.port), pool="reward", credits=1):
            pki.token("worker", "second\n")
            await scheduler.kill()
            await scheduler.start(tls=pki.tls)
            await scheduler.until(lambda: len(scheduler.shown) == 2)
        assert scheduler.shown == ["Bearer first", "Bearer second"]
        await scheduler.kill()

    run(main)


def test_a_new_certificate_needs_no_new_process(pki: Pki) -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start(tls=pki.tls)
        async with Session(config_of(pki, scheduler.port), pool="reward", credits=1):
            await scheduler.kill()
            renew(pki)
            await scheduler.start(tls=pki.tls)
            await scheduler.until(lambda: len(scheduler.hellos) == 2)
        await scheduler.kill()

    run(main)


def test_a_worker_waits_for_what_it_needs_to_trust_and_to_show(pki: Pki) -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start(tls=pki.tls)
        config = config_of(pki, scheduler.port)
        assert config.token is not None
        roots = pki.roots
        (pki.trust / "ca.crt").unlink()
        config.token.unlink()
        session = Session(config, pool="reward", credits=1)
        entering = asyncio.ensure_future(session.__aenter__())
        await asyncio.sleep(0.5)
        (pki.trust / "ca.crt").write_bytes(roots)
        await asyncio.sleep(0.5)
        assert not scheduler.hellos, "nothing is said without a token"
        pki.token("worker", "at last")
        await entering
        assert scheduler.shown == ["Bearer at last"]
        await session.__aexit__(None, None, None)
        await scheduler.kill()

    run(main)


def test_a_scheduler_that_nobody_vouches_for_is_told_nothing(pki: Pki, tmp_path: Path) -> None:
    async def main() -> None:
        impostor = Scheduler(free_port())
        await impostor.start(tls=Pki(tmp_path / "other").tls)
        session = Session(config_of(pki, impostor.port), pool="reward", credits=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2), session:
                pass
        assert not impostor.hellos
        await session.__aexit__(None, None, None)
        await impostor.kill()

    run(main)


def test_a_denial_that_ends_is_waited_out(pki: Pki) -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        scheduler.deny = UNAUTHENTICATED
        await scheduler.start(tls=pki.tls)
        session = Session(config_of(pki, scheduler.port), pool="reward", credits=1)
        entering = asyncio.ensure_future(session.__aenter__())
        await scheduler.until(lambda: len(scheduler.hellos) == 2)
        scheduler.deny = None
        await entering
        await session.__aexit__(None, None, None)
        await scheduler.kill()

    run(main)


@pytest.mark.parametrize(
    ("answer", "reason", "streams"),
    [(UNAUTHENTICATED, "unauthenticated: the token has expired", 2), (DENIED, "denied: pod j", 1)],
)
def test_a_denial_that_stands_ends_the_worker_with_its_reason(
    pki: Pki,
    monkeypatch: pytest.MonkeyPatch,
    answer: tuple[grpc.StatusCode, str],
    reason: str,
    streams: int,
) -> None:
    monkeypatch.setattr(stream, "DENIED_SECONDS", 0.01)

    async def main() -> None:
        scheduler = Scheduler(free_port())
        scheduler.deny = answer
        await scheduler.start(tls=pki.tls)
        with pytest.raises(Refused, match=reason) as refused:
            async with Session(config_of(pki, scheduler.port), pool="reward", credits=1):
                pass
        assert refused.value.exit_code == 3
        assert len(scheduler.hellos) == streams
        await scheduler.kill()

    run(main)


def test_trust_without_a_token_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ROLL_TOKEN is not set"):
        WorkerConfig.from_env({"ROLL_TRUST": str(tmp_path), "ROLL_ROLE": "reward"})


def test_weights_are_given_with_tls_to_who_knows_their_digest(pki: Pki, tmp_path: Path) -> None:
    weights = {"w": torch.arange(6.0)}
    manifest = publish(tmp_path / "weights", (1, 3), weights, 1)
    other = Pki(tmp_path / "other")

    async def main() -> None:
        config = config_of(pki, 0, host="localhost", tls=pki.tls)
        holder = Services(config, serve_weights(tmp_path / "weights", closed=True))
        await holder.start()
        policy = Policy(
            version=manifest.version,
            manifest_digest=manifest.digest,
            locations=[f"grpc:{holder.address}"],
        )
        _, got = await asyncio.to_thread(fetch, policy, tmp_path / "cache", trust=pki.trust)
        assert torch.equal(got["w"], weights["w"])
        for trust in (None, other.trust):
            with pytest.raises(FetchError, match="UNAVAILABLE"):
                await asyncio.to_thread(fetch, policy, tmp_path / "none", trust=trust)
        version = PolicyVersion(lineage=1, number=3)
        async with grpc.aio.secure_channel(
            holder.address, credentials.client(pki.roots)
        ) as channel:
            stub = WeightsStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetManifest(ManifestRequest(version=version), timeout=TIMEOUT)
            assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                file = manifest.files[0].name
                request = FetchRequest(version=version, file=file, digest="guessed")
                async for _ in stub.Fetch(request, timeout=TIMEOUT):
                    raise AssertionError("not a byte")
            assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
        await holder.stop()

    run(main)


def test_a_pod_without_a_certificate_serves_nobody_else(pki: Pki) -> None:
    async def main() -> None:
        services = Services(config_of(pki, 0, host="localhost"))
        await services.start()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.2", services.port)
        _, writer = await asyncio.open_connection("127.0.0.1", services.port)
        writer.close()
        await services.stop()

    run(main)
