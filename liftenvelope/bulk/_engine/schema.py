"""Columns and schemas of bulk reads; assembles record batches from the buffers of row readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from liftenvelope._checks import as_choice, require
from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = require("pyarrow", "bulk")

__all__ = [
    "COLUMNS",
    "ENVELOPE_COLUMNS",
    "HEADERS",
    "EnvelopeMode",
    "choose_columns",
    "make_batch",
    "make_schema",
    "make_subjects",
]

#: Handling of Liftbridge envelopes: leave the payload unchanged, unwrap it, or unwrap it and add columns.
EnvelopeMode: TypeAlias = Literal["none", "strip", "columns"]

#: Columns of every read.
COLUMNS: Final = ("key", "value", "headers", "offset", "timestamp", "partition", "subject")
#: Columns that ``envelope="columns"`` adds. These columns are null for messages without an envelope.
ENVELOPE_COLUMNS: Final = ("ack_inbox", "correlation_id", "ack_policy", "expected_offset")

#: Type of the column of headers.
HEADERS: Final = pa.map_(pa.string(), pa.binary())

_MODES: Final = ("none", "strip", "columns")
_WORDS: Final = pa.dictionary(pa.int32(), pa.string())
_KINDS: Final[Mapping[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "timestamp": pa.timestamp("ns", "UTC"),
    "partition": pa.int32(),
    "subject": _WORDS,
    "ack_inbox": _WORDS,
    "correlation_id": pa.string(),
    "ack_policy": pa.int32(),
    "expected_offset": pa.int64(),
}
_NULLABLE: Final = frozenset({"key", *ENVELOPE_COLUMNS})


def choose_columns(columns: Iterable[str] | None, envelope: str) -> tuple[str, ...]:
    """Return the names of the requested columns without duplicates, in the order of the caller.

    Raises:
        UsageError: A column or the mode does not exist, no column is requested, or an envelope column is
            requested without ``envelope="columns"``.
        UsageTypeError: ``columns`` is not an iterable of names.
    """
    as_choice("envelope", envelope, _MODES)
    known = (*COLUMNS, *(ENVELOPE_COLUMNS if envelope == "columns" else ()))
    if columns is None:
        return known
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise UsageTypeError(f"columns must be names of columns, got {columns!r}")
    wanted = tuple(dict.fromkeys(columns))
    for name in wanted:
        if name not in known:
            hint = ": envelope='columns' adds it" if name in ENVELOPE_COLUMNS else ""
            raise UsageError(f"columns must be some of {', '.join(known)}, got {name!r}{hint}")
    if not wanted:
        raise UsageError("columns must have at least one name, got none")
    return wanted


def make_schema(columns: Iterable[str], *, unsigned: bool) -> pa.Schema:
    """Return the schema of a read.

    Args:
        columns: Names of the columns.
        unsigned: True for unsigned offsets, as in JetStream.
    """
    kinds = {**_KINDS, "offset": pa.uint64() if unsigned else pa.int64()}
    return pa.schema([pa.field(name, kinds[name], nullable=name in _NULLABLE) for name in columns])


def row_columns(columns: Iterable[str]) -> frozenset[str]:
    """Return the columns that a row reader must fill to produce the given columns.

    Any envelope column needs ``ack_policy``, which makes the row reader record the messages with envelopes.
    """
    wanted = set(columns)
    return frozenset(wanted | ({"ack_policy"} if wanted & set(ENVELOPE_COLUMNS) else set()))


def make_batch(schema: pa.Schema, rows: int, found: Mapping[str, Any], partition: int) -> pa.RecordBatch:
    """Return a record batch over the buffers that a row reader has filled."""
    arrays = [_array(field, rows, found, partition) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def make_subjects(rows: int, found: Mapping[str, Any]) -> pa.DictionaryArray:
    """Return the subject of each row from the buffers that a row reader has filled."""
    array: pa.DictionaryArray = _words(rows, found["subject"])
    return array


def _array(field: pa.Field, rows: int, found: Mapping[str, Any], partition: int) -> pa.Array:
    name, kind = field.name, field.type
    if name == "partition":
        return pa.repeat(pa.scalar(partition, kind), rows)
    if name == "headers":
        return _headers(found, rows)
    if kind == _WORDS:
        return _words(rows, found[name])
    if name in ("ack_policy", "expected_offset"):
        nulls, validity = found["enveloped"]
        return pa.Array.from_buffers(kind, rows, [_optional(validity), pa.py_buffer(found[name])], nulls)
    if name in ("offset", "timestamp"):
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(found[name])], 0)
    return _texts(found[name], kind)


def _words(rows: int, buffers: tuple[Any, ...]) -> pa.DictionaryArray:
    _, nulls, validity, indices, words = buffers
    which = pa.Array.from_buffers(pa.int32(), rows, [_optional(validity), pa.py_buffer(indices)], nulls)
    return pa.DictionaryArray.from_arrays(which, _texts(words, pa.string()))


def _texts(buffers: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    rows, nulls, *parts = buffers
    return pa.Array.from_buffers(kind, rows, [_optional(part) for part in parts], nulls)


def _headers(found: Mapping[str, Any], rows: int) -> pa.MapArray:
    fields = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
    names, values = _texts(found["header_names"], pa.string()), _texts(found["header_values"], pa.binary())
    entries = pa.StructArray.from_arrays([names, values], fields=fields)
    return pa.MapArray.from_buffers(
        HEADERS, rows, [None, pa.py_buffer(found["header_offsets"])], children=[entries]
    )


def _optional(buffer: Any) -> pa.Buffer | None:
    return None if buffer is None else pa.py_buffer(buffer)
