"""When to pull how much: the state machine below ``messages`` and ``consume``. No I/O, no clock.

One unit counts: messages, or bytes where ``max_bytes`` was given. ``asked`` is what the server still owes,
``buffered`` what has come and was not taken; together they never pass the limit. When they fall below the
threshold, what is missing is pulled. Each pull has a number that its statuses carry back, which is what keeps
the count from drifting: servers end many pulls without saying what they had left, or without a word.

    message -> arrived      the server owes less, more is buffered
    user    -> taken        less is buffered
    status  -> status       one pull has ended, all have, or none (a heartbeat)
    time    -> tick         heartbeats missed, pulls overdue, a pause after a refusal is over
    reconnect/disconnect    the server has forgotten all pulls

Whatever is to be done stands in ``actions``, in order. Rules: ADR-37 revision 3, ADR-42 revision 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from liftenvelope.jetstream._statuses import FATAL, Kind, Status
from liftenvelope.jetstream.events import (
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

__all__ = ["Action", "Check", "End", "PullCore", "PullLimits", "PullNow", "Tell"]

#: How many messages a pull asks for that is limited by its bytes (ADR-37).
BYTES_BATCH: Final = 1_000_000
#: How long past its end a pull may still answer, in seconds.
_GRACE: Final = 2.0
#: The first and the longest pause after a refusal, in seconds; each is twice the one before.
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0
#: Of how many pulls the numbers are remembered. More than may wait at a server by default.
_REMEMBERED: Final = 1_024


@dataclass(frozen=True, slots=True)
class PullLimits:
    """What a consumption may ask for.

    Attributes:
        limit: The most that may be asked for and buffered, in messages or bytes.
        threshold: Below what a refill is pulled, in the same unit.
        in_bytes: Whether the unit is bytes.
        expires: How long a pull waits at the server, in seconds.
        idle_heartbeat: How often the server says that a pull waits, in seconds; 0 for never.
        pinned: Whether the group's policy is a pinned client.
        keep_pin: After how many seconds at the latest to pull again, so as to keep a pin; 0 for never.
        check: Whether to have the consumer looked up after a reconnect.
    """

    limit: int
    threshold: int
    in_bytes: bool = False
    expires: float = 30.0
    idle_heartbeat: float = 15.0
    pinned: bool = False
    keep_pin: float = 0.0
    check: bool = False


class PullNow(NamedTuple):
    """Publish a pull."""

    number: int
    amount: int
    pin_id: str | None


class Tell(NamedTuple):
    """Tell the user."""

    event: PullEvent


class Check(NamedTuple):
    """Ask the server whether the consumer is still there, and call ``checked`` with the number."""

    number: int


class End(NamedTuple):
    """Nothing can be pulled any more."""

    status: Status


Action: TypeAlias = PullNow | Tell | Check | End


@dataclass(slots=True)
class _Waiting:
    """A pull that the server may still be serving."""

    amount: int
    deadline: float
    pin_id: str | None


class PullCore:
    """The state machine. Call :meth:`start`, then hand everything that happens to it.

    Args:
        limits: What may be asked for.

    Attributes:
        asked: What the server owes.
        buffered: What has come and was not taken.
        actions: What is to be done, in order; whoever does it takes it out.
        pin_id: The id of the pin that this consumption holds, None if it holds none.
    """

    def __init__(self, limits: PullLimits) -> None:
        self.limits = limits
        self.asked = 0
        self.buffered = 0
        self.actions: list[Action] = []
        self.pin_id: str | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._next_number = 1
        self._online = True
        self._stopped = True
        self._check: int | None = None
        self._held = False
        #: Whether it is looked up when nobody answers. Not after a reconnect, until pulls are answered: the
        #: server may be about to find it again. Whoever begins has heard of it before.
        self._served = True
        self._fresh = False
        self._heard = 0.0
        self._pulled = 0.0
        self._failures = 0
        self._paused_until = 0.0
        self._whole = False

    def start(self, now: float, *, online: bool = True) -> None:
        """Begin to pull."""
        self._stopped, self._online, self._heard = False, online, now
        self._refill(now)

    def stop(self) -> None:
        """Pull nothing any more."""
        self._stopped = True

    @property
    def waiting(self) -> int:
        """How many pulls the server may still be serving."""
        return len(self._waiting)

    # -- what happens all the time, and is kept cheap for that

    def arrived(self, size: int = 1) -> None:
        """A message has come; its size counts where bytes are counted, and is 1 elsewhere."""
        self.asked -= size
        self.buffered += size
        self._fresh = True

    def taken(self, size: int = 1) -> bool:
        """The user has taken a message; returns whether :meth:`refill` has something to do."""
        self.buffered -= size
        return self.asked + self.buffered < self.limits.threshold

    def refill(self, now: float) -> None:
        """Pull what is missing, if it is time to."""
        self._refill(now)

    # -- what happens now and then

    def pinned(self, pin_id: str) -> None:
        """A message has come with the id of a pin."""
        if pin_id != self.pin_id:
            self.pin_id = pin_id
            self.actions.append(Tell(Pinned(pin_id)))

    def status(self, number: int, status: Status, now: float) -> None:
        """The server said something to the pull of that number."""
        self._heard = now
        if status.kind in FATAL:
            self._forget_pulls()
            self._end(status)
            return
        if status.kind is Kind.HEARTBEAT:
            self._recovered()
        else:
            pull = self._waiting.pop(number, None)
            if pull is not None:  # else it was given up before, and is accounted for
                self._ended(number, pull, status, now)
        self._refill(now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self._fresh:
            self._fresh, self._heard = False, now
            self._recovered()
        for number in [number for number, pull in self._waiting.items() if pull.deadline + _GRACE <= now]:
            del self._waiting[number]
        self._settle(0)
        if self._missed_heartbeats(now):
            self.actions.append(Tell(MissedHeartbeats(now - self._heard)))
            self._forget_pulls()
        self._refill(now)

    def next_tick(self, now: float) -> float:
        """When to call :meth:`tick` next."""
        limits = self.limits
        step = limits.idle_heartbeat / 2 or limits.expires / 2
        if limits.keep_pin:
            step = min(step, limits.keep_pin / 2)
        soonest = now + min(step, 1.0)
        return min(soonest, self._paused_until) if self._paused_until > now else soonest

    def disconnected(self) -> None:
        """The connection is lost: nothing may be published until :meth:`reconnected`."""
        if self._online:
            self._online = False
            self.actions.append(Tell(Disconnected()))

    def reconnected(self, now: float) -> None:
        """There is a new connection, on which the server knows of no pull."""
        self._online, self._heard = True, now
        self._forget_pulls()
        self._recovered()
        self._served = False
        self._check = None  # whoever was asked on the old connection may never answer
        self.actions.append(Tell(Reconnected()))
        self._held = self.limits.check
        if self._held:
            self._look_up()
        self._refill(now)

    def checked(self, number: int, found: bool, now: float) -> None:
        """The answer to :class:`Check`: whether the consumer is there, or nobody could tell."""
        if number != self._check:
            return
        self._check, self._held = None, False
        if found:
            self._refill(now)
        else:
            self._end(Status.of(409, "Consumer Deleted"))

    # -- inside

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
        """The server serves pulls: the next refusal is the first one again."""
        self._served = True
        self._failures, self._paused_until, self._whole = 0, 0.0, False

    def _forget_pulls(self) -> None:
        self._waiting.clear()
        self.asked = 0

    def _settle(self, left: int) -> None:
        """Take off what an ended pull had left; the rest is at most what the others were sent for."""
        self.asked = max(self.asked - left, 0)
        if self.asked == 0:
            self._waiting.clear()  # filled, every one, of which servers say nothing
        elif len(self._waiting) < _REMEMBERED:
            self.asked = min(self.asked, sum(pull.amount for pull in self._waiting.values()))

    def _forget_until(self, number: int) -> None:
        """Give up a pull and all older ones: later ones may have reached the consumer's new leader."""
        for older in [each for each in self._waiting if each <= number]:
            del self._waiting[older]
        self._settle(0)

    def _ended(self, number: int, pull: _Waiting, status: Status, now: float) -> None:
        left = status.bytes if self.limits.in_bytes else status.messages
        is_fruitless = not self._fresh and (left is None or left >= pull.amount)
        if self._fresh:
            self._fresh = False
            self._recovered()
        kind = status.kind
        if left is not None:
            self._settle(min(left, pull.amount))
        elif kind is Kind.LEADERSHIP:
            self._forget_until(number)
        else:  # turned away when it came, so that all of it is left
            self._settle(pull.amount)
        if kind is Kind.ENDED and is_fruitless and now < pull.deadline - self.limits.expires / 2:
            self._pause(now)  # else a server that ends every pull at once is pulled from without a pause
        elif kind is Kind.ENDED:
            self._recovered()
        elif kind is Kind.TOO_LARGE:
            self._too_large(pull, left, now)
        elif kind is Kind.WRONG_PIN:
            self._wrong_pin(pull)
        elif kind is Kind.LEADERSHIP:
            if not self._held:  # else it is the same change, told to another pull
                self.actions.append(Tell(LeadershipChanged()))
            # Pulls that find no leader are lost without a word; whoever answers a look-up is the new one.
            self._held = True
            self._look_up()
            self._pause(now)
        else:
            self._refused(status, now)

    def _refused(self, status: Status, now: float) -> None:
        event: PullEvent
        if status.kind is Kind.REFUSED:
            event = LimitExceeded(status.description)
        elif status.kind is Kind.SHUTDOWN:
            event = ServerShutdown()
        elif status.kind is Kind.NO_RESPONDERS:
            event = NoResponders()
            if self._served:  # on this very connection, so that it is not one that is only starting
                self._look_up()
        else:
            event = UnknownStatus(status.code, status.description)
        self.actions.append(Tell(event))
        self._pause(now)

    def _too_large(self, pull: _Waiting, left: int | None, now: float) -> None:
        if left is not None and left < pull.amount:
            return  # it has delivered something, and a new one has more room
        if pull.amount < self.limits.limit:
            self._whole = True
            return
        if not self._failures:
            self.actions.append(Tell(MessageTooLarge(self.limits.limit)))
        self._pause(now)

    def _wrong_pin(self, pull: _Waiting) -> None:
        # Pulls of an older pin may be answered when there is a new one already, which is left alone.
        if pull.pin_id is not None and pull.pin_id == self.pin_id:
            self.actions.append(Tell(Unpinned(pull.pin_id)))
            self.pin_id = None

    def _pause(self, now: float) -> None:
        if self._paused_until > now:
            return  # several pulls were refused for one reason
        self._paused_until = now + min(_FIRST_PAUSE * 2**self._failures, _LONGEST_PAUSE)
        self._failures = min(self._failures + 1, 16)

    def _missed_heartbeats(self, now: float) -> bool:
        beat = self.limits.idle_heartbeat
        return self._online and bool(beat) and bool(self._waiting) and now - self._heard >= 2 * beat

    def _refill(self, now: float) -> None:
        if self._stopped or self._held or not self._online or now < self._paused_until:
            return
        if self.asked <= 0 and self._waiting:
            self._forget_pulls()
        owed = max(self.asked, 0)
        have = owed + self.buffered
        missing = self.limits.limit - have
        if missing <= 0 or (self._whole and have > 0):
            return
        if have >= self.limits.threshold and not self._pin_is_due(now):
            return
        if not self._waiting:
            self._heard = now
        self.asked = owed + missing
        self._remember(missing, now)

    def _pin_is_due(self, now: float) -> bool:
        """Whether to pull only to keep the pin: servers count pulls, not deliveries, as a sign of life."""
        keep = self.limits.keep_pin
        return bool(keep) and self.pin_id is not None and now - self._pulled >= keep

    def _remember(self, amount: int, now: float) -> None:
        number, self._next_number = self._next_number, self._next_number + 1
        self._pulled = now
        pin_id = self.pin_id if self.limits.pinned else None
        if len(self._waiting) >= _REMEMBERED:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[number] = _Waiting(amount, now + self.limits.expires, pin_id)
        self.actions.append(PullNow(number, amount, pin_id))
