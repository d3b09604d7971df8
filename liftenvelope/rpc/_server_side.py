"""Server side of one gRPC connection, sans-io."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftenvelope.rpc._budget import Budget
from liftenvelope.rpc._calls import CallState
from liftenvelope.rpc._connection import BRIEF, PREFACE_SIZE, Connection
from liftenvelope.rpc._events import CallEnded, CallStarted, Event, RequestsEnded
from liftenvelope.rpc._fields import REQUEST, TRAILERS
from liftenvelope.rpc._headers import Metadata, decode_metadata, encode_metadata, encode_text, parse_timeout
from liftenvelope.rpc._http2 import ErrorCodes, SettingCodes
from liftenvelope.rpc._http2 import events as h2_events
from liftenvelope.rpc.limits import DEFAULT_LIMITS, ServerLimits
from liftenvelope.rpc.status import RpcError, StatusCode, cut_text, reset_error

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ServerConnection"]

#: Bytes sent that add two control frames to the allowance: some clients answer each DATA frame with two.
_BYTES_PER_FRAME: Final = 4096
#: Control frames that the answer of a call adds to the allowance, besides those for its bytes: grpcio sends a
#: WINDOW_UPDATE for most answers, however small.
_FRAMES_PER_ANSWER: Final = 2
_DATA, _HEADERS, _CONTINUATION = 0x0, 0x1, 0x9
_END_STREAM, _PADDED = 0x1, 0x8
#: Minimum size of a DATA frame that goes through h2 and still does not count as a control frame.
_LEAST_DATA: Final = 1024
#: Bytes before each gRPC message.
_PREFIX: Final = 5
#: Encoding of messages that are not compressed.
_PLAIN: Final = b"identity"
_RESPONSE_HEADERS: Final = [(":status", "200"), ("content-type", "application/grpc")]


@dataclass(slots=True)
class _ServedCall(CallState):
    began: bool = False
    trailers: list[tuple[str, str]] | None = None
    #: Bytes of answers that count as unsent.
    counted: int = 0
    #: False if the unsent bytes are left out of the budgets.
    is_counted: bool = True


class ServerConnection(Connection):
    """Server side of a connection from a gRPC client, sans-io.

    Args:
        limits: Limits on the client. Default: those of :class:`ServerLimits`.
        unread: Counts the unread bytes of all connections that share it.
        unsent: Counts the unsent bytes of all connections that share it.

    Attributes:
        unsent_bytes: Bytes of answers that wait for the client, without those of exempt calls.
        greeted: True once a frame was received after HTTP/2's preface.
    """

    _ends_with_data = False

    def __init__(
        self,
        *,
        limits: ServerLimits = DEFAULT_LIMITS,
        unread: Budget | None = None,
        unsent: Budget | None = None,
    ) -> None:
        super().__init__(
            client_side=False,
            settings={SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_calls_per_connection},
            max_message=limits.max_request_bytes,
            window=limits.max_unread_bytes_per_call,
            unread=unread,
            max_header_list=limits.max_header_list_bytes,
        )
        self._max_unread = limits.max_unread_bytes_per_connection
        self._shared_unsent = unsent or Budget(0)
        self.unsent_bytes = 0
        self._max_status = limits.max_status_bytes
        self._last_id = 0
        self.greeted = False
        self._preface_left = PREFACE_SIZE
        self._frames_per_second = limits.control_frames_per_second
        self._burst = limits.control_frame_burst
        self._allowance = float(self._burst)
        self._refilled_at: float | None = None

    def refill(self, now: float, *, was_busy: bool = False) -> None:
        """Refill the control frame allowance for the time that has passed. Called before bytes are fed.

        Args:
            now: Current time of a monotonic clock, in seconds.
            was_busy: True if the time was spent on frames of this connection. Such time adds no allowance:
                otherwise many simultaneous floods would each stay within their allowance.
        """
        passed = 0.0 if self._refilled_at is None or was_busy else now - self._refilled_at
        self._refilled_at = now
        self._allow(passed * self._frames_per_second)

    def data_to_send(self) -> bytes:
        """Return the bytes to send to the peer now, and remove them from the queue."""
        data = super().data_to_send()
        if data:
            # A flood that is handled a frame at a time must not earn a frame with each write.
            self._allow((not self.has_frames) + 2 * len(data) / _BYTES_PER_FRAME)
        return data

    def _allow(self, frames: float) -> None:
        self._allowance = min(self._burst, self._allowance + frames)

    def _handle_frame(self, frame: bytes) -> list[Event]:
        # Starting a call is limited by max_calls and costs the client a request, so it is free. Frames that
        # change or end calls, and frames without effect, use up the allowance: a flood of either starves
        # other clients.
        if self._preface_left:
            # Parts of the preface are not frames: parsed as one, a part may be too short, or may match a
            # frame that bypasses h2.
            self._preface_left -= len(frame)
            return [event for h2_event in self._h2.receive_data(frame) for event in self._handle(h2_event)]
        self.greeted = True
        before = len(self._calls)
        kind, flags, stream = frame[3], frame[4], frame[5:9]
        is_of_open_call = int.from_bytes(stream, "big") in self._calls
        is_cheap = frame[:5] in BRIEF and (is_of_open_call or stream == b"\0\0\0\0")
        is_request = kind in (_HEADERS, _CONTINUATION) or (
            # Other DATA frames have no effect and still cost h2's time: empty ones, or those of ended calls.
            kind == _DATA
            and not flags & _PADDED
            and (flags & _END_STREAM or len(frame) >= _LEAST_DATA)
            and is_of_open_call
        )
        events = super()._handle_frame(frame)
        if len(self._calls) < before or not (is_cheap or is_request):
            self._allowance -= 1
            if self._allowance < 0:
                self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
                # No exception here: the events of this frame, such as the end of a call, must be kept.
                events += self.connection_lost("a flood of control frames or resets")
        return events

    def send_headers(self, call_id: int, metadata: Metadata = ()) -> None:
        """Send the response headers. The first message does so too. Does nothing if they were sent.

        Raises:
            UsageError: The metadata can't be sent.
        """
        headers = encode_metadata(metadata)
        call = self._served(call_id)
        if call is not None and not call.began:
            call.began = True
            self._h2.send_headers(call_id, [*_RESPONSE_HEADERS, *headers])

    def finish(
        self, call_id: int, code: int = StatusCode.OK, text: str = "", metadata: Metadata = ()
    ) -> None:
        """End a call with a status, after all its messages. Does nothing if the call has ended.

        All requests received so far count as released: the caller must drop those that it holds unread.

        Raises:
            UsageError: The metadata can't be sent.
        """
        trailers = [("grpc-status", str(int(code))), *encode_metadata(metadata)]
        if text:
            trailers.append(("grpc-message", encode_text(cut_text(text, self._max_status))))
        call = self._served(call_id)
        if call is not None and not call.closing:
            call.trailers = trailers
            call.closing = True
            self._sending.add(call_id, call)
            # Drop further requests: a client that does not read its status must not fill the memory.
            self._walker.mute(call_id)
            call.cutter = None
            # The call stays while its client takes no answers. Its unread requests must not use up the
            # budgets then, because refuse_greediest can't end it again.
            if call.unreleased:
                super().release(call_id, call.unreleased)

    def release(self, call_id: int, size: int) -> None:
        """Give the client credit for ``size`` bytes. Does nothing after :meth:`finish`, which did so."""
        call = self._calls.get(call_id)
        if call is not None and not call.closing:
            super().release(call_id, size)

    def send(self, call_id: int, messages: Iterable[bytes]) -> None:
        """Queue messages on a call until the peer's windows allow them. Ignored if the call has ended."""
        if (call := self._served(call_id)) is not None and not call.closing:
            queued = list(messages)
            super().send(call_id, queued)
            self._count_unsent(call, sum(map(len, queued)) + _PREFIX * len(queued))

    def send_framed(self, call_id: int, frames: bytes) -> None:
        """Queue messages that already have their gRPC prefixes. Does nothing if the call has ended."""
        if (call := self._served(call_id)) is not None and not call.closing:
            super().send_framed(call_id, frames)
            self._count_unsent(call, len(frames))

    def exempt(self, call_id: int) -> None:
        """Leave the unsent bytes of a call out of the budgets, because its handler bounds them."""
        if (call := self._served(call_id)) is not None:
            self._count_unsent(call, -call.counted)
            call.is_counted = False

    def _count_unsent(self, call: _ServedCall, size: int) -> None:
        if call.is_counted:
            call.counted += size
            self.unsent_bytes += size
            self._shared_unsent.used += size

    def refuse_most_unsent(self, why: str) -> list[Event]:
        """End the call with the most unsent bytes with RESOURCE_EXHAUSTED; return the events.

        The bytes are dropped: flow control stops messages, but not the status.
        """
        call_id, call = max(self._calls.items(), key=lambda item: _counted(item[1]))
        assert isinstance(call, _ServedCall)
        text = f"{why}, {call.counted} of them on this call: take answers before asking for more"
        call.outbox.clear()
        call.unsent.clear()
        self._count_unsent(call, -call.counted)
        # A call that was answered whole waits for its answer alone, which is replaced.
        was_answered, call.closing = call.closing, False
        events = self._refuse(call_id, RpcError(StatusCode.RESOURCE_EXHAUSTED, text))
        return [] if was_answered else events

    def connection_lost(self, reason: str) -> list[Event]:
        """Mark the connection as lost; return the end events of all calls."""
        self._shared_unsent.used -= self.unsent_bytes
        self.unsent_bytes = 0
        return super().connection_lost(reason)

    def go_away(self) -> None:
        """Refuse new calls and send GOAWAY. Open calls continue."""
        if self._no_more_calls or self._failed:
            return
        self._no_more_calls = "the server is going away"
        payload = self._last_id.to_bytes(4, "big") + bytes(4)
        # Built here, because h2 would treat the connection as closed.
        self._own_frames += b"\0\0\x08\x07\0\0\0\0\0" + payload

    def _served(self, call_id: int) -> _ServedCall | None:
        call = self._calls.get(call_id)
        assert call is None or isinstance(call, _ServedCall)
        return call

    def _send_call(self, call_id: int, call: CallState) -> None:
        if call.outbox or call.unsent:
            self.send_headers(call_id)
        super()._send_call(call_id, call)
        assert isinstance(call, _ServedCall)
        self._count_unsent(call, len(call.unsent) - call.counted)

    def _forget(self, call_id: int, reset: ErrorCodes | None) -> None:
        if (call := self._served(call_id)) is not None:
            self._count_unsent(call, -call.counted)
        super()._forget(call_id, reset)

    def _finish(self, call_id: int, call: CallState) -> None:
        assert isinstance(call, _ServedCall)
        assert call.trailers is not None
        # A call without any response message gets headers and trailers in one block (trailers-only).
        head = [] if call.began else _RESPONSE_HEADERS
        self._h2.send_headers(call_id, [*head, *call.trailers], end_stream=True)
        self._allow(_FRAMES_PER_ANSWER)
        # The client may stop sending: further requests have no use (RFC 9113, 8.1).
        self._forget(call_id, None if call.closed_there else ErrorCodes.NO_ERROR)

    def _handle(self, event: h2_events.Event) -> list[Event]:
        match event:
            case h2_events.RequestReceived():
                return self._call_started(event)
            case h2_events.DataReceived():
                return self._data_received(event)
            case h2_events.StreamEnded():
                return self._requests_ended(event.stream_id)
            case h2_events.StreamReset():
                return self._reset(event.stream_id, event.error_code)
            case h2_events.TrailersReceived():
                self._check_fields(event.headers, TRAILERS)
        return []

    def _call_started(self, event: h2_events.RequestReceived) -> list[Event]:
        self._check_fields(event.headers, REQUEST)
        call_id, headers = event.stream_id, dict(event.headers)
        if self._no_more_calls:
            self._h2.reset_stream(call_id, ErrorCodes.REFUSED_STREAM)
            return []
        self._last_id = call_id
        call = self._calls[call_id] = _ServedCall(closed_there=event.stream_ended is not None)
        if (status := _http_fault(headers)) is not None:
            self._h2.send_headers(call_id, [(":status", status)], end_stream=True)
            self._forget(call_id, None if call.closed_there else ErrorCodes.NO_ERROR)
            return []
        timeout = None
        if (raw := headers.get(b"grpc-timeout")) is not None and (timeout := parse_timeout(raw)) is None:
            self.finish(call_id, StatusCode.INTERNAL, f"malformed grpc-timeout: {raw!r}")
            return []
        if (encoding := headers.get(b"grpc-encoding", _PLAIN)) != _PLAIN:
            # As grpc-go does. Clients compress large messages only, so the call would work until one comes.
            text = f"messages compressed with {encoding.decode('ascii', 'replace')!r} are not accepted"
            self.finish(call_id, StatusCode.UNIMPLEMENTED, f"{text}: send them uncompressed")
            assert call.trailers is not None
            call.trailers.append(("grpc-accept-encoding", "identity"))
            return []
        self._open_call(call_id, call, headers)
        method = headers[b":path"].decode("utf-8", "replace")
        return [CallStarted(call_id, method, decode_metadata(event.headers), timeout)]

    def _deliver(self, call_id: int, call: CallState, size: int, messages: list[bytes]) -> list[Event]:
        if call.closing:
            # The status is already queued, so these messages are dropped.
            self._credit.received(call, size)
            super().release(call_id, size)
            return []
        events = super()._deliver(call_id, call, size, messages)
        if self.unread > self._max_unread:
            events += self.refuse_greediest(
                f"this connection holds more than {self._max_unread} bytes unread"
            )
        return events

    def refuse_greediest(self, why: str) -> list[Event]:
        """End the open call with the most unread bytes with RESOURCE_EXHAUSTED; return the events."""
        open_calls = [item for item in self._calls.items() if not item[1].closing]
        if not open_calls:
            return []
        call_id, call = max(open_calls, key=lambda item: item[1].unread)
        text = f"{why}, {call.unread} of them on this call: send less at a time"
        return self._refuse(call_id, RpcError(StatusCode.RESOURCE_EXHAUSTED, text))

    def _requests_ended(self, call_id: int) -> list[Event]:
        call = self._calls.get(call_id)
        if call is None:
            return []
        call.closed_there = True
        if call.closing:
            return []
        if call.cutter is not None and call.cutter.inside_message:
            return self._refuse(call_id, RpcError(StatusCode.INTERNAL, "the requests ended inside a message"))
        self._walker.close(call_id)  # further DATA is an error, which h2 reports
        return [RequestsEnded(call_id)]

    def _refuse(self, call_id: int, error: RpcError) -> list[Event]:
        self.finish(call_id, error.code, error.description)
        return [CallEnded(call_id, error)]

    def _reset(self, call_id: int, code: int) -> list[Event]:
        call = self._calls.get(call_id)
        if call is None:
            return []
        answered = call.closing
        self._forget(call_id, None)
        return [] if answered else [CallEnded(call_id, reset_error(code))]

    def _going_away(self, last_id: int, code: int, text: str) -> list[Event]:  # noqa: ARG002
        # The client starts no more calls, and the server never starts any: nothing to do.
        return []


def _counted(call: CallState) -> int:
    return call.counted if isinstance(call, _ServedCall) else 0


def _http_fault(headers: dict[bytes, bytes]) -> str | None:
    """Return the HTTP status for a request that is not gRPC, None for a gRPC request."""
    if headers.get(b":method") != b"POST":
        return "405"
    if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
        return "415"
    return None
