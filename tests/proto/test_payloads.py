"""Messages with payloads, as bytes: what protobuf would read and write."""

from __future__ import annotations

import pytest
from roll_wire import payloads
from roll_wire.session_pb2 import Assign, FromWorker, Ping, Results, ToWorker
from roll_wire.trainer_pb2 import ShardChunk

PIECES = [b"a" * 70_000, b"", memoryview(b"xyz")[1:]]


def columns(of: type[payloads.Columns]) -> payloads.Columns:
    message = of(groups=[1, 2, 1 << 40], sizes=[len(piece) for piece in PIECES])
    if not isinstance(message, ShardChunk):
        message.stage, message.leases[:] = "score", [7, 8, 9]
    return message


@pytest.mark.parametrize(
    ("of", "within", "outer"),
    [(Results, payloads.RESULTS, FromWorker), (Assign, payloads.ASSIGN, ToWorker), (ShardChunk, b"", None)],
)  # fmt: skip
def test_what_is_put_together_is_what_protobuf_reads(
    of: type[payloads.Columns], within: bytes, outer: type[FromWorker | ToWorker] | None
) -> None:
    written = payloads.write(columns(of), PIECES, within=within)
    expected = columns(of)
    expected.payloads = b"".join(PIECES)
    if outer is None:
        assert of.FromString(written) == expected
    else:
        name = "results" if of is Results else "assign"
        assert getattr(outer.FromString(written), name) == expected


def test_the_payloads_of_results_are_a_view_of_what_came() -> None:
    came = payloads.write(columns(Results), PIECES, within=payloads.RESULTS)
    read, view = payloads.read(came)
    assert read == columns(Results) and view == b"".join(PIECES)
    assert view.obj is came


@pytest.mark.parametrize("order", ["payloads first", "field behind", "no payloads", "two parts"])
def test_any_order_of_fields_is_right(order: str) -> None:
    whole = columns(Results)
    whole.payloads = b"".join(PIECES)
    alone = Results(payloads=whole.payloads).SerializeToString()
    rest = columns(Results).SerializeToString()
    if order == "payloads first":
        inner = alone + rest
    elif order == "two parts":  # the last one counts
        inner = Results(payloads=b"other").SerializeToString() + rest + alone
    else:
        inner = rest
    if order == "no payloads":
        whole.payloads = b""
    came = payloads.RESULTS + payloads.varint(len(inner)) + inner
    if order == "field behind":  # a message that is merged from two
        behind = alone
        came += payloads.RESULTS + payloads.varint(len(behind)) + behind
    read, view = payloads.read(came)
    assert isinstance(read, Results) and view == whole.payloads
    read.payloads = b""
    assert read == columns(Results)


def test_other_messages_are_read_whole() -> None:
    ping = FromWorker(ping=Ping(sent_at=1.5))
    assert payloads.read(ping.SerializeToString()) == (ping, b"")


def test_a_message_that_was_cut_off_is_refused() -> None:
    came = payloads.write(columns(Results), PIECES, within=payloads.RESULTS)
    with pytest.raises(Exception, match=r"[Pp]ars"):
        payloads.read(came[:-1])
