"""The envelope codec in plain Python: the reference that ``src/_fastenv.pyx`` must agree with.

Written for readability. For any bytes, both twins return the same value or raise the same error class,
message and offset; tests check this. :mod:`liftenvelope._wire` shows the layouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, SupportsIndex

from liftenvelope import _wire as w
from liftenvelope._checks import as_bytes, as_int64, as_optional_bytes, as_optional_text, storable_headers
from liftenvelope._native.payloads import (
    ack_fields,
    publish_request,
    put_headers,
    read_message,
    read_messages,
    read_publish_responses,
)
from liftenvelope._native.protobuf import put_bytes, put_text, put_varint_field
from liftenvelope._native.values import Ack, Message
from liftenvelope.errors import (
    BadMagicError,
    ChecksumError,
    EnvelopeTooLargeError,
    MalformedEnvelopeError,
    TruncatedEnvelopeError,
    UnsupportedVersionError,
    UsageTypeError,
    WrongTypeError,
)
from liftenvelope.types import AckPolicy, MessageType, as_request_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Buffer

#: All names of the Cython twin; requests and bare messages come from :mod:`liftenvelope._native.payloads`.
__all__ = [
    "Ack",
    "Message",
    "is_envelope",
    "marshal_ack",
    "marshal_message",
    "new_message",
    "peek_type",
    "publish_request",
    "read_messages",
    "read_publish_responses",
    "unmarshal_ack",
    "unmarshal_message",
]

_LEADER: Final = AckPolicy.LEADER


# Encoding


def new_message(
    value: Buffer,
    *,
    key: Buffer | None = None,
    headers: Mapping[str, Buffer] | None = None,
    ack_inbox: str | None = None,
    correlation_id: str | None = None,
    ack_policy: AckPolicy | int = _LEADER,
    expected_offset: SupportsIndex = -1,
    crc: bool = False,
) -> bytes:
    """Encode the envelope of a message, ready to publish on NATS.

    The bytes are identical to those of Liftbridge's Go client (``NewMessage``), except for the order of
    several headers: Go's order is random, ours is that of the mapping.

    Args:
        value: The payload, any bytes-like.
        key: Key for partitioning and compaction, any bytes-like; None is the same as empty.
        headers: Names to bytes-like values. The server overwrites ``subject`` and ``reply``.
        ack_inbox: NATS subject to send the ack to. Without an inbox no ack is sent, whatever the policy.
        correlation_id: Id that the ack repeats, to match acks with messages.
        ack_policy: When the server sends the ack. Default: once the partition's leader has stored the
            message.
        expected_offset: Offset that the message must get, on a stream with optimistic concurrency. Default
            -1: any.
        crc: True to protect the payload by a CRC-32C. If the check fails, the server does not open the
            envelope: it stores the whole of it as a plain value and sends no ack.

    Returns:
        The envelope.

    Raises:
        UsageError: A value is out of range or of the wrong type; the text names it.
        EnvelopeTooLargeError: A header name has more than 32,767 bytes, there are more than 65,535 headers
            (both would crash the server), or the envelope has 2 GiB or more.

    Example:
        >>> from liftenvelope.envelope import new_message
        >>> new_message(b"hello").hex()
        'b90e43b40008000008ffffffffffffffffff011a0568656c6c6f'
    """
    # In the order of the Cython twin: if several arguments are invalid, both twins must report the same one.
    offset = as_int64("expected_offset", expected_offset)
    key = as_optional_bytes("key", key)
    ack_inbox = as_optional_text("ack_inbox", ack_inbox)
    correlation_id = as_optional_text("correlation_id", correlation_id)
    policy = as_request_policy("ack_policy", ack_policy)
    value = as_bytes("value", value)
    body = bytearray()
    put_varint_field(body, w.MSG_OFFSET, offset)
    put_bytes(body, w.MSG_KEY, key)
    put_bytes(body, w.MSG_VALUE, value)
    put_headers(body, w.MSG_HEADERS, storable_headers(headers))
    put_text(body, w.MSG_ACK_INBOX, ack_inbox)
    put_text(body, w.MSG_CORRELATION_ID, correlation_id)
    put_varint_field(body, w.MSG_ACK_POLICY, policy)
    return _envelope(MessageType.PUBLISH, body, crc)


def marshal_message(message: Message, *, crc: bool = False) -> bytes:
    """Encode a :class:`Message` with all its fields, for servers and tests.

    Args:
        message: The message.
        crc: True to protect the payload by a CRC-32C.

    Returns:
        The envelope: fields in the order of their numbers, without those that have default values.

    Raises:
        UsageTypeError: The argument is not a Message.
        EnvelopeTooLargeError: The envelope would have 2 GiB or more.

    Example:
        >>> from liftenvelope.envelope import Message, marshal_message, unmarshal_message
        >>> unmarshal_message(marshal_message(Message(b"hello", offset=7))).offset
        7
    """
    if not isinstance(message, Message):
        raise UsageTypeError(f"message must be a Message, got {type(message).__name__}")
    body = bytearray()
    put_varint_field(body, w.MSG_OFFSET, message.offset)
    put_bytes(body, w.MSG_KEY, message.key)
    put_bytes(body, w.MSG_VALUE, message.value)
    put_varint_field(body, w.MSG_TIMESTAMP, message.timestamp_ns)
    put_text(body, w.MSG_STREAM, message.stream)
    put_varint_field(body, w.MSG_PARTITION, message.partition)
    put_text(body, w.MSG_SUBJECT, message.subject)
    put_text(body, w.MSG_REPLY_SUBJECT, message.reply_subject)
    put_headers(body, w.MSG_HEADERS, storable_headers(message.headers))
    put_text(body, w.MSG_ACK_INBOX, message.ack_inbox)
    put_text(body, w.MSG_CORRELATION_ID, message.correlation_id)
    put_varint_field(body, w.MSG_ACK_POLICY, message.ack_policy)
    return _envelope(MessageType.PUBLISH, body, crc)


def marshal_ack(ack: Ack, *, crc: bool = False) -> bytes:
    """Encode an :class:`Ack`, as a server sends it.

    Args:
        ack: The ack.
        crc: True to protect the payload by a CRC-32C.

    Returns:
        The envelope: fields in the order of their numbers, without those that have default values.

    Raises:
        UsageTypeError: The argument is not an Ack.

    Example:
        >>> from liftenvelope.envelope import Ack, marshal_ack, unmarshal_ack
        >>> unmarshal_ack(marshal_ack(Ack(stream="s", offset=7))).offset
        7
    """
    if not isinstance(ack, Ack):
        raise UsageTypeError(f"ack must be an Ack, got {type(ack).__name__}")
    body = bytearray()
    put_text(body, w.ACK_STREAM, ack.stream)
    put_text(body, w.ACK_PARTITION_SUBJECT, ack.partition_subject)
    put_text(body, w.ACK_MSG_SUBJECT, ack.msg_subject)
    put_varint_field(body, w.ACK_OFFSET, ack.offset)
    put_text(body, w.ACK_ACK_INBOX, ack.ack_inbox)
    put_text(body, w.ACK_CORRELATION_ID, ack.correlation_id)
    put_varint_field(body, w.ACK_ACK_POLICY, ack.ack_policy)
    put_varint_field(body, w.ACK_RECEPTION_TIMESTAMP, ack.reception_timestamp_ns)
    put_varint_field(body, w.ACK_COMMIT_TIMESTAMP, ack.commit_timestamp_ns)
    put_varint_field(body, w.ACK_ACK_ERROR, ack.error)
    return _envelope(MessageType.ACK, body, crc)


def _envelope(kind: MessageType, body: bytearray, crc: bool) -> bytes:
    header_len = w.HEADER_LEN_CRC if crc else w.HEADER_LEN
    if len(body) > w.MAX_ENVELOPE - header_len:
        raise EnvelopeTooLargeError(f"an envelope holds at most {w.MAX_ENVELOPE} bytes")
    head = w.MAGIC + bytes((w.VERSION, header_len, w.FLAG_CRC if crc else 0, kind))
    return head + (crc32c(body).to_bytes(4, "big") if crc else b"") + body


# Decoding


def unmarshal_message(data: Buffer) -> Message:
    """Decode a message envelope.

    Accepts the same input as the server: unknown protobuf fields are skipped, the last value of a repeated
    field counts, and a checksum is verified if present.

    Args:
        data: The envelope, any bytes-like.

    Returns:
        The message. Absent fields have protobuf's defaults.

    Raises:
        EnvelopeError: The bytes are invalid. The subclass names the fault, ``offset`` its position.
        UsageTypeError: data is not bytes-like.

    Example:
        >>> from liftenvelope.envelope import new_message, unmarshal_message
        >>> unmarshal_message(new_message(b"hello", key=b"k")).key
        b'k'
    """
    raw = as_bytes("data", data)
    return read_message(raw, _payload_start(raw, MessageType.PUBLISH))


def unmarshal_ack(data: Buffer) -> Ack:
    """Decode an ack envelope.

    An ack with an error is returned like any other: check ``error`` or call ``raise_for_error()``.

    Args:
        data: The envelope, any bytes-like.

    Returns:
        The ack.

    Raises:
        EnvelopeError: The bytes are invalid. The subclass names the fault, ``offset`` its position.
        UsageTypeError: data is not bytes-like.

    Example:
        >>> from liftenvelope.envelope import Ack, marshal_ack, unmarshal_ack
        >>> unmarshal_ack(marshal_ack(Ack(stream="s", error=2))).error
        <AckError.INCORRECT_OFFSET: 2>
    """
    raw = as_bytes("data", data)
    return Ack(**ack_fields(raw, _payload_start(raw, MessageType.ACK), len(raw)))


def peek_type(data: Buffer) -> MessageType:
    """Return the type of an envelope, read from its header alone.

    Args:
        data: The envelope, any bytes-like.

    Returns:
        The type. An unknown number is kept: the member's name is then ``UNRECOGNIZED_<number>``.

    Raises:
        EnvelopeError: The header is invalid. The payload is not checked.

    Example:
        >>> from liftenvelope.envelope import new_message, peek_type
        >>> peek_type(new_message(b"hello"))
        <MessageType.PUBLISH: 0>
    """
    return MessageType(_checked_header(as_bytes("data", data))[7])


def is_envelope(data: Buffer) -> bool:
    """Return True if ``data`` starts with a valid envelope header.

    The payload is not checked: unmarshalling may still fail.

    Args:
        data: Any bytes-like.

    Returns:
        True for a valid header of any envelope type, otherwise False.

    Example:
        >>> from liftenvelope.envelope import is_envelope, new_message
        >>> is_envelope(new_message(b"hello")), is_envelope(b"hello")
        (True, False)
    """
    raw = as_bytes("data", data)
    if len(raw) < w.HEADER_LEN or raw[:4] != w.MAGIC or raw[4] != w.VERSION:
        return False
    return _header_len_fault(raw) is None


def _header_len_fault(raw: bytes) -> str | None:
    header_len = raw[5]
    if header_len < w.HEADER_LEN:
        return f"the header says that it is {header_len} bytes long; the least is {w.HEADER_LEN}"
    if header_len > len(raw):
        return f"the header says that it is {header_len} bytes long, of {len(raw)} in all"
    if raw[6] & w.FLAG_CRC and header_len != w.HEADER_LEN_CRC:
        return f"a header with a checksum is {w.HEADER_LEN_CRC} bytes long, not {header_len}"
    return None


def _checked_header(raw: bytes) -> bytes:
    if len(raw) < w.HEADER_LEN:
        raise TruncatedEnvelopeError(
            f"an envelope has at least {w.HEADER_LEN} bytes, not {len(raw)}", len(raw)
        )
    if raw[:4] != w.MAGIC:
        raise BadMagicError(f"not an envelope: it begins with {raw[:4].hex()}, not {w.MAGIC.hex()}", 0)
    if raw[4] != w.VERSION:
        raise UnsupportedVersionError(f"envelope version {raw[4]} is not supported, only {w.VERSION}", 4)
    if fault := _header_len_fault(raw):
        kind = TruncatedEnvelopeError if raw[5] > len(raw) else MalformedEnvelopeError
        raise kind(fault, 5)
    return raw


def _payload_start(raw: bytes, kind: MessageType) -> int:
    _checked_header(raw)
    if raw[7] != kind:
        found = MessageType(raw[7])
        raise WrongTypeError(f"expected an envelope of type {kind.name}, found {found.name} ({raw[7]})", 7)
    start = raw[5]
    if raw[6] & w.FLAG_CRC:
        expected, actual = int.from_bytes(raw[8:12], "big"), crc32c(raw[start:])
        if actual != expected:
            raise ChecksumError(f"the header's CRC-32C is {expected:08x}, the payload's {actual:08x}", 8)
    return start


# CRC-32C (Castagnoli), reflected, as in RFC 3720 appendix B.4


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_CRC_TABLE: Final = _crc_table()


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Compute the CRC-32C (Castagnoli) of any bytes-like.

    Example:
        >>> from liftenvelope._native.env import crc32c
        >>> f"{crc32c(b'123456789'):08x}"
        'e3069283'
    """
    crc = 0xFFFF_FFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFF_FFFF
