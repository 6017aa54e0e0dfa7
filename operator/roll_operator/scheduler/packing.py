"""Messages that carry payloads, put together from bytes.

A payload goes from the store to the socket by one copy: protobuf serialises the columns, and the payloads
are set behind them as one more field (a field of bytes is its tag, its length and its content). A message
object would copy them once for every level of nesting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from roll_wire.session_pb2 import Assign, ToWorker
from roll_wire.trainer_pb2 import ShardChunk

from roll_operator.scheduler.state import Payload

MAX_ITEMS = 64
MAX_BYTES = 1 << 20


def _tag(number: int) -> bytes:
    """Of a field of bytes or of a nested message; one byte up to number 15."""
    return bytes([number << 3 | 2])


ASSIGN = _tag(ToWorker.ASSIGN_FIELD_NUMBER)
ASSIGN_PAYLOADS = _tag(Assign.PAYLOADS_FIELD_NUMBER)
CHUNK_PAYLOADS = _tag(ShardChunk.PAYLOADS_FIELD_NUMBER)


def chunks(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Which items go into one message each, from the first up to (not including) the last."""
    first = total = 0
    for i, size in enumerate(sizes):
        total += size
        if i + 1 - first >= MAX_ITEMS or total >= MAX_BYTES:
            yield first, i + 1
            first, total = i + 1, 0
    if first < len(sizes):
        yield first, len(sizes)


def assign(columns: Assign, payloads: Sequence[Payload]) -> bytes:
    """A serialised ToWorker."""
    pieces = _with_payloads(
        columns.SerializeToString(), ASSIGN_PAYLOADS, sum(columns.sizes), payloads
    )
    size = sum(map(len, pieces))
    return b"".join([ASSIGN, _varint(size), *pieces])


def shard_chunk(columns: ShardChunk, payloads: Sequence[Payload]) -> bytes:
    """A serialised ShardChunk."""
    return b"".join(
        _with_payloads(columns.SerializeToString(), CHUNK_PAYLOADS, sum(columns.sizes), payloads)
    )


def _with_payloads(
    columns: bytes, tag: bytes, size: int, payloads: Sequence[Payload]
) -> list[Payload]:
    return [columns, tag, _varint(size), *payloads]


def _varint(number: int) -> bytes:
    """Seven bits a byte, the low ones first; the high bit says that more follow."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
