"""Arrow payloads: messages that carry record batches."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from liftenvelope._checks import as_choice, as_count
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.payload._formats import (
    MAX_REPEATED_BYTES,
    BadValue,
    Decoded,
    InferredFormat,
    PayloadDecoder,
    PayloadEncoder,
)
from liftenvelope.payload._ipc import claims_of
from liftenvelope.payload._rows import batch_of, joined, null_bytes, null_row
from liftenvelope.payload._types import check_names

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import ipc
else:
    from pyarrow import ipc

    from liftenvelope.payload._formats import pa

__all__ = ["CONTENT_TYPE", "ArrowBatches"]

#: Media type of an Arrow IPC stream.
CONTENT_TYPE: Final = "application/vnd.apache.arrow.stream"
#: Bytes that Arrow aligns buffers to.
_ALIGNMENT: Final = 8
#: Decoded bytes at which a decoder stops: rows can take thousands of times the bytes of their messages.
_ENOUGH_BYTES: Final = 16 * 1024 * 1024
#: Bytes that each row counts in addition, as its offset and number are columns, too.
_ROW_BYTES: Final = 16


@dataclass(frozen=True)
class ArrowBatches(InferredFormat):
    """Record batches, one Arrow IPC stream per message.

    The columns are those of the schema, or of the first message. In another message, columns may stand in
    any order. Its additional columns are dropped, and missing ones are null. A column of another type makes
    the message bad.

    Attributes:
        schema: Columns. Default: those of the first message of the range that is a record batch with columns.
        sample: Number of first messages among which a record batch is looked for. Default 100.
        compression: Compression of the buffers in a write: ``"lz4"``, ``"zstd"`` or None (default).
        max_decoded_bytes: Largest size of the buffers of a message in bytes, after decompression and with
            nulls for the columns that it lacks. A larger message is bad, and gives no columns if a row of
            nulls is larger. Default 256 MiB.
        max_rows: Most rows of a message. A message with more is bad. Default 1,000,000.
        max_repeated_bytes: Most bytes that the key, the headers and other columns of the stream take when
            they are repeated for each row of a message. A message beyond that is bad. Default 256 MiB.
        prefix: Text in front of the names of the columns.

    Raises:
        UsageError: An option is invalid.
    """

    _: KW_ONLY
    sample: int = 100
    compression: Literal["lz4", "zstd"] | None = None
    max_decoded_bytes: int = 256 * 1024 * 1024
    max_rows: int = 1_000_000
    max_repeated_bytes: int = MAX_REPEATED_BYTES

    name: ClassVar[str] = "arrow"
    packed: ClassVar[bool] = True
    content_type: ClassVar[str | None] = CONTENT_TYPE

    def __post_init__(self) -> None:
        super().__post_init__()
        as_choice("compression", self.compression, ("lz4", "zstd", None))
        as_count("max_decoded_bytes", self.max_decoded_bytes)
        as_count("max_rows", self.max_rows, 1, 2**31 - 1)
        as_count("max_repeated_bytes", self.max_repeated_bytes)
        if self.schema is not None:
            if not isinstance(self.schema, pa.Schema):
                kind = type(self.schema).__name__
                raise UsageTypeError(f"schema must be a pyarrow.Schema or None, got {kind}")
            check_names("schema", self.schema)

    def decoder(
        self, sample: pa.Array | None = None, *, columns: Collection[str] | None = None
    ) -> PayloadDecoder:
        """Return a decoder; see :meth:`PayloadFormat.decoder`."""
        return ArrowDecoder(self, self.fields(sample).remove_metadata(), columns)

    def _inferred(self, sample: pa.Array) -> pa.Schema:
        for value in buffers_of(sample):
            try:
                found = read_batch(value, self).schema
                check_names("schema", found)
            except (ValueError, UsageError):
                continue
            if len(found) and _null_bytes(found) <= self.max_decoded_bytes:
                return found
        return pa.schema([])

    def encoder(self, schema: pa.Schema) -> PayloadEncoder:
        """Return an encoder; see :meth:`PayloadFormat.encoder`."""
        check_names("data", schema)
        return ArrowEncoder(self.stripped(schema), self.compression)


def _null_bytes(fields: Iterable[pa.Field]) -> int:
    """Return about how many bytes a row of nulls takes."""
    return sum(null_bytes(field.type) for field in fields)


def buffers_of(values: pa.Array) -> Iterator[pa.Buffer]:
    """Yield the bytes of values in place; a scalar's buffer would be a copy."""
    if not len(values):
        return
    values = values.cast(pa.binary())  # with an offset of its own
    _, ends, data = values.buffers()
    offsets = memoryview(ends).cast("i")[values.offset : values.offset + len(values) + 1]
    for start, stop in itertools.pairwise(offsets):
        yield data.slice(start, stop - start)


def read_batch(value: pa.Buffer, limits: ArrowBatches) -> pa.RecordBatch:
    """Return the rows of a message, with all its buffers checked.

    Raises:
        ValueError: The message is no Arrow IPC stream, or exceeds a limit.
    """
    value = _aligned(value)
    try:
        _check_claims(value, limits)
        source = pa.BufferReader(value)
        with ipc.open_stream(source) as stream:
            batches = list(stream)
            _check_end(memoryview(value)[source.tell() :])
            found = joined(batches, stream.schema)
            found.validate(full=True)
            return found
    except (pa.ArrowException, OSError, EOFError) as exc:
        raise ValueError(f"no Arrow IPC stream: {exc}") from exc


def _check_end(rest: memoryview) -> None:
    """Raise ValueError unless nothing but padding follows a stream: rows of a second one would be lost."""
    if rest.tobytes().strip(b"\0"):
        raise ValueError(f"{len(rest)} bytes follow the Arrow IPC stream: send each stream as a message")


def _aligned(value: pa.Buffer) -> pa.Buffer:
    """Return a buffer whose parts Arrow can use in place: a message starts anywhere in its batch."""
    if value.address % _ALIGNMENT == 0:
        return value
    copy = pa.allocate_buffer(value.size)
    memoryview(copy)[:] = memoryview(value)
    return copy


def _check_claims(value: pa.Buffer, limits: ArrowBatches) -> None:
    rows = nbytes = 0
    for message in ipc.MessageReader.open_stream(value):
        if message.body is None:
            continue
        claims = claims_of(message.metadata.to_pybytes(), memoryview(message.body))
        rows += claims.rows
        nbytes += claims.nbytes
        if rows > limits.max_rows:
            raise ValueError(f"{rows} rows, more than max_rows={limits.max_rows}")
        if nbytes > limits.max_decoded_bytes:
            raise ValueError(f"{nbytes} bytes, more than max_decoded_bytes={limits.max_decoded_bytes}")


class ArrowDecoder(PayloadDecoder):
    """Decodes messages with record batches, without copying the columns of those that are not compressed."""

    def __init__(self, kind: ArrowBatches, fields: pa.Schema, columns: Collection[str] | None) -> None:
        self._kind = kind
        self.max_repeated_bytes = kind.max_repeated_bytes
        self.schema = kind.prefixed(fields, columns)
        names = set(self.schema.names)
        self._fields = [field for field in fields if kind.prefix + field.name in names]
        self._null_bytes = _null_bytes(self._fields)

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values; see :meth:`PayloadDecoder.decode`."""
        batches: list[pa.RecordBatch] = []
        bad: list[BadValue] = []
        nbytes = 0
        for index, value in enumerate(buffers_of(values)):
            try:
                found = read_batch(value, self._kind)
                size = found.nbytes  # takes some time
                nbytes += size + _ROW_BYTES * found.num_rows
                added = self._missing_bytes(found, size)
                batches.append(self._chosen(found))
                nbytes += added
            except ValueError as exc:
                bad.append(BadValue(index, str(exc)))
                batches.append(null_row(self.schema))
                nbytes += self._null_bytes
            if nbytes >= _ENOUGH_BYTES:
                break
        return Decoded(batches, tuple(bad))

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the schema.

        Raises:
            ValueError: A column has another type, or stands twice.
        """
        counts = Counter(batch.schema.names)
        arrays = []
        for field in self._fields:
            count = counts[field.name]
            if count > 1:
                raise ValueError(f"column {field.name!r} twice")
            array = batch.column(field.name) if count else pa.nulls(batch.num_rows, field.type)
            if array.type != field.type:
                raise ValueError(f"column {field.name!r} must be {field.type}, got {array.type}")
            arrays.append(array)
        return batch_of(arrays, self.schema, batch.num_rows)

    def _missing_bytes(self, batch: pa.RecordBatch, size: int) -> int:
        """Return the size of the nulls before they are made: rows without a column take no bytes.

        Raises:
            ValueError: The message would exceed a limit.
        """
        present = set(batch.schema.names)
        added: int = batch.num_rows * _null_bytes(
            field for field in self._fields if field.name not in present
        )
        limit = self._kind.max_decoded_bytes
        if added and size + added > limit:
            raise ValueError(
                f"{size + added} bytes with missing columns, more than max_decoded_bytes={limit}"
            )
        return added


class ArrowEncoder(PayloadEncoder):
    """Encodes all rows of a batch as one Arrow IPC stream."""

    def __init__(self, schema: pa.Schema, compression: str | None) -> None:
        self._schema = schema
        self._options = ipc.IpcWriteOptions(compression=compression, use_threads=False)

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode rows as one value; see :meth:`PayloadEncoder.encode`."""
        batch = pa.RecordBatch.from_arrays(rows.columns, schema=self._schema)
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, self._schema, options=self._options) as stream:
            stream.write_batch(batch)
        data = sink.getvalue()
        ends = pa.array([0, data.size], pa.int64())
        return pa.Array.from_buffers(pa.large_binary(), 1, [None, ends.buffers()[1], data])
