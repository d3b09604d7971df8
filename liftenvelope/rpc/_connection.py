"""One gRPC connection, sans-io: common base of the client's and the server's side.

The caller that does the I/O sends the bytes of :meth:`~Connection.data_to_send`, feeds the received bytes,
and routes the events to their calls. h2 handles HTTP/2, with these exceptions:

- Received DATA frames without flags bypass h2 (:mod:`liftenvelope._native.frames`), and the receive windows
  are counted by :mod:`liftenvelope.rpc._credit`. Send windows are h2's alone, also when
  SETTINGS_INITIAL_WINDOW_SIZE changes with calls open, as grpc-go does.
- Sent DATA frames are built here, unless they end the stream: h2 takes about 40 us per frame, a third of a
  writer's time. Their bytes are subtracted from h2's send windows.
- GOAWAY: calls that the peer has accepted continue (RFC 9113, 6.8), but h2 treats the connection as closed
  and refuses their frames. So h2 never sees a GOAWAY.
- PING, and WINDOW_UPDATE of the whole connection: h2 takes about 30 us per frame, and grpc-go sends one of
  each with nearly every response, a quarter of the time of a short call. Valid frames are handled here;
  invalid ones go to h2, which reports the error.
- Header field rules (:mod:`liftenvelope.rpc._fields`), and HPACK for headers seen before
  (:mod:`liftenvelope.rpc._hpack`). Known headers of an open call go directly to h2's stream, which keeps the
  state: h2's layers above the stream take 10 us per frame.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NoReturn

from liftenvelope import _native
from liftenvelope.errors import TransportError
from liftenvelope.rpc._calls import CallState, SendQueue
from liftenvelope.rpc._credit import LARGEST_WINDOW, ReceiveCredit
from liftenvelope.rpc._events import CallEnded, Event, MessagesReceived, Pong
from liftenvelope.rpc._fields import FieldRules
from liftenvelope.rpc._hpack import RememberingDecoder, RememberingEncoder
from liftenvelope.rpc._http2 import (
    ErrorCodes,
    H2Configuration,
    H2Connection,
    H2Stream,
    ProtocolError,
    SettingCodes,
    Settings,
)
from liftenvelope.rpc._http2 import events as h2_events
from liftenvelope.rpc.framing import message_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from liftenvelope.rpc._budget import Budget
    from liftenvelope.rpc._fields import Block
    from liftenvelope.rpc.status import RpcError

__all__ = ["BRIEF", "DEFAULT_WINDOW", "PREFACE_SIZE", "Connection"]

#: Bytes that the peer may send on one call before any of them are taken.
DEFAULT_WINDOW: Final = 8 * 1024 * 1024
_MAX_FRAME_SIZE: Final = 16_384  # HTTP/2's default; we announce no other
#: Length of the client's connection preface, in bytes (RFC 9113, 3.4).
PREFACE_SIZE: Final = 24
_SETTINGS: Final = b"\x04"
_GOAWAY: Final = b"\x07"
_WINDOW_UPDATE: Final = b"\x08"
_WINDOW_FRAMES: Final = (_SETTINGS, _WINDOW_UPDATE)
_HEADER_FRAMES: Final = (b"\x01", b"\x05", b"\x09")
_END_STREAM, _END_HEADERS = 0x1, 0x4
# Type and flags of HEADERS frames that hold a whole header block, without padding or priority.
_WHOLE_BLOCKS: Final = (b"\x01\x04", b"\x01\x05")
# Frame headers without the stream: PING, PING with ACK, WINDOW_UPDATE.
_PING, _PONG, _ROOM = b"\0\0\x08\x06\0", b"\0\0\x08\x06\x01", b"\0\0\x04\x08\0"
#: Frames that are handled without h2.
BRIEF: Final = frozenset({_PING, _PONG, _ROOM})
# Type and flags of frames that require an answer (SETTINGS and PING), and how many may arrive before answers
# go out. A peer that sends more is treated as an attack on memory or CPU (RFC 9113, 10.5).
_ANSWERED: Final = (b"\x04\0", b"\x06\0")
_MOST_ANSWERS: Final = 1000
# Maximum number of cancelled calls whose DATA frames are dropped here. h2 would answer each with a reset.
_MUTED: Final = 1024


class Connection:
    """Common base of :class:`ClientConnection` and :class:`ServerConnection`.

    Args:
        client_side: True for the client's side.
        settings: HTTP/2 settings to announce, in addition to the window.
        max_message: Largest message to receive, in bytes. A larger one ends its call.
        window: Bytes that the peer may send on one call before any of them are released.
        unread: Counts the memory of bytes received and not yet released, over all connections that share it.
        max_header_list: Largest header list to accept, in bytes (RFC 9113, 6.5.2). None: 64 KiB.
    """

    #: True if the last DATA frame carries END_STREAM. If not, :meth:`_finish` ends the stream.
    _ends_with_data: bool
    #: Says how to receive larger messages, in the error for one that is too large.
    _larger_messages = ""

    def __init__(
        self,
        *,
        client_side: bool,
        settings: dict[SettingCodes, int],
        max_message: int,
        window: int,
        unread: Budget | None = None,
        max_header_list: int | None = None,
    ) -> None:
        self._max_message = max_message
        #: First frame that the last feed left to the next one; the walker has the others.
        self._left = b""
        # Outgoing headers are checked or built here, already in h2's normal form. Incoming ones: _fields.
        config = H2Configuration(
            client_side=client_side,
            header_encoding=None,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
            validate_inbound_headers=False,
            normalize_inbound_headers=False,
        )
        self._h2 = H2Connection(config)
        limit = max_header_list or self._h2.decoder.max_header_list_size
        self._decoder = RememberingDecoder()
        self._decoder.max_header_list_size = limit
        self._h2.encoder, self._h2.decoder = RememberingEncoder(), self._decoder
        self._rules = FieldRules()
        settings = {**settings, SettingCodes.INITIAL_WINDOW_SIZE: window}
        if max_header_list is not None:
            settings[SettingCodes.MAX_HEADER_LIST_SIZE] = max_header_list
        self._h2.local_settings = Settings(client=client_side, initial_values=settings)
        self._h2.initiate_connection()
        # Frames built here. They go before h2's own pending frames, because they refer to earlier events.
        self._own_frames = bytearray()
        self._credit = ReceiveCredit(self._h2, self._own_frames, window, unread)
        preface = 0 if client_side else PREFACE_SIZE
        self._walker = _native.frames.FrameWalker(_MAX_FRAME_SIZE, max_message, preface)
        self._calls: dict[int, CallState] = {}
        self._sending = SendQueue()
        self._muted: deque[int] = deque()
        # Bytes to send next, in order.
        self._outgoing = bytearray()
        self._answers = 0
        self._in_headers = False
        self._no_more_calls = ""
        self._failed = False

    @property
    def accepts_calls(self) -> bool:
        """True if new calls can be started: the connection has not failed and neither side sent GOAWAY."""
        return not self._no_more_calls

    @property
    def failed(self) -> bool:
        """True if the connection has failed."""
        return self._failed

    @property
    def unread(self) -> int:
        """Memory in bytes of what was received on this connection and not yet released."""
        return self._credit.unread

    @property
    def open_calls(self) -> int:
        """Number of open calls."""
        return len(self._calls)

    def send(self, call_id: int, messages: Iterable[bytes]) -> None:
        """Queue messages on a call until the peer's windows allow them. Ignored if the call has ended."""
        call = self._calls.get(call_id)
        if call is not None and not call.closing:
            call.outbox += messages
            self._sending.add(call_id, call)

    def send_framed(self, call_id: int, frames: bytes) -> None:
        """Queue messages that already have their gRPC prefixes. Does nothing if the call has ended."""
        call = self._calls.get(call_id)
        if call is not None and not call.closing and frames:
            if call.outbox:
                call.unsent += _native.frames.pack_messages(call.outbox)
                call.outbox.clear()
            call.unsent += frames
            self._sending.add(call_id, call)

    def unsent(self, call_id: int) -> int:
        """Return the bytes of messages of a call that wait for the peer's windows."""
        call = self._calls.get(call_id)
        return 0 if call is None else len(call.unsent) + sum(map(len, call.outbox))

    def release(self, call_id: int, size: int) -> None:
        """Give the peer credit for ``size`` bytes of a call: the messages of an event were taken.

        Without releases the peer stops when the window is full. Does nothing if the call has ended.
        """
        call = self._calls.get(call_id)
        if call is not None and not self._failed:
            self._credit.release(call_id, call, size)

    def ping(self) -> None:
        """Send a PING. The answer is reported as a :class:`Pong` event."""
        if not self._failed:
            self._h2.ping(b"liftping")

    def data_to_send(self) -> bytes:
        """Return the bytes to send to the peer now, and remove them from the queue."""
        if not self._failed:
            for call_id, call in self._sending.take_turn():
                self._send_call(call_id, call)
        self._drain()
        data = bytes(self._outgoing)
        self._outgoing.clear()
        self._answers = 0
        return data

    def feed(self, data: bytes | memoryview, enough: Callable[[int], bool] | None = None) -> list[Event]:
        """Process bytes from the peer; return their events, in order. Nothing refers to ``data`` afterwards.

        If the bytes break HTTP/2's rules, the connection fails and every call ends.
        :meth:`data_to_send` then returns the GOAWAY that tells the peer why.

        Args:
            data: Received bytes. With ``enough``, they must be ``bytes``.
            enough: Called after each frame with the number of events so far. True leaves the remaining frames
                to the next call, with or without further bytes, and sets :attr:`has_frames`.
        """
        events: list[Event] = []
        self._walker.feed(data)
        frame, self._left = self._left or self._walk(events), b""
        while frame:
            try:
                events += self._handle_frame(frame)
            except ProtocolError as exc:
                events += self.connection_lost(f"the peer broke the rules of HTTP/2: {exc}")
            frame = self._walk(events)
            if enough is not None and enough(len(events)):
                break
        self._left = frame
        return events

    def _walk(self, events: list[Event]) -> bytes:
        """Deliver the messages before the next other frame; return that frame, or ``b""`` without one."""
        if self._failed:
            return b""
        taken, frame = self._walker.walk()
        for call_id, size, messages in taken:
            events += self._data_taken(call_id, size, messages)
        return frame

    @property
    def has_frames(self) -> bool:
        """True if the last :meth:`feed` left frames to the next one."""
        return bool(self._left)

    def connection_lost(self, reason: str) -> list[Event]:
        """Mark the connection as lost; return the end events of all calls."""
        self._no_more_calls = f"{self._no_more_calls}; then: {reason}" if self._no_more_calls else reason
        self._failed, self._left = True, b""
        ended = [CallEnded(call_id, TransportError(self._no_more_calls)) for call_id in self._calls]
        self._calls.clear()
        self._sending.clear()
        self._credit.drop_all()
        return list[Event](ended)

    # Sending

    def _send_call(self, call_id: int, call: CallState) -> None:
        """Send as much of a call's messages as the peer's windows and frame size allow."""
        if call.outbox:
            call.unsent += _native.frames.pack_messages(call.outbox)
            call.outbox.clear()
        if call.unsent:
            room = min(self._h2.local_flow_control_window(call_id), len(call.unsent))
            ends = self._ends_with_data and call.closing and room == len(call.unsent)
            last = (room - 1) % self._h2.max_outbound_frame_size + 1 if ends else 0
            if room > last:
                self._send_plain(call_id, call.unsent, room - last)
            if ends:
                call.closed_here = True
                self._h2.send_data(call_id, bytes(call.unsent), end_stream=True)
                call.unsent.clear()
        if call.unsent:
            self._sending.block(call_id)
            return
        self._sending.discard(call_id)
        if call.closing and not call.closed_here:
            self._finish(call_id, call)

    def _send_plain(self, call_id: int, unsent: bytearray, size: int) -> None:
        """Send ``size`` bytes, allowed by the windows, in DATA frames without flags, outside h2's state."""
        self._drain()
        most, tail = self._h2.max_outbound_frame_size, b"\0\0" + call_id.to_bytes(4, "big")
        with memoryview(unsent) as view:
            for start in range(0, size, most):
                stop = min(start + most, size)
                self._outgoing += (stop - start).to_bytes(3, "big") + tail
                self._outgoing += view[start:stop]
        del unsent[:size]
        self._h2.outbound_flow_control_window -= size
        self._h2.streams[call_id].outbound_flow_control_window -= size

    def _drain(self) -> None:
        """Move all pending frames to the output, so that they precede the next bytes."""
        self._outgoing += self._own_frames
        self._own_frames.clear()
        self._outgoing += self._h2.data_to_send()

    def _finish(self, call_id: int, call: CallState) -> None:
        """Close our side of a call whose messages are all sent."""
        raise NotImplementedError

    # Receiving

    def _data_taken(self, call_id: int, size: int, messages: list[bytes]) -> list[Event]:
        if (call := self._calls.get(call_id)) is not None:
            return self._deliver(call_id, call, size, messages)
        self._credit.ignored(size)
        return []

    def _deliver(self, call_id: int, call: CallState, size: int, messages: list[bytes]) -> list[Event]:
        events: list[Event] = []
        self._credit.received(call, size)
        call.partial += size
        if messages or (size and call.sink is not None):
            events.append(MessagesReceived(call_id, messages, call.partial))
            self._credit.delivered(call, len(messages))
        else:
            self._credit.in_part(call_id, call)
        if call.cutter is not None:
            error = message_error(call.cutter, self._max_message, self._larger_messages)
            events += [] if error is None else self._refuse(call_id, error)
        return events

    def _refuse(self, call_id: int, error: RpcError) -> list[Event]:
        """End a call because of an invalid message."""
        raise NotImplementedError

    def _handle_frame(self, frame: bytes) -> list[Event]:
        if self._walker.oversize:
            hint = "; so a NATS server greets, which has another port" if frame.startswith(b"INFO {") else ""
            self._give_up(
                ErrorCodes.FRAME_SIZE_ERROR,
                f"a frame of {self._walker.oversize} bytes, if it is one: {frame!r}{hint}",
            )
        if frame[3:5] in _ANSWERED:
            self._answers += 1
            if self._answers > _MOST_ANSWERS:
                self._give_up(ErrorCodes.ENHANCE_YOUR_CALM, "a flood of pings or settings")
        kind = frame[3:4]
        if kind in _WINDOW_FRAMES:
            self._unblock(frame)
        if kind in _HEADER_FRAMES:
            if not self._in_headers and (known := self._recall_headers(frame)) is not None:
                return [event for h2_event in known for event in self._handle(h2_event)]
            self._in_headers = not frame[4] & _END_HEADERS
        elif kind == _GOAWAY and not self._in_headers:
            return self._handle_goaway(int.from_bytes(frame[5:9], "big") & 0x7FFFFFFF, frame[9:])
        elif not self._in_headers and (own := self._handle_briefly(frame)) is not None:
            return own
        return [event for h2_event in self._h2.receive_data(frame) for event in self._handle(h2_event)]

    def _unblock(self, frame: bytes) -> None:
        """Try again to send on the calls whose window a WINDOW_UPDATE or SETTINGS frame may open."""
        if frame[3:4] == _WINDOW_UPDATE and (call_id := int.from_bytes(frame[5:9], "big") & 0x7FFFFFFF):
            self._sending.unblock(call_id)
        elif frame[3:4] == _SETTINGS or self._h2.outbound_flow_control_window <= 0:
            # If the connection had room, the calls wait for their own windows, not for the connection's.
            self._sending.unblock_all()

    def _handle_briefly(self, frame: bytes) -> list[Event] | None:
        """Handle a PING, its answer, or a WINDOW_UPDATE; return None for any other frame.

        h2 takes much longer, and grpcio sends a WINDOW_UPDATE for every second message that it receives.
        """
        header, call_id = frame[:5], int.from_bytes(frame[5:9], "big") & 0x7FFFFFFF
        if header == _PING and not call_id:
            self._own_frames += _PONG + frame[5:]
            return []
        if header == _PONG and not call_id:
            return [Pong()]
        if header == _ROOM:
            increment, window = int.from_bytes(frame[9:], "big") & 0x7FFFFFFF, self._window_of(call_id)
            if window is not None and 0 < increment <= LARGEST_WINDOW - window.outbound_flow_control_window:
                window.outbound_flow_control_window += increment
                return []
        return None

    def _window_of(self, call_id: int) -> H2Connection | H2Stream | None:
        """Return what has the window to send on a call, or for 0 on the connection; None if nothing has."""
        if not call_id:
            return self._h2
        return self._h2.streams.get(call_id) if call_id in self._calls else None

    def _recall_headers(self, frame: bytes) -> list[h2_events.Event] | None:
        """Handle a whole header block of an open call if HPACK has it cached; return None otherwise."""
        call_id = int.from_bytes(frame[5:9], "big")
        call, stream = self._calls.get(call_id), self._h2.streams.get(call_id)
        if call is None or call.closed_there or stream is None or frame[3:5] not in _WHOLE_BLOCKS:
            return None
        if (fields := self._decoder.recall(frame[9:])) is None:
            return None
        try:
            _, events = stream.receive_headers(fields, bool(frame[4] & _END_STREAM), None)
        except ProtocolError as exc:
            self._give_up(exc.error_code, str(exc))
        return events

    def _give_up(self, code: ErrorCodes, why: str) -> NoReturn:
        """Send GOAWAY with the error code and raise ProtocolError; :meth:`feed` ends the calls."""
        self._h2.close_connection(code)
        raise ProtocolError(why)

    def _check_fields(self, fields: Sequence[tuple[bytes, bytes]], block: Block) -> None:
        try:
            self._rules.check(fields, block)
        except ProtocolError as exc:
            self._give_up(ErrorCodes.PROTOCOL_ERROR, str(exc))

    def _handle_goaway(self, stream_id: int, payload: bytes) -> list[Event]:
        if stream_id or len(payload) < 8:
            fault = ErrorCodes.PROTOCOL_ERROR if stream_id else ErrorCodes.FRAME_SIZE_ERROR
            self._give_up(fault, f"a GOAWAY frame of {len(payload)} bytes on stream {stream_id}")
        last_id, code = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF, int.from_bytes(payload[4:8], "big")
        return self._going_away(last_id, code, payload[8:].decode("utf-8", "replace"))

    def _going_away(self, last_id: int, code: int, text: str) -> list[Event]:
        raise NotImplementedError

    def _handle(self, event: h2_events.Event) -> list[Event]:
        raise NotImplementedError

    def _data_received(self, event: h2_events.DataReceived) -> list[Event]:
        """Handle a DATA frame that went through h2: one with flags, or of a call that has ended."""
        call = self._calls.get(event.stream_id)
        if call is None or call.cutter is None or (call.sink is not None and not event.data):
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            return []
        call.via_h2 += (size := event.flow_controlled_length)
        return self._deliver(event.stream_id, call, size, call.cutter.feed(event.data))

    def _open_call(self, call_id: int, call: CallState, headers: dict[bytes, bytes]) -> None:
        """Prepare to receive the messages of a call, after its headers."""
        if b"content-length" in headers:
            # h2 checks content-length against the DATA bytes, so it must see all of them.
            call.cutter = _native.frames.MessageCutter(self._max_message, call.sink)
        else:
            call.cutter = self._walker.open(call_id, call.sink)

    def _forget(self, call_id: int, reset: ErrorCodes | None) -> None:
        """Remove a call. ``reset``: code of the RST_STREAM to send, needed unless both sides have closed."""
        call = self._calls.pop(call_id)
        self._sending.discard(call_id)
        if self._failed:
            return
        self._credit.forget(call_id, call)
        self._walker.close(call_id)
        if reset is not None:
            self._h2.reset_stream(call_id, reset)
            if not call.closed_there:
                self._walker.mute(call_id)
                self._muted.append(call_id)
                if len(self._muted) > _MUTED:
                    self._walker.close(self._muted.popleft())
