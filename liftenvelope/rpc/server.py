"""A gRPC server for asyncio: a table of methods, each served by a coroutine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from liftenvelope.errors import TransportError, UsageError
from liftenvelope.rpc._link import Flow, Incoming, Link
from liftenvelope.rpc.address import Address
from liftenvelope.rpc.budget import Budget
from liftenvelope.rpc.events import CallEnded, CallStarted, Event, MessagesReceived, RequestsEnded
from liftenvelope.rpc.framing import DEFAULT_MAX_MESSAGE
from liftenvelope.rpc.server_side import (
    DEFAULT_MAX_CALLS,
    DEFAULT_MAX_HEADER_LIST,
    DEFAULT_MAX_UNREAD,
    DEFAULT_SERVER_WINDOW,
    ServerConnection,
)
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.rpc.tls import check_protocol, offer_http2

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
    from types import TracebackType

    from liftenvelope.rpc.headers import Metadata

__all__ = ["Handler", "Server", "ServerCall", "unary"]

_TLS_SHUTDOWN_TIMEOUT: Final = 1.0
#: Bytes of request bodies that all connections together may hold unread.
_DEFAULT_MAX_UNREAD_IN_ALL: Final = 256 * 1024 * 1024

#: Serves a call. Its return is status OK; RpcError is the status that it carries; anything else is UNKNOWN.
Handler: TypeAlias = "Callable[[ServerCall], Coroutine[object, object, None]]"


def unary(answer: Callable[[bytes], Awaitable[bytes]]) -> Handler:
    """Return the handler of a method with one request and one answer."""

    async def serve(call: ServerCall) -> None:
        await call.send([await answer(await call.one_request())])

    return serve


class ServerCall(Incoming):
    """One call, on the side that serves it.

    Attributes:
        method: Path of the method.
        metadata: What came with the call.
        timeout: Seconds that the client waits for its end, from its beginning; None for no limit.
        trailing_metadata: What to send with the status.
    """

    def __init__(self, link: _ServerLink, event: CallStarted) -> None:
        super().__init__(Flow(link, event.call_id))
        self.method = event.method
        self.metadata = event.metadata
        self.timeout = event.timeout
        self.trailing_metadata: Metadata = ()
        self._link = link

    @property
    def peer_certificate(self) -> Mapping[str, Any] | None:
        """The client's certificate as ``ssl.SSLSocket.getpeercert`` has it; None if it has shown none."""
        return self._link.peer_certificate

    async def one_request(self) -> bytes:
        """Return the request of a method that takes one.

        Reads no further than the second request, so that a client can't make the server hold any number.

        Raises:
            RpcError: INTERNAL: no request came, or more than one.
        """
        received = await self.receive()
        more = None if received is None or len(received) > 1 else await self.receive()
        if received is None or len(received) > 1 or more is not None:
            came = "none" if received is None else "more"
            raise RpcError(StatusCode.INTERNAL, f"{self.method} takes one request, {came} came")
        return received[0]

    def send_headers(self, metadata: Metadata) -> None:
        """Begin the answer with metadata. The first message does so without."""
        self._link.protocol.send_headers(self.flow.call_id, metadata)
        self._link.flush_soon()

    async def send(self, messages: Iterable[bytes]) -> None:
        """Send messages; wait while much is unsent because the client takes no more."""
        await self.flow.put(messages)

    def send_nowait(self, messages: Iterable[bytes]) -> None:
        """Send messages, however much is unsent: for callbacks, where somebody else sees to the rest."""
        self.flow.put_nowait(messages)

    def send_framed_nowait(self, frames: bytes) -> None:
        """Send messages that have their gRPC prefixes already, however much is unsent."""
        self.flow.put_framed_nowait(frames)

    async def send_framed(self, frames: bytes) -> None:
        """Send messages that have their gRPC prefixes already, one after the other; wait as :meth:`send`."""
        await self.flow.put_framed(frames)

    @property
    def flow(self) -> Flow:
        """What the call's link hands its requests to."""
        return self._flow


class _ServerLink(Link[ServerConnection]):
    """A connection from a client, and the calls that are open on it."""

    # There may be many of these.
    receive_size = 32 * 1024

    def __init__(self, server: Server, protocol: ServerConnection) -> None:
        super().__init__(protocol)
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._server = server
        self._timers: dict[int, asyncio.TimerHandle] = {}
        #: What the client has shown, if it was verified.
        self.peer_certificate: Mapping[str, Any] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._server.links.add(self)
        super().connection_made(transport)
        if (secured := transport.get_extra_info("ssl_object")) is not None:
            self.peer_certificate = secured.getpeercert() or None
            try:
                check_protocol(secured, "the client")
            except TransportError as exc:
                self.fail(str(exc))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._server.links.discard(self)
        super().connection_lost(exc)

    def buffer_updated(self, nbytes: int) -> None:
        """Handle what came, then free memory if all clients together hold too much."""
        super().buffer_updated(nbytes)
        self._server.shed()

    def dispatch(self, events: list[Event]) -> None:
        """Begin calls, and hand events to those that there are."""
        for event in events:
            if isinstance(event, CallStarted):
                self._start(event)
            elif isinstance(event, MessagesReceived):
                self.flows[event.call_id].received(event)
            elif isinstance(event, RequestsEnded):
                if event.call_id in self.flows:
                    self.flows[event.call_id].exhaust()
            elif isinstance(event, CallEnded) and event.call_id in self.tasks:
                self.flows[event.call_id].discard()
                self.tasks[event.call_id].cancel()

    def _start(self, event: CallStarted) -> None:
        call_id = event.call_id
        handler = self._server.handlers.get(event.method)
        call = ServerCall(self, event)
        # Also for a method that there is not: what comes for it is dropped with the flow.
        self.flows[call_id] = call.flow
        served = _not_implemented(call) if handler is None else handler(call)
        task = self.tasks[call_id] = self.loop.create_task(served, name=f"serve {event.method}")
        task.add_done_callback(lambda task: self._done(call, task))
        if event.timeout is not None:
            self._timers[call_id] = self.loop.call_later(event.timeout, self._expire, call_id)

    def _expire(self, call_id: int) -> None:
        self.protocol.finish(call_id, StatusCode.DEADLINE_EXCEEDED, "the client's time for the call is up")
        self.tasks[call_id].cancel()

    def _done(self, call: ServerCall, task: asyncio.Task[None]) -> None:
        call_id = call.flow.call_id
        call.flow.finish()
        del self.flows[call_id], self.tasks[call_id]
        if (timer := self._timers.pop(call_id, None)) is not None:
            timer.cancel()
        error = self._status(task)
        if error is None:
            self.protocol.finish(call_id, metadata=call.trailing_metadata)
        else:
            self.protocol.finish(call_id, error.code, error.description, call.trailing_metadata)
        self.flush_soon()

    def _status(self, task: asyncio.Task[None]) -> RpcError | None:
        if task.cancelled():
            return RpcError(StatusCode.CANCELLED, "the server stopped serving the call")
        exc = task.exception()
        if exc is None or isinstance(exc, RpcError):
            return exc
        self.loop.call_exception_handler(
            {"message": f"{task.get_name()} failed", "exception": exc, "task": task}
        )
        return RpcError(StatusCode.UNKNOWN, f"the server failed: {type(exc).__name__}")


async def _not_implemented(call: ServerCall) -> None:
    raise RpcError(StatusCode.UNIMPLEMENTED, f"there is no method {call.method}")


class Server:
    """Serves gRPC methods.

    Args:
        handlers: What serves each method, by its path.
        max_message: The longest message to take in, in bytes. A longer one ends its call.
        window: What a client may send on one call before any of it was taken, in bytes.
        max_calls: How many calls a client may have open at once on one connection.
        max_unread: Bytes of requests that one connection may hold unread. Beyond it, its call with the most
            ends with RESOURCE_EXHAUSTED. Default 16 MiB.
        max_unread_in_all: The same for all connections together. Default 256 MiB.
        max_header_list: Largest header list of a call, in bytes. A larger one ends the connection. Default
            16 KiB.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        max_message: int = DEFAULT_MAX_MESSAGE,
        window: int = DEFAULT_SERVER_WINDOW,
        max_calls: int = DEFAULT_MAX_CALLS,
        max_unread: int = DEFAULT_MAX_UNREAD,
        max_unread_in_all: int = _DEFAULT_MAX_UNREAD_IN_ALL,
        max_header_list: int = DEFAULT_MAX_HEADER_LIST,
    ) -> None:
        self.handlers = dict(handlers)
        self.links: set[_ServerLink] = set()
        self._unread = Budget(max_unread_in_all)
        self._options = {
            "max_message": max_message,
            "window": window,
            "max_calls": max_calls,
            "max_unread": max_unread,
            "max_header_list": max_header_list,
        }
        self._listener: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        if self._listener is None or not self._listener.sockets:
            raise UsageError("the server does not listen")
        host, port, *_ = self._listener.sockets[0].getsockname()
        return str(Address(host, port))

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None
    ) -> str:
        """Listen; return the address.

        Args:
            host: Where.
            port: Likewise; 0 for any that is free.
            tls: How to speak TLS, None for plain TCP. The context is made to offer HTTP/2.

        Raises:
            TransportError: It can't listen there.
            UsageError: It listens already.
        """
        if self._listener is not None:
            raise UsageError("the server listens already")
        if tls is not None:
            offer_http2(tls)
        shutdown = None if tls is None else _TLS_SHUTDOWN_TIMEOUT
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self._new_link, host, port, ssl=tls, ssl_shutdown_timeout=shutdown
            )
        except OSError as exc:
            raise TransportError(f"can't listen on {host}:{port}: {exc}") from exc
        return self.address

    async def close(self, *, grace: float = 0.0) -> None:
        """Take no more calls, and close every connection. Closing twice is fine.

        Args:
            grace: Seconds for the calls that are open; what is not done then is cancelled.
        """
        if self._listener is not None:
            self._listener.close()
        links = list(self.links)
        for link in links:
            link.protocol.go_away()
            link.flush()
        tasks = [task for link in links for task in link.tasks.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in links:
            link.flush()
            link.fail("the server was closed")
        for link in links:
            await link.wait_closed()

    def shed(self) -> None:
        """End the greediest call of the greediest connection while all hold more unread than allowed."""
        if self._unread.is_exceeded and self.links:
            link = max(self.links, key=lambda link: link.protocol.unread)
            text = f"all clients together hold more than {self._unread.limit} bytes unread"
            link.dispatch(link.protocol.refuse_greediest(text))
            link.flush_soon()

    def _new_link(self) -> _ServerLink:
        return _ServerLink(self, ServerConnection(**self._options, unread=self._unread))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
