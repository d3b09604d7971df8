"""Infer a schema from the objects of a sample of messages."""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import MAX_INT64, is_encodable

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.payload._formats import pa

__all__ = ["infer_schema"]

#: Levels of lists and structs in an inferred type. A deeper field is left out.
_DEPTH: Final = 16
#: Fields of a schema, those of its structs included: hostile messages may have any number.
_MOST_FIELDS: Final = 1_000
_KINDS: Final[Mapping[type, Any]] = {
    bool: pa.bool_(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us", "UTC"),
}


@dataclass(eq=False, slots=True)
class _Shape:
    """Type of a field before the most frequent fields are chosen.

    Attributes:
        kind: Type of a plain field, or the fields of a struct.
        lists: Number of lists around the type.
        weight: Number of values, and at most that of the field around it: one message with a long list of
            objects must not push out the fields of many messages.
    """

    kind: pa.DataType | dict[str, _Shape]
    lists: int
    weight: int


def infer_schema(rows: Iterable[Mapping[Any, Any]]) -> pa.Schema:
    """Return the schema of objects, with the fields in the order of their first appearance.

    If the values of a field have several types, the type of the most values wins, since a few bad messages
    must not stop a read. Integers become int64, or float64 if the field also has floats. A field without a
    value other than null, an empty list or an empty object is left out, and so are names with a lone
    surrogate and all but the 1,000 most frequent fields, those of structs included.
    """
    given = list(rows)
    shapes = _shapes(given, _DEPTH, len(given))
    chosen = heapq.nlargest(_MOST_FIELDS, _plain(shapes), key=lambda shape: shape.weight)
    return pa.schema(_fields(shapes, set(map(id, chosen))))


def _shapes(rows: list[Mapping[Any, Any]], depth: int, weight: int) -> dict[str, _Shape]:
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(name, str):
                values.setdefault(name, []).append(value)
    shapes = {
        name: _shape(found, depth, min(weight, len(found)))
        for name, found in values.items()
        if is_encodable(name)
    }
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _shape(values: Iterable[Any], depth: int, weight: int) -> _Shape | None:
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
        return _Shape(_shapes(found, depth - 1, weight), 0, weight)
    if kind is list:
        inner = _shape((item for value in found for item in value), depth - 1, weight)
        return None if inner is None else _Shape(inner.kind, inner.lists + 1, weight)
    is_whole = kind is float and all(type(value) is int for value in found)
    known: pa.DataType | None = pa.int64() if is_whole else _KINDS.get(kind)
    return None if known is None else _Shape(known, 0, weight)


def _plain(shapes: Mapping[str, _Shape]) -> Iterator[_Shape]:
    """Yield the shapes of all plain fields, those of structs included."""
    for shape in shapes.values():
        if isinstance(shape.kind, dict):
            yield from _plain(shape.kind)
        else:
            yield shape


def _fields(shapes: Mapping[str, _Shape], chosen: set[int]) -> list[pa.Field]:
    kinds = {name: _type(shape, chosen) for name, shape in shapes.items()}
    return [pa.field(name, kind) for name, kind in kinds.items() if kind is not None]


def _type(shape: _Shape, chosen: set[int]) -> pa.DataType | None:
    """Return the type of a field; None if neither the field nor one inside is chosen."""
    if isinstance(shape.kind, dict):
        fields = _fields(shape.kind, chosen)
        kind = pa.struct(fields) if fields else None
    else:
        kind = shape.kind if id(shape) in chosen else None
    for _ in range(shape.lists if kind is not None else 0):
        kind = pa.list_(kind)
    return kind


def _is_too_large(value: Any) -> bool:
    return type(value) is int and not -MAX_INT64 - 1 <= value <= MAX_INT64
