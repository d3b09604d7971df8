"""Lazy scans of a stream: a query engine says what it wants, and only that is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from liftenvelope.bulk._engine.plan import OnRetention, make_plan
from liftenvelope.bulk._engine.schema import EnvelopeMode, choose_columns, make_schema
from liftenvelope.bulk._notebook import html_schema
from liftenvelope.bulk._reads.payload_plan import passed_rows
from liftenvelope.bulk._reads.request import read_request
from liftenvelope.bulk._reads.selection import Via
from liftenvelope.bulk._scan.payload import scan_payload
from liftenvelope.bulk._scan.reads import ScanReads
from liftenvelope.bulk.access import Access, Source
from liftenvelope.bulk.narrowing import Narrowing
from liftenvelope.bulk.ranges import Stop
from liftenvelope.client.positions import Start
from liftenvelope.payload import PayloadChoice, as_payload

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from liftenvelope.bulk._scan.dataset import StreamDataset

__all__ = ["Scan", "scan"]


class Scan:
    """A stream that is read once for each query, as far as the query needs it. Made by :func:`scan`.

    Attributes:
        schema: Arrow schema of all columns.
    """

    def __init__(self, reads: ScanReads) -> None:
        self._reads = reads
        self.schema: pa.Schema = reads.schema

    def __repr__(self) -> str:
        return f"<Scan of {self._reads.stream}>"

    def _repr_html_(self) -> str:
        return html_schema(f"Scan of {self._reads.stream}", self.schema)

    def to_arrow(self, columns: Iterable[str] | None = None) -> pa.RecordBatchReader:
        """Read the stream as Arrow record batches.

        Args:
            columns: Names of the columns. Default: all.

        Raises:
            LiftEnvelopeError: As for :func:`read`.
        """
        return self._reads.read(columns, Narrowing())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Read the stream through the Arrow PyCapsule interface."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_polars(self) -> pl.LazyFrame:
        """Return a polars LazyFrame that reads what its query needs: see docs/bulk-filters.md.

        The subject and other dictionaries are strings in it. Needs polars 1.20 or later.
        """
        from liftenvelope.bulk._scan.polars import lazy_frame

        return lazy_frame(self._reads)

    def to_dataset(self) -> StreamDataset:
        """Return a pyarrow Dataset for DuckDB and others that scan datasets: see docs/bulk-filters.md."""
        from liftenvelope.bulk._scan.dataset import StreamDataset

        return StreamDataset(self._reads)


def scan(
    source: Source,
    stream: str,
    *,
    partitions: Iterable[int] | int | None = None,
    subjects: Iterable[str] | str | None = None,
    start: Start = "earliest",
    stop: Stop = None,
    envelope: EnvelopeMode = "none",
    payload: PayloadChoice = None,
    on_bad: Literal["fail", "column"] = "fail",
    start_row: int = 0,
    parallel: int | None = None,
    via: Via = "auto",
    on_retention: OnRetention = "raise",
    access: Access | None = None,
) -> Scan:
    """Return a stream for query engines. Nothing is read, and no server is asked, before a query runs.

    With one exception: if ``payload`` has no schema, the first messages are read to infer it. All queries of
    the scan have this schema.

    Args:
        source: As for :func:`read`.
        stream: Name of the stream.
        partitions: As for :func:`read`.
        subjects: As for :func:`read`.
        start: As for :func:`read`. A timedelta counts from the start of each query.
        stop: As for :func:`read`.
        envelope: As for :func:`read`.
        payload: As for :func:`read`. The scan has all columns of the stream but ``value``, then those of the
            payload, and with ``payload="arrow"`` also ``row``.
        on_bad: As for :func:`read`, except for dead letters: each query would write them. A query fails only
            at a bad message that it reads.
        start_row: As for :func:`read`.
        parallel: As for :func:`read`.
        via: As for :func:`read`.
        on_retention: As for :func:`read`.
        access: As for :func:`read`.

    Raises:
        UsageError: An argument is invalid; the message names it. Or ``payload`` has no schema, and the stream
            no message to infer it from.
        LiftEnvelopeError: As for :func:`read`, if the first messages are read.

    Example:
        >>> import polars as pl
        >>> orders = bulk.scan("nats://localhost:4222", "ORDERS").to_polars()  # doctest: +SKIP
        >>> orders.filter(pl.col("subject") == "orders.new").select("value").collect()  # doctest: +SKIP
    """
    request = read_request(
        source,
        stream,
        partitions=partitions,
        subjects=subjects,
        start=start,
        stop=stop,
        parallel=parallel,
        via=via,
        on_retention=on_retention,
        access=access,
    )
    names = choose_columns(None, envelope)
    make_plan(names, envelope, 1, 1, on_retention, unsigned=False)  # checks the options
    kind = as_payload(payload)
    passed = passed_rows(request, start_row, packed=kind is not None and kind.packed)
    typed = scan_payload(kind, on_bad, envelope, request)
    schema = make_schema(names, unsigned=request.is_jetstream) if typed is None else typed.schema
    return Scan(ScanReads(request, envelope, schema, typed, passed))
