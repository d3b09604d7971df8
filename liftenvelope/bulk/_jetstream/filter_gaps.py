"""Tells messages that a server's filter skips from messages that retention has taken. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["FilterGaps", "Suspect"]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A gap of a filtered read that begins before the oldest message of the stream.

    Attributes:
        start: First offset of the gap.
        stop: Offset after the gap.
        rows: Number of messages that the read got before the gap.
    """

    start: int
    stop: int
    rows: int


class FilterGaps:
    """Gaps of one read that the server filters.

    Most gaps are messages that do not match. If a gap begins before the oldest message, one that matched
    may have been in it, and retention was faster than the read. The subjects of messages that are gone are
    unknown, so two rules decide:

    - The messages that were stored when the read began are counted then. None is lost if the messages before
      the gap and those still to come are as many.
    - Later messages are delivered as they are stored. None is lost if the oldest message was stored before
      the time at which the read was last up to date, since retention takes the oldest messages first.

    Args:
        start: First offset of the read.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._skipped = 0
        self._matching = self._end = -1
        #: Last time, in seconds of a monotonic clock, at which the read had every message that matches.
        self.current_at = 0.0

    @property
    def has_begun(self) -> bool:
        """True once :meth:`begin` was called."""
        return self._end >= 0

    def begin(self, matching: int, end: int, now: float) -> None:
        """Set the number of matching messages from the start up to ``end``, as of ``now``."""
        self._matching, self._end, self.current_at = matching, end, now

    def pass_over(self, gaps: Iterable[tuple[int, int]], oldest: int) -> list[Suspect]:
        """Take gaps in order; return the last suspect before ``end``, and the last one after it."""
        found: dict[bool, Suspect] = {}
        for start, stop in gaps:
            if start < oldest:
                found[start < self._end] = Suspect(start, stop, start - self._start - self._skipped)
            self._skipped += stop - start
        return list(found.values())

    def is_stored_later(self, suspect: Suspect) -> bool:
        """Return True if all messages of a suspect were stored after the read began."""
        return suspect.start >= self._end

    def end_after(self, suspect: Suspect) -> int | None:
        """Return the end of the messages to count from the suspect's stop on; None if there are none."""
        return self._end if suspect.stop < self._end else None

    def has_lost(self, suspect: Suspect, left: int) -> bool:
        """Return True if messages are missing, given the number of those that are still to come."""
        return suspect.rows + left < self._matching

    def may_have_lost(self, now: float, oldest_age: float) -> bool:
        """Return True if a message may have been stored and removed since the read was up to date.

        Args:
            now: Monotonic time in seconds.
            oldest_age: Age of the oldest message in seconds.
        """
        return oldest_age <= now - self.current_at
