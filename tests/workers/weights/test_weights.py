"""A version arrives whole and checked, by folder or by stream, whatever breaks on the way."""

import shutil
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from roll_wire.session_pb2 import Policy, PolicyVersion
from roll_wire.weights_pb2 import Chunk, Manifest
from roll_workers.errors import Fenced
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.health import Services
from roll_workers.weights import FetchError, fetch, locations, publish, serve_weights, version_name
from roll_workers.weights.manifest import WEIGHTS, versions


def model(seed: int = 0, size: int = 64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed.weight": torch.randn(size, size, generator=generator),
        "norm.weight": torch.ones(size, dtype=torch.bfloat16),
        "steps": torch.tensor([seed], dtype=torch.int64),
    }


def policy_of(manifest: Manifest, *where: str) -> Policy:
    return Policy(version=manifest.version, manifest_digest=manifest.digest, locations=where)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 0xFF
    path.write_bytes(content)


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert torch.equal(one[name], other[name])


class Holder:
    """A process's weights server, in a thread."""

    def __init__(self, folder: Path) -> None:
        import asyncio

        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        config = WorkerConfig(
            "j", "u", "inference", 0, "p", "p", 0, "", folder, folder, folder, port=0
        )
        self.services = Services(config, serve_weights(folder))
        asyncio.run_coroutine_threadsafe(self.services.start(), self.loop).result(10)

    @property
    def location(self) -> str:
        return f"grpc:{self.services.address}"

    def stop(self) -> None:
        import asyncio

        asyncio.run_coroutine_threadsafe(self.services.stop(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, Manifest]:
    folder = tmp_path / "weights"
    return folder, publish(folder, (1, 12), model(), term=3)


@pytest.fixture
def holder(published: tuple[Path, Manifest]) -> Iterator[Holder]:
    holder = Holder(published[0])
    yield holder
    holder.stop()


def test_a_version_is_read_from_its_folder(published: Any, tmp_path: Path) -> None:
    folder, manifest = published
    assert (folder / "l1-v000012" / "manifest.json").exists()
    assert manifest.term == 3
    assert [t.name for t in manifest.tensors] == ["embed.weight", "norm.weight", "steps"]
    where = locations(folder, (1, 12), "")
    got, tensors = fetch(policy_of(manifest, *where), tmp_path / "cache")
    assert got == manifest
    assert_equal(tensors, model())
    assert not (tmp_path / "cache").exists(), "what is visible is not copied"


def test_a_version_is_streamed_and_served_on_by_who_has_it(
    published: Any, holder: Holder, tmp_path: Path
) -> None:
    folder, manifest = published
    first, second = tmp_path / "first", tmp_path / "second"
    _, tensors = fetch(policy_of(manifest, holder.location), first)
    assert_equal(tensors, model())
    shutil.rmtree(folder)

    peer = Holder(first)
    _, tensors = fetch(policy_of(manifest, holder.location, peer.location), second)
    peer.stop()
    assert_equal(tensors, model())
    assert not list(second.glob(".*")), "nothing half-done is left"


def test_a_corrupt_folder_leads_to_the_next_location(
    published: Any, holder: Holder, tmp_path: Path
) -> None:
    folder, manifest = published
    shutil.copytree(folder, tmp_path / "copy")
    bad = tmp_path / "copy" / "l1-v000012"
    damage(bad / WEIGHTS)
    with pytest.raises(FetchError, match="does not match its checksum"):
        fetch(policy_of(manifest, str(bad)), tmp_path / "cache")
    _, tensors = fetch(policy_of(manifest, str(bad), holder.location), tmp_path / "cache")
    assert_equal(tensors, model())


def test_a_corrupt_stream_leads_to_the_next_location(
    published: Any, holder: Holder, tmp_path: Path
) -> None:
    folder, manifest = published
    shutil.copytree(folder, tmp_path / "copy")
    damage(tmp_path / "copy" / "l1-v000012" / WEIGHTS)
    bad = Holder(tmp_path / "copy")
    _, tensors = fetch(policy_of(manifest, bad.location, holder.location), tmp_path / "cache")
    bad.stop()
    assert_equal(tensors, model())


@pytest.mark.parametrize("change", ["truncate", "other", "manifest"])
def test_anything_but_the_announced_weights_is_refused(
    published: Any, tmp_path: Path, change: str
) -> None:
    folder, manifest = published
    target = folder / "l1-v000012"
    if change == "truncate":
        (target / WEIGHTS).write_bytes((target / WEIGHTS).read_bytes()[:-8])
    elif change == "other":
        publish(folder, (1, 12), model(seed=1), term=3)
    else:
        (target / "manifest.json").write_text("{")
    with pytest.raises(FetchError):
        fetch(policy_of(manifest, str(folder)), tmp_path / "cache")


def test_no_location_is_one_error_that_names_them_all(published: Any, tmp_path: Path) -> None:
    _, manifest = published
    with pytest.raises(FetchError, match=r"/nowhere.*not there.*grpc:127.0.0.1:1.*UNAVAILABLE"):
        fetch(policy_of(manifest, "/nowhere", "grpc:127.0.0.1:1"), tmp_path / "cache")


class Dying:
    """Serves a version over real gRPC and breaks the stream after some bytes, as a killed peer does."""

    def __init__(self, folder: Path, manifest: Manifest, dies_after: int | None) -> None:
        content = (folder / version_name((1, 12)) / WEIGHTS).read_bytes()
        self.offsets: list[int] = []

        def get_manifest(request: Any, context: Any) -> Manifest:
            return manifest

        def stream(request: Any, context: Any) -> Iterator[Chunk]:
            self.offsets.append(request.offset)
            end = len(content) if dies_after is None else dies_after
            for start in range(request.offset, end, 1000):
                yield Chunk(data=content[start : min(start + 1000, end)])
            if dies_after is not None:
                context.abort(grpc.StatusCode.UNAVAILABLE, "killed")

        from roll_wire import weights_pb2

        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        handlers = {
            "GetManifest": grpc.unary_unary_rpc_method_handler(
                get_manifest,
                weights_pb2.ManifestRequest.FromString,
                Manifest.SerializeToString,
            ),
            "Fetch": grpc.unary_stream_rpc_method_handler(
                stream, weights_pb2.FetchRequest.FromString, Chunk.SerializeToString
            ),
        }
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("roll.v1.Weights", handlers),)
        )
        self.location = f"grpc:127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()


def test_a_fetch_that_breaks_off_goes_on_with_another_holder(
    published: Any, tmp_path: Path
) -> None:
    folder, manifest = published
    dying, living = Dying(folder, manifest, 5500), Dying(folder, manifest, None)
    where = policy_of(manifest, dying.location, living.location)
    _, tensors = fetch(where, tmp_path / "cache")
    assert_equal(tensors, model())
    assert dying.offsets[0] == 0
    assert set(dying.offsets[1:]) == {5500}, "it went on where it stopped"
    assert living.offsets == [5500], "and the next holder did too"
    for each in (dying, living):
        each.server.stop(None)


def test_publishing_equal_weights_again_keeps_what_readers_read(published: Any) -> None:
    folder, manifest = published
    inode = (folder / "l1-v000012" / WEIGHTS).stat().st_ino
    again = publish(folder, (1, 12), dict(reversed(model().items())), term=4)
    assert again.digest == manifest.digest
    assert (folder / "l1-v000012" / WEIGHTS).stat().st_ino == inode


def test_publishing_again_mends_a_corrupt_version(published: Any, tmp_path: Path) -> None:
    folder, manifest = published
    damage(folder / "l1-v000012" / WEIGHTS)
    publish(folder, (1, 12), model(), term=4)
    fetched, _ = fetch(policy_of(manifest, str(folder)), tmp_path / "cache")
    assert fetched.digest == manifest.digest


def test_an_older_trainer_does_not_replace_the_weights_of_a_newer_one(published: Any) -> None:
    folder, _ = published
    with pytest.raises(Fenced, match="trainer term 3"):
        publish(folder, (1, 12), model(seed=1), term=2)


def test_readers_never_see_half_a_version_while_it_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    digests = {publish(folder, (1, 0), model(seed), term=1).digest for seed in (0, 1)}
    done = threading.Event()

    def replace() -> None:
        for n in range(60):
            publish(folder, (1, 0), model(n % 2), term=1)
        done.set()

    writer = threading.Thread(target=replace)
    writer.start()
    read = 0
    while not done.is_set():
        try:
            manifest, tensors = fetch(
                Policy(version=PolicyVersion(lineage=1), locations=[str(folder)]), tmp_path / "c"
            )
        except FetchError:
            continue  # it was gone for an instant, or replaced while read: said so, not hidden
        assert manifest.digest in digests
        assert_equal(tensors, model(int(tensors["steps"])))
        read += 1
    writer.join()
    assert read > 0


def test_the_newest_and_the_last_published_versions_stay(tmp_path: Path) -> None:
    for number in range(1, 8):
        publish(tmp_path, (1, number), {"w": torch.ones(2) * number}, term=1)
    assert versions(tmp_path) == [(1, 5), (1, 6), (1, 7)]
    # A trainer that came back at an older step publishes older versions again.
    publish(tmp_path, (1, 3), {"w": torch.ones(2)}, term=2)
    assert (1, 3) in versions(tmp_path)
    assert versions(tmp_path)[-3:] == [(1, 5), (1, 6), (1, 7)]
    publish(tmp_path, (2, 3), {"w": torch.ones(2)}, term=3)
    assert versions(tmp_path)[-1] == (2, 3)


def test_leftovers_of_a_dead_trainer_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".l1-v000004.t1.99"
    leftover.mkdir()
    (leftover / WEIGHTS).write_bytes(b"half")
    publish(tmp_path, (1, 5), model(), term=2)
    assert not leftover.exists()


def test_tied_weights_are_stored_once_and_come_back_under_both_names(tmp_path: Path) -> None:
    embed = torch.randn(16, 8)
    tied = {"embed.weight": embed, "lm_head.weight": embed, "slice": embed[:4]}
    manifest = publish(tmp_path, (1, 0), tied, term=1)
    assert [t.name for t in manifest.tensors] == ["embed.weight", "slice"]
    _, tensors = fetch(policy_of(manifest, str(tmp_path)), tmp_path / "cache")
    assert_equal(tensors, tied)


def test_a_request_reaches_no_other_file(published: Any, holder: Holder) -> None:
    from roll_wire.weights_pb2 import FetchRequest
    from roll_wire.weights_pb2_grpc import WeightsStub

    folder, manifest = published
    (folder / "secret").write_text("x")
    with grpc.insecure_channel(holder.services.address) as channel:
        request = FetchRequest(version=manifest.version, file="../secret")
        with pytest.raises(grpc.RpcError, match="no file"):
            list(WeightsStub(channel).Fetch(request))


def test_the_service_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, roll_workers.weights, roll_workers.runtime.trainer_session; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
