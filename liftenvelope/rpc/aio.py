"""gRPC calls for asyncio, over one connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from liftenvelope.errors import TransportError
from liftenvelope.rpc._link import Flow, Incoming, Link
from liftenvelope.rpc.address import Address, parse_address
from liftenvelope.rpc.client_side import ClientConnection
from liftenvelope.rpc.connection import DEFAULT_WINDOW
from liftenvelope.rpc.events import CallEnded, Event, HeadersReceived, MessagesReceived, Pong
from liftenvelope.rpc.framing import DEFAULT_MAX_MESSAGE
from liftenvelope.rpc.keepalive import PING_TIMEOUT, Keepalive
from liftenvelope.rpc.status import RpcError, StatusCode, cancelled_by_server
from liftenvelope.rpc.tls import check_protocol, offer_http2

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from liftenvelope.rpc.headers import Metadata

__all__ = ["Call", "Channel"]

_TLS_SHUTDOWN_TIMEOUT: Final = 1.0
#: Bytes to receive at a time while a server sends frames for no call. 256 KiB of empty frames take half
#: a second, in which no time-out is noticed.
_BRIEF: Final = 16 * 1024


class _ClientLink(Link[ClientConnection]):
    """A connection to a server, and the calls that are open on it."""

    def __init__(self, protocol: ClientConnection, keepalive: Keepalive) -> None:
        super().__init__(protocol)
        self.calls: dict[int, Call] = {}
        self._keepalive = keepalive
        self._timer: asyncio.TimerHandle | None = None
        self._brief = self._buffer[:_BRIEF]
        self._is_useful = True

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what comes: little at a time while nothing of it is for a call."""
        return super().get_buffer(sizehint) if self._is_useful else self._brief

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands, over TLS too: begin to look after it."""
        super().connection_made(transport)
        self._keep_alive()

    def dispatch(self, events: list[Event]) -> None:
        """Hand events to their calls."""
        self._is_useful = bool(events)
        self._keepalive.heard(self.loop.time(), of_calls=bool(events))
        for event in events:
            if isinstance(event, Pong):
                self._keepalive.answered()
            elif isinstance(event, MessagesReceived):
                self.flows[event.call_id].received(event)
            elif isinstance(event, HeadersReceived):
                self.calls[event.call_id].initial_metadata = event.metadata
            elif isinstance(event, CallEnded):
                self.calls[event.call_id].ended(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: end every call, and ask for no sign of life any more."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

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
    """One call: messages both ways. Leave it by ``async with``, which cancels it if it has not ended.

    Receive from one task at a time. Messages come in lists, one for each piece of what the socket gave, so
    that a message costs no turn of the event loop; iterating over the call takes them one by one. What is
    not taken holds the server back when the window is full, and no other call.

    Attributes:
        initial_metadata: What came with the beginning of the answer; None before it.
        trailing_metadata: What came with the status; empty before it.
    """

    def __init__(self, link: _ClientLink, call_id: int, timeout: float | None) -> None:
        super().__init__(Flow(link, call_id))
        self.initial_metadata: Sequence[tuple[str, str | bytes]] | None = None
        self.trailing_metadata: Sequence[tuple[str, str | bytes]] = ()
        self._link = link
        self._id = call_id
        self._error: RpcError | TransportError | None = None
        self._timer: asyncio.TimerHandle | None = None
        link.calls[call_id] = self
        link.flows[call_id] = self._flow
        if timeout is not None:
            self._timer = link.loop.call_later(timeout, self._expire, timeout)

    async def send(self, messages: Iterable[bytes]) -> None:
        """Send messages, which share DATA frames, and writes with all that is sent in this turn of the loop.

        It waits while much is unsent because the server takes no more.

        Raises:
            RpcError: The call has ended, with this status or with OK (FAILED_PRECONDITION).
            TransportError: The connection failed.
        """
        if not self._flow.done:
            await self._flow.put(messages)
        if self._flow.done:
            raise self._error or RpcError(StatusCode.FAILED_PRECONDITION, "the server has ended the call")

    @property
    def is_over(self) -> bool:
        """Whether the call has ended, though :meth:`receive` may have messages still."""
        return self._flow.done

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be sent: neither on this call nor, in this turn, on its connection."""
        flow, link = self._flow, self._link
        return not flow.done and not link.flush_due and not link.protocol.unsent(self._id)

    def send_soon(self, messages: Iterable[bytes]) -> None:
        """Send messages, without waiting where :meth:`send` would: for those who look at :attr:`is_idle`."""
        self._link.protocol.send(self._id, messages)
        self._link.flush_soon()

    def listen(self, listener: Callable[[list[bytes]], object]) -> None:
        """Have messages given to a function as they come, which saves two turns of the loop.

        :meth:`receive` then only tells of the end. The function must be quick and must not raise: it is
        called between the socket and everything else on the connection.
        """
        self._flow.listener = listener

    def half_close(self) -> None:
        """Say that no more messages will be sent. The server's may still come."""
        self._link.protocol.half_close(self._id)
        self._link.flush_soon()

    async def receive(self) -> list[bytes] | None:
        """Return the next messages, at least one, or None at the end of the call.

        Raises:
            RpcError: The call ended with a status other than OK; DEADLINE_EXCEEDED when its time was up.
            TransportError: The connection failed; a CallNotProcessedError if the server never looked at the
                call.
        """
        received = await super().receive()
        if received is None and self._error is not None:
            raise self._error
        return received

    def cancel(self) -> None:
        """End the call here, and tell the server. Messages that were not taken are dropped."""
        self._flow.discard()
        self._begun.clear()
        self._stop(RpcError(StatusCode.CANCELLED, "the call was cancelled here"))

    def ended(self, event: CallEnded) -> None:
        """Take note of the end. For the channel."""
        self._error = event.error
        if event.cancelled:
            left = None if self._timer is None else self._timer.when() - self._link.loop.time()
            self._error = cancelled_by_server(left)
        self.trailing_metadata = event.metadata
        if self._timer is not None:
            self._timer.cancel()
        del self._link.calls[self._id]
        del self._link.flows[self._id]
        self._flow.finish()

    def _expire(self, timeout: float) -> None:
        text = f"the call did not end within {timeout} s"
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
    """Calls to one server over one connection. Made by :meth:`connect`; it belongs to that event loop.

    When the connection is lost, every call ends with an error and the channel is of no use: make another.

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

    def __init__(self, link: _ClientLink) -> None:
        self._link = link

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
            address: Its ``host:port``, with brackets around an IPv6 host.
            tls: How to speak TLS, None for plain TCP. The context is made to offer HTTP/2.
            server_name: Name that the server's certificate must have. Default: the host of ``address``.
            connect_timeout: Seconds for all of it.
            keepalive: Seconds of silence, with calls open, before the server is asked for a sign of life;
                None for never. It is asked less often where a default Go server would mind.
            keepalive_timeout: Seconds for its answer, after which the connection counts as lost.
            max_message: The longest message to take in, in bytes. A longer one ends its call.
            window: What the server may send on one call before any of it was taken, in bytes.
            max_header_list: Largest list of response headers to accept, in bytes. None: 64 KiB.

        Raises:
            TransportError: No connection could be made in time.
            UsageError: An argument makes no sense.
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
                return cls(await _open_link(target, tls, server_name, protocol, keep))
        except TimeoutError as exc:
            raise TransportError(f"can't connect to {target} within {connect_timeout} s") from exc
        except OSError as exc:
            raise TransportError(f"can't connect to {target}: {exc}") from exc

    @property
    def is_usable(self) -> bool:
        """Whether new calls can be made: not when it is closed, has failed, or the server goes away."""
        return self._link.protocol.accepts_calls

    @property
    def open_calls(self) -> int:
        """How many calls have not ended."""
        return self._link.protocol.open_calls

    async def unary(
        self, method: str, request: bytes, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> bytes:
        """Call a method with one answer; return the answer.

        Args:
            method: Path of the method, such as ``/proto.API/FetchMetadata``.
            request: The request message.
            timeout: Seconds for the whole call, None for no limit. The server is told it as well.
            metadata: Names and values to send along.

        Raises:
            RpcError: The call ended with a status other than OK; DEADLINE_EXCEEDED when the time is up.
            TransportError: The connection failed before the status came. The server may have done what was
                asked, unless it is a CallNotProcessedError.
            UsageError: An argument makes no sense.
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
        """Call a method with one request and any number of answers.

        Arguments and errors are those of :meth:`unary`; what goes wrong later is raised by the call.
        """
        call_id = self._link.protocol.start_call(method, timeout=timeout, metadata=metadata)
        call = Call(self._link, call_id, timeout)
        self._link.protocol.send(call_id, [request])
        self._link.protocol.half_close(call_id)
        self._link.flush()
        return call

    def bidi(self, method: str, *, timeout: float | None = None, metadata: Metadata = ()) -> Call:
        """Call a method with any number of requests and answers.

        Arguments and errors are those of :meth:`unary`; what goes wrong later is raised by the call.
        """
        call_id = self._link.protocol.start_call(method, timeout=timeout, metadata=metadata)
        self._link.flush_soon()
        return Call(self._link, call_id, timeout)

    async def close(self) -> None:
        """Close the connection. Calls that are open end with a TransportError. Closing twice is fine."""
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
) -> _ClientLink:
    loop = asyncio.get_running_loop()
    if tls is None:
        _, link = await loop.create_connection(lambda: _ClientLink(protocol, keepalive), *address)
        return link
    offer_http2(tls)
    transport, link = await loop.create_connection(
        lambda: _ClientLink(protocol, keepalive),
        *address,
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
