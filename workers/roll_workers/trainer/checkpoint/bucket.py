"""Checkpoints in an object store, by way of this machine's disk.

Invariants:
- a file is uploaded whole or not at all, and a manifest only when the store lists all files with their sizes;
- what the job's author has to mend (bucket, rights, credentials) is a UserError; what the store itself finds
  damaged is corrupt; all else is Unreachable: it is tried again for a minute, then by a restart, and nothing
  that is there is given up for it.

The record of all steps, `metrics.jsonl`, goes along: the disk that it is on ends with its pod.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from pyarrow import ArrowException
from pyarrow import fs as stores

from roll_workers.errors import Unreachable, UserError
from roll_workers.trainer.checkpoint.manifest import NAME, CorruptCheckpoint, File, Manifest
from roll_workers.trainer.checkpoint.place import FOLDER, PATTERN

log = logging.getLogger(__name__)

SCHEMES = ("s3", "gs", "abfs", "abfss")
METRICS = "metrics.jsonl"
PATIENCE = 60.0  # seconds; a trainer that is asked to end has as many
PART = 32 << 20  # bytes; a store takes 10,000 parts of one file
PARTS_AT_ONCE = 4  # in memory

# What a restart does not mend, as the store's library names it.
_MEND = {
    "NO_SUCH_BUCKET": "the bucket does not exist",
    "ACCESS_DENIED": "access is denied: the trainer's pod has no credentials, or they may not read, write and list there",
    "INVALID_ACCESS_KEY_ID": "the store does not know the access key",
    "SIGNATURE_DOES_NOT_MATCH": "the secret does not belong to the access key",
}
_CODE = re.compile(r"AWS Error (\w+)(?: \(HTTP status (\d+)\))?.* operation: (.*)")
_NO_BUCKET = re.compile(r"Bucket '.*' not found")  # of the search for its region
_DAMAGED = "VALIDATION"  # its checksum, which the store keeps with it
_LATER = ("408", "429")  # of the refusals those that time mends

T = TypeVar("T")


class Bucket:
    def __init__(self, uri: str, owner: str, storage: Path, rank: int) -> None:
        self._uri, self._rank = uri, rank
        self._here = storage / FOLDER / f".rank-{rank}"
        self._metrics = storage / METRICS
        self.tidy()
        scheme = uri.partition("://")[0]
        if scheme not in SCHEMES:
            raise UserError(
                f"storage.uri: {scheme}:// is no store that a worker knows: {', '.join(SCHEMES)}, file"
            )
        self._store, path = self._patiently(lambda: stores.FileSystem.from_uri(uri))
        self._root = f"{path.rstrip('/')}/{owner}"

    def __str__(self) -> str:
        return f"{self._uri.partition('://')[0]}://{self._root}/{FOLDER}"

    def scratch(self, name: str) -> Path:
        self.tidy()
        folder = self._here / name
        folder.mkdir(parents=True)
        return folder

    def keep(self, name: str, files: Iterable[File]) -> None:
        for file in files:
            source, target = self._here / name / file.name, f"{self._path(name)}/{file.name}"
            self._patiently(partial(self._upload, source, target))
        if self._rank == 0 and self._metrics.exists():
            self._patiently(lambda: self._upload(self._metrics, f"{self._root}/{METRICS}"))
        self.tidy()

    def seal(self, name: str, manifest: Manifest) -> None:
        path = self._path(name)
        sizes = self._patiently(lambda: {i.path: i.size for i in self._list(path, deep=True)})
        for file in manifest.files:
            if sizes.get(f"{path}/{file.name}") != file.size:
                raise Unreachable(f"{self}/{name}: {file.name} was uploaded and is not there whole")
        self._patiently(lambda: self._write(f"{path}/{NAME}", manifest.to_bytes()))

    def names(self) -> list[str]:
        found = self._patiently(lambda: self._list(f"{self._root}/{FOLDER}"))
        return fnmatch.filter((info.base_name for info in found), PATTERN)

    def read(self, name: str) -> bytes:
        def content() -> bytes:
            with self._store.open_input_stream(f"{self._path(name)}/{NAME}") as stream:
                return bytes(stream.read())

        return self._patiently(content)

    def bring(self, name: str) -> Path:
        self.tidy()
        target = self._here / name
        target.mkdir(parents=True)
        self._patiently(lambda: self._download(self._path(name), target))
        if self._rank == 0 and not self._metrics.exists():
            self._patiently(self._bring_metrics)
        return target

    def drop(self, name: str) -> None:
        def gone() -> None:
            found = {info.path for info in self._list(path, deep=True)}
            if f"{path}/{NAME}" in found:
                self._store.delete_file(f"{path}/{NAME}")
            if found:
                self._store.delete_dir(path)

        path = self._path(name)
        self._patiently(gone)

    def tidy(self) -> None:
        shutil.rmtree(self._here, ignore_errors=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{FOLDER}/{name}"

    def _list(self, path: str, *, deep: bool = False) -> list[stores.FileInfo]:
        chosen = stores.FileSelector(path, allow_not_found=True, recursive=deep)
        found: list[stores.FileInfo] = self._store.get_file_info(chosen)
        return found

    def _upload(self, source: Path, target: str) -> None:
        with source.open("rb") as file, self._store.open_output_stream(target) as stream:
            part = 0
            while content := file.read(PART):
                stream.write(content)
                part += 1
                if part % PARTS_AT_ONCE == 0:
                    stream.flush()  # waits for what is under way

    def _write(self, target: str, content: bytes) -> None:
        with self._store.open_output_stream(target) as stream:
            stream.write(content)

    def _download(self, source: str, target: Path) -> None:
        stores.copy_files(
            source,
            str(target),
            source_filesystem=self._store,
            destination_filesystem=stores.LocalFileSystem(),
            chunk_size=PART,
        )

    def _bring_metrics(self) -> None:
        source = f"{self._root}/{METRICS}"
        if self._store.get_file_info(source).type == stores.FileType.File:
            self._here.mkdir(parents=True, exist_ok=True)
            self._download(source, self._here / METRICS)
            os.replace(self._here / METRICS, self._metrics)  # whole, or not there

    def _patiently(self, act: Callable[[], T]) -> T:
        """Again and again for a while, unless it is the user's to mend."""
        end, pause = time.monotonic() + PATIENCE, 1.0
        while True:
            try:
                return act()
            except (OSError, ArrowException) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # not the store's: a file that is missing, or this machine's disk
                problem = _judged(self._uri, error)
                if isinstance(problem, UserError) or time.monotonic() + pause > end:
                    raise problem from error
            log.warning("%s; trying again in %.0f s", problem, pause)
            time.sleep(pause)
            pause = min(2 * pause, 15.0)


def _judged(uri: str, error: BaseException) -> UserError | Unreachable | CorruptCheckpoint:
    if isinstance(error, ValueError):  # the URI itself
        return UserError(f"storage.uri: {uri}: {_first_line(error)}")
    if _NO_BUCKET.search(_first_line(error)):
        return UserError(f"storage.uri: {uri}: {_MEND['NO_SUCH_BUCKET']}")
    if found := _CODE.search(_first_line(error)):
        code, status, words = found[1], found[2] or "", found[3]
        if code == _DAMAGED:
            return CorruptCheckpoint(f"an object in the store is damaged: {words}")
        if code in _MEND:
            return UserError(f"storage.uri: {uri}: {_MEND[code]}")
        if status.startswith("4") and status not in _LATER:
            return UserError(f"storage.uri: {uri}: the store refuses: {words}")
    return Unreachable(f"storage.uri: {uri} can't be reached: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
