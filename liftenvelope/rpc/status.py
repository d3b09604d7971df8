"""gRPC status codes, and the error for every code but OK.

The codes and the mappings to them follow gRPC's own documents: `statuscodes.md`,
`http-grpc-status-mapping.md` and `PROTOCOL-HTTP2.md`.
"""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from liftenvelope.errors import ServerError, TransportError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "NOT_RECORDED",
    "PUBLISH_AGAIN",
    "UNANSWERED_IS_NOT_STORED",
    "CallNotProcessedError",
    "RpcError",
    "StatusCode",
    "cancelled_by_server",
    "cut_text",
    "status_error",
]


#: Status text of the UNAVAILABLE with which a stopping gateway ends PublishAsync, after it has answered every
#: message that it accepted.
UNANSWERED_IS_NOT_STORED: Final = "the gateway is stopping: messages without an answer are not stored"

#: Text of a gateway for a message that is certain not to be stored, and may be once it is published again.
PUBLISH_AGAIN: Final = "the message is not stored, publish it again"

#: Text of a gateway for a message of PublishAsync that came while its partition was paused.
NOT_RECORDED: Final = f"the partition was paused for a moment: {PUBLISH_AGAIN}"


class StatusCode(IntEnum):
    """The status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(ServerError):
    """A call ended with a gRPC status other than OK.

    Attributes:
        code: The status: a :class:`StatusCode`, or a plain int if gRPC has no name for it.
        description: The status text, or the name of the code if the text is empty.
    """

    def __str__(self) -> str:
        name = self.code.name if isinstance(self.code, StatusCode) else f"status {int(self.code)}"
        return f"{name}: {self.description}"


class CallNotProcessedError(TransportError):
    """The server never processed the call, so that it is safe to retry.

    Either the call was not sent yet, or the server's GOAWAY excluded it (RFC 9113, 6.8), or the server
    refused the stream (8.7).
    """


_FROM_HTTP: Final[Mapping[int, StatusCode]] = MappingProxyType(
    {
        400: StatusCode.INTERNAL,
        401: StatusCode.UNAUTHENTICATED,
        403: StatusCode.PERMISSION_DENIED,
        404: StatusCode.UNIMPLEMENTED,
        429: StatusCode.UNAVAILABLE,
        502: StatusCode.UNAVAILABLE,
        503: StatusCode.UNAVAILABLE,
        504: StatusCode.UNAVAILABLE,
    }
)

#: Maximum number of bytes of a content type in an error.
_SHOWN: Final = 100
_REFUSED_STREAM: Final = 0x7
#: A reset with CANCEL within this many seconds before the call's deadline counts as DEADLINE_EXCEEDED.
_NEARLY: Final = 0.1

# HTTP/2 error codes of a reset (RFC 9113, 7) that map to a status other than INTERNAL.
_FROM_RESET: Final[Mapping[int, StatusCode]] = MappingProxyType(
    {
        0x8: StatusCode.CANCELLED,  # CANCEL; of a client's call, see cancelled_by_server
        0xB: StatusCode.RESOURCE_EXHAUSTED,  # ENHANCE_YOUR_CALM
        0xC: StatusCode.PERMISSION_DENIED,  # INADEQUATE_SECURITY
    }
)


def status_error(code: int, text: str = "") -> RpcError | None:
    """Return the error for a status, or None for OK."""
    if code == StatusCode.OK:
        return None
    try:
        named = StatusCode(code)
    except ValueError:
        return RpcError(code, text or f"status {code}")
    return RpcError(named, text or named.name)


def cut_text(text: str, size: int) -> str:
    """Cut a status text to at most ``size`` bytes of UTF-8."""
    if len(text) <= size // 4:
        return text
    raw = text[: size + 1].encode("utf-8", "replace")
    if len(raw) <= size:
        return text
    return raw[: size - 3].decode("utf-8", "ignore") + "..."


def http_error(status: str, content_type: bytes = b"") -> RpcError:
    """Map the HTTP status of a response that is not gRPC's to an error.

    Args:
        status: HTTP status. A response with 200 is not gRPC's if its content type is another.
        content_type: Content type of the response; empty if it has none.
    """
    code = _FROM_HTTP.get(int(status), StatusCode.UNKNOWN) if status.isdecimal() else StatusCode.UNKNOWN
    if status != "200":
        return RpcError(code, f"the server answered with HTTP status {status} and no gRPC status")
    kind = repr(content_type[:_SHOWN].decode("ascii", "replace")) if content_type else "none"
    return RpcError(
        code,
        f"content-type must be application/grpc, got {kind}, with HTTP status 200: "
        "check that the address is that of a gRPC server, not of a web server or an HTTP proxy",
    )


def reset_error(http2_code: int) -> RpcError | CallNotProcessedError:
    """Map the HTTP/2 error code of a stream reset by the peer to an error."""
    if http2_code == _REFUSED_STREAM:
        text = "the server refused the call without having looked at it (HTTP/2 REFUSED_STREAM)"
        return CallNotProcessedError(f"{text}: it is safe to make it again")
    code = _FROM_RESET.get(http2_code, StatusCode.INTERNAL)
    return RpcError(code, f"the call was reset (HTTP/2 error {http2_code:#x})")


def cancelled_by_server(left: float | None) -> RpcError:
    """Return the error for a call that the server reset with CANCEL.

    Recent versions of grpc-go reset a stream with CANCEL when the deadline in ``grpc-timeout`` passes,
    without a status, and often before the client's own timer fires. As in grpc-core, such a reset maps to
    DEADLINE_EXCEEDED. At any other time the outcome of the call is unknown: UNAVAILABLE.

    Args:
        left: Seconds until the call's deadline, negative after it; None without a deadline.
    """
    if left is None or left > _NEARLY:
        return RpcError(StatusCode.UNAVAILABLE, "the server reset the call (HTTP/2 CANCEL)")
    return RpcError(StatusCode.DEADLINE_EXCEEDED, "the server reset the call at its deadline (HTTP/2 CANCEL)")


def trailers_error(headers: Mapping[bytes, bytes]) -> RpcError | None:
    """Map the trailers of a response to an error, or None for status OK."""
    raw = headers.get(b"grpc-status", b"")
    if not (raw.isdigit() and len(raw) < 10):
        return RpcError(StatusCode.UNKNOWN, f"the server ended the call without a valid gRPC status: {raw!r}")
    # The text is percent-encoded UTF-8. Invalid bytes are replaced.
    text = unquote_to_bytes(headers.get(b"grpc-message", b"")).decode("utf-8", "replace")
    return status_error(int(raw), text)
