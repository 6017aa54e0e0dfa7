"""Messages that carry payloads, put together from bytes.

A payload goes from the store to the socket by one copy: protobuf serialises the small fields of an item,
and the payload is set behind them as one more field (fields may stand in any order; one of bytes is its
tag, its length and its content). Message objects would copy it once for every level of nesting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from roll_wire.session_pb2 import Assign, Task, ToWorker
from roll_wire.trainer_pb2 import ShardChunk, ShardSample

MAX_ITEMS = 64
MAX_BYTES = 1 << 20


def _tag(number: int) -> bytes:
    """Of a field of bytes or of a nested message; one byte up to number 15."""
    return bytes([number << 3 | 2])


ASSIGN = _tag(ToWorker.ASSIGN_FIELD_NUMBER)
TASK, TASK_PAYLOAD = _tag(Assign.ITEMS_FIELD_NUMBER), _tag(Task.PAYLOAD_FIELD_NUMBER)
SAMPLE, SAMPLE_PAYLOAD = (
    _tag(ShardChunk.SAMPLES_FIELD_NUMBER),
    _tag(ShardSample.PAYLOAD_FIELD_NUMBER),
)

Item = tuple[bytes, list[bytes]]  # its small fields, serialised, and the pieces of its payload


def assigns(tasks: Iterable[Item]) -> Iterator[bytes]:
    """Serialised ToWorker messages."""
    for pieces, size in _chunks(tasks, TASK, TASK_PAYLOAD):
        yield b"".join([ASSIGN, _varint(size), *pieces])


def shard_chunks(samples: Iterable[Item]) -> Iterator[bytes]:
    """Serialised ShardChunk messages."""
    for pieces, _ in _chunks(samples, SAMPLE, SAMPLE_PAYLOAD):
        yield b"".join(pieces)


def _chunks(
    items: Iterable[Item], item_tag: bytes, payload_tag: bytes
) -> Iterator[tuple[list[bytes], int]]:
    """The pieces of up to 64 items and about 1 MB, and how many bytes they are."""
    pieces: list[bytes] = []
    size = count = 0
    for head, payload in items:
        length = sum(map(len, payload))
        before = payload_tag + _varint(length) if length else b""
        whole = len(head) + len(before) + length
        start = item_tag + _varint(whole) + head + before
        pieces.append(start)
        pieces += payload
        size += len(start) + length
        count += 1
        if count >= MAX_ITEMS or size >= MAX_BYTES:
            yield pieces, size
            pieces, size, count = [], 0, 0
    if pieces:
        yield pieces, size


@lru_cache(8192)
def _varint(number: int) -> bytes:
    """Seven bits a byte, the low ones first; the high bit says that more follow."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
