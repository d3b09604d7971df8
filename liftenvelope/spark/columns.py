"""Converts between envelopes and Arrow structs. Core of liftenvelope.spark.functions, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from liftenvelope._checks import require
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

#: Treatment of a malformed row: ``"null"`` fills nulls and the reason in ``error``, ``"fail"`` fails the
#: query.
OnMalformed: TypeAlias = Literal["null", "fail"]

#: Columns of a decoded envelope; ``error`` is the reason why a row could not be decoded.
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
    raise UsageError(f"on_malformed must be 'null' or 'fail', got {on_malformed!r}")


def decoded_structs(envelopes: pa.Array, on_malformed: str = "null") -> pa.StructArray:
    """Decode a column of envelopes into structs of :data:`ENVELOPE_TYPE`. A null gives a struct of nulls.

    Raises:
        UsageError: The column is not binary, or ``on_malformed`` is unknown.
        EnvelopeError: A row is malformed, and ``on_malformed`` is ``"fail"``.
    """
    found = decode_batch(envelopes, on_error=_on_error(on_malformed))
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for field, column in zip(ENVELOPE_TYPE, found.columns, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(ENVELOPE_TYPE))


def encoded_structs(rows: pa.StructArray) -> pa.Array:
    """Encode structs as envelopes. They need a field ``value``; the other envelope fields are optional.

    A null row or a null value gives null.

    Raises:
        UsageError: A field is missing, unknown or of a wrong type, or ``ack_inbox`` or ``ack_policy`` differs
            between the rows of a batch.
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
            f"to_envelope: {name} must be the same in all rows, got {values[0]!r} and {values[1]!r}"
        )
    return {name: values[0]} if values else {}


def with_columns(batch: pa.RecordBatch, column: str, on_malformed: str = "null") -> pa.RecordBatch:
    """Return a batch with a column of envelopes replaced by a struct column ``envelope``.

    Raises:
        UsageError, EnvelopeError: As for :func:`decoded_structs`.
    """
    arrays = [array for name, array in zip(batch.schema.names, batch.columns, strict=True) if name != column]
    names = [name for name in batch.schema.names if name != column]
    return pa.RecordBatch.from_arrays(
        [*arrays, decoded_structs(batch.column(column), on_malformed)], [*names, "envelope"]
    )
