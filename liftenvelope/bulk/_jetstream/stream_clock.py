"""Time up to which a filtered read has all messages, by the clock that a stream's messages have. No I/O."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

__all__ = ["StreamClock", "StreamTimes"]

#: Seconds in which the server sends a message that it has stored, if a pull is open.
_QUIET: Final = 0.05
_NEVER: Final = 0.0


class StreamTimes(NamedTuple):
    """Times in a stream's info, in seconds since 1970.

    Attributes:
        now: When the server answered; 0 if it is too old to say.
        newest: When the newest message was stored; 0 if there never was one.
        is_mirror: True if the stream mirrors another one.
    """

    now: float
    newest: float
    is_mirror: bool

    @property
    def complete(self) -> float:
        """Time up to which the stream has its messages."""
        return self.newest if self.is_mirror else self.now


class StreamClock:
    """Time up to which a read has all messages of a stream, in seconds since 1970.

    A server stores messages with the time of its own clock, which may be ahead of ours or behind. A mirror
    keeps the times of its origin. It gets messages late, and after a lost connection very late, so the time
    of its server proves nothing. The time of its newest message proves that the earlier ones are there.

    Attributes:
        is_mirror: True if the stream mirrors another one. Its times must then be told again and again.
    """

    def __init__(self) -> None:
        self.is_mirror = False
        # How far the server's clock is ahead of ours, at least.
        self._ahead = 0.0
        # When the time of the newest message was told, by our clock, and that time: as told last, and as told
        # when the one before was used.
        self._last = self._newest = (math.inf, _NEVER)

    def told(self, times: StreamTimes, at: float) -> None:
        """Note the times in an answer that came ``at`` a time by our clock."""
        self.is_mirror = times.is_mirror
        self._ahead = times.now - at
        self._last = at, times.newest
        if self._newest[0] == math.inf:
            self._newest = self._last

    def with_nothing_pending(self, at: float) -> float:
        """Return the time up to which a read has all messages, if nothing was pending at a time by our clock.

        Of a mirror, that is what was told before, since newer messages may have come after it.
        """
        if not self.is_mirror:
            return at + self._ahead - _QUIET
        told_at, newest = self._newest
        if at < told_at:
            return _NEVER
        self._newest = self._last
        return newest

    def before_row(self, stored_at: float) -> float:
        """Return the time up to which a read had all messages before a row, if it gets them as they come.

        It is not "just before now", since the row may have waited for long in a socket.
        """
        return _NEVER if self.is_mirror else stored_at - _QUIET
