"""gRPC message cutting and publish acks: a part of the twin of ``src/_fastbulk.pyx``.

:mod:`liftenvelope._native.bulk` is the rest of that twin.
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

#: Reasons to stop: more bytes are needed (MORE); the batch is full (FULL); the next input is not a
#: message of this read (LINE); the stop offset is reached (DONE); a delivery is missing (LOST); the input is
#: malformed (BROKEN).
MORE: Final = 0
FULL: Final = 1
LINE: Final = 2
DONE: Final = 3
LOST: Final = 4
BROKEN: Final = 5

_PREFIX: Final = 5
_NUMBER: Final = re.compile(rb"\d{1,19}")


def piece_of(view: Buffer, start: int, end: int) -> bytes:
    """Check the range of a reader's input; return the bytes before ``end``."""
    data = memoryview(view).cast("B")
    check_range(data, start, end)
    return bytes(data[:end])


def check_range(data: memoryview, start: int, end: int) -> None:
    """Raise UsageError unless the range is inside the data."""
    if not 0 <= start <= end <= len(data):
        raise UsageError(f"{start} to {end} are not a part of {len(data)} bytes")


class MessageReader:
    """Cuts the bytes of a gRPC call into messages; a subclass processes each. The sink of a call."""

    def __init__(self, max_message: int) -> None:
        self._max_message = max_message
        self._unread = b""
        #: With ``BROKEN``: the malformed message, or the prefix of a compressed or too long one.
        self.bad = b""
        #: ``MORE``, or the reason why messages are not processed any more.
        self.state = MORE

    @property
    def inside_message(self) -> bool:
        """True if the input so far ends inside a message."""
        return self.state == MORE and bool(self._unread)

    def put(self, view: Buffer, spans: bytes) -> None:
        """Take payloads. After ``FULL`` they are kept for :meth:`resume`, otherwise dropped unless ``MORE``.

        Args:
            view: The received bytes.
            spans: Start and end of each payload in ``view``, as 64-bit integers in native byte order.

        Raises:
            UsageError: A span is outside the view.
        """
        data, pairs = memoryview(view).cast("B"), list(struct.iter_unpack("=2q", spans[: len(spans) & ~15]))
        for start, end in pairs:
            check_range(data, start, end)
        if self.state in (MORE, FULL):
            self._unread += b"".join(data[start:end] for start, end in pairs)
        if pairs and self.state == MORE:
            self._run()

    def resume(self) -> None:
        """Process the input behind the message that filled the batch, which was taken meanwhile."""
        if self.state == FULL:
            self._run()

    def _restart(self) -> None:
        self.state, self._unread = MORE, b""

    def _run(self) -> None:
        data, at = self._unread, 0
        while (state := self._wants()) == MORE:
            size = self._message_size(data, at)
            if size < 0:
                state = BROKEN
                break
            if size > len(data) - at:
                break
            message, at = data[at + _PREFIX : at + size], at + size
            state = self._take_message(message)
            if state != MORE:
                break
        self.state, self._unread = state, data[at:] if state in (MORE, FULL) else b""

    def _wants(self) -> int:
        """Return MORE, or the reason to stop before the next message."""
        return MORE

    def _take_message(self, raw: bytes) -> int:
        """Process a complete message; return MORE or a reason to stop."""
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
    """Outcomes of the requests of one PublishAsync call, by the number at the end of the correlation id.

    Acks of another stream that records the same subject are ignored, as are acks of requests that already
    have their answer.

    Args:
        stream: Name of the stream.
        ident: Prefix of the correlation ids. The numbers after it count up from 0.
        window: Maximum number of requests from the oldest unanswered one to the newest.
        partitions: Number of partitions of the stream.
        max_message: Largest answer to accept, in bytes.
        allocate: Returns a writable buffer of a number of bytes. The Cython twin needs it.

    Attributes:
        next: Number of the next request to send.
        oldest: Number of the oldest unanswered request, or ``next`` if all are answered.
        acked: Number of requests stored.
        pending: Number of unanswered requests.
        state: ``MORE``, or ``BROKEN``.
        bad: With ``BROKEN``: the malformed answer.
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
        """Number of the oldest unanswered request."""
        return min(self._open, default=self.next)

    @property
    def pending(self) -> int:
        """Count of unanswered requests."""
        return len(self._open)

    @property
    def room(self) -> int:
        """Count of requests that may be sent now."""
        return self._window - (self.next - self.oldest)

    def sent(self, partitions: Buffer, start: int, stop: int) -> None:
        """Record rows as sent. ``partitions`` holds the partition of each row as 32-bit integers."""
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
        """Return (number, answer) of the requests refused since the last call."""
        found, self._refusals = self._refusals, []
        return found

    def offsets(self) -> dict[int, tuple[int, int]]:
        """Return the lowest and highest acked offset by partition."""
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
