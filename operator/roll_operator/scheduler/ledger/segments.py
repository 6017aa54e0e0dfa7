"""Payloads in preallocated segment files: appended, synced once per commit, read where they lie.

Invariant: where a committed Part says that its payload lies, it is on disk. What lies behind the last
committed one of the newest segment is garbage of a crash and is written over.

The newest payloads stay in memory, because most are sent on soon: to the next stage, to the trainer.
Preallocation keeps `fdatasync` from having to write file metadata each time. A segment that nothing refers to any
more becomes a later one: over blocks that were written before, a sync takes half the time.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from roll_operator.scheduler.lifecycle import Block, Part
from roll_operator.scheduler.state import Payload

SEGMENT_BYTES = 32 << 20
RECENT_BYTES = 32 << 20  # kept in memory: up to twice as much, and what is not yet written
ENTRY_BYTES = 450  # what keeps a payload findable in memory (measured), however small it is
SPARES = 2  # segments kept to be written again
MAX_RUN = 1000  # buffers of one system call: Linux takes 1,024


@dataclass(slots=True)
class Run:
    """Payloads that lie end to end."""

    segment: int
    start: int
    payloads: list[Payload] = field(default_factory=list)

    @property
    def end(self) -> tuple[int, int]:
        return self.segment, self.start + sum(map(len, self.payloads))


class SegmentStore:
    """`append`, `read`, `take` and `done` belong to one thread; `write`, `segments` and `drop` to the one that commits."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._size = segment_bytes
        self._files: dict[int, int] = {}
        self._readers: dict[int, int] = {}
        self._runs: list[Run] = []  # not yet written
        self._recent: list[Block] = []
        self._older: list[Block] = []
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

    def append(self, payload: Payload) -> Block:
        length = len(payload)
        start = self._offset
        if start + length > self._room:
            self._segment += 1
            start = 0
            self._room = max(self._size, length)
            self._runs.append(Run(self._segment, 0))
        elif not self._runs:
            self._runs.append(Run(self._segment, start))
        block = Block(self._segment, start, payload)
        self._runs[-1].payloads.append(payload)
        self._recent.append(block)
        self._offset = start + length
        self._recent_bytes += length + ENTRY_BYTES
        return block

    def read(self, block: Block, first: int, length: int) -> Payload:
        """A stretch of a block."""
        if block.data is not None:
            return block.data[first : first + length]
        return self.read_at(block.segment, block.start + first, length)

    def read_at(self, segment: int, start: int, length: int) -> bytes:
        """From the disk."""
        return os.pread(self._reader(segment), length, start) if length else b""

    def read_part(self, part: Part) -> bytes | None:
        """From the disk; None where something else lies there: it is damaged, or was pruned and written over."""
        payload = self.read_at(part.segment, part.start, part.length)
        intact = len(payload) == part.length and zlib.crc32(payload) == part.checksum
        return payload if intact else None

    def take(self) -> list[Run]:
        """What is to be written with the next commit; readable from memory until it is."""
        runs, self._runs = self._runs, []
        return runs

    def done(self) -> None:
        """What was taken is written. Only here is memory given up: the older half is on disk by now."""
        if self._recent_bytes > RECENT_BYTES:
            for block in self._older:
                block.data = None
            self._older, self._recent, self._recent_bytes = self._recent, [], 0

    def write(self, runs: list[Run]) -> None:
        """Write payloads that lie end to end at once, then sync each segment touched."""
        for run in runs:
            start = run.start
            for first in range(0, len(run.payloads), MAX_RUN):
                start += self._write(run.segment, start, run.payloads[first : first + MAX_RUN])
        for segment in {run.segment for run in runs}:
            os.fdatasync(self._file(segment))

    def _write(self, segment: int, start: int, payloads: list[Payload]) -> int:
        size = sum(map(len, payloads))
        file = self._file(segment, at_least=start + size)
        written = os.pwritev(file, payloads, start)
        if written < size:
            _write_rest(file, memoryview(b"".join(payloads))[written:], start + written)
        return size

    def drop(self, segments: set[int]) -> None:
        """These segments hold nothing that any row refers to."""
        for segment in segments:
            if segment >= self._segment:
                continue
            for files in (self._files, self._readers):
                file = files.pop(segment, None)
                if file is not None:
                    os.close(file)
            self._put_by(self._path(segment))

    def _put_by(self, path: Path) -> None:
        """Keep it as a spare, while there are few."""
        if not path.exists():
            return
        if path.stat().st_size == self._size and len(self._spares()) < SPARES:
            path.rename(path.with_suffix(".spare"))
        else:
            path.unlink()

    def _spares(self) -> list[Path]:
        return list(self._folder.glob("*.spare"))

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
            if new:
                self._make(path, max(self._size, at_least))
            file = self._files[segment] = os.open(path, os.O_RDWR)
            if new:
                _sync_folder(self._folder)
        return file

    def _make(self, path: Path, size: int) -> None:
        """A file of this size whose content does not matter."""
        spares = self._spares() if size == self._size else []
        if spares:
            spares[0].rename(path)
            return
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.posix_fallocate(file, 0, size)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)


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
