"""A gRPC server for asyncio: a table of methods, each served by a coroutine."""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from liftenvelope.errors import TransportError, UsageError
from liftenvelope.rpc._link import Flow, Incoming, Link
from liftenvelope.rpc.budget import Budget
from liftenvelope.rpc.events import CallEnded, CallStarted, Event, MessagesReceived, RequestsEnded
from liftenvelope.rpc.limits import DEFAULT_LIMITS, ServerLimits
from liftenvelope.rpc.listening import Listener
from liftenvelope.rpc.server_side import ServerConnection
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.rpc.tls import check_protocol, offer_http2

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
    from types import TracebackType

    from liftenvelope.rpc.headers import Metadata

__all__ = ["Handler", "Server", "ServerCall", "unary"]

#: Seconds that the frames of one connection may take in one turn of the event loop, and the least number of
#: bytes handled in one. A publish takes about six turns, so a turn adds six times as much to its latency.
_TURN: Final = 0.0003
_SMALLEST_PIECE: Final = 128
#: Descriptors that connections of clients leave to the rest of the process.
_RESERVED_DESCRIPTORS: Final = 64
#: Share of a time-out after which it is looked at again.
_SWEEPS: Final = 8

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
        self._opened_at = self.active_at = self.loop.time()
        self._backlog = b""
        self._piece = _SMALLEST_PIECE
        self._working = False
        self._was_failed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected, and its TLS handshake is over."""
        self._opened_at = self.active_at = self.loop.time()
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
        """Note what came, and handle as much of it as this turn of the event loop may take."""
        self._backlog += self._buffer[:nbytes]
        self.active_at = self.loop.time()
        self.protocol.refill(self.active_at)
        if not self._working:
            self.work()

    def work(self) -> None:
        """Handle the next piece of what came; leave the rest for another turn, and read no more until then.

        Frames cost from 0.1 us (DATA) to 300 us (a call that is reset) for 9 bytes and more, so pieces shrink
        until one takes about ``_TURN``: a client that floods its connection must not starve the others.
        """
        piece, self._backlog = self._backlog[: self._piece], self._backlog[self._piece :]
        began = perf_counter()
        self.receive(piece)
        took = perf_counter() - began
        if took > _TURN:
            self._piece = max(_SMALLEST_PIECE, int(self._piece * _TURN / took))
        elif took < _TURN / 4:
            self._piece = min(self.receive_size, self._piece * 2)
        if self.protocol.failed:
            self._backlog = b""
        was_working, self._working = self._working, bool(self._backlog)
        if self._working:
            self._server.work_later(self)
        elif was_working:
            self.protocol.refill(self.loop.time(), was_busy=True)
        self._control_reading()
        self._server.shed()

    def pause_writing(self) -> None:
        """The client takes no more for now: read no more either, for answers would pile up."""
        super().pause_writing()
        self._control_reading()

    def resume_writing(self) -> None:
        """The client takes more again."""
        super().resume_writing()
        self._control_reading()

    def _control_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._working or self._paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def end_if_silent(self, now: float, limits: ServerLimits) -> None:
        """Close the connection if its client has not greeted, or has made no call, for too long."""
        silent = now - self.active_at
        if not self.protocol.greeted and now - self._opened_at > limits.preface_timeout:
            self.fail("the client did not speak HTTP/2 in time")
        elif not self.tasks and silent > limits.idle_timeout:
            self.protocol.go_away()
            self.flush()
            self.fail("the connection was idle")

    def abort_if_stuck(self) -> None:
        """Abort the connection if it was failed at the last call already: its client reads nothing."""
        if self._was_failed and self._transport is not None:
            self._transport.abort()
        self._was_failed = self.protocol.failed

    def dispatch(self, events: list[Event]) -> None:
        """Begin calls, and hand events to those that there are."""
        # A call that has ended already costs no task: a flood of resets would be as dear as one of calls.
        ended = {event.call_id for event in events if isinstance(event, CallEnded)}
        for event in events:
            if isinstance(event, CallStarted):
                if event.call_id not in ended:
                    self._start(event)
            elif isinstance(event, MessagesReceived):
                if event.call_id in self.flows:
                    self.flows[event.call_id].received(event)
            elif isinstance(event, RequestsEnded):
                if event.call_id in self.flows:
                    self.flows[event.call_id].exhaust()
            elif isinstance(event, CallEnded) and event.call_id in self.tasks:
                self.flows[event.call_id].discard()
                self.tasks[event.call_id].cancel()

    def _start(self, event: CallStarted) -> None:
        call_id = event.call_id
        if self._server.is_full:
            text = f"all clients together have {self._server.calls} calls open: try again later"
            self.protocol.finish(call_id, StatusCode.RESOURCE_EXHAUSTED, text)
            return
        self._server.calls += 1
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
        self._server.calls -= 1
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
        limits: Limits on the clients. Default: those of :class:`ServerLimits`.
    """

    def __init__(self, handlers: Mapping[str, Handler], *, limits: ServerLimits = DEFAULT_LIMITS) -> None:
        self.handlers = dict(handlers)
        self._limits = limits
        self._sweeping: asyncio.TimerHandle | None = None
        self.links: set[_ServerLink] = set()
        self._unread = Budget(limits.max_unread_bytes)
        self._listener: Listener | None = None
        #: Number of calls open, of all clients.
        self.calls = 0
        self._busy: deque[_ServerLink] = deque()

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        if self._listener is None:
            raise UsageError("the server does not listen")
        return self._listener.address

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
        timeout = self._limits.handshake_timeout
        listener = Listener(self._new_link, tls=tls, is_full=self._is_full, handshake_timeout=timeout)
        await listener.start(host, port)
        self._listener = listener
        self._sweep()
        return self.address

    def _is_full(self, opening: int) -> bool:
        # Without a descriptor left, the program around the server could not reconnect to anything either.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        spared = max(descriptors - _RESERVED_DESCRIPTORS, descriptors // 2)
        return len(self.links) + opening >= min(self._limits.max_connections, spared)

    @property
    def is_full(self) -> bool:
        """Whether the clients have as many calls open as they may."""
        return self.calls >= self._limits.max_calls

    def _sweep(self) -> None:
        """Close the connections of silent clients, now and again and again."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for link in list(self.links):
            link.abort_if_stuck()
            link.end_if_silent(now, self._limits)
        pause = min(self._limits.preface_timeout, self._limits.idle_timeout) / _SWEEPS
        self._sweeping = loop.call_later(pause, self._sweep)

    def refuse_calls(self) -> None:
        """Take no more connections and no more calls, and tell clients so. Calls that are open go on."""
        if self._listener is not None:
            self._listener.close()
        for link in self.links:
            link.protocol.go_away()
            link.flush()

    async def close(self, *, grace: float = 0.0) -> None:
        """Take no more calls, and close every connection. Closing twice is fine.

        Args:
            grace: Seconds for the calls that are open; what is not done then is cancelled.
        """
        self.refuse_calls()
        if self._listener is not None:
            await self._listener.wait_closed()
        if self._sweeping is not None:
            self._sweeping.cancel()
        links = list(self.links)
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

    def work_later(self, link: _ServerLink) -> None:
        """Have a connection go on with what came. One does so in each turn of the event loop, in order.

        So the others wait for one piece of one connection, however many connections are flooded.
        """
        self._busy.append(link)
        if len(self._busy) == 1:
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        try:
            self._busy[0].work()
        finally:
            # Taken off only now: until then no second turn is scheduled.
            self._busy.popleft()
            if self._busy:
                asyncio.get_running_loop().call_soon(self._work)

    def shed(self) -> None:
        """End the greediest call of the greediest connection while all hold more unread than allowed."""
        if self._unread.is_exceeded and self.links:
            link = max(self.links, key=lambda link: link.protocol.unread)
            text = f"all clients together hold more than {self._unread.limit} bytes unread"
            link.dispatch(link.protocol.refuse_greediest(text))
            link.flush_soon()

    def _new_link(self) -> _ServerLink:
        return _ServerLink(self, ServerConnection(limits=self._limits, unread=self._unread))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
