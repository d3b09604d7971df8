"""Pull requests of one reader: which are in flight, how large the next one is, and when it is due. No I/O."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

from liftenvelope._backoff import pause_before

__all__ = ["EXPIRES", "HEARTBEAT", "PENDING", "Asked", "PullsInFlight"]

_SECOND: Final = 1_000_000_000
_DEPTH: Final = 2
#: Requests to remember. A server that forgets its pulls, or serves them to the end, names none of them again.
_REMEMBERED: Final = 16
#: Messages to ask for in a pull that its bytes limit (ADR-37).
_MOST: Final = 1_000_000
_PULL_BYTES: Final = 8 * 1024 * 1024
_MOST_PULL_BYTES: Final = 2**30
#: Seconds after which a pull ends, and between two heartbeats.
EXPIRES: Final = 30
HEARTBEAT: Final = 1
#: Number of a request that asks whether anything is pending. Pulls begin at 1.
PENDING: Final = 0


class Asked(NamedTuple):
    """State of a read when it sent a request.

    Attributes:
        offset: Next offset of the read.
        at: Time when the request was sent.
        beats: Heartbeats that came since.
    """

    offset: int
    at: float
    beats: int = 0


class PullsInFlight:
    """Tracks the pulls that the server is serving: two at a time, each bounded in bytes.

    The server serves pulls in turns, so two pulls may end together. Messages that arrive are counted against
    the oldest pull. Times are those of the caller's clock.

    Attributes:
        paused_until: Time at which the next pull may be sent after pulls that ended at once; 0 if none did.
    """

    def __init__(self) -> None:
        self._pulls: deque[list[int]] = deque()  # [number, messages that the pull may still deliver]
        self._next = 1
        self._nbytes = 0
        self._asked: dict[int, Asked] = {}
        # Consecutive pulls that ended at once without a message, and when the first of them did.
        self._fruitless = 0
        self._fruitless_since = 0.0
        self.paused_until = 0.0

    @property
    def is_idle(self) -> bool:
        """True if no pull is in flight, as far as is known."""
        return not self._pulls

    def begin(self, max_payload: int) -> None:
        """Start with a new consumer: no request is in flight.

        Args:
            max_payload: Longest message in bytes that the server accepts.
        """
        self.forget()
        self.moved()
        self._asked.clear()
        # A server may claim any max_payload.
        self._nbytes = min(max(_PULL_BYTES, 2 * max_payload, self._nbytes), _MOST_PULL_BYTES)

    def due(self, wanted: int, most: int = 0) -> tuple[int, int] | None:
        """Register a new pull and return its number and its message count; None if no pull is due.

        Args:
            wanted: Maximum number of messages still to come; -1 for no limit.
            most: Maximum number of messages of a pull; 0 for no limit of the server.
        """
        if len(self._pulls) >= _DEPTH or wanted == 0:
            return None
        amount = min(_MOST if wanted < 0 else wanted, most or _MOST, _MOST)
        number, self._next = self._next, self._next + 1
        self._pulls.append([number, amount])
        return number, amount

    def request(self, amount: int) -> dict[str, Any]:
        """Return the request of a pull for a number of messages."""
        return {
            "batch": amount,
            "max_bytes": self._nbytes,
            "expires": EXPIRES * _SECOND,
            "idle_heartbeat": HEARTBEAT * _SECOND,
        }

    def sent(self, number: int, offset: int, now: float) -> None:
        """Note that a request was sent while the read was at an offset."""
        self._asked.pop(number, None)
        self._asked[number] = Asked(offset, now)
        if len(self._asked) > _REMEMBERED:
            del self._asked[next(iter(self._asked))]  # the oldest

    def asked(self, number: int) -> Asked | None:
        """Return what was noted about a request; None if that has ended."""
        return self._asked.get(number)

    def beat(self, number: int | None) -> float:
        """Count a heartbeat of a pull; return a time before the server sent it.

        It may have waited in a socket. The server sends the first one a second after it got the pull, or
        later, and the next ones a second after the one before.
        """
        asked = None if number is None else self._asked.get(number)
        if number is None or asked is None:
            return 0.0
        self._asked[number] = asked = asked._replace(beats=asked.beats + 1)
        return asked.at + asked.beats * HEARTBEAT

    def arrived(self, count: int) -> None:
        """Count messages that arrived; drop pulls that have delivered all they asked for."""
        while count and self._pulls:
            taken = min(count, self._pulls[0][1])
            self._pulls[0][1] -= taken
            count -= taken
            if not self._pulls[0][1]:
                self._pulls.popleft()

    def ended(self, number: int) -> Asked | None:
        """Drop a pull that has ended, and all pulls before it; return what was noted when it was sent."""
        while self._pulls and self._pulls[0][0] <= number:
            self._pulls.popleft()
        return self._asked.pop(number, None)

    def forget(self) -> None:
        """Drop all pulls: the server no longer serves any."""
        self._pulls.clear()

    def widen(self) -> bool:
        """Double the bytes of the next pulls; return False if they are at their limit."""
        if self._nbytes >= _MOST_PULL_BYTES:
            return False
        self._nbytes = min(2 * self._nbytes, _MOST_PULL_BYTES)
        return True

    # Pulls that the server ends at once

    def fruitless(self, now: float) -> float:
        """Pause before the next pull, since one ended without a message.

        Returns:
            Seconds since the first of them ended.
        """
        if not self._fruitless:
            self._fruitless_since = now
        self._fruitless += 1
        self.paused_until = now + pause_before(self._fruitless)
        return now - self._fruitless_since

    def moved(self) -> None:
        """Note that a message came: the next pull may follow at once."""
        self._fruitless, self.paused_until = 0, 0.0
