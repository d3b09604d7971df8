"""State of the open calls of one HTTP/2 connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from liftenvelope import _native
    from liftenvelope.rpc.framing import PayloadSink

__all__ = ["CallState", "SendQueue"]

#: Memory in bytes that unread messages take beside their content: each message for its object and its place
#: in a list, and those of one read for their event. A message of 8 bytes, 13 on the wire, takes 56.
_PER_MESSAGE: Final = 48
_PER_READ: Final = 160


@dataclass(slots=True)
class CallState:
    """State of an open call."""

    cutter: _native.frames.MessageCutter | None = None
    #: Messages to send; and framed bytes of earlier messages that the windows have not allowed yet.
    outbox: list[bytes] = field(default_factory=list)
    unsent: bytearray = field(default_factory=bytearray)
    #: True if our side closes once all is sent; true if our side is closed; true if the peer's side is.
    closing: bool = False
    closed_here: bool = False
    closed_there: bool = False
    #: Takes the received bytes in place of messages; None to cut them into messages.
    sink: PayloadSink | None = None
    #: Bytes received of an incomplete message; all bytes received and not released.
    partial: int = 0
    unreleased: int = 0
    #: Memory that unreleased messages take beside their bytes.
    overhead: int = 0
    #: Credit given to the peer before the release, needed by a message longer than the window: for the
    #: incomplete message; for all unreleased bytes.
    partial_ahead: int = 0
    ahead: int = 0
    #: Unreleased bytes that h2 has counted; released bytes that no WINDOW_UPDATE covers yet.
    via_h2: int = 0
    room_due: int = 0

    @property
    def unread(self) -> int:
        """Memory of the unreleased messages."""
        return self.unreleased + self.overhead

    def hold(self, messages: int) -> int:
        """Add the overhead of one read with that many messages; return it."""
        added = _PER_READ + _PER_MESSAGE * messages
        self.overhead += added
        return added

    def release(self, size: int) -> int:
        """Release that many bytes, with their share of the overhead; return the memory that is free then."""
        share = self.overhead * size // self.unreleased if self.unreleased else 0
        self.overhead -= share
        self.unreleased -= size
        return size + share


class SendQueue:
    """Calls with data to send: those to try at the next write, and those that wait for a window or a stream.

    Without the second group, each write would try each call whose client opens no window: 0.8 us per call.
    """

    def __init__(self) -> None:
        self._ready: dict[int, CallState] = {}
        self._blocked: dict[int, CallState] = {}

    def add(self, call_id: int, call: CallState) -> None:
        """Try this call at the next write."""
        self._ready[call_id] = call

    def take_turn(self) -> list[tuple[int, CallState]]:
        """Return the calls to try now, in the order they were added."""
        return list(self._ready.items())

    def block(self, call_id: int) -> None:
        """Keep a call until a window opens, or it gets a stream: those that there are are used up."""
        self._blocked[call_id] = self._ready.pop(call_id)

    def unblock(self, call_id: int) -> None:
        """Try this call again: its window has opened, or it has a stream."""
        if (call := self._blocked.pop(call_id, None)) is not None:
            self._ready[call_id] = call

    def unblock_all(self) -> None:
        """Try every call again."""
        self._ready |= self._blocked
        self._blocked.clear()

    def discard(self, call_id: int) -> None:
        """Remove a call that has sent everything or has ended."""
        self._ready.pop(call_id, None)
        self._blocked.pop(call_id, None)

    def clear(self) -> None:
        """Remove all calls."""
        self._ready.clear()
        self._blocked.clear()
