"""One message, one ack: encoded, and decoded with all fields read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import pytest

from benchmarks.go_peers import GoPeers
from benchmarks.report import Report
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope._native.values import ACK_FIELDS, MESSAGE_FIELDS
from liftenvelope._pb import api_pb2 as pb
from liftenvelope.envelope import Ack, marshal_ack, new_message, unmarshal_ack, unmarshal_message

#: Imported by name: `from liftenvelope._native import env` gives the loaded backend.
twin = import_module("liftenvelope._native.env")
VALUE, KEY, INBOX, ID = bytes(range(100)), b"key-1234", "_INBOX.2zTH4SaNZeYPjF9tMYnmJK", "P-zfbt00"
MESSAGE_HEAD = bytes.fromhex("b90e43b400080000")
ENVELOPE = new_message(VALUE, key=KEY, ack_inbox=INBOX, correlation_id=ID)
ACK = marshal_ack(
    Ack(
        stream="sensors",
        partition_subject="sensors.temperature",
        msg_subject="sensors.temperature",
        offset=123_456,
        ack_inbox=INBOX,
        correlation_id=ID,
        reception_timestamp_ns=1_700_000_000_123_456_789,
        commit_timestamp_ns=1_700_000_000_123_556_789,
    )
)
NAMES: dict[str, Any] = {
    **{name.lower(): value for name, value in globals().items() if name.isupper()},
    **{f.__name__: f for f in (new_message, unmarshal_message, unmarshal_ack)},
    "pb": pb,
    "twin": twin,
}

# Where perf finds the time.
ACK_LIMIT = (
    "Of its time about 17 % goes to parsing, 17 % to the interpreter that reads the ten fields, 17 % to "
    "allocating and freeing the ack and its strings and numbers, 5 % to checking texts."
)

ENCODE = "new_message(value, key=key, ack_inbox=inbox, correlation_id=id{})"
PB_ENCODE = (
    "message_head + pb.Message(offset=-1, key=key, value=value, ackInbox=inbox, correlationId=id)"
    ".SerializeToString()"
)
PB_DECODE = "m = pb.{}.FromString({}[8:])"


def _and_read(decode: str, fields: Iterable[str]) -> str:
    return "; ".join([decode, *(f"m.{name}" for name in fields)])


@pytest.fixture
def go_codec(compare: Comparison, go: GoPeers, report: Report) -> Callable[[str], Round]:
    """Rounds of one of go-liftbridge's functions, on the same bytes."""
    pace = {"rounds": 1, "round_time": "1ms" if compare.quick else "100ms"}
    same = {"value_size": len(VALUE), "key": KEY.decode(), "inbox": INBOX, "id": ID}
    same |= {"message": ENVELOPE.hex(), "ack": ACK.hex()}

    def rounds(function: str) -> Round:
        found = go.run("codec", **pace, **same)
        assert bytes.fromhex(found["encoded_hex"]) == ENVELOPE
        report.versions["go-liftbridge"] = found["client"]
        return lambda: float(go.run("codec", **pace, **same)[function]["ns_per_op"]) * 1e-9

    return rounds


def test_encode_one(compare: Comparison, go_codec: Callable[[str], Round]) -> None:
    assert eval(PB_ENCODE, NAMES) == eval("twin." + ENCODE.format(""), NAMES) == ENVELOPE
    compare(
        "encode one (100 B, key, inbox, id)",
        compare.timed(ENCODE.format(""), NAMES),
        Peer("protobuf (upb) + header", compare.timed(PB_ENCODE, NAMES), 10),
        Peer("go-liftbridge", go_codec("new_message"), 8),
        Peer("itself with a CRC-32C", compare.timed(ENCODE.format(", crc=True"), NAMES)),
        Peer("its Python twin", compare.timed("twin." + ENCODE.format(""), NAMES)),
    )


def test_decode_message(compare: Comparison, go_codec: Callable[[str], Round]) -> None:
    ours, theirs = unmarshal_message(ENVELOPE), pb.Message.FromString(ENVELOPE[8:])
    assert (ours.value, ours.key, ours.ack_inbox, ours.correlation_id) == (VALUE, KEY, INBOX, ID)
    assert (theirs.value, theirs.key, theirs.ackInbox, theirs.correlationId) == (VALUE, KEY, INBOX, ID)
    decode = _and_read("m = unmarshal_message({})", MESSAGE_FIELDS)
    with_crc = {**NAMES, "crc": new_message(VALUE, key=KEY, ack_inbox=INBOX, correlation_id=ID, crc=True)}
    read_pb = _and_read(PB_DECODE.format("Message", "envelope"), pb.Message.DESCRIPTOR.fields_by_name)
    compare(
        "decode one message",
        compare.timed(decode.format("envelope"), NAMES),
        Peer("protobuf (upb)", compare.timed(read_pb, NAMES), 5),
        Peer("go-liftbridge", go_codec("unmarshal_message"), 3),
        Peer("itself with a CRC-32C", compare.timed(decode.format("crc"), with_crc)),
        Peer("its Python twin", compare.timed(decode.format("envelope").replace("unm", "twin.unm"), NAMES)),
    )


def test_decode_ack(compare: Comparison, go_codec: Callable[[str], Round]) -> None:
    ours, theirs = unmarshal_ack(ACK), pb.Ack.FromString(ACK[8:])
    assert (ours.stream, ours.offset, ours.correlation_id) == (
        theirs.stream,
        theirs.offset,
        theirs.correlationId,
    )
    assert ours.commit_timestamp_ns == theirs.commitTimestamp
    decode = _and_read("m = unmarshal_ack(ack)", ACK_FIELDS)
    read_pb = _and_read(PB_DECODE.format("Ack", "ack"), pb.Ack.DESCRIPTOR.fields_by_name)
    compare(
        "decode one ack",
        compare.timed(decode, NAMES),
        Peer("protobuf (upb)", compare.timed(read_pb, NAMES), 4),
        Peer("go-liftbridge", go_codec("unmarshal_ack"), 3, ACK_LIMIT),
        Peer("its Python twin", compare.timed(decode.replace("unm", "twin.unm"), NAMES)),
    )
