"""Typed columns in place of the column ``value``: the last step of a read with ``payload=``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from liftenvelope._checks import as_choice
from liftenvelope.bulk._dead_letter import DeadLetter, LetterBox
from liftenvelope.bulk._schema import COLUMNS, ENVELOPE_COLUMNS, make_schema
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.payload import BadPayloadError, BadValue, PayloadDecoder, PayloadFormat

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    import pyarrow.compute as pc

    from liftenvelope.bulk._schema import pa

__all__ = ["ROW", "OnBad", "PayloadColumns", "RowDecoder"]

#: Policy for messages that do not fit: raise an error, add columns, or write them to another stream.
OnBad: TypeAlias = "Literal['fail', 'column'] | DeadLetter"

#: Column with the number of a row in its message.
ROW: Final = "row"
_BAD: Final = ("bad_reason", "bad_value")
_TYPES: Final = {ROW: pa.int32(), "bad_reason": pa.string(), "bad_value": pa.binary()}
#: Columns of the read that a decoder needs in addition to those that are asked for.
_NEEDED: Final = ("value", "offset", "partition")


class PayloadColumns:
    """Columns of a read with ``payload=``, as far as they are known before the schema of the payload.

    Args:
        kind: Format of the payload.
        on_bad: Policy for bad messages.
        columns: Columns asked for; None for all.
        envelope: Handling of envelopes.

    Raises:
        UsageError: A column cannot be read with a payload, or the policy is none.
    """

    def __init__(
        self, kind: PayloadFormat, on_bad: OnBad, columns: Iterable[str] | None, envelope: str
    ) -> None:
        if not isinstance(on_bad, DeadLetter):
            as_choice("on_bad", on_bad, ("fail", "column"), extra=" or a bulk.DeadLetter")
        self.kind = kind
        self.on_bad = on_bad
        added = ENVELOPE_COLUMNS if envelope == "columns" else ()
        self._own = (*(name for name in COLUMNS if name != "value"), *added, *((ROW,) if kind.packed else ()))
        self._asked = None if columns is None else tuple(dict.fromkeys(_names(columns)))
        default = ("offset", ROW) if kind.packed else self._own
        self.chosen = default if self._asked is None else tuple(n for n in self._asked if n in self._own)

    @property
    def fields(self) -> Sequence[str] | None:
        """Names that only the payload can have; None for all of its columns."""
        if self._asked is None:
            return None
        return [name for name in self._asked if name not in self._own and name not in self._reserved]

    @property
    def _reserved(self) -> tuple[str, ...]:
        return _BAD if self.on_bad == "column" else ()

    @property
    def reading(self) -> list[str]:
        """Columns to read from the stream."""
        letter = ("key", "headers") if isinstance(self.on_bad, DeadLetter) else ()
        return [name for name in dict.fromkeys((*self.chosen, *_NEEDED, *letter)) if name != ROW]

    def schema(self, decoder: PayloadDecoder, known: Sequence[str], *, unsigned: bool) -> pa.Schema:
        """Return the schema of the read.

        Args:
            decoder: Decoder of the payload.
            known: All columns that the payload has.
            unsigned: True for unsigned offsets.

        Raises:
            UsageError: A column does not exist, or two have one name.
        """
        for name in known:
            if name in self.chosen or name in self._reserved:
                text = f"payload: field {name!r} must not have the name of a column of the read"
                raise UsageError(f"{text}: leave it out of columns=, or give the format a prefix='...'")
        for name in self.fields or ():
            if name not in decoder.schema.names:
                listed = ", ".join((*self._own, *known))
                raise UsageError(f"columns must be some of {listed}, got {name!r}")
        plain = [name for name in self.chosen if name != ROW]
        own = {field.name: field for field in make_schema(plain, unsigned=unsigned)}
        own |= {name: pa.field(name, kind) for name, kind in _TYPES.items()}
        own |= {field.name: field for field in decoder.schema}
        order = self._asked or (*self.chosen, *decoder.schema.names)
        return pa.schema([own[name] for name in dict.fromkeys((*order, *self._reserved))])


class RowDecoder:
    """Turns the batches of a read into batches with typed columns.

    Attributes:
        schema: Schema of the batches.
        fields: All fields of the payload, without its prefix.
        packed: True if a value carries any number of rows.

    Args:
        stream: Name of the stream, for errors.
        decoder: Decoder of the values.
        schema: Schema of the batches.
        fields: All fields of the payload, without its prefix.
        packed: True if a value carries any number of rows.
        on_bad: Policy for bad messages.
        letters: Writer of dead letters; None for another policy.
    """

    def __init__(
        self,
        stream: str,
        decoder: PayloadDecoder,
        schema: pa.Schema,
        fields: pa.Schema,
        *,
        packed: bool,
        on_bad: OnBad,
        letters: LetterBox | None,
    ) -> None:
        self._stream = stream
        self._decoder = decoder
        self.schema = schema
        self.fields = fields
        self.packed = packed
        self._keeps_bad = on_bad == "column"
        self._letters = letters
        self._numbers = pa.array([], pa.int32())

    def decode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch. Under ``on_bad="fail"``, those before a bad message come first.

        Raises:
            BadPayloadError: A message is bad.
            LiftEnvelopeError: A dead letter could not be written.
        """
        found = self._decoder.decode(batch["value"])
        bad = list(found.bad)
        stop = batch.num_rows
        if bad and not self._keeps_bad:
            if self._letters is None:
                stop = bad[0].index
            else:
                picked = batch.take(pa.array([value.index for value in bad], pa.int64()))
                self._letters.put(picked, [value.reason for value in bad])
        rows = self._unpacked if self.packed else self._flat
        yield from rows(batch, found.batches, bad, stop)
        if stop < batch.num_rows:
            raise self._error(batch, bad[0])

    def _flat(
        self, batch: pa.RecordBatch, typed: Sequence[pa.RecordBatch], bad: list[BadValue], stop: int
    ) -> Iterator[pa.RecordBatch]:
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
            yield out

    def _unpacked(
        self, batch: pa.RecordBatch, typed: Sequence[pa.RecordBatch], bad: list[BadValue], stop: int
    ) -> Iterator[pa.RecordBatch]:
        reasons = {value.index: value.reason for value in bad}
        own = [name for name in self.schema.names if name in batch.schema.names and name != "value"]
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
            yield self._batch(arrays)

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
        text = f"{self._stream}[{partition}]: message {offset} is bad: {value.reason}"
        hint = "read with on_bad='column' or a bulk.DeadLetter to go on"
        return BadPayloadError(f"{text}; {hint}", self._stream, partition, offset, value.reason)


def _names(columns: object) -> Iterable[str]:
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise UsageTypeError(f"columns must be names of columns, got {columns!r}")
    return columns


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
