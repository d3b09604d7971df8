r"""Rewrites direct get answers as consumer deliveries: the twin of ``src/_fastdirect.pyx``.

The server appends six header lines to each message of a batched direct get (ADR-31)::

    HMSG <inbox> <sid> <headers> <size>\r\nNATS/1.0\r\n<the message's own lines>
    Nats-Stream: ORDERS
    Nats-Subject: orders.new
    Nats-Sequence: 17
    Nats-Time-Stamp: 2026-01-31T12:00:00.123456789Z
    Nats-Num-Pending: 5
    Nats-Last-Sequence: 16

The rewritten message is ``HMSG orders.new <sid> $JS.ACK.<7 more tokens> ...``, which the readers of consumer
deliveries understand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["DirectFrames"]

_HEAD: Final = re.compile(rb"HMSG +(\S+) +([0-9]{1,18}) +([0-9]{1,9}) +([0-9]{1,9})\r\n")
_BLOCK: Final = re.compile(
    rb"(.*)\r\nNats-Stream: ([^\r\n]*)\r\nNats-Subject: ([^ \r\n]+)\r\nNats-Sequence: ([0-9]{1,18})\r\n"
    rb"Nats-Time-Stamp: ([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})"
    rb"(?:\.([0-9]{1,9}))?Z\r\n"
    rb"Nats-Num-Pending: ([0-9]{1,18})\r\nNats-Last-Sequence: [0-9]{1,18}\r\n\r\n",
    re.DOTALL,
)
_BEGIN: Final = b"NATS/1.0"
#: Years whose times fit in 64 bits of nanoseconds since 1970.
_YEARS: Final = range(1970, 2262)


class DirectFrames:
    """Rewrites direct get answers as consumer deliveries.

    Args:
        stream: Name of the stream.

    Attributes:
        delivery: Number of answers rewritten.
        foreign: True if an answer came from another stream: a mirror.
    """

    def __init__(self, stream: bytes) -> None:
        self._stream = stream
        self._sid = -1
        self.delivery = 0
        self.foreign = False

    def follow(self, sid: int) -> None:
        """Switch to the answers of another subscription."""
        self._sid = sid
        self.delivery = 0

    def take(self, view: Buffer, start: int, end: int) -> tuple[bytes, int]:
        """Return the answers as consumer messages, and the start of the first other or incomplete input."""
        held = memoryview(view)
        if not 0 <= start <= end <= held.nbytes:
            raise UsageError(f"{start} to {end} are not a part of {held.nbytes} bytes")
        found = []
        while (head := _HEAD.match(held, start, end)) is not None and int(head[2]) == self._sid:
            body, headers, size = head.end(), int(head[3]), int(head[4])
            if headers > size or size + 2 > end - body:
                break
            block = _BLOCK.fullmatch(bytes(held[body : body + headers]))
            if (
                block is None
                or (frame := self._frame(block, bytes(held[body + headers : body + size]))) is None
            ):
                break
            found.append(frame)
            start = body + size + 2
        return b"".join(found), start

    def _frame(self, block: re.Match[bytes], payload: bytes) -> bytes | None:
        own, stream, subject, sequence, *moment, pending = block.groups()
        fraction = (moment[6] or b"").ljust(9, b"0")
        time_ns = _nanoseconds([int(part) for part in moment[:6]], int(fraction))
        if time_ns is None or not int(sequence):
            return None
        self.delivery += 1
        self.foreign = self.foreign or stream != self._stream
        reply = b"$JS.ACK.d.d.1.%d.%d.%d.%d" % (int(sequence), self.delivery, time_ns, int(pending))
        words = b"%b %d %b" % (subject, self._sid, reply)
        if own == _BEGIN:
            return b"MSG %b %d\r\n%b\r\n" % (words, len(payload), payload)
        size = len(own) + 4
        head = b"HMSG %b %d %d\r\n" % (words, size, size + len(payload))
        return b"%b%b\r\n\r\n%b\r\n" % (head, own, payload)


def _nanoseconds(moment: list[int], fraction: int) -> int | None:
    """Convert a UTC time to nanoseconds since 1970; return None if it is invalid or exceeds 64 bits."""
    year, month, day, hour, minute, second = moment
    if year not in _YEARS or not 1 <= month <= 12 or not 1 <= day <= 31:
        return None
    if hour > 23 or minute > 59 or second > 59:
        return None
    # Days of the civil calendar, with years that start in March, so that the leap day is the last of a year.
    years, months = (year - 1, month + 9) if month < 3 else (year, month - 3)
    days = 365 * years + years // 4 - years // 100 + years // 400 + (153 * months + 2) // 5 + day - 1
    seconds = (days - 719_468) * 86_400 + hour * 3_600 + minute * 60 + second
    return seconds * 1_000_000_000 + fraction
