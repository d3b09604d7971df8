"""Common interface of JetStream and Liftbridge streams for range reads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from liftenvelope._checks import MAX_INT64
from liftenvelope.bulk._jetstream.source import JetStreamSource
from liftenvelope.bulk._liftbridge.source import LiftbridgeSource
from liftenvelope.bulk.access import Access, ServerKind, Source, find_target
from liftenvelope.bulk.ranges import Extent, Range

if TYPE_CHECKING:
    from liftenvelope.bulk._engine.crew import Outlet
    from liftenvelope.bulk._engine.plan import BatchPlan
    from liftenvelope.bulk.narrowing import Narrowing
    from liftenvelope.jetstream.subject_filter import SubjectFilter

__all__ = ["JetStreamSource", "LiftbridgeSource", "RangedStream", "narrowed_range", "open_stream"]


class RangedStream(Protocol):
    """A stream that can be read in ranges. Any thread may call its methods."""

    stream: str
    unsigned: bool

    def partitions(self) -> list[int]:
        """Return the numbers of the partitions."""
        ...

    def check_partition(self, partition: int) -> None:
        """Raise NoSuchPartitionError unless the stream has the partition."""
        ...

    def extent(self, partition: int) -> Extent:
        """Return the current extent of a partition."""
        ...

    def newest(self, partition: int) -> int:
        """Return the offset of the newest message, even if it is not readable yet; -1 for none."""
        ...

    def at_time(self, partition: int, time_ns: int, extent: Extent) -> int:
        """Return the offset of the first message that is not older than a time."""
        ...

    def may_have_holes(self) -> bool:
        """Return True if the oldest offset can advance without retention, so that gaps there are normal."""
        ...

    def filter_by(self, subjects: SubjectFilter | None, *, whole: bool) -> None:
        """Choose who filters the subjects of the reads that follow.

        Args:
            subjects: The filter; None for none.
            whole: True if the reads must pass over every message, since gaps are wanted.
        """
        ...

    def subjects(self, most: int) -> list[str] | None:
        """Return all subjects of the stream; None if there are more than ``most``, or no server knows."""
        ...

    def created(self) -> int:
        """Return the creation time of the stream in ns since 1970; 0 if the server does not report it."""
        ...

    def count(self, span: Range, subjects: SubjectFilter | None) -> int | None:
        """Return the number of messages in a range whose subjects match; None if only a read can tell.

        Args:
            span: The range. Without a stop, it ends at the newest message.
            subjects: Filter of the subjects; None for all.
        """
        ...

    def read(self, span: Range, plan: BatchPlan, outlet: Outlet) -> None:
        """Read a range into an outlet. Blocks, so each range runs in a thread of its own."""
        ...

    def close(self) -> None:
        """Close the connections that served the requests above. Reads use their own connections."""
        ...


def open_stream(source: Source, stream: str, access: Access | None) -> RangedStream:
    """Return a stream that can be read. Sends nothing until the first method call.

    Raises:
        UsageError: The source or the name is invalid.
    """
    target = find_target(source, access)
    if target.kind is ServerKind.NATS:
        return JetStreamSource(target, stream)
    return LiftbridgeSource(target, stream)


def narrowed_range(opened: RangedStream, span: Range, narrowing: Narrowing) -> Range:
    """Return the part of a range that a query may need; empty if it needs nothing.

    Raises:
        LiftEnvelopeError: A server that is asked for the offset at a time refuses or does not answer.
    """
    number, start, stop = span.partition, span.start, span.stop
    if narrowing.is_empty or not narrowing.wants_partition(number):
        return replace(span, stop=start)
    start, stop = max(start, narrowing.start), min(stop, narrowing.stop)
    extent = Extent(span.start, span.stop)
    if narrowing.begin_ns is not None and start < stop:
        start = max(start, _at_time(opened, number, narrowing.begin_ns, extent))
    if narrowing.end_ns is not None and start < stop:
        stop = min(stop, _at_time(opened, number, narrowing.end_ns, extent))
    return replace(span, start=start, stop=max(start, stop))


def _at_time(opened: RangedStream, partition: int, time_ns: int, extent: Extent) -> int:
    """Return the offset of the first message that is not older than a time, which may be any integer."""
    if time_ns <= 0:
        return extent.oldest
    return opened.at_time(partition, min(time_ns, MAX_INT64), extent)
