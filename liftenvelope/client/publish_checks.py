"""What a publish must not be given, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from liftenvelope._stream_names import RESERVED
from liftenvelope.client.core import check_stream
from liftenvelope.client.streams import check_subject
from liftenvelope.errors import MessageTooLargeError, UsageError
from liftenvelope.types import AckError

__all__ = ["check_headers", "check_publish_subject", "check_published_stream", "check_size"]

#: The most that a server takes in one gRPC message. A longer one would end all that is on its stream.
MAX_REQUEST: Final = 4 * 1024 * 1024
#: The server puts its own in their place.
_RESERVED_HEADERS: Final = ("subject", "reply")


def check_published_stream(stream: str) -> str:
    """Return the name of a stream to publish to.

    Raises:
        UsageError: It is empty, or one of the server's own.
        UsageTypeError: It is not a str.
    """
    if check_stream(stream) in RESERVED:  # the server lets everybody write to them
        raise UsageError(f"stream {stream!r} is the server's own: what is published there breaks it")
    return stream


def check_headers(headers: Mapping[str, Any] | None) -> None:
    """Refuse headers that the server would overwrite.

    Raises:
        UsageError: One of them is called ``subject`` or ``reply``.
    """
    for name in _RESERVED_HEADERS:
        if headers and name in headers:
            raise UsageError(f"header {name!r}: the server puts its own in its place; take another name")


def check_size(request: bytes) -> bytes:
    """Return a request that is short enough.

    Raises:
        MessageTooLargeError: It is longer than what a server takes in.
    """
    if len(request) > MAX_REQUEST:
        text = f"the request has {len(request)} bytes; a server takes at most {MAX_REQUEST}"
        raise MessageTooLargeError(AckError.TOO_LARGE, text)
    return request


def check_publish_subject(subject: str) -> str:
    """Return a NATS subject to publish on.

    Raises:
        UsageError: It is empty, malformed, or has a wildcard.
        UsageTypeError: It is not a str.
    """
    if not {"*", ">"}.isdisjoint(check_subject(subject).split(".")):
        raise UsageError(f"subject {subject!r} has a wildcard: a message is published on one subject")
    return subject
