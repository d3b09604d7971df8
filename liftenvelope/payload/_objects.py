"""Typed columns from Python objects, for formats that no library decodes into columns.

Each field becomes one column by one call of Arrow, after the set of its Python types has shown that no
value would be cast. Only if Arrow or the set says no, the values are looked at one by one.
"""

from __future__ import annotations

import datetime
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.payload._formats import BadValue
from liftenvelope.payload._rows import empty_batch, joined

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.payload._formats import pa

__all__ = ["Fault", "columns_of"]

#: Values whose objects exist at a time. Those of 65,536 rows of 100 bytes do not fit the processor's caches,
#: and garbage collections visit them again and again: msgpack took 1.40 us for a row in place of 0.96.
_BLOCK: Final = 8_192

#: Errors of pyarrow for a value that it cannot convert.
_REFUSED: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
_MOST_EXACT: Final = 2**53


class Fault(str):
    """Reason why a value has no object."""

    __slots__ = ()


def columns_of(
    values: pa.Array, read: Callable[[pa.Array], Sequence[Mapping[str, Any] | Fault]], schema: pa.Schema
) -> tuple[pa.RecordBatch, tuple[BadValue, ...]]:
    """Return one row per value, with nulls for bad ones, and the bad ones.

    An object is bad if a field does not fit its type: nothing is cast, except integers to floats that hold
    them exactly. Fields that the schema does not have are ignored, and missing ones are null.

    Args:
        values: The encoded values.
        read: Returns the objects of values, or the reasons why they have none.
        schema: Fields and their types.
    """
    batches: list[pa.RecordBatch] = []
    bad: list[BadValue] = []
    for start in range(0, len(values), _BLOCK):
        batch, found = _columns_of_block(read(values.slice(start, _BLOCK)), schema)
        batches.append(batch)
        bad += [BadValue(start + index, reason) for index, reason in sorted(found.items())]
    return joined(batches or [empty_batch(schema)], schema), tuple(bad)


def _columns_of_block(
    rows: Sequence[Mapping[str, Any] | Fault], schema: pa.Schema
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return one row per object, and the reasons of the bad ones by their index."""
    bad: dict[int, str] = {}
    found_rows: Sequence[Any] = rows
    if Fault in set(map(type, rows)):  # a look at each row for each field would take as long as all the rest
        bad = {index: str(row) for index, row in enumerate(rows) if isinstance(row, Fault)}
        found_rows = [{} if isinstance(row, Fault) else row for row in rows]
    arrays: list[pa.Array] = []
    for field in schema:
        name = field.name
        try:
            values = list(map(itemgetter(name), found_rows))
        except KeyError:
            values = [row.get(name) for row in found_rows]
        array = _whole(values, field.type)
        if array is None:
            array = _checked(values, field, bad)
        arrays.append(array)
    if bad and arrays:
        good = pa.array([index not in bad for index in range(len(rows))], pa.bool_())
        arrays = [_masked(array, good) for array in arrays]
    return pa.RecordBatch.from_arrays(arrays, schema=schema), bad


def _masked(array: pa.Array, good: pa.Array) -> pa.Array:
    indices = [index if keep else None for index, keep in enumerate(good.to_pylist())]
    return array.take(pa.array(indices, pa.int64()))


def _whole(values: list[Any], kind: pa.DataType) -> pa.Array | None:
    """Return a column if the types of its values are exactly right; None to look at each."""
    if not set(map(type, values)) <= _exact(kind):
        return None
    try:
        return pa.array(values, kind)
    except _REFUSED:
        return None


def _exact(kind: pa.DataType) -> set[type]:
    """Return the Python types that Arrow converts to a type without a cast; none for lists and structs."""
    types, none = pa.types, type(None)
    if types.is_boolean(kind):
        return {bool, none}
    if types.is_integer(kind):
        return {int, none}
    if types.is_floating(kind):
        return {float, none}
    if types.is_string(kind) or types.is_large_string(kind):
        return {str, none}
    if types.is_binary(kind) or types.is_large_binary(kind):
        return {bytes, none}
    return {datetime.datetime, none} if types.is_timestamp(kind) else set()


def _checked(values: list[Any], field: pa.Field, bad: dict[int, str]) -> pa.Array:
    for index, value in enumerate(values):
        fault = _fault(field.name, value, field.type)
        if fault is not None:
            bad.setdefault(index, fault)
            values[index] = None
    try:
        return pa.array(values, field.type)
    except _REFUSED:
        return _one_by_one(values, field, bad)


def _one_by_one(values: list[Any], field: pa.Field, bad: dict[int, str]) -> pa.Array:
    parts = []
    for index, value in enumerate(values):
        try:
            parts.append(pa.array([value], field.type))
        except _REFUSED:
            bad.setdefault(index, _text(field.name, value, field.type))
            parts.append(pa.nulls(1, field.type))
    return pa.concat_arrays(parts)


def _fault(path: str, value: Any, kind: pa.DataType) -> str | None:
    """Return the reason why a value would have to be cast; None if Arrow may take it."""
    types = pa.types
    faults: Iterable[str | None] = ()
    if value is None:
        return None
    if types.is_struct(kind) and isinstance(value, dict):
        faults = (_fault(f"{path}.{field.name}", value.get(field.name), field.type) for field in kind)
    elif types.is_map(kind) and isinstance(value, dict):
        faults = (_fault(f"{path}[{key!r}]", item, kind.item_type) for key, item in value.items())
    elif types.is_list(kind) or types.is_large_list(kind):
        if isinstance(value, list):
            faults = (_fault(f"{path}[{number}]", item, kind.value_type) for number, item in enumerate(value))
        else:
            return _text(path, value, kind)
    elif not _fits(value, kind):
        return _text(path, value, kind)
    return next((fault for fault in faults if fault is not None), None)


def _text(path: str, value: Any, kind: pa.DataType) -> str:
    return f"field {path!r} must be {kind}, got {reprlib.repr(value)}"


def _fits(value: Any, kind: pa.DataType) -> bool:
    exact = _exact(kind)
    if exact:
        is_exact_float = float in exact and type(value) is int and abs(value) <= _MOST_EXACT
        return type(value) in exact or is_exact_float
    return not pa.types.is_nested(kind)
