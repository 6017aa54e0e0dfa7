"""Where a job's checkpoints are kept: a folder that is visible here, or below a URI in an object store.

Invariants:
- a checkpoint is there when its manifest is: that is written last and removed first, so what an interrupted
  upload left is none;
- a store that does not answer is never taken for one that has lost something: Unreachable is no missing file.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from roll_workers.errors import UserError
from roll_workers.trainer.checkpoint.manifest import NAME, CorruptCheckpoint, File, Manifest

log = logging.getLogger(__name__)

FOLDER = "checkpoints"
PATTERN = "step-*-t*"


class Place(Protocol):
    """`name` is that of a checkpoint. str() is where it is, for messages."""

    def scratch(self, name: str) -> Path:
        """The folder on this machine into which a rank writes its files."""
        ...

    def keep(self, name: str, files: Iterable[File]) -> None:
        """Brings a rank's files from there to where they stay."""
        ...

    def seal(self, name: str, manifest: Manifest) -> None:
        """By one rank, when all have kept theirs."""
        ...

    def names(self) -> list[str]:
        """What is there, whole or not."""
        ...

    def read(self, name: str) -> bytes:
        """The manifest. Raises FileNotFoundError."""
        ...

    def bring(self, name: str) -> Path:
        """A folder on this machine with all that is there of a checkpoint."""
        ...

    def drop(self, name: str) -> None: ...

    def tidy(self) -> None:
        """Removes what was only on its way."""
        ...


def place_of(storage: Path, uri: str | None, owner: str, rank: int) -> Place:
    """`owner` is a path below the URI that no other job has. Raises UserError and Unreachable."""
    if uri is None:
        return Folder(storage / FOLDER)
    scheme, _, rest = uri.partition("://")
    if scheme != "file":
        from roll_workers.trainer.checkpoint.bucket import Bucket

        return Bucket(uri, owner, storage, rank)
    if not rest.startswith("/"):
        raise UserError(f"storage.uri: {uri} names no absolute path: write file:///path")
    return Folder(Path(unquote(rest)) / owner / FOLDER)


def kept_manifests(place: Place) -> Iterator[tuple[str, bytes]]:
    """Of all checkpoints that are there, by name."""
    for name in sorted(place.names()):
        try:
            yield name, place.read(name)
        except FileNotFoundError:  # an upload that was interrupted
            continue
        except CorruptCheckpoint as error:
            log.warning("%s/%s: %s", place, name, error)


class Folder:
    """Written in place: there is nothing to bring anywhere."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def scratch(self, name: str) -> Path:
        folder = self._root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def keep(self, name: str, files: Iterable[File]) -> None:
        pass

    def seal(self, name: str, manifest: Manifest) -> None:
        folder = self._root / name
        scratch = folder / f".{NAME}"
        with scratch.open("wb") as file:
            file.write(manifest.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(folder / NAME)
        for directory in (folder / "model", folder, folder.parent):
            if directory.is_dir():
                handle = os.open(directory, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def names(self) -> list[str]:
        return [path.name for path in self._root.glob(PATTERN)]

    def read(self, name: str) -> bytes:
        return (self._root / name / NAME).read_bytes()

    def bring(self, name: str) -> Path:
        return self._root / name

    def drop(self, name: str) -> None:
        (self._root / name / NAME).unlink(missing_ok=True)
        shutil.rmtree(self._root / name, ignore_errors=True)

    def tidy(self) -> None:
        pass
