"""Blocking gRPC client over one socket: for tests, tools and other code without an event loop."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from liftenvelope.errors import TransportError
from liftenvelope.rpc._client_side import ClientConnection
from liftenvelope.rpc._connection import DEFAULT_WINDOW
from liftenvelope.rpc._deadline_socket import NOT_YET, DeadlineSocket, remaining
from liftenvelope.rpc._events import CallEnded, Event, MessagesReceived
from liftenvelope.rpc._read_pacing import ReadPacer
from liftenvelope.rpc.address import Address, parse_address
from liftenvelope.rpc.framing import DEFAULT_MAX_MESSAGE
from liftenvelope.rpc.status import RpcError, StatusCode, cancelled_by_server

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

    from liftenvelope.rpc.framing import PayloadSink

__all__ = ["BlockingChannel", "Conversation", "ResponseStream"]

_RECEIVE_SIZE: Final = 256 * 1024
# Non-blocking reads per call of take_what_came: a server may send without a pause.
_RECEIVES: Final = 64
# Seconds to send the reset of a cancelled call. After that the connection is given up.
_CANCEL_TIMEOUT: Final = 1.0


def _earlier(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


class _Inbox:
    """Messages of one call not taken yet, and the end of the call.

    Attributes:
        messages: Messages that were received and not taken; empty for a call with a sink.
        fed: True if the call's sink got bytes since the last look.
        size: Bytes to release once they were taken.
    """

    def __init__(self, deadline: float | None) -> None:
        self.messages: deque[bytes] = deque()
        self.fed = False
        self.size = 0
        self.deadline = deadline
        self.ended: CallEnded | None = None

    def end(self, event: CallEnded) -> None:
        """Record the end of the call, with its error."""
        if event.cancelled:
            left = None if self.deadline is None else self.deadline - time.monotonic()
            event = replace(event, error=cancelled_by_server(left))
        self.ended = event


class _Session:
    """One connection: the sans-io protocol, its socket, and the inboxes of its open calls."""

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None,
        server_name: str | None,
        connect_timeout: float,
        max_message: int,
        max_header_list: int | None,
        window: int,
    ) -> None:
        scheme = "http" if tls is None else "https"
        self.protocol = ClientConnection(
            str(address),
            scheme=scheme,
            max_message=max_message,
            window=window,
            max_header_list=max_header_list,
        )
        self._inboxes: dict[int, _Inbox] = {}
        # One buffer for all reads: allocating and shrinking one for each read costs 10 us (mmap and munmap).
        self._buffer = memoryview(bytearray(_RECEIVE_SIZE))
        try:
            self._socket = DeadlineSocket(address, tls, server_name, connect_timeout)
        except OSError as exc:
            raise TransportError(f"can't connect to {address}: {exc}") from exc

    def start_call(
        self,
        method: str,
        request: bytes | None,
        timeout: float | None,
        deadline: float | None,
        sink: PayloadSink | None,
    ) -> tuple[int, _Inbox]:
        call_id = self.protocol.start_call(method, timeout=timeout, sink=sink)
        if request is not None:
            self.protocol.send(call_id, [request])
            self.protocol.half_close(call_id)
        inbox = self._inboxes[call_id] = _Inbox(deadline)
        return call_id, inbox

    def cancel(self, call_id: int) -> None:
        if call_id not in self._inboxes:
            return
        self.protocol.cancel(call_id)
        self._inboxes.pop(call_id, None)
        self.flush(time.monotonic() + _CANCEL_TIMEOUT)
        self._close_if_done()

    def pump(self, deadline: float | None, pause: float = 0.0) -> None:
        """Send the pending data, then wait for one read and deliver its messages.

        Args:
            deadline: Time by which data must arrive.
            pause: Seconds to sleep before the read. No sleep if the deadline is nearer.

        Raises:
            TimeoutError: Nothing arrived before ``deadline``.
        """
        self.flush(deadline)
        if pause and (deadline is None or time.monotonic() + pause < deadline):
            time.sleep(pause)
        while self.protocol.open_calls:
            remaining(deadline)  # before each read: a server may send frames of no call without a pause
            try:
                self._receive()
            except NOT_YET as exc:
                self._socket.wait(exc, deadline)
            else:
                return

    def take_what_came(self) -> None:
        """Deliver data already received by the socket. An idle session thus detects a closed connection."""
        try:
            for _ in range(_RECEIVES):
                if not self.protocol.accepts_calls:
                    return
                self._receive()
        except NOT_YET:
            pass

    def close(self) -> None:
        self._dispatch(self.protocol.connection_lost("the channel was closed"))

    def flush(self, deadline: float | None) -> None:
        """Send the pending data, as far as the server's windows allow."""
        try:
            if data := self.protocol.data_to_send():
                self._socket.send(data, deadline)
        except OSError as exc:
            # A timeout ends the connection as well: part of a frame may have been sent.
            self._dispatch(self.protocol.connection_lost(f"can't send: {exc}"))
        except BaseException:
            self._interrupted("sending was interrupted")
            raise

    def _receive(self) -> None:
        try:
            self._dispatch(self._received())
        except NOT_YET:
            raise
        except BaseException:
            self._interrupted("receiving was interrupted")
            raise

    def _received(self) -> list[Event]:
        try:
            size = self._socket.receive_into(self._buffer)
        except NOT_YET:
            raise
        except OSError as exc:
            return self.protocol.connection_lost(f"the connection was lost: {exc}")
        if not size:
            return self.protocol.connection_lost(self.protocol.closed_reason)
        return self.protocol.feed(self._buffer[:size])

    def _interrupted(self, reason: str) -> None:
        """Give up the connection, which an error like KeyboardInterrupt left with lost bytes or events."""
        self._dispatch(self.protocol.connection_lost(reason))
        for call_id in list(self._inboxes):  # calls whose last event was lost
            self._inboxes.pop(call_id).end(CallEnded(call_id, TransportError(reason)))
        self._close_if_done()

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, CallEnded):
                self._inboxes.pop(event.call_id).end(event)
            elif isinstance(event, MessagesReceived):
                inbox = self._inboxes[event.call_id]
                inbox.messages += event.messages
                inbox.size += event.size
                inbox.fed = not event.messages
        self._close_if_done()

    def _close_if_done(self) -> None:
        if not self.protocol.accepts_calls and not self._inboxes:
            self._socket.close()


class ResponseStream:
    """Responses of one call. Iterate over the stream, or take them with :meth:`receive`; then close it.

    Closing the stream before its end cancels the call. The stream is a context manager that closes itself.
    Iteration ends with the call's status OK, and raises the errors of :meth:`receive`.
    """

    def __init__(self, session: _Session, call_id: int, inbox: _Inbox, timeout: float | None) -> None:
        self._session = session
        self._call_id = call_id
        self._inbox = inbox
        self._timeout = timeout
        self._deadline = inbox.deadline
        self._pacer = ReadPacer()

    @property
    def ended(self) -> bool:
        """True if the call has ended. Messages received before can still be taken."""
        return self._inbox.ended is not None

    def receive(self, *, timeout: float | None = None) -> bytes | None:
        """Return the next message, or None at the end of the call.

        Args:
            timeout: Seconds to wait. After a timeout the call stays open: receive again.

        Raises:
            RpcError: The call ended with a status other than OK. DEADLINE_EXCEEDED: no message arrived
                within ``timeout``, or the call timed out.
            TransportError: The connection failed.
        """
        return self._inbox.messages.popleft() if self._wait(timeout) else None

    def wait(self, *, timeout: float | None = None, pause: float = 0.0) -> bool:
        """Wait until the call's sink gets bytes; return False at the end of the call.

        The server gets credit for these bytes with the next call. Errors are those of :meth:`receive`.

        Args:
            timeout: Seconds to wait. After a timeout the call stays open: wait again.
            pause: Seconds to sleep before the read while the server sends in small pieces, which then come in
                fewer reads, for less processor time. Bytes can be delayed by as much.
        """
        if not self._wait(timeout, pause if self._pacer.is_due else 0.0):
            return False
        if pause:
            self._pacer.received(self._inbox.size, time.monotonic())
        return True

    def _wait(self, timeout: float | None, pause: float = 0.0) -> bool:
        """Wait for a message, or for bytes for the sink. Return False at the end of the call."""
        limit = _earlier(self._deadline, None if timeout is None else time.monotonic() + timeout)
        inbox = self._inbox
        while not (inbox.messages or inbox.fed):
            if inbox.ended is not None:
                if inbox.ended.error is not None:
                    raise inbox.ended.error
                return False
            self._session.protocol.release(self._call_id, inbox.size)
            inbox.size = 0
            try:
                self._session.pump(limit, pause)
            except TimeoutError:
                self._timed_out(timeout)
        inbox.fed = False
        return True

    def close(self) -> None:
        """Cancel the call if it is open. Messages not yet taken are dropped."""
        self._inbox.messages.clear()
        self._inbox.fed = False
        if self._inbox.ended is None:
            self._cancel(RpcError(StatusCode.CANCELLED, "the call was closed here"))

    def _timed_out(self, timeout: float | None) -> None:
        """Raise DEADLINE_EXCEEDED. Cancel the call if its own deadline has passed."""
        if self._deadline is None or time.monotonic() < self._deadline:
            raise RpcError(StatusCode.DEADLINE_EXCEEDED, f"no message came within {timeout} s") from None
        error = RpcError(StatusCode.DEADLINE_EXCEEDED, f"the call did not end within {self._timeout:.4g} s")
        self._cancel(error)

    def _cancel(self, error: RpcError) -> None:
        self._inbox.ended = CallEnded(self._call_id, error)
        self._session.cancel(self._call_id)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        message = self.receive()
        if message is None:
            raise StopIteration
        return message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Conversation(ResponseStream):
    """Bidirectional call. Requests that wait for the server's windows are sent while receiving."""

    @property
    def unsent(self) -> int:
        """Bytes of requests that wait for the server's windows. Each receive sends more of them."""
        return self._session.protocol.unsent(self._call_id)

    def send_framed(self, frames: bytes, *, timeout: float | None = None) -> None:
        """Send messages that already have their gRPC prefixes; queue the part beyond the server's windows.

        Args:
            frames: The messages.
            timeout: Seconds for the socket to accept the bytes that the windows allow. After a timeout the
                connection is lost, and receiving raises the error.
        """
        if self._inbox.ended is None:
            self._session.protocol.send_framed(self._call_id, frames)
            self._session.flush(None if timeout is None else time.monotonic() + timeout)

    def poll(self) -> bool:
        """Pass the bytes already received to the call's sink, without waiting; return False for none."""
        if self._inbox.ended is None:
            self._session.take_what_came()
        fed, self._inbox.fed = self._inbox.fed, False
        return fed

    def half_close(self) -> None:
        """Close the sending side once all queued requests are sent."""
        if self._inbox.ended is None:
            self._session.protocol.half_close(self._call_id)


class BlockingChannel:
    """Client of one server over one connection. The first call connects; calls reconnect after a loss.

    A lost connection ends its open calls with an error; they are not repeated. Several calls can be open at
    once. A channel has no lock: use it from one thread.

    Args:
        address: ``host:port`` of the server.
        tls: TLS context, None for plain TCP. The context is changed to offer HTTP/2 (ALPN).
        server_name: Name that the server's certificate must have. Default: the host of ``address``.
        connect_timeout: Seconds for connecting, TLS handshake included.
        max_message: Largest message to receive, in bytes. A larger one ends its call.
        max_header_list: Largest list of response headers to accept, in bytes. None: 64 KiB.
        window: Bytes that the server may send on one call before any of them are taken.

    Example:
        >>> from liftenvelope._pb import api_pb2
        >>> from liftenvelope.testing import run_liftbridge
        >>> with run_liftbridge() as cluster, BlockingChannel(cluster.addresses[0]) as channel:
        ...     answer = channel.unary("/proto.API/FetchMetadata", b"", timeout=5.0)
        ...     [broker.id for broker in api_pb2.FetchMetadataResponse.FromString(answer).brokers]
        ['node1']
    """

    def __init__(
        self,
        address: str,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        connect_timeout: float = 5.0,
        max_message: int = DEFAULT_MAX_MESSAGE,
        max_header_list: int | None = None,
        window: int = DEFAULT_WINDOW,
    ) -> None:
        self._address = parse_address(address)
        self._tls = tls
        self._server_name = server_name
        self._connect_timeout = connect_timeout
        self._max_message = max_message
        self._max_header_list = max_header_list
        self._window = window
        self._session: _Session | None = None
        self._retired: list[_Session] = []

    def unary(self, method: str, request: bytes, *, timeout: float | None) -> bytes:
        """Call a unary method; return the response.

        Args:
            method: Path of the method, such as ``/proto.API/FetchMetadata``.
            request: The request message.
            timeout: Seconds for the whole call, None for no limit. It is sent to the server as well.

        Raises:
            RpcError: The call ended with a status other than OK. DEADLINE_EXCEEDED: the call timed out.
            TransportError: Connecting failed, or the connection failed before the status arrived. The server
                may have processed the call.
            UsageError: ``method`` or ``timeout`` is invalid.
        """
        with self.server_stream(method, request, timeout=timeout) as call:
            answer = call.receive()
            if answer is None or call.receive() is not None:
                raise RpcError(StatusCode.INTERNAL, f"{method}: the server did not send exactly one message")
        return answer

    def server_stream(
        self, method: str, request: bytes, *, timeout: float | None = None, sink: PayloadSink | None = None
    ) -> ResponseStream:
        """Start a server-streaming call; return its responses as a stream.

        Arguments and errors are those of :meth:`unary`. Errors after the start of the call are raised by the
        stream. With a ``sink``, the responses go there during :meth:`ResponseStream.wait`, straight from the
        receive buffer and not cut into messages.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        session = self._connected(timeout)
        call_id, inbox = session.start_call(method, request, timeout, deadline, sink)
        return ResponseStream(session, call_id, inbox, timeout)

    def conversation(self, method: str, *, sink: PayloadSink | None = None) -> Conversation:
        """Start a bidirectional call: any number of requests and responses.

        Arguments and errors are those of :meth:`server_stream`.
        """
        session = self._connected()
        call_id, inbox = session.start_call(method, None, None, None, sink)
        return Conversation(session, call_id, inbox, None)

    def connect(self) -> None:
        """Connect now, if not connected. Otherwise the first call connects.

        Raises:
            TransportError: Connecting failed.
        """
        self._connected()

    def close(self) -> None:
        """Close the connection. Open calls end with a TransportError."""
        for session in self._retired:
            session.close()
        self._retired.clear()
        if self._session is not None:
            self._session.close()
        self._session = None

    def _connected(self, timeout: float | None = None) -> _Session:
        """Return the connection; connect if there is none, within the smaller of the two timeouts."""
        session = self._session
        if session is not None:
            if session.protocol.accepts_calls:
                session.take_what_came()
            if session.protocol.accepts_calls:
                return session
            # Keep the old connection for its open calls: the server may still answer them.
            self._retired = [old for old in (*self._retired, session) if old.protocol.open_calls]
        limit = self._connect_timeout if timeout is None else min(timeout, self._connect_timeout)
        self._session = _Session(
            self._address,
            self._tls,
            self._server_name,
            limit,
            self._max_message,
            self._max_header_list,
            self._window,
        )
        return self._session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
