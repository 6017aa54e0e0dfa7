"""The files of a job as one archive.

Invariant: the same files give the same digest, on every machine and at any time: it names their ConfigMap.
"""

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass

from roll_operator.cli.source import Files
from roll_operator.controller.folder import RunError

LIMIT = 700_000
"""Bytes, compressed: a ConfigMap holds 1 MiB, and the API server's store 1.5 MiB with base64 and all."""
UNPACKED_LIMIT = 256 << 20
"""What a worker unpacks, at most."""
TOLD = 3

WAY_OUT = (
    "Leave data where pods can reach it: on a hub (name its id), or on a claim that the role's template "
    "mounts (name its absolute path)"
)


@dataclass(frozen=True, slots=True)
class Archive:
    digest: str
    """Of the content, before compression, which is not the same in every version of zlib."""
    packed: bytes


def pack(files: Files) -> Archive | None:
    """None where there is nothing to pack. RunError for what does not fit into a ConfigMap."""
    if not files:
        return None
    sizes = {name: path.stat().st_size for name, path in files.items()}
    total = sum(sizes.values())
    if total > UNPACKED_LIMIT:
        raise RunError(f"the job's files are {size_text(total)}, {_too_much(sizes)}")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(files):
            data = files[name].read_bytes()
            entry = tarfile.TarInfo(name)  # nobody's, of no time, readable by all
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    packed = gzip.compress(content.getvalue(), compresslevel=9, mtime=0)
    if len(packed) > LIMIT:
        raise RunError(
            f"the job's files are {size_text(len(packed))} compressed, {_too_much(sizes)}"
        )
    return Archive(hashlib.sha256(content.getvalue()).hexdigest(), packed)


def _too_much(sizes: dict[str, int]) -> str:
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:TOLD]
    told = ", ".join(f"{name} ({size_text(sizes[name])})" for name in largest)
    return (
        f"more than the {size_text(LIMIT)} that go along with a job. The largest: {told}. {WAY_OUT}"
    )


def size_text(count: int) -> str:
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count / 1000:.0f} kB" if count >= 1000 else f"{count} bytes"
