"""One call, as its handler on a server sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from liftenvelope.rpc._link import Flow, Incoming
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping

    from liftenvelope.rpc._events import CallStarted
    from liftenvelope.rpc._headers import Metadata
    from liftenvelope.rpc._link import TransportLink
    from liftenvelope.rpc._server_side import ServerConnection

__all__ = ["Handler", "ServerCall", "unary"]

#: Serves a call. A return ends it with OK, an RpcError with its own status, any other exception with UNKNOWN.
Handler: TypeAlias = "Callable[[ServerCall], Coroutine[object, object, None]]"


def unary(answer: Callable[[bytes], Awaitable[bytes]]) -> Handler:
    """Return a handler for a unary method."""

    async def serve(call: ServerCall) -> None:
        await call.send([await answer(await call.one_request())])

    return serve


class ServerCall(Incoming):
    """One call, on the server's side.

    Attributes:
        method: Path of the method.
        metadata: Metadata of the request headers.
        timeout: Seconds from the start of the call to the client's deadline; None for no limit.
        peer_certificate: Client certificate as returned by ``ssl.SSLSocket.getpeercert``; None if the client
            sent none.
        client: Client of the connection, as from :func:`~liftenvelope.rpc.places.client_of`.
        trailing_metadata: Metadata to send with the status.
    """

    def __init__(
        self,
        link: TransportLink[ServerConnection],
        event: CallStarted,
        peer_certificate: Mapping[str, Any] | None,
        client: str = "",
    ) -> None:
        super().__init__(Flow(link, event.call_id))
        self.method = event.method
        self.metadata = event.metadata
        self.timeout = event.timeout
        self.peer_certificate = peer_certificate
        self.client = client
        self.trailing_metadata: Metadata = ()
        self._link = link

    async def one_request(self) -> bytes:
        """Return the only request of the call.

        Reads at most up to the second request, so that a client can't make the server hold any number.

        Raises:
            RpcError: INTERNAL: the client sent no request, or more than one.
        """
        received = await self.receive()
        more = None if received is None or len(received) > 1 else await self.receive()
        if received is None or len(received) > 1 or more is not None:
            came = "none" if received is None else "more"
            raise RpcError(StatusCode.INTERNAL, f"{self.method} takes one request, {came} came")
        return received[0]

    def send_headers(self, metadata: Metadata) -> None:
        """Send the response headers with metadata. Otherwise the first message sends them without."""
        self._link.protocol.send_headers(self.flow.call_id, metadata)
        self._link.flush_soon()

    async def send(self, messages: Iterable[bytes]) -> None:
        """Send messages; wait while more than 128 KiB are unsent because the client takes no more."""
        await self.flow.put(messages)

    def send_nowait(self, messages: Iterable[bytes]) -> None:
        """Send messages without waiting: for callbacks, whose callers handle backpressure."""
        self.flow.put_nowait(messages)

    def send_framed_nowait(self, frames: bytes) -> None:
        """Send messages that already have their gRPC prefixes, without waiting."""
        self.flow.put_framed_nowait(frames)

    async def send_framed(self, frames: bytes) -> None:
        """Send concatenated messages that already have their gRPC prefixes; wait like :meth:`send`."""
        await self.flow.put_framed(frames)

    def exempt_answers(self) -> None:
        """Leave unsent answers out of the budgets: the handler sends more only when :meth:`send` returns."""
        self._link.protocol.exempt(self.flow.call_id)

    @property
    def connection(self) -> Hashable:
        """Identity of the client's connection, for counting what each connection does."""
        return self._link

    @property
    def flow(self) -> Flow:
        """Message queues of the call, filled by its connection."""
        return self._flow
