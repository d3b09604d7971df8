"""Streams that can be read in ranges, of whatever kind of server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from liftenvelope.bulk._jetstream import JetStreamSource
from liftenvelope.bulk._liftbridge import LiftbridgeSource
from liftenvelope.bulk.access import Access, Kind, Source, find_target

if TYPE_CHECKING:
    from liftenvelope.bulk._crew import Outlet
    from liftenvelope.bulk.plan import BatchPlan
    from liftenvelope.bulk.ranges import Extent, Range

__all__ = ["StreamSource", "open_stream"]


class StreamSource(Protocol):
    """A stream that can be read in ranges. Its questions may be asked by any thread."""

    stream: str
    unsigned: bool

    def partitions(self) -> list[int]:
        """Numbers of its partitions."""
        ...

    def check_partition(self, partition: int) -> None:
        """Raise NoSuchPartitionError unless it has the partition."""
        ...

    def extent(self, partition: int) -> Extent:
        """Where the messages of a partition are now."""
        ...

    def newest(self, partition: int) -> int:
        """Offset of the newest message, also where it can't be read yet; -1 for none."""
        ...

    def at_time(self, partition: int, time_ns: int, extent: Extent) -> int:
        """Offset of the first message that is not older."""
        ...

    def may_have_holes(self) -> bool:
        """Whether its beginning may be anywhere without retention."""
        ...

    def count(self, span: Range) -> int | None:
        """How many messages a range has; None if that takes reading it."""
        ...

    def read(self, span: Range, plan: BatchPlan, outlet: Outlet) -> None:
        """Read a range, in a thread of its own."""
        ...

    def close(self) -> None:
        """Close what the questions went over."""
        ...


def open_stream(source: Source, stream: str, access: Access | None) -> StreamSource:
    """Return a stream that can be read. Nothing is sent before it is asked something.

    Raises:
        UsageError: The source or the name makes no sense.
    """
    target = find_target(source, access)
    if target.kind is Kind.NATS:
        return JetStreamSource(target, stream)
    return LiftbridgeSource(target, stream)
