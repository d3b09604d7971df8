"""The bytes of a gRPC call, cut into messages; and what answers to publishes say: a part of the twin.

:mod:`liftenvelope._native.bulk` is the rest of what ``src/_fastbulk.pyx`` has.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

from liftenvelope._native.payloads import read_response
from liftenvelope.errors import EnvelopeError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BROKEN", "DONE", "FULL", "LINE", "LOST", "MORE", "MessageReader", "PublishAcks", "piece_of"]

#: Why feeding stopped: more bytes are wanted; the batch is full; something that is not a message of this read
#: comes next; all that was asked for has come; a message was left out; what came is not what it should be.
MORE: Final = 0
FULL: Final = 1
LINE: Final = 2
DONE: Final = 3
LOST: Final = 4
BROKEN: Final = 5

_PREFIX: Final = 5
_NUMBER: Final = re.compile(rb"\d{1,19}")


def piece_of(view: Buffer, start: int, end: int) -> bytes:
    """Return what lies before end, of bytes that a reader is fed."""
    data = memoryview(view).cast("B")
    if not 0 <= start <= end <= len(data):
        raise UsageError(f"{start} to {end} are not a part of {len(data)} bytes")
    return bytes(data[:end])


class MessageReader:
    """Cuts the bytes of a gRPC call into messages, and has a subclass take each."""

    def __init__(self, max_message: int) -> None:
        self._max_message = max_message
        self._part = b""
        #: With ``BROKEN``: the message that is none, or the prefix of one that is compressed or too long.
        self.bad = b""

    @property
    def inside_message(self) -> bool:
        """Whether what came last was not the end of a message."""
        return bool(self._part)

    def feed(self, view: Buffer, start: int, end: int) -> tuple[int, int]:
        """Go on at start, as far as end; returns why it stopped, and where."""
        before, at = len(self._part), 0
        data = self._part + piece_of(view, start, end)[start:]
        # Places in data lie so far from those in the view.
        shift = start - before
        while (state := self._wants()) == MORE:
            size = self._message_size(data, at)
            if size < 0:
                return BROKEN, at + shift
            if size > len(data) - at:
                self._part = data[at:]
                return MORE, end
            self._part = b""
            message, at = data[at + _PREFIX : at + size], at + size
            state = self._take_message(message)
            if state != MORE:
                return state, at + shift
        return state, max(at + shift, start)

    def _wants(self) -> int:
        """MORE, or why no message is wanted."""
        return MORE

    def _take_message(self, raw: bytes) -> int:
        """Take a message that is whole."""
        raise NotImplementedError

    def _message_size(self, data: bytes, at: int) -> int:
        if len(data) - at < _PREFIX:
            return len(data) - at + 1
        size = int.from_bytes(data[at + 1 : at + _PREFIX], "big")
        if data[at] or size > self._max_message:
            self.bad = data[at : at + _PREFIX]
            return -1
        return size + _PREFIX


@final
class PublishAcks(MessageReader):
    """What becomes of the requests of one PublishAsync call, by the numbers that their ids end with.

    An ack of another stream, which records the same subject, is none; nor is one for a request that has its
    answer.

    Args:
        stream: Name of the stream.
        ident: What the correlation ids begin with. The numbers count up from 0.
        window: How many requests there may be from the oldest without an answer on.
        partitions: How many partitions the stream has.
        max_message: The longest answer to take in.
        allocate: Returns a writable buffer of a number of bytes. The Cython twin needs it.

    Attributes:
        next: The number of the request that is sent next.
        oldest: That of the oldest without an answer, or the next.
        acked: How many are stored.
        pending: How many have no answer.
        bad: With ``BROKEN``: what is no answer.
    """

    def __init__(
        self,
        stream: bytes,
        ident: bytes,
        window: int,
        partitions: int,
        max_message: int,
        allocate: Callable[[int], Any],  # noqa: ARG002
    ) -> None:
        if window < 1 or partitions < 1:
            raise UsageError(f"a window of {window} for {partitions} partitions")
        super().__init__(max_message)
        self._stream, self._ident, self._window, self._partitions = stream, ident, window, partitions
        self._open: dict[int, int] = {}
        self._spans: dict[int, tuple[int, int]] = {}
        self._refusals: list[tuple[int, bytes]] = []
        self.next = self.acked = 0

    @property
    def oldest(self) -> int:
        """The number of the oldest request without an answer."""
        return min(self._open, default=self.next)

    @property
    def pending(self) -> int:
        """How many requests have no answer."""
        return len(self._open)

    @property
    def room(self) -> int:
        """How many more may be sent."""
        return self._window - (self.next - self.oldest)

    def sent(self, partitions: Buffer, start: int, stop: int) -> None:
        """Note that rows are sent, whose partitions stand in a buffer of 32-bit integers."""
        raw = bytes(partitions)
        rows = len(raw) >> 2
        if not 0 <= start <= stop <= rows or stop - start > self.room:
            raise UsageError(f"{start} to {stop} are not a span of {rows} rows that there is room for")
        numbers = struct.unpack_from(f"={stop - start}i", raw, 4 * start)
        for partition in numbers:
            if not 0 <= partition < self._partitions:
                raise UsageError(f"partition {partition} is not one of {self._partitions}")
        for partition in numbers:
            self._open[self.next] = partition
            self.next += 1

    def refused(self) -> list[tuple[int, bytes]]:
        """(number, answer) of those that were refused since this was asked last."""
        found, self._refusals = self._refusals, []
        return found

    def offsets(self) -> dict[int, tuple[int, int]]:
        """By partition, the first and the last offset that was acked."""
        return dict(sorted(self._spans.items()))

    def _take_message(self, raw: bytes) -> int:
        try:
            ident, ack, code, _ = read_response(0, raw)
        except EnvelopeError:
            self.bad = raw
            return BROKEN
        number = self._number(ident.encode())
        if number not in self._open or (code < 0 and (ack is None or ack.stream.encode() != self._stream)):
            return MORE
        partition = self._open.pop(number)
        if code >= 0 or ack is None or ack.error:
            self._refusals.append((number, raw))
        else:
            self.acked += 1
            first, last = self._spans.get(partition, (ack.offset, ack.offset))
            self._spans[partition] = min(first, ack.offset), max(last, ack.offset)
        return MORE

    def _number(self, ident: bytes) -> int:
        digits = ident.removeprefix(self._ident)
        if not ident.startswith(self._ident) or not _NUMBER.fullmatch(digits):
            return -1
        return int(digits)
