"""The files that came along with the job: unpacked before anything looks for them.

Invariants: nothing is written outside the folder, whatever the archive says; the folder appears whole, with
the digest of its archive in it, so that several pods on one volume may all unpack.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from roll_workers.errors import UserError

MARK = ".archive"  # in the folder: the digest of what was unpacked
MOST_BYTES = 256 << 20
MOST_FILES = 10_000


def unpack(archive: Path | None, into: Path) -> None:
    """Does nothing where there is no archive. UserError where it is none of ours."""
    if archive is None or not archive.exists():
        return
    try:
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        into.parent.mkdir(parents=True, exist_ok=True)
        while _unpacked(into) != digest:
            # In a folder of its own: pods that share the volume may do the same at the same time.
            with tempfile.TemporaryDirectory(prefix=f".{into.name}.", dir=into.parent) as scratch:
                fresh = Path(scratch) / into.name
                fresh.mkdir()
                _extract(archive, fresh)
                (fresh / MARK).write_text(digest)
                _put(fresh, into)
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise UserError(
            f"ROLL_SOURCE_ARCHIVE: {archive} can't be unpacked into {into}: {error}"
        ) from error


def _extract(archive: Path, into: Path) -> None:
    with tarfile.open(archive, "r:gz") as packed:
        left, files = MOST_BYTES, 0
        for member in packed:
            left, files = left - member.size, files + 1
            if left < 0 or files > MOST_FILES:
                raise tarfile.TarError(
                    f"it holds more than {MOST_BYTES >> 20} MiB or {MOST_FILES} files"
                )
            _write(packed, member, into)


def _write(packed: tarfile.TarFile, member: tarfile.TarInfo, into: Path) -> None:
    """Plain files and folders alone, under names inside. (`extract` has no filters before Python 3.11.4.)"""
    name = PurePosixPath(member.name.lstrip("/"))
    if ".." in name.parts or not (member.isfile() or member.isdir()):
        raise tarfile.TarError(f"{member.name} is no file or folder below it")
    if member.isdir():
        (into / name).mkdir(parents=True, exist_ok=True)
        return
    content = packed.extractfile(member)
    assert content is not None  # it is a plain file
    (into / name).parent.mkdir(parents=True, exist_ok=True)
    with content, (into / name).open("wb") as file:
        shutil.copyfileobj(content, file)


def _put(fresh: Path, into: Path) -> None:
    """In one step, unless another pod was faster."""
    with contextlib.suppress(FileNotFoundError):
        into.rename(fresh.with_name("old"))
    try:
        fresh.rename(into)
    except OSError:
        if not into.exists():
            raise


def _unpacked(into: Path) -> str:
    try:
        return (into / MARK).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""
