"""Parses the requests of clients and bounds their names and lists before any other code sees them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError, Message

from liftenvelope.rpc.status import RpcError, StatusCode

__all__ = ["read_request"]

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.descriptor import Descriptor

    from liftenvelope.gateway.limits import Limits

_M = TypeVar("_M", bound=Message)


def read_request(kind: type[_M], raw: bytes, limits: Limits) -> _M:
    """Parse a request and check the lengths of its names and lists.

    Args:
        kind: Protobuf class of the request.
        raw: The serialized request.
        limits: Limits on names and lists.

    Returns:
        The request.

    Raises:
        RpcError: INTERNAL: the request is malformed. INVALID_ARGUMENT: a name has more than
            ``max_name_chars`` characters, or a list has more than ``max_list_length`` names.
    """
    try:
        request = kind.FromString(raw)
    except DecodeError as exc:
        raise RpcError(StatusCode.INTERNAL, f"the request can't be read: {exc}") from exc
    for field in _text_fields(kind.DESCRIPTOR):
        value: str | Sequence[str] = getattr(request, field)
        if isinstance(value, str):
            _check(field, (value,), limits.max_name_chars)
            continue
        if len(value) > limits.max_list_length:
            text = f"{field} must have at most {limits.max_list_length} names, got {len(value)}"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)
        _check(field, value, limits.max_name_chars)
    return request


@cache
def _text_fields(kind: Descriptor) -> tuple[str, ...]:
    """Return the names of the string fields of a message, both single and repeated."""
    return tuple(field.name for field in kind.fields if field.type == field.TYPE_STRING)


def _check(field: str, names: Iterable[str], most: int) -> None:
    for name in names:
        if len(name) > most:
            text = f"{field} must have at most {most} characters, got {len(name)}"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)
