"""Arrow types that a format can carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.payload._formats import pa

__all__ = [
    "JSON_TYPES",
    "OBJECT_TYPES",
    "TypeSet",
    "as_schema",
    "check_fields",
    "check_names",
    "is_text",
    "plain_schema",
]


@dataclass(frozen=True, slots=True)
class TypeSet:
    """Arrow types that a format can carry, alone and inside lists and structs.

    Attributes:
        owner: Name of the format, for error texts.
        names: Names of the types, for error texts.
        holds: Returns True for a type that is neither a list nor a struct.
    """

    owner: str
    names: str
    holds: Callable[[Any], bool]


def is_text(kind: pa.DataType) -> bool:
    """Return True for types of text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_json(kind: pa.DataType) -> bool:
    types = pa.types
    plain = types.is_boolean(kind) or types.is_integer(kind) or types.is_float64(kind) or is_text(kind)
    return bool(plain or types.is_timestamp(kind) or types.is_decimal128(kind))


def _is_object(kind: pa.DataType) -> bool:
    types = pa.types
    plain = types.is_boolean(kind) or types.is_integer(kind) or types.is_float64(kind) or is_text(kind)
    return bool(plain or _is_bytes(kind) or (types.is_timestamp(kind) and kind.unit == "us" and kind.tz))


JSON_TYPES: Final = TypeSet("JSON", "bool, integers, float64, string, timestamp and decimal128", _is_json)
OBJECT_TYPES: Final = TypeSet(
    "msgpack", "bool, integers, float64, string, binary and timestamp[us] with a zone", _is_object
)


def as_schema(name: str, schema: Any, types: TypeSet) -> pa.Schema:
    """Check that a value is a schema of types that a format can carry; return it.

    Raises:
        UsageError: A type or a repeated name cannot be carried.
        UsageTypeError: The value is no schema.
    """
    if not isinstance(schema, pa.Schema):
        raise UsageTypeError(f"{name} must be a pyarrow.Schema or None, got {type(schema).__name__}")
    check_names(name, schema)
    for field in schema:
        for kind in _leaves(field.type):
            if not types.holds(kind):
                text = (
                    f"{name}: field {field.name!r} must be of types that {types.owner} carries ({types.names}"
                )
                remedy = "cast the column, or leave it out" if name == "data" else "choose another type"
                raise UsageError(f"{text}, lists and structs of them), got {kind}: {remedy}")
    return schema


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without dictionaries and views, to which its columns can be cast.

    polars exports both, and pandas exports categories as dictionaries.
    """
    return pa.schema([field.with_type(_plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        make = pa.list_ if types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_plain(kind.value_type)))
    if types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if types.is_binary_view(kind) else kind


def check_names(name: str, schema: pa.Schema) -> None:
    """Raise UsageError if a schema has two fields of one name, at the top level."""
    for field, count in Counter(schema.names).items():
        if count > 1:
            raise UsageError(f"{name} must have each field once, got {field!r} twice")


def check_fields(name: str, given: pa.DataType, known: pa.DataType) -> None:
    """Check that a type has every field of structs in another one: a cast drops the others in silence.

    Args:
        name: Name of the column, for errors.
        given: Type of the column.
        known: Type that the column will be cast to.

    Raises:
        UsageError: A field is missing.
    """
    if pa.types.is_dictionary(given):
        check_fields(name, given.value_type, known)
    elif pa.types.is_struct(given) and pa.types.is_struct(known):
        for field in given:
            at = known.get_field_index(field.name)
            if at < 0:
                text = f"data: column {name!r} must have the fields of the schema, got {field.name!r}"
                raise UsageError(f"{text}: leave it out")
            check_fields(f"{name}.{field.name}", field.type, known.field(at).type)
    elif pa.types.is_map(given) and pa.types.is_map(known):
        check_fields(name, given.item_type, known.item_type)
    elif _has_items(given) and _has_items(known):
        check_fields(name, given.value_type, known.value_type)


def _has_items(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(kind.value_type)
    elif pa.types.is_struct(kind) and kind.num_fields:
        for field in kind:
            yield from _leaves(field.type)
    else:
        yield kind
