"""State machine of ``messages`` and ``consume``: decides when to pull and how much. No I/O, no clock.

All amounts are in one unit: messages, or bytes if ``max_bytes`` was given. ``asked`` is the amount that the
server still owes. ``buffered`` is the amount that has arrived and was not taken.

Invariant: ``asked + buffered`` never exceeds the limit. When the sum falls below the threshold, a pull
requests the difference to the limit.

Each pull has a number, and each status carries the number of its pull. Without the numbers the count would
drift, because servers end many pulls without reporting the rest, or without any status.

    message -> arrived      asked decreases, buffered increases
    user    -> taken        buffered decreases
    status  -> status       one pull has ended, all have, or none (a heartbeat)
    time    -> tick         heartbeats missed, pulls overdue, a pause after a refusal is over
    reconnect/disconnect    the server has forgotten all pulls

The caller executes ``actions`` in order. Rules: ADR-37 revision 3, ADR-42 revision 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from liftenvelope._backoff import Backoff
from liftenvelope.jetstream._events import (
    Disconnected,
    LeadershipChanged,
    LimitExceeded,
    MessageTooLarge,
    MissedHeartbeats,
    NoResponders,
    Pinned,
    PullEvent,
    Reconnected,
    ServerShutdown,
    UnknownStatus,
    Unpinned,
)
from liftenvelope.jetstream.statuses import FATAL, Status, StatusKind

__all__ = ["Check", "End", "PullAction", "PullCore", "PullLimits", "PullNow", "Tell"]

#: Number of messages in a pull that is limited by bytes (ADR-37).
BYTES_BATCH: Final = 1_000_000
#: Seconds after its expiry, and after the last message, during which a pull may still be answered.
_GRACE: Final = 2.0
#: Maximum number of tracked pulls. Larger than the server's default limit of waiting pulls, 512.
_REMEMBERED: Final = 1_024


@dataclass(frozen=True, slots=True)
class PullLimits:
    """Limits of the pulls of a consumption.

    Attributes:
        limit: Maximum amount requested and buffered together, in messages or bytes.
        threshold: Amount below which a refill is pulled, in the same unit.
        in_bytes: True if the unit is bytes.
        expires: Seconds that a pull waits at the server.
        idle_heartbeat: Seconds between heartbeats of a waiting pull; 0 for none.
        pinned: True if the group has the policy PINNED_CLIENT.
        keep_pin: Maximum seconds between two pulls, to keep the pin; 0 for no such pulls.
        check: True to look the consumer up after a reconnect before pulling again.
        max_bytes: Maximum bytes requested and buffered, besides ``limit`` in messages; 0 for no such limit.
            Then one pull is open at a time, and a message that does not fit comes alone.
        stop_after: Maximum messages requested in all; 0 for no limit. Only if the unit is messages.
    """

    limit: int
    threshold: int
    in_bytes: bool = False
    expires: float = 30.0
    idle_heartbeat: float = 15.0
    pinned: bool = False
    keep_pin: float = 0.0
    check: bool = False
    max_bytes: int = 0
    stop_after: int = 0


class PullNow(NamedTuple):
    """Action: publish a pull. ``max_bytes`` limits it besides ``amount``, unless it is 0."""

    number: int
    amount: int
    pin_id: str | None
    max_bytes: int = 0


class Tell(NamedTuple):
    """Action: report an event to the user."""

    event: PullEvent


class Check(NamedTuple):
    """Action: look the consumer up at the server, and call ``checked`` with the number and the result."""

    number: int


class End(NamedTuple):
    """Action: end the consumption, since no pull can succeed any more."""

    status: Status


PullAction: TypeAlias = PullNow | Tell | Check | End


@dataclass(slots=True)
class _PendingPull:
    """Pull that may still be open at the server."""

    amount: int
    deadline: float
    pin_id: str | None


class PullCore:
    """State machine of the pulls. Call :meth:`start`, then pass every event to it.

    Args:
        limits: Limits of the pulls.

    Attributes:
        asked: Amount the server still owes.
        buffered: Amount that has arrived and was not taken.
        held_bytes: With ``max_bytes``: bytes that have arrived and were not taken, set by the caller.
        actions: Actions to execute, in order; the caller removes each one.
        pin_id: Id of the pin that this consumption holds, None if it holds none.
    """

    def __init__(self, limits: PullLimits) -> None:
        self.limits = limits
        self.asked = 0
        self.buffered = 0
        self.held_bytes = 0
        self.actions: list[PullAction] = []
        self.pin_id: str | None = None
        #: Amount that has arrived in all.
        self._received = 0
        self._waiting: dict[int, _PendingPull] = {}
        self._next_number = 1
        self._online = True
        self._stopped = True
        self._check: int | None = None
        #: True while pulls wait for the result of a lookup.
        self._held = False
        #: True if a 503 triggers a lookup of the consumer. False after a reconnect until a pull is answered,
        #: because the server may still be recovering the consumer. True at the start, because the consumer
        #: was looked up before.
        self._served = True
        #: True if a message has arrived since the last tick or pull status.
        self._fresh = False
        #: When such a message was noticed last.
        self._fresh_at = -math.inf
        self._heard = 0.0
        self._pulled = 0.0
        self._backoff = Backoff(first=0.05, longest=5.0, jitter=0.0)
        self._paused_until = 0.0
        #: True to pull only while nothing is buffered or owed: the next message needs the whole limit. With
        #: ``max_bytes`` that message is pulled alone, and without a limit in bytes.
        self._whole = False

    def start(self, now: float, *, online: bool = True) -> None:
        """Start pulling."""
        self._stopped, self._online, self._heard = False, online, now
        self._refill(now)

    def stop(self) -> None:
        """Stop pulling. A silent server still owes the open pulls, until they expire."""
        self._stopped = True

    @property
    def waiting(self) -> int:
        """Number of pulls that may still be open at the server."""
        return len(self._waiting)

    # -- events per message, kept cheap

    def arrived(self, size: int = 1) -> None:
        """Record an arrived message; ``size`` is its size in bytes, or 1 if the unit is messages."""
        self.asked -= size
        self.buffered += size
        self._received += size
        self._fresh = True

    def filled(self) -> None:
        """Record that the open pull is full to the byte: the server ends it without a status."""
        self._forget_pulls()

    def taken(self, size: int = 1) -> bool:
        """Record that the user took a message; return true if :meth:`refill` should be called."""
        self.buffered -= size
        return self.asked + self.buffered < self.limits.threshold

    def refill(self, now: float) -> None:
        """Pull up to the limit if the amount is below the threshold."""
        self._refill(now)

    # -- rarer events

    def pinned(self, pin_id: str) -> None:
        """Record the pin id of an arrived message."""
        if pin_id != self.pin_id:
            self.pin_id = pin_id
            self.actions.append(Tell(Pinned(pin_id)))

    def status(self, number: int, status: Status, now: float) -> None:
        """Process a status of the pull with this number."""
        self._heard = now
        if status.kind in FATAL:
            self._forget_pulls()
            self._end(status)
            return
        if status.kind is StatusKind.HEARTBEAT:
            self._recovered()
        else:
            pull = self._waiting.pop(number, None)
            if pull is not None:  # None: the pull was given up and settled before
                self._ended(number, pull, status, now)
        self._refill(now)

    def tick(self, now: float, deaf: float = 0.0) -> None:
        """Process the passage of time: expired pulls, missed heartbeats and pauses.

        Args:
            now: The time.
            deaf: Seconds since the last call in which this process stood still. They prove no silence,
                because the server may have stood still with it. Default 0.
        """
        self._heard = min(self._heard + deaf, now)
        if self._fresh:
            self._fresh, self._fresh_at, self._heard = False, now, now
            self._recovered()
        if self._fresh_at + _GRACE <= now:  # else a slow network may hold the rest of an expired pull
            for number in [n for n, pull in self._waiting.items() if pull.deadline + _GRACE <= now]:
                del self._waiting[number]
            self._settle(0)
        if self._missed_heartbeats(now):
            self.actions.append(Tell(MissedHeartbeats(now - self._heard)))
            self._forget_pulls()
        self._refill(now)

    def next_tick(self, now: float) -> float:
        """Return the time of the next call of :meth:`tick`."""
        limits = self.limits
        step = limits.idle_heartbeat / 2 or limits.expires / 2
        if limits.keep_pin:
            step = min(step, limits.keep_pin / 2)
        soonest = now + min(step, 1.0)
        return min(soonest, self._paused_until) if self._paused_until > now else soonest

    def disconnected(self) -> None:
        """Process a lost connection: no pulls until :meth:`reconnected`."""
        if self._online:
            self._online = False
            self.actions.append(Tell(Disconnected()))

    def reconnected(self, now: float) -> None:
        """Process a new connection, on which the server has no pull."""
        self._online, self._heard = True, now
        self._forget_pulls()
        self._recovered()
        self._served = False
        self._check = None  # a lookup sent on the old connection may never be answered
        self.actions.append(Tell(Reconnected()))
        self._held = self.limits.check
        if self._held:
            self._look_up()
        self._refill(now)

    def checked(self, number: int, found: bool, now: float) -> None:
        """Process the result of :class:`Check`; ``found`` is false only if the consumer is gone for sure."""
        if number != self._check:
            return
        self._check, self._held = None, False
        if found:
            self._refill(now)
        else:
            self._end(Status.of(409, "Consumer Deleted"))

    # -- internals

    def _end(self, status: Status) -> None:
        if not self._stopped:
            self._stopped = True
            self.actions.append(End(status))

    def _look_up(self) -> None:
        if self._check is None and not self._stopped:
            self._check = self._next_number
            self._next_number += 1
            self.actions.append(Check(self._check))

    def _recovered(self) -> None:
        """Reset the backoff: the server answers pulls again."""
        self._served = True
        self._backoff.reset()
        self._paused_until, self._whole = 0.0, False

    def _forget_pulls(self) -> None:
        self._waiting.clear()
        self.asked = 0

    def _settle(self, left: int) -> None:
        """Subtract the rest of an ended pull from ``asked``, and cap ``asked`` at the sum of the open pulls.

        The cap corrects the count for pulls that ended without reporting their rest. The cap does not apply
        to a full table, from which older open pulls may have been dropped.
        """
        self.asked = max(self.asked - left, 0)
        if self.asked == 0:
            self._waiting.clear()  # all pulls are filled; servers send no status for that
        elif len(self._waiting) < _REMEMBERED:
            self.asked = min(self.asked, sum(pull.amount for pull in self._waiting.values()))

    def _forget_until(self, number: int) -> None:
        """Give up a pull and all older ones; later ones may have reached the consumer's new leader."""
        for older in [each for each in self._waiting if each <= number]:
            del self._waiting[older]
        self._settle(0)

    def _ended(self, number: int, pull: _PendingPull, status: Status, now: float) -> None:
        """Settle an ended pull, and react to the kind of its status.

        If the status reports the rest of the pull, the rest is subtracted from ``asked``. A leadership change
        ends this pull and all older ones. Any other status without a rest means that the whole pull is left.
        """
        left = status.bytes if self.limits.in_bytes else status.messages
        # Judged by the messages that have come, and not by the rest that the server claims.
        is_fruitless = not self._fresh and self._fresh_at < pull.deadline - self.limits.expires
        if self._fresh:
            self._fresh, self._fresh_at = False, now
            self._recovered()
        kind = status.kind
        if left is not None:
            self._settle(min(left, pull.amount))
        elif kind is StatusKind.LEADERSHIP:
            self._forget_until(number)
        else:  # refused on arrival: the whole pull is left
            self._settle(pull.amount)
        if kind is StatusKind.ENDED and is_fruitless and now < pull.deadline - self.limits.expires / 2:
            self._pause(now)  # avoids a busy loop with a server that ends every pull at once
        elif kind is StatusKind.ENDED:
            self._recovered()
        elif kind is StatusKind.TOO_LARGE:
            if is_fruitless or left is None or left >= pull.amount:
                self._too_large(pull, now)
            # else: this pull has delivered messages, so a new pull has more room
        elif kind is StatusKind.WRONG_PIN:
            self._wrong_pin(pull, now)
        elif kind is StatusKind.LEADERSHIP:
            if not self._held:  # if held, this is the same change reported to another pull
                self.actions.append(Tell(LeadershipChanged()))
            # Pulls without a leader are lost silently. An answer to a lookup proves there is a new leader.
            self._held = True
            self._look_up()
            self._pause(now)
        else:
            self._refused(status, now)

    def _refused(self, status: Status, now: float) -> None:
        event: PullEvent
        if status.kind is StatusKind.REFUSED:
            event = LimitExceeded(status.description)
        elif status.kind is StatusKind.SHUTDOWN:
            event = ServerShutdown()
        elif status.kind is StatusKind.NO_RESPONDERS:
            event = NoResponders()
            if self._served:  # on this connection, so the server is not just starting up
                self._look_up()
        else:
            event = UnknownStatus(status.code, status.description)
        self.actions.append(Tell(event))
        self._pause(now)

    def _too_large(self, pull: _PendingPull, now: float) -> None:
        """React to a message larger than the rest of a pull.

        A pull below the limit is followed by one for the whole limit. If even that pull is too small, the
        message can never fit: the user is told once and pulling pauses.
        """
        if pull.amount < self.limits.limit or self.limits.max_bytes:
            self._whole = True
            return
        if not self._backoff.failures:
            self.actions.append(Tell(MessageTooLarge(self.limits.limit)))
        self._pause(now)

    def _wrong_pin(self, pull: _PendingPull, now: float) -> None:
        if pull.pin_id is None:
            self._pause(now)  # avoids a busy loop: a sound server refuses no pull for a pin that it has not
        # A pull with an older pin id may be answered after this client got a new pin, which stays valid.
        if pull.pin_id is not None and pull.pin_id == self.pin_id:
            self.actions.append(Tell(Unpinned(pull.pin_id)))
            self.pin_id = None

    def _pause(self, now: float) -> None:
        """Start the next pause of the exponential backoff, unless a pause is under way."""
        if self._paused_until > now:
            return  # several pulls were refused for the same reason
        self._paused_until = now + self._backoff.next()

    def _missed_heartbeats(self, now: float) -> bool:
        beat = self.limits.idle_heartbeat
        is_due = self._online and not self._stopped and bool(beat) and bool(self._waiting)
        return is_due and now - self._heard >= 2 * beat

    def _refill(self, now: float) -> None:
        """Pull up to the limit if the amount is below the threshold, or if the pin needs a pull.

        Nothing is pulled after the stop, while offline, during a lookup or during a pause.
        """
        if self._stopped or self._held or not self._online or now < self._paused_until:
            return
        if self.asked <= 0 and self._waiting:
            self._forget_pulls()
        owed = max(self.asked, 0)
        have = owed + self.buffered
        missing = self.limits.limit - have
        if self.limits.stop_after:
            missing = min(missing, self.limits.stop_after - self._received - owed)
        is_due = self._pin_is_due(now)
        if missing <= 0 or (self._whole and have > 0 and not is_due):
            return
        if have >= self.limits.threshold and not is_due:
            return
        room = self.limits.max_bytes - self.held_bytes
        if self.limits.max_bytes:
            if self._waiting or room <= 0 or (2 * room < self.limits.max_bytes and not is_due):
                return
            if self._whole and have == 0:
                missing, room = 1, 0
        if not self._waiting:
            self._heard = now
        self.asked = owed + missing
        self._remember(missing, room, now)

    def _pin_is_due(self, now: float) -> bool:
        """Return true if a pull is needed to keep the pin.

        Servers count pulls, not deliveries, as activity of a pinned client.
        """
        keep = self.limits.keep_pin
        return bool(keep) and self.pin_id is not None and now - self._pulled >= keep

    def _remember(self, amount: int, max_bytes: int, now: float) -> None:
        number, self._next_number = self._next_number, self._next_number + 1
        self._pulled = now
        pin_id = self.pin_id if self.limits.pinned else None
        if len(self._waiting) >= _REMEMBERED:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[number] = _PendingPull(amount, now + self.limits.expires, pin_id)
        self.actions.append(PullNow(number, amount, pin_id, max_bytes))
