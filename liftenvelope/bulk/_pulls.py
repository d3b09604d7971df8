"""How much to ask of a JetStream consumer at a time: two pulls in flight, each bounded in bytes. No I/O."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["PullWindow"]

_DEPTH: Final = 2
#: How many messages a pull asks for that is limited by its bytes (ADR-37).
_MOST: Final = 1_000_000


class PullWindow:
    """Which pulls the server is serving. It serves them in turns, so that two may end together."""

    def __init__(self) -> None:
        self._pulls: deque[list[int]] = deque()  # number, messages that it may yet bring
        self._next = 1

    @property
    def is_idle(self) -> bool:
        """Whether the server has nothing to serve, as far as is known."""
        return not self._pulls

    def due(self, wanted: int) -> tuple[int, int] | None:
        """Return the number of a pull that is to be sent now, and how many messages it asks for.

        Args:
            wanted: How many messages are yet to come at most; -1 for any number.
        """
        if len(self._pulls) >= _DEPTH or wanted == 0:
            return None
        amount = _MOST if wanted < 0 else min(wanted, _MOST)
        number, self._next = self._next, self._next + 1
        self._pulls.append([number, amount])
        return number, amount

    def arrived(self, count: int) -> None:
        """So many messages have come."""
        while count and self._pulls:
            taken = min(count, self._pulls[0][1])
            self._pulls[0][1] -= taken
            count -= taken
            if not self._pulls[0][1]:
                self._pulls.popleft()

    def ended(self, number: int) -> None:
        """A pull has ended, and so have those before it."""
        while self._pulls and self._pulls[0][0] <= number:
            self._pulls.popleft()

    def forget(self) -> None:
        """The server knows no pull any more."""
        self._pulls.clear()
