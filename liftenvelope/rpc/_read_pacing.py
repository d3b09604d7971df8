"""Finds out when a pause before the next read saves processor time."""

from __future__ import annotations

from typing import Final

__all__ = ["ReadPacer"]

#: Bytes of a read that is worth its fixed cost, about 40 us with the wait before it.
_WORTHWHILE: Final = 64 * 1024
#: Seconds between two reads of a server that sends all the time. Also covers a pause that lasts too long
#: because the processors are busy.
_CLOSE: Final = 0.004


class ReadPacer:
    """Rates the reads of one call.

    A server that sends messages one by one is read one by one if the reader is faster: each read finds a few
    messages, and costs more than they do. A short pause before the read lets more of them arrive. Reads that
    are far apart get no pause, since it would only delay their messages.

    Attributes:
        is_due: True if a pause before the next read saves time: the last two reads were close together, and
            the last one was small.
    """

    def __init__(self) -> None:
        self.is_due = False
        self._last = float("-inf")

    def received(self, size: int, now: float) -> None:
        """Record a read of ``size`` bytes at ``now``, in seconds of a monotonic clock."""
        self.is_due = size < _WORTHWHILE and now - self._last < _CLOSE
        self._last = now
