"""Payloads in preallocated segment files: appended, synced once per commit, read where they lie.

Invariant: a Ref that a committed row holds points at bytes that are on disk. What lies behind the last
committed Ref of the newest segment is garbage of a crash and is written over.

The newest payloads stay in memory, because most are sent on soon: to the next stage, to the trainer.
Preallocation keeps `fdatasync` from having to write file metadata each time.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from roll_operator.scheduler.lifecycle import Ref

SEGMENT_BYTES = 32 << 20
RECENT_BYTES = 32 << 20  # kept in memory: up to twice as much
MAX_RUN = 1000  # buffers of one system call: Linux takes 1,024


class SegmentStore:
    """`append`, `read` and `take` belong to one thread, `write` to the thread that commits."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._size = segment_bytes
        self._files: dict[int, int] = {}
        self._readers: dict[int, int] = {}
        self._fresh: dict[tuple[int, int], bytes] = {}
        self._writing: dict[tuple[int, int], bytes] = {}
        self._recent: dict[tuple[int, int], bytes] = {}
        self._older: dict[tuple[int, int], bytes] = {}
        self._recent_bytes = 0
        self._segment = 0
        self._offset = 0
        self._room = 0
        folder.mkdir(parents=True, exist_ok=True)

    def resume(self, segment: int, offset: int) -> None:
        """Go on behind the last committed payload."""
        self._segment, self._offset = segment, offset
        path = self._path(segment)
        self._room = path.stat().st_size if path.exists() else 0
        for stale in self._folder.glob("*.seg"):
            if int(stale.stem) > segment:
                stale.unlink()

    def append(self, payload: bytes) -> Ref:
        length = len(payload)
        if self._offset + length > self._room:
            self._segment += 1
            self._offset = 0
            self._room = max(self._size, length)
        key = self._segment, self._offset
        self._fresh[key] = self._recent[key] = payload
        self._offset += length
        self._recent_bytes += length
        if self._recent_bytes > RECENT_BYTES:
            self._older, self._recent, self._recent_bytes = self._recent, {}, 0
        return Ref(*key, length, zlib.crc32(payload))

    def read(self, ref: Ref) -> bytes:
        if not ref.length:
            return b""  # shares its place with the next one
        key = ref[:2]
        held = self._recent.get(key) or self._older.get(key)
        if held is None:
            held = self._fresh.get(key) or self._writing.get(key)
        if held is not None:
            return held
        return os.pread(self._reader(ref.segment), ref.length, ref.offset)

    def take(self) -> dict[tuple[int, int], bytes]:
        """What is to be written with the next commit; readable from memory until `done`."""
        self._writing, self._fresh = self._fresh, {}
        return self._writing

    def done(self) -> None:
        self._writing = {}

    def write(self, payloads: dict[tuple[int, int], bytes]) -> None:
        """Write runs of adjacent payloads at once, then sync each segment touched."""
        touched = set()
        run: list[bytes] = []
        start = end = (0, 0)
        for place, payload in payloads.items():
            if place != end or len(run) >= MAX_RUN:
                self._write_run(start, run)
                start, run = place, []
            run.append(payload)
            end = (place[0], place[1] + len(payload))
            touched.add(place[0])
        self._write_run(start, run)
        for segment in touched:
            os.fdatasync(self._file(segment))

    def _write_run(self, start: tuple[int, int], run: list[bytes]) -> None:
        if not run:
            return
        segment, offset = start
        size = sum(map(len, run))
        file = self._file(segment, at_least=offset + size)
        written = os.pwritev(file, run, offset)
        if written < size:
            _write_rest(file, memoryview(b"".join(run))[written:], offset + written)

    def drop(self, segments: set[int]) -> None:
        """These segments hold nothing that any row refers to."""
        for segment in segments:
            if segment >= self._segment:
                continue
            for files in (self._files, self._readers):
                file = files.pop(segment, None)
                if file is not None:
                    os.close(file)
            self._path(segment).unlink(missing_ok=True)

    def segments(self) -> set[int]:
        return {int(p.stem) for p in self._folder.glob("*.seg")}

    def close(self) -> None:
        for file in (*self._files.values(), *self._readers.values()):
            os.close(file)
        self._files, self._readers = {}, {}

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:08d}.seg"

    def _reader(self, segment: int) -> int:
        """Never makes a file: an audit changes nothing."""
        file = self._files.get(segment) or self._readers.get(segment)
        if file is None:
            file = self._readers[segment] = os.open(self._path(segment), os.O_RDONLY)
        return file

    def _file(self, segment: int, at_least: int = 0) -> int:
        file = self._files.get(segment)
        if file is None:
            path = self._path(segment)
            new = not path.exists()
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            if new:
                try:
                    os.posix_fallocate(file, 0, max(self._size, at_least))
                except OSError:
                    os.close(file)
                    path.unlink(missing_ok=True)
                    raise
                _sync_folder(self._folder)
            self._files[segment] = file
        return file


def _write_rest(file: int, rest: memoryview, offset: int) -> None:
    while rest:
        written = os.pwrite(file, rest, offset)
        rest = rest[written:]
        offset += written


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
