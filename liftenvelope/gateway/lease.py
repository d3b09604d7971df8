"""The lease by which a gateway leads partitions. Sans-io.

A gateway is alive for the others until ``ttl`` seconds after they have read its last beat. So it may lead
until ``ttl`` seconds after it *began* to write that beat, by its own clock, and no longer: who takes over
starts later than that. The clock is looked at each time the right to lead is used, because a process that was
stopped (SIGSTOP, a suspended machine) runs on exactly where it was, before any timer.

A beat extends the lease once it was stored **and** read back from the bucket. Entries are read in the order
of their revisions, so the gateway then knows of every other gateway that wrote before.

When a lease has run out, another gateway may have led in the meantime. Only one thing rules that out: the
next beat directly follows the last one in the bucket. Nobody else has written then, so nobody else lived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from liftenvelope.group.clock import time_since_boot

__all__ = ["Lease"]


class _Beat(NamedTuple):
    revision: int
    began: float
    continuous: bool


class Lease:
    """Says whether a gateway may lead.

    Args:
        ttl: Seconds that one beat is good for.
        clock: Returns the present time in seconds. Default:
            :func:`~liftenvelope.group.clock.time_since_boot`.

    Attributes:
        revision: Revision of the last beat that was stored; 0 for none.

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
        """Whether the gateway may lead now. Ask right before each use, with no ``await`` in between."""
        return self._clock() < self._valid_until

    @property
    def is_fresh(self) -> bool:
        """Whether the last beat that was read back is younger than half the TTL."""
        return self._clock() < self._valid_until - self._ttl / 2

    def stored(self, revision: int, *, began: float, continuous: bool = False) -> bool:
        """Note that a beat is stored.

        Args:
            revision: Its revision.
            began: When the write began, by the lease's clock.
            continuous: Whether it directly follows the last beat that was stored.

        Returns:
            Whether another gateway may have led since the lease was last valid. The caller must end what
            it did as a leader before it does anything else.
        """
        self.revision = revision
        self._unread.append(_Beat(revision, began, continuous))
        return self._extend()

    def read_back(self, revision: int) -> bool:
        """Note that an own beat was read from the bucket. Returns the same as :meth:`stored`."""
        self._read = max(self._read, revision)
        return self._extend()

    def refused(self, *, began: float) -> None:
        """Note that the bucket takes no beats, of anybody: its server has no room to store them.

        So no other gateway can get a lease now, and this one keeps its own. One that has run out stays so.
        """
        if self.is_valid:
            self._valid_until = max(self._valid_until, began + self._ttl)

    def end(self) -> None:
        """Lead nothing any more."""
        self._valid_until = float("-inf")
        self._unread.clear()

    def _extend(self) -> bool:
        interrupted = False
        while self._unread and self._unread[0].revision <= self._read:
            beat = self._unread.popleft()
            interrupted = interrupted or not (self.is_valid or beat.continuous)
            self._valid_until = max(self._valid_until, beat.began + self._ttl)
        return interrupted
