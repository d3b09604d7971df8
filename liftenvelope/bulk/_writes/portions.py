"""Convert record batches to NATS publish commands, without a Python object per row. No I/O."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from liftenvelope import _native
from liftenvelope.arrow import encode_batch
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.jetstream.publish_frames import header_block
from liftenvelope.nats.subjects import publish_subject

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = ["Portion", "Portions", "regrouped"]

#: Headers to remove: the server would take a row with one of them for part of another atomic batch. Rows that
#: were stored from atomic batches have these headers.
_BATCH_HEADERS: Final = (b"Nats-Batch-Id", b"Nats-Batch-Sequence", b"Nats-Batch-Commit")
_MESSAGE_ID: Final = b"Nats-Msg-Id"
#: Names and values of all headers, and the map array whose offsets point into them.
_Entries: TypeAlias = "tuple[_native.put.Column, _native.put.Column, pa.Array]"


class Portion:
    """Consecutive rows that are published together.

    Attributes:
        first: Number of the first row in all the data, from 0.
        stop: Number after that of the last row.
        size: Size of the values in bytes.
        commands: Encoder of the rows as publish commands.
    """

    def __init__(self, first: int, size: int, commands: _native.put.Commands) -> None:
        self.first = first
        self.stop: int = first + commands.length
        self.size = size
        self.commands = commands


class Portions:
    """Splits record batches into portions and numbers their rows.

    Args:
        subject: Subject of all rows; None to use the column ``subject``.
        envelope: True to wrap each row in a Liftbridge envelope.
        message_id: True if rows get new message ids, so that message ids in their headers are removed.
    """

    def __init__(self, subject: str | None, *, envelope: bool, message_id: bool) -> None:
        self._subject = None if subject is None else _single(publish_subject(subject).encode())
        self._envelope = envelope
        self._dropped = (*_BATCH_HEADERS, _MESSAGE_ID) if message_id else _BATCH_HEADERS
        self._number = 0

    def of(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> Iterator[Portion]:
        """Split a batch into portions of at most ``rows`` rows and on average at most ``nbytes`` bytes.

        Raises:
            UsageError: A row can't be published.
            UsageTypeError: A column has the wrong type.
        """
        columns = _Columns(batch, self._number, self._subject, self._envelope)
        rows = max(1, min(rows, nbytes * batch.num_rows // max(columns.size, 1)))
        for start in range(0, batch.num_rows, rows):
            stop = min(start + rows, batch.num_rows)
            portion = columns.portion(start, stop, self._dropped)
            yield portion
            self._number = portion.stop


class _Columns:
    """Columns of one batch, cast once: casting a slice of an array takes as long as casting all of it."""

    def __init__(self, batch: pa.RecordBatch, number: int, subject: Any, envelope: bool) -> None:
        self._batch = batch
        self._number = number
        self._values = _large("value", batch["value"])
        if self._values.null_count:
            row = number + self._values.is_null().index(True).as_py()
            raise UsageError(f"data: row {row} must have a value, got null")
        self._envelope = envelope
        if not envelope and "key" in batch.schema.names and _has_keys(batch["key"]):
            raise UsageError(
                "data must not have keys, which NATS cannot carry: pass envelope=True, or drop the column"
            )
        self._entries: _Entries | None = None
        if not envelope and "headers" in batch.schema.names:
            self._entries = _entries(batch["headers"])
        self._which: pa.Array | None = None
        self._subject = subject
        if subject is None:
            self._subject, self._which = self._subjects()

    @property
    def size(self) -> int:
        """Size of the values in bytes."""
        return _size(self._values, 0, len(self._values))

    def portion(self, start: int, stop: int, dropped: tuple[bytes, ...]) -> Portion:
        rows = stop - start
        values = self._enveloped(start, rows) if self._envelope else self._values.slice(start, rows)
        subjects, which = self._subject, None
        if self._which is not None:
            which = memoryview(self._which.buffers()[1])[(self._which.offset + start) * 4 :]
        elif isinstance(subjects, pa.Array):
            subjects = _column(subjects.slice(start, rows))
        lines = None if self._entries is None else self._lines(self._entries, start, rows, dropped)
        commands = _native.put.Commands(_column(values), subjects, which, lines)
        return Portion(self._number + start, _size(self._values, start, rows), commands)

    def _enveloped(self, start: int, rows: int) -> pa.Array:
        part, names = self._batch.slice(start, rows), self._batch.schema.names
        options = {
            option: part[name] for option, name in (("keys", "key"), ("headers", "headers")) if name in names
        }
        found = encode_batch(part["value"], **options)
        if isinstance(found, pa.ChunkedArray):
            found = found.cast(pa.large_binary()).combine_chunks()
        return found.cast(pa.large_binary())

    def _subjects(self) -> tuple[Any, Any]:
        """Validate the subjects. Return them with an index per row, or with None if each row has its own."""
        if "subject" not in self._batch.schema.names:
            raise UsageError("data must have a column 'subject', or subject=... must be given")
        column = self._batch["subject"]
        if column.null_count:
            row = self._number + column.is_null().index(True).as_py()
            raise UsageError(f"data: row {row} must have a subject, got null")
        if not isinstance(column, pa.DictionaryArray):
            column = _large("subject", column)
            self._check(_column(column), column)
            return column, None
        items = _large("subject", column.dictionary)
        if items.null_count:
            raise UsageError("data: the dictionary of column 'subject' must not have a null")
        self._check(_column(items), items)
        return _column(items), column.indices.cast(pa.int32())

    def _check(self, column: _native.put.Column, items: pa.Array) -> None:
        at = -1
        while (at := _native.put.plain_subjects(column, at + 1)) >= 0:
            try:
                publish_subject(items[at].as_py().decode())
            except UnicodeDecodeError as exc:
                raise UsageError(f"subject must be UTF-8 text, got {items[at].as_py()!r}") from exc

    def _lines(
        self, entries: _Entries, start: int, rows: int, dropped: tuple[bytes, ...]
    ) -> _native.put.Column:
        names, contents, maps = entries
        first, ends = maps.offset + start, maps.buffers()[1]
        bad, offsets, lines = _native.put.header_lines(rows, first, ends, names, contents, dropped)
        if bad >= 0:
            raise self._faulty(start + bad)
        return _native.put.Column(rows, 0, offsets, lines)

    def _faulty(self, row: int) -> UsageError:
        """Return the error for a row with invalid headers."""
        where = f"data: row {self._number + row}: "
        pairs = [(_bytes(name), _bytes(value)) for name, value in self._batch["headers"][row].as_py()]
        try:
            header_block([(name.decode(), value.decode()) for name, value in pairs])
        except UnicodeDecodeError:
            return UsageError(f"{where}headers must be UTF-8 text for NATS")
        except UsageError as exc:
            return UsageError(where + str(exc))
        raise AssertionError(pairs)


def _bytes(item: str | bytes | None) -> bytes:
    return item.encode() if isinstance(item, str) else item or b""


def _large(name: str, column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.large_binary())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as exc:
        text = f"data: column {name!r} must be of binary or string, got {column.type}"
        raise UsageTypeError(text) from exc


def _column(array: pa.Array) -> _native.put.Column:
    """Return a large binary array without nulls as a column for the commands."""
    _, offsets, data = array.buffers()
    return _native.put.Column(len(array), array.offset, offsets, data)


def _single(item: bytes) -> _native.put.Column:
    return _column(pa.array([item], pa.large_binary()))


def _size(values: pa.Array, start: int, rows: int) -> int:
    if not rows:
        return 0
    ends, first = memoryview(values.buffers()[1]).cast("B"), (values.offset + start) * 8
    last = first + rows * 8
    return int.from_bytes(ends[last : last + 8], sys.byteorder) - int.from_bytes(
        ends[first : first + 8], sys.byteorder
    )


def _has_keys(column: pa.Array) -> bool:
    keys = _large("key", column)
    found = keys.drop_null() if keys.null_count else keys
    return bool(len(found)) and _size(found, 0, len(found)) > 0


def _entries(column: pa.Array) -> _Entries:
    """Return the names and values of all headers, and the map array whose offsets point into them."""
    if pa.types.is_null(column.type):
        column = pa.array([[]] * len(column), pa.map_(pa.binary(), pa.binary()))
    if not pa.types.is_map(column.type):
        raise UsageTypeError(f"data: column 'headers' must be a map, got {column.type}")
    if column.null_count:
        column = pa.array([row or [] for row in column.to_pylist()], column.type)
    names = _large("headers", column.keys).fill_null(b"")
    values = _large("headers", column.items).fill_null(b"")
    return _column(names), _column(values), column


def regrouped(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Regroup rows into batches of exactly ``rows`` rows each, except the last one.

    Raises:
        UsageError: The rows of a batch have more than 2 GiB in a column.
    """
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, rows - count)
            held.append(part)
            count, start = count + part.num_rows, start + part.num_rows
            if count == rows:
                yield _joined(held)
                held, count = [], 0
    if held:
        yield _joined(held)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    found = pa.Table.from_batches(parts).combine_chunks().to_batches()
    if len(found) != 1:
        raise UsageError(
            f"data must have at most 2 GiB in a column of {sum(part.num_rows for part in parts)} rows"
        )
    return found[0]
