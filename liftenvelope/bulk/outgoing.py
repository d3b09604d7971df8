"""Rows that are to be published: what a table must look like, and what each row has. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._summaries import warn_renamed
from liftenvelope.bulk.schema import COLUMNS, ENVELOPE_COLUMNS
from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.bulk.schema import pa

__all__ = ["Rows", "Written", "open_rows", "rows_of"]

#: What a server adds, and a table that was read has; it is left out.
_LEFT_OUT: Final = frozenset({"offset", "timestamp", *ENVELOPE_COLUMNS})


@dataclass(frozen=True, slots=True)
class Written:
    """Outcome of a write. A write that does not store every row raises WriteFailedError instead.

    Attributes:
        acked: Number of rows that are stored: all of them.
        bytes: Bytes of their values.
        duplicates: Number of rows that had been stored before, by their message id. With fast ingest the
            server does not report duplicates inside a batch.
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
        """Whether every row is stored. Always true."""
        return True

    def raise_for_failures(self) -> None:
        """Do nothing, as there are no failures. For code that takes any summary of publishing."""

    @property
    def rows(self) -> int:
        """Deprecated name of :attr:`acked`."""
        warn_renamed("Written", "rows", "acked")
        return self.acked


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one record batch for Liftbridge, as Python values; None for a column that there is not."""

    values: list[bytes]
    keys: list[bytes | None] | None
    headers: list[dict[str, bytes]] | None
    partitions: list[int | None] | None


def open_rows(data: Any) -> pa.RecordBatchReader:
    """Return a reader of whatever has rows: Arrow's own types, or a frame that speaks Arrow.

    Raises:
        UsageError: A column is missing, or none that can be published.
        UsageTypeError: It has no rows.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        reader = data.to_reader()
    elif isinstance(data, pa.RecordBatchReader):
        reader = data
    elif hasattr(data, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(data)
    else:
        kind = type(data).__name__
        raise UsageTypeError(f"data must be an Arrow table, batch or reader, or export Arrow, not {kind}")
    names = reader.schema.names
    if "value" not in names:
        raise UsageError(f"data has no column 'value', but {', '.join(names) or 'none'}")
    for name in names:
        if name not in COLUMNS and name not in ENVELOPE_COLUMNS:
            raise UsageError(f"data: column {name!r} can't be published; leave it out")
    return reader


def rows_of(batch: pa.RecordBatch) -> Rows:
    """Return the rows of a batch.

    Raises:
        UsageError: A value is null, or a column is of the wrong type.
    """
    columns = {name: batch.column(name) for name in batch.schema.names if name not in _LEFT_OUT}
    values = _bytes("value", columns["value"])
    if None in values:
        raise UsageError(f"data: row {values.index(None)} of a batch has no value")
    return Rows(
        [value for value in values if value is not None],
        _bytes("key", columns["key"]) if "key" in columns else None,
        [_headers(row) for row in columns["headers"].to_pylist()] if "headers" in columns else None,
        columns["partition"].to_pylist() if "partition" in columns else None,
    )


def _bytes(name: str, column: pa.Array) -> list[bytes | None]:
    try:
        found: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as exc:
        text = f"data: column {name!r} must be of binary or string, not of {column.type}"
        raise UsageTypeError(text) from exc
    return found


def _headers(row: Iterable[tuple[str, bytes | str | None]] | None) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, value in row or ():
        found[name] = value.encode() if isinstance(value, str) else value or b""
    return found


def published(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Return a reader's batches without the columns that servers fill."""
    for batch in reader:
        yield batch.select([name for name in batch.schema.names if name not in _LEFT_OUT])


def batches_of(reader: pa.RecordBatchReader, rows: int) -> Iterator[pa.RecordBatch]:
    """Return a reader's batches, cut to a number of rows."""
    for batch in reader:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)
