"""Reads of a lazy scan: each query narrows the messages, and only those are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftenvelope.bulk._engine.plan import OnRetention, make_plan
from liftenvelope.bulk._engine.schema import EnvelopeMode
from liftenvelope.bulk._reads.batches import start_reader
from liftenvelope.bulk._reads.reading import BATCH_BYTES, BATCH_ROWS, PARALLEL
from liftenvelope.bulk._reads.selection import Via, check_range, plan_ranges
from liftenvelope.bulk.access import Access, Source
from liftenvelope.bulk.narrowing import Narrowing
from liftenvelope.bulk.ranges import Range, Stop, split_ranges
from liftenvelope.bulk.sources import RangedStream, narrowed_range, open_stream
from liftenvelope.client.positions import Start
from liftenvelope.jetstream.subject_filter import SubjectFilter

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ScanOptions", "ScanReads"]


@dataclass(frozen=True, kw_only=True)
class ScanOptions:
    """Arguments of a scan, checked."""

    source: Source
    stream: str
    partitions: list[int] | None
    subjects: SubjectFilter | None
    start: Start
    stop: Stop
    envelope: EnvelopeMode
    parallel: int | None
    via: Via
    on_retention: OnRetention
    access: Access | None


class ScanReads:
    """Starts the reads of a scan.

    Args:
        options: Arguments of the scan.
        schema: Arrow schema of all columns.
    """

    def __init__(self, options: ScanOptions, schema: pa.Schema) -> None:
        self._options = options
        self.schema: pa.Schema = schema

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._options.stream

    def read(self, columns: Iterable[str] | None, narrowing: Narrowing) -> pa.RecordBatchReader:
        """Read the messages that may meet the conditions of a query.

        Args:
            columns: Names of the columns. Default: all.
            narrowing: Bounds of the messages. All others are left out as far as that is cheap.
        """
        opened = self.open()
        try:
            return self.start(opened, columns, narrowing, self.plan(opened, narrowing))
        except BaseException:
            opened.close()
            raise

    # In steps, for a query that looks at the stream before it knows its conditions

    def open(self) -> RangedStream:
        """Return the stream to read. The caller closes it, unless :meth:`start` has started a read."""
        return open_stream(self._options.source, self._options.stream, self._options.access)

    def plan(self, opened: RangedStream, narrowing: Narrowing) -> list[Range]:
        """Return the offsets to read, as of now."""
        o = self._options
        begin, end, parts = check_range(o.partitions, o.start, o.stop, o.parallel)
        spans = plan_ranges(opened, parts, begin, end, o.on_retention, via=o.via)
        found = [narrowed_range(opened, span, narrowing) for span in spans if span.start < span.stop]
        return [span for span in found if span.start < span.stop]

    def start(
        self,
        opened: RangedStream,
        columns: Iterable[str] | None,
        narrowing: Narrowing,
        spans: list[Range],
    ) -> pa.RecordBatchReader:
        """Start to read ranges that :meth:`plan` returned."""
        o, subjects = self._options, narrowing.subjects
        if o.subjects is not None:
            subjects = o.subjects if subjects is None else o.subjects.intersection(subjects)
        plan = make_plan(
            self.schema.names if columns is None else columns,
            o.envelope,
            BATCH_ROWS,
            BATCH_BYTES,
            o.on_retention,
            unsigned=opened.unsigned,
            subjects=subjects,
        )
        if subjects is not None and not subjects.filters:
            spans = []
        opened.filter_by(subjects if spans else None, whole=False)
        total = sum(span.stop - span.start for span in spans)
        spans = split_ranges(spans, o.parallel or 1)
        threads = o.parallel or max(1, min(len(spans), PARALLEL))
        return start_reader(opened, spans, plan, threads, total, None, None)
