"""Which offsets are read, what there is to say on the way, and where a stream's messages are. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from liftenvelope.client.positions import At, Cursor, Start, StartAt, Timestamp, parse_start
from liftenvelope.errors import UsageError, UsageTypeError

__all__ = ["Extent", "Gap", "Progress", "Range", "Stop", "parse_begin", "parse_end", "split_ranges"]

#: The offset after the last that is read, or a moment: the first message that is not older is not read any
#: more. None or ``"latest"``: all that is there when the read begins.
Stop: TypeAlias = str | int | datetime | Timestamp | None


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, from ``start`` up to but not including ``stop``; -1 for no end."""

    partition: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the messages of a partition are.

    Attributes:
        oldest: Offset of the oldest message, or of the next one if there is none.
        end: The offset after the newest message that can be read.
    """

    oldest: int
    end: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets without a message: compaction, a deletion or a purge has taken them out of the stream.

    Attributes:
        partition: Number of the partition, 0 of a JetStream stream.
        start: The first such offset.
        stop: The offset after the last.
    """

    partition: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a read is: what ``progress`` is called with after every batch.

    Attributes:
        rows: How many rows were handed out.
        bytes: How many bytes their messages had.
        done: How many offsets are behind it, gaps among them.
        total: How many there are in all; None for a read without an end.
    """

    rows: int
    bytes: int
    done: int
    total: int | None


def parse_begin(start: Start, now_ns: int) -> StartAt:
    """Return where to begin.

    Raises:
        UsageError: It is out of range, an unknown word, or a cursor.
        UsageTypeError: It is of no type that says where to begin.
    """
    if isinstance(start, Cursor):
        raise UsageTypeError(f"start={start!r}: look the cursor up, and read from the offset after it")
    return parse_start(start, now_ns)


def parse_end(stop: Stop) -> StartAt | None:
    """Return the place that is not read any more; None for what comes after the newest message.

    Raises:
        UsageError: It is out of range, or an unknown word.
        UsageTypeError: It is of no type that says where to end.
    """
    if stop is None or stop == "latest":
        return None
    if isinstance(stop, str):
        raise UsageError(f"stop={stop!r}: expected an offset, a datetime, 'latest' or None")
    if isinstance(stop, bool) or not isinstance(stop, int | datetime | Timestamp):
        raise UsageTypeError(f"stop={stop!r}: expected an offset, a datetime, 'latest' or None")
    try:
        return parse_start(stop, 0)
    except UsageError as exc:
        raise type(exc)(str(exc).replace("start=", "stop=", 1)) from None


def begin_of(start: StartAt, extent: Extent, found: int | None) -> int:
    """Return the offset that a place stands for.

    Args:
        start: The place.
        extent: Where the partition's messages are.
        found: The first offset that is not older, if the place is a moment.
    """
    match start.at:
        case At.EARLIEST:
            return extent.oldest
        case At.NEW:
            return extent.end
        case At.LATEST:
            return max(extent.oldest, extent.end - 1)
        case At.TIME:
            return extent.end if found is None else found
    return start.number


def split_ranges(ranges: list[Range], parts: int) -> list[Range]:
    """Divide ranges so that there are about as many as are wanted, the longest ones into most."""
    total = sum(span.stop - span.start for span in ranges)
    if parts <= len(ranges) or not total:
        return ranges
    size = -(-total // parts)
    return [
        Range(span.partition, start, min(start + size, span.stop))
        for span in ranges
        for start in range(span.start, span.stop, size)
    ]
