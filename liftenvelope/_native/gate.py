r"""Message conversion for the gateway, in plain Python: the reference for ``src/_fastgate.pyx``.

:class:`MessageFramer` converts JetStream deliveries to gRPC messages, for a Subscribe call.
:class:`PublishPipe` converts PublishRequests to PUB commands, and JetStream's acks to PublishResponses, for a
PublishAsync call. Both are sans-io. For any bytes both twins return the same result.
"""

from __future__ import annotations

from typing import Any, Final

from liftenvelope import _wire as w
from liftenvelope._checks import as_bytes, as_text
from liftenvelope._native.env import unmarshal_message
from liftenvelope._native.payloads import put_headers
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
from liftenvelope.errors import EnvelopeError

__all__ = ["MessageFramer", "PublishPipe"]

#: Number of subjects with cached message tails. Wildcards can produce any number of subjects.
_SUBJECTS: Final = 1_024
#: Tokens of $JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ns>.<pending>; and of the form with a
#: domain and an account before the stream, which may have one more token at the end.
_TOKENS: Final = 9
_DOMAIN_TOKENS: Final = 11
_MAX_INT64: Final = 2**63 - 1
_HEADER: Final = b"\xb9\x0e\x43\xb4\0\x08\0\0"
_NONE: Final = 2


def _place(reply: bytes) -> tuple[int, int, int, int] | None:
    """Parse sequence, delivery, time and pending of a JetStream reply subject; None for other subjects."""
    tokens = reply.split(b".")
    if tokens[:2] != [b"$JS", b"ACK"]:
        return None
    if len(tokens) == _TOKENS:
        numbers = tokens[5:9]
    elif len(tokens) in (_DOMAIN_TOKENS, _DOMAIN_TOKENS + 1):
        numbers = tokens[7:11]
    else:
        return None
    if not all(number.isdigit() and len(number) < 20 for number in numbers):
        return None
    sequence, delivery, time_ns, pending = map(int, numbers)
    if max(sequence, delivery, time_ns, pending) > _MAX_INT64:
        return None
    return sequence, delivery, time_ns, pending


class MessageFramer:
    """Converts the deliveries of one partition's consumer to gRPC messages.

    An envelope provides key, value and headers. Any other payload, invalid envelopes included, is a plain
    value. Like Liftbridge, the framer adds the headers ``subject`` and ``reply``, the latter empty.

    Args:
        stream: The Liftbridge stream.
        partition: The partition.

    Attributes:
        sequence: Stream sequence of the last message framed or skipped; 0 before the first.
        pending: Messages that the consumer had yet to deliver after that message.

    Example:
        >>> framer = MessageFramer("s", 0)
        >>> framer.frame([("a", b"$JS.ACK.S.c.1.7.1.99.0", None, b"hello")], 1, -1).hex()
        '000000002a08061a0568656c6c6f20632a01733a01614a0c0a077375626a6563741201614a090a057265706c791200'
        >>> framer.sequence, framer.pending
        (7, 0)
    """

    def __init__(self, stream: str, partition: int) -> None:
        self.sequence = 0
        self.pending = 0
        middle = bytearray()
        put_text(middle, w.MSG_STREAM, as_text("stream", stream))
        put_varint_field(middle, w.MSG_PARTITION, partition)
        self._middle = bytes(middle)
        self._tails: dict[str, bytes] = {}

    def frame(self, messages: list[Any], least: int, most: int) -> bytes:
        """Return gRPC messages for the deliveries with sequences from ``least`` to ``most``.

        Framing ends after the message with sequence ``most``, or before a higher one. Messages without a
        JetStream reply subject are skipped.

        Args:
            messages: Tuples of subject, reply, headers and payload, in the order of their delivery.
            least: Lowest sequence to return.
            most: Highest sequence to return; -1 for no limit.
        """
        out = bytearray()
        for subject, reply, _, payload in messages:
            place = _place(reply)
            if place is None:
                continue
            self.sequence, _, timestamp_ns, self.pending = place
            if -1 < most < self.sequence:
                break
            if self.sequence >= least:
                body = self._body(subject, payload, self.sequence - 1, timestamp_ns)
                out += b"\0" + len(body).to_bytes(4, "big") + body
            if self.sequence == most:
                break
        return bytes(out)

    def _body(self, subject: str, payload: bytes, offset: int, timestamp_ns: int) -> bytes:
        key, value, headers = b"", payload, None
        try:
            message = unmarshal_message(payload)
        except EnvelopeError:
            pass  # not an envelope: a plain value, as in Liftbridge
        else:
            key, value, headers = message.key, message.value, message.headers
        out = bytearray()
        put_varint_field(out, w.MSG_OFFSET, offset)
        put_bytes(out, w.MSG_KEY, key)
        put_bytes(out, w.MSG_VALUE, value)
        put_varint_field(out, w.MSG_TIMESTAMP, timestamp_ns)
        if headers:
            put_headers(out, w.MSG_HEADERS, headers)
        out += self._tails.get(subject) or self._tail(subject)
        return bytes(out)

    def _tail(self, subject: str) -> bytes:
        """Encode the fields common to all messages on a subject: stream, partition, subject, headers."""
        tail = bytearray(self._middle)
        put_text(tail, w.MSG_SUBJECT, subject)
        put_headers(tail, w.MSG_HEADERS, {"subject": subject.encode(), "reply": b""})
        if len(self._tails) >= _SUBJECTS:
            self._tails.clear()
        found = self._tails[subject] = bytes(tail)
        return found


class _Route:
    """Route of a partition: PUB command, prefix of JetStream's acks, constant part of our acks."""

    def __init__(self, key: tuple[bytes, int], command: bytes, answer: bytes, ack: bytes) -> None:
        self.key = key
        self.command = command
        self.answer = answer
        self.ack = ack


class PublishPipe:
    r"""Converts requests to PUB commands, and acks to responses.

    Only plain requests for a partition with a route are taken. The caller handles all others, and reports
    their errors. Invariant: each message taken gets a unique number, the last token of its reply subject, and
    is pending until :meth:`acked` or :meth:`expire` removes that number.

    Args:
        inbox: Prefix of the reply subjects, including the last dot; a number follows.
        max_message: Largest envelope, in bytes.
        max_name: Longest correlation id or ack inbox to take, in bytes.

    Attributes:
        pending: Number of messages without an ack.
        pending_bytes: Total size of the requests of these messages, in bytes.
        next_number: Number of the next message.

    Example:
        >>> pipe = PublishPipe("_INBOX.a.", 1024, 100)
        >>> pipe.route("s", 0, "sub", "sub", "JS")
        >>> pipe.take([bytes.fromhex("120568656c6c6f1a0173")], 0, 98)
        (b'PUB sub _INBOX.a.0 15\r\n\xb9\x0eC\xb4\x00\x08\x00\x00\x1a\x05hello\r\n', 1, 1, 15)
        >>> pipe.acked([("_INBOX.a.0", b"", None, b'{"stream":"JS","seq":3}')], 99)
        (b'\x00\x00\x00\x00\x15\n\x13\n\x01s\x12\x03sub\x1a\x03sub \x02@bHc', [])
    """

    def __init__(self, inbox: str, max_message: int, max_name: int) -> None:
        self._inbox = as_text("inbox", inbox).encode()
        self._max_message = max_message
        self._max_name = max_name
        self._routes: dict[tuple[bytes, int], _Route] = {}
        self._waiting: dict[int, tuple[_Route, bytes, int, int, int]] = {}
        self.next_number = 0
        self.pending_bytes = 0

    @property
    def pending(self) -> int:
        """Count of messages without an ack."""
        return len(self._waiting)

    def route(
        self,
        stream: str,
        partition: int,
        stream_subject: str,
        subject: str,
        jetstream_stream: str,
        domain: str = "",
    ) -> None:
        """Take messages for a partition from now on.

        Args:
            stream: The Liftbridge stream.
            partition: The partition.
            stream_subject: The stream's subject, which Liftbridge's acks carry as the partition subject.
            subject: The subject to publish on.
            jetstream_stream: The JetStream stream that must store the messages.
            domain: JetStream's domain in the acks. Default: none.
        """
        ack = bytearray()
        put_text(ack, w.ACK_STREAM, stream)
        put_text(ack, w.ACK_PARTITION_SUBJECT, stream_subject)
        put_text(ack, w.ACK_MSG_SUBJECT, subject)
        command = b"PUB %b %b" % (subject.encode(), self._inbox)
        where = b',"domain":"%b"' % domain.encode() if domain else b""
        answer = b'{"stream":"%b"%b,"seq":' % (jetstream_stream.encode(), where)
        key = (stream.encode(), partition)
        self._routes[key] = _Route(key, command, answer, bytes(ack))

    def close_route(self, stream: str, partition: int) -> None:
        """Take no messages for a partition until :meth:`route` is called again."""
        self._routes.pop((as_text("stream", stream).encode(), partition), None)

    def take(self, requests: list[bytes], start: int, now_ns: int) -> tuple[bytes, int, int, int]:
        """Return PUB commands for requests, up to the first one that is not taken.

        Args:
            requests: Serialised PublishRequests.
            start: Index of the first request to take.
            now_ns: Current time in nanoseconds since 1970: the reception time in the acks.

        Returns:
            The commands, the index of the first request not taken, the number of commands, and the bytes of
            their payloads.
        """
        out, index, size = bytearray(), start, 0
        while index < len(requests):
            raw = as_bytes("request", requests[index])
            try:
                request = _Request(raw)
            except EnvelopeError:
                break
            route = self._routes.get((request.stream, request.partition))
            if route is None or not request.plain or request.name > self._max_name:
                break
            envelope = request.envelope()
            if len(envelope) > self._max_message:
                break
            head = (route.command, self.next_number, len(envelope))
            out += b"%b%d %d\r\n%b\r\n" % (*head, envelope)
            waiting = (route, request.correlation_id, request.policy, len(raw), now_ns)
            self._waiting[self.next_number] = waiting
            self.next_number += 1
            self.pending_bytes += len(raw)
            size += len(envelope)
            index += 1
        return bytes(out), index, index - start, size

    def acked(
        self, messages: list[Any], now_ns: int
    ) -> tuple[bytes, list[tuple[Any, tuple[bytes, int], int, bytes, int]]]:
        """Return responses, with their gRPC prefixes, for JetStream's acks.

        Acks for messages that are not pending are skipped.

        Args:
            messages: Tuples of subject, reply, headers and payload.
            now_ns: Current time in nanoseconds since 1970: the commit time in the acks.

        Returns:
            The responses; and the answers that are not plain acks, each with stream and partition, ack
            policy, correlation id and reception time of its message.
        """
        out, others = bytearray(), []
        for message in messages:
            number = message[0].encode()[len(self._inbox) :]
            if not number.isdigit() or len(number) > 18:
                continue
            waiting = self._pop(int(number))
            if waiting is None:
                continue
            route, correlation_id, policy, _, received_ns = waiting
            offset = _offset(route.answer, message)
            if offset is None:
                others.append((message, route.key, policy, correlation_id, received_ns))
            elif policy != _NONE:
                times = received_ns, now_ns
                out += _response(route.ack, offset, correlation_id, policy, times)
        return bytes(out), others

    def expire(self, number: int) -> list[tuple[int, bytes]]:
        """Remove pending messages numbered below ``number``; return their policies and correlation ids."""
        old = [self._pop(known) for known in list(self._waiting) if known < number]
        return [(waiting[2], waiting[1]) for waiting in old if waiting is not None]

    def _pop(self, number: int) -> tuple[_Route, bytes, int, int, int] | None:
        """Remove a pending message and return it; None if the number is not pending."""
        found = self._waiting.pop(number, None)
        if found is not None:
            self.pending_bytes -= found[3]
        return found


class _Request:
    """A parsed PublishRequest."""

    def __init__(self, raw: bytes) -> None:
        self.key = self.value = self.stream = self.correlation_id = b""
        self.partition = self.policy = 0
        #: Size of the longest correlation id or ack inbox, in bytes.
        self.name = 0
        #: True if the pipe can take the request: known fields only, valid header names and policy.
        self.plain = True
        self._headers = bytearray()
        for field in Reader(raw, 0, len(raw)).fields():
            self._take(raw, field)

    def envelope(self) -> bytes:
        """Return the envelope to store."""
        out = bytearray(_HEADER)
        put_bytes(out, w.MSG_KEY, self.key)
        put_bytes(out, w.MSG_VALUE, self.value)
        return bytes(out + self._headers)

    def _take(self, raw: bytes, field: Field) -> None:
        data = raw[field.start : field.end]
        match field.number, field.kind:
            case w.REQUEST_KEY, w.LEN:
                self.key = data
            case w.REQUEST_VALUE, w.LEN:
                self.value = data
            case w.REQUEST_STREAM, w.LEN:
                # Validates values that a later field replaces as well: protobuf refuses the whole message.
                read_text(raw, field, "stream")
                self.stream = data
            case w.REQUEST_PARTITION, w.VARINT:
                self.partition = signed(field.value, 32)
            case w.REQUEST_HEADERS, w.LEN:
                self._take_header(raw, field)
            case w.REQUEST_CORRELATION_ID, w.LEN:
                read_text(raw, field, "correlation_id")
                self.correlation_id = data
                self.name = max(self.name, len(data))
            case w.REQUEST_ACK_POLICY, w.VARINT:
                self.policy = signed(field.value, 32)
                self.plain = self.plain and 0 <= self.policy <= _NONE
            case w.REQUEST_ACK_INBOX, w.LEN:
                read_text(raw, field, "ack_inbox")  # checked and not used: the inbox is ours
                self.name = max(self.name, len(data))
            case w.REQUEST_EXPECTED_OFFSET, w.VARINT:
                pass  # a stream that checks offsets has no route
            case _:
                self.plain = False

    def _take_header(self, raw: bytes, field: Field) -> None:
        for part in Reader(raw, field.start, field.end).fields():
            if part.kind != w.LEN or part.number not in (w.ENTRY_KEY, w.ENTRY_VALUE):
                self.plain = False
            elif part.number == w.ENTRY_KEY:
                read_text(raw, part, "a header key")
                self.plain = self.plain and part.end - part.start <= w.MAX_HEADER_KEY
        self._headers.append(w.MSG_HEADERS << 3 | w.LEN)
        put_varint(self._headers, field.end - field.start)
        self._headers += raw[field.start : field.end]


def _offset(answer: bytes, message: Any) -> int | None:
    """Parse the offset of a plain ack; return None for other answers."""
    _, _, headers, payload = message
    number = payload[len(answer) : -1]
    if headers is not None or not payload.startswith(answer) or not payload.endswith(b"}"):
        return None
    if not number.isdigit() or len(number) > 18:
        return None
    return int(number) - 1


def _response(ack: bytes, offset: int, correlation_id: bytes, policy: int, times: tuple[int, int]) -> bytes:
    body = bytearray(ack)
    put_varint_field(body, w.ACK_OFFSET, offset)
    put_bytes(body, w.ACK_CORRELATION_ID, correlation_id)
    put_varint_field(body, w.ACK_ACK_POLICY, policy)
    put_varint_field(body, w.ACK_RECEPTION_TIMESTAMP, times[0])
    put_varint_field(body, w.ACK_COMMIT_TIMESTAMP, times[1])
    out = bytearray((w.RESPONSE_ACK << 3 | w.LEN,))
    put_varint(out, len(body))
    out += body
    put_bytes(out, w.RESPONSE_CORRELATION_ID, correlation_id)
    return b"\0" + len(out).to_bytes(4, "big") + bytes(out)
