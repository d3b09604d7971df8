"""Resolve the positions and partitions that a caller gives to offset ranges."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from liftenvelope._checks import as_choice, as_count
from liftenvelope.bulk._engine.event_log import log
from liftenvelope.bulk._engine.plan import retention_error
from liftenvelope.bulk._jetstream.source import JetStreamSource
from liftenvelope.bulk.access import ServerKind
from liftenvelope.bulk.ranges import Extent, Range, Stop, begin_of, parse_begin, parse_end
from liftenvelope.client.positions import At, Start, StartAt
from liftenvelope.errors import OffsetOutOfRangeError, UsageError, UsageTypeError

if TYPE_CHECKING:
    from liftenvelope.bulk.sources import RangedStream

__all__ = ["Via", "check_range", "check_via", "plan_onward", "plan_ranges"]

#: Method for reading a JetStream stream: through a consumer, by direct requests, or chosen by the stream.
Via: TypeAlias = Literal["auto", "consumer", "direct"]


def check_range(
    partitions: Iterable[int] | int | None, start: Start, stop: Stop, parallel: int | None
) -> tuple[StartAt, StartAt | None, list[int] | None]:
    """Validate and return the start, the stop, and the partition numbers (None for all).

    Raises:
        UsageError: An argument is invalid, or the stop lies before the start.
        UsageTypeError: An argument has a wrong type.
    """
    if parallel is not None:
        as_count("parallel", parallel)
    begin, end = parse_begin(start, time.time_ns()), parse_end(stop)
    if begin.at is At.OFFSET and end is not None and end.at is At.OFFSET and end.number < begin.number:
        raise UsageError(f"stop must be at least start, {begin.number}, got {stop!r}")
    return begin, end, _numbers(partitions)


def check_via(via: str, kind: ServerKind) -> None:
    """Raise UsageError if a stream of such a server can't be read by a method."""
    as_choice("via", via, get_args(Via))
    if via != "auto" and kind is not ServerKind.NATS:
        raise UsageError(f"via must be 'auto' for Liftbridge, got {via!r}: it is for JetStream")


def _numbers(partitions: Iterable[int] | int | None) -> list[int] | None:
    if partitions is None:
        return None
    if not isinstance(partitions, int | Iterable):
        raise UsageTypeError(f"partitions must be numbers, got {partitions!r}")
    found = [partitions] if isinstance(partitions, int) else list(partitions)
    for number in found:
        as_count("partitions", number, 0)
    if not found:
        raise UsageError("partitions must have at least one number, or be None for all")
    return list(dict.fromkeys(found))


def plan_ranges(
    source: RangedStream,
    partitions: Sequence[int] | None,
    begin: StartAt,
    end: StartAt | None,
    on_retention: str,
    *,
    may_be_ahead: bool = False,
    via: Via = "auto",
) -> list[Range]:
    """Resolve the start and stop of a read to an offset range for each partition, as of now.

    Args:
        source: The stream.
        partitions: Numbers of the partitions; None for all.
        begin: Start position.
        end: Stop position; None for the end.
        on_retention: Policy if the message at the start offset is gone.
        may_be_ahead: True to allow a start offset beyond the end; otherwise it is cut to the end.
        via: Method for reading a JetStream stream.

    Raises:
        NoSuchPartitionError: The stream has no such partition.
        RetentionError: The message at the start offset is gone.
    """
    if isinstance(source, JetStreamSource):
        source.choose(via)
    for number in partitions or ():
        source.check_partition(number)
    spans: list[Range] = []
    for number in source.partitions() if partitions is None else partitions:
        extent = source.extent(number)
        first = _place(source, number, begin, extent)
        if begin.at is At.OFFSET and first < extent.oldest:
            if on_retention == "raise" and not source.may_have_holes():
                raise retention_error(source.stream, number, first, extent.oldest)
            first = extent.oldest if on_retention == "skip" else first
        last = extent.end if end is None else min(_place(source, number, end, extent), extent.end)
        if not may_be_ahead:
            first = min(first, last)
        spans.append(Range(number, first, last, extent.created_ns))
    return spans


def _place(source: RangedStream, partition: int, place: StartAt, extent: Extent) -> int:
    found: int | None = None
    if place.at is At.TIME and extent.oldest < extent.end:
        found = max(source.at_time(partition, place.number, extent), extent.oldest)
    return begin_of(place, extent, found)


def plan_onward(
    source: RangedStream,
    partition: int,
    reached: int | None,
    start: Start,
    stop: Stop,
    on_retention: str,
    *,
    holder: str,
    remedy: str,
) -> Range:
    """Return the range that a copy of a partition lacks.

    Args:
        source: The stream.
        partition: Number of the partition.
        reached: Next offset of the copy; None if it has nothing of the partition.
        start: Start of a copy that has nothing.
        stop: As for :func:`liftenvelope.bulk.read`.
        on_retention: As for :func:`liftenvelope.bulk.read`.
        holder: Subject and verb for an error, such as ``"the archive goes"``.
        remedy: Advice at the end of the error.

    Raises:
        OffsetOutOfRangeError: The partition ends before its copy does.
    """
    begin = parse_begin(start if reached is None else reached, time.time_ns())
    (span,) = plan_ranges(source, [partition], begin, parse_end(stop), on_retention)
    if reached is None and isinstance(source, JetStreamSource) and source.deletes_acked:
        log.warning(
            "%s: its retention deletes acknowledged messages, and a copy lacks those deleted before a run",
            source.stream,
        )
    if reached is not None and span.start < reached:
        newest = source.newest(partition)
        if newest < reached - 1:
            text = (
                f"{source.stream}[{partition}]: {holder} up to offset {reached - 1}, and the stream ends at "
                f"{newest}: it lost messages, or was made anew; {remedy}"
            )
            raise OffsetOutOfRangeError(text, source.stream, partition, reached, newest)
    return span
