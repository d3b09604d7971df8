"""Messages of an archive with ``payload=``: its typed rows are encoded into values again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import require
from liftenvelope.bulk._archive.files import recorded
from liftenvelope.bulk._archive.row_groups import rows_of_groups
from liftenvelope.bulk._engine.schema import HEADERS
from liftenvelope.bulk._reads.copying import CopyRecord, check_same
from liftenvelope.errors import UsageError
from liftenvelope.payload import PayloadEncoder, PayloadFormat

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    from liftenvelope.bulk._engine.schema import pa

    pc = require("pyarrow.compute", "bulk")

__all__ = ["ArchivedMessages", "messages_of"]

_BATCH_ROWS: Final = 16_384
#: Columns of the stream that a message is published with.
_OWN: Final = ("offset", "subject", "headers")


def messages_of(file: Any, title: str, kind: PayloadFormat | None) -> ArchivedMessages:
    """Return the messages of a file of an archive.

    Args:
        file: The file, as pyarrow opens it.
        title: Name of the archive, for errors.
        kind: Format of the payload; None for values as they are.

    Raises:
        UsageError: The archive was made with another format, the format cannot carry its columns, or the
            metadata of the file is damaged.
    """
    try:
        record = recorded(file.metadata.metadata)
    except ValueError as exc:
        raise UsageError(f"{title} must have its options in the metadata of each file: {exc}") from exc
    given = CopyRecord(record.subjects, None if kind is None else kind.identity)
    check_same(record, given, title, "give restore the payload of the archive")
    if not file.metadata.num_rows:  # made before the columns of the payload were known, perhaps
        return ArchivedMessages(file, [])
    if kind is None:
        return ArchivedMessages(file, list(file.schema_arrow.names))
    fields = {kind.prefix + field.name for field in record.fields}
    typed = [name for name in file.schema_arrow.names if name in fields]
    if not typed:
        raise UsageError(f"{title} must have fields of the payload, got {file.schema_arrow.names}")
    return _EncodedMessages(file, typed, kind)


class ArchivedMessages:
    """Messages of a file whose rows are messages.

    Attributes:
        columns: Names of the columns of a message; none of a file without rows.

    Args:
        file: The file, as pyarrow opens it.
        columns: Names of the columns of a message.
    """

    def __init__(self, file: Any, columns: list[str]) -> None:
        self._file = file
        self.columns = columns

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages in the order of their offsets."""
        yield from rows_of_groups(self._file, _BATCH_ROWS)


class _EncodedMessages(ArchivedMessages):
    """Messages of a file with typed rows: one row for each message, or many in a packed format."""

    def __init__(self, file: Any, typed: list[str], kind: PayloadFormat) -> None:
        schema = file.schema_arrow  # pyarrow makes it anew for each look
        names = schema.names
        super().__init__(file, ["value", *(name for name in _OWN if name in names and name not in typed)])
        self._typed = typed
        self._kind = kind
        self._encoder: PayloadEncoder = kind.encoder(pa.schema([schema.field(name) for name in typed]))
        self._keeps_bad = "bad_value" in names and "bad_value" not in typed

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages in the order of their offsets."""
        if self._kind.packed:
            for rows in _by_offset(super().batches()):
                yield self._message(rows)
            return
        for batch in super().batches():
            yield self._with_values(batch, self._values(batch))

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the value of each row. A bad message keeps its value, which fits no format."""
        if not self._keeps_bad:
            return self._encoder.encode(batch.select(self._typed)).cast(pa.binary())
        good = batch["bad_value"].is_null()
        encoded = self._encoder.encode(batch.filter(good).select(self._typed)).cast(pa.binary())
        return pc.replace_with_mask(batch["bad_value"].cast(pa.binary()), good, encoded)

    def _message(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the message that carried rows."""
        first = rows.slice(0, 1)
        if self._keeps_bad and first["bad_value"][0].is_valid:
            return self._with_values(first, first["bad_value"].cast(pa.binary()))
        return self._with_values(first, self._encoder.encode(rows.select(self._typed)).cast(pa.binary()))

    def _with_values(self, batch: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
        arrays = {"value": values, **{name: batch[name] for name in self.columns[1:]}}
        if "headers" not in arrays and self._kind.content_type is not None:
            header = ("Content-Type", self._kind.content_type.encode())
            arrays["headers"] = pa.array([[header]] * batch.num_rows, HEADERS)
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _by_offset(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each message, which may be divided among batches."""
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        start = 0
        for end in pc.run_end_encode(batch["offset"]).run_ends.to_pylist():
            part, start = batch.slice(start, end - start), end
            if parts and parts[0]["offset"][0] != part["offset"][0]:
                yield _joined(parts)
                parts = []
            parts.append(part)
    if parts:
        yield _joined(parts)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the parts of a message as one batch.

    Raises:
        UsageError: A column exceeds the 2 GiB that Arrow's types of text, bytes and lists can hold.
    """
    if len(parts) == 1:
        return parts[0]
    try:
        return pa.concat_batches(parts)
    except pa.ArrowInvalid:
        offset = parts[0]["offset"][0]
    text = f"archive must have at most 2 GiB in a column of one message, got more at offset {offset}"
    raise UsageError(f"{text}: publish its rows with bulk.write, which divides them among messages")
