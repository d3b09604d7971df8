"""Checks of the arguments of publishes, made before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from liftenvelope._checks import RESERVED, as_optional_text
from liftenvelope.client._streams import check_subject
from liftenvelope.client.core import check_stream
from liftenvelope.errors import MessageTooLargeError, UsageError
from liftenvelope.types import AckError

__all__ = [
    "check_ack_inbox",
    "check_headers",
    "check_publish_subject",
    "check_published_stream",
    "check_size",
]

#: Headers that the server overwrites with its own.
_RESERVED_HEADERS: Final = ("subject", "reply")


def check_published_stream(stream: str) -> str:
    """Check the name of a stream to publish to and return it.

    Raises:
        UsageError: The name is empty, or that of a stream of the server itself.
        UsageTypeError: The name is not a str.
    """
    if check_stream(stream) in RESERVED:  # the server does not protect these streams
        raise UsageError(
            f"stream must not be one of the server's own, which a publish would break, got {stream!r}"
        )
    return stream


def check_headers(headers: Mapping[str, Any] | None) -> None:
    """Refuse headers that the server would overwrite.

    Raises:
        UsageError: A header is named ``subject`` or ``reply``.
    """
    for name in _RESERVED_HEADERS:
        if headers and name in headers:
            raise UsageError(
                f"headers must not have the name {name!r}, which the server overwrites: choose another name"
            )


def check_size(request: bytes, most: int) -> bytes:
    """Check the size of a request and return the request.

    Args:
        request: The encoded request.
        most: Maximum size in bytes: the client's ``max_request_bytes``.

    Raises:
        MessageTooLargeError: The request is larger.
    """
    if len(request) > most:
        text = f"the request must be at most {most} bytes, got {len(request)}"
        remedy = "raise max_request_bytes of connect() if the server accepts more"
        raise MessageTooLargeError(AckError.TOO_LARGE, f"{text}: {remedy}")
    return request


def check_publish_subject(subject: str, name: str = "subject") -> str:
    """Check a NATS subject to publish on and return it.

    Args:
        subject: The subject.
        name: Name of the argument, for the text of errors.

    Raises:
        UsageError: The subject is empty, malformed, too long for NATS, or has a wildcard.
        UsageTypeError: The subject is not a str.
    """
    if not {"*", ">"}.isdisjoint(check_subject(subject, name).split(".")):
        raise UsageError(
            f"{name} must not have a wildcard, got {subject!r}: a message is published on one subject"
        )
    return subject


def check_ack_inbox(ack_inbox: str | None) -> str:
    """Check the ``ack_inbox`` argument and return it, empty for none.

    Raises:
        UsageError: The value is not a subject to publish on; a server may crash on it.
        UsageTypeError: The value is not a str.
    """
    return (
        check_publish_subject(ack_inbox, "ack_inbox")
        if ack_inbox
        else as_optional_text("ack_inbox", ack_inbox)
    )
