"""Spark functions that decode and encode envelope columns with Arrow and the batch codec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from liftenvelope._checks import require
from liftenvelope.arrow import MESSAGE_FIELDS
from liftenvelope.errors import UsageError
from liftenvelope.spark._columns import (
    ENVELOPE_TYPE,
    OnMalformed,
    checked_fields,
    decoded_structs,
    encoded_structs,
    envelope_ddl,
    with_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["decode_envelopes", "from_envelope", "register_functions", "to_envelope"]


def _decoder(on_malformed: OnMalformed, fields: Sequence[str]) -> Any:
    names = checked_fields(fields, on_malformed)

    def from_envelope(envelopes: Any) -> Any:
        return decoded_structs(envelopes, on_malformed, names)

    return _arrow_udf(from_envelope, envelope_ddl(names))


def _encoder() -> Any:
    def to_envelope(rows: Any) -> Any:
        return encoded_structs(rows)

    return _arrow_udf(to_envelope, "binary")


def _arrow_udf(function: Any, ddl: str) -> Any:
    pa = require("pyarrow", "spark")
    require("pyspark", "spark")
    from pyspark.sql.functions import arrow_udf

    # Spark reads the annotations to choose Arrow columns, but annotations in this module are strings.
    function.__annotations__ = dict.fromkeys((*function.__annotations__, "return"), pa.Array)
    return arrow_udf(function, ddl)


def from_envelope(
    column: Column | str, *, on_malformed: OnMalformed = "null", fields: Sequence[str] = MESSAGE_FIELDS
) -> Column:
    """Return a struct with the fields of the envelopes in a binary column.

    Args:
        column: The column, or its name.
        on_malformed: Treatment of a malformed row. ``"null"`` (the default) leaves its fields null and puts
            the reason in ``error``; ``"fail"`` fails the query.
        fields: Fields of the struct, in this order; by default all: ``key``, ``value``, ``headers``,
            ``ack_inbox``, ``correlation_id``, ``ack_policy``, ``expected_offset`` and ``error``. Each field
            costs time, ``headers`` most, and also if a row has none. Without ``error`` a malformed row can't
            be told from a null.

    Raises:
        UsageError: ``on_malformed`` or a field is unknown, a field is given twice, or there is none.

    Example:
        >>> opened = raw.select(from_envelope("value", fields=["key", "value"]))  # doctest: +SKIP
    """
    return _decoder(on_malformed, fields)(column)


def to_envelope(column: Column | str) -> Column:
    """Return a column of envelopes made from a column of structs.

    Args:
        column: Structs with ``value`` (binary) and optionally ``key`` (binary), ``headers`` (map of string to
            binary), ``correlation_id``, ``expected_offset``, ``ack_inbox`` and ``ack_policy``. Spark encodes
            fastest if the last two have few different values.
    """
    return _encoder()(column)


def decode_envelopes(
    frame: DataFrame,
    column: str = "value",
    *,
    on_malformed: OnMalformed = "null",
    fields: Sequence[str] = MESSAGE_FIELDS,
) -> DataFrame:
    """Return a DataFrame with a column of envelopes replaced by ``envelope``, a struct of their fields.

    Gives the same result as :func:`from_envelope` in less time, because whole batches go to Python and back.
    Needs pandas, which Spark requires for this.

    Args:
        frame: The DataFrame.
        column: Name of the column of envelopes.
        on_malformed: As for :func:`from_envelope`.
        fields: As for :func:`from_envelope`.

    Raises:
        UsageError: The column does not exist, or as for :func:`from_envelope`.
    """
    names = checked_fields(fields, on_malformed)
    if column not in frame.columns:
        raise UsageError(f"column must be one of {', '.join(frame.columns)}, got {column!r}")
    schema = _with_envelope(frame.schema, column, names)

    def decode(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield with_columns(batch, column, on_malformed, names)

    return frame.mapInArrow(decode, schema)


def _with_envelope(schema: Any, column: str, names: Sequence[str]) -> Any:
    from pyspark.sql import types
    from pyspark.sql.pandas.types import from_arrow_type

    fields = [types.StructField(name, from_arrow_type(ENVELOPE_TYPE.field(name).type)) for name in names]
    kept = [field for field in schema.fields if field.name != column]
    return types.StructType([*kept, types.StructField("envelope", types.StructType(fields))])


def register_functions(spark: SparkSession) -> None:
    """Register ``from_envelope`` and ``to_envelope`` in SQL; a malformed row gives nulls and ``error``."""
    spark.udf.register("from_envelope", _decoder("null", MESSAGE_FIELDS))
    spark.udf.register("to_envelope", _encoder())
