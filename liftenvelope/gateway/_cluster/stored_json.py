"""Reads the JSON that gateways store in their buckets and send to each other.

Any client with the permission can write there. JSON of another program must be refused as a whole: a field
of a wrong type, or a number that protobuf cannot carry, would fail later, for all clients.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from liftenvelope._checks import MAX_INT64, is_encodable
from liftenvelope.errors import InternalError, ServerProtocolError
from liftenvelope.jetstream.api import read_as

__all__ = ["check_fields", "read_stored"]

_T = TypeVar("_T")
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "bool": (bool,),
    "dict[str, int]": (dict,),
}


def read_stored(read: Callable[[dict[str, Any]], _T], data: bytes | str, what: str) -> _T:
    """Return what ``read`` makes of a JSON object.

    Args:
        read: Makes a value of the object. A built-in exception means that the object is not one of ours.
        data: JSON.
        what: Description of the data; starts the error message.

    Raises:
        InternalError: The data is no such JSON, so another program has written it.
    """
    try:
        return read_as(lambda text: read(json.loads(text)), data, what)
    except ServerProtocolError as exc:
        raise InternalError(str(exc)) from exc


def check_fields(kind: type, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the values for the fields of a dataclass by their annotations, and return the values.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A number does not fit into 64 bits, or a text contains a lone surrogate.
    """
    for name, value in values.items():
        expected = kind.__annotations__.get(name, "")
        types = _TYPES.get(expected)
        if types is not None and type(value) not in types:
            raise TypeError(f"{name} must be {expected}, got {value!r:.40}")
        for item in (value, *value.values()) if isinstance(value, dict) else (value,):
            _check_item(name, item)
    return values


def _check_item(name: str, value: object) -> None:
    if isinstance(value, int) and not -MAX_INT64 - 1 <= value <= MAX_INT64:
        raise ValueError(f"{name} must fit into 64 bits, got {value!r:.40}")
    if isinstance(value, str) and not is_encodable(value):
        raise ValueError(f"{name} must not contain a lone surrogate, got {value!r:.40}")
