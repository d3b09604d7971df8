"""Membership of a consumer in its group: the next request, and how long its partitions are its own.

Sans-io. Times are seconds of a clock that keeps running while the machine is suspended, because a member that
wakes up must know that its session has ended.

========  ==========================  ========================================================================
state     request                     answers and transitions
========  ==========================  ========================================================================
OUTSIDE   register                    assignment: INSIDE. ``rebalancing``: register again, with the generation
                                      of the answer
INSIDE    heartbeat, at most 0.3 of   ``rebalancing``: LEAVING. Fenced, or no answer for a session timeout:
          the session timeout apart   OUTSIDE, and all partitions are lost
LEAVING   heartbeat, until the        given back: OUTSIDE, in the same generation. Fenced, or the session
          consumer has given back     ended, which these heartbeats do not extend: OUTSIDE, as above
========  ==========================  ========================================================================

Invariant: two members never own one partition at the same time, even if one of them is disconnected. A
member owns its partitions until a session timeout after it **sent** the last request whose answer did not ask
for them back. The controller gives them to no other member before a session timeout after it **received**
that request, which is later. Only the lengths of time need to agree, not the clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from liftenvelope._backoff import Backoff
from liftenvelope._native import handout

__all__ = ["MemberRequest", "MemberSession", "RequestKind"]

_HEARTBEAT_SHARE: Final = 0.3
#: Seconds before a member without an assignment asks again.
_ASK_AGAIN: Final = 0.02


class RequestKind(Enum):
    """Requests of a member."""

    REGISTER = auto()
    HEARTBEAT = auto()


class _State(Enum):
    OUTSIDE = auto()
    INSIDE = auto()
    LEAVING = auto()


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """Next request of a member.

    Attributes:
        do: Kind of request.
        wait: Seconds until the request is due, 0 for now.
    """

    do: RequestKind
    wait: float = 0.0


class MemberSession(handout.Ownership):
    """Session of one consumer in one group. Send the request of :meth:`next`, and report its outcome.

    Args:
        phase: Fraction of an interval before the first heartbeat, above 0 and up to 1. Members that register
            at the same time, as all members of a group do, should have different phases.
        vary: Returns the fraction of an interval before each further heartbeat, above 0 and up to 1. If it is
            random, members that were synchronized by waiting for the same event spread out again. Default:
            always 1.

    Attributes:
        generation: Generation of the partitions that the member has, or has given back; 0 for none.
        session_timeout: Seconds of silence after which the controller removes the member.
        owned_until: Time until which the partitions are certainly this member's; 0.0 in the state OUTSIDE.

    Example:
        >>> session = MemberSession()
        >>> session.next(now=0.0)
        MemberRequest(do=<RequestKind.REGISTER: 1>, wait=0.0)
        >>> session.registered(1, 10.0, sent_at=0.0, now=0.5)
        >>> session.next(now=0.5)
        MemberRequest(do=<RequestKind.HEARTBEAT: 2>, wait=3.0)
        >>> session.owns(now=9.9), session.owns(now=10.0)
        (True, False)
    """

    def __init__(self, phase: float = 1.0, vary: Callable[[], float] = lambda: 1.0) -> None:
        super().__init__()
        self._phase = phase
        self._vary = vary
        self.session_timeout = 10.0
        self._state = _State.OUTSIDE
        self._next_at = 0.0
        self._backoff = Backoff(first=0.02, longest=0.5, jitter=0.0)

    @property
    def interval(self) -> float:
        """Most seconds between two heartbeats."""
        return _HEARTBEAT_SHARE * self.session_timeout

    @property
    def is_inside(self) -> bool:
        """True while the member has an assignment, or is giving it back."""
        return self._state is not _State.OUTSIDE

    @property
    def is_leaving(self) -> bool:
        """True while the member must give its partitions back."""
        return self._state is _State.LEAVING

    def owns(self, now: float) -> bool:
        """Return True if the member's partitions are certainly its own."""
        return now < self.owned_until

    def next(self, now: float) -> MemberRequest:
        """Return the next request, and the seconds until it is due."""
        do = RequestKind.HEARTBEAT if self.is_inside else RequestKind.REGISTER
        return MemberRequest(do, max(self._next_at - now, 0.0))

    def hurry(self, now: float) -> None:
        """Make the next request due at once, because the group may have changed."""
        self._next_at = min(self._next_at, now)

    # Outcomes of REGISTER

    def registered(self, generation: int, session_timeout: float, sent_at: float, now: float) -> None:
        """Record an answer with an assignment."""
        self.generation, self.session_timeout = generation, session_timeout
        self._state = _State.INSIDE
        self._heard(sent_at, now)
        self._next_at = now + self._phase * self.interval

    def waits(self, generation: int, session_timeout: float, now: float) -> None:
        """Record an answer without an assignment: the group is not stable, or expects another generation."""
        pause = 0.0 if generation != self.generation else _ASK_AGAIN
        self.generation, self.session_timeout = generation, session_timeout
        self._backoff.reset()
        self._next_at = now + pause

    # Outcomes of HEARTBEAT

    def beaten(self, sent_at: float, now: float) -> None:
        """Record an answer to a heartbeat in a stable group."""
        self._heard(sent_at, now)

    def rebalances(self, now: float) -> bool:
        """Record that the group rebalances; return True if that is new.

        This does not extend the session. Otherwise a member that never gives back would keep its partitions
        forever.
        """
        is_new = self._state is _State.INSIDE
        self._state = _State.LEAVING
        self._backoff.reset()
        self._next_at = now + self.interval
        return is_new

    def given_back(self, now: float) -> None:
        """Record that all partitions were given back. Has no effect if they were lost meanwhile."""
        if self._state is _State.LEAVING:
            self._leave()
            self._backoff.reset()
            self._next_at = now

    # Outcomes of both

    def fenced(self, now: float) -> bool:
        """Record that the member was fenced; return True if it had an assignment."""
        had = self.is_inside
        self._leave()
        self.generation = 0
        self._again(now, at_once=had)
        return had

    def unanswered(self, now: float) -> None:
        """Record that the controller could not be reached, or could not serve the request."""
        self._again(now)

    def expires(self, now: float) -> bool:
        """Leave the INSIDE or LEAVING state if the session has ended; return True if it has."""
        if not self.is_inside or now < self.owned_until:
            return False
        self._leave()
        self.generation = 0
        self._next_at = min(self._next_at, now)
        return True

    def until_expiry(self, now: float) -> float:
        """Return the seconds until the session ends; infinity without an assignment."""
        return max(self.owned_until - now, 0.0) if self.is_inside else float("inf")

    def _leave(self) -> None:
        self._state, self.owned_until = _State.OUTSIDE, 0.0

    def _heard(self, sent_at: float, now: float) -> None:
        # Answers may arrive in another order than their requests were sent.
        self.owned_until = max(self.owned_until, sent_at + self.session_timeout)
        self._backoff.reset()
        self._next_at = now + self._vary() * self.interval

    def _again(self, now: float, *, at_once: bool = False) -> None:
        """Schedule a retry, with a longer pause after each failure in a row."""
        pause = min(self._backoff.next(), self.interval / 2)
        self._next_at = now if at_once else now + pause
