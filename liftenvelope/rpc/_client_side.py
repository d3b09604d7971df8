"""Client side of one gRPC connection, sans-io."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from liftenvelope._version import __version__
from liftenvelope.errors import TransportError, UsageError
from liftenvelope.rpc._calls import CallState
from liftenvelope.rpc._connection import DEFAULT_WINDOW, Connection
from liftenvelope.rpc._events import CallEnded, Event, HeadersReceived
from liftenvelope.rpc._fields import RESPONSE, TRAILERS
from liftenvelope.rpc._headers import Metadata, decode_metadata, encode_metadata, is_grpc, timeout_header
from liftenvelope.rpc._http2 import ErrorCodes, NeverIndexedHeaderTuple, SettingCodes
from liftenvelope.rpc._http2 import events as h2_events
from liftenvelope.rpc.framing import DEFAULT_MAX_MESSAGE
from liftenvelope.rpc.status import (
    CallNotProcessedError,
    RpcError,
    StatusCode,
    http_error,
    reset_error,
    trailers_error,
)

if TYPE_CHECKING:
    from liftenvelope.rpc.framing import PayloadSink

__all__ = ["ClientConnection"]

_LAST_ID: Final = 2**31 - 1
# Number of methods whose request headers are cached.
_METHODS: Final = 100


class ClientConnection(Connection):
    """Client side of a connection to a gRPC server, sans-io.

    Args:
        authority: Name of the server for the ``:authority`` header, such as ``127.0.0.1:9292``.
        scheme: ``http``, or ``https`` over TLS.
        max_message: Largest message to receive, in bytes. A larger one ends its call.
        window: Bytes that the server may send on one call before any of them are released.
        max_header_list: Largest list of response headers to accept, in bytes. None: 64 KiB.
    """

    _ends_with_data = True
    _larger_messages = ": raise max_message_bytes (in Spark, maxMessageBytes)"

    def __init__(
        self,
        authority: str,
        *,
        scheme: str = "http",
        max_message: int = DEFAULT_MAX_MESSAGE,
        window: int = DEFAULT_WINDOW,
        max_header_list: int | None = None,
    ) -> None:
        super().__init__(
            client_side=True,
            settings={SettingCodes.ENABLE_PUSH: 0},
            max_message=max_message,
            window=window,
            max_header_list=max_header_list,
        )
        self._authority = authority
        self._scheme = scheme
        self._next_id = 1
        # Calls queued while the server allows no further stream, with their headers.
        self._waiting = OrderedDict[int, list[tuple[bytes, bytes]]]()
        #: True once the first frame of the server has come, its settings.
        self.is_greeted = False
        # Request headers common to all calls of a method.
        self._fixed_headers: dict[str, list[tuple[bytes, bytes]]] = {}

    def start_call(
        self,
        method: str,
        *,
        timeout: float | None = None,
        metadata: Metadata = (),
        sink: PayloadSink | None = None,
    ) -> int:
        """Start a call; return its id. If the server's stream limit is reached, the call is queued.

        Args:
            method: Path of the method, such as ``/proto.API/FetchMetadata``.
            timeout: Seconds until the deadline. It is only sent to the server: the caller watches the clock
                and cancels the call.
            metadata: Names and values to send with the call.
            sink: Takes the received bytes in place of messages. Default None: events carry the messages.

        Raises:
            UsageError: An argument is invalid.
            TransportError: The connection accepts no more calls.
        """
        headers = self._request_headers(method, timeout, metadata)
        if self._next_id > _LAST_ID and not self._no_more_calls:
            self._no_more_calls = "the connection has used up its ids of calls"
        if self._no_more_calls:
            raise CallNotProcessedError(self._no_more_calls)
        call_id = self._next_id
        self._next_id += 2
        self._calls[call_id] = CallState(sink=sink)
        self._waiting[call_id] = headers
        return call_id

    def half_close(self, call_id: int) -> None:
        """Close the sending side of a call. Does nothing if the call has ended."""
        call = self._calls.get(call_id)
        if call is not None:
            call.closing = True
            self._sending.add(call_id, call)

    def cancel(self, call_id: int) -> None:
        """Cancel a call. It produces no further events. Does nothing if the call has ended."""
        if call_id in self._calls:
            self._drop(call_id)
            self._start_waiting()

    def data_to_send(self) -> bytes:
        """Return the bytes to send to the server now, and remove them from the queue."""
        if self._waiting and not self._failed:
            self._start_waiting()
        return super().data_to_send()

    @property
    def refusal(self) -> str:
        """Reason why the connection accepts no more calls; empty if it does."""
        return self._no_more_calls

    @property
    def closed_reason(self) -> str:
        """Text for calls that end because the server has closed the connection."""
        if self.is_greeted:
            return "the other side closed the connection"
        return (
            "the other side closed the connection before it sent anything, as servers do that expect TLS or "
            "a client certificate"
        )

    def connection_lost(self, reason: str) -> list[Event]:
        """Mark the connection as lost; return the end events of all calls."""
        events = self._end_waiting(f"the call had not begun when the connection was lost: {reason}")
        return events + super().connection_lost(reason)

    def _handle_frame(self, frame: bytes) -> list[Event]:
        self.is_greeted = True
        return super()._handle_frame(frame)

    def _request_headers(
        self, method: str, timeout: float | None, metadata: Metadata
    ) -> list[tuple[bytes, bytes]]:
        fixed = self._fixed_headers.get(method)
        if fixed is None:
            fixed = self._headers_of(method)
            if len(self._fixed_headers) < _METHODS:
                self._fixed_headers[method] = fixed
        headers = fixed.copy()
        if timeout is not None:
            # The timeout differs between calls. Indexed, it would evict constant headers from HPACK's table.
            headers.append(NeverIndexedHeaderTuple(b"grpc-timeout", timeout_header(timeout).encode()))
        return headers + [(name.encode(), value.encode()) for name, value in encode_metadata(metadata)]

    def _headers_of(self, method: str) -> list[tuple[bytes, bytes]]:
        if not (method.startswith("/") and method.isascii() and method.isprintable() and " " not in method):
            raise UsageError(f"method must be a path such as /proto.API/FetchMetadata, got {method!r}")
        return [
            (b":method", b"POST"),
            (b":scheme", self._scheme.encode()),
            (b":path", method.encode()),
            (b":authority", self._authority.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", f"liftenvelope/{__version__}".encode()),
        ]

    def _start_waiting(self) -> None:
        limit = self._h2.remote_settings.max_concurrent_streams
        while self._waiting and len(self._calls) - len(self._waiting) < limit:
            call_id, headers = self._waiting.popitem(last=False)
            self._h2.send_headers(call_id, headers)
            self._sending.unblock(call_id)

    def _send_call(self, call_id: int, call: CallState) -> None:
        if call_id in self._waiting:
            self._sending.block(call_id)
        else:
            super()._send_call(call_id, call)

    def _finish(self, call_id: int, call: CallState) -> None:
        self._h2.end_stream(call_id)
        call.closed_here = True

    def _handle(self, event: h2_events.Event) -> list[Event]:
        match event:
            case h2_events.DataReceived():
                return self._data_received(event)
            case h2_events.ResponseReceived():
                return self._response_started(event)
            case h2_events.TrailersReceived():
                self._check_fields(event.headers, TRAILERS)
                return self._status_received(event.stream_id, event.headers)
            case h2_events.StreamEnded():
                # h2 reports it after the trailers as well. It only matters if there were no trailers.
                return self._status_received(event.stream_id, [])
            case h2_events.StreamReset():
                code = int(event.error_code or 0)
                cancelled = code == ErrorCodes.CANCEL
                return self._end(event.stream_id, reset_error(code), reset=False, cancelled=cancelled)
        return []

    def _data_received(self, event: h2_events.DataReceived) -> list[Event]:
        call = self._calls.get(event.stream_id)
        if call is not None and event.stream_ended is not None:
            # Noted before the data is handled, which may end the call: h2 refuses to reset a closed stream.
            call.closed_there = True
        return super()._data_received(event)

    def _response_started(self, event: h2_events.ResponseReceived) -> list[Event]:
        self._check_fields(event.headers, RESPONSE)
        call_id, headers = event.stream_id, dict(event.headers)
        call = self._calls.get(call_id)
        if call is None:
            return []
        if event.stream_ended is not None:
            call.closed_there = True
        status, kind = headers[b":status"], headers.get(b"content-type", b"")
        if (status != b"200" or not is_grpc(kind)) and b"grpc-status" not in headers:
            return self._end(call_id, http_error(status.decode("ascii", "replace"), kind))
        if call.closed_there:
            return self._status_received(call_id, event.headers)
        self._open_call(call_id, call, headers)
        return [HeadersReceived(call_id, decode_metadata(event.headers))]

    def _status_received(self, call_id: int, headers: list[tuple[bytes, bytes]]) -> list[Event]:
        call = self._calls.get(call_id)
        if call is None:
            return []
        call.closed_there = True
        return self._end(call_id, trailers_error(dict(headers)), tuple(decode_metadata(headers)))

    def _end(
        self,
        call_id: int,
        error: RpcError | TransportError | None,
        metadata: tuple[tuple[str, str | bytes], ...] = (),
        *,
        reset: bool = True,
        cancelled: bool = False,
    ) -> list[Event]:
        call = self._calls.get(call_id)
        if call is None:
            return []
        if error is None and call.cutter is not None and call.cutter.inside_message:
            error = RpcError(StatusCode.INTERNAL, "the call ended with status OK inside a message")
        unfinished = not (call.closed_here and call.closed_there)
        self._forget(call_id, ErrorCodes.CANCEL if reset and unfinished else None)
        return [CallEnded(call_id, error, metadata, cancelled)]

    def _refuse(self, call_id: int, error: RpcError) -> list[Event]:
        return self._end(call_id, error)

    def _drop(self, call_id: int) -> None:
        """Remove an open call, queued or started; reset its stream if it was started."""
        begun = self._waiting.pop(call_id, None) is None
        self._forget(call_id, ErrorCodes.CANCEL if begun else None)

    def _end_waiting(self, reason: str) -> list[Event]:
        ended = list(self._waiting)
        self._waiting.clear()
        for call_id in ended:
            self._forget(call_id, None)
        return [CallEnded(call_id, CallNotProcessedError(reason)) for call_id in ended]

    def _going_away(self, last_id: int, code: int, text: str) -> list[Event]:
        reason = f"the server is going away (HTTP/2 error {code:#x}{', ' if text else ''}{text})"
        self._no_more_calls = reason
        unseen = f"{reason}, and has not looked at the call: it is safe to make it again elsewhere"
        events = self._end_waiting(unseen)
        for call_id in [call_id for call_id in self._calls if call_id > last_id]:
            events += self._end(call_id, CallNotProcessedError(unseen))
        return events
