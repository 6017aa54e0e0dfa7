"""Messages that carry payloads, read from and put together as bytes: a message object would copy each payload for
every level of nesting, and once more to hand it out.

A field of bytes is its tag, its length and its content, and `payloads` is the last field of the messages that have
it. So protobuf sees the columns only, and the payloads are a view of what came, or set behind them by one copy. Any
other order of fields is right too, and slower.
"""

from __future__ import annotations

from collections.abc import Sequence

from roll_wire.session_pb2 import Assign, FromWorker, Results, ToWorker
from roll_wire.trainer_pb2 import ShardChunk

Payload = bytes | memoryview
Columns = Results | Assign | ShardChunk


def varint(number: int) -> bytes:
    """Seven bits a byte, the low ones first; the high bit says that more follow."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def tag(number: int) -> bytes:
    """Of a field of bytes or of a nested message."""
    return varint(number << 3 | 2)


RESULTS = tag(FromWorker.RESULTS_FIELD_NUMBER)
ASSIGN = tag(ToWorker.ASSIGN_FIELD_NUMBER)
PAYLOADS = {of: tag(of.PAYLOADS_FIELD_NUMBER) for of in (Results, Assign, ShardChunk)}


def write(columns: Columns, payloads: Sequence[Payload], within: bytes = b"") -> bytes:
    """The columns and their payloads, serialised; `within` is the tag of the field that holds them, if one does."""
    pieces = [
        columns.SerializeToString(), PAYLOADS[type(columns)], varint(sum(columns.sizes)), *payloads,
    ]  # fmt: skip
    if within:
        pieces[:0] = [within, varint(sum(map(len, pieces)))]
    return b"".join(pieces)


def read(message: bytes) -> tuple[FromWorker | Results, memoryview]:
    """A worker's message; of results only the columns, with the payloads beside them."""
    if message.startswith(RESULTS) and (split := _split(message)):
        return split
    parsed = FromWorker.FromString(message)
    if parsed.HasField("results"):
        return parsed.results, memoryview(parsed.results.payloads)
    return parsed, memoryview(b"")


def _split(message: bytes) -> tuple[Results, memoryview] | None:
    """The columns parsed, and a view of the payloads, if these are all the rest."""
    cut = _cut(message)
    if cut is None:
        return None
    begins, ends, payloads = cut
    return Results.FromString(message[begins:ends]), memoryview(message)[payloads:]


def _cut(message: bytes) -> tuple[int, int, int] | None:
    """Where the columns begin and end and the payloads begin, if the payloads are all the rest."""
    try:
        length, at = _varint_at(message, len(RESULTS))
        begins, end = at, at + length
        while at < end == len(message):
            field, after = _varint_at(message, at)
            if field & 7 == 0:
                _, after = _varint_at(message, after)
            elif field & 7 == 2:
                size, after = _varint_at(message, after)
                if field >> 3 == Results.PAYLOADS_FIELD_NUMBER:
                    return (begins, at, after) if after + size == end else None
                after += size
            else:
                return None
            at = after
    except IndexError:
        pass  # cut off: protobuf says so
    return None


def _varint_at(message: bytes, at: int) -> tuple[int, int]:
    """The number, and where it ends."""
    number = shift = 0
    while (byte := message[at]) & 0x80:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    return number | byte << shift, at + 1
