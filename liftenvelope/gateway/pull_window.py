"""Bytes that readers ask JetStream for: a window for each reader, a budget for all of a connection.

A window bounds what a reader is owed by JetStream plus what it holds and has not taken. It begins small, so
that a reader that takes nothing costs little, grows while the reader is quick, and is small again when
nothing comes.

The budget bounds what all readers are owed together: nats-server cuts off a connection for which it has
64 MiB in its buffers. A reader that is owed nothing may always ask for a small amount. Whatever goes beyond
that comes out of a shared amount, in the order of asking. All of it is without I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from liftenvelope.gateway.limits import Limits

__all__ = ["PullBudget", "PullWindow"]

_DEFAULTS: Final = Limits()
#: Share of the total that the small amounts should not exceed. The rest is the shared amount.
_SMALL_SHARE: Final = 3 / 7
#: Bounds of one small amount, in bytes.
_LEAST_SMALL: Final = 4 << 10
_MOST_SMALL: Final = 64 << 10
#: Bounds of a window, and the least that is worth a pull of its own.
_LEAST: Final = 128 << 10
_MOST: Final = 2 << 20
_LEAST_PULL: Final = 16 << 10
#: Bytes that a reader takes before the next size is chosen, and the seconds that make it quick or slow. A
#: client's gRPC library was seen to take 6 MB for a reader that takes nothing, which must not look quick.
_PERIOD: Final = 8 << 20
_QUICK, _SLOW = 4.0, 60.0
#: Factor between two sizes. Pulls cost: with 64 KiB each the gateway needs twice the processor time.
_STEP: Final = 4
#: Factor by which the largest message is taken to be larger than a pull in which it did not fit.
_LARGER: Final = 4
_LARGEST: Final = 64 << 20


class PullBudget:
    """What the readers of a connection may ask for together.

    Args:
        total: Bytes that the readers may ask for together.
        inactivity: Seconds after which JetStream removes the consumer of a reader that is gone.

    Attributes:
        total: See above.
        inactivity: See above.
        readers: Number of readers.
        used: Bytes taken out of the shared amount.
    """

    def __init__(
        self, total: int = _DEFAULTS.max_pull_bytes, inactivity: float = _DEFAULTS.consumer_inactivity
    ) -> None:
        self.total = total
        self.inactivity = inactivity
        self.readers = 0
        self.used = 0
        # Amount needed, and whom to give it to.
        self._waiting: deque[tuple[int, Callable[[int], None]]] = deque()
        self._is_giving = False

    @property
    def small(self) -> int:
        """Bytes that a reader that is owed nothing may ask for: 64 KiB, less where there are many readers."""
        total = int(self.total * _SMALL_SHARE)
        return min(max(total // max(self.readers, 1), _LEAST_SMALL), _MOST_SMALL)

    @property
    def _large(self) -> int:
        """Bytes of the shared amount."""
        return self.total - int(self.total * _SMALL_SHARE)

    def take(self, least: int, most: int) -> int:
        """Take bytes out of the shared amount; return how many, 0 if there are too few or others wait."""
        left = self._large - self.used
        if self._waiting or (left < least and self.used):
            return 0
        taken = min(most, max(left, least))
        self.used += taken
        return taken

    def wait(self, amount: int, give: Callable[[int], None]) -> None:
        """Give an amount to a reader as soon as it can be taken out of the shared amount."""
        self._waiting.append((amount, give))
        self.release(0)

    def release(self, amount: int) -> None:
        """Put bytes back."""
        self.used -= amount
        if self._is_giving:
            return  # somebody who was given something puts it back: the loop below goes on
        self._is_giving = True
        while self._waiting and (not self.used or self.used + self._waiting[0][0] <= self._large):
            needed, give = self._waiting.popleft()
            self.used += needed
            give(needed)
        self._is_giving = False


class PullWindow:
    """What one reader is owed and holds.

    Sizes are those that the server counts: subject, reply subject, headers and payload.

    Args:
        now: The time, in seconds of any clock.

    Attributes:
        asked: Bytes that the server may still send. It is 0 when all pulls are over, also those that ended
            without a status because their last byte was used.
        held: Bytes that came and were not taken.
        largest: Size of the largest message that is to be expected.
    """

    def __init__(self, now: float) -> None:
        self.asked = 0
        self.held = 0
        self.largest = 0
        self._size = _LEAST
        self._largest_seen = 0
        self._taken = 0
        self._began = now

    @property
    def size(self) -> int:
        """Bytes that the reader may be owed and hold: at least two messages."""
        return max(self._size, 2 * self.largest)

    @property
    def wanted(self) -> int:
        """Bytes to ask for now, 0 for none: the window is half empty before it is filled again."""
        used = self.asked + self.held
        return self.size - used if used <= self.size // 2 else 0

    @property
    def least(self) -> int:
        """Bytes that a pull must ask for to be of use."""
        return max(self.largest, _LEAST_PULL)

    def forget(self) -> None:
        """Start again with a new consumer: nothing is owed or held."""
        self.asked = self.held = 0

    def pulled(self, amount: int) -> None:
        """A pull was sent."""
        self.asked += amount

    def arrived(self, size: int, largest: int) -> None:
        """Messages came: their size together, and that of the largest."""
        self.asked -= size
        self.held += size
        self.largest = max(self.largest, largest)
        self._largest_seen = max(self._largest_seen, largest)

    def taken(self, size: int, now: float) -> None:
        """The reader took messages."""
        self.held -= size
        self._taken += size
        if self._taken >= _PERIOD:
            seconds = now - self._began
            if seconds < _QUICK:
                self._size = min(_STEP * self._size, _MOST)
            elif seconds > _SLOW:
                self._size = max(self._size // _STEP, _LEAST)
            self.largest, self._largest_seen = self._largest_seen, 0
            self._taken, self._began = 0, now

    def ended(self, amount: int, left: int, *, expired: bool) -> None:
        """A pull ended.

        Args:
            amount: Bytes that it had asked for.
            left: Bytes that it did not use.
            expired: Whether its time was over, not its bytes.
        """
        self.asked -= left
        if expired:
            self._size = _LEAST
        elif left == amount:  # not one message fitted
            self.largest = max(self.largest, min(_LARGER * amount, _LARGEST))
