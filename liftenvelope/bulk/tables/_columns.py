"""Mapping of Arrow types to those that tables have, and the rules for changes of a schema. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.bulk.errors import TableSchemaError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    from liftenvelope._checks import require
    from liftenvelope.bulk._engine.schema import pa

    pc = require("pyarrow.compute", "bulk")

__all__ = ["check_required", "convert", "merged_schema", "table_schema"]

_UTC: Final = "UTC"
_DIGITS: Final = 38
#: Wider types that hold every value of a type.
_WIDER: Final = {pa.int32(): (pa.int64(),), pa.float32(): (pa.float64(),)}
_SIMPLE: Final = (
    (pa.types.is_uint8, pa.int32()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint64, pa.int64()),
    (pa.types.is_int8, pa.int32()),
    (pa.types.is_int16, pa.int32()),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_string, pa.string()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_binary, pa.binary()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_date64, pa.date32()),
    (pa.types.is_time, pa.time64("us")),
)
_SAME: Final = (
    pa.types.is_int32,
    pa.types.is_int64,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_boolean,
    pa.types.is_date32,
)


def table_schema(schema: pa.Schema, *, keep_ns: bool = False) -> pa.Schema:
    """Return the schema with the types that tables of every format have. All columns may be null.

    Unsigned integers become signed, dictionaries their values, timestamps microseconds. Columns of type null,
    which have no type yet, are left out.

    Args:
        schema: Schema of a stream, or of a table.
        keep_ns: Whether timestamps of nanoseconds stay.

    Raises:
        TableSchemaError: Tables have no such type.
    """
    fields = [
        pa.field(one.name, _mapped(one.name, one.type, keep_ns), nullable=True)
        for one in schema
        if not pa.types.is_null(one.type)
    ]
    return pa.schema(fields)


def _mapped(name: str, kind: Any, keep_ns: bool) -> Any:
    for is_kind, target in _SIMPLE:
        if is_kind(kind):
            return target
    if any(is_kind(kind) for is_kind in _SAME):
        return kind
    if pa.types.is_dictionary(kind):
        return _mapped(name, kind.value_type, keep_ns)
    if pa.types.is_timestamp(kind):
        unit = "ns" if keep_ns and kind.unit == "ns" else "us"
        return pa.timestamp(unit, _UTC if kind.tz is not None else None)
    if pa.types.is_decimal(kind) and kind.precision <= _DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    return _nested(name, kind, keep_ns)


def _nested(name: str, kind: Any, keep_ns: bool) -> Any:
    if pa.types.is_map(kind):
        items = _mapped(f"{name}.value", kind.item_type, keep_ns)
        return pa.map_(_mapped(f"{name}.key", kind.key_type, keep_ns), items)
    if pa.types.is_struct(kind):
        parts = [pa.field(one.name, _mapped(f"{name}.{one.name}", one.type, keep_ns)) for one in kind]
        return pa.struct(parts)
    if any(
        is_kind(kind) for is_kind in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    ):
        return pa.list_(_mapped(f"{name}.element", kind.value_type, keep_ns))
    text = f"column {name!r} must have a type that tables have, got {kind}: leave it out by columns="
    raise TableSchemaError(text, name, "none", str(kind))


def merged_schema(table: pa.Schema, stream: pa.Schema) -> pa.Schema:
    """Return the schema of a table after the columns of a stream are added to it.

    Args:
        table: Schema of the table, from :func:`table_schema`.
        stream: Schema of the stream, from :func:`table_schema`.

    Raises:
        TableSchemaError: The table has a column of the same name and of a type that does not hold all values.
    """
    return pa.schema(_merged_fields("", list(table), list(stream)))


def _merged_fields(path: str, table: list[Any], stream: list[Any]) -> list[Any]:
    there = {field.name: field for field in stream}
    known = {field.name for field in table}
    fields = [
        pa.field(field.name, _merged(f"{path}{field.name}", field.type, there[field.name].type))
        if field.name in there
        else field
        for field in table
    ]
    return [*fields, *(field for field in stream if field.name not in known)]


def _merged(name: str, table: Any, stream: Any) -> Any:
    if pa.types.is_struct(table) and pa.types.is_struct(stream):
        return pa.struct(_merged_fields(f"{name}.", list(table), list(stream)))
    if pa.types.is_list(table) and pa.types.is_list(stream):
        return pa.list_(_merged(f"{name}.element", table.value_type, stream.value_type))
    if pa.types.is_map(table) and pa.types.is_map(stream):
        keys = _merged(f"{name}.key", table.key_type, stream.key_type)
        return pa.map_(keys, _merged(f"{name}.value", table.item_type, stream.item_type))
    if not _fits(table, stream):
        text = f"column {name!r} must fit type {table} of the table, got type {stream} from the stream"
        remedy = "rename the column, or write into another table"
        raise TableSchemaError(f"{text}: {remedy}", name, str(table), str(stream))
    return table


def _fits(table: Any, stream: Any) -> bool:
    """Return True if a column of the table holds every value of the stream."""
    if pa.types.is_timestamp(table) and pa.types.is_timestamp(stream):
        return (table.tz is None) is (stream.tz is None)
    if pa.types.is_decimal(table) and pa.types.is_decimal(stream):
        return bool(table.scale == stream.scale and table.precision >= stream.precision)
    return table == stream or table in _WIDER.get(stream, ())


def check_required(required: Iterable[str], stream: pa.Schema) -> None:
    """Check that a stream has a value in every row for the columns that a table requires.

    Raises:
        TableSchemaError: The stream lacks a column, or its values may be null.
    """
    for name in required:
        found = stream.field(name).type if name in stream.names else "none"
        if name not in stream.names or stream.field(name).nullable:
            text = f"column {name!r} must have a value in every row of the table, got {found} with nulls"
            raise TableSchemaError(
                f"{text}: make the column of the table optional", name, "required", str(found)
            )


def convert(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns and types of a table. Columns that the batch lacks are null.

    Digits of timestamps beyond the unit of the table are cut off.

    Raises:
        TableSchemaError: A value does not fit the type of the table.
    """
    return pa.RecordBatch.from_arrays(list(_arrays(batch, schema)), schema=schema)


def _arrays(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[Any]:
    names = set(batch.schema.names)
    for field in schema:
        if field.name not in names or pa.types.is_null(batch.schema.field(field.name).type):
            yield pa.nulls(batch.num_rows, field.type)
            continue
        column = batch.column(field.name)
        try:
            yield pc.cast(column, options=pc.CastOptions(field.type, allow_time_truncate=True))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
            text = f"column {field.name!r} must fit type {field.type} of the table: {exc}"
            raise TableSchemaError(text, field.name, str(field.type), str(column.type)) from exc
