"""Makes a version fetchable: written aside, then renamed into place.

Invariants:
- a reader sees a whole version or none; one that is being read may be replaced or removed meanwhile,
  because the reader's open file stays what it was;
- a version of a newer trainer is never replaced by an older one;
- the newest versions, and those published last, stay.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from roll_wire.weights_pb2 import Manifest

from roll_workers.errors import Fenced
from roll_workers.weights.manifest import (
    MANIFEST,
    WEIGHTS,
    CorruptWeights,
    Version,
    compare,
    make,
    read,
    version_name,
    versions,
    write,
)

if TYPE_CHECKING:
    from torch import Tensor

KEEP = 3


def publish(
    folder: Path, version: Version, tensors: Mapping[str, Tensor], term: int, *, keep: int = KEEP
) -> Manifest:
    """Writes a version into `folder`. Publishing equal weights again changes nothing."""
    from safetensors.torch import save_file

    name = version_name(version)
    scratch = folder / f".{name}.t{term}.{os.getpid()}"
    _remove_leftovers(folder, term)
    scratch.mkdir(parents=True)
    stored, aliases = untie(tensors)
    save_file(stored, scratch / WEIGHTS, metadata=aliases)
    with (scratch / WEIGHTS).open("rb") as file:
        manifest = make(version, file, term)
    write(manifest, scratch)
    published = _put(scratch, folder / name, manifest)
    prune(folder, keep)
    return published


def locations(folder: Path, version: Version, address: str, transfer: str = "Auto") -> list[str]:
    """Where a published version can be had, best first; `address` is host:port of a WeightsServicer."""
    by_folder = [str((folder / version_name(version)).absolute())]
    by_stream = [f"grpc:{address}"] if address else []
    return {"Folder": by_folder, "Stream": by_stream}.get(transfer, by_folder + by_stream)


def untie(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors that own their memory, and the names of those that are the same as another one.

    Of tied weights the first name stays; safetensors stores no shared memory. The aliases go into the
    file's metadata, as `safetensors.torch.save_model` does.
    """
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[object, ...], str] = {}
    for name, tensor in tensors.items():
        identity = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        first = seen.setdefault(identity, name) if tensor.numel() else name
        if first != name:
            aliases[name] = first
            continue
        own = tensor.detach().cpu().contiguous()
        # A slice of something larger would carry all of it along.
        if own.untyped_storage().nbytes() != own.numel() * own.element_size():
            own = own.clone()
        stored[name] = own
    return stored, aliases


def prune(folder: Path, keep: int) -> list[Version]:
    """Removes old versions: neither the `keep` highest nor the `keep` last published (a rewound trainer)."""
    there = versions(folder)
    paths = {version: folder / version_name(version) for version in there}
    by_time = sorted(there, key=lambda version: _published_at(paths[version]))
    removed = sorted(set(there) - set(there[-keep:]) - set(by_time[-keep:]))
    for version in removed:
        _discard(paths[version])
    return removed


def _put(scratch: Path, target: Path, manifest: Manifest) -> Manifest:
    """Moves a finished folder to its name."""
    while True:
        try:
            existing = read(target)
        except (FileNotFoundError, CorruptWeights):
            pass
        else:
            if existing.term > manifest.term:
                shutil.rmtree(scratch)
                raise Fenced(f"{target.name} was published by trainer term {existing.term}")
            if existing.digest == manifest.digest and _is_intact(target, existing):
                shutil.rmtree(scratch)
                os.utime(target / MANIFEST)
                return existing
        _discard(target)
        try:
            scratch.rename(target)
        except OSError:
            if not target.exists():
                raise
            continue  # another trainer was faster: look at what it wrote
        return manifest


def _is_intact(target: Path, manifest: Manifest) -> bool:
    try:
        with (target / WEIGHTS).open("rb") as file:
            compare(manifest, file)
    except (OSError, ValueError, CorruptWeights):
        return False
    return True


def _discard(path: Path) -> None:
    """Takes a version away in one step, so that nobody finds half of it, then frees its space."""
    trash = path.with_name(f".{path.name}.gone.{os.getpid()}")
    try:
        path.rename(trash)
    except FileNotFoundError:
        return
    shutil.rmtree(trash, ignore_errors=True)


def _remove_leftovers(folder: Path, term: int) -> None:
    """What this trainer or an earlier, dead one began and did not finish."""
    for path in folder.glob(".l*-v*.t*"):
        began = path.name.rsplit(".t", 1)[1].split(".")[0]
        if began.isdigit() and int(began) <= term:
            shutil.rmtree(path, ignore_errors=True)


def _published_at(path: Path) -> float:
    try:
        return (path / MANIFEST).stat().st_mtime
    except FileNotFoundError:
        return 0.0
