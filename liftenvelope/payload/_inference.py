"""Infer a schema from the objects of a sample of messages."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import MAX_INT64
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.payload._formats import pa

__all__ = ["infer_schema"]

#: Levels of lists and structs in an inferred type. A deeper field is left out.
_DEPTH: Final = 16
#: Fields of a schema or a struct to infer: a sample of hostile messages may have any number.
_MOST_FIELDS: Final = 1_000
_KINDS: Final[Mapping[type, Any]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us", "UTC"),
}


def infer_schema(rows: Iterable[Mapping[Any, Any]]) -> pa.Schema:
    """Return the schema of objects, with the fields in the order of their first appearance.

    Integers become int64, or float64 if the field also has floats. A field without a value other than null,
    an empty list or an empty object is left out.

    Raises:
        UsageError: Two messages have different types in a field, or there are too many fields.
    """
    return pa.schema(_fields("", list(rows), _DEPTH))


def _fields(path: str, rows: list[Mapping[Any, Any]], depth: int) -> list[pa.Field]:
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(name, str) and value is not None:
                values.setdefault(name, []).append(value)
    if len(values) > _MOST_FIELDS:
        text = f"schema must be given: the first messages have {len(values)} fields"
        raise UsageError(f"{text}{f' in {path!r}' if path else ''}, and at most {_MOST_FIELDS} are inferred")
    kinds = {name: _kind(f"{path}.{name}".lstrip("."), found, depth) for name, found in values.items()}
    return [pa.field(name, kind) for name, kind in kinds.items() if kind is not None]


def _kind(path: str, values: list[Any], depth: int) -> pa.DataType | None:
    """Return the type of values other than null; None if they do not have one."""
    types = {type(value) for value in values}
    if types == {int, float}:
        return pa.float64()
    if len(types) > 1:
        names = " and ".join(sorted(kind.__name__ for kind in types))
        raise UsageError(f"schema must be given: the first messages have {names} in field {path!r}")
    (kind,) = types or {type(None)}
    if not depth:
        return None
    if kind is dict:
        fields = _fields(path, values, depth - 1)
        return pa.struct(fields) if fields else None
    if kind is list:
        items = [item for value in values for item in value if item is not None]
        inner = _kind(f"{path}[]", items, depth - 1)
        return None if inner is None else pa.list_(inner)
    if kind is int and not all(-MAX_INT64 - 1 <= value <= MAX_INT64 for value in values):
        raise UsageError(f"schema must be given: field {path!r} has integers beyond int64")
    found: pa.DataType | None = _KINDS.get(kind)
    return found
