"""Rows of a data set, from wherever they lie: JSONL, JSON, parquet, arrow, a folder of these, a hub id.

Invariants: every row can be named in an error (file and line, or file and row); the content hash depends
on the content alone, not on where it lies. Rows stay as they were read (a line of bytes, a parquet
table) and become a dict when asked for, so that a large file costs its own size.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll_api.splits import SPLIT_NAMES, SUFFIXES, NoFiles, files_of

from roll_workers.builtin.data import builtin_rows
from roll_workers.errors import UserError

Row = dict[str, Any]
_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*(?:/[\w.-]+)?)(?::([\w.-]+))?")  # and a configuration


@dataclass(frozen=True, slots=True)
class Part:
    """One source of rows."""

    name: str
    count: int
    row: Callable[[int], Row]
    where: Callable[[int], str]
    every: Callable[[], Iterator[Row]]  # all rows, cheaper than one by one


@dataclass(frozen=True, slots=True)
class Rows:
    parts: tuple[Part, ...]
    content_hash: str

    def __len__(self) -> int:
        return sum(part.count for part in self.parts)

    def __getitem__(self, index: int) -> Row:
        part, inner = self._find(index)
        return part.row(inner)

    def __iter__(self) -> Iterator[Row]:
        return (row for part in self.parts for row in part.every())

    def where(self, index: int) -> str:
        """Names a row for people."""
        part, inner = self._find(index)
        return part.where(inner)

    def _find(self, index: int) -> tuple[Part, int]:
        for part in self.parts:
            if index < part.count:
                return part, index
            index -= part.count
        raise IndexError(index)


def read_rows(path: str, source: Path, split: str) -> Rows:
    """Reads `data.<split>.path`; UserError for whatever is wrong with it."""
    if path.startswith("builtin:"):
        return _of_list(path, builtin_rows(path))
    place = source / Path(path).expanduser()
    if place.is_dir():
        try:
            files = files_of(place, split)
        except NoFiles as error:
            raise UserError(f"data.{split}.path: {error}") from None
    elif place.exists():
        files = [place]
    elif not path.partition(":")[0].endswith(SUFFIXES) and _HUB_ID.fullmatch(path):
        return _from_hub(path, place, split)
    else:
        raise UserError(f"data.{split}.path: there is no file or folder {place}")
    digest = hashlib.blake2b(digest_size=16)
    parts = [_read_file(file, digest, split) for file in files]
    rows = Rows(tuple(parts), digest.hexdigest())
    if not len(rows):
        raise UserError(f"data.{split}.path: {place} has no rows")
    return rows


def _read_file(file: Path, digest: Any, split: str) -> Part:
    try:
        if file.suffix == ".parquet":
            return _parquet(file, digest)
        content = file.read_bytes()
        digest.update(content)
        if file.suffix == ".arrow":
            return _arrow(file)
        if file.suffix == ".json" and content.lstrip()[:1] == b"[":
            return _json_list(file, content)
        return _json_lines(file, content)
    except OSError as error:
        raise UserError(
            f"data.{split}.path: can't read {file}: {error.strerror or error}"
        ) from error


def _json_lines(file: Path, content: bytes) -> Part:
    lines: list[bytes] = []
    numbers: list[int] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        line = line.strip()
        if not line:
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{file}, line {number}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise UserError(f"{file}, line {number}: {type(row).__name__} instead of an object")
        lines.append(line)
        numbers.append(number)
    return Part(
        file.name,
        len(lines),
        lambda i: json.loads(lines[i]),
        lambda i: f"{file}, line {numbers[i]}",
        lambda: map(json.loads, lines),
    )


def _json_list(file: Path, content: bytes) -> Part:
    try:
        rows = json.loads(content)
    except ValueError as error:
        raise UserError(f"{file}: not JSON: {error}") from None
    for index, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise UserError(f"{file}, row {index}: {type(row).__name__} instead of an object")
    return _list(file.name, str(file), rows)


def _parquet(file: Path, digest: Any) -> Part:
    import pyarrow
    import pyarrow.parquet

    digest.update(file.read_bytes())
    try:
        table = pyarrow.parquet.read_table(file)
    except (pyarrow.ArrowException, ValueError) as error:
        raise UserError(f"{file}: not a parquet file: {_first_line(error)}") from None
    return _table(file, table)


def _arrow(file: Path) -> Part:
    """What `datasets` writes with save_to_disk."""
    import pyarrow
    import pyarrow.ipc

    try:
        with pyarrow.memory_map(str(file)) as mapped:
            table = pyarrow.ipc.open_stream(mapped).read_all()
    except (pyarrow.ArrowException, ValueError) as error:
        raise UserError(f"{file}: not an arrow file: {_first_line(error)}") from None
    return _table(file, table)


def _table(file: Path, table: Any) -> Part:
    return Part(
        file.name,
        table.num_rows,
        lambda i: table.slice(i, 1).to_pylist()[0],
        lambda i: f"{file}, row {i + 1}",
        lambda: (row for batch in table.to_batches(1024) for row in batch.to_pylist()),
    )


def _list(name: str, shown: str, rows: Any) -> Part:
    return Part(
        name, len(rows), rows.__getitem__, lambda i: f"{shown}, row {i + 1}", lambda: iter(rows)
    )


def _of_list(name: str, rows: list[Row]) -> Rows:
    canonical = json.dumps(rows, sort_keys=True).encode()
    part = _list(name, name, rows)
    return Rows((part,), hashlib.blake2b(canonical, digest_size=16).hexdigest())


def _from_hub(name: str, place: Path, split: str) -> Rows:
    import datasets  # type: ignore[import-untyped]

    parsed = _HUB_ID.fullmatch(name)
    assert parsed is not None
    try:
        splits = datasets.load_dataset(*parsed.groups())
    except Exception as error:  # offline, no such id, gated: the user needs the reason
        said = _first_line(error)
        if said.startswith("Config name is missing"):  # which there are, its next line says
            said = f"write {name}:CONFIG. {str(error).splitlines()[1]}"
        raise UserError(
            f"data.{split}.path: there is no file or folder {place}, and as a Hugging Face id: {said}"
        ) from error
    named = [splits[wanted] for wanted in SPLIT_NAMES[split] if wanted in splits]
    found = named or list(splits.values())
    if not named and len(found) > 1:
        raise UserError(
            f"data.{split}.path: {name} has the splits {', '.join(splits)}, none of which is called "
            f"{' or '.join(SPLIT_NAMES[split])}: give a folder with the files that you mean"
        )
    part = _list(name, name, found[0])
    digest = hashlib.blake2b(digest_size=16)
    for row in found[0]:
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    return Rows((part,), digest.hexdigest())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
