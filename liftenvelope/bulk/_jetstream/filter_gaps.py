"""Tells messages that a server's filter skips from messages that retention has taken. No I/O, no clock."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

__all__ = ["FilterGaps"]

#: Times that are noted as one, in seconds.
_CLOSE: Final = 0.05


class FilterGaps:
    """Gaps of one read that the server filters.

    Most gaps are messages that do not match. If a gap begins before the oldest message, one that matched
    may have been in it, and retention was faster than the read. The subjects of messages that are gone are
    unknown, so two rules decide:

    - The messages that were stored when the read began, the backlog, are counted then. None is lost if those
      that the read got and those still to come are as many. If they are fewer, messages may be on their way
      that the leader has removed since: they are in a socket, or on the replica of the consumer, which lags.
      Only when the read has passed the oldest message, or the backlog, are they lost.
    - Later messages are delivered as they are stored. What counts is the moment when the read was last up to
      date before it passed a gap. If the oldest message was stored earlier, none is lost in the gap, since
      retention takes the oldest messages first. Retention goes on while a batch is collected, so the oldest
      message is looked at soon after a gap: :meth:`looked` clears the gaps of which nothing was taken yet.

    Both rules apply to a gap that begins in the backlog and ends after it.

    Args:
        start: First offset of the read.
    """

    def __init__(self, start: int) -> None:
        self._start = self._reached = start
        self._skipped = 0
        # Messages of the backlog that were missing when they were last counted.
        self._missing = 0
        self._matching = self._end = -1
        self._suspect: int | None = None
        # Offset to reach before the suspect is looked at again.
        self._again_at = 0
        # Offsets that the read has reached, and when it was last up to date before each; infinite if nothing
        # was lost since the offset before. The first _looked of them were looked at.
        self._passed: list[int] = []
        self._passed_at: list[float] = []
        self._looked = 0
        #: When a later gap was passed that was not looked at yet, by our clock; infinite for none.
        self.unsure_since = math.inf
        #: Last time, in seconds of the server's clock, at which the read had every message that matches.
        self.current_at = 0.0

    @property
    def suspect(self) -> int | None:
        """Start of the last gap of the backlog that may have had messages that match; None for none."""
        return self._suspect

    @property
    def has_begun(self) -> bool:
        """True once :meth:`begin` was called."""
        return self._end >= 0

    def begin(self, matching: int, end: int, now: float) -> None:
        """Set the number of matching messages from the start up to ``end``, where the stream ended then."""
        self._matching, self._end, self.current_at = matching, end, now

    def was_current(self, at: float) -> None:
        """Note that the read had every message that matches at some time."""
        self.current_at = max(self.current_at, at)

    def may_lack(self, reached: int, oldest: int, oldest_at: float) -> bool:
        """Return True if retention may have taken later messages since the read was last up to date.

        Args:
            reached: Offset that the read has reached.
            oldest: Offset of the oldest message.
            oldest_at: Time in seconds, by the server's clock, at which the oldest message was stored.
        """
        return oldest > max(reached, self._end) and self.current_at <= oldest_at

    def passed(self, stop: int, gap_at: float) -> None:
        """Note that the read has come to an offset, and was last up to date at ``current_at``.

        Args:
            stop: The offset.
            gap_at: Now, by our clock, if there is a gap since the offset before; infinite if there is none.
        """
        if stop > self._end:
            self.unsure_since = min(self.unsure_since, gap_at)
        if len(self._passed) > self._looked and self.current_at - self._passed_at[-1] < _CLOSE:
            self._passed[-1] = stop
        else:
            self._passed.append(stop)
            self._passed_at.append(self.current_at)

    def looked(self, oldest: int, oldest_at: float) -> None:
        """Clear the later gaps that the read has passed and in which nothing can have been lost.

        Args:
            oldest: Offset of the oldest message, asked for after the gaps were passed.
            oldest_at: Time in seconds, by the server's clock, at which the oldest message was stored.
        """
        begin = self._passed[self._looked - 1] if self._looked else self._reached
        fresh = list(zip(self._passed[self._looked :], self._passed_at[self._looked :], strict=True))
        del self._passed[self._looked :], self._passed_at[self._looked :]
        for stop, current_at in fresh:
            at = math.inf if oldest <= max(begin, self._end) or current_at > oldest_at else current_at
            if at == math.inf and self._passed_at and self._passed_at[-1] == at:
                self._passed[-1] = stop
            else:
                self._passed.append(stop)
                self._passed_at.append(at)
            begin = stop
        self._looked, self.unsure_since = len(self._passed), math.inf

    def pass_over(
        self, gaps: Iterable[tuple[int, int]], reached: int, oldest: int, oldest_at: float
    ) -> int | None:
        """Take the gaps up to an offset, in order, and set the suspect of the backlog.

        Args:
            gaps: First offset of each gap, and the offset after it.
            reached: Offset that the read has reached.
            oldest: Offset of the oldest message.
            oldest_at: Time in seconds, by the server's clock, at which the oldest message was stored.

        Returns:
            Start of the last gap after the backlog in which messages may have been lost; None for none.
        """
        self._reached, later = reached, None
        for start, stop in gaps:
            if start < min(oldest, self._end):
                self._suspect = start
            begin = max(start, self._end)
            if begin < min(stop, oldest) and self._current_before(stop) <= oldest_at:
                later = begin
            self._skipped += max(min(stop, self._end) - start, 0)
        kept = bisect_right(self._passed, reached)
        del self._passed[:kept], self._passed_at[:kept]
        self._looked = max(self._looked - kept, 0)
        return later

    def _current_before(self, stop: int) -> float:
        """Return when the read was last up to date before it passed the gap that ends at ``stop``."""
        at = bisect_left(self._passed, stop)
        return self._passed_at[at] if at < len(self._passed) else self.current_at

    def is_due(self, reached: int) -> bool:
        """Return True if the read has come far enough for another look at the suspect."""
        return self._suspect is not None and reached >= self._again_at

    def acquit(self) -> None:
        """Forget the suspect."""
        self._suspect = None

    def to_count(self) -> tuple[int, int] | None:
        """Return the offsets between which messages of the backlog are to come; None if none are."""
        return (self._reached, self._end) if self._reached < self._end else None

    def is_complete(self, left: int) -> bool:
        """Return True, and forget the suspect, if no message of the backlog is missing.

        Args:
            left: Number of messages that are still to come, as the leader counts them.
        """
        got = min(self._reached, self._end) - self._start - self._skipped
        self._missing = self._matching - got - left
        if self._missing > 0:
            return False
        self.acquit()
        return True

    def has_lost(self, oldest: int) -> bool:
        """Return True if the missing messages are lost; otherwise put off the decision.

        Args:
            oldest: Offset of the oldest message after :meth:`is_complete` returned False.
        """
        self._again_at = min(oldest, self._end)
        return self._reached >= self._again_at

    def write_off(self) -> None:
        """Forget the suspect and the lost messages, after :meth:`has_lost`: only further ones count now."""
        self._matching -= self._missing
        self.acquit()
