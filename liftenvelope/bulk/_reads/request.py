"""Options of a read that all readers share: checked once, and resolved to ranges of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftenvelope.bulk._reads.batches import start_reader
from liftenvelope.bulk._reads.selection import Via, check_range, check_via, plan_ranges
from liftenvelope.bulk.access import Access, ServerKind, Source, find_target
from liftenvelope.bulk.ranges import Range, Stop, split_ranges
from liftenvelope.bulk.sources import RangedStream, open_stream
from liftenvelope.client.positions import Start
from liftenvelope.jetstream.subject_filter import SubjectFilter, parse_subjects

if TYPE_CHECKING:
    import pyarrow as pa

    from liftenvelope.bulk._engine.plan import BatchPlan, OnRetention
    from liftenvelope.bulk._reads.batches import BatchDecoder
    from liftenvelope.bulk.ranges import OnGap, OnProgress

__all__ = ["PARALLEL", "ReadRequest", "read_request"]

#: Default number of partitions to read at the same time.
PARALLEL: Final = 4


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """Messages that a read is about. Made by :func:`read_request`.

    Attributes:
        source: As for :func:`liftenvelope.bulk.read`; an iterable as a tuple.
        stream: Name of the stream.
        partitions: Numbers of the partitions; None for all.
        subjects: Filter of the subjects; None for all.
        start, stop: As for :func:`liftenvelope.bulk.read`.
        parallel, via, on_retention, access: As for :func:`liftenvelope.bulk.read`.
        is_jetstream: True for JetStream, whose offsets are unsigned.
    """

    source: Source
    stream: str
    partitions: list[int] | None
    subjects: SubjectFilter | None
    start: Start
    stop: Stop
    parallel: int | None
    via: Via
    on_retention: OnRetention
    access: Access | None
    is_jetstream: bool

    def open(self) -> RangedStream:
        """Return the stream, which the caller closes unless a read was started. Sends nothing yet."""
        return open_stream(self.source, self.stream, self.access)

    def ranges(self, opened: RangedStream, *, is_tail: bool = False) -> list[Range]:
        """Return the offsets to read by partition, as of now. A timedelta counts from now.

        Args:
            opened: The stream.
            is_tail: True for a read without an end: its start may be beyond the end of the stream.

        Raises:
            NoSuchPartitionError: The stream has no such partition.
            RetentionError: The message at the start offset is gone.
        """
        begin, end, _ = check_range(self.partitions, self.start, self.stop, self.parallel)
        via: Via = "consumer" if is_tail else self.via
        return plan_ranges(
            opened, self.partitions, begin, end, self.on_retention, may_be_ahead=is_tail, via=via
        )

    def start_reader(
        self,
        opened: RangedStream,
        spans: Sequence[Range],
        plan: BatchPlan,
        progress: OnProgress | None = None,
        on_gap: OnGap | None = None,
        decoder: BatchDecoder | None = None,
    ) -> pa.RecordBatchReader:
        """Start to read ranges that end, by as many threads as were asked for."""
        total = sum(span.stop - span.start for span in spans)
        spans = split_ranges([span for span in spans if span.start < span.stop], self.parallel or 1)
        threads = self.parallel or min(len(spans), PARALLEL)
        return start_reader(opened, spans, plan, threads, total, progress, on_gap, decoder)


def read_request(
    source: Source,
    stream: str,
    *,
    partitions: Iterable[int] | int | None,
    subjects: Iterable[str] | str | None,
    start: Start,
    stop: Stop = None,
    parallel: int | None = None,
    via: Via = "auto",
    on_retention: OnRetention = "raise",
    access: Access | None,
) -> ReadRequest:
    """Check the options of a read. Sends nothing.

    Raises:
        UsageError: An option is invalid; the message names it.
    """
    _, _, numbers = check_range(partitions, start, stop, parallel)
    if not isinstance(source, str) and isinstance(source, Iterable):
        source = tuple(source)
    kind = find_target(source, access).kind
    check_via(via, kind)
    return ReadRequest(
        source=source,
        stream=stream,
        partitions=numbers,
        subjects=parse_subjects(subjects),
        start=start,
        stop=stop,
        parallel=parallel,
        via=via,
        on_retention=on_retention,
        access=access,
        is_jetstream=kind is ServerKind.NATS,
    )
