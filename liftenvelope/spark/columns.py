"""Envelopes as columns, over Arrow: what the functions of liftenvelope.spark.functions do, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from liftenvelope._extras import require
from liftenvelope.arrow import decode_batch, encode_batch
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = require("pyarrow", "spark")

__all__ = [
    "ENVELOPE_DDL",
    "ENVELOPE_TYPE",
    "OnMalformed",
    "decoded_structs",
    "encoded_structs",
    "with_columns",
]

#: What becomes of a row that is no sound envelope: nulls and the reason in ``error``, or the query fails.
OnMalformed: TypeAlias = Literal["null", "fail"]

#: The fields of an envelope, and why it is none.
ENVELOPE_DDL: Final = (
    "key BINARY, value BINARY, headers MAP<STRING, BINARY>, ack_inbox STRING, correlation_id STRING, "
    "ack_policy INT, expected_offset BIGINT, error STRING"
)
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


def _on_error(on_malformed: str) -> Literal["null", "raise"]:
    if on_malformed == "null":
        return "null"
    if on_malformed == "fail":
        return "raise"
    raise UsageError(f"on_malformed={on_malformed!r}: expected 'null' or 'fail'")


def decoded_structs(envelopes: pa.Array, on_malformed: str = "null") -> pa.StructArray:
    """Read a column of envelopes into structs of :data:`ENVELOPE_TYPE`. A null gives a struct of nulls.

    Raises:
        UsageError: The column is not of bytes, or the choice is unknown.
        EnvelopeError: A row is no sound envelope, and that is to fail.
    """
    found = decode_batch(envelopes, on_error=_on_error(on_malformed))
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for field, column in zip(ENVELOPE_TYPE, found.columns, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(ENVELOPE_TYPE))


def encoded_structs(rows: pa.StructArray) -> pa.Array:
    """Make envelopes of structs with a field ``value``, and any of the others that envelopes have.

    A row that is null, or whose value is, gives null.

    Raises:
        UsageError: A field is missing, unknown or of a wrong type, or rows differ in what must be the same
            for a batch: ``ack_inbox`` and ``ack_policy``.
        EnvelopeTooLargeError: A row is too large for an envelope.
    """
    if not pa.types.is_struct(rows.type):
        raise UsageError(f"to_envelope: expected a struct, such as struct(value), not {rows.type}")
    names = [field.name for field in rows.type]
    unknown = sorted(set(names) - {field.name for field in ENVELOPE_TYPE})
    if unknown or "value" not in names:
        text = f"there is a field {unknown[0]!r}" if unknown else "there is no field 'value'"
        raise UsageError(f"to_envelope: {text}: expected value, and perhaps key, headers and correlation_id")
    fields = dict(zip(names, rows.flatten(), strict=True))
    options: dict[str, Any] = {}
    for name, option in (
        ("key", "keys"),
        ("headers", "headers"),
        ("correlation_id", "correlation_ids"),
        ("expected_offset", "expected_offsets"),
    ):
        if name in fields:
            options[option] = fields[name]
    for name in ("ack_inbox", "ack_policy"):
        if name in fields:
            options |= _constant(name, fields[name])
    found = encode_batch(fields["value"], **options)
    return found if isinstance(found, pa.Array) else found.combine_chunks()


def _constant(name: str, column: pa.Array) -> dict[str, Any]:
    values = column.drop_null().unique().to_pylist()
    if len(values) > 1:
        raise UsageError(
            f"to_envelope: {name} has {values[0]!r} and {values[1]!r}: expected one for all rows"
        )
    return {name: values[0]} if values else {}


def with_columns(batch: pa.RecordBatch, column: str, on_malformed: str = "null") -> pa.RecordBatch:
    """Return a batch with a column of envelopes replaced by one struct, ``envelope``.

    Raises:
        UsageError, EnvelopeError: As for :func:`decoded_structs`.
    """
    arrays = [array for name, array in zip(batch.schema.names, batch.columns, strict=True) if name != column]
    names = [name for name in batch.schema.names if name != column]
    return pa.RecordBatch.from_arrays(
        [*arrays, decoded_structs(batch.column(column), on_malformed)], [*names, "envelope"]
    )
