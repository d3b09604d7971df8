"""Bare messages of the gRPC API, on whichever backend is active: read_messages and its like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from liftenvelope._native import env as codec
from liftenvelope.envelope import Ack, AckError, AckPolicy, Message, marshal_message
from liftenvelope.errors import (
    EnvelopeError,
    EnvelopeTooLargeError,
    MalformedEnvelopeError,
    TruncatedEnvelopeError,
    UsageError,
    UsageTypeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

#: As a server sent it: every field, and between them such as this version does not know.
STORED = Message(
    b"v" * 200,
    key=b"k",
    headers={"h": b"w", "subject": b"t", "reply": b"r", "é": b""},
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
PAYLOAD = marshal_message(STORED)[8:]
#: Numbers 13 to 16 with the wire types of a varint, 64 bits, a group of a varint, and 32 bits.
UNKNOWN = bytes.fromhex("68057101020304050607087b08017c850101020304")


def blob(number: int, data: bytes) -> bytes:
    assert number < 16
    assert len(data) < 128
    return bytes((number << 3 | 2, len(data))) + data


ACK_BODY = blob(1, b"s") + blob(3, b"m") + b"\x20\x07" + blob(6, b"from-ack") + b"\x38\x01"
ERROR_BODY = b"\x08\x05" + blob(2, "nö".encode())


def read(payload: bytes, **options: Any) -> Message:
    (message,) = codec.read_messages([payload], **options)
    assert isinstance(message, Message)
    return message


def answer(payload: bytes) -> tuple[str, Ack | None, int, str]:
    (response,) = codec.read_publish_responses([payload])
    assert isinstance(response, tuple)
    return response


class TestMessages:
    def test_every_field(self) -> None:
        assert read(PAYLOAD, strip_headers=False) == STORED

    def test_the_servers_own_headers_are_left_out(self) -> None:
        message = read(PAYLOAD)
        assert list(message.headers.items()) == [("h", b"w"), ("é", b"")]
        for name in ("value", "offset", "subject", "reply_subject", "ack_policy"):
            assert getattr(message, name) == getattr(STORED, name)

    @pytest.mark.parametrize(
        ("headers", "left"),
        [
            ({}, {}),
            ({"subject": b"a"}, {}),
            ({"reply": b""}, {}),
            ({"subject": b"a", "reply": b"b"}, {}),
            ({"subjects": b"a", "Reply": b"b", "subjec": b"", "replying": b"", "": b"c"}, None),
            ({"reply": b"b", "x": b"1", "subject": b"a"}, {"x": b"1"}),
        ],
    )
    def test_exactly_those(self, headers: dict[str, bytes], left: dict[str, bytes] | None) -> None:
        payload = marshal_message(Message(headers=headers))[8:]
        assert read(payload).headers == (headers if left is None else left)
        assert read(payload, strip_headers=False).headers == headers

    def test_headers_are_read_only_also_where_none_are_left(self) -> None:
        for payload in (b"", PAYLOAD, marshal_message(Message(headers={"reply": b""}))[8:]):
            with pytest.raises(TypeError):
                read(payload).headers["x"] = b""  # type: ignore[index]

    def test_last_of_a_repeated_header_counts(self) -> None:
        entries = [blob(9, blob(1, b"a") + blob(2, value)) for value in (b"1", b"2")]
        assert read(b"".join(entries)).headers == {"a": b"2"}

    def test_many_at_once(self) -> None:
        payloads = [marshal_message(Message(b"x" * (i % 300), offset=i))[8:] for i in range(1_000)]
        messages = codec.read_messages(payloads)
        assert [message.offset for message in messages] == list(range(1_000))
        assert [len(message.value) for message in messages] == [i % 300 for i in range(1_000)]

    def test_none(self) -> None:
        assert codec.read_messages([]) == []

    def test_empty(self) -> None:
        assert read(b"") == Message()

    def test_a_large_value(self) -> None:
        value = bytes(5_000_000)
        assert read(marshal_message(Message(value, headers={"h": value}))[8:]).headers["h"] == value

    def test_unknown_fields_are_passed_over(self) -> None:
        assert read(UNKNOWN + PAYLOAD + UNKNOWN, strip_headers=False) == STORED

    def test_an_unknown_ack_policy_keeps_its_number(self) -> None:
        policy = read(b"\x60\x63").ack_policy
        assert isinstance(policy, AckPolicy)
        assert policy == 99

    def test_any_bytes_like(self) -> None:
        views: list[Buffer] = [bytearray(PAYLOAD), memoryview(PAYLOAD)]
        assert codec.read_messages(views, strip_headers=False) == [STORED, STORED]


class TestResponses:
    def test_an_ack(self) -> None:
        ident, ack, code, text = answer(blob(1, ACK_BODY) + blob(3, b"id"))
        assert ack == Ack(stream="s", msg_subject="m", offset=7, correlation_id="from-ack", ack_policy=1)
        assert (ident, code, text) == ("id", -1, "")

    @pytest.mark.parametrize("own", [b"", blob(3, b"")])
    def test_the_acks_correlation_id_where_there_is_no_other(self, own: bytes) -> None:
        assert answer(blob(1, ACK_BODY) + own)[0] == "from-ack"

    def test_an_ack_with_an_error_of_its_own(self) -> None:
        ack = answer(blob(1, b"\x50\x02"))[1]
        assert ack is not None
        assert ack.error is AckError.INCORRECT_OFFSET

    @pytest.mark.parametrize(
        ("payload", "expected"),
        [
            (b"", ("", None, -1, "")),
            (blob(1, b""), ("", Ack(), -1, "")),
            (blob(2, b""), ("", None, 0, "")),  # present: UNKNOWN
            (blob(2, b"\x08\x00"), ("", None, 0, "")),
            (blob(2, ERROR_BODY) + blob(3, b"7"), ("7", None, 5, "nö")),
            (blob(1, b"") + blob(2, ERROR_BODY), ("", Ack(), 5, "nö")),
            (blob(2, b"\x08\xe7\x07"), ("", None, 999, "")),
            (blob(2, b"\x08" + b"\xff" * 9 + b"\x01"), ("", None, -1, "")),
        ],
    )
    def test_absent_and_empty(self, payload: bytes, expected: tuple[Any, ...]) -> None:
        assert answer(payload) == expected

    def test_parts_are_put_together(self) -> None:
        payload = blob(1, ACK_BODY) + blob(1, b"\x20\x08") + blob(2, ERROR_BODY) + blob(2, b"\x08\x01")
        ident, ack, code, text = answer(payload)
        assert ack == Ack(stream="s", msg_subject="m", offset=8, correlation_id="from-ack", ack_policy=1)
        assert (ident, code, text) == ("from-ack", 1, "nö")

    def test_unknown_fields_are_passed_over(self) -> None:
        inside = blob(1, UNKNOWN + ACK_BODY) + UNKNOWN + blob(2, ERROR_BODY + UNKNOWN)
        assert answer(inside) == answer(blob(1, ACK_BODY) + blob(2, ERROR_BODY))


def cuts(payload: bytes, reader: Callable[[list[bytes]], list[Any]], whole: set[int], what: str) -> None:
    """Every cut is refused as truncated, within it, but for those between two fields."""
    for size in range(len(payload)):
        if size in whole:
            reader([payload[:size]])
            continue
        with pytest.raises(TruncatedEnvelopeError) as caught:
            reader([b"", payload[:size]])
        assert str(caught.value).startswith(f"{what} 1: ")
        assert caught.value.offset is not None
        assert caught.value.offset <= size


class TestFaults:
    def test_messages_cut_at_every_byte(self) -> None:
        fields = [b"\x08\x05", blob(2, b"key"), blob(9, blob(1, b"h") + blob(2, b"w")), b"\x60\x01"]
        ends = {sum(map(len, fields[:n])) for n in range(len(fields))}
        cuts(b"".join(fields), codec.read_messages, ends, "message")

    def test_responses_cut_at_every_byte(self) -> None:
        fields = [blob(1, ACK_BODY), blob(2, ERROR_BODY), blob(3, b"id")]
        ends = {sum(map(len, fields[:n])) for n in range(len(fields))}
        cuts(b"".join(fields), codec.read_publish_responses, ends, "response")

    @pytest.mark.parametrize(
        ("payload", "kind", "text", "offset"),
        [
            (b"\x00", MalformedEnvelopeError, "field number 0", 0),
            (b"\x08\x01\x0f", MalformedEnvelopeError, "wire type 7 does not exist", 2),
            (blob(5, b"ab\xff"), MalformedEnvelopeError, "stream is not valid UTF-8", 4),
            (blob(9, blob(1, b"\xff")), MalformedEnvelopeError, "a header key is not valid UTF-8", 4),
            (b"\x08" + b"\xff" * 10, MalformedEnvelopeError, "a varint is longer than ten bytes", 1),
            (b"\x1a\x05abc", TruncatedEnvelopeError, "a field of 5 bytes where 3 are left", 1),
            (PAYLOAD + b"\x08", TruncatedEnvelopeError, "the data ends within a varint", len(PAYLOAD) + 1),
        ],
    )
    def test_messages(self, payload: bytes, kind: type[EnvelopeError], text: str, offset: int) -> None:
        with pytest.raises(kind) as caught:
            codec.read_messages([PAYLOAD, b"", payload, b"\x00"])
        assert type(caught.value) is kind
        assert caught.value.args == (f"message 2: {text}", offset)
        assert str(caught.value) == f"message 2: {text} (at byte {offset})"

    @pytest.mark.parametrize(
        ("payload", "kind", "text", "offset"),
        [
            (blob(1, b"\x20"), TruncatedEnvelopeError, "the data ends within a varint", 3),
            (blob(1, blob(1, b"\xff")), MalformedEnvelopeError, "stream is not valid UTF-8", 4),
            (blob(2, blob(2, b"\xff")), MalformedEnvelopeError, "the error's message is not valid UTF-8", 4),
            (blob(3, b"\xff"), MalformedEnvelopeError, "correlation_id is not valid UTF-8", 2),
            (b"\x0a\x05\x20", TruncatedEnvelopeError, "a field of 5 bytes where 1 are left", 1),
        ],
    )
    def test_responses(self, payload: bytes, kind: type[EnvelopeError], text: str, offset: int) -> None:
        with pytest.raises(kind) as caught:
            codec.read_publish_responses([b"", payload])
        assert caught.value.args == (f"response 1: {text}", offset)

    @pytest.mark.parametrize("name", ["read_messages", "read_publish_responses"])
    def test_what_is_no_list_of_bytes(self, name: str) -> None:
        reader = getattr(codec, name)
        for odd in (None, b"", (b"",), 5):
            with pytest.raises(UsageTypeError, match=r"payloads must be a list, got"):
                reader(odd)
        for item in (None, "text", 5):
            with pytest.raises(UsageTypeError, match=r"payloads\[1\] must be bytes-like, got"):
                reader([b"", item])


class TestRequests:
    @pytest.mark.parametrize(
        ("key", "field"), [(None, ""), (b"", ""), (b"k", "0a016b"), (bytearray(b"k"), "0a016b")]
    )
    def test_keys(self, key: Any, field: str) -> None:
        made = codec.publish_request("s", b"v", key=key)
        assert made.hex() == field + "120176" + "1a0173" + "48ffffffffffffffffff01"

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, ""),
            ({"partition": 0}, ""),
            ({"partition": 1}, "2001"),
            ({"partition": True}, "2001"),
            ({"partition": 2**31 - 1}, "20ffffffff07"),
            ({"partition": -1}, "20ffffffffffffffffff01"),
            ({"partition": -(2**31)}, "2080808080f8ffffffff01"),
            ({"headers": {}}, ""),
            ({"headers": {"a": b"b"}}, "2a060a0161120162"),
            ({"headers": {"": b""}}, "2a040a001200"),
            ({"headers": {"é": bytearray(b"1"), "a": b""}}, "2a070a02c3a9120131" + "2a050a01611200"),
            ({"ack_inbox": "i"}, "320169"),
            ({"correlation_id": "é"}, "3a02c3a9"),
            ({"ack_policy": AckPolicy.ALL}, "4001"),
            ({"ack_policy": 2}, "4002"),
        ],
    )
    def test_each_alone(self, options: dict[str, Any], expected: str) -> None:
        made = codec.publish_request("s", b"", expected_offset=0, **options)
        assert made.hex() == "1a0173" + expected

    @pytest.mark.parametrize(
        ("offset", "expected"),
        [(0, ""), (7, "4807"), (-1, "48ffffffffffffffffff01"), (2**63 - 1, "48ffffffffffffffff7f")],
    )
    def test_expected_offsets(self, offset: int, expected: str) -> None:
        assert codec.publish_request("", b"", expected_offset=offset).hex() == expected

    def test_all_that_is_unset_is_nothing(self) -> None:
        assert codec.publish_request("", b"", expected_offset=0) == b""

    def test_a_value_of_any_bytes_like(self) -> None:
        for value in (bytearray(b"v"), memoryview(b"v"), memoryview(b"-v-")[1:2]):
            assert codec.publish_request("s", value) == codec.publish_request("s", b"v")

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"stream": None}, "stream must be str, got NoneType"),
            ({"stream": b"s"}, "stream must be str, got bytes"),
            (
                {"stream": "\udc80"},
                r"stream must not contain a lone surrogate, which UTF-8 cannot encode, got '\udc80'",
            ),
            ({"partition": 2**31}, "partition must fit in 32 bits, got 2147483648"),
            ({"partition": -(2**70)}, f"partition must fit in 32 bits, got {-(2**70)}"),
            ({"partition": 1.0}, "partition must be an integer, got float"),
            ({"partition": None}, "partition must be an integer, got NoneType"),
            ({"expected_offset": 2**63}, f"expected_offset must fit in 64 bits, got {2**63}"),
            ({"ack_policy": 3}, "ack_policy must be one of LEADER, ALL, NONE, got 3"),
            ({"key": "k"}, "key must be bytes-like, got str"),
            ({"value": "v"}, "value must be bytes-like, got str"),
            ({"value": None}, "value must be bytes-like, got NoneType"),
            ({"headers": {"a": "b"}}, "header 'a' must be bytes-like, got str"),
            ({"headers": {5: b""}}, "header name must be str, got int"),
            ({"headers": [("a", b"")]}, "headers must be a mapping, got list"),
            ({"ack_inbox": 5}, "ack_inbox must be str, got int"),
            ({"correlation_id": b"c"}, "correlation_id must be str, got bytes"),
        ],
    )
    def test_what_is_refused(self, options: dict[str, Any], text: str) -> None:
        with pytest.raises(UsageError) as caught:
            codec.publish_request(**{"stream": "s", "value": b""} | options)
        assert str(caught.value) == text

    def test_first_of_several_faults_is_named(self) -> None:
        publish_request: Any = codec.publish_request
        with pytest.raises(UsageError, match=r"^stream must be"):
            publish_request(None, None, partition=None, key=5)
        with pytest.raises(UsageError, match=r"^partition must be"):
            publish_request("s", None, partition=None, key=5, headers=5)
        with pytest.raises(UsageError, match=r"^value must be"):
            publish_request("s", None, headers=5)

    @pytest.mark.parametrize("headers", [{"x" * 32_768: b""}, {str(i): b"" for i in range(65_536)}])
    def test_headers_that_would_crash_the_server(self, headers: dict[str, bytes]) -> None:
        with pytest.raises(EnvelopeTooLargeError):
            codec.publish_request("s", b"v", headers=headers)

    def test_headers_at_the_limit(self) -> None:
        made = codec.publish_request("", b"", expected_offset=0, headers={"x" * 32_767: b""})
        assert made == bytes.fromhex("2a8580020affff01") + b"x" * 32_767 + b"\x12\x00"
