"""Window of JetStream pull requests: two pulls in flight, each bounded in bytes. No I/O."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["PullsInFlight"]

_DEPTH: Final = 2
#: Messages to ask for in a pull that its bytes limit (ADR-37).
_MOST: Final = 1_000_000


class PullsInFlight:
    """Tracks the pulls that the server is serving.

    The server serves pulls in turns, so two pulls may end together. Messages that arrive are counted against
    the oldest pull.
    """

    def __init__(self) -> None:
        self._pulls: deque[list[int]] = deque()  # [number, messages that the pull may still deliver]
        self._next = 1

    @property
    def is_idle(self) -> bool:
        """True if no pull is in flight, as far as is known."""
        return not self._pulls

    def due(self, wanted: int) -> tuple[int, int] | None:
        """Register a new pull and return its number and its message count; None if no pull is due.

        Args:
            wanted: Maximum number of messages still to come; -1 for no limit.
        """
        if len(self._pulls) >= _DEPTH or wanted == 0:
            return None
        amount = _MOST if wanted < 0 else min(wanted, _MOST)
        number, self._next = self._next, self._next + 1
        self._pulls.append([number, amount])
        return number, amount

    def arrived(self, count: int) -> None:
        """Count messages that arrived; drop pulls that have delivered all they asked for."""
        while count and self._pulls:
            taken = min(count, self._pulls[0][1])
            self._pulls[0][1] -= taken
            count -= taken
            if not self._pulls[0][1]:
                self._pulls.popleft()

    def ended(self, number: int) -> None:
        """Drop a pull that has ended, and all pulls before it."""
        while self._pulls and self._pulls[0][0] <= number:
            self._pulls.popleft()

    def forget(self) -> None:
        """Drop all pulls: the server no longer serves any."""
        self._pulls.clear()
