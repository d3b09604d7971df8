"""Partitioning of tables: by columns, or by hour, day or month of a column. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    from liftenvelope._checks import require
    from liftenvelope.bulk._engine.schema import pa

    pc = require("pyarrow.compute", "bulk")

__all__ = ["PartitionBy", "parse_partitions", "time_parts", "with_time_columns"]

_CALL: Final = re.compile(r"(hour|day|month)\((.+)\)")
_FORMATS: Final = {"hour": "%Y-%m-%d-%H", "month": "%Y-%m"}


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """One level of the partitioning of a table.

    Attributes:
        column: Name of a column of the stream.
        unit: Unit of time, ``"hour"``, ``"day"`` or ``"month"``; None for the values themselves.
    """

    column: str
    unit: str | None = None

    @property
    def name(self) -> str:
        """Name of the partition field, which is also that of the column in formats without transforms."""
        return self.column if self.unit is None else f"{self.column}_{self.unit}"

    def __str__(self) -> str:
        return self.column if self.unit is None else f"{self.unit}({self.column})"


def parse_partitions(partition_by: str | Iterable[str] | None) -> tuple[PartitionBy, ...] | None:
    """Parse the option ``partition_by``; None if it is not given.

    Raises:
        UsageError: An entry is empty, or repeated.
        UsageTypeError: The option is not a text, or not texts.
    """
    if partition_by is None:
        return None
    entries = [partition_by] if isinstance(partition_by, str) else partition_by
    if not isinstance(entries, Iterable):
        raise UsageTypeError(f"partition_by must be names of columns, got {partition_by!r}")
    found = tuple(_parse(entry) for entry in entries)
    if len({one.name for one in found}) < len(found):
        raise UsageError(f"partition_by must name each partition once, got {partition_by!r}")
    return found


def _parse(entry: object) -> PartitionBy:
    if not isinstance(entry, str):
        raise UsageTypeError(f"partition_by must be names of columns, got {entry!r}")
    if not entry:
        raise UsageError("partition_by must be names of columns, got ''")
    call = _CALL.fullmatch(entry)
    return PartitionBy(entry) if call is None else PartitionBy(call[2], call[1])


def check_columns(partitions: Iterable[PartitionBy], schema: pa.Schema) -> None:
    """Check that the stream has the columns that a table is partitioned by.

    Raises:
        UsageError: A column is missing, has no plain values, or has no times.
    """
    for one in partitions:
        if one.column not in schema.names:
            raise UsageError(f"partition_by must name columns of {', '.join(schema.names)}, got {str(one)!r}")
        kind = schema.field(one.column).type
        if one.unit is not None and not pa.types.is_timestamp(kind):
            raise UsageError(f"partition_by={str(one)!r} must name a column of timestamps, got type {kind}")
        if pa.types.is_nested(kind):
            raise UsageError(f"partition_by={str(one)!r} must name a column of plain values, got type {kind}")


def time_parts(names: Iterable[str], schema: pa.Schema) -> list[PartitionBy]:
    """Return the units of time that partition columns of a table are derived from.

    Args:
        names: Names of the partition columns.
        schema: Schema of the stream.
    """
    found = []
    for name in names:
        column, _, unit = name.rpartition("_")
        is_derived = name not in schema.names and column in schema.names and unit in ("hour", "day", "month")
        if is_derived and pa.types.is_timestamp(schema.field(column).type):
            found.append(PartitionBy(column, unit))
    return found


def with_time_columns(schema: pa.Schema, parts: Iterable[PartitionBy]) -> pa.Schema:
    """Return the schema with a column for each unit of time: a date for days, a text for hours and months."""
    for one in parts:
        schema = schema.append(pa.field(one.name, pa.date32() if one.unit == "day" else pa.string()))
    return schema


def add_time_columns(batch: pa.RecordBatch, parts: Iterable[PartitionBy]) -> pa.RecordBatch:
    """Return a batch with a column for each unit of time."""
    for one in parts:
        times = batch.column(one.column)
        found = times.cast(pa.date32()) if one.unit == "day" else pc.strftime(times, _FORMATS[str(one.unit)])
        batch = batch.append_column(one.name, found)
    return batch
