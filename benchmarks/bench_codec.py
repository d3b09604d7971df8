"""One message and one ack: encoded, and decoded with all fields read.

Loops that encode return their last result, so that a test checks the code that is measured.
"""
# ruff: noqa: B018 - reading the fields is part of the measured work

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module

import pytest

from benchmarks.go_peers import GoPeers
from benchmarks.report import Report
from benchmarks.rounds import Comparison, Loop, Peer, Round
from liftenvelope._pb import api_pb2 as pb
from liftenvelope.envelope import Ack, Message, marshal_ack, new_message, unmarshal_ack, unmarshal_message

#: Imported by name, because `from liftenvelope._native import env` gives the loaded backend.
twin = import_module("liftenvelope._native.env")
ONCE = (None,)
VALUE, KEY, INBOX, ID = bytes(range(100)), b"key-1234", "_INBOX.2zTH4SaNZeYPjF9tMYnmJK", "P-zfbt00"
MESSAGE_HEAD = bytes.fromhex("b90e43b400080000")
ENVELOPE = new_message(VALUE, key=KEY, ack_inbox=INBOX, correlation_id=ID)
ENVELOPE_WITH_CRC = new_message(VALUE, key=KEY, ack_inbox=INBOX, correlation_id=ID, crc=True)
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
# Measured with empty functions of the same arguments, functions that only make the same objects, and loops
# that read the fields of one object.
ENCODE_LIMIT = (
    "Of 66 ns, an empty function with the same five arguments takes 35, the memory of the result 5, and the "
    "encoder 26."
)
MESSAGE_LIMIT = (
    "Of 140 ns, an empty call takes 16, the message, its value, key and id take 40, and reading the twelve "
    "fields takes 43. The target leaves 17 to the decoder, which takes 41."
)
ACK_LIMIT = (
    "Of 142 ns, an empty call takes 16, the ack, its three numbers and its id take 51, and reading the ten "
    "fields takes 38. The target leaves 4 to the decoder, which takes 37."
)


def encode(turns: Iterable[None]) -> bytes:
    made = b""
    for _ in turns:
        made = new_message(VALUE, key=KEY, ack_inbox=INBOX, correlation_id=ID)
    return made


def encode_with_crc(turns: Iterable[None]) -> bytes:
    made = b""
    for _ in turns:
        made = new_message(VALUE, key=KEY, ack_inbox=INBOX, correlation_id=ID, crc=True)
    return made


def encode_by_twin(turns: Iterable[None]) -> bytes:
    made = b""
    for _ in turns:
        made = twin.new_message(VALUE, key=KEY, ack_inbox=INBOX, correlation_id=ID)
    return made


def encode_by_protobuf(turns: Iterable[None]) -> bytes:
    made = b""
    for _ in turns:
        made = (
            MESSAGE_HEAD
            + pb.Message(
                offset=-1, key=KEY, value=VALUE, ackInbox=INBOX, correlationId=ID
            ).SerializeToString()
        )
    return made


def decoding(decode: Callable[[bytes], Message], envelope: bytes) -> Loop:
    """A loop that decodes a message and reads its fields."""

    def loop(turns: Iterable[None]) -> None:
        for _ in turns:
            m = decode(envelope)
            m.value
            m.key
            m.headers
            m.offset
            m.timestamp_ns
            m.stream
            m.partition
            m.subject
            m.reply_subject
            m.ack_inbox
            m.correlation_id
            m.ack_policy

    return loop


def decode_by_protobuf(turns: Iterable[None]) -> None:
    for _ in turns:
        m = pb.Message.FromString(ENVELOPE[8:])
        m.offset
        m.key
        m.value
        m.timestamp
        m.stream
        m.partition
        m.subject
        m.replySubject
        m.headers
        m.ackInbox
        m.correlationId
        m.ackPolicy


def decoding_ack(decode: Callable[[bytes], Ack]) -> Loop:
    """A loop that decodes an ack and reads its fields."""

    def loop(turns: Iterable[None]) -> None:
        for _ in turns:
            m = decode(ACK)
            m.stream
            m.partition_subject
            m.msg_subject
            m.offset
            m.ack_inbox
            m.correlation_id
            m.ack_policy
            m.reception_timestamp_ns
            m.commit_timestamp_ns
            m.error

    return loop


def decode_ack_by_protobuf(turns: Iterable[None]) -> None:
    for _ in turns:
        m = pb.Ack.FromString(ACK[8:])
        m.stream
        m.partitionSubject
        m.msgSubject
        m.offset
        m.ackInbox
        m.correlationId
        m.ackPolicy
        m.receptionTimestamp
        m.commitTimestamp
        m.ackError


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
    assert encode(ONCE) == encode_by_twin(ONCE) == encode_by_protobuf(ONCE) == ENVELOPE
    assert encode_with_crc(ONCE) == ENVELOPE_WITH_CRC
    compare(
        "encode one (100 B, key, inbox, id)",
        compare.timed(encode),
        Peer("protobuf (upb) + header", compare.timed(encode_by_protobuf), 10),
        Peer("go-liftbridge", go_codec("new_message"), 8, ENCODE_LIMIT),
        Peer("itself with a CRC-32C", compare.timed(encode_with_crc)),
        Peer("its Python twin", compare.timed(encode_by_twin)),
    )


def test_decode_message(compare: Comparison, go_codec: Callable[[str], Round]) -> None:
    ours, theirs = unmarshal_message(ENVELOPE), pb.Message.FromString(ENVELOPE[8:])
    assert (ours.value, ours.key, ours.ack_inbox, ours.correlation_id) == (VALUE, KEY, INBOX, ID)
    assert (theirs.value, theirs.key, theirs.ackInbox, theirs.correlationId) == (VALUE, KEY, INBOX, ID)
    compare(
        "decode one message",
        compare.timed(decoding(unmarshal_message, ENVELOPE)),
        Peer("protobuf (upb)", compare.timed(decode_by_protobuf), 5),
        Peer("go-liftbridge", go_codec("unmarshal_message"), 3, MESSAGE_LIMIT),
        Peer("itself with a CRC-32C", compare.timed(decoding(unmarshal_message, ENVELOPE_WITH_CRC))),
        Peer("its Python twin", compare.timed(decoding(twin.unmarshal_message, ENVELOPE))),
    )


def test_decode_ack(compare: Comparison, go_codec: Callable[[str], Round]) -> None:
    ours, theirs = unmarshal_ack(ACK), pb.Ack.FromString(ACK[8:])
    assert (ours.stream, ours.offset, ours.correlation_id) == (
        theirs.stream,
        theirs.offset,
        theirs.correlationId,
    )
    assert ours.commit_timestamp_ns == theirs.commitTimestamp
    compare(
        "decode one ack",
        compare.timed(decoding_ack(unmarshal_ack)),
        Peer("protobuf (upb)", compare.timed(decode_ack_by_protobuf), 4),
        Peer("go-liftbridge", go_codec("unmarshal_ack"), 3, ACK_LIMIT),
        Peer("its Python twin", compare.timed(decoding_ack(twin.unmarshal_ack))),
    )
