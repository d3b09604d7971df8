"""A consumer's place in its group: what to ask the servers next, and what their answers mean.

No I/O and no clock: sans-io. Times are seconds of any clock that does not go back.

A member tells the group's coordinator that it lives by asking for its partitions, in the epoch that it knows.
What can come back, and what is done then:

===============================  ==========================================================================
the coordinator says             the member
===============================  ==========================================================================
its partitions                   asks again after 0.4 of the consumer timeout
the epoch is another             asks any server for epoch and coordinator, then the coordinator, at once
it is not the coordinator        likewise
no such member, no such group    has expired: joins anew, after a little while if it has only just joined
nothing                          asks any server, then again; reports it after the coordinator timeout
===============================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

__all__ = ["Action", "Change", "Do", "Membership", "StreamPartition"]

#: A stream and the number of one of its partitions.
StreamPartition: TypeAlias = tuple[str, int]

_HEARTBEAT_SHARE: Final = 0.4
# Servers hear of a join one after the other: for so long after it, "no such member" is no expiry.
_GRACE: Final = 1.0
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0


class Do(Enum):
    """What a member can be about to do."""

    JOIN = auto()
    #: Leave, since the group has a member of this id from before, or may have.
    LEAVE = auto()
    #: Ask any server for the group's epoch and coordinator.
    LOCATE = auto()
    #: Ask the coordinator for this member's partitions.
    HEARTBEAT = auto()
    #: Tell any server that the coordinator can't be reached.
    REPORT = auto()


@dataclass(frozen=True, slots=True)
class Action:
    """What to do next, and in how many seconds.

    Attributes:
        do: What.
        wait: Seconds until then, 0 for now.
    """

    do: Do
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """What has become different.

    Attributes:
        assigned: Partitions that the member has got, in order.
        revoked: Partitions that it has no more.
        expired: Whether it has lost its place in the group, and with it all that it had.
    """

    assigned: tuple[StreamPartition, ...] = ()
    revoked: tuple[StreamPartition, ...] = ()
    expired: bool = False

    def __bool__(self) -> bool:
        return bool(self.assigned or self.revoked or self.expired)


class Membership:
    """One consumer in one group, from its first join on. Ask :meth:`next`, do it, and tell the outcome.

    Attributes:
        epoch: The generation of the group that the member knows.
        coordinator: Id of the broker that deals out partitions; empty where it is not known.
        assignment: The partitions that are this member's.
        assigned_epoch: The generation in which they were dealt out.
        consumer_timeout: Seconds of silence after which the servers take a member for dead.
        coordinator_timeout: Seconds of silence after which members report their coordinator.
        is_member: Whether the group has taken the consumer in, as far as it knows.
        answers: How often the coordinator has told the assignment.

    Example:
        >>> member = Membership()
        >>> member.next(now=0.0).do
        <Do.JOIN: 1>
        >>> member.joined("broker-1", 0, 15.0, 15.0, now=0.0)
        >>> member.next(now=0.0).do
        <Do.HEARTBEAT: 4>
        >>> member.assigned(0, [("orders", 0)], now=0.5).assigned
        (('orders', 0),)
        >>> member.next(now=0.5)
        Action(do=<Do.HEARTBEAT: 4>, wait=6.0)
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.coordinator = ""
        self.assignment: frozenset[StreamPartition] = frozenset()
        self.assigned_epoch = 0
        self.consumer_timeout = 15.0
        self.coordinator_timeout = 15.0
        self.is_member = False
        self.answers = 0
        self._next = Do.JOIN
        self._next_at = 0.0
        self._failures = 0
        self._joined_at = 0.0
        #: When the coordinator answered last, or when silence began to count anew.
        self._heard_at = 0.0
        self._confirmed = False

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats."""
        return _HEARTBEAT_SHARE * self.consumer_timeout

    @property
    def is_settled(self) -> bool:
        """Whether the coordinator has told this member its partitions, and nothing was heard against it."""
        return self.is_member and self._confirmed and self._next is Do.HEARTBEAT and not self._failures

    def next(self, now: float) -> Action:
        """Return what to do next."""
        return Action(self._next, max(self._next_at - now, 0.0))

    def hurry(self, now: float) -> None:
        """Have the next action come at once: there is reason to think that the group has changed."""
        self._next_at = min(self._next_at, now)

    # Outcomes of JOIN and LEAVE

    def joined(
        self,
        coordinator: str,
        epoch: int,
        consumer_timeout: float,
        coordinator_timeout: float,
        now: float,
    ) -> None:
        """The group has taken the consumer in."""
        self.coordinator, self.epoch = coordinator, epoch
        self.consumer_timeout, self.coordinator_timeout = consumer_timeout, coordinator_timeout
        self.is_member, self._confirmed = True, False
        self._joined_at = self._heard_at = now
        self._failures = 0
        self._plan(Do.HEARTBEAT, now)

    def join_unclear(self, now: float) -> None:
        """The group has a member of this id already, or nobody knows whether the join was done."""
        self._again(Do.LEAVE, now)

    def join_failed(self, now: float) -> None:
        """Nothing was done."""
        self._again(Do.JOIN, now)

    def left(self, now: float) -> None:
        """The group has no member of this id any more."""
        self._plan(Do.JOIN, now)

    # Outcomes of HEARTBEAT

    def assigned(self, epoch: int, partitions: Iterable[StreamPartition], now: float) -> Change:
        """The coordinator told this member's partitions."""
        before, self.assignment = self.assignment, frozenset(partitions)
        self.epoch = self.assigned_epoch = epoch
        self.answers += 1
        self._confirmed = True
        self._heard_at = now
        self._failures = 0
        self._plan(Do.HEARTBEAT, now + self.interval)
        return Change(tuple(sorted(self.assignment - before)), tuple(sorted(before - self.assignment)))

    def moved(self, now: float) -> None:
        """The coordinator said that the epoch is another one, or that it is not the coordinator."""
        self._heard_at = now
        self._again(Do.LOCATE, now, at_once=self._failures == 0)

    def not_member(self, now: float) -> Change:
        """The coordinator knows no such member, or no such group."""
        if not self._confirmed and now - self._joined_at < min(_GRACE, self.consumer_timeout / 2):
            self._again(Do.HEARTBEAT, now)
            return Change()
        revoked, self.assignment = tuple(sorted(self.assignment)), frozenset()
        self.is_member = self._confirmed = False
        self._again(Do.JOIN, now)
        return Change(revoked=revoked, expired=True)

    def silent(self, now: float) -> None:
        """The coordinator could not be reached, or said what makes no sense."""
        is_overdue = now - self._heard_at > self.coordinator_timeout
        self._again(Do.REPORT if is_overdue else Do.LOCATE, now)

    # Outcomes of LOCATE and REPORT

    def located(self, coordinator: str, epoch: int, now: float) -> None:
        """A server told the coordinator and the epoch. It may be behind: the coordinator will say so."""
        if coordinator != self.coordinator:
            # A new coordinator has as much time to answer as the old one had.
            self._heard_at = now
        self.coordinator, self.epoch = coordinator, epoch
        self._plan(Do.HEARTBEAT, now)

    def not_located(self, now: float) -> None:
        """No server could tell; the coordinator is asked all the same, since it knows best."""
        self._again(Do.HEARTBEAT, now)

    def reported(self, now: float) -> None:
        """A server took note, or there was none to tell: the next silence is reported again."""
        # Servers forget a report after the coordinator timeout, and want one from most members at a time.
        self._heard_at = now - self.coordinator_timeout / 2
        self._plan(Do.LOCATE, now)

    def _plan(self, do: Do, at: float) -> None:
        self._next, self._next_at = do, at

    def _again(self, do: Do, now: float, *, at_once: bool = False) -> None:
        """Go on after something went wrong: the more often in a row, the later."""
        pause = min(_FIRST_PAUSE * 2 ** min(self._failures, 16), _LONGEST_PAUSE, self.interval / 2)
        self._failures += 1
        self._plan(do, now if at_once else now + pause)
