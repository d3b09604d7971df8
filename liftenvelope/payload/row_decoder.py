"""Rows of messages with typed columns in place of the column ``value``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from liftenvelope._checks import require
from liftenvelope.payload._formats import BadValue, Decoded, PayloadDecoder
from liftenvelope.payload._rows import null_row
from liftenvelope.payload.errors import BadPayloadError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    from liftenvelope.payload._formats import pa

    pc = require("pyarrow.compute", "payload")

__all__ = ["BAD_COLUMNS", "ROW", "ROW_TYPES", "RowDecoder", "added_columns"]

#: Column with the number of a row in its message.
ROW: Final = "row"
#: Columns with the fault and the value of a bad message.
BAD_COLUMNS: Final = ("bad_reason", "bad_value")
#: Types of the columns that a payload adds to its own.
ROW_TYPES: Final = {ROW: pa.int32(), "bad_reason": pa.string(), "bad_value": pa.binary()}


def added_columns(*, packed: bool, keeps_bad: bool) -> list[pa.Field]:
    """Return the columns that a payload adds to its own.

    Args:
        packed: True if a value carries any number of rows.
        keeps_bad: True for columns with the faults and values of bad messages.
    """
    names = [*((ROW,) if packed else ()), *(BAD_COLUMNS if keeps_bad else ())]
    return [pa.field(name, ROW_TYPES[name]) for name in names]


class BadMessages(Protocol):
    """Takes the bad messages of a read."""

    def put(self, rows: pa.RecordBatch, reasons: Sequence[str]) -> None:
        """Store messages, with the faults of each."""
        ...


class RowDecoder:
    """Turns the batches of a read into batches with typed columns.

    Attributes:
        schema: Schema of the batches.
        fields: All fields of the payload, without its prefix.
        packed: True if a value carries any number of rows.

    Args:
        stream: Name of the stream, for errors; None to take it from ``stream_column``.
        decoder: Decoder of the values.
        schema: Schema of the batches.
        fields: All fields of the payload, without its prefix.
        packed: True if a value carries any number of rows.
        keeps_bad: True for columns with the faults and values of bad messages.
        letters: Takes bad messages; None to raise an error, or to keep them.
        stream_column: Column with the name of the stream.
        passed: Offset of the first message of a read, and the number of its rows to leave out.
    """

    def __init__(
        self,
        stream: str | None,
        decoder: PayloadDecoder,
        schema: pa.Schema,
        fields: pa.Schema,
        *,
        packed: bool,
        keeps_bad: bool,
        letters: BadMessages | None,
        stream_column: str = "",
        passed: tuple[int, int] | None = None,
    ) -> None:
        self._stream = stream
        self._stream_column = stream_column
        self._decoder = decoder
        self.schema = schema
        self.fields = fields
        self.packed = packed
        self._keeps_bad = keeps_bad
        self._letters = letters
        self._passed = passed
        self._numbers = pa.array([], pa.int32())

    def decode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch; see :meth:`pieces`."""
        for _, rows in self.pieces(batch):
            yield from rows

    def pieces(
        self, batch: pa.RecordBatch, *, apart: bool = False
    ) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        """Yield the rows of a batch in pieces of a bounded size.

        Each comes with the number of messages up to its end. Their dead letters are stored by then.

        Args:
            batch: Messages as read.
            apart: True for at most one batch of rows in a piece.

        Raises:
            BadPayloadError: A message is bad, and neither kept nor stored. The rows before it were yielded.
            LiftEnvelopeError: A dead letter could not be written.
        """
        reached = 0
        while reached < batch.num_rows:
            done, rows, error = self._piece(batch.slice(reached))
            if apart:
                for end, part in rows[:-1]:
                    yield reached + end, [part]
                rows = rows[-1:]
            reached += done
            yield reached, [part for _, part in rows]
            if error is not None:
                raise error

    def _piece(
        self, batch: pa.RecordBatch
    ) -> tuple[int, list[tuple[int, pa.RecordBatch]], BadPayloadError | None]:
        """Return a number of first messages, their rows, and the error of the message after them.

        Each batch of rows comes with the number of messages up to its end.
        """
        found = self._decoder.decode(batch["value"])
        if self.packed:
            found = self._bounded(batch.slice(0, len(found.batches)), found)
            batch = batch.slice(0, len(found.batches))
        bad, stop, error = list(found.bad), batch.num_rows, None
        if bad and not self._keeps_bad:
            if self._letters is None:
                stop, error = bad[0].index, self._error(batch, bad[0])
            else:
                picked = batch.take(pa.array([value.index for value in bad], pa.int64()))
                self._letters.put(picked, [value.reason for value in bad])
        rows = self._unpacked if self.packed else self._flat
        return stop, list(rows(batch, found.batches, bad, stop)), error

    def _flat(
        self, batch: pa.RecordBatch, typed: Sequence[pa.RecordBatch], bad: list[BadValue], stop: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        values = arrays.pop("value")
        arrays |= zip(typed[0].schema.names, typed[0].columns, strict=True)
        if self._keeps_bad:
            arrays |= _bad_columns(values, bad)
        out = self._batch(arrays)
        if bad and not self._keeps_bad:
            out = out.slice(0, stop)
            mask = _except({value.index for value in bad}, stop)
            out = out if mask is None else out.filter(mask)
        if out.num_rows:
            yield stop, out

    def _bounded(self, batch: pa.RecordBatch, found: Decoded) -> Decoded:
        """Return the rows of first messages, as far as their keys and headers may be repeated for each row.

        A message that exceeds the limit alone is bad.
        """
        # Rows share the dictionary of a column, which counts in full in each slice of it.
        names = [name for name in self._own(batch) if not pa.types.is_dictionary(batch[name].type)]
        own = batch.select(names)
        parts, bad, total = list(found.batches), {value.index: value for value in found.bad}, 0
        most = self._decoder.max_repeated_bytes
        if sum(part.num_rows for part in parts) * own.nbytes <= most:
            return found
        for index, part in enumerate(parts):
            each = own.slice(index, 1).nbytes
            nbytes = each * part.num_rows
            if nbytes > most:
                text = f"{part.num_rows} rows, each with {each} bytes of other columns"
                bad[index] = BadValue(index, f"{text}, are more than max_repeated_bytes={most}")
                parts[index], nbytes = null_row(part.schema), each
            total += nbytes
            if index and total > most:
                return Decoded(parts[:index], [value for at, value in sorted(bad.items()) if at < index])
        return Decoded(parts, [value for _, value in sorted(bad.items())])

    def _own(self, batch: pa.RecordBatch) -> list[str]:
        """Return the names of the columns that are not of the payload."""
        return [name for name in self.schema.names if name in batch.schema.names and name != "value"]

    def _unpacked(
        self, batch: pa.RecordBatch, typed: Sequence[pa.RecordBatch], bad: list[BadValue], stop: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        reasons = {value.index: value.reason for value in bad}
        own, passed = self._own(batch), self._passed_of(batch)
        for index, part in enumerate(itertools.islice(typed, stop)):
            reason, rows = reasons.get(index), part.num_rows
            if not rows or (reason is not None and not self._keeps_bad):
                continue
            arrays = {name: _repeated(batch[name], index, rows) for name in own}
            arrays[ROW] = pa.nulls(1, pa.int32()) if reason is not None else self._numbered(rows)
            arrays |= zip(part.schema.names, part.columns, strict=True)
            if self._keeps_bad:
                arrays["bad_reason"] = pa.array([reason] * rows, pa.string())
                value = None if reason is None else batch["value"][index].as_py()
                arrays["bad_value"] = pa.array([value] * rows, pa.binary())
            out = self._batch(arrays)
            out = out.slice(passed) if index == 0 and reason is None else out
            if out.num_rows:
                yield index + 1, out

    def _passed_of(self, batch: pa.RecordBatch) -> int:
        """Return the number of rows to leave out of the first message of a batch."""
        if self._passed is None or not batch.num_rows:
            return 0
        offset, rows = self._passed
        return rows if batch["offset"][0].as_py() == offset else 0

    def _batch(self, arrays: dict[str, pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)

    def _numbered(self, rows: int) -> pa.Array:
        """Return the numbers from 0, as a slice of an array that grows to the most rows so far."""
        if len(self._numbers) < rows:
            self._numbers = pa.array(range(rows), pa.int32())
        return self._numbers.slice(0, rows)

    def _error(self, batch: pa.RecordBatch, value: BadValue) -> BadPayloadError:
        partition = batch["partition"][value.index].as_py()
        offset = batch["offset"][value.index].as_py()
        stream = batch[self._stream_column][value.index].as_py() if self._stream is None else self._stream
        text = f"{stream}[{partition}]: message {offset} is bad: {value.reason}"
        hint = "read with on_bad='column' or a bulk.DeadLetter to go on"
        if self._stream is None:
            hint = "take batches with on_bad='column' to go on"
        return BadPayloadError(f"{text}; {hint}", stream, partition, offset, value.reason)


def _except(numbers: set[int], rows: int) -> pa.Array | None:
    """Return a mask of all rows but some; None for all rows."""
    if not numbers or min(numbers) >= rows:
        return None
    return pa.array([row not in numbers for row in range(rows)], pa.bool_())


def _bad_columns(values: pa.Array, bad: Sequence[BadValue]) -> dict[str, pa.Array]:
    reasons: list[str | None] = [None] * len(values)
    for value in bad:
        reasons[value.index] = value.reason
    column = pa.array(reasons, pa.string())
    return {
        "bad_reason": column,
        "bad_value": pc.if_else(column.is_valid(), values, pa.scalar(None, values.type)),
    }


def _repeated(column: pa.Array, index: int, rows: int) -> pa.Array:
    """Return one value of a column, repeated."""
    if isinstance(column, pa.DictionaryArray) or pa.types.is_nested(column.type):
        return column.take(pa.repeat(pa.scalar(index, pa.int32()), rows))
    return pa.repeat(column[index], rows)
