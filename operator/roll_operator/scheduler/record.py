"""A group's record: what each message added to it, packed as the ledger keeps it.

Invariant: the record of a group is the ledger's rows of it, in order of arrival. Its seal is a digest of the very
bytes that are written, so that `verify` finds whatever was done to them.

One row for each part would cost more than the rest of a commit.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from roll_operator.scheduler.lifecycle import KINDS, Altered, Group, Part, Row, Unit
from roll_operator.scheduler.state import JobState

FORMAT = "iiiBiBqqqIqqqdq"  # of one Part, little-endian and without padding
_ONE = struct.Struct("<" + FORMAT)
PART_BYTES = _ONE.size
FIELDS = len(Part._fields)


@lru_cache(256)
def _struct(count: int) -> struct.Struct:
    return struct.Struct("<" + FORMAT * count)


def pack(values: Sequence[Any]) -> bytes:
    """The fields of parts, one part after the other."""
    return _struct(len(values) // FIELDS).pack(*values)


def unpack(packed: bytes) -> list[Row]:
    """What is left of a record that was cut off is for `verify` to tell."""
    whole = len(packed) // PART_BYTES * PART_BYTES
    return list(_ONE.iter_unpack(packed[:whole]))


def parts(packed: bytes, group: int) -> list[Part]:
    found = [Part._make(row) for row in unpack(packed)]
    for part in found:
        if part.kind >= len(KINDS):
            raise Altered(
                f"group {group} was altered: a part of its sample {part.idx} is of kind {part.kind}, "
                "which no stage has"
            )
    return found


def by_unit(group: Group) -> dict[int, list[Part]]:
    """The parts of each unit's current life, by its index."""
    found: dict[int, list[Part]] = {}
    lives = [unit.life for unit in group.units] + [group.lead.life if group.lead else 0]  # at -1
    for packed in group.record:
        for part in parts(packed, group.id):
            if -1 <= part.idx < group.size and part.life == lives[part.idx]:
                found.setdefault(part.idx, []).append(part)
    return found


def parts_of(unit: Unit) -> list[Part]:
    """Of its current life."""
    return by_unit(unit.group).get(unit.index, [])


def add(
    state: JobState, group: Group, worker: str, now: float, segment: int, packed: bytes
) -> None:
    """What one message of a worker added to the group; all of it lies in one segment."""
    group.record.append(packed)
    state.writes.parts.append((group.id, worker, now, segment, packed))
    state.counters["parts"] += len(packed) // PART_BYTES
