"""Lazy scans of a stream: a query engine says what it wants, and only that is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftenvelope.bulk._batches import start_reader
from liftenvelope.bulk._plan import OnRetention, make_plan
from liftenvelope.bulk._reading import BATCH_BYTES, BATCH_ROWS, PARALLEL
from liftenvelope.bulk._schema import EnvelopeMode, choose_columns, make_schema
from liftenvelope.bulk._selection import Via, check_range, check_via, plan_ranges
from liftenvelope.bulk.access import Access, ServerKind, Source, find_target
from liftenvelope.bulk.narrowing import Narrowing
from liftenvelope.bulk.ranges import Range, Stop, split_ranges
from liftenvelope.bulk.sources import RangedStream, narrowed_range, open_stream
from liftenvelope.client.positions import Start
from liftenvelope.jetstream.subject_filter import SubjectFilter, parse_subjects

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from liftenvelope.bulk._scan_dataset import StreamDataset
else:
    from liftenvelope.bulk._schema import pa

__all__ = ["Scan", "scan"]


@dataclass(frozen=True, kw_only=True)
class _Options:
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


class Scan:
    """A stream that is read once for each query, as far as the query needs it. Made by :func:`scan`.

    Attributes:
        schema: Arrow schema of all columns.
    """

    def __init__(self, options: _Options, schema: pa.Schema) -> None:
        self._options = options
        self.schema: pa.Schema = schema

    def __repr__(self) -> str:
        return f"<Scan of {self._options.stream}>"

    def to_arrow(self, columns: Iterable[str] | None = None) -> pa.RecordBatchReader:
        """Read the stream as Arrow record batches.

        Args:
            columns: Names of the columns. Default: all.

        Raises:
            LiftEnvelopeError: As for :func:`read`.
        """
        return self.read(columns, Narrowing())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Read the stream through the Arrow PyCapsule interface."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_polars(self) -> pl.LazyFrame:
        """Return a polars LazyFrame that reads what its query needs: see docs/bulk-filters.md.

        The subject and other dictionaries are strings in it. Needs polars 1.20 or later.
        """
        from liftenvelope.bulk._scan_polars import lazy_frame

        return lazy_frame(self)

    def to_dataset(self) -> StreamDataset:
        """Return a pyarrow Dataset for DuckDB and others that scan datasets: see docs/bulk-filters.md."""
        from liftenvelope.bulk._scan_dataset import StreamDataset

        return StreamDataset(self)

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


def scan(
    source: Source,
    stream: str,
    *,
    partitions: Iterable[int] | int | None = None,
    subjects: Iterable[str] | str | None = None,
    start: Start = "earliest",
    stop: Stop = None,
    envelope: EnvelopeMode = "none",
    parallel: int | None = None,
    via: Via = "auto",
    on_retention: OnRetention = "raise",
    access: Access | None = None,
) -> Scan:
    """Return a stream for query engines. Nothing is read, and no server is asked, before a query runs.

    Args:
        source: As for :func:`read`.
        stream: Name of the stream.
        partitions: As for :func:`read`.
        subjects: As for :func:`read`.
        start: As for :func:`read`. A timedelta counts from the start of each query.
        stop: As for :func:`read`.
        envelope: As for :func:`read`.
        parallel: As for :func:`read`.
        via: As for :func:`read`.
        on_retention: As for :func:`read`.
        access: As for :func:`read`.

    Raises:
        UsageError: An argument is invalid; the message names it.

    Example:
        >>> import polars as pl
        >>> orders = bulk.scan("nats://localhost:4222", "ORDERS").to_polars()  # doctest: +SKIP
        >>> orders.filter(pl.col("subject") == "orders.new").select("value").collect()  # doctest: +SKIP
    """
    _, _, parts = check_range(partitions, start, stop, parallel)
    kind = find_target(source, access).kind
    check_via(via, kind)
    options = _Options(
        source=source if isinstance(source, str) or not isinstance(source, Iterable) else tuple(source),
        stream=stream,
        partitions=parts,
        subjects=parse_subjects(subjects),
        start=start,
        stop=stop,
        envelope=envelope,
        parallel=parallel,
        via=via,
        on_retention=on_retention,
        access=access,
    )
    names = choose_columns(None, envelope)
    make_plan(names, envelope, 1, 1, on_retention, unsigned=False)  # checks the options
    return Scan(options, make_schema(names, unsigned=kind is ServerKind.NATS))
