"""The codec against protobuf's own library (upb), which is no part of how it works.

Both agree on all bytes but for what :func:`known_difference` lists. Go's decoder agrees with ours on each of
these (tests/unit/data/go_corpus.jsonl.gz has them).
"""

from __future__ import annotations

from typing import Any

import google.protobuf
import pytest
from google.protobuf.internal import api_implementation
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope import _wire as w
from liftenvelope._native import _fastenv as fast
from liftenvelope._native import values
from liftenvelope._native.protobuf import Reader
from liftenvelope._pb import api_pb2
from liftenvelope.errors import EnvelopeError
from tests.twin import strategies as make
from tests.twin.readable import env as slow

TWINS = pytest.mark.parametrize(("twin", "kinds"), [(fast, fast), (slow, values)], ids=["cython", "python"])
#: Our names to those of api.proto, where they differ.
NAMES = {
    "timestamp_ns": "timestamp",
    "reply_subject": "replySubject",
    "ack_inbox": "ackInbox",
    "correlation_id": "correlationId",
    "ack_policy": "ackPolicy",
    "partition_subject": "partitionSubject",
    "msg_subject": "msgSubject",
    "reception_timestamp_ns": "receptionTimestamp",
    "commit_timestamp_ns": "commitTimestamp",
    "error": "ackError",
}


def test_protobuf_backend_is_upb() -> None:
    assert api_implementation.Type() == "upb"


def pb_message(fields: dict[str, Any]) -> api_pb2.Message:
    return api_pb2.Message(**{NAMES.get(name, name): value for name, value in fields.items()})


def pb_ack(fields: dict[str, Any]) -> api_pb2.Ack:
    return api_pb2.Ack(**{NAMES.get(name, name): value for name, value in fields.items()})


ONE_HEADER = make.MESSAGE_FIELDS | {"headers": st.dictionaries(make.TEXT, make.BYTES, max_size=1)}


@TWINS
@make.MANY
@given(fields=make.some_of(ONE_HEADER))
def test_messages_are_written_alike(twin: Any, kinds: Any, fields: dict[str, Any]) -> None:
    """With one header at most: of several upb's order is that of its hash table, ours the mapping's."""
    made = twin.marshal_message(kinds.Message(**fields))
    assert made[8:] == pb_message(fields).SerializeToString(deterministic=True)


@TWINS
@make.MANY
@given(fields=make.ACKS)
def test_acks_are_written_alike(twin: Any, kinds: Any, fields: dict[str, Any]) -> None:
    assert twin.marshal_ack(kinds.Ack(**fields))[8:] == pb_ack(fields).SerializeToString(deterministic=True)


@TWINS
@make.MANY
@given(fields=make.MESSAGES)
def test_any_headers_come_back(twin: Any, kinds: Any, fields: dict[str, Any]) -> None:
    made = twin.marshal_message(kinds.Message(**fields))
    theirs = pb_message(fields)
    assert api_pb2.Message.FromString(made[8:]) == theirs
    assert len(made) - 8 == theirs.ByteSize()
    assert twin.unmarshal_message(made[:8] + theirs.SerializeToString()) == kinds.Message(**fields)


class Measuring(Reader):
    """Notes what upb judges differently."""

    def __init__(self, raw: bytes, start: int, end: int) -> None:
        super().__init__(raw, start, end)
        self.longest = 0  # bytes of a tag or a length
        self.in_group = False

    def _skip_group(self, number: int, begin: int) -> None:
        self.in_group = True  # and so it stays where an error ends the walk
        super()._skip_group(number, begin)
        self.in_group = False

    def _tag(self) -> tuple[int, int]:
        begin = self._at
        found = super()._tag()
        self.longest = max(self.longest, self._at - begin)
        return found

    def _length_delimited(self) -> tuple[int, int]:
        begin = self._at
        start, end = super()._length_delimited()
        self.longest = max(self.longest, start - begin)
        return start, end


def measured(payload: bytes, kind: int) -> tuple[int, bool]:
    """Return the size of a payload's longest tag or length, and True if an entry has unknown fields."""
    reader, unknown = Measuring(payload, 0, len(payload)), False
    longest = 0
    for field in reader.fields():
        if kind == 0 and field.kind == w.LEN and field.number == w.MSG_HEADERS:
            entry, before = Measuring(payload, field.start, field.end), field.start
            known = [part for part in entry.fields() if part.kind == w.LEN and part.number in (1, 2)]
            longest = max(longest, entry.longest)
            # What is neither key nor value leaves a gap between those that are.
            for part in known:
                unknown |= part.start - before != 1 + len(make.varint(part.end - part.start))
                before = part.end
            unknown |= before != field.end
    return max(longest, reader.longest), unknown


def ends_in_group(payload: bytes, kind: int) -> bool:
    """Return True if the fault of a payload is inside a group."""
    reader = walk = Measuring(payload, 0, len(payload))
    try:
        for field in reader.fields():
            if kind == 0 and field.kind == w.LEN and field.number == w.MSG_HEADERS:
                walk = Measuring(payload, field.start, field.end)
                list(walk.fields())
                walk = reader
    except EnvelopeError:
        return walk.in_group
    return False


def known_difference(payload: bytes, kind: int, ours: EnvelopeError | None) -> bool:
    """Return True if upb is known to judge the payload differently."""
    if ours is None:  # upb refuses tags and lengths of six to ten bytes
        return measured(payload, kind)[0] > 5
    # upb takes a varint's tenth byte for what it likes, and field number 0 inside a group.
    text: str = ours.args[0]
    return text == "a varint is larger than 64 bits" or (
        text == "field number 0" and ends_in_group(payload, kind)
    )


def theirs_of(payload: bytes, kind: int) -> Any:
    try:
        return (api_pb2.Message, api_pb2.Ack)[kind].FromString(payload)
    except DecodeError:
        return None


def compare(payload: bytes, kind: int) -> str:
    """Compare the two decoders on a payload; returns which of them took it."""
    theirs, fault, ours = theirs_of(payload, kind), None, None
    data = make.envelope(kind, payload, False)
    try:
        ours = fast.unmarshal_message(data) if kind == 0 else fast.unmarshal_ack(data)
    except EnvelopeError as error:
        fault = error
    if (ours is None) != (theirs is None):
        assert known_difference(payload, kind, fault)
    elif theirs is not None:
        same_fields(ours, theirs, payload, kind)
    return f"ours {ours is not None}, theirs {theirs is not None}"


def same_fields(ours: Any, theirs: Any, payload: bytes, kind: int) -> None:
    for name in values.ACK_FIELDS if kind else values.MESSAGE_FIELDS:
        got, expected = getattr(ours, name), getattr(theirs, NAMES.get(name, name))
        if name == "headers":
            got, expected = dict(got), dict(expected)
            if measured(payload, kind)[
                1
            ]:  # upb loses entries that have an unknown field: names, and later values
                got, expected = got.keys() | expected.keys(), set(got)
        assert got == expected, name


@make.MANY
@given(make.PAYLOADS, st.sampled_from([0, 1]))
def test_any_payload(payload: bytes, kind: int) -> None:
    compare(payload, kind)


@make.MANY
@given(make.ANYTHING, st.sampled_from([0, 1]))
def test_what_is_behind_any_header(data: bytes, kind: int) -> None:
    compare(data[8:], kind)


OURS_ALONE, THEIRS_ALONE = "ours True, theirs False", "ours False, theirs True"
BOTH, NEITHER = "ours True, theirs True", "ours False, theirs False"
#: protobuf 5 and 6 decode as we do what version 7 decodes in another way.
IS_NEW = int(google.protobuf.__version__.partition(".")[0]) >= 7


class TestKnownDifferences:
    """The differences that the comparison allows still exist."""

    @pytest.mark.parametrize("extra", [5, 8])
    def test_long_tags_and_lengths(self, extra: int) -> None:
        length = make.tag(3, 2) + make.overlong(2, extra) + b"ab"
        long_tag = make.overlong(3 << 3 | 2, extra) + b"\x02ab"
        assert compare(length, 0) == (OURS_ALONE if IS_NEW else BOTH)
        assert compare(long_tag, 0) == OURS_ALONE
        assert compare(make.tag(3, 2) + make.overlong(2, 4) + b"ab", 0) == BOTH

    def test_tenth_byte(self) -> None:
        assert compare(make.tag(1, 0) + b"\x80" * 9 + b"\x02", 0) == THEIRS_ALONE

    def test_field_number_0_in_a_group(self) -> None:
        assert compare(make.group(50, 50, b"\x00\x01"), 0) == (THEIRS_ALONE if IS_NEW else NEITHER)
        assert compare(b"\x00\x01", 0) == NEITHER

    def test_unknown_field_in_an_entry(self) -> None:
        payload = make.delimited(9, b"\x0a\x01k\x18\x07\x12\x01v", 0)
        assert dict(fast.unmarshal_message(make.envelope(0, payload, False)).headers) == {"k": b"v"}
        assert dict(theirs_of(payload, 0).headers) == {}
        assert compare(payload, 0) == BOTH
