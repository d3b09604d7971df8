"""Logical types in the resolution of Avro records: those of the reader count, as Avro specifies.

fastavro converts values by the logical types of the writer. So the schema of a writer gets the logical types
that the reader has at the same places, and loses those that the reader does not have. Where both have one of
the same kind, that of the writer stays: its values are converted to the type of the column.

A writer defines a named type at its first place and only names it at others. The reader may have dropped the
first place, so a definition gets the logical types of the first place that the reader still has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["read_as"]

#: Base types of a writer whose bytes are also those of a base type of the reader.
_SAME_BYTES: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("int",),
    "long": ("int", "long"),
    "bytes": ("bytes", "string"),
}
#: Types that have a name.
_NAMED_KINDS: Final = ("record", "enum", "fixed")
#: Marks of fastavro in a parsed schema; the second one has the definitions of named types.
_PARSED, _NAMED = "__fastavro_parsed", "__named_schemas"


def read_as(writer: Any, reader: Any) -> Any:
    """Return the schema of a writer with the logical types of a reader, to be parsed again.

    Args:
        writer: Schema that fastavro has parsed.
        reader: The same.
    """
    pairs = _Pairs(writer[_NAMED], reader[_NAMED])
    pairs.note(writer, reader)
    return pairs.merged(writer, reader)


class _Pairs:
    """Named types of a writer, each with the type of the reader at its first place that the reader has."""

    def __init__(self, writers: Mapping[str, Any], readers: Mapping[str, Any]) -> None:
        self._writers = writers
        self._readers = readers
        self._found: dict[str, Any] = {}

    def note(self, writer: Any, reader: Any) -> None:
        """Note the pairs inside two schemas. Each named type is entered once, so recursive ones end."""
        writer, reader = _defined(writer, self._writers), self._of_reader(reader)
        if isinstance(writer, dict) and writer["type"] in _NAMED_KINDS:
            if writer["name"] in self._found or not _match(writer, reader):
                return
            self._found[writer["name"]] = reader
        for inner, wanted in _inside(writer, reader):
            if wanted is not None:
                self.note(inner, wanted)

    def merged(self, writer: Any, reader: Any) -> Any:
        """Return a schema of the writer as a type of the reader, which is None where the reader has none."""
        if isinstance(writer, dict) and writer["type"] in _NAMED_KINDS:
            reader = self._found.get(writer["name"])
        reader = self._of_reader(reader)
        parts = [self.merged(inner, wanted) for inner, wanted in _inside(writer, reader)]
        if isinstance(writer, list):
            return parts
        own = {"type": writer} if isinstance(writer, str) else dict(writer)
        own.pop(_PARSED, None)
        own.pop(_NAMED, None)
        if own["type"] == "record":
            fields = zip(own["fields"], parts, strict=True)
            return {**own, "fields": [{**field, "type": part} for field, part in fields]}
        if parts:
            return {**own, "items" if own["type"] == "array" else "values": parts[0]}
        if reader is None or isinstance(reader, list):
            return writer
        return _annotated(writer, own, reader if isinstance(reader, dict) else {"type": reader})

    def _of_reader(self, reader: Any) -> Any:
        if isinstance(reader, list):  # null and one type
            reader = next((one for one in reader if one != "null"), "null")
        return _defined(reader, self._readers)


def _defined(schema: Any, named: Mapping[str, Any]) -> Any:
    return named.get(schema, schema) if isinstance(schema, str) else schema


def _match(writer: dict[str, Any], reader: Any) -> bool:
    """Return True if two named types match: their names without namespaces are equal, or one is an alias."""
    if not isinstance(reader, dict) or writer["type"] != reader["type"]:
        return False
    name, short = writer["name"], writer["name"].rpartition(".")[2]
    aliases = reader.get("aliases", ())
    return short == reader["name"].rpartition(".")[2] or name in aliases or short in aliases


def _inside(writer: Any, reader: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the types inside a type of the writer, each with that of the reader; None if it has none."""
    if isinstance(writer, list):
        for branch in writer:
            yield branch, reader
    elif isinstance(writer, dict):
        kind, other = writer["type"], reader if isinstance(reader, dict) else {}
        if kind == "record":
            fields = other.get("fields", ())
            for field in writer["fields"]:
                yield field["type"], _of_field(field["name"], fields)
        elif kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            yield writer[inner], other.get(inner)


def _of_field(name: str, fields: list[dict[str, Any]]) -> Any:
    """Return the type of the reader's field of a name or alias; None for none."""
    return next((one["type"] for one in fields if name in (one["name"], *one.get("aliases", ()))), None)


def _annotated(writer: Any, own: dict[str, Any], reader: dict[str, Any]) -> Any:
    has, wants = own.get("logicalType"), reader.get("logicalType")
    if has == wants or (has and wants and _family(has) == _family(wants)):
        return writer
    base = {key: value for key, value in own.items() if key != "logicalType"} if has else writer
    if not wants:
        return base
    kind = reader["type"]
    if kind == "fixed" and own["type"] == "fixed":
        return {**reader, **own}
    return dict(reader) if own["type"] in _SAME_BYTES.get(kind, ()) else base


def _family(logical: str) -> str:
    """Return the kind of a logical type without its unit and zone."""
    return logical.removeprefix("local-").partition("-")[0]
