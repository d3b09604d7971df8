"""Parses the requests of clients and bounds their names and lists before any other code sees them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError, Message

from liftenvelope.rpc.status import RpcError, StatusCode

__all__ = ["read_request", "without_content"]

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.descriptor import Descriptor

    from liftenvelope._pb import api_pb2
    from liftenvelope.gateway.limits import Limits

_M = TypeVar("_M", bound=Message)
_P = TypeVar("_P", "api_pb2.PublishRequest", "api_pb2.PublishToSubjectRequest")


def read_request(kind: type[_M], raw: bytes, limits: Limits) -> _M:
    """Parse a request, check the lengths of its names and lists, and drop its unknown fields.

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
    # A subscription keeps its request for as long as it is open.
    request.DiscardUnknownFields()
    _check_names(request, limits)
    return request


def without_content(request: _P) -> _P:
    """Return a copy of a publish request without key, value and headers, which its answer does not need.

    Clearing the fields alone would free nothing: protobuf frees the memory of a message as a whole.
    """
    for name in ("key", "value", "headers"):
        request.ClearField(name)
    copy = type(request)()
    copy.CopyFrom(request)
    return copy


def _check_names(message: Message, limits: Limits) -> None:
    for field in _text_fields(message.DESCRIPTOR):
        value: str | Sequence[str] = getattr(message, field)
        if isinstance(value, str):
            _check(field, (value,), limits.max_name_chars)
            continue
        if len(value) > limits.max_list_length:
            text = f"{field} must have at most {limits.max_list_length} names, got {len(value)}"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)
        _check(field, value, limits.max_name_chars)
    for field in _messages_with_text(message.DESCRIPTOR):
        _check_names(getattr(message, field), limits)


@cache
def _messages_with_text(kind: Descriptor) -> tuple[str, ...]:
    """Return the names of the fields that hold one message with string fields."""
    found = [(field.name, field.message_type) for field in kind.fields]
    return tuple(
        name
        for name, part in found
        if part is not None and not part.GetOptions().map_entry and _text_fields(part)
    )


@cache
def _text_fields(kind: Descriptor) -> tuple[str, ...]:
    """Return the names of the string fields of a message, both single and repeated."""
    return tuple(field.name for field in kind.fields if field.type == field.TYPE_STRING)


def _check(field: str, names: Iterable[str], most: int) -> None:
    for name in names:
        if len(name) > most:
            text = f"{field} must have at most {most} characters, got {len(name)}"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)
