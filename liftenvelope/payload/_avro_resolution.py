"""Logical types in the resolution of Avro records: those of the reader count, as Avro specifies.

fastavro converts values by the logical types of the writer. So the schema of a writer gets the logical types
that the reader has at the same places, and loses those that the reader does not have. Where both have one,
that of the writer stays: its values are converted to the type of the column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["read_as"]

#: Base types of a writer whose bytes are also those of a base type of the reader.
_SAME_BYTES: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("int",),
    "long": ("int", "long"),
    "bytes": ("bytes", "string"),
}
#: Marks of fastavro in a parsed schema; the second one has the definitions of named types.
_PARSED, _NAMED = "__fastavro_parsed__", "__named_schemas"


def read_as(writer: Any, reader: Any) -> Any:
    """Return the schema of a writer with the logical types of a reader, to be parsed again.

    Args:
        writer: Schema that fastavro has parsed.
        reader: The same.
    """
    return _merged(writer, reader, reader[_NAMED])


def _merged(writer: Any, reader: Any, named: Mapping[str, Any]) -> Any:
    reader = _only_type(reader)
    reader = named.get(reader, reader) if isinstance(reader, str) else reader
    if isinstance(writer, list):
        return [_merged(branch, reader, named) for branch in writer]
    kind = writer if isinstance(writer, str) else writer["type"]
    wanted = reader if isinstance(reader, str | list) else reader["type"]
    own: dict[str, Any] = {"type": kind} if isinstance(writer, str) else dict(writer)
    own.pop(_PARSED, None)
    own.pop(_NAMED, None)
    if kind == wanted == "record":
        return {**own, "fields": [_field(field, reader["fields"], named) for field in own["fields"]]}
    if kind == wanted and kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        return {**own, inner: _merged(own[inner], reader[inner], named)}
    return _annotated(writer, own, reader if isinstance(reader, dict) else {"type": wanted})


def _only_type(schema: Any) -> Any:
    """Return the type of a reader's union beside null."""
    return next((one for one in schema if one != "null"), "null") if isinstance(schema, list) else schema


def _field(field: dict[str, Any], fields: list[dict[str, Any]], named: Mapping[str, Any]) -> dict[str, Any]:
    for one in fields:
        if field["name"] in (one["name"], *one.get("aliases", ())):
            return {**field, "type": _merged(field["type"], one["type"], named)}
    return field


def _annotated(writer: Any, own: dict[str, Any], reader: dict[str, Any]) -> Any:
    has, wants = "logicalType" in own, "logicalType" in reader
    if has and not wants:
        return {key: value for key, value in own.items() if key != "logicalType"}
    if has or not wants:
        return writer
    kind = reader["type"]
    if kind == "fixed" and own["type"] == "fixed":
        return {**reader, **own}
    return dict(reader) if own["type"] in _SAME_BYTES.get(kind, ()) else writer
