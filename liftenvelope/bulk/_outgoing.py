"""Validate tables to be published. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._showing import changed_fields, html_outcomes, warn_renamed
from liftenvelope.bulk._engine.schema import COLUMNS, ENVELOPE_COLUMNS
from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = ["Written", "open_rows", "reader_of", "valid"]

#: Columns that the server fills. A table that was read has these columns; a write ignores them.
_LEFT_OUT: Final = frozenset({"offset", "timestamp", *ENVELOPE_COLUMNS})


@dataclass(frozen=True, slots=True)
class Written:
    """Outcome of a write. A write that does not store every row raises WriteFailedError instead.

    Attributes:
        acked: Number of rows stored: all rows of the write.
        bytes: Total size of the values in bytes.
        duplicates: Number of rows that the stream already had, by message id. Rows that this write had stored
            and sent again after a lost connection count as well. With fast ingest, the server does not report
            duplicates inside a batch.
        offsets: First and last offset of the rows, by partition.
    """

    acked: int
    bytes: int
    duplicates: int
    offsets: Mapping[int, tuple[int, int]]

    @property
    def failures(self) -> Mapping[int, Exception]:
        """Errors by row. Always empty: a write that fails raises WriteFailedError."""
        return {}

    @property
    def ok(self) -> bool:
        """True if every row is stored. Always true."""
        return True

    def raise_for_failures(self) -> None:
        """Do nothing, since there are no failures. For code that accepts any publish summary."""

    @property
    def rows(self) -> int:
        """Deprecated name of :attr:`acked`."""
        warn_renamed("Written", "rows", "acked")
        return self.acked

    def __repr__(self) -> str:
        return changed_fields(self)

    def _repr_html_(self) -> str:
        return html_outcomes(f"{self.acked} rows, {self.bytes} bytes stored", {}, self.offsets)


def open_rows(data: Any) -> pa.RecordBatchReader:
    """Return a reader of Arrow data, or of any object that exports an Arrow stream.

    Raises:
        UsageError: The column ``value`` is missing, or a column can't be published.
        UsageTypeError: ``data`` is not Arrow data and exports no Arrow stream.
    """
    reader = reader_of(data)
    names = reader.schema.names
    if "value" not in names:
        raise UsageError(f"data must have a column 'value', got {', '.join(names) or 'none'}")
    for name in names:
        if name not in COLUMNS and name not in ENVELOPE_COLUMNS:
            raise UsageError(
                f"data must not have a column {name!r}, which cannot be published: drop the column"
            )
    return reader


def reader_of(data: Any) -> pa.RecordBatchReader:
    """Return a reader of any Arrow data.

    Raises:
        UsageError: Two columns have the same name.
        UsageTypeError: ``data`` is not Arrow data and exports no Arrow stream.
    """
    reader = _opened(data)
    for name, count in Counter(reader.schema.names).items():
        if count > 1:
            raise UsageError(f"data must have each column once, got {name!r} twice: rename one of them")
    return reader


def _opened(data: Any) -> pa.RecordBatchReader:
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return data.to_reader()
    if isinstance(data, pa.RecordBatchReader):
        return data
    kind = type(data).__name__
    if hasattr(data, "__arrow_c_stream__"):
        try:
            return pa.RecordBatchReader.from_stream(data)
        except pa.ArrowInvalid as exc:  # a single column, for example
            raise UsageTypeError(f"data must export a table as Arrow, got {kind}: {exc}") from exc
    raise UsageTypeError(f"data must be an Arrow table, batch or reader, or export Arrow, got {kind}")


def published(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield a reader's batches without the columns that servers fill."""
    for batch in valid(reader):
        yield batch.select([name for name in batch.schema.names if name not in _LEFT_OUT])


def batches_of(reader: pa.RecordBatchReader, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield a reader's batches, sliced to at most ``rows`` rows each."""
    for batch in valid(reader):
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def valid(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield a reader's batches, each validated: Arrow's casts read beyond buffers that are too short."""
    for batch in reader:
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as exc:
            raise UsageError(f"data: a record batch is broken: {exc}") from exc
        yield batch
