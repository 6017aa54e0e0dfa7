"""What a checkpoint is made of, and whether it still is."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roll_workers.errors import Unreachable

NAME = "manifest.json"
FORMAT = 1
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class CorruptCheckpoint(Exception):
    """The folder does not hold what the ledger vouched for."""


@dataclass(frozen=True, slots=True)
class File:
    name: str  # relative to the checkpoint's folder
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Enough to go on from this checkpoint when the ledger is lost."""

    job: str
    job_uid: str
    step: int
    lineage: int
    term: int  # of the trainer that wrote it
    world: int  # ranks
    seed: int
    weights_digest: str  # of the weights that were published as version `step`
    controllers: dict[str, Any]  # running statistics of the algorithm
    files: tuple[File, ...]
    bookmark: str = ""  # the scheduler's, for a ledger that knows nothing of this
    arithmetic: dict[str, Any] | None = None  # of the steps after it; None: of an earlier release
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=1, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        try:
            data = json.loads(content)
            if data["format"] != FORMAT:
                raise CorruptCheckpoint(f"its manifest has format {data['format']}, not {FORMAT}")
            data["files"] = tuple(File(**file) for file in data["files"])
            return cls(**data)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(f"its manifest can't be read: {error}") from error


def folder_name(step: int, term: int) -> str:
    return f"step-{step:06d}-t{term}"


def digest(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()


def describe(folder: Path, name: str) -> File:
    """Flushes a file to disk and takes its size and checksum."""
    with (folder / name).open("rb") as file:
        os.fsync(file.fileno())
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
        return File(name, os.fstat(file.fileno()).st_size, checksum)


def vouched(content: bytes, expected_digest: str) -> Manifest:
    """Raises CorruptCheckpoint."""
    if digest(content) != expected_digest:
        raise CorruptCheckpoint(f"{NAME} is not the one that the ledger vouched for")
    return Manifest.from_bytes(content)


def verify(folder: Path, expected_digest: str) -> Manifest:
    """Reads every byte. Raises CorruptCheckpoint with what is wrong, and Unreachable when that can't be said."""
    try:
        return _verified(folder, expected_digest)
    except OSError as error:
        raise Unreachable(
            f"{error.filename or folder} can't be read: {error.strerror or error}; if that lasts, remove "
            f"{folder} to go on from another checkpoint"
        ) from error


def _verified(folder: Path, expected_digest: str) -> Manifest:
    try:
        content = (folder / NAME).read_bytes()
    except _MISSING as error:
        raise CorruptCheckpoint(f"no {NAME}: {error.strerror}") from error
    manifest = vouched(content, expected_digest)
    for file in manifest.files:
        path = folder / file.name
        try:
            size = path.stat().st_size
            if size != file.size:
                raise CorruptCheckpoint(f"{file.name} has {size} bytes instead of {file.size}")
            with path.open("rb") as opened:
                actual = hashlib.file_digest(opened, "sha256").hexdigest()
        except _MISSING as error:
            raise CorruptCheckpoint(f"{file.name}: {error.strerror}") from error
        if actual != file.sha256:
            raise CorruptCheckpoint(f"{file.name} does not match its checksum")
    return manifest
