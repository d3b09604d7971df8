"""Flow control of pulls: a byte window for each reader and a byte budget for each connection. Sans-io.

The window of a reader bounds two amounts together: the bytes in flight (requested from JetStream and not yet
received) and the bytes received but not yet taken. A window starts small, so that a reader that takes nothing
costs little. It grows while the reader is fast and shrinks again when a pull expires.

The budget bounds the bytes in flight of all readers of a connection, because nats-server disconnects a client
for which it buffers 64 MiB. A reader with nothing in flight may always request a small amount, so no reader
starves. Larger requests take credit from a shared amount, in the order of the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from liftenvelope.gateway.limits import Limits

__all__ = ["PullBudget", "PullWindow"]

_DEFAULTS: Final = Limits()
#: Share of the budget reserved for the small amounts. The rest is the shared amount.
_SMALL_SHARE: Final = 3 / 7
#: Bounds of one small amount, in bytes.
_LEAST_SMALL: Final = 4 << 10
_MOST_SMALL: Final = 64 << 10
#: Bounds of a window, and the smallest useful pull, in bytes.
_LEAST: Final = 128 << 10
_MOST: Final = 2 << 20
_LEAST_PULL: Final = 16 << 10
#: Bytes that a reader takes between two choices of the window size. A gRPC library was observed to buffer
#: 6 MB for a client that reads nothing, so a shorter period would make such a client look fast.
_PERIOD: Final = 8 << 20
#: Seconds for one period: below the first the window grows, above the second it shrinks.
_QUICK, _SLOW = 4.0, 60.0
#: Factor between two window sizes. Small pulls are expensive: 64 KiB pulls double the gateway's CPU time.
_STEP: Final = 4
#: If no message fits into a pull, the largest message is assumed to be this many times the pull's size.
_LARGER: Final = 4
_LARGEST: Final = 64 << 20


class PullBudget:
    """Budget for the pulls of all readers of a connection.

    Args:
        total: Bytes that all readers together may have in flight. Default 28 MiB.
        inactivity: Seconds after which JetStream removes the consumer of a lost reader. Default 60.

    Attributes:
        total: See above.
        inactivity: See above.
        readers: Number of readers.
        used: Bytes taken out of the shared amount.
        held: Bytes that the readers have received and not passed on yet.
    """

    def __init__(
        self, total: int = _DEFAULTS.max_pull_bytes, inactivity: float = _DEFAULTS.consumer_inactivity
    ) -> None:
        self.total = total
        self.inactivity = inactivity
        self.readers = 0
        self.used = self.held = 0
        # Waiting readers in FIFO order: the bytes needed, and the callback that receives them.
        self._waiting: deque[tuple[int, Callable[[int], None]]] = deque()
        self._is_giving = False

    @property
    def small(self) -> int:
        """Bytes that a reader with nothing in flight may request: 64 KiB, down to 4 KiB with many readers."""
        total = int(self.total * _SMALL_SHARE)
        return min(max(total // max(self.readers, 1), _LEAST_SMALL), _MOST_SMALL)

    @property
    def _large(self) -> int:
        """Size of the shared amount, in bytes."""
        return self.total - int(self.total * _SMALL_SHARE)

    def take(self, least: int, most: int) -> int:
        """Take bytes out of the shared amount without waiting.

        If the shared amount is unused, ``least`` is granted even if it exceeds that amount: a message larger
        than the budget would otherwise never be delivered.

        Args:
            least: Smallest useful number of bytes.
            most: Largest number of bytes to take.

        Returns:
            Bytes taken; 0 if fewer than ``least`` are left or other readers are waiting.
        """
        left = self._large - self.used
        if self._waiting or (left < least and self.used):
            return 0
        taken = min(most, max(left, least))
        self.used += taken
        return taken

    def wait(self, amount: int, give: Callable[[int], None]) -> None:
        """Call ``give`` with ``amount`` as soon as the shared amount can supply it, in FIFO order."""
        self._waiting.append((amount, give))
        self.release(0)

    def release(self, amount: int) -> None:
        """Return bytes to the shared amount and serve the readers that wait.

        If the shared amount is unused, the first waiting reader gets its bytes even if they exceed that
        amount, as in :meth:`take`.
        """
        self.used -= amount
        if self._is_giving:
            return  # a give() callback returned bytes: the loop below continues with them
        self._is_giving = True
        while self._waiting and (not self.used or self.used + self._waiting[0][0] <= self._large):
            needed, give = self._waiting.popleft()
            self.used += needed
            give(needed)
        self._is_giving = False


class PullWindow:
    """Byte window of one reader.

    Sizes are counted as by the server: subject, reply subject, headers and payload.

    Args:
        now: Current time in seconds, of any clock.

    Attributes:
        asked: Bytes in flight: those that the server may still send. It is 0 when all pulls have ended,
            including pulls that ended without a status because their last byte was used.
        held: Bytes received and not yet taken.
        largest: Expected size of the largest message, in bytes.
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
        """Size of the window, in bytes: at least two messages of the largest size."""
        return max(self._size, 2 * self.largest)

    @property
    def wanted(self) -> int:
        """Bytes to request now; 0 until at least half of the window is free."""
        used = self.asked + self.held
        return self.size - used if used <= self.size // 2 else 0

    @property
    def least(self) -> int:
        """Smallest useful pull, in bytes."""
        return max(self.largest, _LEAST_PULL)

    def forget(self) -> None:
        """Reset for a new consumer: no bytes are in flight or held."""
        self.asked = self.held = 0

    def pulled(self, amount: int) -> None:
        """Record that a pull for ``amount`` bytes was sent."""
        self.asked += amount

    def arrived(self, size: int, largest: int) -> None:
        """Record received messages.

        Args:
            size: Total bytes of the messages.
            largest: Bytes of the largest of the messages.
        """
        self.asked -= size
        self.held += size
        self.largest = max(self.largest, largest)
        self._largest_seen = max(self._largest_seen, largest)

    def taken(self, size: int, now: float) -> None:
        """Record that the reader took messages, and adapt the window after each period.

        A period ends after 8 MiB. Then ``largest`` becomes the largest size within the period, so that one
        very large message does not keep the window large.

        Args:
            size: Total bytes of the messages.
            now: Current time in seconds, of the same clock as at the start.
        """
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
        """Record that a pull ended.

        Args:
            amount: Bytes that the pull requested.
            left: Bytes of the pull that were not sent.
            expired: Whether the pull ended because its time ran out.
        """
        self.asked -= left
        if expired:
            self._size = _LEAST
        elif left == amount:  # the next message did not fit
            self.largest = max(self.largest, min(_LARGER * amount, _LARGEST))
