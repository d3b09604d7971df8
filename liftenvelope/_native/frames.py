"""Parsers for HTTP/2 DATA frames and gRPC messages: a part of the twin of ``_fastframes``.

An HTTP/2 frame (RFC 9113, 4.1) has a header of 9 bytes, a gRPC message a prefix of 5::

    0..2  length of the payload, big-endian         0     compressed: 0 or 1
    3     type                                      1..4  length of the message, big-endian
    4     flags
    5..8  stream id

:class:`FrameWalker` takes DATA frames out of the received bytes and cuts them into messages, or passes their
payloads to the sink of the stream. h2, which needs about 12 us per frame, sees only the few other frames. The
walker takes DATA frames without flags, of streams that were opened in it: no flag means no padding and no end
of the stream, so that the payload is nothing but message bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, final

from liftenvelope._checks import as_bytes
from liftenvelope._native.blocks import MessageBlock, header_columns, joined, stored_times, subjects
from liftenvelope._native.delivered import Delivered, MessageQueue, OrderedQueue, in_order
from liftenvelope._native.nats_walker import NatsWalker
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "COMPRESSED",
    "TOO_LONG",
    "Delivered",
    "FrameWalker",
    "MessageBlock",
    "MessageCutter",
    "MessageQueue",
    "NatsWalker",
    "OrderedQueue",
    "header_columns",
    "in_order",
    "joined",
    "pack_messages",
    "stored_times",
    "subjects",
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
