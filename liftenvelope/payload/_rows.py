"""Record batches in parts: join them, put nulls between their rows, and find the values that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from liftenvelope.errors import UsageError
from liftenvelope.payload._types import check_fields

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    import pyarrow.compute as pc

    from liftenvelope.payload._formats import pa

__all__ = [
    "as_types",
    "batch_of",
    "bisected",
    "cast_column",
    "empty_batch",
    "in_one",
    "infinities",
    "joined",
    "null_bytes",
    "null_row",
    "python_rows",
    "with_nulls",
]


def batch_of(arrays: Sequence[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return a batch that has its number of rows even without a column.

    ``RecordBatch.from_arrays`` takes the number from the first column, and has no rows without one.
    """
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_types(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the names and types of a schema.

    Raises:
        UsageError: A value does not fit.
    """
    columns = [
        column if column.type == field.type else cast_column(field.name, column, field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast_column(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as the type of a schema. Doubles are rounded where the type is a float.

    Raises:
        UsageError: A value does not fit.
    """
    check_fields(name, column.type, kind)
    try:
        found = _decoded(column).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as exc:
        raise UsageError(f"data: column {name!r} must fit type {kind} of the schema: {exc}") from exc
    if infinities(found) > infinities(column):
        raise UsageError(f"data: column {name!r} must fit type {kind} of the schema, got a larger number")
    return found


def _decoded(column: pa.Array) -> pa.Array:
    """Return the values of a dictionary that its rows have, one per row; any other column as it is."""
    if not pa.types.is_dictionary(column.type):
        return column
    values = column.dictionary
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(values.type)
    # Arrow can take no rows of views.
    return (values if plain is None else values.cast(plain)).take(column.indices)


def in_one(values: pa.Array) -> pa.Array:
    """Return the bytes of all values of an array of bytes or text as a single value, in place.

    A search in it takes a tenth of the time of a search in each value.
    """
    _, ends, data = values.buffers()
    offsets = memoryview(ends).cast("i") if len(values) else (0,)
    span = pa.array([offsets[values.offset], offsets[values.offset + len(values)]], pa.int32())
    return pa.Array.from_buffers(values.type, 1, [None, span.buffers()[1], data or pa.py_buffer(b"")])


def infinities(column: pa.Array) -> int:
    """Return the number of infinite values in a column, also inside lists, maps and structs."""
    kind, types = column.type, pa.types
    if types.is_dictionary(kind) and types.is_floating(kind.value_type):
        return infinities(_decoded(column))
    if types.is_floating(kind):
        return int(pc.sum(pc.is_inf(column)).as_py() or 0)
    if types.is_map(kind):
        return infinities(column.items)
    if types.is_struct(kind):
        return sum(map(infinities, column.flatten()))
    has_items = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return infinities(column.flatten()) if has_items else 0


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def null_row(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of one row of nulls."""
    return batch_of([pa.nulls(1, field.type) for field in schema], schema, 1)


def null_bytes(kind: pa.DataType) -> int:
    """Return about how many bytes a null of a type takes in a column.

    A type is a claim of the sender: a null of ``fixed_size_binary(n)`` takes ``n`` bytes.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return null_bytes(kind.storage_type)
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_fixed_size_list(kind):
        return 1 + int(kind.list_size) * null_bytes(kind.value_type)
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        return 5 + sum(null_bytes(kind.field(number).type) for number in range(kind.num_fields))
    try:
        return 1 + int(kind.bit_width) // 8
    except ValueError:  # of a variable width: an offset or a view
        return 17


def joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of all batches in one.

    Raises:
        ValueError: A column exceeds the 2 GiB that Arrow's types of text and bytes can hold in one batch.
    """
    if len(batches) == 1:
        return batches[0]
    found = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    if len(found) > 1:
        raise ValueError("more than 2 GiB in one column")
    return found[0] if found else empty_batch(schema)


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows as Python values, and maps as dicts. ``maps_as_pydicts`` came with pyarrow 20.

    Raises:
        UsageError: A map has a key twice, or a time is not one of the years 1 to 9999.
    """
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        try:
            values = column.to_pylist()
            is_nested = pa.types.is_nested(field.type)
            columns.append([_with_dicts(value, field.type) for value in values] if is_nested else values)
        except (ValueError, OverflowError) as exc:
            raise UsageError(f"data: column {field.name!r} must have values that Python has: {exc}") from exc
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        found = {key: _with_dicts(item, kind.item_type) for key, item in value}
        if len(found) != len(value):
            raise ValueError(f"a map must have each key once, got {[key for key, _ in value]!r}")
        return found
    if pa.types.is_struct(kind):
        return {field.name: _with_dicts(value[field.name], field.type) for field in kind}
    if pa.types.is_nested(kind):
        return [_with_dicts(item, kind.value_type) for item in value]
    return value


def with_nulls(batch: pa.RecordBatch, order: Sequence[int | None]) -> pa.RecordBatch:
    """Return a batch whose row *i* is row ``order[i]``; None for a row of nulls."""
    return batch.take(pa.array(order, pa.int32())) if batch.num_columns else batch


def bisected(
    values: pa.Array, attempt: Callable[[pa.Array], pa.RecordBatch | str], schema: pa.Schema
) -> tuple[pa.RecordBatch, list[int | str]]:
    """Try values together, and split those that fail until each is alone.

    Args:
        values: The values.
        attempt: Returns one row per value, or the reason why it cannot.
        schema: Columns of the rows.

    Returns:
        The rows of the good values, and for each value the number of its row, or its fault.
    """
    parts: list[pa.RecordBatch] = [empty_batch(schema)]
    fates: list[int | str] = []
    rows = 0
    spans = [(0, len(values))] if len(values) else []
    while spans:
        start, stop = spans.pop()
        found = attempt(values.slice(start, stop - start))
        if not isinstance(found, str):
            parts.append(found)
            fates.extend(range(rows, rows + stop - start))
            rows += stop - start
        elif stop - start == 1:
            fates.append(found)
        else:
            middle = (start + stop) // 2
            spans += [(middle, stop), (start, middle)]
    return joined(parts, schema), fates
