"""Infer a schema from the objects of a sample of messages."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import MAX_INT64

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.payload._formats import pa

__all__ = ["infer_schema"]

#: Levels of lists and structs in an inferred type. A deeper field is left out.
_DEPTH: Final = 16
#: Fields of a schema or a struct: hostile messages may have any number.
_MOST_FIELDS: Final = 1_000
_KINDS: Final[Mapping[type, Any]] = {
    bool: pa.bool_(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us", "UTC"),
}


def infer_schema(rows: Iterable[Mapping[Any, Any]]) -> pa.Schema:
    """Return the schema of objects, with the fields in the order of their first appearance.

    If the values of a field have several types, the type of the most values wins, since a few bad messages
    must not stop a read. Integers become int64, or float64 if the field also has floats. A field without a
    value other than null, an empty list or an empty object is left out, and so are all but the 1,000 most
    frequent fields.
    """
    return pa.schema(_fields(list(rows), _DEPTH))


def _fields(rows: list[Mapping[Any, Any]], depth: int) -> list[pa.Field]:
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(name, str):
                values.setdefault(name, []).append(value)
    frequent = set(sorted(values, key=lambda name: -len(values[name]))[:_MOST_FIELDS])
    kinds = {name: _kind(found, depth) for name, found in values.items() if name in frequent}
    return [pa.field(name, kind) for name, kind in kinds.items() if kind is not None]


def _kind(values: Iterable[Any], depth: int) -> pa.DataType | None:
    """Return the type of most values; None if they do not have one."""
    groups: dict[type, list[Any]] = {}
    for value in values:
        kind = float if type(value) is int else type(value)
        if value is not None and not _is_too_large(value):
            groups.setdefault(kind, []).append(value)
    if not groups or not depth:
        return None
    kind, found = max(groups.items(), key=lambda item: len(item[1]))
    if kind is dict:
        fields = _fields(found, depth - 1)
        return pa.struct(fields) if fields else None
    if kind is list:
        inner = _kind((item for value in found for item in value), depth - 1)
        return None if inner is None else pa.list_(inner)
    if kind is float and all(type(value) is int for value in found):
        return pa.int64()
    known: pa.DataType | None = _KINDS.get(kind)
    return known


def _is_too_large(value: Any) -> bool:
    return type(value) is int and not -MAX_INT64 - 1 <= value <= MAX_INT64
