"""What happens on a connection, for the shells."""

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
    """Messages came on a call: all that were in what was received, in order.

    Attributes:
        call_id: The call.
        messages: At least one.
        size: What to give to ``release`` when they were taken.
    """

    call_id: int
    messages: list[bytes]
    size: int


@dataclass(frozen=True, slots=True)
class HeadersReceived:
    """The server began to answer a call. A call that fails at once ends without it."""

    call_id: int
    metadata: list[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The last event of a call.

    Attributes:
        call_id: The call.
        error: None for status OK; :class:`~liftenvelope.rpc.status.RpcError` for any other;
            :class:`~liftenvelope.errors.TransportError` when the connection failed before a status came. On
            the server's side it is why nobody waits for the answer any more.
        metadata: What came with the status.
        cancelled: Whether the server reset the call with HTTP/2's CANCEL. The shell, which has a clock, then
            tells a deadline from a loss with :func:`~liftenvelope.rpc.status.cancelled_by_server`.
    """

    call_id: int
    error: RpcError | TransportError | None
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A client called a method of ours.

    Attributes:
        call_id: The call.
        method: Path of the method, such as ``/proto.API/FetchMetadata``.
        metadata: What came with the call.
        timeout: Seconds that the client waits for its end, None for no limit.
    """

    call_id: int
    method: str
    metadata: list[tuple[str, str | bytes]]
    timeout: float | None


@dataclass(frozen=True, slots=True)
class RequestsEnded:
    """The client has sent all its messages of a call."""

    call_id: int


@dataclass(frozen=True, slots=True)
class Pong:
    """A ping of ours was answered."""


Event: TypeAlias = MessagesReceived | HeadersReceived | CallEnded | CallStarted | RequestsEnded | Pong
