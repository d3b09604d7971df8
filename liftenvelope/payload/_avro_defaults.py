"""Defaults of Avro fields as values.

A schema has its defaults in JSON: bytes as text of the same code points, decimals as bytes, times as numbers.
fastavro puts them into records and messages as they stand there.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

from liftenvelope._checks import require
from liftenvelope.errors import UsageError

__all__ = ["with_values"]

#: Definitions of named types in a schema that fastavro has parsed.
_NAMED: Final = "__named_schemas"
#: Errors for a default that does not fit.
_REFUSED: Final = (ValueError, TypeError, AttributeError, ArithmeticError)


def with_values(schema: Any) -> Any:
    """Return a schema whose defaults are the values that a reader of them would get.

    Args:
        schema: Record that fastavro has parsed.

    Raises:
        UsageError: A default does not fit its type.
    """
    named = schema[_NAMED]
    try:
        definitions = {name: _converted(one, named) for name, one in named.items()}
        return {**_converted(schema, named), _NAMED: definitions}
    except _REFUSED as exc:
        raise UsageError(f"schema must have defaults of the types of their fields: {exc}") from exc


def _converted(schema: Any, named: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_converted(one, named) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _converted(schema[key], named) for key in ("items", "values") if key in schema}
    if "fields" in schema:
        inner["fields"] = [_field(field, named) for field in schema["fields"]]
    return {**schema, **inner}


def _field(field: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    found = {**field, "type": _converted(field["type"], named)}
    if "default" in field:
        found["default"] = _value(field["type"], field["default"], named)
    return found


def _value(schema: Any, given: Any, named: Mapping[str, Any]) -> Any:
    """Return the value of a type that is given in JSON."""
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):  # null and one type
        schema = next((one for one in schema if one != "null"), "null")
        return None if given is None else _value(schema, given, named)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        fields = ((field, given.get(field["name"], field.get("default"))) for field in schema["fields"])
        return {field["name"]: _value(field["type"], value, named) for field, value in fields}
    if kind == "array":
        return [_value(schema["items"], item, named) for item in given]
    if kind == "map":
        return {key: _value(schema["values"], item, named) for key, item in given.items()}
    plain = given.encode("latin-1") if kind in ("bytes", "fixed") and isinstance(given, str) else given
    return _through_bytes(schema, plain)


def _through_bytes(schema: Any, plain: Any) -> Any:
    """Return a value as it comes back from a message: by its logical type, and a number as a float."""
    fastavro: Any = require("fastavro", "payload")
    file = io.BytesIO()
    fastavro.schemaless_writer(file, schema, plain)
    file.seek(0)
    return fastavro.schemaless_reader(file, schema)
