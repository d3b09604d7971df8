"""asyncio gRPC client over one connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from liftenvelope.errors import TransportError
from liftenvelope.rpc._client_side import ClientConnection
from liftenvelope.rpc._connection import DEFAULT_WINDOW
from liftenvelope.rpc._events import CallEnded, Event, HeadersReceived, MessagesReceived, Pong
from liftenvelope.rpc._keepalive import PING_TIMEOUT, Keepalive
from liftenvelope.rpc._link import Flow, Incoming, TransportLink
from liftenvelope.rpc._read_pacing import ReadPacer
from liftenvelope.rpc.address import Address, connect_async, parse_address
from liftenvelope.rpc.framing import DEFAULT_MAX_MESSAGE
from liftenvelope.rpc.status import RpcError, StatusCode, cancelled_by_server
from liftenvelope.rpc.tls import check_protocol, offer_http2

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from liftenvelope.rpc._headers import Metadata

__all__ = ["Call", "Channel"]

_TLS_SHUTDOWN_TIMEOUT: Final = 1.0
#: Bytes to receive at a time while a server sends frames that belong to no call. Parsing 256 KiB of empty
#: frames takes half a second, during which no timeout can fire.
_BRIEF: Final = 16 * 1024


class _ClientLink(TransportLink[ClientConnection]):
    """Connection to a server, with its open calls."""

    def __init__(self, protocol: ClientConnection, keepalive: Keepalive) -> None:
        super().__init__(protocol)
        self.calls: dict[int, Call] = {}
        self._keepalive = keepalive
        self._timer: asyncio.TimerHandle | None = None
        self._brief = self._buffer[:_BRIEF]
        self._is_useful = True
        self._resting: asyncio.TimerHandle | None = None
        self._greeted = asyncio.Event()

    async def greeted(self) -> None:
        """Wait for the first frame of the server, or the end of the connection."""
        await self._greeted.wait()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the receive buffer: a small one if the last read held nothing for a call."""
        return super().get_buffer(sizehint) if self._is_useful else self._brief

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface and start the keepalive timer: the connection is open, TLS included."""
        super().connection_made(transport)
        self._keep_alive()

    def dispatch(self, events: list[Event]) -> None:
        """Route events to their calls."""
        self._is_useful = bool(events)
        if not self._greeted.is_set() and self.protocol.is_greeted:
            self._greeted.set()
        self._keepalive.heard(self.loop.time(), of_calls=bool(events))
        for event in events:
            if isinstance(event, Pong):
                self._keepalive.answered()
            elif isinstance(event, MessagesReceived):
                call = self.calls[event.call_id]
                self.flows[event.call_id].received(event)
                if call.pause:
                    call.pace(event.size)
            elif isinstance(event, HeadersReceived):
                self.calls[event.call_id].initial_metadata = event.metadata
            elif isinstance(event, CallEnded):
                self.calls[event.call_id].ended(event)

    @property
    def closed_reason(self) -> str:
        """Text for calls that end because the server has closed the connection."""
        return self.protocol.closed_reason

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the keepalive timer and end every call: the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
        self._end_rest()
        super().connection_lost(exc)
        self._greeted.set()

    def add(self, call_id: int, call: Call, flow: Flow) -> None:
        """Route the events of a new call. Its answer must not wait for the end of a rest."""
        self.calls[call_id], self.flows[call_id] = call, flow
        self._end_rest()

    def rest(self, seconds: float) -> None:
        """Stop reading for some seconds, unless another call is open."""
        transport, is_alone = self._transport, len(self.calls) == 1
        if transport is not None and not transport.is_closing() and self._resting is None and is_alone:
            transport.pause_reading()
            self._resting = self.loop.call_later(seconds, self._end_rest)

    def _end_rest(self) -> None:
        if self._resting is None:
            return
        self._resting.cancel()
        self._resting = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _keep_alive(self) -> None:
        now = self.loop.time()
        if self._keepalive.is_dead(now):
            self.fail("the server did not answer a ping")
            return
        if self._keepalive.due(now, open_calls=self.protocol.open_calls > 0):
            self.protocol.ping()
            self.flush()
        if (wait := self._keepalive.wait(now)) is not None:
            self._timer = self.loop.call_later(wait, self._keep_alive)


class Call(Incoming):
    """One call with messages in both directions. Use it in ``async with``, which cancels it if still open.

    Receive from one task at a time. :meth:`receive` returns a list of the messages of one socket read, so
    that a message does not cost a turn of the event loop. Iterating over the call yields single messages.
    Messages not taken stop the server when the window of this call is full. Other calls are not affected.

    Attributes:
        initial_metadata: Metadata of the response headers; None before they arrive.
        trailing_metadata: Metadata of the trailers; empty before they arrive.
        pause: Seconds to stop reading after a read while the server sends in small pieces, which then come in
            fewer reads, for less processor time. Only while no other call is open on the connection. Messages
            can be delayed by as much. Default 0.0.
    """

    def __init__(self, link: _ClientLink, call_id: int, timeout: float | None) -> None:
        super().__init__(Flow(link, call_id))
        self.initial_metadata: Sequence[tuple[str, str | bytes]] | None = None
        self.trailing_metadata: Sequence[tuple[str, str | bytes]] = ()
        self._link = link
        self._id = call_id
        self._error: RpcError | TransportError | None = None
        self._timer: asyncio.TimerHandle | None = None
        # uvloop's handle of a timer that is due at once does not tell its time.
        self._ends_at = None if timeout is None else link.loop.time() + timeout
        self.pause = 0.0
        self._pacer = ReadPacer()
        link.add(call_id, self, self._flow)
        if timeout is not None:
            self._timer = link.loop.call_later(timeout, self._expire, timeout)

    async def send(self, messages: Iterable[bytes]) -> None:
        """Send messages; wait while more than 256 KiB are unsent because the server takes no more.

        The messages share DATA frames. All sends in one turn of the event loop share one write.

        Raises:
            RpcError: The call has ended. The error has the call's status, or FAILED_PRECONDITION if the call
                ended with OK.
            TransportError: The connection failed.
        """
        if not self._flow.done:
            await self._flow.put(messages)
        if self._flow.done:
            raise self._error or RpcError(StatusCode.FAILED_PRECONDITION, "the server has ended the call")

    @property
    def is_over(self) -> bool:
        """True if the call has ended. :meth:`receive` may still return messages."""
        return self._flow.done

    @property
    def is_idle(self) -> bool:
        """True if the call is open and nothing is unsent: no bytes of the call, no flush scheduled."""
        flow, link = self._flow, self._link
        return not flow.done and not link.flush_due and not link.protocol.unsent(self._id)

    def send_soon(self, messages: Iterable[bytes]) -> None:
        """Send messages without waiting, for callers that check :attr:`is_idle`."""
        self._link.protocol.send(self._id, messages)
        self._link.flush_soon()

    def listen(self, listener: Callable[[list[bytes]], object]) -> None:
        """Pass messages to a callback as they arrive, which saves two turns of the event loop.

        :meth:`receive` then only reports the end of the call. The callback must be quick and must not raise:
        it runs inside the connection's receive path and blocks everything else on the connection.
        """
        self._flow.listener = listener

    def half_close(self) -> None:
        """Close the sending side. Messages of the server can still be received."""
        self._link.protocol.half_close(self._id)
        self._link.flush_soon()

    async def receive(self) -> list[bytes] | None:
        """Return the next messages, at least one, or None at the end of the call.

        Raises:
            RpcError: The call ended with a status other than OK. DEADLINE_EXCEEDED: the call timed out.
            TransportError: The connection failed. CallNotProcessedError: the server never processed the call.
        """
        received = await super().receive()
        if received is None and self._error is not None:
            raise self._error
        return received

    def cancel(self) -> None:
        """Cancel the call and tell the server. Messages not yet taken are dropped."""
        self._flow.discard()
        self._begun.clear()
        self._stop(RpcError(StatusCode.CANCELLED, "the call was cancelled here"))

    def pace(self, size: int) -> None:
        """Stop reading for a moment if that saves time, after ``size`` bytes. Called by the connection."""
        self._pacer.received(size, self._link.loop.time())
        if self._pacer.is_due:
            self._link.rest(self.pause)

    def ended(self, event: CallEnded) -> None:
        """Record the end of the call. Called by the connection."""
        self._error = event.error
        if event.cancelled:
            left = None if self._ends_at is None else self._ends_at - self._link.loop.time()
            self._error = cancelled_by_server(left)
        self.trailing_metadata = event.metadata
        if self._timer is not None:
            self._timer.cancel()
        del self._link.calls[self._id]
        del self._link.flows[self._id]
        self._flow.finish()

    def _expire(self, timeout: float) -> None:
        text = f"the call did not end within {timeout:.4g} s"
        self._stop(RpcError(StatusCode.DEADLINE_EXCEEDED, text))

    def _stop(self, error: RpcError) -> None:
        if not self._flow.done:
            self._link.protocol.cancel(self._id)
            self._link.flush()
            self.ended(CallEnded(self._id, error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()


class Channel:
    """Client of one server over one connection. Created by :meth:`connect`; bound to the running event loop.

    If the connection is lost, every call ends with an error and the channel stays closed: open a new one.

    Example:
        >>> import asyncio
        >>> from liftenvelope._pb import api_pb2
        >>> from liftenvelope.testing import run_liftbridge
        >>> async def brokers(address: str) -> list[str]:
        ...     async with await Channel.connect(address) as channel:
        ...         answer = await channel.unary("/proto.API/FetchMetadata", b"", timeout=5.0)
        ...     return [broker.id for broker in api_pb2.FetchMetadataResponse.FromString(answer).brokers]
        >>> with run_liftbridge() as cluster:
        ...     asyncio.run(brokers(cluster.addresses[0]))
        ['node1']
    """

    def __init__(self, link: _ClientLink, address: Address) -> None:
        self._link = link
        self._address = address

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        connect_timeout: float = 5.0,
        keepalive: float | None = 30.0,
        keepalive_timeout: float = PING_TIMEOUT,
        max_message: int = DEFAULT_MAX_MESSAGE,
        window: int = DEFAULT_WINDOW,
        max_header_list: int | None = None,
    ) -> Self:
        """Connect to a server.

        Args:
            address: ``host:port`` of the server, with brackets around an IPv6 host.
            tls: TLS context, None for plain TCP. The context is changed to offer HTTP/2 (ALPN).
            server_name: Name that the server's certificate must have. Default: the host of ``address``.
            connect_timeout: Seconds for connecting, TLS handshake included.
            keepalive: Seconds of silence, with calls open, before a ping is sent; None for no pings. Pings
                are rarer where a Go server with default settings would end the connection for them.
            keepalive_timeout: Seconds to wait for the answer to a ping before the connection counts as lost.
            max_message: Largest message to receive, in bytes. A larger one ends its call.
            window: Bytes that the server may send on one call before any of them are taken.
            max_header_list: Largest list of response headers to accept, in bytes. None: 64 KiB.

        Raises:
            TransportError: The connection failed or timed out.
            UsageError: An argument is invalid.
        """
        target = parse_address(address)
        scheme = "http" if tls is None else "https"
        protocol = ClientConnection(
            str(target),
            scheme=scheme,
            max_message=max_message,
            window=window,
            max_header_list=max_header_list,
        )
        keep = Keepalive(keepalive, asyncio.get_running_loop().time(), keepalive_timeout)
        try:
            async with asyncio.timeout(connect_timeout):
                link = await _open_link(target, tls, server_name, protocol, keep, connect_timeout)
                return cls(link, target)
        except TimeoutError as exc:
            raise TransportError(f"can't connect to {target} within {connect_timeout} s") from exc
        except OSError as exc:
            raise TransportError(f"can't connect to {target}: {exc}") from exc

    async def wait_greeted(self, timeout: float) -> None:
        """Wait for the server's first frame, which it sends as soon as it is connected (RFC 9113, 3.4).

        The system accepts connections for a server that stands still, and for one that speaks no HTTP/2.

        Args:
            timeout: Seconds to wait.

        Raises:
            TransportError: No frame came in time, or the connection failed. No call was made.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._link.greeted()
        except TimeoutError as exc:
            text = f"{self._address} accepted the connection and sent nothing within {timeout:.3g} s"
            raise TransportError(text) from exc
        if not self.is_usable:
            raise TransportError(f"{self._address}: {self._link.protocol.refusal}")

    @property
    def is_usable(self) -> bool:
        """True if new calls can be started: the channel is not closed or failed, and got no GOAWAY."""
        return self._link.protocol.accepts_calls

    @property
    def open_calls(self) -> int:
        """Number of open calls."""
        return self._link.protocol.open_calls

    async def unary(
        self, method: str, request: bytes, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> bytes:
        """Call a unary method; return the response.

        Args:
            method: Path of the method, such as ``/proto.API/FetchMetadata``.
            request: The request message.
            timeout: Seconds for the whole call, None for no limit. It is sent to the server as well.
            metadata: Names and values to send with the call.

        Raises:
            RpcError: The call ended with a status other than OK. DEADLINE_EXCEEDED: the call timed out.
            TransportError: The connection failed before the status arrived. The server may have processed
                the call, unless the error is a CallNotProcessedError.
            UsageError: An argument is invalid.
        """
        answer: list[bytes] = []
        async with self.server_stream(method, request, timeout=timeout, metadata=metadata) as call:
            while (messages := await call.receive()) is not None:
                answer += messages
                if len(answer) > 1:  # a server may send any number
                    break
        if len(answer) != 1:
            raise RpcError(StatusCode.INTERNAL, f"{method}: the server did not send exactly one message")
        return answer[0]

    def server_stream(
        self, method: str, request: bytes, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> Call:
        """Start a server-streaming call: one request, any number of responses.

        Arguments and errors are those of :meth:`unary`. Later errors are raised by the returned call.
        """
        call_id = self._link.protocol.start_call(method, timeout=timeout, metadata=metadata)
        call = Call(self._link, call_id, timeout)
        self._link.protocol.send(call_id, [request])
        self._link.protocol.half_close(call_id)
        self._link.flush()
        return call

    def bidi(self, method: str, *, timeout: float | None = None, metadata: Metadata = ()) -> Call:
        """Start a bidirectional call: any number of requests and responses.

        Arguments and errors are those of :meth:`unary`. Later errors are raised by the returned call.
        """
        call_id = self._link.protocol.start_call(method, timeout=timeout, metadata=metadata)
        self._link.flush_soon()
        return Call(self._link, call_id, timeout)

    async def close(self) -> None:
        """Close the connection. Open calls end with a TransportError. Closing twice does nothing."""
        self._link.fail("the channel was closed")
        await self._link.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


async def _open_link(
    address: Address,
    tls: ssl.SSLContext | None,
    server_name: str | None,
    protocol: ClientConnection,
    keepalive: Keepalive,
    timeout: float,
) -> _ClientLink:
    loop = asyncio.get_running_loop()
    if tls is not None:
        offer_http2(tls)
    connection = await connect_async(address, timeout)
    if tls is None:
        _, link = await loop.create_connection(lambda: _ClientLink(protocol, keepalive), sock=connection)
        return link
    transport, link = await loop.create_connection(
        lambda: _ClientLink(protocol, keepalive),
        sock=connection,
        ssl=tls,
        server_hostname=server_name or address.host,
        ssl_shutdown_timeout=_TLS_SHUTDOWN_TIMEOUT,
    )
    try:
        check_protocol(transport.get_extra_info("ssl_object"), address)
    except TransportError as exc:
        link.fail(str(exc))
        await link.wait_closed()
        raise
    return link
