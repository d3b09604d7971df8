r"""Parsers for HTTP/2 DATA frames, gRPC messages and NATS messages: the twin of ``_fastframes``.

An HTTP/2 frame (RFC 9113, 4.1) has a header of 9 bytes, a gRPC message a prefix of 5::

    0..2  length of the payload, big-endian         0     compressed: 0 or 1
    3     type                                      1..4  length of the message, big-endian
    4     flags
    5..8  stream id

:class:`FrameWalker` takes DATA frames out of the received bytes and cuts them into messages, or passes their
payloads to the sink of the stream. h2, which needs about 12 us per frame, sees only the few other frames. The
walker takes DATA frames without flags, of streams that were opened in it: no flag means no padding and no end
of the stream, so that the payload is nothing but message bytes.

A NATS server sends lines, some of them followed by a message. Sizes are decimal, and the size of an ``HMSG``
includes that of its headers::

    MSG <subject> <sid> [<reply> ]<size>\r\n<payload>\r\n
    HMSG <subject> <sid> [<reply> ]<size of headers> <size>\r\n<headers><payload>\r\n
    PING\r\n   PONG\r\n   +OK\r\n   -ERR '<text>'\r\n   INFO <json>\r\n

:class:`NatsWalker` takes the messages of chosen subscriptions out of these bytes, and leaves everything else,
byte for byte, to the client that owns the connection.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, final

from liftenvelope._checks import as_bytes
from liftenvelope._native.delivered import (
    Delivered,
    MessageQueue,
    OrderedQueue,
    in_order,
    joined,
    stored_times,
)
from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "COMPRESSED",
    "TOO_LONG",
    "Delivered",
    "FrameWalker",
    "MessageCutter",
    "MessageQueue",
    "NatsWalker",
    "OrderedQueue",
    "in_order",
    "joined",
    "pack_messages",
    "stored_times",
]

_B = TypeVar("_B", bound="Buffer")

#: Values of :attr:`MessageCutter.fault`.
COMPRESSED: Final = 1
TOO_LONG: Final = 2

_FRAME_HEADER: Final = 9
_PREFIX: Final = 5
_DATA, _HEADERS, _PUSH_PROMISE, _CONTINUATION = 0x0, 0x1, 0x5, 0x9
_HEADER_FRAMES: Final = (_HEADERS, _PUSH_PROMISE, _CONTINUATION)
_END_HEADERS: Final = 0x4
_LONGEST: Final = 0xFFFFFFFF
# Bytes shown of a frame that is too long.
_SHOWN: Final = 32

# The only forms that a server writes. All other lines are left to the client.
# nats-server 2.15.1 writes two blanks for the reply that it leaves out of its answer to CONSUMER.RESET.
MSG_LINE: Final = re.compile(rb"MSG +([^\s]+) +(\d{1,18}) +(?:([^\s]+) +)?()(\d{1,18})")
HMSG_LINE: Final = re.compile(rb"HMSG +([^\s]+) +(\d{1,18}) +(?:([^\s]+) +)?(\d{1,18}) +(\d{1,18})")
OTHER_LINE: Final = re.compile(rb"PING|PONG|\+OK|-ERR '.+'|INFO [^\r]+")
# A longer line counts as malformed.
_LONGEST_LINE: Final = 65_536
_CRLF: Final = 2


class _Sink(Protocol):
    """Takes the payloads of the DATA frames of one stream, in order."""

    def put(self, view: Buffer, spans: bytes) -> None:
        """Take payloads.

        Args:
            view: Received bytes. They may be overwritten after the call.
            spans: Start and end of each payload in ``view``, as 64-bit integers in native byte order.
        """
        ...


def pack_messages(messages: list[_B]) -> bytes:
    r"""Concatenate bytes-like messages, each with its gRPC prefix: the payload of DATA frames.

    Raises:
        UsageTypeError: A message is not bytes-like.
        UsageError: A message is longer than the 32-bit length of a prefix allows.

    >>> pack_messages([b"abc", b""])
    b'\x00\x00\x00\x00\x03abc\x00\x00\x00\x00\x00'
    """
    parts: list[bytes] = []
    for message in messages:
        data = as_bytes("message", message)
        if len(data) > _LONGEST:
            raise UsageError(f"a message of {len(data)} bytes: gRPC carries up to {_LONGEST}")
        parts += (b"\0", len(data).to_bytes(4, "big"), data)
    return b"".join(parts)


@final
class MessageCutter:
    """Cuts the bytes of one stream into messages, fed in pieces of any size; or passes them to a sink.

    Args:
        max_message: Largest message to accept, in bytes.
        sink: Takes the bytes of the stream uncut; no messages are returned then. Default None: cut messages.

    Attributes:
        sink: The sink.
        fault: 0, or the reason why no more messages are accepted: ``COMPRESSED``, ``TOO_LONG``.
        fault_value: The refused compressed flag or length.
    """

    __slots__ = ("_buffer", "_max_message", "fault", "fault_value", "sink")

    def __init__(self, max_message: int, sink: _Sink | None = None) -> None:
        self._max_message = max_message
        self.sink = sink
        self._buffer = bytearray()
        self.fault = 0
        self.fault_value = 0

    @property
    def inside_message(self) -> bool:
        """True if the input so far ends inside a message."""
        return bool(self._buffer)

    def feed(self, data: Buffer) -> list[bytes]:
        """Process more bytes of the stream; return the messages that are now complete.

        Messages before a fault are still returned. After a fault there are no more messages.
        """
        messages: list[bytes] = []
        if self.sink is not None:
            payload = as_bytes("data", data)
            self.sink.put(payload, struct.pack("=2q", 0, len(payload)))
            return messages
        self._buffer += as_bytes("data", data)
        start = 0
        while not self.fault and (end := self._message_end(start)):
            messages.append(bytes(self._buffer[start + _PREFIX : end]))
            start = end
        del self._buffer[: len(self._buffer) if self.fault else start]
        return messages

    def _message_end(self, start: int) -> int:
        """Return the end of the message that begins at ``start``, 0 if it is incomplete or refused."""
        if len(self._buffer) - start < _PREFIX:
            return 0
        flag = self._buffer[start]
        length = int.from_bytes(self._buffer[start + 1 : start + _PREFIX], "big")
        if flag:
            self.fault, self.fault_value = COMPRESSED, flag
        elif length > self._max_message:
            self.fault, self.fault_value = TOO_LONG, length
        end = start + _PREFIX + length
        return 0 if self.fault or end > len(self._buffer) else end


@final
class FrameWalker:
    """Splits the received bytes of a connection into messages of open streams, and frames for h2.

    Invariants: messages are returned before any frame that arrived after them. While a header block is
    incomplete, no DATA frame is taken, so that h2 sees and refuses it.

    Args:
        max_frame_size: Largest payload that the peer may send, as announced, in bytes.
        max_message: Largest message to accept, in bytes.
        preface: Number of bytes before the first frame: 24 if the peer is a client.

    Attributes:
        oversize: 0, or the length of a frame that is too long. The walker then stops. The bytes of a peer
            that does not speak HTTP/2 usually look like such a frame.
    """

    __slots__ = (
        "_buffer",
        "_cutters",
        "_in_headers",
        "_max_frame_size",
        "_max_message",
        "_preface",
        "_start",
        "oversize",
    )

    def __init__(self, max_frame_size: int, max_message: int, preface: int = 0) -> None:
        self._max_frame_size = max_frame_size
        self._max_message = max_message
        self._preface = preface
        self._buffer = b""
        self._start = 0
        self._in_headers = False
        self._cutters: dict[int, MessageCutter | None] = {}
        self.oversize = 0

    def open(self, stream_id: int, sink: _Sink | None = None) -> MessageCutter:
        """Take the DATA frames of this stream from now on. Return its cutter, for frames that go to h2.

        Args:
            stream_id: Id of the stream.
            sink: Takes the payloads during :meth:`walk`, which then returns no messages of this stream.
                Default None: cut them into messages.
        """
        cutter = self._cutters[stream_id] = MessageCutter(self._max_message, sink)
        return cutter

    def mute(self, stream_id: int) -> None:
        """Take the DATA frames of this stream, count their size and drop their content."""
        self._cutters[stream_id] = None

    def close(self, stream_id: int) -> None:
        """Leave the DATA frames of this stream to h2."""
        self._cutters.pop(stream_id, None)

    def feed(self, data: Buffer) -> None:
        """Add received bytes. Then call :meth:`walk` until it returns no frame.

        A memoryview is walked in place by the Cython twin: it must not change until then.
        """
        self._buffer = self._buffer[self._start :] + as_bytes("data", data)
        self._start = 0

    def walk(self) -> tuple[list[tuple[int, int, list[bytes]]], bytes]:
        """Advance to the next frame that is not taken; return the messages taken before it, and the frame.

        Streams that the frame opens or closes must be opened or closed here before the next call.

        Returns:
            For each stream with DATA frames taken, ordered by the first frame: its id, the total length of
            the payloads, and the completed messages, none for a stream with a sink. Then the next frame, or
            ``b""`` if there is none. If the frame is too long, only its beginning is returned.
        """
        taken: dict[int, tuple[int, list[bytes]]] = {}
        frame = self._next_preface()
        while not frame and not self.oversize and (end := self._frame_end()):
            payload, flagged, kind, stream_id = self._start + _FRAME_HEADER, *self._header()
            if kind == _DATA and not flagged and not self._in_headers and stream_id in self._cutters:
                self._take(taken, stream_id, self._buffer[payload:end])
            else:
                frame = self._buffer[self._start : end]
                if kind in _HEADER_FRAMES:
                    self._in_headers = not flagged & _END_HEADERS
            self._start = end
        if self.oversize and not frame:
            frame, self._buffer = self._buffer[self._start :][:_SHOWN], b""
        return [(stream_id, size, messages) for stream_id, (size, messages) in taken.items()], frame

    def _next_preface(self) -> bytes:
        part = self._buffer[self._start : self._start + self._preface]
        self._preface -= len(part)
        self._start += len(part)
        return part

    def _header(self) -> tuple[int, int, int]:
        """Return flags, type and stream id of the next frame."""
        at = self._start
        stream_id = int.from_bytes(self._buffer[at + 5 : at + _FRAME_HEADER], "big") & 0x7FFFFFFF
        return self._buffer[at + 4], self._buffer[at + 3], stream_id

    def _frame_end(self) -> int:
        """Return the end of the next frame, 0 if it is incomplete or too long."""
        if len(self._buffer) - self._start < _FRAME_HEADER:
            return 0
        length = int.from_bytes(self._buffer[self._start : self._start + 3], "big")
        if length > self._max_frame_size:
            self.oversize = length
            return 0
        end = self._start + _FRAME_HEADER + length
        return end if end <= len(self._buffer) else 0

    def _take(self, taken: dict[int, tuple[int, list[bytes]]], stream_id: int, payload: bytes) -> None:
        size, messages = taken.get(stream_id, (0, []))
        cutter = self._cutters[stream_id]
        if cutter is not None:
            messages += cutter.feed(payload)
        taken[stream_id] = size + len(payload), messages


class _Opening(NamedTuple):
    """Form in which the messages of a subscription are delivered."""

    payloads: bool = False
    message_class: type[Delivered] | None = None
    acks: Any = None
    statuses: bytes = b""

    def leaves(self, head: _Head) -> bool:
        """Return True if the message is left to nats-py: a status, or one with an invalid reply subject."""
        if self.message_class is None:
            return False
        if head.reply:
            return not _is_text(head.reply)
        return head.subject.encode().startswith(self.statuses)

    def message(self, head: _Head, headers: bytes | None, payload: bytes) -> Any:
        """Return the message in the requested form."""
        if self.payloads:
            return payload
        if self.message_class is None:
            return head.subject, head.reply, headers, payload
        message = self.message_class(head.subject, "", payload, headers, self.acks)
        message._reply = head.reply
        message._size = len(head.subject.encode()) + len(head.reply) + head.size
        return message


class _Head(NamedTuple):
    """Fields of an MSG or HMSG line."""

    subject: str
    sid: int
    reply: bytes
    header_size: int
    size: int


@final
class NatsWalker:
    """Takes the messages of chosen subscriptions out of the bytes of a NATS connection.

    Invariants: all bytes that are not part of a taken message are returned unchanged and in order. Input must
    have exactly the form that servers write. From the first malformed line on, everything is left, so that
    the client that owns the connection sees the fault as it would without the walker.

    Args:
        max_message: Largest message to take, headers included, in bytes. From the first larger one on,
            everything is left.
    """

    __slots__ = ("_buffer", "_max_message", "_opened", "_pass_all", "_passing")

    def __init__(self, max_message: int) -> None:
        self._max_message = max_message
        self._opened: dict[int, _Opening] = {}
        self._buffer = bytearray()
        self._passing = 0
        self._pass_all = False

    def open(self, sid: int, payloads: bool = False) -> None:
        """Take the messages of this subscription from now on.

        Args:
            sid: Subscription id.
            payloads: True to return payloads instead of tuples.
        """
        self._opened[sid] = _Opening(payloads)

    def open_delivered(self, sid: int, message_class: type[Delivered], acks: Any, statuses: bytes) -> None:
        """Take the messages of this subscription from now on, as objects of a class; leave statuses.

        Messages whose reply subject is not UTF-8 are left as well.

        Args:
            sid: Subscription id.
            message_class: A subclass of :class:`Delivered`. Its ``__init__`` may be bypassed.
            acks: Object that sends the acks of the messages.
            statuses: Subject prefix of statuses. Messages with this prefix and without a reply are left.
        """
        if not issubclass(message_class, Delivered):
            raise UsageTypeError(f"{message_class!r} is no subclass of Delivered")
        self._opened[sid] = _Opening(False, message_class, acks, statuses)

    def close(self, sid: int) -> None:
        """Leave the messages of this subscription from now on, including a partly received one."""
        self._opened.pop(sid, None)

    def skip(self, size: int) -> None:
        """Leave the next ``size`` bytes: the rest of a message that the client has begun to read.

        Call it before the first :meth:`feed`, or before the first after :meth:`reset`.
        """
        self._passing = size

    def pass_all(self) -> None:
        """Leave everything, until :meth:`reset`."""
        self._pass_all = True

    def reset(self) -> None:
        """Restart at the first byte of a new connection. The subscriptions stay open."""
        self._buffer.clear()
        self._passing = 0
        self._pass_all = False

    def feed(self, data: Buffer) -> None:
        """Add received bytes. Then call :meth:`walk` until it leaves nothing."""
        self._buffer += as_bytes("data", data)

    def walk(self) -> tuple[list[tuple[int, int, list[Any]]], bytes]:
        """Take messages, then leave bytes, up to the next message to take or the end of the input.

        Returns:
            For each subscription with messages, ordered by the first message: its id, the total length of
            the payloads, and the messages: payloads, objects, or tuples of subject, reply (``b""`` if none),
            headers (None if none) and payload. Then the bytes left, which came after these messages.
        """
        taken: dict[int, tuple[int, list[Any]]] = {}
        start, at = 0, self._passed(0)
        while at < len(self._buffer):
            head, body = self._read_line(at)
            if head is None:
                if body == at:  # the line is incomplete
                    break
                at = self._passed(body)
            elif (opening := self._opened.get(head.sid)) is None or opening.leaves(head):
                self._passing = head.size + _CRLF
                at = self._passed(body)
            elif start < at or head.size + _CRLF > len(self._buffer) - body:
                break
            else:
                self._take(taken, head, body)
                start = at = body + head.size + _CRLF
        left = bytes(self._buffer[start:at])
        del self._buffer[:at]
        return [(sid, size, messages) for sid, (size, messages) in taken.items()], left

    def _passed(self, at: int) -> int:
        """Return the end of the bytes to leave, starting at ``at``."""
        if self._pass_all:
            return len(self._buffer)
        step = min(self._passing, len(self._buffer) - at)
        self._passing -= step
        return at + step

    def _read_line(self, at: int) -> tuple[_Head | None, int]:
        """Parse a line. Return its fields if a message follows, and its end: ``at`` if it is incomplete."""
        end = self._buffer.find(b"\n", at)
        if end < 0:
            self._pass_all = len(self._buffer) - at > _LONGEST_LINE
            return None, at + self._pass_all  # an end beyond `at` makes walk() leave everything
        line = bytes(self._buffer[at:end])
        head = _head(line[:-1])
        sound = line.endswith(b"\r") and (head is not None or OTHER_LINE.fullmatch(line[:-1]))
        if not sound or (head is not None and head.size > self._max_message):
            self._pass_all, head = True, None
        return head, end + 1

    def _take(self, taken: dict[int, tuple[int, list[Any]]], head: _Head, body: int) -> None:
        begin = body + head.header_size
        payload = bytes(self._buffer[begin : body + head.size])
        headers = bytes(self._buffer[body:begin]) if head.header_size else None
        size, messages = taken.setdefault(head.sid, (0, []))
        messages.append(self._opened[head.sid].message(head, headers, payload))
        taken[head.sid] = size + len(payload), messages


def _is_text(word: bytes) -> bool:
    try:
        word.decode()
    except UnicodeDecodeError:
        return False
    return True


def _head(line: bytes) -> _Head | None:
    """Parse an MSG or HMSG line without its end; return None for other or invalid lines."""
    found = MSG_LINE.fullmatch(line) or HMSG_LINE.fullmatch(line)
    if found is None:
        return None
    subject, sid, reply, header_size, size = found.groups()
    try:
        head = _Head(subject.decode(), int(sid), reply or b"", int(header_size or 0), int(size))
    except UnicodeDecodeError:
        return None
    return head if head.header_size <= head.size else None
