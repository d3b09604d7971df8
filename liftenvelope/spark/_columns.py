"""Converts between envelopes and Arrow structs. Core of liftenvelope.spark.functions, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from liftenvelope._checks import as_names, require
from liftenvelope.arrow import MESSAGE_FIELDS, decode_batch, encode_batch
from liftenvelope.errors import EnvelopeTooLargeError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = require("pyarrow", "spark")
    pc = require("pyarrow.compute", "spark")

__all__ = [
    "ENVELOPE_TYPE",
    "OnMalformed",
    "checked_fields",
    "decoded_structs",
    "encoded_structs",
    "envelope_ddl",
    "with_columns",
]

#: Treatment of a malformed row: ``"null"`` fills nulls and the reason in ``error``, ``"fail"`` fails the
#: query.
OnMalformed: TypeAlias = Literal["null", "fail"]

#: Fields of a decoded envelope; ``error`` is the reason why a row could not be decoded.
ENVELOPE_TYPE: Final = pa.struct(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.binary())),
        ("ack_inbox", pa.string()),
        ("correlation_id", pa.string()),
        ("ack_policy", pa.int32()),
        ("expected_offset", pa.int64()),
        ("error", pa.string()),
    ]
)

#: Types of Spark of the fields that are no strings.
_SQL_TYPES: Final = {
    "key": "BINARY",
    "value": "BINARY",
    "headers": "MAP<STRING, BINARY>",
    "ack_policy": "INT",
    "expected_offset": "BIGINT",
}
#: Arguments of encode_batch by the fields that may differ in each row, except ``value``.
_PER_ROW: Final = {
    "key": "keys",
    "headers": "headers",
    "correlation_id": "correlation_ids",
    "expected_offset": "expected_offsets",
}
#: Fields for which encode_batch takes one value for all rows.
_PER_CALL: Final = ("ack_inbox", "ack_policy")


def checked_fields(fields: Sequence[str], on_malformed: str) -> tuple[str, ...]:
    """Check the options of a function that decodes; return the fields.

    Raises:
        UsageError: A field is unknown or given twice, there is none, or ``on_malformed`` is unknown.
    """
    if on_malformed not in ("null", "fail"):
        raise UsageError(f"on_malformed must be 'null' or 'fail', got {on_malformed!r}")
    return as_names("fields", fields, MESSAGE_FIELDS)


def envelope_ddl(fields: Sequence[str]) -> str:
    """Return the fields of the structs of :func:`decoded_structs` in the words of Spark."""
    return ", ".join(f"{name} {_SQL_TYPES.get(name, 'STRING')}" for name in fields)


def decoded_structs(
    envelopes: pa.Array, on_malformed: OnMalformed = "null", fields: Sequence[str] = MESSAGE_FIELDS
) -> pa.StructArray:
    """Decode a column of envelopes into structs with some fields of :data:`ENVELOPE_TYPE`.

    A null gives a struct of nulls.

    Raises:
        UsageError: The column is not binary.
        EnvelopeError: A row is malformed, and ``on_malformed`` is ``"fail"``.
    """
    found = decode_batch(envelopes, on_error="raise" if on_malformed == "fail" else "null", fields=fields)
    kinds = [ENVELOPE_TYPE.field(name) for name in fields]
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for field, column in zip(kinds, found.columns, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=kinds)


def encoded_structs(rows: pa.StructArray) -> pa.Array:
    """Encode structs as envelopes. They need a field ``value``; the other envelope fields are optional.

    A null row or a null value gives null. A null in another field gives the default of that field.

    Raises:
        UsageError: A field is missing, unknown or of a wrong type.
        EnvelopeTooLargeError: A row is too large for an envelope.
    """
    if not pa.types.is_struct(rows.type):
        raise UsageError(f"to_envelope: the column must be a struct, such as struct(value), got {rows.type}")
    names = [field.name for field in rows.type]
    unknown = sorted(set(names) - {field.name for field in ENVELOPE_TYPE})
    if unknown or "value" not in names:
        text = f"unknown field {unknown[0]!r}" if unknown else "no field 'value'"
        raise UsageError(
            f"to_envelope: {text}: expected value, and optionally key, headers and correlation_id"
        )
    found = _encoded(pa.RecordBatch.from_arrays(rows.flatten(), names))
    return found if isinstance(found, pa.Array) else found.combine_chunks()


def _encoded(rows: pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
    """Encode rows in groups of equal ``ack_inbox`` and ``ack_policy``, one call for each group.

    The result does not depend on where Spark divides the rows into batches.
    """
    names = [name for name in _PER_CALL if name in rows.schema.names]
    if not names:
        return _encoded_group(rows, {})
    numbered = pa.Table.from_batches([rows.select(names)]).append_column("row", [range(rows.num_rows)])
    groups = numbered.group_by(names).aggregate([("row", "list")]).to_pylist()
    given = [{name: group[name] for name in names if group[name] is not None} for group in groups]
    if len(groups) <= 1:
        return _encoded_group(rows, given[0] if given else {})
    order = pa.array([row for group in groups for row in group["row_list"]], pa.int64())
    sorted_rows, parts, start = rows.take(order), [], 0
    for group, options in zip(groups, given, strict=True):
        stop = start + len(group["row_list"])
        try:
            parts.append(_encoded_group(sorted_rows.slice(start, stop - start), options))
        except (UsageError, EnvelopeTooLargeError):
            _encoded_group(rows, options)  # raises the error with the number of the row in the batch
            raise
        start = stop
    chunks = [
        chunk for part in parts for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else [part])
    ]
    return pa.chunked_array(chunks).take(pc.sort_indices(order))


def _encoded_group(rows: pa.RecordBatch, options: dict[str, Any]) -> pa.Array | pa.ChunkedArray:
    columns = {option: rows[name] for name, option in _PER_ROW.items() if name in rows.schema.names}
    return encode_batch(rows["value"], **columns, **options)


def with_columns(
    batch: pa.RecordBatch,
    column: str,
    on_malformed: OnMalformed = "null",
    fields: Sequence[str] = MESSAGE_FIELDS,
) -> pa.RecordBatch:
    """Return a batch with a column of envelopes replaced by a struct column ``envelope``.

    Raises:
        UsageError, EnvelopeError: As for :func:`decoded_structs`.
    """
    arrays = [array for name, array in zip(batch.schema.names, batch.columns, strict=True) if name != column]
    names = [name for name in batch.schema.names if name != column]
    return pa.RecordBatch.from_arrays(
        [*arrays, decoded_structs(batch.column(column), on_malformed, fields)], [*names, "envelope"]
    )
