"""Receive windows of one HTTP/2 connection: counts what was received, and gives the peer credit for it.

DATA frames without flags bypass h2 (:mod:`liftenvelope._native.frames`), so they don't shrink h2's receive
windows. :class:`ReceiveCredit` gives credit for them with its own WINDOW_UPDATE frames. The other DATA frames
are counted by h2, which gives credit when they are acknowledged. Invariant: the peer's window is the
announced size minus all frames plus both kinds of updates. h2 misses the bypassing frames and their updates,
and those updates never exceed those frames. So h2's window is never smaller than the peer's, and h2 never
reports a false flow control error. Each kind of update waits until half a window is due. Together they hold
back less than a window, so the peer never stalls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftenvelope.rpc._budget import Budget

if TYPE_CHECKING:
    from liftenvelope.rpc._calls import CallState
    from liftenvelope.rpc._http2 import H2Connection

__all__ = ["LARGEST_WINDOW", "ReceiveCredit"]

#: HTTP/2's maximum.
LARGEST_WINDOW: Final = 2**31 - 1
# The windows of the calls limit the peer. If the window of the connection did too, one unread call could
# stall the others.
_CONNECTION_WINDOW: Final = LARGEST_WINDOW
_INITIAL_CONNECTION_WINDOW: Final = 65_535


def _window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame (RFC 9113, 6.9)."""
    return b"\0\0\x04\x08\0" + stream_id.to_bytes(4, "big") + increment.to_bytes(4, "big")


class ReceiveCredit:
    """Counts received bytes until their messages are taken, and gives the peer credit for them.

    Args:
        h2: The connection of h2. Its window is opened to the maximum.
        frames: Gets the WINDOW_UPDATE frames that are to be sent.
        window: Bytes that the peer may send on one call before any of them are released.
        shared: Counts the memory of bytes received and not yet released, over all connections that share it.

    Attributes:
        unread: Memory in bytes of what was received on this connection and not yet released.
    """

    def __init__(self, h2: H2Connection, frames: bytearray, window: int, shared: Budget | None) -> None:
        self.unread = 0
        self._h2 = h2
        self._frames = frames
        self._window = window
        self._shared = shared or Budget(0)
        self._room_due = 0
        h2.increment_flow_control_window(_CONNECTION_WINDOW - _INITIAL_CONNECTION_WINDOW)

    def received(self, call: CallState, size: int) -> None:
        """Count bytes received on a call as unread, until they are released or the call is removed."""
        call.unreleased += size
        self._count(size)

    def delivered(self, call: CallState, messages: int) -> None:
        """Count the memory of the messages of one read: they complete what was received so far."""
        self._count(call.hold(messages))
        call.partial = call.partial_ahead = 0

    def in_part(self, call_id: int, call: CallState) -> None:
        """Give credit for half a window of an incomplete message: one longer than it would never complete."""
        due = call.partial - call.partial_ahead
        if due >= self._window // 2:
            call.partial_ahead += due
            call.ahead += due
            self._give(call_id, call, due)

    def release(self, call_id: int, call: CallState, size: int) -> None:
        """Give credit for ``size`` bytes of a call whose messages were taken."""
        self._count(-call.release(size))
        ahead = min(size, call.ahead)
        call.ahead -= ahead
        self._give(call_id, call, size - ahead)

    def ignored(self, size: int) -> None:
        """Give the connection credit for bytes that bypassed h2 and belong to no call."""
        self._room_due += size
        if self._room_due >= _CONNECTION_WINDOW // 2:
            self._frames += _window_update(0, self._room_due)
            self._room_due = 0

    def forget(self, call_id: int, call: CallState) -> None:
        """Give the connection credit for the bytes of a call that is removed."""
        self._count(-call.unread)
        if call.via_h2:
            self._h2.acknowledge_received_data(call.via_h2, call_id)
        self.ignored(call.unreleased - call.ahead - call.via_h2)

    def drop_all(self) -> None:
        """Count nothing as unread any more: the connection is lost."""
        self._count(-self.unread)

    def _give(self, call_id: int, call: CallState, size: int) -> None:
        if via_h2 := min(size, call.via_h2):
            call.via_h2 -= via_h2
            self._h2.acknowledge_received_data(via_h2, call_id)
        self.ignored(size - via_h2)
        call.room_due += size - via_h2
        if call.room_due >= self._window // 2 and not call.closed_there:
            self._frames += _window_update(call_id, call.room_due)
            call.room_due = 0

    def _count(self, size: int) -> None:
        self.unread += size
        self._shared.used += size
