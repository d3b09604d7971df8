"""The lease that allows a gateway to lead partitions. Sans-io.

The other gateways count a gateway as alive until ``ttl`` seconds after they read its last heartbeat ("beat").
So a gateway may lead until ``ttl`` seconds after it *began* to write that beat, by its own clock. A gateway
that takes over starts later than that, so two gateways never lead at once. Every use of the right to lead
checks the clock: a stopped process (SIGSTOP, a suspended machine) resumes exactly where it was, before any
timer fires.

A beat extends the lease once it was stored **and** read back from the bucket. Entries are read in the order
of their revisions, so the gateway then knows every other gateway that wrote earlier.

After a lease has expired, another gateway may have led in the meantime. Only one observation rules that out:
the next beat directly follows the last one in the bucket. In that case no other gateway has written, so none
was alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from liftenvelope.group.clock import time_since_boot

__all__ = ["Lease"]


class _Beat(NamedTuple):
    """A beat that is stored but not yet read back; the fields are the arguments of :meth:`Lease.stored`."""

    revision: int
    began: float
    continuous: bool


class Lease:
    """Decides whether a gateway may lead, from its beats and the clock.

    Args:
        ttl: Seconds that one beat extends the lease.
        clock: Returns the current time in seconds. Default:
            :func:`~liftenvelope.group.clock.time_since_boot`, which counts suspended time as well.

    Attributes:
        revision: Revision of the last beat stored; 0 for none.

    Example:
        >>> now = 100.0
        >>> lease = Lease(3.0, clock=lambda: now)
        >>> lease.stored(7, began=now)
        False
        >>> lease.read_back(7)  # the first one: nothing is known of the time before
        True
        >>> now = 102.9
        >>> lease.is_valid
        True
        >>> now = 103.0
        >>> lease.is_valid
        False
    """

    def __init__(self, ttl: float, *, clock: Callable[[], float] = time_since_boot) -> None:
        self._ttl = ttl
        self._clock = clock
        self._valid_until = float("-inf")
        self._unread: deque[_Beat] = deque()
        self._read = 0
        self.revision = 0

    @property
    def is_valid(self) -> bool:
        """True while the gateway may lead. Check right before each use, with no ``await`` in between."""
        return self._clock() < self._valid_until

    @property
    def is_fresh(self) -> bool:
        """True while the last beat read back is younger than half the TTL."""
        return self._clock() < self._valid_until - self._ttl / 2

    def stored(self, revision: int, *, began: float, continuous: bool = False) -> bool:
        """Record that a beat is stored.

        Args:
            revision: Revision of the beat.
            began: Time when the write began, by the lease's clock.
            continuous: Whether the beat directly follows the last stored beat in the bucket. Default False.

        Returns:
            True if another gateway may have led since the lease was last valid. The caller must then end
            everything it did as a leader before it does anything else.
        """
        self.revision = revision
        self._unread.append(_Beat(revision, began, continuous))
        return self._extend()

    def read_back(self, revision: int) -> bool:
        """Record that an own beat was read from the bucket. Returns the same as :meth:`stored`."""
        self._read = max(self._read, revision)
        return self._extend()

    def refused(self, *, began: float) -> None:
        """Record that the bucket accepts no beats from any gateway because its server has no room.

        No other gateway can get a lease now, so a valid lease is extended. An expired lease stays expired.

        Args:
            began: Time when the refused write began, by the lease's clock.
        """
        if self.is_valid:
            self._valid_until = max(self._valid_until, began + self._ttl)

    def end(self) -> None:
        """End the lease and discard the beats that are not read back yet."""
        self._valid_until = float("-inf")
        self._unread.clear()

    def _extend(self) -> bool:
        """Extend the lease by the beats that are stored and read back; return whether it had a gap.

        The gap is checked for each beat before that beat extends the lease.
        """
        interrupted = False
        while self._unread and self._unread[0].revision <= self._read:
            beat = self._unread.popleft()
            interrupted = interrupted or not (self.is_valid or beat.continuous)
            self._valid_until = max(self._valid_until, beat.began + self._ttl)
        return interrupted
