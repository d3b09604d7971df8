"""gRPC calls that block, over one socket: for tests, tools and other code without an event loop."""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from liftenvelope.errors import TransportError
from liftenvelope.rpc.address import Address, parse_address
from liftenvelope.rpc.client_side import ClientConnection
from liftenvelope.rpc.connection import DEFAULT_WINDOW
from liftenvelope.rpc.events import CallEnded, Event, MessagesReceived
from liftenvelope.rpc.framing import DEFAULT_MAX_MESSAGE
from liftenvelope.rpc.status import RpcError, StatusCode, cancelled_by_server
from liftenvelope.rpc.tls import check_protocol, offer_http2

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["BlockingChannel", "Conversation", "ResponseStream"]

_RECEIVE_SIZE: Final = 256 * 1024
# Pieces that are received without waiting before what they hold is looked at: a server may never pause.
_RECEIVES: Final = 64
# How long telling the server of a cancelled call may take. The connection is given up if it takes longer.
_CANCEL_TIMEOUT: Final = 1.0


def _remaining(deadline: float | None) -> float | None:
    """Return the seconds until ``deadline``, or raise TimeoutError if none are left."""
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _earlier(a: float | None, b: float | None) -> float | None:
    return min((time_ for time_ in (a, b) if time_ is not None), default=None)


class _Inbox:
    """Messages of one call that were received and not taken yet, and its end."""

    def __init__(self, deadline: float | None) -> None:
        self.messages: deque[bytes] = deque()
        self.size = 0
        self.deadline = deadline
        self.ended: CallEnded | None = None

    def end(self, event: CallEnded) -> None:
        """Keep the end of the call, with the error that it stands for."""
        if event.cancelled:
            left = None if self.deadline is None else self.deadline - time.monotonic()
            event = replace(event, error=cancelled_by_server(left))
        self.ended = event


class _Session:
    """One connection: the protocol, its socket, and the inboxes of the calls that are open on it."""

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
        # One for all: room that is made anew for every piece, and cut to size, costs 10 us (mmap and munmap).
        self._buffer = memoryview(bytearray(_RECEIVE_SIZE))
        try:
            self._socket = _connect(address, tls, server_name, connect_timeout)
        except OSError as exc:
            raise TransportError(f"can't connect to {address}: {exc}") from exc

    def start_call(
        self, method: str, request: bytes | None, timeout: float | None, deadline: float | None, pieces: bool
    ) -> tuple[int, _Inbox]:
        call_id = self.protocol.start_call(method, timeout=timeout, pieces=pieces)
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

    def pump(self, deadline: float | None) -> None:
        """Send what is due, then wait for something to come and hand it out.

        Raises:
            TimeoutError: Nothing came before ``deadline``.
        """
        self.flush(deadline)
        if not self.protocol.open_calls:
            return
        self._socket.settimeout(_remaining(deadline))
        self._receive()

    def take_what_came(self) -> None:
        """Hand out what has come already. So an idle session learns that its server has gone."""
        self._socket.settimeout(0)
        try:
            for _ in range(_RECEIVES):
                if not self.protocol.accepts_calls:
                    return
                self._receive()
        except (BlockingIOError, ssl.SSLWantReadError):
            pass

    def close(self) -> None:
        self._dispatch(self.protocol.connection_lost("the channel was closed"))

    def flush(self, deadline: float | None) -> None:
        """Send what is due, as far as the server's windows allow."""
        self._socket.settimeout(_remaining(deadline))
        try:
            self._socket.sendall(self.protocol.data_to_send())
        except OSError as exc:
            # After a timeout too the connection is of no more use: part of a frame may have gone out.
            self._dispatch(self.protocol.connection_lost(f"can't send: {exc}"))

    def _receive(self) -> None:
        try:
            size = self._socket.recv_into(self._buffer)
        except (BlockingIOError, TimeoutError, ssl.SSLWantReadError):
            raise
        except OSError as exc:
            self._dispatch(self.protocol.connection_lost(f"the connection was lost: {exc}"))
            return
        if size:
            self._dispatch(self.protocol.feed(bytes(self._buffer[:size])))
        else:
            self._dispatch(self.protocol.connection_lost("the server closed the connection"))

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, CallEnded):
                self._inboxes.pop(event.call_id).end(event)
            elif isinstance(event, MessagesReceived):
                inbox = self._inboxes[event.call_id]
                inbox.messages += event.messages
                inbox.size += event.size
        self._close_if_done()

    def _close_if_done(self) -> None:
        if not self.protocol.accepts_calls and not self._inboxes:
            self._socket.close()


def _connect(
    address: Address, tls: ssl.SSLContext | None, server_name: str | None, timeout: float
) -> socket.socket:
    """Return a connected socket, on which TLS is spoken already if it is to be."""
    deadline = time.monotonic() + timeout
    connection = socket.create_connection(address, timeout=timeout)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return connection
        offer_http2(tls)
        connection.settimeout(_remaining(deadline))
        secured = tls.wrap_socket(connection, server_hostname=server_name or address.host)
    except BaseException:
        connection.close()
        raise
    try:
        check_protocol(secured, address)
    except TransportError:
        secured.close()
        raise
    return secured


class ResponseStream:
    """The answers to one call. Iterate over it, or take them with :meth:`receive`; then close it.

    Closing it before its end cancels the call. It is a context manager that closes itself. Iteration ends
    with the call's status OK, and raises what :meth:`receive` raises.
    """

    def __init__(self, session: _Session, call_id: int, inbox: _Inbox, timeout: float | None) -> None:
        self._session = session
        self._call_id = call_id
        self._inbox = inbox
        self._timeout = timeout
        self._deadline = inbox.deadline

    @property
    def ended(self) -> bool:
        """Whether the call has ended. What came before and was not taken is still there."""
        return self._inbox.ended is not None

    def receive(self, *, timeout: float | None = None) -> bytes | None:
        """Return the next message, or None at the end of the call.

        Args:
            timeout: Seconds to wait. When they have passed, the call goes on and can be asked again.

        Raises:
            RpcError: The call ended with a status other than OK. DEADLINE_EXCEEDED also when nothing came
                within ``timeout``, or within the timeout of the call.
            TransportError: The connection failed.
        """
        return self._inbox.messages.popleft() if self._wait(timeout) else None

    def receive_all(self, *, timeout: float | None = None) -> list[bytes]:
        """Return all that has come, once there is something; an empty list at the end of the call.

        Arguments and errors are those of :meth:`receive`.
        """
        if not self._wait(timeout):
            return []
        came = list(self._inbox.messages)
        self._inbox.messages.clear()
        return came

    def _wait(self, timeout: float | None) -> bool:
        """Whether there is a message, waiting for one unless the call has ended."""
        limit = _earlier(self._deadline, None if timeout is None else time.monotonic() + timeout)
        while not self._inbox.messages:
            if self._inbox.ended is not None:
                if self._inbox.ended.error is not None:
                    raise self._inbox.ended.error
                return False
            self._session.protocol.release(self._call_id, self._inbox.size)
            self._inbox.size = 0
            try:
                self._session.pump(limit)
            except TimeoutError:
                self._timed_out(timeout)
        return True

    def close(self) -> None:
        """Cancel the call if it has not ended. Messages that came and were not taken are dropped."""
        self._inbox.messages.clear()
        if self._inbox.ended is None:
            self._cancel(RpcError(StatusCode.CANCELLED, "the call was closed here"))

    def _timed_out(self, timeout: float | None) -> None:
        """Raise DEADLINE_EXCEEDED, and cancel the call if it is the call's own time that is up."""
        if self._deadline is None or time.monotonic() < self._deadline:
            raise RpcError(StatusCode.DEADLINE_EXCEEDED, f"no message came within {timeout} s") from None
        error = RpcError(StatusCode.DEADLINE_EXCEEDED, f"the call did not end within {self._timeout} s")
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
    """A call with any number of requests and answers, whose requests are sent while answers are awaited."""

    @property
    def unsent(self) -> int:
        """How many bytes of requests wait for the server's windows. Each wait for answers sends more."""
        return self._session.protocol.unsent(self._call_id)

    def send_framed(self, frames: bytes, *, timeout: float | None = None) -> None:
        """Send messages that have their gRPC prefixes already, or have them wait for the server's windows.

        Args:
            frames: The messages.
            timeout: Seconds that the system may take to accept what the windows allow. A connection that
                takes longer is lost: waiting for answers says so.
        """
        if self._inbox.ended is None:
            self._session.protocol.send_framed(self._call_id, frames)
            self._session.flush(None if timeout is None else time.monotonic() + timeout)

    def take(self) -> list[bytes]:
        """Return what has come already, without waiting."""
        if self._inbox.ended is None:
            self._session.take_what_came()
        came = list(self._inbox.messages)
        self._inbox.messages.clear()
        return came

    def half_close(self) -> None:
        """Say that no more requests will be sent, once all are."""
        if self._inbox.ended is None:
            self._session.protocol.half_close(self._call_id)


class BlockingChannel:
    """Calls to one server over one connection, which is made by the first call, and anew when it is lost.

    A lost connection ends the calls that are open, with an error; they are not repeated. Several calls can
    be open at once, but a channel is for one thread: it has no lock.

    Args:
        address: ``host:port`` of the server.
        tls: How to speak TLS, None for plain TCP. The context is made to offer HTTP/2.
        server_name: Name that the server's certificate must have. Default: the host of ``address``.
        connect_timeout: Seconds for making a connection.
        max_message: The longest message to take in, in bytes. A longer one ends its call.
        max_header_list: Largest list of response headers to accept, in bytes. None: 64 KiB.
        window: What the server may send on one call before any of it was taken, in bytes.

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
        """Call a method with one answer; return the answer.

        Args:
            method: Path of the method, such as ``/proto.API/FetchMetadata``.
            request: The request message.
            timeout: Seconds for the whole call, None for no limit. The server is told it as well.

        Raises:
            RpcError: The call ended with a status other than OK; DEADLINE_EXCEEDED when the time is up.
            TransportError: No connection could be made, or it failed before the status came. The server may
                have done what was asked.
            UsageError: ``method`` or ``timeout`` makes no sense.
        """
        with self.server_stream(method, request, timeout=timeout) as call:
            answer = call.receive()
            if answer is None or call.receive() is not None:
                raise RpcError(StatusCode.INTERNAL, f"{method}: the server did not send exactly one message")
        return answer

    def server_stream(
        self, method: str, request: bytes, *, timeout: float | None = None, pieces: bool = False
    ) -> ResponseStream:
        """Call a method with any number of answers; return them as a stream.

        Arguments and errors are those of :meth:`unary`; what goes wrong after the call has begun is raised
        by the stream. With ``pieces`` it has the bytes as they came, with the prefixes of messages in them
        and cut anywhere, for callers that read messages in bulk.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        session = self._connected(timeout)
        call_id, inbox = session.start_call(method, request, timeout, deadline, pieces)
        return ResponseStream(session, call_id, inbox, timeout)

    def conversation(self, method: str, *, pieces: bool = False) -> Conversation:
        """Call a method with any number of requests and answers.

        Arguments and errors are those of :meth:`server_stream`.
        """
        session = self._connected()
        call_id, inbox = session.start_call(method, None, None, None, pieces)
        return Conversation(session, call_id, inbox, None)

    def connect(self) -> None:
        """Make the connection now, if there is none. Otherwise the first call does.

        Raises:
            TransportError: None could be made.
        """
        self._connected()

    def close(self) -> None:
        """Close the connection. Calls that are open end with a TransportError."""
        for session in self._retired:
            session.close()
        self._retired.clear()
        if self._session is not None:
            self._session.close()
        self._session = None

    def _connected(self, timeout: float | None = None) -> _Session:
        """The connection, made now if there is none, within the smaller of the two time-outs."""
        session = self._session
        if session is not None:
            if session.protocol.accepts_calls:
                session.take_what_came()
            if session.protocol.accepts_calls:
                return session
            # The server may still answer the calls that are open there.
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
