"""Gets a version that was announced: from a folder that is visible here, else by a stream from a holder.

Invariants:
- what is returned was compared with the announced digest, tensor by tensor;
- a location that is gone, corrupt or breaks off leads to the next one, never to a wrong model;
- a stream that broke goes on where it stopped, also from another holder of the same file.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from roll_wire.session_pb2 import Policy
from roll_wire.weights_pb2 import FetchRequest, FileInfo, Manifest, ManifestRequest
from roll_wire.weights_pb2_grpc import WeightsStub

from roll_workers.runtime.connection import Unready, to_peer
from roll_workers.weights.manifest import (
    MANIFEST,
    WEIGHTS,
    CorruptWeights,
    Version,
    check,
    compare,
    read,
    version_name,
    write,
)
from roll_workers.weights.publish import prune

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

KEEP = 2  # versions in the cache, for peers
ATTEMPTS = 3  # of one location that breaks off without a byte of progress
ANSWER_SECONDS = 10.0


class FetchError(Exception):
    """No location had the version."""


def fetch(
    policy: Policy, cache: Path, *, trust: Path | None = None, keep: int = KEEP
) -> tuple[Manifest, dict[str, Tensor]]:
    """Blocks while it reads: call it in a thread. Streamed versions land in `cache`, to be served on.

    `trust` is the folder with the certificates that streams are to be checked with; None: in the clear.
    """
    version = (policy.version.lineage, policy.version.number)
    reasons = []
    own = cache / version_name(version)
    for location in [str(own)] * own.exists() + list(policy.locations):
        try:
            if location.startswith("grpc:"):
                folder = _download(location.removeprefix("grpc:"), policy, cache, trust)
            else:
                folder = _version_folder(Path(location), version)
            manifest, tensors = load(folder, policy)
        except FileNotFoundError:
            reasons.append(f"{location}: not there")
        except (OSError, CorruptWeights, Unready) as error:
            reasons.append(f"{location}: {error}")
            log.warning("weights %s: %s", version_name(version), reasons[-1])
            if location.startswith("grpc:"):
                shutil.rmtree(cache / version_name(version), ignore_errors=True)
        except grpc.RpcError as error:
            reasons.append(f"{location}: {error.code().name}: {error.details()}")  # type: ignore[attr-defined]
            log.warning("weights %s: %s", version_name(version), reasons[-1])
        else:
            prune(cache, keep)
            return manifest, tensors
    raise FetchError(f"weights {version_name(version)} can't be had: " + "; ".join(reasons))


def load(folder: Path, policy: Policy) -> tuple[Manifest, dict[str, Tensor]]:
    """Reads a version from a folder and checks it; tied names are restored."""
    from safetensors import safe_open

    manifest = read(folder)
    check(manifest, (policy.version.lineage, policy.version.number), policy.manifest_digest)
    path = folder / WEIGHTS
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size != manifest.files[0].size:
            raise CorruptWeights(f"{path} has another size than its manifest says")
        compare(manifest, file)
        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            aliases: Mapping[str, str] = opened.metadata() or {}
        # The name may have been given to another file between the comparison and the load.
        if os.fstat(file.fileno()).st_ino != path.stat().st_ino:
            raise CorruptWeights(f"{path} was replaced while it was read")
    tensors |= {name: tensors[first] for name, first in aliases.items() if first in tensors}
    return manifest, tensors


def _version_folder(path: Path, version: Version) -> Path:
    return path if (path / MANIFEST).exists() else path / version_name(version)


def _download(address: str, policy: Policy, cache: Path, trust: Path | None) -> Path:
    """Streams a version into the cache and returns its folder."""
    version = (policy.version.lineage, policy.version.number)
    with to_peer(address, trust) as channel:
        stub = WeightsStub(channel)
        manifest = stub.GetManifest(
            ManifestRequest(version=policy.version, digest=policy.manifest_digest),
            timeout=ANSWER_SECONDS,
            wait_for_ready=False,
        )
        check(manifest, version, policy.manifest_digest)
        [info] = manifest.files
        # Named by content, so that a rest is only ever continued with bytes of the same file.
        part = cache / f".{version_name(version)}.{info.content[:16]}.part"
        part.mkdir(parents=True, exist_ok=True)
        _stream(stub, policy, info, part / WEIGHTS)
    write(manifest, part)
    target = cache / version_name(version)
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)
    for rest in cache.glob(".*.part"):
        shutil.rmtree(rest, ignore_errors=True)
    return target


def _stream(stub: WeightsStub, policy: Policy, info: FileInfo, path: Path) -> None:
    """Fills `path` up to its size, going on where it stands."""
    failures = 0
    with path.open("ab") as file:
        while (start := file.tell()) < info.size:
            try:
                for chunk in stub.Fetch(
                    FetchRequest(
                        version=policy.version,
                        file=info.name,
                        offset=start,
                        digest=policy.manifest_digest,
                    )
                ):
                    file.write(chunk.data)
            except grpc.RpcError:
                failures = 0 if file.tell() > start else failures + 1
                if failures == ATTEMPTS:
                    raise
            else:
                if file.tell() == start:
                    raise CorruptWeights(f"{info.name} ended at {start} of {info.size} bytes")
