"""Arrow types of an Avro schema, and a check that a message takes no more work than its bytes allow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.payload._formats import pa

__all__ = ["arrow_schema", "check_bounded", "understood"]

#: Levels of records, arrays, maps and unions.
_DEPTH: Final = 32
#: Most digits of the two types of decimals.
_DIGITS, _MOST_DIGITS = 38, 76
_PLAIN: Final[Mapping[str, Any]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
#: By base type and logical type.
_LOGICAL: Final[Mapping[tuple[str, str], Any]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


class _Names:
    """Named types of a schema, and those that enclose the current one."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.open: list[str] = []

    def resolve(self, schema: Any) -> Any:
        """Return the definition of a named type, or the schema itself."""
        if isinstance(schema, str) and schema not in _PLAIN:
            if schema in self.open or schema not in self.known:
                raise UsageError(f"schema must not contain itself, got {schema!r} inside {schema!r}")
            return self.known[schema]
        if isinstance(schema, dict) and "name" in schema:
            self.known[schema["name"]] = schema
        return schema


def arrow_schema(schema: Any) -> pa.Schema:
    """Return the columns of a record that fastavro has parsed.

    Raises:
        UsageError: The schema is no record, contains itself, or has a type without an Arrow type.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise UsageError("schema must be an Avro record")
    return pa.schema(_fields(schema, _Names(), 0))


def _fields(schema: Mapping[str, Any], names: _Names, depth: int) -> list[pa.Field]:
    names.resolve(schema)
    names.open.append(schema["name"])
    found = [pa.field(field["name"], _type(field["type"], names, depth + 1)) for field in schema["fields"]]
    names.open.pop()
    return found


def _type(schema: Any, names: _Names, depth: int) -> pa.DataType:
    schema = names.resolve(schema)
    if depth > _DEPTH:
        raise UsageError(f"schema must have at most {_DEPTH} levels")
    if isinstance(schema, list):
        return _union(schema, names, depth)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return pa.struct(_fields(schema, names, depth))
    if kind == "array":
        return pa.list_(_type(schema["items"], names, depth + 1))
    if kind == "map":
        return pa.map_(pa.string(), _type(schema["values"], names, depth + 1))
    return _PLAIN[kind] if isinstance(schema, str) else _annotated(kind, schema)


def _annotated(kind: str, schema: Mapping[str, Any]) -> pa.DataType:
    logical = schema.get("logicalType")
    if logical == "decimal":
        return _decimal(schema["precision"], schema.get("scale", 0))
    if logical is None:
        return pa.binary(schema["size"]) if kind == "fixed" else _PLAIN[kind]
    return _LOGICAL[kind, logical]


def _decimal(precision: int, scale: int) -> pa.DataType:
    if precision > _MOST_DIGITS:
        raise UsageError(
            f"schema: the precision of a decimal must be at most {_MOST_DIGITS}, got {precision}"
        )
    return pa.decimal128(precision, scale) if precision <= _DIGITS else pa.decimal256(precision, scale)


def _union(schema: list[Any], names: _Names, depth: int) -> pa.DataType:
    others = [branch for branch in schema if branch != "null"]
    if len(others) != 1:
        raise UsageError(f"schema: a union must be of null and one type, got {len(others)} types")
    return _type(others[0], names, depth + 1)


def understood(schema: Any) -> Any:
    """Return a schema without the logical types that are unknown or invalid: Avro reads their base types."""
    if isinstance(schema, list):
        return [understood(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    ignored = "logicalType" in schema and not _is_known(schema)
    return {
        key: understood(value) if key in ("type", "fields", "items", "values") else value
        for key, value in schema.items()
        if not (ignored and key == "logicalType")
    }


def _is_known(schema: Mapping[str, Any]) -> bool:
    kind, logical = schema.get("type"), schema["logicalType"]
    if not isinstance(kind, str) or not isinstance(logical, str):
        return False
    if logical != "decimal":
        return (kind, logical) in _LOGICAL
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision > 0):
        return False
    return kind == "bytes" or (kind == "fixed" and precision <= _digits(schema.get("size")))


def _digits(size: Any) -> int:
    """Return the most digits of a decimal of a number of bytes, with its sign."""
    return int((8 * size - 1) * math.log10(2)) if isinstance(size, int) and size > 0 else 0


def check_bounded(schema: Any) -> None:
    """Refuse a schema with items of no bytes: an array of 2**60 nulls takes ten bytes in a message.

    Raises:
        UsageError: The items of an array take no bytes, or a type contains itself.
    """
    _least(schema, _Names(), 0)


def _least(schema: Any, names: _Names, depth: int) -> int:
    """Return the least number of bytes that a value of a schema takes."""
    schema = names.resolve(schema)
    if depth > _DEPTH:
        raise UsageError(f"schema must have at most {_DEPTH} levels")
    if isinstance(schema, list):
        for branch in schema:
            _least(branch, names, depth + 1)
        return 1
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        names.open.append(schema["name"])
        size = sum(_least(field["type"], names, depth + 1) for field in schema["fields"])
        names.open.pop()
        return size
    if kind in ("array", "map"):
        size = _least(schema["items" if kind == "array" else "values"], names, depth + 1)
        if kind == "array" and not size:
            raise UsageError("schema: the items of an array must take at least one byte each")
        return 1
    if kind == "fixed":
        return int(schema["size"])
    return {"null": 0, "float": 4, "double": 8}.get(kind, 1)
