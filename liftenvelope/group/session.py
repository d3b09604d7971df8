"""A consumer's place in its group: what to ask the controller next, and how long the partitions are its own.

No I/O and no clock: sans-io. Times are seconds of any clock that does not go back.

========  ==============================  ====================================================================
state     what is done                    what the answers do
========  ==============================  ====================================================================
OUTSIDE   register                        an assignment: INSIDE. "Rebalancing": register again, with the
                                          generation that the controller says
INSIDE    heartbeat, 0.3 of the session   "rebalancing": LEAVING. Fenced, or no answer for a whole session
          timeout apart at most           timeout: OUTSIDE, and everything is lost
LEAVING   heartbeat, until the consumer   given back: OUTSIDE, in the generation that it had. Fenced, or the
          has given everything back       session is over, which these heartbeats don't prolong: as above
========  ==============================  ====================================================================

A member owns its partitions until a session timeout after it **sent** the last request that the controller
answered without asking for them back. The controller gives them to nobody before a session timeout after it
**received** that request, or the next one. So by the time that another member gets one, this one knows that
it has lost it, even if it can reach nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

__all__ = ["Action", "Do", "MemberSession"]

_HEARTBEAT_SHARE: Final = 0.3
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5


class Do(Enum):
    """What a member can be about to do."""

    REGISTER = auto()
    HEARTBEAT = auto()


class _State(Enum):
    OUTSIDE = auto()
    INSIDE = auto()
    LEAVING = auto()


@dataclass(frozen=True, slots=True)
class Action:
    """What to do next, and in how many seconds.

    Attributes:
        do: What.
        wait: Seconds until then, 0 for now.
    """

    do: Do
    wait: float = 0.0


class MemberSession:
    """One consumer in one group. Ask :meth:`next`, do it, and tell the outcome.

    Args:
        phase: Which part of an interval passes before the first heartbeat, above 0 and up to 1. Members that
            register at once, as all of a group do, should have different ones.
        vary: Called for the part of an interval that passes before each of the others, above 0 and up to 1.
            Where it is random, members that have come to ask at once, since all of them had to wait for the
            same thing, go apart again. Default: always 1.

    Attributes:
        generation: The generation of the partitions that it has, or has given back; 0 for none.
        session_timeout: Seconds of silence after which the controller takes it for dead.

    Example:
        >>> session = MemberSession()
        >>> session.next(now=0.0)
        Action(do=<Do.REGISTER: 1>, wait=0.0)
        >>> session.registered(1, 10.0, sent_at=0.0, now=0.5)
        >>> session.next(now=0.5)
        Action(do=<Do.HEARTBEAT: 2>, wait=3.0)
        >>> session.owns(now=9.9), session.owns(now=10.0)
        (True, False)
    """

    def __init__(self, phase: float = 1.0, vary: Callable[[], float] = lambda: 1.0) -> None:
        self._phase = phase
        self._vary = vary
        self.generation = 0
        self.session_timeout = 10.0
        self._state = _State.OUTSIDE
        self._next_at = 0.0
        self._owned_until = 0.0
        self._failures = 0

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats, at most."""
        return _HEARTBEAT_SHARE * self.session_timeout

    @property
    def is_inside(self) -> bool:
        """Whether it has an assignment, or is just giving it back."""
        return self._state is not _State.OUTSIDE

    @property
    def is_leaving(self) -> bool:
        """Whether it is to give everything back."""
        return self._state is _State.LEAVING

    def owns(self, now: float) -> bool:
        """Whether what it has is certainly its own."""
        return self.is_inside and now < self._owned_until

    def next(self, now: float) -> Action:
        """Return what to do next."""
        do = Do.HEARTBEAT if self.is_inside else Do.REGISTER
        return Action(do, max(self._next_at - now, 0.0))

    def hurry(self, now: float) -> None:
        """Have the next action come at once: there is reason to think that the group has changed."""
        self._next_at = min(self._next_at, now)

    # Outcomes of REGISTER

    def registered(self, generation: int, session_timeout: float, sent_at: float, now: float) -> None:
        """The controller told what the member has."""
        self.generation, self.session_timeout = generation, session_timeout
        self._state = _State.INSIDE
        self._heard(sent_at, now)
        self._next_at = now + self._phase * self.interval

    def waits(self, generation: int, session_timeout: float, now: float) -> None:
        """The controller has taken note, but the group is not stable yet; or it wants that generation."""
        pause = 0.0 if generation != self.generation else _FIRST_PAUSE
        self.generation, self.session_timeout = generation, session_timeout
        self._failures = 0
        self._next_at = now + pause

    # Outcomes of HEARTBEAT

    def beaten(self, sent_at: float, now: float) -> None:
        """The controller took note."""
        self._heard(sent_at, now)

    def rebalances(self, now: float) -> bool:
        """The controller wants everything back; return whether that is news.

        It does not prolong the session: else who never gives anything back would keep it for ever.
        """
        is_new = self._state is _State.INSIDE
        self._state = _State.LEAVING
        self._failures = 0
        self._next_at = now + self.interval
        return is_new

    def given_back(self, now: float) -> None:
        """Everything was given back. Nothing happens if it was lost meanwhile."""
        if self._state is _State.LEAVING:
            self._state = _State.OUTSIDE
            self._failures = 0
            self._next_at = now

    # Of both

    def fenced(self, now: float) -> bool:
        """It is a member no more, or not in that generation; return whether it has lost anything."""
        had = self.is_inside
        self._state, self.generation = _State.OUTSIDE, 0
        self._again(now, at_once=had)
        return had

    def unanswered(self, now: float) -> None:
        """The controller could not be reached, or could not do it now."""
        self._again(now)

    def expires(self, now: float) -> bool:
        """Whether it has been silent for so long that it has lost everything; then it has."""
        if not self.is_inside or now < self._owned_until:
            return False
        self._state, self.generation = _State.OUTSIDE, 0
        self._next_at = min(self._next_at, now)
        return True

    def until_expiry(self, now: float) -> float:
        """In how many seconds that is so, if nothing is heard; infinity if there is nothing to lose."""
        return max(self._owned_until - now, 0.0) if self.is_inside else float("inf")

    def _heard(self, sent_at: float, now: float) -> None:
        # Answers may come in another order than they were asked for.
        self._owned_until = max(self._owned_until, sent_at + self.session_timeout)
        self._failures = 0
        self._next_at = now + self._vary() * self.interval

    def _again(self, now: float, *, at_once: bool = False) -> None:
        """Go on after something went wrong: the more often in a row, the later."""
        pause = min(_FIRST_PAUSE * 2 ** min(self._failures, 16), _LONGEST_PAUSE, self.interval / 2)
        self._failures += 1
        self._next_at = now if at_once else now + pause
