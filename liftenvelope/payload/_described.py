"""Formats described by plain values, as files of settings, Spark's options and the command have them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import as_choice
from liftenvelope.errors import UsageError
from liftenvelope.payload._arrow import ArrowBatches
from liftenvelope.payload._avro import Avro
from liftenvelope.payload._formats import InferredFormat, PayloadFormat
from liftenvelope.payload._json import Json
from liftenvelope.payload._msgpack import Msgpack
from liftenvelope.payload._protobuf import Protobuf

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.payload._formats import pa

__all__ = ["described_format", "described_text"]

_KINDS: Final[Mapping[str, type[PayloadFormat]]] = {
    kind.name: kind for kind in (Json, Msgpack, ArrowBatches, Avro, Protobuf)
}
_TIMESTAMP: Final = re.compile(r"timestamp\[(s|ms|us|ns), *(?:tz=)?([A-Za-z0-9_/+:-]{1,64})\]")
_DECIMAL: Final = re.compile(r"decimal128\((\d{1,2}), *(\d{1,2})\)")
#: Levels of lists and structs in a schema.
_DEPTH: Final = 16


def described_format(description: Mapping[str, Any]) -> PayloadFormat:
    """Return the format of a mapping with the key ``format`` and the options of the format.

    A ``schema`` of JSON, msgpack or Arrow is a mapping of names to types: a name of an Arrow type, a list
    with one type, or a mapping for a struct. For protobuf, ``file`` is the path of a descriptor set, and
    ``message`` the full name of the message.

    Raises:
        UsageError: A key or a value is invalid.

    Example:
        >>> described_format({"format": "json", "schema": {"id": "int64", "tags": ["string"]}}).schema
        id: int64
        tags: list<item: string>
          child 0, item: string
    """
    options = dict(description)
    name = options.pop("format", None)
    as_choice("payload: format", name, tuple(_KINDS))
    kind = _KINDS[str(name)]
    known = {one.name for one in fields(kind)} | ({"file"} if kind is Protobuf else set())
    for key in options:
        if key not in known:
            listed = ", ".join(sorted(known))
            raise UsageError(f"payload: options of {name} must be some of {listed}, got {key!r}")
    if issubclass(kind, InferredFormat) and options.get("schema") is not None:
        options["schema"] = _schema(options["schema"])
    if kind is Protobuf:
        options["message"] = (options.pop("file", None), options.get("message"))
    make: Callable[..., PayloadFormat] = kind
    try:
        return make(**options)
    except TypeError as exc:  # a required option is missing, or has another type
        raise UsageError(f"payload: options of {name} must be complete and valid: {exc}") from exc


def described_text(text: str) -> str | dict[str, Any]:
    """Return a value for ``payload=`` from text: the name of a format, or a JSON object.

    Raises:
        UsageError: The text begins like an object, and is none.
    """
    if not text.lstrip().startswith("{"):
        return text
    try:
        found: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"payload must be a name or a JSON object, got {text!r:.100}: {exc}") from exc
    return found


def _schema(given: object) -> pa.Schema:
    if not isinstance(given, Mapping) or not given:
        raise UsageError(f"payload: schema must be a mapping of names to types, got {given!r:.100}")
    return pa.schema([pa.field(str(name), _type(name, kind, _DEPTH)) for name, kind in given.items()])


def _type(name: str, given: object, depth: int) -> pa.DataType:
    if isinstance(given, Mapping) and given and depth:
        return pa.struct([pa.field(str(key), _type(key, kind, depth - 1)) for key, kind in given.items()])
    if isinstance(given, list) and len(given) == 1 and depth:
        return pa.list_(_type(name, given[0], depth - 1))
    if isinstance(given, str):
        if found := _TIMESTAMP.fullmatch(given):
            return pa.timestamp(found[1], found[2])
        try:
            if found := _DECIMAL.fullmatch(given):
                return pa.decimal128(int(found[1]), int(found[2]))
            return pa.type_for_alias(given)
        except ValueError:
            pass
    text = "a type such as int64, float64, string, bool or timestamp[us, UTC], a list with one, or a mapping"
    raise UsageError(f"payload: schema: {name!r} must be {text}, got {given!r:.100}")
