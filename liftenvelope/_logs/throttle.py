"""Limits on repeated log lines: a peer must not be able to fill a disk. Sans-io: callers pass the time."""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["RepeatFilter", "Throttle"]

#: Lines of one kind that are logged at once, and the seconds after which as many may follow.
_AT_ONCE: Final = 20
_SECONDS: Final = 60.0
#: Most kinds that are remembered. The oldest are forgotten.
_MOST_KINDS: Final = 1_000


class Throttle:
    """Admits a number of events of each kind per time span.

    Args:
        most: Events of one kind that are admitted within the time span. Default 1.
        seconds: The time span. Default 60.

    Example:
        >>> throttle = Throttle()
        >>> throttle.admits("accept", 0.0), throttle.admits("accept", 59.0), throttle.admits("full", 59.0)
        (True, False, True)
        >>> throttle.admits("accept", 60.0), throttle.refused("accept")
        (True, 1)
    """

    def __init__(self, most: int = 1, seconds: float = _SECONDS) -> None:
        self._most = most
        self._seconds = seconds
        # By kind: start of the time span, events admitted and refused in it, events refused in the last one.
        self._spans: dict[str, tuple[float, int, int, int]] = {}

    def admits(self, kind: str, now: float) -> bool:
        """Return whether an event may happen, and count it.

        Args:
            kind: Kind of the event.
            now: Current time in seconds. If the clock was set back, a new time span begins.
        """
        start, admitted, refused, before = self._spans.get(kind, (-float("inf"), 0, 0, 0))
        if not start <= now < start + self._seconds:
            start, admitted, refused, before = now, 0, 0, refused
            self._spans.pop(kind, None)  # puts the kind at the end, among the newest
        is_admitted = admitted < self._most
        self._spans[kind] = (start, admitted + is_admitted, refused + (not is_admitted), before)
        if len(self._spans) > _MOST_KINDS:
            del self._spans[next(iter(self._spans))]
        return is_admitted

    def refused(self, kind: str) -> int:
        """Return the events refused in the time span before the present one, once."""
        if kind not in self._spans:
            return 0
        start, admitted, refused, before = self._spans[kind]
        self._spans[kind] = (start, admitted, refused, 0)
        return before

    def clear(self) -> None:
        """Forget all events."""
        self._spans.clear()


class RepeatFilter(logging.Filter):
    """Drops log records whose text, before its fields are filled in, was logged 20 times within a minute.

    The next record of the kind says how many were left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.throttle = Throttle(_AT_ONCE)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a record to drop."""
        kind = f"{record.name}:{record.msg}"
        if not self.throttle.admits(kind, record.created):
            return False
        if left_out := self.throttle.refused(kind):
            record.msg = f"{record.msg} ({left_out} lines like this were left out)"
            record.left_out = left_out
        return True
