"""Group membership of one consumer as a state machine: decides the next request, interprets the answers.

Sans-io: no I/O and no clock. Times are seconds of any monotonic clock.

A member sends heartbeats by asking the group's coordinator for its partitions, in the epoch that it knows.
Answers of the coordinator, and the reactions of the member:

===============================  ==========================================================================
the coordinator answers          the member
===============================  ==========================================================================
the member's partitions          asks again after 0.4 of the consumer timeout
another epoch                    asks any server for epoch and coordinator, then the coordinator, at once
not the coordinator              the same
no such member, no such group    has expired and joins again; only asks again if it joined a moment ago
nothing                          asks any server, then again; reports it after the coordinator timeout
===============================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from liftenvelope._backoff import Backoff

__all__ = ["Action", "Change", "Do", "Membership", "StreamPartition"]

#: A stream and the number of one of its partitions.
StreamPartition: TypeAlias = tuple[str, int]

_HEARTBEAT_SHARE: Final = 0.4
# Seconds after a join in which "no such member" is no expiry: servers learn of a join one after the other.
_GRACE: Final = 1.0


class Do(Enum):
    """Actions of a member."""

    JOIN = auto()
    #: Leave, because the group has, or may have, an earlier member with this id.
    LEAVE = auto()
    #: Ask any server for the group's epoch and coordinator.
    LOCATE = auto()
    #: Ask the coordinator for this member's partitions.
    HEARTBEAT = auto()
    #: Tell any server that the coordinator can't be reached.
    REPORT = auto()


@dataclass(frozen=True, slots=True)
class Action:
    """Next action of a member, and its delay.

    Attributes:
        do: The action.
        wait: Seconds until the action, 0 for now.
    """

    do: Do
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a member's assignment.

    Attributes:
        assigned: New partitions of the member, sorted.
        revoked: Partitions that the member has lost, sorted.
        expired: True if the group has removed the member, and with it all its partitions.
    """

    assigned: tuple[StreamPartition, ...] = ()
    revoked: tuple[StreamPartition, ...] = ()
    expired: bool = False

    def __bool__(self) -> bool:
        return bool(self.assigned or self.revoked or self.expired)


class Membership:
    """State of one consumer in one group. The caller asks :meth:`next`, acts, and reports the outcome.

    Attributes:
        epoch: Group epoch that the member knows.
        coordinator: Id of the broker that assigns partitions; empty if unknown.
        assignment: Partitions of this member.
        assigned_epoch: Group epoch of the assignment.
        consumer_timeout: Seconds without a heartbeat after which the servers expire a member.
        coordinator_timeout: Seconds without an answer after which members report their coordinator.
        is_member: Whether the consumer has joined the group and has not heard otherwise since.
        answers: Number of assignments received from the coordinator.

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
        self._backoff = Backoff(first=0.02, longest=1.0, jitter=0.0)
        self._joined_at = 0.0
        #: Time of the coordinator's last answer, or a later time from which its silence counts.
        self._heard_at = 0.0
        self._confirmed = False

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats."""
        return _HEARTBEAT_SHARE * self.consumer_timeout

    @property
    def is_settled(self) -> bool:
        """True if the coordinator has assigned partitions to this member and no later answer contradicts."""
        return (
            self.is_member and self._confirmed and self._next is Do.HEARTBEAT and not self._backoff.failures
        )

    def next(self, now: float) -> Action:
        """Return the next action."""
        return Action(self._next, max(self._next_at - now, 0.0))

    def hurry(self, now: float) -> None:
        """Make the next action due at once, because the group has probably changed."""
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
        """Record a successful join."""
        self.coordinator, self.epoch = coordinator, epoch
        self.consumer_timeout, self.coordinator_timeout = consumer_timeout, coordinator_timeout
        self.is_member, self._confirmed = True, False
        self._joined_at = self._heard_at = now
        self._backoff.reset()
        self._plan(Do.HEARTBEAT, now)

    def join_unclear(self, now: float) -> None:
        """Record a failed or uncertain join: the group has, or may have, a member with this id."""
        self._again(Do.LEAVE, now)

    def join_failed(self, now: float) -> None:
        """Record a join that did nothing."""
        self._again(Do.JOIN, now)

    def left(self, now: float) -> None:
        """Record a leave: the group has no member of this id any more."""
        self._plan(Do.JOIN, now)

    # Outcomes of HEARTBEAT

    def assigned(self, epoch: int, partitions: Iterable[StreamPartition], now: float) -> Change:
        """Record the partitions that the coordinator assigned to this member."""
        before, self.assignment = self.assignment, frozenset(partitions)
        self.epoch = self.assigned_epoch = epoch
        self.answers += 1
        self._confirmed = True
        self._heard_at = now
        self._backoff.reset()
        self._plan(Do.HEARTBEAT, now + self.interval)
        return Change(tuple(sorted(self.assignment - before)), tuple(sorted(before - self.assignment)))

    def moved(self, now: float) -> None:
        """Record the answer that the epoch is another one, or that the broker is not the coordinator."""
        self._heard_at = now
        self._again(Do.LOCATE, now, at_once=self._backoff.failures == 0)

    def not_member(self, now: float) -> Change:
        """Record the coordinator's answer that it knows no such member, or no such group."""
        if not self._confirmed and now - self._joined_at < min(_GRACE, self.consumer_timeout / 2):
            self._again(Do.HEARTBEAT, now)
            return Change()
        revoked, self.assignment = tuple(sorted(self.assignment)), frozenset()
        self.is_member = self._confirmed = False
        self._again(Do.JOIN, now)
        return Change(revoked=revoked, expired=True)

    def silent(self, now: float) -> None:
        """Record that the coordinator could not be reached, or gave an invalid answer."""
        is_overdue = now - self._heard_at > self.coordinator_timeout
        self._again(Do.REPORT if is_overdue else Do.LOCATE, now)

    # Outcomes of LOCATE and REPORT

    def located(self, coordinator: str, epoch: int, now: float) -> None:
        """Record the coordinator and epoch that a server named. The coordinator rejects a stale epoch."""
        if coordinator != self.coordinator:
            # A new coordinator gets the full coordinator timeout for its first answer.
            self._heard_at = now
        self.coordinator, self.epoch = coordinator, epoch
        self._plan(Do.HEARTBEAT, now)

    def not_located(self, now: float) -> None:
        """Record that no server named a coordinator. The known coordinator is asked again."""
        self._again(Do.HEARTBEAT, now)

    def reported(self, now: float) -> None:
        """Record that a report was sent or found no server. Further silence is reported again."""
        # Servers drop a report after the coordinator timeout, and need reports of most members within it.
        self._heard_at = now - self.coordinator_timeout / 2
        self._plan(Do.LOCATE, now)

    def _plan(self, do: Do, at: float) -> None:
        self._next, self._next_at = do, at

    def _again(self, do: Do, now: float, *, at_once: bool = False) -> None:
        """Schedule an action after a failure, with a delay that grows with each failure in a row."""
        pause = min(self._backoff.next(), self.interval / 2)
        self._plan(do, now if at_once else now + pause)
