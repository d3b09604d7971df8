"""unmarshal_message and unmarshal_ack decode any payload, or raise EnvelopeError."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from liftenvelope.envelope import (
    Ack,
    AckError,
    AckPolicy,
    Message,
    marshal_ack,
    marshal_message,
    new_message,
    unmarshal_ack,
    unmarshal_message,
)
from liftenvelope.errors import (
    ChecksumError,
    EnvelopeError,
    MalformedEnvelopeError,
    TruncatedEnvelopeError,
)
from tests.twin.strategies import tag, varint

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD = bytes.fromhex("b90e43b400080000")
ACK_HEAD = bytes.fromhex("b90e43b400080001")
MESSAGE = Message(
    b"v" * 9,
    key=b"k",
    headers={"h": b"w", "é": b"x"},
    offset=300,
    timestamp_ns=1_700_000_000_123_456_789,
    stream="s",
    partition=-3,
    subject="t",
    reply_subject="r",
    ack_inbox="i",
    correlation_id="c",
    ack_policy=1,
)
ACK = Ack(
    stream="s",
    partition_subject="p",
    msg_subject="m",
    offset=300,
    ack_inbox="i",
    correlation_id="é",
    ack_policy=2,
    reception_timestamp_ns=1,
    commit_timestamp_ns=2**62,
    error=4,
)


def blob(field: int, data: bytes) -> bytes:
    return tag(field, 2) + varint(len(data)) + data


def message(payload: bytes) -> Message:
    return unmarshal_message(HEAD + payload)


def ack(payload: bytes) -> Ack:
    return unmarshal_ack(ACK_HEAD + payload)


def fault(payload: bytes) -> EnvelopeError:
    """Return the error of decoding a payload, with the offset in the payload."""
    with pytest.raises(EnvelopeError) as caught:
        message(payload)
    offset = caught.value.offset
    assert offset is not None
    assert str(caught.value) == f"{caught.value.args[0]} (at byte {offset})"
    return type(caught.value)(caught.value.args[0], offset - 8)


def outcome(read: Callable[[bytes], Message | Ack], data: bytes) -> Message | Ack | EnvelopeError:
    """Return the value or the EnvelopeError of reading; any other exception fails the test."""
    try:
        return read(data)
    except EnvelopeError as error:
        assert_inside(error, data)
        return error


def assert_inside(error: EnvelopeError, data: bytes) -> None:
    assert error.offset is not None
    assert 0 <= error.offset <= len(data)


class TestByteByByte:
    """Whatever is done to an envelope, nothing but an EnvelopeError comes of it."""

    @pytest.mark.parametrize("crc", [False, True])
    def test_every_truncation_of_a_message(self, crc: bool) -> None:
        data = marshal_message(MESSAGE, crc=crc)
        outcomes = [outcome(unmarshal_message, data[:size]) for size in range(len(data))]
        kinds = Counter(type(found) for found in outcomes)
        # Cut between two of its thirteen fields it is a message that has fewer.
        if crc:
            assert kinds == {TruncatedEnvelopeError: 12, ChecksumError: len(data) - 12}
        else:
            assert kinds == {TruncatedEnvelopeError: len(data) - 13, Message: 13}

    def test_every_truncation_of_an_ack(self) -> None:
        data = marshal_ack(ACK)
        kinds = Counter(type(outcome(unmarshal_ack, data[:size])) for size in range(len(data)))
        assert kinds == {TruncatedEnvelopeError: len(data) - 10, Ack: 10}

    @pytest.mark.parametrize("crc", [False, True])
    def test_every_change_of_one_byte(self, crc: bool) -> None:
        for data, read in (
            (marshal_message(MESSAGE, crc=crc), unmarshal_message),
            (marshal_ack(ACK, crc=crc), unmarshal_ack),
        ):
            same = 0
            for at in range(len(data)):
                for byte in range(256):
                    found = outcome(read, data[:at] + bytes((byte,)) + data[at + 1 :])
                    same += found in (MESSAGE, ACK)
            # The byte that was there, of every byte. Flags mean nothing but for the lowest bit.
            assert same >= len(data) + 127 if crc else same > len(data)

    def test_trailing_data(self) -> None:
        for data, read in ((marshal_message(MESSAGE), unmarshal_message), (marshal_ack(ACK), unmarshal_ack)):
            with pytest.raises(MalformedEnvelopeError) as caught:
                read(data + b"\x00")
            assert caught.value.args == ("field number 0", len(data))
            with pytest.raises(TruncatedEnvelopeError) as cut:
                read(data + b"\x0a")
            assert cut.value.offset == len(data) + 1

    def test_one_payload_after_another_is_merged(self) -> None:
        merged = message(blob(3, b"old") + blob(2, b"key") + new_message(b"new")[8:])
        assert (merged.key, merged.value, merged.offset) == (b"key", b"new", -1)


class TestFaults:
    @pytest.mark.parametrize(
        ("payload", "kind", "text", "offset"),
        [
            (b"\x80", TruncatedEnvelopeError, "the data ends within a varint", 0),
            (b"\x08", TruncatedEnvelopeError, "the data ends within a varint", 1),
            (b"\x08\xff\xff", TruncatedEnvelopeError, "the data ends within a varint", 1),
            (b"\x08" + b"\xff" * 9 + b"\x02", MalformedEnvelopeError, "a varint is larger than 64 bits", 1),
            (
                b"\x08" + b"\xff" * 10 + b"\x01",
                MalformedEnvelopeError,
                "a varint is longer than ten bytes",
                1,
            ),
            (b"\x1a\x05ab", TruncatedEnvelopeError, "a field of 5 bytes where 2 are left", 1),
            (
                b"\x1a" + b"\xff" * 9 + b"\x01",
                TruncatedEnvelopeError,
                "a field of 18446744073709551615 bytes where 0 are left",
                1,
            ),
            (b"\x19abcdefg", TruncatedEnvelopeError, "a field of 8 bytes where 7 are left", 1),
            (b"\x1dabc", TruncatedEnvelopeError, "a field of 4 bytes where 3 are left", 1),
            (b"\x00\x01", MalformedEnvelopeError, "field number 0", 0),
            (b"\x07", MalformedEnvelopeError, "field number 0", 0),
            (b"\x1e", MalformedEnvelopeError, "wire type 6 does not exist", 0),
            (b"\x1f", MalformedEnvelopeError, "wire type 7 does not exist", 0),
            (b"\x1c", MalformedEnvelopeError, "a group ends that has not begun", 0),
            (b"\x1b", TruncatedEnvelopeError, "the data ends within a group", 1),
            (b"\x1b\x08\x01", TruncatedEnvelopeError, "the data ends within a group", 3),
            (b"\x1b\x14", MalformedEnvelopeError, "a group ends that has not begun", 1),
            (b"\x1b\x23\x1c\x24", MalformedEnvelopeError, "a group ends that has not begun", 2),
            (b"\x1b\x0e\x1c", MalformedEnvelopeError, "wire type 6 does not exist", 1),
            (b"\x1b\x00\x00\x1c", MalformedEnvelopeError, "field number 0", 1),
            (
                b"\x80\x80\x80\x80\x10\x01",
                MalformedEnvelopeError,
                "field tag 0x100000000 is larger than 32 bits",
                0,
            ),
            (b"\x2a\x01\xff", MalformedEnvelopeError, "stream is not valid UTF-8", 2),
            (b"\x3a\x02a\xff", MalformedEnvelopeError, "subject is not valid UTF-8", 3),
            (b"\x42\x01\xff", MalformedEnvelopeError, "reply_subject is not valid UTF-8", 2),
            (b"\x52\x01\xff", MalformedEnvelopeError, "ack_inbox is not valid UTF-8", 2),
            (b"\x5a\x01\xff", MalformedEnvelopeError, "correlation_id is not valid UTF-8", 2),
            (b"\x4a\x04\x0a\x02a\xff", MalformedEnvelopeError, "a header key is not valid UTF-8", 5),
            (b"\x4a\x04\x0a\x03ab\x08\x01", TruncatedEnvelopeError, "a field of 3 bytes where 2 are left", 3),
            # One byte more than the entry has, and there is one behind it.
            (b"\x4a\x03\x0a\x02a\x08\x01", TruncatedEnvelopeError, "a field of 2 bytes where 1 are left", 3),
            (b"\x4a\x03\x12\x02a\x08\x01", TruncatedEnvelopeError, "a field of 2 bytes where 1 are left", 3),
            (b"\x4a\x03\x1a\x02a\x08\x01", TruncatedEnvelopeError, "a field of 2 bytes where 1 are left", 3),
            (b"\x4a\x04\x1dabc\x08\x01", TruncatedEnvelopeError, "a field of 4 bytes where 3 are left", 3),
            (b"\x4a\x02\x08\x80\x01", TruncatedEnvelopeError, "the data ends within a varint", 3),
            (b"\x4a\x01\x80\x01", TruncatedEnvelopeError, "the data ends within a varint", 2),
            (b"\x4a\x02\x00\x01", MalformedEnvelopeError, "field number 0", 2),
            (b"\x4a\x05\x0a\x01a", TruncatedEnvelopeError, "a field of 5 bytes where 3 are left", 1),
        ],
    )
    def test_class_text_and_offset(
        self, payload: bytes, kind: type[EnvelopeError], text: str, offset: int
    ) -> None:
        error = fault(payload)
        assert type(error) is kind
        assert error.args == (text, offset)
        # It is found at the same place behind a sound field.
        behind = fault(b"\x12\x01k" + payload)
        assert (type(behind), behind.args) == (kind, (text, offset + 3))

    @pytest.mark.parametrize(
        ("text", "bad"),
        [
            (b"\x80", 0),
            (b"ok\xff", 2),
            (b"\xc3", 0),
            (b"a\xc3(", 1),
            (b"\xc0\x80", 0),
            (b"\xc1\xbf", 0),
            (b"\xe0\x80\x80", 0),
            (b"\xe0\x9f\xbf", 0),
            (b"\xe2\x82", 0),
            (b"\xe2(\xa1", 0),
            (b"\xed\xa0\x80", 0),
            (b"\xed\xbf\xbf", 0),
            (b"\xf0\x80\x80\x80", 0),
            (b"\xf0\x8f\xbf\xbf", 0),
            (b"\xf0\x9f\x99", 0),
            (b"\xf0\x9f\x99(", 0),
            (b"\xf0\x9f(\x80", 0),
            (b"\xf4\x90\x80\x80", 0),
            (b"\xf5\x80\x80\x80", 0),
            (b"\xf8\x88\x80\x80\x80", 0),
            (b"12345678\xfe", 8),
            (b"1234567\xfe", 7),
            (b"12345678" * 2 + b"123\x80", 19),
            ("é€🙂".encode() + b"\xbf", 9),
        ],
    )
    @pytest.mark.parametrize("field", [5, 7, 8, 10, 11])
    def test_offset_of_bad_utf8(self, text: bytes, bad: int, field: int) -> None:
        assert fault(blob(field, text)).args[1] == 2 + bad
        assert fault(blob(9, blob(1, text))).args[1] == 4 + bad
        # What stands behind the text (a field 20, its tag overlong) could pass for the rest of a character.
        assert fault(blob(field, text) + b"\xa0\x81\x80\x00\x05").args[1] == 2 + bad

    @pytest.mark.parametrize(
        ("field", "name"),
        [
            (1, "stream"),
            (2, "partition_subject"),
            (3, "msg_subject"),
            (5, "ack_inbox"),
            (6, "correlation_id"),
        ],
    )
    def test_bad_utf8_in_an_ack(self, field: int, name: str) -> None:
        with pytest.raises(MalformedEnvelopeError) as caught:
            ack(blob(field, b"ok\xff"))
        assert caught.value.args == (f"{name} is not valid UTF-8", 12)

    @pytest.mark.parametrize(
        "text", ["", "\x00", "\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff"]
    )
    def test_every_length_of_good_utf8(self, text: str) -> None:
        for shift in range(9):
            shifted = "a" * shift + text + "b" * shift
            assert message(blob(11, shifted.encode())).correlation_id == shifted
            assert dict(message(blob(9, blob(1, shifted.encode()))).headers) == {shifted: b""}

    def test_bytes_need_no_utf8(self) -> None:
        assert message(blob(2, b"\xff") + blob(3, b"\xfe") + blob(77, b"\xfd")).value == b"\xfe"


class TestUnknown:
    """Unknown fields are skipped."""

    @pytest.mark.parametrize(
        "unknown",
        [
            tag(13, 0) + b"\x05",
            tag(13, 0) + b"\xff" * 9 + b"\x01",
            tag(13, 1) + b"12345678",
            blob(13, b"\xff"),
            tag(13, 5) + b"1234",
            tag(2**29 - 1, 0) + b"\x01",
            tag(13, 3) + tag(13, 4),
            tag(13, 3)
            + tag(1, 0)
            + b"\x07"
            + blob(2, b"in")
            + tag(1, 1)
            + bytes(8)
            + tag(1, 5)
            + bytes(4)
            + tag(13, 4),
            tag(13, 3) + tag(14, 3) + tag(14, 4) + tag(13, 4),
            tag(13, 3) * 99 + tag(13, 4) * 99,
            # A known number with another wire type is unknown as well, as protobuf has it.
            tag(1, 5) + b"1234",
            tag(2, 0) + b"\x05",
            tag(3, 1) + b"12345678",
            tag(5, 0) + b"\x05",
            tag(9, 0) + b"\x05",
            tag(12, 2) + b"\x01x",
            tag(3, 3) + tag(3, 4),
        ],
    )
    def test_field(self, unknown: bytes) -> None:
        known = blob(2, b"key") + blob(3, b"value")
        for payload in (unknown + known, known + unknown, known[:5] + unknown + known[5:]):
            read = message(payload)
            assert read == Message(b"value", key=b"key")
        assert ack(tag(20, 3) + unknown + tag(20, 4) + blob(6, b"c")) == Ack(correlation_id="c")
        assert dict(message(blob(9, blob(1, b"k") + tag(20, 0) + b"\x01" + blob(2, b"v"))).headers) == {
            "k": b"v"
        }

    @pytest.mark.parametrize("field", range(1, 11))
    def test_ack_fields_of_other_wire_types(self, field: int) -> None:
        assert ack(tag(field, 5) + b"1234" + tag(field, 1) + b"12345678") == Ack()

    def test_groups_deeper_than_protobuf_reads(self) -> None:
        assert message(tag(13, 3) * 100 + tag(13, 4) * 100) == Message()
        error = fault(tag(13, 3) * 101 + tag(13, 4) * 101)
        assert type(error) is MalformedEnvelopeError
        assert error.args == ("groups nest deeper than 100", 100)

    def test_overlong_numbers(self) -> None:
        assert message(b"\x08\x85\x80\x00").offset == 5
        assert message(b"\x88\x80\x80\x80\x00\x05").offset == 5
        assert message(b"\x1a\x82\x80\x80\x80\x80\x80\x80\x80\x80\x00ab").value == b"ab"


class TestRepeated:
    """The last value of a repeated field, or of a repeated header name, counts."""

    def test_last_one_wins(self) -> None:
        assert message(blob(3, b"first") + blob(3, b"2")).value == b"2"
        assert message(blob(3, b"first") + blob(3, b"")).value == b""
        assert message(b"\x08\x05" + b"\x08\x00").offset == 0
        assert message(blob(11, b"a") + blob(11, "é".encode())).correlation_id == "é"
        assert ack(blob(6, b"a") + b"\x50\x02" + blob(6, b"b") + b"\x50\x00") == Ack(correlation_id="b")

    def test_bad_text_counts_also_when_a_good_one_follows(self) -> None:
        assert fault(blob(5, b"\xff") + blob(5, b"good")).args == ("stream is not valid UTF-8", 2)

    def test_headers(self) -> None:
        k, v = blob(1, b"k"), blob(2, b"v")
        assert dict(message(blob(9, k + v) + blob(9, k + blob(2, b"w"))).headers) == {"k": b"w"}
        assert dict(message(blob(9, k + v) + blob(9, k)).headers) == {"k": b""}
        assert dict(message(blob(9, v + k)).headers) == {"k": b"v"}
        assert dict(message(blob(9, k)).headers) == {"k": b""}
        assert dict(message(blob(9, v)).headers) == {"": b"v"}
        assert dict(message(blob(9, b"")).headers) == {"": b""}
        assert dict(message(blob(9, blob(1, b"x") + blob(2, b"y") + k + v)).headers) == {"k": b"v"}

    def test_headers_with_other_fields_between(self) -> None:
        between = blob(3, b"x") + tag(50, 3) + blob(9, b"ignored") + tag(50, 4) + tag(51, 1) + bytes(8)
        read = message(
            blob(9, blob(1, b"a"))
            + between
            + blob(9, blob(1, b"b"))
            + between
            + blob(9, blob(1, b"a") + blob(2, b"z"))
        )
        assert list(read.headers.items()) == [("a", b"z"), ("b", b"")]

    def test_more_headers_than_the_server_stores_are_read(self) -> None:
        many = b"".join(blob(9, blob(1, b"k%d" % i)) for i in range(70_000))
        assert len(message(many).headers) == 70_000


class TestNumbers:
    @pytest.mark.parametrize(
        ("wire", "number"),
        [
            (2**64 - 1, -1),
            (2**63, -(2**63)),
            (2**63 - 1, 2**63 - 1),
            (0, 0),
        ],
    )
    def test_sixty_four_bits(self, wire: int, number: int) -> None:
        read = message(tag(1, 0) + varint(wire) + tag(4, 0) + varint(wire))
        assert (read.offset, read.timestamp_ns) == (number, number)
        got = ack(b"".join(tag(field, 0) + varint(wire) for field in (4, 8, 9)))
        assert (got.offset, got.reception_timestamp_ns, got.commit_timestamp_ns) == (number,) * 3

    @pytest.mark.parametrize(
        ("wire", "number"),
        [
            (2**64 - 1, -1),
            (2**31, -(2**31)),
            (2**31 - 1, 2**31 - 1),
            (2**32 - 1, -1),
            (2**32, 0),
            (2**40 + 7, 7),
            (2**63, 0),
        ],
    )
    def test_thirty_two_bits_are_cut_out(self, wire: int, number: int) -> None:
        read = message(tag(6, 0) + varint(wire) + tag(12, 0) + varint(wire))
        assert (read.partition, read.ack_policy) == (number, number)
        got = ack(tag(7, 0) + varint(wire) + tag(10, 0) + varint(wire))
        assert (got.ack_policy, got.error) == (number, number)
        assert type(read.ack_policy) is type(got.ack_policy) is AckPolicy
        assert type(got.error) is AckError

    def test_unknown_enum_keeps_its_number_and_is_written_again(self) -> None:
        read = message(tag(12, 0) + varint(2**64 - 9))
        assert read.ack_policy == -9
        assert read.ack_policy.name == "UNRECOGNIZED_-9"
        assert unmarshal_message(marshal_message(read)) == read


def test_texts_that_change_from_one_ack_to_the_next() -> None:
    """The Cython twin keeps the last text of a field: it must never be taken for another."""
    names = ["a", "b", "", "a", "ab", "é", "b\x00", "x" * 256, "x" * 257, "x" * 257, "y" * 256, "x" * 255]
    for stream in names:
        for inbox in names:
            got = unmarshal_ack(marshal_ack(Ack(stream=stream, ack_inbox=inbox, partition_subject=inbox)))
            assert (got.stream, got.ack_inbox, got.partition_subject, got.msg_subject) == (
                stream,
                inbox,
                inbox,
                "",
            )
            read = unmarshal_message(marshal_message(Message(stream=stream, subject=inbox, ack_inbox=stream)))
            assert (read.stream, read.subject, read.ack_inbox, read.reply_subject) == (
                stream,
                inbox,
                stream,
                "",
            )
