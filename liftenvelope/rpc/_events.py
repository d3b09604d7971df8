"""Events of a connection, reported to the code that does the I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from liftenvelope.errors import TransportError
    from liftenvelope.rpc.status import RpcError

__all__ = [
    "CallEnded", "CallStarted", "Event", "HeadersReceived", "MessagesReceived", "Pong", "RequestsEnded",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class MessagesReceived:
    """Messages were received on a call: all of one read, in order.

    Attributes:
        call_id: The call.
        messages: The messages, at least one. Empty for a call with a sink, which got the bytes instead.
        size: Bytes to pass to ``release`` once the messages are taken.
    """

    call_id: int
    messages: list[bytes]
    size: int


@dataclass(frozen=True, slots=True)
class HeadersReceived:
    """The response headers of a call were received. A call that fails at once ends without this event."""

    call_id: int
    metadata: list[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The last event of a call.

    Attributes:
        call_id: The call.
        error: None for status OK; :class:`~liftenvelope.rpc.status.RpcError` for any other status;
            :class:`~liftenvelope.errors.TransportError` if the connection failed before the status. On the
            server's side: the reason why the client no longer waits for the response.
        metadata: Metadata of the trailers.
        cancelled: True if the server reset the call with HTTP/2's CANCEL. The caller has a clock, and tells a
            deadline from a loss with :func:`~liftenvelope.rpc.status.cancelled_by_server`.
    """

    call_id: int
    error: RpcError | TransportError | None
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A client started a call.

    Attributes:
        call_id: The call.
        method: Path of the method, such as ``/proto.API/FetchMetadata``.
        metadata: Metadata of the request headers.
        timeout: Seconds until the client's deadline, None for no limit.
    """

    call_id: int
    method: str
    metadata: list[tuple[str, str | bytes]]
    timeout: float | None


@dataclass(frozen=True, slots=True)
class RequestsEnded:
    """The client closed its side of a call: no more requests follow."""

    call_id: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The peer answered a PING."""


Event: TypeAlias = MessagesReceived | HeadersReceived | CallEnded | CallStarted | RequestsEnded | Pong
