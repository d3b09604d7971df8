"""Bare protobuf messages of the Liftbridge API in plain Python: the reference for ``src/_fastenv.pyx``.

Covers only the types used for every message: Message and Ack, which envelopes carry as well, PublishRequest
and PublishResponse. For any bytes both twins return the same value, or the same error class, text and offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, SupportsIndex, TypeVar

from liftenvelope import _wire as w
from liftenvelope._checks import (
    as_bytes,
    as_int32,
    as_int64,
    as_list,
    as_optional_bytes,
    as_optional_text,
    as_text,
    storable_headers,
)
from liftenvelope._native.protobuf import (
    Field,
    Reader,
    put_bytes,
    put_text,
    put_varint,
    put_varint_field,
    read_text,
    signed,
)
from liftenvelope._native.values import Ack, Message
from liftenvelope.errors import EnvelopeError, EnvelopeTooLargeError
from liftenvelope.types import AckError, AckPolicy, as_request_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Buffer

_B = TypeVar("_B", bound="Buffer")

_LEADER: Final = AckPolicy.LEADER

_MESSAGE_TEXTS: Final = {
    w.MSG_STREAM: "stream",
    w.MSG_SUBJECT: "subject",
    w.MSG_REPLY_SUBJECT: "reply_subject",
    w.MSG_ACK_INBOX: "ack_inbox",
    w.MSG_CORRELATION_ID: "correlation_id",
}
_MESSAGE_BLOBS: Final = {w.MSG_KEY: "key", w.MSG_VALUE: "value"}
_MESSAGE_NUMBERS: Final = {w.MSG_OFFSET: "offset", w.MSG_TIMESTAMP: "timestamp_ns"}
_ACK_TEXTS: Final = {
    w.ACK_STREAM: "stream",
    w.ACK_PARTITION_SUBJECT: "partition_subject",
    w.ACK_MSG_SUBJECT: "msg_subject",
    w.ACK_ACK_INBOX: "ack_inbox",
    w.ACK_CORRELATION_ID: "correlation_id",
}
_ACK_NUMBERS: Final = {
    w.ACK_OFFSET: "offset",
    w.ACK_RECEPTION_TIMESTAMP: "reception_timestamp_ns",
    w.ACK_COMMIT_TIMESTAMP: "commit_timestamp_ns",
}


# Writing


def publish_request(
    stream: str,
    value: Buffer,
    *,
    key: Buffer | None = None,
    headers: Mapping[str, Buffer] | None = None,
    partition: SupportsIndex = 0,
    ack_inbox: str | None = None,
    correlation_id: str | None = None,
    ack_policy: AckPolicy | int = _LEADER,
    expected_offset: SupportsIndex = -1,
) -> bytes:
    """Serialise a PublishRequest, byte for byte as protobuf does.

    Args:
        stream: Name of the stream.
        value: The payload, any bytes-like.
        key: Any bytes-like; None is the same as empty.
        headers: Names to bytes-like values. The server overwrites ``subject`` and ``reply``.
        partition: Number of the partition.
        ack_inbox: NATS subject to send the ack to. With PublishAsync the server replaces it with its own.
        correlation_id: Id that the ack repeats.
        ack_policy: When the server sends the ack. Default: once the partition's leader has stored the
            message.
        expected_offset: Offset that the message must get, on a stream with optimistic concurrency. Default
            -1: any.

    Returns:
        The serialised request, without any framing.

    Raises:
        UsageError: A value is out of range or of the wrong type; the text names it.
        EnvelopeTooLargeError: A header name has more than 32,767 bytes, there are more than 65,535 headers
            (both would crash the server), or the request has 2 GiB or more.

    Example:
        >>> publish_request("s", b"hello", partition=1, expected_offset=7).hex()
        '120568656c6c6f1a017320014807'
    """
    # In the order of the Cython twin: if several arguments are invalid, both twins must report the same one.
    stream = as_text("stream", stream)
    number = as_int32("partition", partition)
    offset = as_int64("expected_offset", expected_offset)
    key = as_optional_bytes("key", key)
    ack_inbox = as_optional_text("ack_inbox", ack_inbox)
    correlation_id = as_optional_text("correlation_id", correlation_id)
    policy = as_request_policy("ack_policy", ack_policy)
    value = as_bytes("value", value)
    out = bytearray()
    put_bytes(out, w.REQUEST_KEY, key)
    put_bytes(out, w.REQUEST_VALUE, value)
    put_text(out, w.REQUEST_STREAM, stream)
    put_varint_field(out, w.REQUEST_PARTITION, number)
    put_headers(out, w.REQUEST_HEADERS, storable_headers(headers))
    put_text(out, w.REQUEST_ACK_INBOX, ack_inbox)
    put_text(out, w.REQUEST_CORRELATION_ID, correlation_id)
    put_varint_field(out, w.REQUEST_ACK_POLICY, policy)
    put_varint_field(out, w.REQUEST_EXPECTED_OFFSET, offset)
    if len(out) > w.MAX_ENVELOPE:
        raise EnvelopeTooLargeError(f"a request holds at most {w.MAX_ENVELOPE} bytes")
    return bytes(out)


def put_headers(out: bytearray, number: int, headers: Mapping[str, bytes]) -> None:
    """Write headers as a map field with this number."""
    # Like protobuf, map entries always have both fields, even empty ones.
    for name, value in headers.items():
        key = name.encode()
        entry = bytearray((w.ENTRY_KEY << 3 | w.LEN,))
        put_varint(entry, len(key))
        entry += key
        entry.append(w.ENTRY_VALUE << 3 | w.LEN)
        put_varint(entry, len(value))
        entry += value
        out.append(number << 3 | w.LEN)
        put_varint(out, len(entry))
        out += entry


# Reading


def read_messages(payloads: list[_B], /, *, strip_headers: bool = True) -> list[Message]:
    r"""Decode bare messages, as a server sends them to subscribers.

    Args:
        payloads: Serialised ``Message``\ s, bytes-like, without envelopes.
        strip_headers: True to drop the headers ``subject`` and ``reply``, which the server adds to every
            stored message, and which repeat its subject and reply subject. Default True.

    Returns:
        The messages. Unknown fields are skipped; the last value of a repeated field counts.

    Raises:
        EnvelopeError: A payload is malformed or truncated. The text begins with ``message`` and the index of
            the payload; the offset is relative to the payload.
        UsageTypeError: The argument is not a list, or a payload is not bytes-like; the text has its index.

    Example:
        >>> [message.value for message in read_messages([bytes.fromhex("1a0568656c6c6f"), b""])]
        [b'hello', b'']
    """
    raws = ((i, as_bytes(f"payloads[{i}]", data)) for i, data in enumerate(as_list("payloads", payloads)))
    return [read_stored(i, raw, strip_headers=strip_headers) for i, raw in raws]


def read_stored(index: int, raw: bytes, *, strip_headers: bool = True) -> Message:
    """Decode one of several messages; errors name its index."""
    try:
        return read_message(raw, 0, strip_headers=strip_headers)
    except EnvelopeError as error:
        _fail("message", index, error)


def read_publish_responses(payloads: list[_B], /) -> list[tuple[str, Ack | None, int, str]]:
    r"""Decode a server's responses to publishes.

    Args:
        payloads: Serialised ``PublishResponse``\ s, bytes-like.

    Returns:
        For each response: the correlation id, or that of the ack if the response has none; the ack, None if
        unset; the code of the async error, -1 if there is no error (0 is a code: UNKNOWN); the error's text.

    Raises:
        EnvelopeError: A payload is malformed or truncated. The text begins with ``response`` and the index
            of the payload; the offset is relative to the payload.
        UsageTypeError: The argument is not a list, or a payload is not bytes-like; the text has its index.

    Example:
        >>> read_publish_responses([bytes.fromhex("120608021202676f1a0137"), b""])
        [('7', None, 2, 'go'), ('', None, -1, '')]
    """
    raws = ((i, as_bytes(f"payloads[{i}]", data)) for i, data in enumerate(as_list("payloads", payloads)))
    return [read_response(i, raw) for i, raw in raws]


def read_response(index: int, raw: bytes) -> tuple[str, Ack | None, int, str]:
    """Decode one of several responses; errors name its index."""
    try:
        return _response(raw)
    except EnvelopeError as error:
        _fail("response", index, error)


def _fail(what: str, index: int, error: EnvelopeError) -> NoReturn:
    raise type(error)(f"{what} {index}: {error.args[0]}", error.offset) from None


def read_message(raw: bytes, start: int, *, strip_headers: bool = False) -> Message:
    """Decode the message from ``start`` to the end of ``raw``, bare or within its envelope."""
    fields: dict[str, Any] = {}
    headers: dict[str, bytes] = {}
    for field in Reader(raw, start, len(raw)).fields():
        if field.kind == w.LEN:
            if name := _MESSAGE_TEXTS.get(field.number):
                fields[name] = read_text(raw, field, name)
            elif name := _MESSAGE_BLOBS.get(field.number):
                fields[name] = raw[field.start : field.end]
            elif field.number == w.MSG_HEADERS:
                key, value = _header(raw, field)
                headers[key] = value
        elif field.kind == w.VARINT:
            if name := _MESSAGE_NUMBERS.get(field.number):
                fields[name] = signed(field.value, 64)
            elif field.number == w.MSG_PARTITION:
                fields["partition"] = signed(field.value, 32)
            elif field.number == w.MSG_ACK_POLICY:
                fields["ack_policy"] = AckPolicy(signed(field.value, 32))
    for name in w.SERVER_HEADERS if strip_headers else ():
        headers.pop(name, None)
    return Message(**fields, headers=headers)


def _header(raw: bytes, entry: Field) -> tuple[str, bytes]:
    key, value = "", b""
    for field in Reader(raw, entry.start, entry.end).fields():
        if field.kind == w.LEN and field.number == w.ENTRY_KEY:
            key = read_text(raw, field, "a header key")
        elif field.kind == w.LEN and field.number == w.ENTRY_VALUE:
            value = raw[field.start : field.end]
    return key, value


def ack_fields(raw: bytes, start: int, end: int) -> dict[str, Any]:
    """Decode an ack, bare or within its envelope; return the fields that are present."""
    fields: dict[str, Any] = {}
    for field in Reader(raw, start, end).fields():
        if field.kind == w.LEN:
            if name := _ACK_TEXTS.get(field.number):
                fields[name] = read_text(raw, field, name)
        elif field.kind == w.VARINT:
            if name := _ACK_NUMBERS.get(field.number):
                fields[name] = signed(field.value, 64)
            elif field.number == w.ACK_ACK_POLICY:
                fields["ack_policy"] = AckPolicy(signed(field.value, 32))
            elif field.number == w.ACK_ACK_ERROR:
                fields["error"] = AckError(signed(field.value, 32))
    return fields


def _response(raw: bytes) -> tuple[str, Ack | None, int, str]:
    correlation_id = ""
    # None: unset. Protobuf merges repeated occurrences of a submessage: later fields override earlier ones.
    ack: dict[str, Any] | None = None
    error: dict[int, Any] | None = None
    for field in Reader(raw, 0, len(raw)).fields():
        if field.kind != w.LEN:
            continue
        if field.number == w.RESPONSE_ACK:
            ack = (ack or {}) | ack_fields(raw, field.start, field.end)
        elif field.number == w.RESPONSE_ASYNC_ERROR:
            error = (error or {}) | _async_error(raw, field)
        elif field.number == w.RESPONSE_CORRELATION_ID:
            correlation_id = read_text(raw, field, "correlation_id")
    code = -1 if error is None else error.get(w.ASYNC_ERROR_CODE, 0)
    text = (error or {}).get(w.ASYNC_ERROR_MESSAGE, "")
    if ack is None:
        return correlation_id, None, code, text
    return correlation_id or ack.get("correlation_id", ""), Ack(**ack), code, text


def _async_error(raw: bytes, part: Field) -> dict[int, Any]:
    fields: dict[int, Any] = {}
    for field in Reader(raw, part.start, part.end).fields():
        if field.kind == w.VARINT and field.number == w.ASYNC_ERROR_CODE:
            fields[field.number] = signed(field.value, 32)
        elif field.kind == w.LEN and field.number == w.ASYNC_ERROR_MESSAGE:
            fields[field.number] = read_text(raw, field, "the error's message")
    return fields
