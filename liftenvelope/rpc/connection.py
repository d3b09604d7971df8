"""The client's side of one gRPC connection, without any I/O.

The shell around a :class:`ClientConnection` sends what :meth:`~ClientConnection.data_to_send` returns,
feeds what it receives, and hands the events to whoever made the calls. HTTP/2 itself is h2's work, all but
GOAWAY: after one, the calls that the server has accepted go on (RFC 9113, 6.8), but h2 counts the
connection as closed and refuses their frames. So those frames are handled here, and h2 never sees them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

from liftenvelope._version import __version__
from liftenvelope.errors import MissingExtraError, TransportError, UsageError
from liftenvelope.rpc.frames import GOAWAY, MAX_FRAME_SIZE, FrameSplitter, payload_length
from liftenvelope.rpc.framing import DEFAULT_MAX_MESSAGE, MessageReader, frame_message
from liftenvelope.rpc.status import RpcError, StatusCode, http_error, reset_error, trailers_error

try:
    from h2 import events as h2_events
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.errors import ErrorCodes
    from h2.exceptions import NoAvailableStreamIDError, ProtocolError, TooManyStreamsError
    from h2.settings import SettingCodes, Settings
except ImportError as _exc:
    raise MissingExtraError("gRPC needs h2: pip install 'liftenvelope[client]'") from _exc

__all__ = ["CallEnded", "ClientConnection", "Event", "MessageReceived"]

# What the server may send on one call before the caller has taken any of it. Larger than any message of
# Liftbridge, so that none needs a round trip in its middle.
_STREAM_WINDOW: Final = 4 * 1024 * 1024
# As far as HTTP/2 goes. The windows of the streams hold the server back; if that of the connection did as
# well, a call that nobody reads could stall the others.
_CONNECTION_WINDOW: Final = 2**31 - 1
_INITIAL_CONNECTION_WINDOW: Final = 65_535

# gRPC's timeouts have 8 digits at most. The finest unit that holds the time is used.
_TIMEOUT_UNITS: Final = (("u", 1_000_000), ("m", 1_000), ("S", 1))
_LONGEST_TIMEOUT: Final = 99_999_999


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message came in answer to a call."""

    call_id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The last event of a call.

    Attributes:
        call_id: The call.
        error: None for status OK; :class:`~liftenvelope.rpc.status.RpcError` for any other;
            :class:`~liftenvelope.errors.TransportError` when the connection failed before a status came.
    """

    call_id: int
    error: RpcError | TransportError | None


Event: TypeAlias = MessageReceived | CallEnded


@dataclass(slots=True)
class _Call:
    unsent: memoryview
    reader: MessageReader
    #: Bytes that the server has sent and has not been given room for again.
    unreleased: int = 0


def timeout_header(timeout: float) -> str:
    """Return the value of ``grpc-timeout`` for a time in seconds, rounded up.

    Raises:
        UsageError: ``timeout`` is not a positive, finite number.

    >>> timeout_header(1.5), timeout_header(3600)
    ('1500000u', '3600000m')
    """
    if not 0 < timeout < math.inf:
        raise UsageError(f"timeout={timeout!r}: expected a positive number of seconds, or None")
    for unit, per_second in _TIMEOUT_UNITS:
        if (count := math.ceil(timeout * per_second)) <= _LONGEST_TIMEOUT:
            return f"{count}{unit}"
    return f"{_LONGEST_TIMEOUT}S"


def _new_h2_connection() -> H2Connection:
    connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    connection.local_settings = Settings(
        client=True,
        initial_values={SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW},
    )
    connection.initiate_connection()
    connection.increment_flow_control_window(_CONNECTION_WINDOW - _INITIAL_CONNECTION_WINDOW)
    return connection


class ClientConnection:
    """The protocol of one connection to a gRPC server, for calls with one request message.

    Args:
        authority: Name of the server for the ``:authority`` header, such as ``127.0.0.1:9292``.
        max_message: The longest message to take in, in bytes. A longer one ends its call.
    """

    def __init__(self, authority: str, *, max_message: int = DEFAULT_MAX_MESSAGE) -> None:
        self._authority = authority
        self._max_message = max_message
        self._h2 = _new_h2_connection()
        self._frames = FrameSplitter()
        self._calls: dict[int, _Call] = {}
        self._no_more_calls = ""
        self._failed = False

    @property
    def accepts_calls(self) -> bool:
        """Whether a new call can be started: not after a failure, or once the server is going away."""
        return not self._no_more_calls

    @property
    def open_calls(self) -> int:
        """How many calls have not ended."""
        return len(self._calls)

    def start_call(self, method: str, request: bytes, *, timeout: float | None = None) -> int:
        """Start a call, with the whole of its request; return its id.

        Args:
            method: Path of the method, such as ``/proto.API/FetchMetadata``.
            request: The request message.
            timeout: Seconds after which the server gives up. It is only told to the server: the shell
                watches the clock, and cancels the call if need be.

        Raises:
            UsageError: ``timeout`` or ``method`` makes no sense.
            TransportError: The connection takes no more calls.
        """
        headers = self._request_headers(method, timeout)
        if self._no_more_calls:
            raise TransportError(self._no_more_calls)
        try:
            call_id = self._h2.get_next_available_stream_id()
            self._h2.send_headers(call_id, headers)
        except (TooManyStreamsError, NoAvailableStreamIDError) as exc:
            raise TransportError(f"the connection takes no further call: {exc}") from exc
        self._calls[call_id] = _Call(memoryview(frame_message(request)), MessageReader(self._max_message))
        self._send_requests()
        return call_id

    def cancel(self, call_id: int) -> None:
        """End a call from our side. No event of it comes any more; nothing happens if it has ended."""
        if call_id in self._calls:
            self._forget(call_id, reset=True)

    def release(self, call_id: int) -> None:
        """Let the server send as much again as came on this call since the last time.

        To be called when the caller wants more. As long as it is not, the server stops after 4 MiB.
        """
        call = self._calls.get(call_id)
        if call is not None and call.unreleased and not self._failed:
            self._h2.acknowledge_received_data(call.unreleased, call_id)
            call.unreleased = 0

    def data_to_send(self) -> bytes:
        """Return what is to go to the server now, and forget it."""
        return self._h2.data_to_send()

    def feed(self, data: bytes) -> list[Event]:
        """Take in bytes from the server; return what they mean, in order.

        If they are not HTTP/2 as it should be, the connection has failed: every call ends. What
        :meth:`data_to_send` then returns tells the server why.
        """
        events: list[Event] = []
        for frame in self._frames.feed(data):
            if self._failed:
                break
            try:
                events += self._handle_frame(frame)
            except ProtocolError as exc:
                events += self.connection_lost(f"the server broke the rules of HTTP/2: {exc}")
        return events

    def connection_lost(self, reason: str) -> list[Event]:
        """Note that nothing can be sent or received any more; return the end of every call."""
        self._no_more_calls = f"{self._no_more_calls}; then: {reason}" if self._no_more_calls else reason
        self._failed = True
        ended = [CallEnded(call_id, TransportError(self._no_more_calls)) for call_id in self._calls]
        self._calls.clear()
        return list[Event](ended)

    def _request_headers(self, method: str, timeout: float | None) -> list[tuple[str, str]]:
        if not method.startswith("/"):
            raise UsageError(f"method {method!r}: expected a path such as /proto.API/FetchMetadata")
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", f"liftenvelope/{__version__}"),
        ]
        if timeout is not None:
            headers.append(("grpc-timeout", timeout_header(timeout)))
        return headers

    def _send_requests(self) -> None:
        """Send as much of the requests as the server's windows and frame size allow."""
        for call_id, call in self._calls.items():
            while call.unsent:
                room = min(self._h2.local_flow_control_window(call_id), self._h2.max_outbound_frame_size)
                if room <= 0:
                    break
                chunk, call.unsent = call.unsent[:room], call.unsent[room:]
                self._h2.send_data(call_id, bytes(chunk), end_stream=not call.unsent)

    def _handle_frame(self, frame: bytes) -> list[Event]:
        if (length := payload_length(frame)) > MAX_FRAME_SIZE:
            raise ProtocolError(f"a frame of {length} bytes, if it is one: {frame[:32]!r}")
        if frame[3] == GOAWAY:
            return self._going_away(frame[9:])
        return [event for h2_event in self._h2.receive_data(frame) for event in self._handle(h2_event)]

    def _handle(self, event: h2_events.Event) -> list[Event]:
        match event:
            case h2_events.DataReceived():
                return self._data_received(event)
            case h2_events.ResponseReceived():
                return self._response_started(event)
            case h2_events.TrailersReceived():
                return self._end(event.stream_id, trailers_error(dict(event.headers)))
            case h2_events.StreamReset():
                return self._reset(event.stream_id, event.error_code)
            case h2_events.StreamEnded():
                # Trailers have ended the call already: these are for a response that has none.
                return self._end(event.stream_id, trailers_error({}))
            case h2_events.WindowUpdated() | h2_events.RemoteSettingsChanged():
                self._send_requests()
        return []

    def _response_started(self, event: h2_events.ResponseReceived) -> list[Event]:
        headers = dict(event.headers)
        status = headers[b":status"]
        if status != b"200" and b"grpc-status" not in headers:
            error = http_error(status.decode("ascii", "replace"))
            return self._end(event.stream_id, error, server_done=event.stream_ended is not None)
        if event.stream_ended is not None:
            return self._end(event.stream_id, trailers_error(headers))
        return []

    def _data_received(self, event: h2_events.DataReceived) -> list[Event]:
        call = self._calls.get(event.stream_id)
        if call is None:
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            return []
        call.unreleased += event.flow_controlled_length
        try:
            messages = call.reader.feed(event.data)
        except RpcError as exc:
            return self._end(event.stream_id, exc, server_done=False)
        return [MessageReceived(event.stream_id, message) for message in messages]

    def _reset(self, call_id: int, code: int) -> list[Event]:
        call = self._calls.get(call_id)
        if call is not None:
            call.unsent = memoryview(b"")
        return self._end(call_id, reset_error(code))

    def _end(self, call_id: int, error: RpcError | None, *, server_done: bool = True) -> list[Event]:
        call = self._calls.get(call_id)
        if call is None:
            return []
        if error is None and call.reader.inside_message:
            error = RpcError(StatusCode.INTERNAL, "the call ended with status OK inside a message")
        self._forget(call_id, reset=not server_done or len(call.unsent) > 0)
        return [CallEnded(call_id, error)]

    def _forget(self, call_id: int, *, reset: bool) -> None:
        """Drop a call. ``reset`` tells the server, which must be done unless both sides have finished."""
        self.release(call_id)
        del self._calls[call_id]
        if reset and not self._failed:
            self._h2.reset_stream(call_id, ErrorCodes.CANCEL)

    def _going_away(self, payload: bytes) -> list[Event]:
        if len(payload) < 8:
            raise ProtocolError(f"a GOAWAY frame of {len(payload)} bytes")
        last_id = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        code = int.from_bytes(payload[4:8], "big")
        text = payload[8:].decode("utf-8", "replace")
        self._no_more_calls = f"the server is going away (HTTP/2 error {code:#x}{', ' if text else ''}{text})"
        refused = [call_id for call_id in self._calls if call_id > last_id]
        for call_id in refused:
            self._forget(call_id, reset=True)
        return [CallEnded(call_id, TransportError(self._no_more_calls)) for call_id in refused]
