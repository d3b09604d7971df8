"""What a publish must not be given, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from liftenvelope._checks import as_optional_text
from liftenvelope._stream_names import RESERVED
from liftenvelope.client.core import check_stream
from liftenvelope.client.streams import check_subject
from liftenvelope.errors import MessageTooLargeError, UsageError
from liftenvelope.types import AckError

__all__ = [
    "check_ack_inbox",
    "check_headers",
    "check_publish_subject",
    "check_published_stream",
    "check_size",
]

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


def check_publish_subject(subject: str, name: str = "subject") -> str:
    """Return a NATS subject to publish on.

    Args:
        subject: The subject.
        name: What the caller calls it.

    Raises:
        UsageError: It is empty, malformed, too long for NATS, or has a wildcard.
        UsageTypeError: It is not a str.
    """
    if not {"*", ">"}.isdisjoint(check_subject(subject, name).split(".")):
        raise UsageError(f"{name} {subject!r} has a wildcard: a message is published on one subject")
    return subject


def check_ack_inbox(ack_inbox: str | None) -> str:
    """Return the subject that an ack is to be sent to as well, empty for none.

    Raises:
        UsageError: It is no subject to publish on; a server may not survive it.
        UsageTypeError: It is not a str.
    """
    return (
        check_publish_subject(ack_inbox, "ack_inbox")
        if ack_inbox
        else as_optional_text("ack_inbox", ack_inbox)
    )
