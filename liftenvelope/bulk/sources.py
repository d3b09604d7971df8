"""Common interface of JetStream and Liftbridge streams for range reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from liftenvelope.bulk._jetstream import JetStreamSource
from liftenvelope.bulk._liftbridge import LiftbridgeSource
from liftenvelope.bulk.access import Access, ServerKind, Source, find_target

if TYPE_CHECKING:
    from liftenvelope.bulk._crew import Outlet
    from liftenvelope.bulk._plan import BatchPlan
    from liftenvelope.bulk.ranges import Extent, Range
    from liftenvelope.jetstream.subject_filter import SubjectFilter

__all__ = ["LiftbridgeSource", "RangedStream", "open_stream"]


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

    def created(self) -> int:
        """Return the creation time of the stream in ns since 1970; 0 if the server does not report it."""
        ...

    def count(self, span: Range, subjects: SubjectFilter | None) -> int | None:
        """Return the number of messages in a range whose subjects match; None if only a read can tell."""
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
