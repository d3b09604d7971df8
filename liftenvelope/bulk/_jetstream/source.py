"""JetStream stream for bulk reads: offsets, counts, and range reads into batches.

Each range is read through its own consumer, which lives in the server's memory. The consumer starts at the
exact sequence, needs no acks, and numbers its deliveries, so a missing message is detected. After any failure
a new consumer starts at the next offset.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.bulk._jetstream.consumer_read import ConsumerRead
from liftenvelope.bulk._jetstream.direct_read import DirectRead, next_stored
from liftenvelope.bulk._jetstream.filter_choice import MOST_SERVER_FILTERS, ask_content, choose_filters
from liftenvelope.bulk._jetstream.requests import JetStreamRequests, pending, start_at
from liftenvelope.errors import NoSuchPartitionError, UnsupportedByServerError, UsageError
from liftenvelope.jetstream.api import natural

if TYPE_CHECKING:
    from liftenvelope.bulk._engine.crew import Outlet
    from liftenvelope.bulk._engine.plan import BatchPlan
    from liftenvelope.bulk.access import Target
    from liftenvelope.bulk.ranges import Extent, Range
    from liftenvelope.jetstream.subject_filter import SubjectFilter

__all__ = ["JetStreamSource"]

_SECOND: Final = 1_000_000_000


class JetStreamSource(JetStreamRequests):
    """A JetStream stream. It has one partition, number 0; the offset is the sequence less 1.

    Args:
        target: Servers and connection options.
        stream: Name of the stream.

    Raises:
        UsageError: The name is not a valid stream name.
    """

    unsigned = True

    def __init__(self, target: Target, stream: str) -> None:
        super().__init__(target, stream)
        self._via = "consumer"
        #: True if the stream deletes messages that its consumers have acknowledged, as last heard of.
        self.deletes_acked = False
        # None until extent() has read the stream's config, if the choice depends on the config.
        self._reader: type[ConsumerRead] | None = ConsumerRead

    def choose(self, via: str) -> None:
        """Choose between consumers and direct requests. :meth:`extent` checks what the stream allows.

        Args:
            via: "consumer", "direct", or "auto": direct for a work-queue stream that allows direct requests,
                since such a stream accepts no consumer that only reads.
        """
        self._via = via
        self._reader = ConsumerRead if via == "consumer" else None

    def _reader_for(self, config: dict[str, Any]) -> type[ConsumerRead]:
        allowed = bool(config.get("allow_direct"))
        if self._via == "direct" and not allowed:
            text = f"via must be 'auto' or 'consumer' for {self.stream}, got 'direct'"
            raise UsageError(f"{text}: set allow_direct=True in the stream's config to read it directly")
        wanted = self._via == "direct" or config.get("retention") == "workqueue"
        return DirectRead if allowed and wanted else ConsumerRead

    def filter_by(self, subjects: SubjectFilter | None, *, whole: bool) -> None:
        """Choose who filters the subjects of the reads that follow: see :func:`choose_filters`.

        Direct requests accept one filter alone, so the reader filters their answers.

        Args:
            subjects: The filter; None for none.
            whole: True if the reads must pass over every message, since gaps are wanted.
        """
        self.filters = ()
        if subjects is not None and not whole and self._reader is ConsumerRead:
            self.filters = choose_filters(self, subjects)

    def subjects(self, most: int) -> list[str] | None:
        """Return all subjects of the stream; None if there are more than ``most``."""
        found = ask_content(self, ">", most)
        return None if found is None else list(found.subjects)

    # Offsets

    def partitions(self) -> list[int]:
        """Return the numbers of the partitions: only 0. Raises StreamNotFoundError if there is no stream."""
        self.config_and_extent()
        return [0]

    def check_partition(self, partition: int) -> None:
        """Raise NoSuchPartitionError unless the number is 0."""
        if partition:
            raise NoSuchPartitionError(0, f"{self.stream}[{partition}]: a JetStream stream has partition 0")

    def extent(self, partition: int) -> Extent:  # noqa: ARG002 - there is one
        """Return the current extent of the stream.

        Raises:
            UsageError: ``via="direct"`` was chosen, and the stream does not allow direct requests.
            JetStreamError, TransportError, CallTimeoutError: As for :meth:`ask`.
        """
        config, extent = self.config_and_extent()
        self.deletes_acked = config.get("retention", "limits") != "limits"
        if self._reader is None:
            self._reader = self._reader_for(config)
        return extent

    def newest(self, partition: int) -> int:
        """Return the offset of the newest message ever stored, even if it is gone; -1 for none."""
        return self.extent(partition).end - 1

    def at_time(self, partition: int, time_ns: int, extent: Extent) -> int:  # noqa: ARG002
        """Return the offset of the first message that is not older than a time."""
        whole, part = divmod(time_ns, _SECOND)
        moment = f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{part:09}Z"
        if self._reader is DirectRead:
            found = next_stored(self, {"start_time": moment})
            return extent.end if found is None else min(found, extent.end)
        start = {"deliver_policy": "by_start_time", "opt_start_time": moment}
        return min(self.probe(lambda info: natural(info["delivered"]["stream_seq"]), start), extent.end)

    def count(self, span: Range, subjects: SubjectFilter | None) -> int | None:
        """Return the number of messages in a range whose subjects match; None if only a read can tell.

        That is so for direct reads, for more filters than one consumer should get, and if messages come too
        fast.

        Args:
            span: The range. Without a stop, it ends at the newest message.
            subjects: Filter of the subjects; None for all.
        """
        filters = () if subjects is None else subjects.filters
        if self._reader is DirectRead or len(filters) > MOST_SERVER_FILTERS:
            return None
        read = partial(_pending_of, filters)
        if span.stop < 0:
            return self.probe(read, start_at(span.start), filters)
        least, most = self.count_between(read, span.start, span.stop, filters)
        return most if least == most else None

    def read(self, span: Range, plan: BatchPlan, outlet: Outlet) -> None:
        """Read a range into an outlet. Blocks, so each range runs in a thread of its own."""
        assert self._reader is not None  # the caller got the span from extent(), which sets the reader
        self._reader(self.checked(outlet), span, plan, outlet).run()


def _pending_of(filters: tuple[str, ...], info: dict[str, Any]) -> int:
    """Return the number of messages that a consumer has yet to deliver, if it has the filters.

    Raises:
        UnsupportedByServerError: The server ignores several filters.
    """
    if len(filters) > 1 and len(info["config"].get("filter_subjects") or ()) != len(filters):
        raise UnsupportedByServerError("the server ignores more than one filter: that needs nats-server 2.10")
    return pending(info)
