"""asyncio gRPC server: a table of methods, each served by a coroutine."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Self

from liftenvelope.errors import TransportError, UsageError
from liftenvelope.rpc._budget import Budget
from liftenvelope.rpc._events import CallEnded, CallStarted, Event, MessagesReceived, RequestsEnded
from liftenvelope.rpc._link import TransportLink
from liftenvelope.rpc._server_call import Handler, ServerCall, unary
from liftenvelope.rpc._server_side import ServerConnection
from liftenvelope.rpc._turns import PieceOutcome, Turns
from liftenvelope.rpc.limits import DEFAULT_LIMITS, ServerLimits
from liftenvelope.rpc.listening import Listener
from liftenvelope.rpc.places import ConnectionPlaces, client_of
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.rpc.tls import check_protocol, offer_http2

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from types import TracebackType


__all__ = ["Handler", "Server", "ServerCall", "unary"]

#: Events in one piece of work. Each new call starts a task, which takes longer than its frames.
_MOST_EVENTS: Final = 6
#: Checks for silent clients per timeout.
_SWEEPS: Final = 8


class _ServerLink(TransportLink[ServerConnection]):
    """Connection from a client, with its open calls.

    The server's :class:`Turns` decide when the connection handles its frames. While ``_working``, it has more
    bytes in ``_backlog`` or in its protocol, does not read from its socket, and waits for its turn.
    """

    # Smaller than the client's buffers: a server may have many connections.
    receive_size, send_buffer = 32 * 1024, 128 * 1024
    # A busy client may read the ends of its calls late, and reads none after a reset: see end().
    close_timeout = 3.0

    def __init__(self, server: Server, protocol: ServerConnection) -> None:
        super().__init__(protocol)
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._server = server
        self._timers: dict[int, asyncio.TimerHandle] = {}
        #: Client certificate, if it was verified.
        self.peer_certificate: Mapping[str, Any] | None = None
        self._has_called = False
        #: Client that the connection counts for, and its address.
        self.client = self.address = ""
        self._opened_at = self.active_at = self.loop.time()
        self._backlog = b""
        self._working = False
        self._is_ending = False
        #: True if frames have waited for a later turn.
        self._has_waited = False
        #: Time used in the loop, as counted by the server's turns.
        self.used = (0, 0.0, 0.0)
        self._was_failed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection after its TLS handshake, and send the preface."""
        self._opened_at = self.active_at = self.loop.time()
        self._server.links.add(self)
        super().connection_made(transport)
        if (secured := transport.get_extra_info("ssl_object")) is not None:
            self.peer_certificate = secured.getpeercert() or None
            try:
                check_protocol(secured, "the client")
            except TransportError as exc:
                self.fail(str(exc))
        peer = transport.get_extra_info("peername")
        self.client, self.address = client_of(peer, self.peer_certificate), client_of(peer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection and end its calls."""
        self._server.links.discard(self)
        super().connection_lost(exc)

    def buffer_updated(self, nbytes: int) -> None:
        """Buffer the received bytes, and handle them in this turn of the event loop or in later ones."""
        if self._is_ending:
            return
        self._backlog += self._buffer[:nbytes]
        self.active_at = self.loop.time()
        self.protocol.refill(self.active_at)
        if not self._working:
            self._working = True
            self._server.turns.arrived(self)
            if self._working:
                self._has_waited = True
                self._control_reading()

    def work(self, is_over: Callable[[], bool]) -> PieceOutcome:
        """Handle frames until ``is_over``; leave the rest for a later turn and stop reading until then."""
        data, self._backlog = self._backlog, b""
        events = self.protocol.feed(data, lambda events: events >= _MOST_EVENTS or is_over())
        is_left = self.protocol.has_frames
        if self._has_waited and not is_left:
            # Before the replies are sent: the time until the next frames was not spent on these.
            self.protocol.refill(self.loop.time(), was_busy=True)
            self._has_waited = False
        self.handled(events)
        self._server.shed()
        if is_left:
            return PieceOutcome.USEFUL if _are_of_use(events) else PieceOutcome.USELESS
        self._working = False
        self._control_reading()
        return PieceOutcome.DONE

    def flush(self) -> None:
        """Write the pending data. End calls if the client leaves too much of it."""
        if not self._is_ending:
            super().flush()
            self._server.shed_unsent(self)

    def end(self, reason: str) -> None:
        """End every call and close the connection, once the client has read the ends of its calls and closes.

        Closing a socket that holds unread bytes resets the connection. A client that writes at that moment
        takes it for lost, and reads no statuses any more: publishes that it could repeat become unknown. So
        what comes is dropped until the client has closed, or the connection is aborted as stuck.
        """
        if not self.protocol.failed:
            self.dispatch(self.protocol.connection_lost(reason))
        transport = self._transport
        if transport is None or transport.is_closing() or not transport.can_write_eof():
            self.close_transport()  # TLS sends the rest by itself, and waits for the client's end
            return
        try:
            transport.write_eof()
        except OSError:  # the client has reset the connection
            self.close_transport()
            return
        self._is_ending, self._backlog = True, b""
        transport.resume_reading()

    def close_transport(self) -> None:
        """Close the connection once the data written to it is sent."""
        if not self._is_ending:
            super().close_transport()

    def end_most_unsent(self, why: str) -> None:
        """End the call with the most unsent bytes."""
        self.dispatch(self.protocol.refuse_most_unsent(why))
        self.flush_soon()

    def pause_writing(self) -> None:
        """Stop reading as well while the send buffer is full, or answers would pile up."""
        super().pause_writing()
        self._control_reading()

    def resume_writing(self) -> None:
        """Resume reading: the send buffer has room."""
        super().resume_writing()
        self._control_reading()

    def _control_reading(self) -> None:
        if self._transport is None or self._transport.is_closing() or self._is_ending:
            return
        if self._working or self._paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def end_if_silent(self, now: float, limits: ServerLimits) -> None:
        """Close the connection if the client has sent no preface or made no call within the timeouts."""
        silent = now - self.active_at
        if not self.protocol.greeted and now - self._opened_at > limits.preface_timeout:
            self.fail("the client did not speak HTTP/2 in time")
        elif not (self.tasks or self.protocol.failed) and silent > limits.idle_timeout:
            self.protocol.go_away()
            self.flush()
            self.end("the connection was idle")

    @property
    def is_idle(self) -> bool:
        """True while the connection has no call."""
        return not self.tasks

    @property
    def standing(self) -> int:
        """Rank of the connection among idle ones: see :class:`~liftenvelope.rpc.places.Occupant`."""
        return self.protocol.greeted + self._has_called

    def give_up(self) -> None:
        """Close the connection at once, to make room for another one."""
        self.protocol.go_away()
        self.flush()
        self.dispatch(self.protocol.connection_lost("another connection needed the place"))
        if self._transport is not None and not self.closed.done():
            self._transport.abort()
        self._server.links.discard(self)

    def abort_if_stuck(self) -> None:
        """Abort the connection if it had already failed at the previous check: its client reads nothing."""
        if self._was_failed and self._transport is not None:
            self._transport.abort()
        self._was_failed = self.protocol.failed

    def dispatch(self, events: list[Event]) -> None:
        """Start calls, and route events to open calls."""
        # A call that ended in the same read gets no task, or a flood of resets would cost as much as calls.
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
        if ended:
            self._server.turns.cancel(self.tasks[call_id] for call_id in ended if call_id in self.tasks)

    def _start(self, event: CallStarted) -> None:
        call_id = event.call_id
        self._has_called = True
        if why := self._server.reason_to_refuse(self.client):
            self._server.refused_calls += 1
            self.protocol.finish(call_id, StatusCode.RESOURCE_EXHAUSTED, why)
            return
        self._server.calls += 1
        self._server.calls_of[self.client] += 1
        handler = self._server.handlers.get(event.method)
        call = ServerCall(self, event, self.peer_certificate, self.client)
        # Unknown methods get a flow too: the messages received for them are dropped with it.
        self.flows[call_id] = call.flow
        served = _not_implemented(call) if handler is None else handler(call)
        task = self.tasks[call_id] = self.loop.create_task(served, name=f"serve {event.method}")
        task.add_done_callback(lambda task: self._done(call, task))
        if event.timeout is not None:
            self._timers[call_id] = self.loop.call_later(event.timeout, self._expire, call_id)

    def _expire(self, call_id: int) -> None:
        self.protocol.finish(call_id, StatusCode.DEADLINE_EXCEEDED, "the client's time for the call is up")
        self.flows[call_id].discard()
        self.tasks[call_id].cancel()

    def _done(self, call: ServerCall, task: asyncio.Task[None]) -> None:
        call_id = call.flow.call_id
        self._server.calls -= 1
        self._server.calls_of[self.client] -= 1
        if not self._server.calls_of[self.client]:
            del self._server.calls_of[self.client]
        call.flow.finish()
        call.flow.discard()
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


def _are_of_use(events: list[Event]) -> bool:
    """Return True if the client is not flooding: some of its calls and messages were not ended at once."""
    received = sum(isinstance(event, CallStarted | MessagesReceived) for event in events)
    return received > 2 * sum(isinstance(event, CallEnded) for event in events)


async def _not_implemented(call: ServerCall) -> None:
    raise RpcError(StatusCode.UNIMPLEMENTED, f"there is no method {call.method}")


class Server:
    """Serves gRPC methods.

    Args:
        handlers: Handler of each method, by its path.
        limits: Limits on the clients. Default: those of :class:`ServerLimits`.
    """

    def __init__(self, handlers: Mapping[str, Handler], *, limits: ServerLimits = DEFAULT_LIMITS) -> None:
        self.handlers = dict(handlers)
        self._limits = limits
        self._sweeping: asyncio.TimerHandle | None = None
        self.links: set[_ServerLink] = set()
        self._unread = Budget(limits.max_unread_bytes)
        self._unsent = Budget(limits.max_unsent_bytes)
        self._listener: Listener | None = None
        #: Number of open calls, of all clients and of each.
        self.calls = 0
        self.calls_of: Counter[str] = Counter()
        #: Decides which connections stay open.
        self.places = ConnectionPlaces(self.links, limits.max_connections)
        #: Number of calls refused because of a limit.
        self.refused_calls = 0
        #: Order in which the connections handle their frames.
        self.turns = Turns()

    @property
    def address(self) -> str:
        """Listening address, as ``host:port``."""
        if self._listener is None:
            raise UsageError("the server does not listen: call start() first")
        return self._listener.address

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None
    ) -> str:
        """Start to listen; return the address.

        Args:
            host: Host name or IP address to listen on.
            port: Port to listen on; 0 for any free port.
            tls: TLS context, None for plain TCP. The context is changed to offer HTTP/2 (ALPN).

        Raises:
            TransportError: Binding or listening failed.
            UsageError: The server is already listening.
        """
        if self._listener is not None:
            raise UsageError(f"the server listens already on {self._listener.address}")
        if tls is not None:
            offer_http2(tls)
        timeout = self._limits.handshake_timeout
        listener = Listener(self._new_link, tls=tls, admits=self.places.admits, handshake_timeout=timeout)
        await listener.start(host, port)
        self._listener = listener
        self._sweep()
        return self.address

    def replace_tls(self, tls: ssl.SSLContext) -> None:
        """Use another TLS context for connections accepted from now on. Open connections stay.

        Args:
            tls: TLS context. It is changed to offer HTTP/2 (ALPN).

        Raises:
            UsageError: The server does not listen.
        """
        if self._listener is None:
            raise UsageError("the server does not listen: call start() first")
        offer_http2(tls)
        self._listener.replace_tls(tls)

    @property
    def unread_bytes(self) -> int:
        """Bytes of requests that all connections hold unread."""
        return self._unread.used

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that all connections hold because their clients do not take them."""
        return self._unsent.used

    def reason_to_refuse(self, client: str) -> str:
        """Return why a client may not open another call now, empty if it may."""
        if (own := self.calls_of[client]) >= (most := self._limits.max_calls_per_client):
            return f"this client has {own} calls open (limit max_calls_per_client is {most}): end some first"
        if self.calls >= self._limits.max_calls:
            return f"all clients together have {self.calls} calls open: try again later"
        return ""

    def _sweep(self) -> None:
        """Close the connections of silent clients, and schedule the next check."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for link in list(self.links):
            link.abort_if_stuck()
            link.end_if_silent(now, self._limits)
        pause = min(self._limits.preface_timeout, self._limits.idle_timeout) / _SWEEPS
        self._sweeping = loop.call_later(pause, self._sweep)

    def refuse_calls(self) -> None:
        """Refuse new connections and calls, and send GOAWAY to the clients. Open calls continue."""
        if self._listener is not None:
            self._listener.close()
        for link in self.links:
            link.protocol.go_away()
            link.flush()

    async def close(self, *, grace: float = 0.0) -> None:
        """Refuse new calls and close every connection. Closing twice does nothing.

        Args:
            grace: Seconds for the open calls to finish. After that they are cancelled.
        """
        self.refuse_calls()
        if self._listener is not None:
            await self._listener.wait_closed()
        if self._sweeping is not None:
            self._sweeping.cancel()
        links = list(self.links)
        lost = self.turns.cancel_all()
        tasks = [task for link in links for task in link.tasks.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *lost, return_exceptions=True)
        for link in links:
            link.flush()
            link.end("the server was closed")
        await asyncio.gather(*(link.wait_closed() for link in links))

    def shed(self) -> None:
        """End the greediest call of the greediest connection if the unread byte budget is exceeded."""
        if self._unread.is_exceeded and self.links:
            link = max(self.links, key=lambda link: link.protocol.unread)
            text = f"all clients together hold more than {self._unread.limit} bytes unread"
            link.dispatch(link.protocol.refuse_greediest(text))
            link.flush_soon()

    def shed_unsent(self, flushed: _ServerLink) -> None:
        """End the greediest calls if the flushed connection, or all, exceed their unsent byte budgets."""
        most = self._limits.max_unsent_bytes_per_connection
        while flushed.protocol.unsent_bytes > most:
            flushed.end_most_unsent(f"this connection leaves more than {most} bytes of answers unsent")
        while self._unsent.is_exceeded:
            link = max(self.links, key=lambda link: link.protocol.unsent_bytes)
            link.end_most_unsent(f"all clients leave more than {self._unsent.limit} bytes of answers unsent")

    def _new_link(self) -> _ServerLink:
        protocol = ServerConnection(limits=self._limits, unread=self._unread, unsent=self._unsent)
        return _ServerLink(self, protocol)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
