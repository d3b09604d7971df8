"""Bulk reads from servers into columns, in plain Python: the twin of ``src/_fastbulk.pyx``.

:class:`NatsRows` parses the bytes of a NATS connection. :class:`StoredRows` parses the payloads of one gRPC
call to a Liftbridge server, which the frame walker passes to it. Both take pieces of any size, put the
messages into the batch, and report why they stopped. Invariant: ``next_offset`` always follows the last row
taken, so a read can resume at exactly that offset on another connection.
:class:`~liftenvelope._native.calls.PublishAcks` tracks acks in the same way.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, final

from liftenvelope._native.batch import TextBuffers, text_buffers, validity_bits
from liftenvelope._native.calls import (
    BROKEN,
    DONE,
    FULL,
    LINE,
    LOST,
    MORE,
    MessageReader,
    PublishAcks,
    piece_of,
)
from liftenvelope._native.env import unmarshal_message
from liftenvelope._native.nats_walker import HMSG_LINE, MSG_LINE, OTHER_LINE
from liftenvelope._native.payloads import read_message
from liftenvelope.errors import EnvelopeError, EnvelopeTooLargeError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BROKEN", "DONE", "FULL", "LINE", "LOST", "MORE", "NatsRows", "PublishAcks", "StoredRows"]

_MODE_NONE: Final = 0
_LONGEST_LINE: Final = 65_536
_CRLF: Final = 2
_MAX_ENVELOPE: Final = 0x7FFFFFFF
_LARGEST: Final = 2**63 - 1
_NUMBER: Final = re.compile(rb"\d{1,19}")
_BLANK: Final = b" \t\r\n"

#: Number of rows, offsets of the first and last row, gaps before rows, and the columns' buffers by name.
_Taken: TypeAlias = "tuple[int, int, int, list[tuple[int, int]], dict[str, Any]]"


class _Row(NamedTuple):
    """A message to be put into the columns."""

    offset: int
    timestamp: int
    subject: bytes
    value: bytes
    headers: dict[bytes, bytes]
    #: Message of the envelope, or stored message; None for a payload that is not an envelope.
    message: Any


def _sound(text: bytes) -> bytes:
    return text.decode("utf-8", "replace").encode()


def _repeats(rows: Sequence[bytes | None]) -> tuple[int, int, bytes | None, bytes, TextBuffers]:
    """Return the buffers of dictionary-encoded text: validity, index of each row, distinct values."""
    items: dict[bytes, int] = {}
    indices = [0 if row is None else items.setdefault(_sound(row), len(items)) for row in rows]
    packed = struct.pack(f"={len(indices)}i", *indices)
    nulls = sum(row is None for row in rows)
    return len(rows), nulls, validity_bits(rows), packed, text_buffers(list(items), "i")


def _headers(rows: Sequence[dict[bytes, bytes]]) -> dict[str, Any]:
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + len(row))
    if sum(len(name) + len(value) for row in rows for name, value in row.items()) > _MAX_ENVELOPE:
        raise EnvelopeTooLargeError("the headers have more than 2 GiB together: decode fewer rows at a time")
    return {
        "header_offsets": struct.pack(f"={len(ends)}i", *ends),
        "header_names": text_buffers([name for row in rows for name in row], "i"),
        "header_values": text_buffers([value for row in rows for value in row.values()], "i"),
    }


class _Batch:
    """Rows of the current batch, up to ``max_rows`` rows or ``max_bytes`` bytes."""

    def __init__(self, wanted: Iterable[str], max_rows: int, max_bytes: int) -> None:
        self.wanted = frozenset(wanted)
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        self.rows: list[_Row] = []
        self.nbytes = self._filled = 0
        self.gaps: list[tuple[int, int]] = []

    @property
    def is_full(self) -> bool:
        return len(self.rows) == self.max_rows or self._filled >= self.max_bytes

    def add(self, row: _Row, size: int, more: int = 0) -> None:
        """Add a row of a message of ``size`` bytes; ``more`` bytes count for the size of the batch too."""
        self.rows.append(row)
        self.nbytes += size
        self._filled += size + more

    def take(self) -> _Taken:
        if not self.rows:
            taken: _Taken = 0, -1, -1, self.gaps, {}
        else:
            taken = len(self.rows), self.rows[0].offset, self.rows[-1].offset, self.gaps, self._columns()
        self.clear()
        return taken

    def _columns(self) -> dict[str, Any]:
        rows, found = self.rows, dict[str, Any]()
        if "offset" in self.wanted:
            found["offset"] = struct.pack(f"={len(rows)}q", *(row.offset for row in rows))
        if "timestamp" in self.wanted:
            found["timestamp"] = struct.pack(f"={len(rows)}q", *(row.timestamp for row in rows))
        if "key" in self.wanted:
            keys = [(row.message.key or None) if row.message is not None else None for row in rows]
            found["key"] = text_buffers(keys, "i")
        if "value" in self.wanted:
            found["value"] = text_buffers([row.value for row in rows], "i")
        if "headers" in self.wanted:
            found.update(_headers([row.headers for row in rows]))
        if "subject" in self.wanted:
            found["subject"] = _repeats([row.subject for row in rows])
        if "ack_policy" in self.wanted:
            found.update(self._envelopes([row.message for row in rows]))
        return found

    def _envelopes(self, messages: list[Any]) -> dict[str, Any]:
        def texts(name: str) -> list[bytes | None]:
            return [getattr(message, name).encode() or None if message else None for message in messages]

        def numbers(name: str, code: str) -> bytes:
            found = (int(getattr(message, name)) if message else 0 for message in messages)
            return struct.pack(f"={len(messages)}{code}", *found)

        return {
            "ack_inbox": _repeats(texts("ack_inbox")),
            "correlation_id": text_buffers(texts("correlation_id"), "i"),
            "ack_policy": numbers("ack_policy", "i"),
            "expected_offset": numbers("offset", "q"),
            "enveloped": (sum(message is None for message in messages), validity_bits(messages)),
        }


def _nats_headers(block: bytes) -> dict[bytes, bytes]:
    """Parse NATS headers. If a name repeats, the last value counts, at the position of the first."""
    found: dict[bytes, bytes] = {}
    for line in block.split(b"\n")[1:]:
        name, colon, value = line.partition(b":")
        if name and colon:
            found[_sound(name)] = value.strip(_BLANK)
    return found


class _Head(NamedTuple):
    """A protocol line, and the range of the body that follows it. ``is_message``: an MSG or HMSG line."""

    subject: bytes
    sid: int
    reply: bytes
    header_size: int
    size: int
    body: int
    end: int
    is_message: bool


class _Ack(NamedTuple):
    """Numbers in the reply subject of a JetStream message."""

    sequence: int
    delivery: int
    timestamp: int
    pending: int


def _parse_reply(reply: bytes) -> _Ack | None:
    """Parse ``$JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<delivery>.<timestamp>.<pending>``.

    The longer form has two more tokens, domain and account, before the stream, and optionally one at the end
    (nats-server, server/consumer.go).
    """
    tokens = reply.split(b".")
    if tokens[:2] != [b"$JS", b"ACK"] or (len(tokens) != 9 and len(tokens) < 11):
        return None
    first = 4 if len(tokens) == 9 else 6
    numbers = [int(token) if _NUMBER.fullmatch(token) else -1 for token in tokens[first : first + 5]]
    if not all(0 <= number <= _LARGEST for number in numbers) or len(numbers) < 5 or not numbers[1]:
        return None
    return _Ack(*numbers[1:])


class _Reader:
    """Common base of both readers."""

    def __init__(self, wanted: Iterable[str], max_rows: int, max_bytes: int) -> None:
        self._batch = _Batch(wanted, max_rows, max_bytes)
        self._stop = -1
        #: Next offset to read.
        self.next_offset = 0

    @property
    def rows(self) -> int:
        """Number of rows in the batch."""
        return len(self._batch.rows)

    @property
    def nbytes(self) -> int:
        """Size of the rows in the batch, in bytes on the wire."""
        return self._batch.nbytes

    def take(self) -> _Taken:
        """Return (rows, first offset, last offset, gaps, columns) of the batch and start a new batch."""
        return self._batch.take()

    def _close_gap(self, offset: int) -> None:
        if offset > self.next_offset:
            self._batch.gaps.append((self.next_offset, offset))
            self.next_offset = offset

    @property
    def _is_done(self) -> bool:
        return 0 <= self._stop <= self.next_offset


@final
class NatsRows(_Reader):
    """Reads the messages of one consumer from the bytes of a NATS connection into columns.

    Args:
        wanted: Names of the columns to fill; ``ack_policy`` stands for all columns of the envelope.
        mode: 0: the payload is the value. 1 or 2: a payload that is a valid envelope is opened.
        max_rows: Maximum rows of a batch.
        max_bytes: Bytes after which a batch is full.
        max_message: Largest message to accept, headers included, in bytes.
        allocate: Returns a writable buffer of a number of bytes. The Cython twin needs it.

    Attributes:
        next_offset: Next offset to read: the JetStream sequence minus 1.
        pending: Messages left on the server after the last message taken; -1 before the first.
        stored_ns: When the last message taken was stored, in ns since 1970; 0 before the first.
        need: With ``MORE``: minimum number of bytes needed from the stop position on; 0 for any number.
        line: With ``LINE``: start and end of the next body (CRLF included), its subscription id, and the size
            of its headers. Feeding continues at the end.
    """

    def __init__(
        self,
        wanted: Iterable[str],
        mode: int,
        max_rows: int,
        max_bytes: int,
        max_message: int,
        allocate: Callable[[int], Any],  # noqa: ARG002
    ) -> None:
        super().__init__(wanted, max_rows, max_bytes)
        self._mode = mode
        self._max_message = max_message
        self._sid = -1
        self._delivery = 0
        self.pending = -1
        self.stored_ns = 0
        self.need = 0
        self.line: tuple[int, ...] = ()

    def follow(self, sid: int, next_offset: int, stop: int) -> None:
        """Read from a new consumer, from ``next_offset`` up to and excluding ``stop``; -1 for no end."""
        self._sid, self.next_offset, self._stop = sid, next_offset, stop
        self._delivery, self.pending = 0, -1

    def feed(self, view: Buffer, start: int, end: int) -> tuple[int, int]:
        """Parse from ``start`` to ``end``; return the reason to stop and the stop position."""
        data, at = piece_of(view, start, end), start
        self.need = 0
        while not self._batch.is_full:
            if self._is_done:
                return DONE, at
            if at == end:
                return MORE, at
            head = self._head(data, at)
            state = head if isinstance(head, int) else self._take(data, head)
            if state == LINE and isinstance(head, _Head):
                self.line = head.body, head.end, head.sid, head.header_size
            if state != MORE or not isinstance(head, _Head):
                return state, at
            at = head.end
        return FULL, at

    def _head(self, data: bytes, at: int) -> _Head | int:
        found = data.find(b"\n", at)
        if found < 0:
            self.need = len(data) - at + 1
            return BROKEN if len(data) - at > _LONGEST_LINE else MORE
        line, body = data[at:found], found + 1
        if not line.endswith(b"\r"):
            return BROKEN
        parsed = MSG_LINE.fullmatch(line[:-1]) or HMSG_LINE.fullmatch(line[:-1])
        if parsed is None:
            known = OTHER_LINE.fullmatch(line[:-1])
            return _Head(b"", 0, b"", 0, 0, body, body, False) if known else BROKEN
        subject, sid, reply, header_size, size = parsed.groups()
        end = body + int(size) + _CRLF
        head = _Head(subject, int(sid), reply or b"", int(header_size or 0), int(size), body, end, True)
        if head.header_size > head.size or head.size > self._max_message:
            return BROKEN
        if end > len(data):
            self.need = end - at
            return MORE
        return head

    def _take(self, data: bytes, head: _Head) -> int:
        if not head.is_message or head.sid != self._sid:
            return LINE
        ack = _parse_reply(head.reply)
        if ack is None:
            return LINE
        offset = ack.sequence - 1
        if ack.delivery != self._delivery + 1 or offset < self.next_offset:
            return LOST
        if 0 <= self._stop <= offset:
            self._close_gap(self._stop)
            return DONE
        self._delivery, self.pending, self.stored_ns = ack.delivery, ack.pending, ack.timestamp
        self._close_gap(offset)
        self.next_offset = offset + 1
        more = len(head.subject) if "subject" in self._batch.wanted else 0
        self._batch.add(self._row(data, head, offset, ack.timestamp), head.size, more)
        return MORE

    def _row(self, data: bytes, head: _Head, offset: int, timestamp: int) -> _Row:
        begin = head.body + head.header_size
        headers, value = _nats_headers(data[head.body : begin]), data[begin : head.end - _CRLF]
        if self._mode == _MODE_NONE:
            return _Row(offset, timestamp, head.subject, value, headers, None)
        try:
            message = unmarshal_message(value)
        except EnvelopeError:
            return _Row(offset, timestamp, head.subject, value, headers, None)
        headers.update({name.encode(): data for name, data in message.headers.items()})
        return _Row(offset, timestamp, head.subject, message.value, headers, message)


@final
class StoredRows(MessageReader, _Reader):
    """Reads the messages of one subscription from the bytes of a gRPC call into columns.

    Args:
        wanted: Names of the columns to fill; ``ack_policy`` stands for all columns of the envelope.
        max_rows: Maximum rows of a batch.
        max_bytes: Bytes after which a batch is full.
        max_message: Largest message to accept, in bytes.
        allocate: Returns a writable buffer of a number of bytes. The Cython twin needs it.

    Attributes:
        next_offset: Next offset to read.
        state: ``MORE``; ``FULL``: take the batch, then resume; ``DONE``; or ``BROKEN``.
        stands: True once the server's first message, which is empty, was received.
        bad: With ``BROKEN``: the malformed message, or the prefix of a compressed or too long one.
    """

    def __init__(
        self,
        wanted: Iterable[str],
        max_rows: int,
        max_bytes: int,
        max_message: int,
        allocate: Callable[[int], Any],  # noqa: ARG002
    ) -> None:
        _Reader.__init__(self, wanted, max_rows, max_bytes)
        MessageReader.__init__(self, max_message)
        self.stands = self._begun = False

    def follow(self, next_offset: int, stop: int) -> None:
        """Read from a new subscription, from ``next_offset`` up to and excluding ``stop``; -1 for no end."""
        self.next_offset, self._stop = next_offset, stop
        self.stands = self._begun = False
        self._restart()

    def _wants(self) -> int:
        if self._batch.is_full:
            return FULL
        return DONE if self._is_done else MORE

    def _take_message(self, raw: bytes) -> int:
        if not self.stands and not raw:
            self.stands = True
            return MORE
        try:
            message = read_message(raw, 0, strip_headers=True) if self.stands else None
        except EnvelopeError:
            message = None
        if message is None or not 0 <= message.offset < _LARGEST:
            self.bad = raw  # as in the client: no read can continue after the largest offset
            return BROKEN
        if message.offset < self.next_offset and not self._begun:
            return MORE
        if 0 <= self._stop <= message.offset:
            self._close_gap(self._stop)
            return DONE
        self._begun = True
        self._close_gap(message.offset)
        self.next_offset = max(self.next_offset, message.offset + 1)
        headers = {name.encode(): value for name, value in message.headers.items()}
        subject = message.subject.encode()
        row = _Row(message.offset, message.timestamp_ns, subject, message.value, headers, message)
        self._batch.add(row, len(raw))
        return MORE
