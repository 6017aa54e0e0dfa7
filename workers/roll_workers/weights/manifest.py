"""The manifest of a version, made from and compared with the bytes of its safetensors file. No torch here.

Invariant: the digest is a function of names, shapes, dtypes and contents alone, so equal weights have
equal digests, whoever wrote them and in whatever order.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from io import BufferedReader
from pathlib import Path
from typing import Any

from roll_wire.session_pb2 import PolicyVersion
from roll_wire.weights_pb2 import FileInfo, Manifest, TensorInfo

Version = tuple[int, int]  # (lineage, number)

WEIGHTS = "weights.safetensors"
MANIFEST = "manifest.json"
SMALL = 64 << 20  # bytes


class CorruptWeights(Exception):
    """A file is not what its manifest says, or the manifest is not the announced one."""


def version_name(version: Version) -> str:
    return f"l{version[0]}-v{version[1]:06d}"


def parse_version(name: str) -> Version | None:
    lineage, _, number = name.partition("-v")
    if lineage[:1] == "l" and lineage[1:].isdigit() and number.isdigit():
        return int(lineage[1:]), int(number)
    return None


def versions(folder: Path) -> list[Version]:
    """The complete versions in a folder, oldest first."""
    found = (parse_version(path.parent.name) for path in folder.glob(f"l*-v*/{MANIFEST}"))
    return sorted(version for version in found if version is not None)


def describe(file: BufferedReader) -> list[TensorInfo]:
    """Every tensor of an open safetensors file with the checksum of its bytes, by name."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
        try:
            size = int.from_bytes(view[:8], "little")
            header = json.loads(bytes(view[8 : 8 + size]))
            header.pop("__metadata__", None)
            entries = sorted(header.items())
            offsets = [entry["data_offsets"] for _, entry in entries]
            with _threads(len(view)) as pool:
                checksums = (pool.map if pool else map)(
                    lambda part: _checksum(view, 8 + size, *part), offsets
                )
                return [
                    TensorInfo(
                        name=name, shape=entry["shape"], dtype=entry["dtype"], checksum=checksum
                    )
                    for (name, entry), checksum in zip(entries, checksums, strict=True)
                ]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptWeights(f"{file.name} is not a safetensors file: {error}") from error


def make(version: Version, file: BufferedReader, term: int) -> Manifest:
    """The manifest of a file that was just written."""
    size = os.fstat(file.fileno()).st_size
    tensors = describe(file)
    whole = digest(tensors)
    return Manifest(
        version=PolicyVersion(lineage=version[0], number=version[1]),
        kind=Manifest.FULL,
        tensors=tensors,
        files=[FileInfo(name=WEIGHTS, size=size, content=_content(file, whole))],
        term=term,
        digest=whole,
    )


def digest(tensors: list[TensorInfo]) -> str:
    hashed = hashlib.sha256()
    for tensor in sorted(tensors, key=lambda each: each.name):
        row = [tensor.name, list(tensor.shape), tensor.dtype, tensor.checksum]
        hashed.update(json.dumps(row).encode() + b"\n")
    return hashed.hexdigest()


def check(manifest: Manifest, version: Version, announced: str) -> None:
    """Raises unless the manifest is sound and is the announced one."""
    if (manifest.version.lineage, manifest.version.number) != version:
        raise CorruptWeights(f"the manifest is of another version than {version_name(version)}")
    if digest(list(manifest.tensors)) != manifest.digest:
        raise CorruptWeights("the manifest does not match its own digest")
    if announced and manifest.digest != announced:
        raise CorruptWeights(f"digest {manifest.digest[:12]}, announced was {announced[:12]}")


def compare(manifest: Manifest, file: BufferedReader) -> None:
    """Raises unless the file holds exactly the tensors of the manifest."""
    expected = {tensor.name: tensor for tensor in manifest.tensors}
    actual = {tensor.name: tensor for tensor in describe(file)}
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            raise CorruptWeights(f"{file.name}: tensor {name} does not match its checksum")


def write(manifest: Manifest, folder: Path) -> None:
    """By hand and in one line: protobuf's own JSON, and indents, take several times as long."""
    fields: dict[str, Any] = {
        "version": _plain(manifest.version),
        "kind": Manifest.Kind.Name(manifest.kind),
        "tensors": [
            {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "checksum": t.checksum}
            for t in manifest.tensors
        ],
        "files": [{"name": f.name, "size": f.size, "content": f.content} for f in manifest.files],
        "term": manifest.term,
        "digest": manifest.digest,
    }
    if manifest.HasField("base"):
        fields["base"] = _plain(manifest.base)
    (folder / MANIFEST).write_text(json.dumps(fields) + "\n")


def read(folder: Path) -> Manifest:
    """Raises FileNotFoundError when the version is not (or no longer) there."""
    path = folder / MANIFEST
    try:
        return Manifest(**json.loads(path.read_text()))
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptWeights(f"{path} is not a manifest: {error}") from error


def _content(file: BufferedReader, whole: str) -> str:
    """Names the bytes of a file without reading them once more."""
    file.seek(0)
    header = file.read(int.from_bytes(file.read(8), "little"))
    return hashlib.sha256(header + whole.encode()).hexdigest()


def _plain(version: PolicyVersion) -> dict[str, int]:
    return {"lineage": version.lineage, "number": version.number}


def _threads(size: int) -> AbstractContextManager[ThreadPoolExecutor | None]:
    """To hash so many bytes in: hashing large blocks releases the interpreter's lock.

    None for a small model, which is hashed before the first thread would have started.
    """
    if size < SMALL:
        return nullcontext()
    return ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0))))


def _checksum(view: memoryview, start: int, begin: int, end: int) -> str:
    if not 0 <= begin <= end <= len(view) - start:
        raise ValueError("it is cut off")
    return hashlib.sha256(view[start + begin : start + end]).hexdigest()
