"""Envelopes as columns of DataFrames: Arrow functions over the batch codec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from liftenvelope._extras import require
from liftenvelope.errors import UsageError
from liftenvelope.spark.columns import (
    ENVELOPE_DDL,
    ENVELOPE_TYPE,
    OnMalformed,
    decoded_structs,
    encoded_structs,
    with_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["decode_envelopes", "from_envelope", "register_functions", "to_envelope"]

_NAMES = ("null", "fail")


def _decoder(on_malformed: str) -> Any:
    if on_malformed not in _NAMES:
        raise UsageError(f"on_malformed={on_malformed!r}: expected 'null' or 'fail'")

    def from_envelope(envelopes: Any) -> Any:
        return decoded_structs(envelopes, on_malformed)

    return _arrow_udf(from_envelope, ENVELOPE_DDL)


def _encoder() -> Any:
    def to_envelope(rows: Any) -> Any:
        return encoded_structs(rows)

    return _arrow_udf(to_envelope, "binary")


def _arrow_udf(function: Any, ddl: str) -> Any:
    pa = require("pyarrow", "spark")
    require("pyspark", "spark")
    from pyspark.sql.functions import arrow_udf

    # Spark finds out by the annotations that whole columns are wanted, and those of this module are texts.
    function.__annotations__ = dict.fromkeys((*function.__annotations__, "return"), pa.Array)
    return arrow_udf(function, ddl)


def from_envelope(column: Column | str, *, on_malformed: OnMalformed = "null") -> Column:
    """Return a struct with the fields of the envelope in a column of binary.

    Args:
        column: The column, or its name.
        on_malformed: What becomes of a row that is no sound envelope: ``"null"``: its fields are null but for
            ``error``, which says why. ``"fail"``: the query fails.

    Raises:
        UsageError: The choice is unknown.
    """
    return _decoder(on_malformed)(column)


def to_envelope(column: Column | str) -> Column:
    """Return the envelopes of a column of structs.

    Args:
        column: Structs with ``value`` (binary), and perhaps ``key`` (binary), ``headers`` (map of string to
            binary), ``correlation_id``, ``expected_offset``, ``ack_inbox`` and ``ack_policy``; all rows have
            the same of the last two.
    """
    return _encoder()(column)


def decode_envelopes(
    frame: DataFrame, column: str = "value", *, on_malformed: OnMalformed = "null"
) -> DataFrame:
    """Return a DataFrame with a column of envelopes replaced by ``envelope``, a struct of their fields.

    The same as :func:`from_envelope`, in less time: whole batches go to Python and back. It needs pandas,
    which Spark asks for.

    Args:
        frame: The DataFrame.
        column: Name of its column with envelopes.
        on_malformed: As for :func:`from_envelope`.

    Raises:
        UsageError: There is no such column, or the choice is unknown.
    """
    if on_malformed not in _NAMES:
        raise UsageError(f"on_malformed={on_malformed!r}: expected 'null' or 'fail'")
    if column not in frame.columns:
        raise UsageError(f"there is no column {column!r}, but {', '.join(frame.columns)}")
    schema = _with_envelope(frame.schema, column)

    def decode(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield with_columns(batch, column, on_malformed)

    return frame.mapInArrow(decode, schema)


def _with_envelope(schema: Any, column: str) -> Any:
    from pyspark.sql import types

    kinds = {
        "headers": types.MapType(types.StringType(), types.BinaryType()),
        "ack_policy": types.IntegerType(),
        "expected_offset": types.LongType(),
    }
    kinds |= dict.fromkeys(("key", "value"), types.BinaryType())
    fields = [
        types.StructField(field.name, kinds.get(field.name, types.StringType())) for field in ENVELOPE_TYPE
    ]
    kept = [field for field in schema.fields if field.name != column]
    return types.StructType([*kept, types.StructField("envelope", types.StructType(fields))])


def register_functions(spark: SparkSession) -> None:
    """Let SQL call ``from_envelope`` (malformed rows give nulls and ``error``) and ``to_envelope``."""
    spark.udf.register("from_envelope", _decoder("null"))
    spark.udf.register("to_envelope", _encoder())
