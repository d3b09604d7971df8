"""One gRPC connection without any I/O: what the client's and the server's side have in common.

The shell around a connection sends what :meth:`~Connection.data_to_send` returns, feeds what it receives,
and hands the events to whoever the calls belong to. HTTP/2 is h2's work, with these exceptions:

- DATA frames without flags never reach h2 (see :mod:`liftenvelope._native.frames`). So they don't shrink the
  windows for receiving that h2 keeps, and room for them is given again here, by WINDOW_UPDATE frames of our
  own. The other DATA frames are in h2's books, and h2 gives room for them again when told that they were
  taken. The peer's windows are what was announced, less all frames, plus both kinds of updates. h2's leave
  out the frames that it never saw and the updates for them, which are never more; so h2's are never the
  smaller ones, and it can't find a fault where there is none. Each kind waits until half a window is due:
  together they hold back less than a window, and the peer is never stuck. The windows for sending are h2's
  alone, also when SETTINGS_INITIAL_WINDOW_SIZE changes with calls open, as grpc-go does.
- DATA frames that we send are made here as well, unless they end our side: h2 takes some 40 us for one, which
  was a third of what a writer did. They are taken off its windows.
- GOAWAY: the calls that the peer has accepted go on after it (RFC 9113, 6.8), but h2 counts the connection as
  closed and refuses their frames. So h2 never sees it.
- PING, and WINDOW_UPDATE of the whole connection: h2 takes some 30 us for a frame, and grpc-go sends one of
  each with nearly every answer, so that they were a quarter of a short call. What is sound of them is handled
  here; what is not is left to h2, which knows what to say about it.
- The rules for header fields (:mod:`liftenvelope.rpc._fields`), and HPACK for headers that were seen before
  (:mod:`liftenvelope.rpc._hpack`). Those that come for an open call go straight to h2's stream, which keeps
  the states; h2's layers above it take 10 us for a frame.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

from liftenvelope import _native
from liftenvelope.errors import TransportError
from liftenvelope.rpc._fields import FieldRules
from liftenvelope.rpc._hpack import RememberingDecoder, RememberingEncoder
from liftenvelope.rpc._http2 import (
    ErrorCodes,
    H2Configuration,
    H2Connection,
    ProtocolError,
    SettingCodes,
    Settings,
)
from liftenvelope.rpc._http2 import events as h2_events
from liftenvelope.rpc.budget import Budget
from liftenvelope.rpc.events import CallEnded, Event, MessagesReceived, Pong
from liftenvelope.rpc.framing import message_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftenvelope.rpc._fields import Block
    from liftenvelope.rpc.status import RpcError

__all__ = ["DEFAULT_WINDOW", "PREFACE_SIZE", "CallState", "Connection"]

#: What the peer may send on one call before any of it was taken, in bytes.
DEFAULT_WINDOW: Final = 8 * 1024 * 1024
# As far as HTTP/2 goes. The windows of the calls hold the peer back; if that of the connection did as well, a
# call that nobody reads could stall the others.
_LARGEST_WINDOW: Final = 2**31 - 1
_CONNECTION_WINDOW: Final = _LARGEST_WINDOW
_INITIAL_CONNECTION_WINDOW: Final = 65_535
_MAX_FRAME_SIZE: Final = 16_384  # what HTTP/2 starts with, and we announce no other
#: Bytes that a client begins with (RFC 9113, 3.4).
PREFACE_SIZE: Final = 24
_GOAWAY: Final = b"\x07"
_HEADER_FRAMES: Final = (b"\x01", b"\x05", b"\x09")
_END_STREAM, _END_HEADERS = 0x1, 0x4
# Types and flags of HEADERS frames without padding or priority, with all of a block.
_WHOLE_BLOCKS: Final = (b"\x01\x04", b"\x01\x05")
# Whole headers of frames: a ping, its answer, and room on the connection.
_PING_HEADER: Final = b"\0\0\x08\x06\0\0\0\0\0"
_PONG_HEADER: Final = b"\0\0\x08\x06\x01\0\0\0\0"
_ROOM_HEADER: Final = b"\0\0\x04\x08\0\0\0\0\0"
# Types and flags of frames that are answered, SETTINGS and PING, and how many may come before answers go out.
# A peer that sends more wants to fill the memory, or to keep us busy (RFC 9113, 10.5).
_ANSWERED: Final = (b"\x04\0", b"\x06\0")
_MOST_ANSWERS: Final = 1000
# Of how many calls that were cancelled last what still comes is dropped without asking h2, which would answer
# every frame with a reset.
_MUTED: Final = 1024


@dataclass(slots=True)
class CallState:
    """A call that has not ended."""

    cutter: _native.frames.MessageCutter | None = None
    #: Messages that are to be sent, and what could not be sent yet of those before them.
    outbox: list[bytes] = field(default_factory=list)
    unsent: bytearray = field(default_factory=bytearray)
    #: Whether our side closes when all of that is sent; whether it has; whether the other side has.
    closing: bool = False
    closed_here: bool = False
    closed_there: bool = False
    #: Whether its events have the bytes as they came, for somebody else to cut into messages.
    pieces: bool = False
    #: Bytes that came of a message that is not complete, and bytes of all kinds that were not released.
    partial: int = 0
    unreleased: int = 0
    #: Room given to the peer ahead of the release, which a message longer than the window needs: for the
    #: message that is not complete, and for all that was not released.
    partial_ahead: int = 0
    ahead: int = 0
    #: How many of the unreleased ones h2 knows of, and what was released and the peer has not been told.
    via_h2: int = 0
    room_due: int = 0


def window_update(stream_id: int, increment: int) -> bytes:
    """Return the frame that gives the peer room for more bytes (RFC 9113, 6.9)."""
    return b"\0\0\x04\x08\0" + stream_id.to_bytes(4, "big") + increment.to_bytes(4, "big")


class Connection:
    """What both sides of a connection do. See :class:`ClientConnection` and :class:`ServerConnection`.

    Args:
        client_side: Which side this is.
        settings: HTTP/2 settings to announce, besides the window.
        max_message: The longest message to take in, in bytes. A longer one ends its call.
        window: What the peer may send on one call before any of it was released, in bytes.
        unread: Counts the bytes received and not yet released, over all connections that share it.
        max_header_list: Largest header list to accept, in bytes (RFC 9113, 6.5.2). None: 64 KiB.

    Attributes:
        unread: Bytes received on this connection and not yet released.
    """

    #: Whether the last DATA frame says that our side is done. If not, :meth:`_finish` does.
    _ends_with_data: bool

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
        self._window = window
        self._shared_unread = unread or Budget(0)
        self.unread = 0
        # What we send was checked or made here, in the form that h2 would give it.
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
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW - _INITIAL_CONNECTION_WINDOW)
        preface = 0 if client_side else PREFACE_SIZE
        self._walker = _native.frames.FrameWalker(_MAX_FRAME_SIZE, max_message, preface)
        self._calls: dict[int, CallState] = {}
        self._sending: dict[int, CallState] = {}
        self._muted: deque[int] = deque()
        self._room_due = 0
        # Frames that h2 does not know of. They go before its own: what they speak of is older.
        self._own_frames = bytearray()
        # What is to be sent next, in order.
        self._outgoing = bytearray()
        self._answers = 0
        self._in_headers = False
        self._no_more_calls = ""
        self._failed = False

    @property
    def accepts_calls(self) -> bool:
        """Whether a new call can be started: not after a failure, or once either side is going away."""
        return not self._no_more_calls

    @property
    def failed(self) -> bool:
        """Whether the connection is of no more use."""
        return self._failed

    @property
    def open_calls(self) -> int:
        """How many calls have not ended."""
        return len(self._calls)

    def send(self, call_id: int, messages: Iterable[bytes]) -> None:
        """Send messages on a call, as soon as the peer's windows allow. Nothing happens if it has ended."""
        call = self._calls.get(call_id)
        if call is not None and not call.closing:
            call.outbox += messages
            self._sending[call_id] = call

    def send_framed(self, call_id: int, frames: bytes) -> None:
        """Send messages that have their gRPC prefixes already. Nothing happens if the call has ended."""
        call = self._calls.get(call_id)
        if call is not None and not call.closing and frames:
            if call.outbox:
                call.unsent += _native.frames.pack_messages(call.outbox)
                call.outbox.clear()
            call.unsent += frames
            self._sending[call_id] = call

    def unsent(self, call_id: int) -> int:
        """How many bytes of messages wait for the peer's windows, of a call."""
        call = self._calls.get(call_id)
        return 0 if call is None else len(call.unsent) + sum(map(len, call.outbox))

    def release(self, call_id: int, size: int) -> None:
        """Let the peer send as much again on a call as an event said, because its messages were taken.

        As long as that is not done, the peer stops after the window. Nothing happens if the call has ended.
        """
        call = self._calls.get(call_id)
        if call is None or self._failed:
            return
        call.unreleased -= size
        self._count_unread(-size)
        ahead = min(size, call.ahead)
        call.ahead -= ahead
        self._give_room_for(call_id, call, size - ahead)

    def _give_room_for(self, call_id: int, call: CallState, size: int) -> None:
        if via_h2 := min(size, call.via_h2):
            call.via_h2 -= via_h2
            self._h2.acknowledge_received_data(via_h2, call_id)
        self._give_room(size - via_h2)
        call.room_due += size - via_h2
        if call.room_due >= self._window // 2 and not call.closed_there:
            self._own_frames += window_update(call_id, call.room_due)
            call.room_due = 0

    def ping(self) -> None:
        """Ask the peer for a sign of life. Its answer is an event."""
        if not self._failed:
            self._h2.ping(b"liftping")

    def data_to_send(self) -> bytes:
        """Return what is to go to the peer now, and forget it."""
        if not self._failed:
            for call_id, call in list(self._sending.items()):
                self._send_call(call_id, call)
        self._drain()
        data = bytes(self._outgoing)
        self._outgoing.clear()
        self._answers = 0
        return data

    def feed(self, data: bytes) -> list[Event]:
        """Take in bytes from the peer; return what they mean, in order.

        If they are not HTTP/2 as it should be, the connection has failed: every call ends. What
        :meth:`data_to_send` then returns tells the peer why.
        """
        events: list[Event] = []
        self._walker.feed(data)
        while not self._failed:
            taken, frame = self._walker.walk()
            for call_id, size, messages in taken:
                events += self._data_taken(call_id, size, messages)
            if not frame:
                break
            try:
                events += self._handle_frame(frame)
            except ProtocolError as exc:
                events += self.connection_lost(f"the peer broke the rules of HTTP/2: {exc}")
        return events

    def connection_lost(self, reason: str) -> list[Event]:
        """Note that nothing can be sent or received any more; return the end of every call."""
        self._no_more_calls = f"{self._no_more_calls}; then: {reason}" if self._no_more_calls else reason
        self._failed = True
        ended = [CallEnded(call_id, TransportError(self._no_more_calls)) for call_id in self._calls]
        self._calls.clear()
        self._sending.clear()
        self._count_unread(-self.unread)
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
            return
        del self._sending[call_id]
        if call.closing and not call.closed_here:
            self._finish(call_id, call)

    def _send_plain(self, call_id: int, unsent: bytearray, size: int) -> None:
        """Send so many bytes, which the windows allow, in DATA frames without flags. They change no state."""
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
        """Have what is due so far go before what comes next."""
        self._outgoing += self._own_frames
        self._own_frames.clear()
        self._outgoing += self._h2.data_to_send()

    def _finish(self, call_id: int, call: CallState) -> None:
        """Close our side of a call: all its messages are sent."""
        raise NotImplementedError

    def _give_room(self, size: int) -> None:
        """Give room again on the connection for bytes that h2 has not seen."""
        self._room_due += size
        if self._room_due >= _CONNECTION_WINDOW // 2:
            self._own_frames += window_update(0, self._room_due)
            self._room_due = 0

    # Receiving

    def _data_taken(self, call_id: int, size: int, messages: list[bytes]) -> list[Event]:
        call = self._calls.get(call_id)
        if call is None:
            self._give_room(size)
            return []
        return self._deliver(call_id, call, size, messages)

    def _deliver(self, call_id: int, call: CallState, size: int, messages: list[bytes]) -> list[Event]:
        events: list[Event] = []
        self._receive(call, size)
        call.partial += size
        if messages:
            events.append(MessagesReceived(call_id, messages, call.partial))
            call.partial = call.partial_ahead = 0
        elif (due := call.partial - call.partial_ahead) >= self._window // 2:
            # The rest of this message may need the room.
            call.partial_ahead += due
            call.ahead += due
            self._give_room_for(call_id, call, due)
        if call.cutter is not None and (error := message_error(call.cutter, self._max_message)) is not None:
            events += self._refuse(call_id, error)
        return events

    def _receive(self, call: CallState, size: int) -> None:
        """Count bytes that came on a call, until they are released or the call is forgotten."""
        call.unreleased += size
        self._count_unread(size)

    def _count_unread(self, size: int) -> None:
        self.unread += size
        self._shared_unread.used += size

    def _refuse(self, call_id: int, error: RpcError) -> list[Event]:
        """End a call because of what came on it."""
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
        if kind in _HEADER_FRAMES:
            if not self._in_headers and (known := self._recall_headers(frame)) is not None:
                return [event for h2_event in known for event in self._handle(h2_event)]
            self._in_headers = not frame[4] & _END_HEADERS
        elif kind == _GOAWAY and not self._in_headers:
            return self._handle_goaway(int.from_bytes(frame[5:9], "big") & 0x7FFFFFFF, frame[9:])
        elif not self._in_headers and (own := self._handle_briefly(frame)) is not None:
            return own
        return [event for h2_event in self._h2.receive_data(frame) for event in self._handle(h2_event)]

    def _handle_briefly(self, frame: bytes) -> list[Event] | None:
        """Handle a ping, its answer, or room on the connection; return None for any other frame."""
        header = frame[:9]
        if header == _PING_HEADER:
            self._own_frames += _PONG_HEADER + frame[9:]
            return []
        if header == _PONG_HEADER:
            return [Pong()]
        if header == _ROOM_HEADER:
            increment = int.from_bytes(frame[9:], "big") & 0x7FFFFFFF
            room = self._h2.outbound_flow_control_window + increment
            if increment and room <= _LARGEST_WINDOW:
                self._h2.outbound_flow_control_window = room
                return []
        return None

    def _recall_headers(self, frame: bytes) -> list[h2_events.Event] | None:
        """Give a call its headers if such came before and are whole; return None for any other frame."""
        call_id = int.from_bytes(frame[5:9], "big")
        call, stream = self._calls.get(call_id), self._h2.streams.get(call_id)
        if call is None or call.closed_there or stream is None or frame[3:5] not in _WHOLE_BLOCKS:
            return None
        fields = self._decoder.recall(frame[9:])
        if fields is None:
            return None
        try:
            _, events = stream.receive_headers(fields, bool(frame[4] & _END_STREAM), None)
        except ProtocolError as exc:
            self._give_up(exc.error_code, str(exc))
        return events

    def _give_up(self, code: ErrorCodes, why: str) -> NoReturn:
        """Have the peer told that it broke a rule; :meth:`feed` ends the calls."""
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
        code = int.from_bytes(payload[4:8], "big")
        text = payload[8:].decode("utf-8", "replace")
        return self._going_away(int.from_bytes(payload[:4], "big") & 0x7FFFFFFF, code, text)

    def _going_away(self, last_id: int, code: int, text: str) -> list[Event]:
        raise NotImplementedError

    def _handle(self, event: h2_events.Event) -> list[Event]:
        raise NotImplementedError

    def _data_received(self, event: h2_events.DataReceived) -> list[Event]:
        """Take what h2 had to look at: a DATA frame with a flag, or of a call that has ended."""
        call = self._calls.get(event.stream_id)
        if call is None or call.cutter is None:
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            return []
        call.via_h2 += event.flow_controlled_length
        messages = call.cutter.feed(event.data)
        return self._deliver(event.stream_id, call, event.flow_controlled_length, messages)

    def _open_call(self, call_id: int, call: CallState, headers: dict[bytes, bytes]) -> None:
        """Get ready for the messages of a call, whose headers have come."""
        if b"content-length" in headers:
            # h2 counts the bytes of such a stream, so it must see them all.
            call.cutter = _native.frames.MessageCutter(self._max_message, call.pieces)
        else:
            call.cutter = self._walker.open(call_id, call.pieces)

    def _forget(self, call_id: int, reset: ErrorCodes | None) -> None:
        """Drop a call. ``reset`` tells the peer, which must be done unless both sides have finished."""
        call = self._calls.pop(call_id)
        self._sending.pop(call_id, None)
        if self._failed:
            return
        self._count_unread(-call.unreleased)
        if call.via_h2:
            self._h2.acknowledge_received_data(call.via_h2, call_id)
        self._give_room(call.unreleased - call.ahead - call.via_h2)
        self._walker.close(call_id)
        if reset is not None:
            self._h2.reset_stream(call_id, reset)
            if not call.closed_there:
                self._mute(call_id)

    def _mute(self, call_id: int) -> None:
        self._walker.mute(call_id)
        self._muted.append(call_id)
        if len(self._muted) > _MUTED:
            self._walker.close(self._muted.popleft())
