"""Encode typed columns into the column ``value``: the first step of a write with ``payload=``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import as_count
from liftenvelope.bulk._engine.schema import COLUMNS, ENVELOPE_COLUMNS
from liftenvelope.bulk._outgoing import reader_of, valid
from liftenvelope.bulk._writes.portions import regrouped
from liftenvelope.errors import UsageError
from liftenvelope.payload import PayloadEncoder, PayloadFormat

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = ["PACK_BYTES", "PACK_ROWS", "PackLimits", "open_encoded"]

#: Default limits of a message that carries many rows. Liftbridge, which reports no limit, takes messages of
#: up to 1 MiB by default, with their headers and the envelope.
PACK_ROWS: Final = 10_000
PACK_BYTES: Final = 1_000_000
#: Columns of a read with ``on_bad="column"`` or of a packed format, which are no payload.
_READ_ONLY: Final = frozenset({"row", "bad_reason", "bad_value"})
_HEADERS: Final = pa.map_(pa.string(), pa.string())


@dataclass(slots=True)
class PackLimits:
    """Limits of a message that carries many rows.

    Attributes:
        rows: Most rows.
        nbytes: Most bytes that the caller wants.
        server_bytes: Most bytes that the server takes; None while it is not known, or not reported.
    """

    rows: int
    nbytes: int
    server_bytes: int | None = None

    def __post_init__(self) -> None:
        as_count("pack_rows", self.rows)
        as_count("pack_bytes", self.nbytes)

    @property
    def most_bytes(self) -> int:
        """Most bytes of a value."""
        return self.nbytes if self.server_bytes is None else min(self.nbytes, self.server_bytes)

    def error(self, row: int, size: int) -> UsageError:
        """Return the error for a single row that is too long."""
        text = f"data: row {row} must have at most {self.most_bytes} bytes as a message, got {size}"
        if self.nbytes == self.most_bytes:
            return UsageError(f"{text}: raise pack_bytes")
        return UsageError(f"{text}: raise max_payload of the server")


def open_encoded(data: Any, kind: PayloadFormat, limits: PackLimits) -> pa.RecordBatchReader:
    """Return a reader with the column ``value``, encoded from all columns that a stream does not have.

    Batches are encoded while the reader is read, so limits that become known before count.

    Raises:
        UsageError: The format cannot carry the columns.
        UsageTypeError: ``data`` is not Arrow data.
    """
    reader = reader_of(data)
    names = reader.schema.names
    if "value" in names and not kind.prefix:
        raise UsageError("data must not have a column 'value' with payload=..., which fills it: rename it")
    own = [name for name in names if name in COLUMNS or name in ENVELOPE_COLUMNS]
    typed = [name for name in names if name not in own and name not in _READ_ONLY]
    if not typed:
        raise UsageError(f"data must have columns for the payload, got {', '.join(names) or 'none'}")
    encoder = kind.encoder(pa.schema([reader.schema.field(name) for name in typed]))
    if kind.packed:
        return _packed(reader, kind, encoder, typed, limits)
    schema = pa.schema([*(reader.schema.field(name) for name in own), pa.field("value", pa.large_binary())])
    return pa.RecordBatchReader.from_batches(schema, _encoded(reader, encoder, own, typed, schema))


def _encoded(
    reader: pa.RecordBatchReader, encoder: PayloadEncoder, own: list[str], typed: list[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for batch in valid(reader):
        values = encoder.encode(batch.select(typed)).cast(pa.large_binary())
        yield pa.RecordBatch.from_arrays([*(batch[name] for name in own), values], schema=schema)


def _packed(
    reader: pa.RecordBatchReader,
    kind: PayloadFormat,
    encoder: PayloadEncoder,
    typed: list[str],
    limits: PackLimits,
) -> pa.RecordBatchReader:
    for name in ("key", "headers", "subject", "partition"):
        if name in reader.schema.names:
            text = f"data must not have a column {name!r} with payload={kind.name!r}: a message has many rows"
            raise UsageError(f"{text}; drop it, and give subject=... or partition=... to the write")
    schema = pa.schema([pa.field("value", pa.large_binary()), pa.field("headers", _HEADERS)])
    content = pa.array([[("Content-Type", kind.content_type or "")]], _HEADERS)
    batches = regrouped((batch.select(typed) for batch in valid(reader)), limits.rows)
    packs = (
        pa.RecordBatch.from_arrays([value, content], schema=schema)
        for number, batch in enumerate(batches)
        for value in _values(encoder, batch, number * limits.rows, limits)
    )
    return pa.RecordBatchReader.from_batches(schema, packs)


def _values(
    encoder: PayloadEncoder, batch: pa.RecordBatch, row: int, limits: PackLimits
) -> Iterator[pa.Array]:
    """Yield the values of a batch whose first row has a number, each within the limits.

    Raises:
        UsageError: A single row is too long.
    """
    value = encoder.encode(batch)
    size, most = value[0].as_buffer().size, limits.most_bytes
    if size <= most:
        yield value
        return
    if batch.num_rows == 1:
        raise limits.error(row, size)
    # Parts of equal size: the encoded size is close to proportional to the rows.
    parts = min(batch.num_rows, max(2, -(-size // max(most, 1))))
    step = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, step):
        yield from _values(encoder, batch.slice(start, step), row + start, limits)
