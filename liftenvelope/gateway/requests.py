"""Reads the requests of clients: protobuf messages whose names are bounded before anything looks at them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from liftenvelope.rpc.status import RpcError, StatusCode

__all__ = ["MOST_NAMES", "NAME_SIZE", "read_request"]

#: Characters of a name, subject, id or ack inbox. NATS takes none longer than its line of 4,096 bytes.
NAME_SIZE: Final = 3_500
#: Names in one list of a request, such as the streams of FetchMetadata.
MOST_NAMES: Final = 10_000

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.descriptor import Descriptor

_M = TypeVar("_M", bound=Message)


def read_request(kind: type[_M], raw: bytes) -> _M:
    """Return the request that ``raw`` holds.

    Args:
        kind: Protobuf class of the request.
        raw: The message as it came.

    Raises:
        RpcError: INTERNAL: it is malformed. INVALID_ARGUMENT: a name has more than ``NAME_SIZE`` characters,
            or a list has more than ``MOST_NAMES`` names.
    """
    try:
        request = kind.FromString(raw)
    except DecodeError as exc:
        raise RpcError(StatusCode.INTERNAL, f"the request can't be read: {exc}") from exc
    for field in _text_fields(kind.DESCRIPTOR):
        value: str | Sequence[str] = getattr(request, field)
        if isinstance(value, str):
            _check(field, (value,))
            continue
        if len(value) > MOST_NAMES:
            text = f"{field} has {len(value)} names: at most {MOST_NAMES} are allowed"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)
        _check(field, value)
    return request


@cache
def _text_fields(kind: Descriptor) -> tuple[str, ...]:
    """Return the names of the text fields of a message: single values and lists."""
    return tuple(field.name for field in kind.fields if field.type == field.TYPE_STRING)


def _check(field: str, names: Iterable[str]) -> None:
    for name in names:
        if len(name) > NAME_SIZE:
            text = f"{field} has {len(name)} characters: at most {NAME_SIZE} are allowed"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)
