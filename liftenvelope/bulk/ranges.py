"""Offset ranges of a read, start and stop positions, progress and gaps. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from liftenvelope._checks import MAX_INT64
from liftenvelope.client.positions import At, Cursor, Start, StartAt, Timestamp, parse_start
from liftenvelope.errors import UsageError, UsageTypeError

__all__ = [
    "Extent",
    "Gap",
    "OnGap",
    "OnProgress",
    "Progress",
    "Range",
    "Stop",
    "parse_begin",
    "parse_end",
    "split_ranges",
    "was_recreated",
]

#: Offset after the last one to read, or a moment: the read ends before the first message that is not older.
#: None or ``"latest"``: the read ends after the newest message at its start.
Stop: TypeAlias = str | int | datetime | Timestamp | None


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, from ``start`` up to but not including ``stop``; -1 for no end.

    Attributes:
        partition: Number of the partition.
        start: First offset.
        stop: Offset after the last one; -1 for no end.
        created_ns: Creation time in ns since 1970 of the stream that has these offsets; 0 if not known.
    """

    partition: int
    start: int
    stop: int
    created_ns: int = 0


@dataclass(frozen=True, slots=True)
class Extent:
    """Offsets of the messages of a partition.

    Attributes:
        oldest: Offset of the oldest message; for an empty partition, of the next message to be stored.
        end: Offset after the newest readable message.
        created_ns: Creation time of the stream in ns since 1970; 0 if the server does not report it.
    """

    oldest: int
    end: int
    created_ns: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets without messages, which compaction, a deletion or a purge has removed from the stream.

    Attributes:
        partition: Number of the partition; 0 for a JetStream stream.
        start: First offset of the gap.
        stop: Offset after the gap.
    """

    partition: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a read or write, the argument of every ``progress`` call.

    Attributes:
        rows: Number of rows handed out so far; for a write, rows taken from the data; 0 for a backup.
        bytes: Size of the messages of these rows in bytes; for a backup, bytes of its data so far.
        done: Number of offsets passed so far, including gaps; for a backup, bytes.
        total: Number of offsets in the whole range; None for a read without an end, and for a write. For a
            backup, bytes.
    """

    rows: int
    bytes: int
    done: int
    total: int | None


#: Callbacks of a read or write: ``on_gap`` and ``progress``.
OnGap: TypeAlias = Callable[[Gap], object]
OnProgress: TypeAlias = Callable[[Progress], object]


def parse_begin(start: Start, now_ns: int) -> StartAt:
    """Parse the start position of a read. A negative offset counts from the end of each partition.

    Raises:
        UsageError: The position is out of range or an unknown word.
        UsageTypeError: The position is a cursor, or its type is not one of a position.
    """
    if isinstance(start, Cursor):
        raise UsageTypeError(
            f"start must not be a Cursor, got {start!r}: look it up, and read from the offset after it"
        )
    if isinstance(start, int) and not isinstance(start, bool) and start < 0:
        return StartAt(At.OFFSET, max(start, -MAX_INT64))
    return parse_start(start, now_ns)


def parse_end(stop: Stop) -> StartAt | None:
    """Parse the stop position of a read, which is exclusive; None for the end of the stream.

    Raises:
        UsageError: The position is out of range or an unknown word.
        UsageTypeError: The type of the position is not one of a position.
    """
    if stop is None or stop == "latest":
        return None
    if isinstance(stop, str):
        raise UsageError(f"stop must be an offset, a datetime, 'latest' or None, got {stop!r}")
    if isinstance(stop, bool) or not isinstance(stop, int | datetime | Timestamp):
        raise UsageTypeError(f"stop must be an offset, a datetime, 'latest' or None, got {stop!r}")
    return parse_start(stop, 0, name="stop")


def begin_of(start: StartAt, extent: Extent, found: int | None) -> int:
    """Resolve a position to an offset.

    Args:
        start: The position.
        extent: Extent of the partition.
        found: If the position is a moment, offset of the first message that is not older; None if there is
            no such message.
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
    return start.number if start.number >= 0 else max(extent.oldest, extent.end + start.number)


def split_ranges(ranges: list[Range], parts: int) -> list[Range]:
    """Split ranges into about ``parts`` ranges of similar size, so that long ranges are split most."""
    total = sum(span.stop - span.start for span in ranges)
    if parts <= len(ranges) or not total:
        return ranges
    size = -(-total // parts)
    return [
        replace(span, start=start, stop=min(start + size, span.stop))
        for span in ranges
        for start in range(span.start, span.stop, size)
    ]


def was_recreated(known_ns: int, found_ns: int) -> bool:
    """Return True if two creation times are those of two streams; 0 for a time that is not known."""
    return bool(known_ns and found_ns) and known_ns != found_ns
