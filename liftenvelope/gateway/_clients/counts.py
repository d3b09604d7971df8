"""Counts publishes by gRPC and their acks. Sans-io: callers pass the time.

The invariant, for each method: messages taken = acked + failed + pending. A message is pending until
JetStream's ack or an error settles it, also if the client asked for no ack. A call that ends settles its
messages without an answer as failed.

PublishAsync handles messages and acks in batches, and its compiled pipe keeps no time for each message. So
:class:`PublishTimes` keeps one time for each batch, and looks up the numbers of the first and last ack of a
batch of acks. Acks between these two are taken to be in the order of their numbers, which holds within a
partition.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Final, Self

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.gateway._protocol.failures import status_of
from liftenvelope.rpc.status import StatusCode

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "CANCELLED",
    "LatencyHistogram",
    "OnePublish",
    "PublishCounts",
    "PublishTally",
    "PublishTimes",
    "reason_of",
]

#: Upper bounds of the buckets, in seconds. The last bucket has none.
_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: Batches sent within so many seconds share one time.
_RESOLUTION: Final = 0.001
#: Most times kept for a call. Beyond it, neighbours are merged.
_MOST_TIMES: Final = 256
#: Reason of a message whose client has left or whose deadline has passed.
CANCELLED: Final = "cancelled"


def reason_of(error: BaseException | None) -> str:
    """Return the reason to count a failure under: the name of its gRPC status in lower case.

    Example:
        >>> from liftenvelope.errors import AckTimeoutError
        >>> reason_of(AckTimeoutError("late")), reason_of(asyncio.CancelledError())
        ('deadline_exceeded', 'cancelled')
    """
    if isinstance(error, LiftEnvelopeError):
        return StatusCode(status_of(error).code).name.lower()
    return CANCELLED if isinstance(error, asyncio.CancelledError) else "internal"


class LatencyHistogram:
    """Histogram of seconds with fixed buckets.

    Attributes:
        counts: Observations by bucket, the one without an upper bound at the end.
        total: Sum of the observations, in seconds.

    Example:
        >>> histogram = LatencyHistogram()
        >>> histogram.observe(0.002, 3)
        >>> [(bound, count) for bound, count in histogram.buckets() if count][0], histogram.total
        ((0.0025, 3), 0.006)
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Add ``count`` observations of the same value."""
        self.counts[bisect_left(_BOUNDS, seconds)] += count
        self.total += seconds * count

    def buckets(self) -> list[tuple[float, int]]:
        """Return the upper bounds with the number of observations up to each; the last is infinite."""
        found, so_far = [], 0
        for bound, count in zip((*_BOUNDS, float("inf")), self.counts, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found


class PublishTimes:
    """Times at which the numbered messages of a PublishAsync call were taken.

    Memory is bounded: beyond 256 times, neighbours are merged, so that older times become less precise.
    """

    def __init__(self) -> None:
        # Messages with numbers below an end, and not below the one before it, were taken at its time.
        self._ends: list[int] = []
        self._times: list[float] = []

    def __len__(self) -> int:
        return len(self._ends)

    def taken(self, end: int, now: float) -> None:
        """Note that the messages below number ``end``, and not noted before, were taken now."""
        ends, times = self._ends, self._times
        if times and now - times[-1] < _RESOLUTION:
            ends[-1] = end
            return
        ends.append(end)
        times.append(now)
        if len(ends) > _MOST_TIMES:
            # The earlier time of both: a latency is never reported as too short.
            self._ends, self._times = ends[1::2] + ends[len(ends) - len(ends) % 2 :], times[::2]

    def forget(self, below: int) -> None:
        """Forget the times of messages with numbers below this one, all of which are settled."""
        if done := bisect_right(self._ends, below):
            del self._ends[:done], self._times[:done]

    def observe(self, histogram: LatencyHistogram, first: int, last: int, count: int, now: float) -> None:
        """Add the latencies of ``count`` acked messages with numbers from ``first`` to ``last``."""
        if not self._ends:
            histogram.observe(0.0, count)  # never noted: cannot happen, and no reason to fail
            return
        first, last = min(first, last), max(first, last)
        most = len(self._ends) - 1
        at, end = min(bisect_right(self._ends, first), most), min(bisect_right(self._ends, last), most)
        while at < end:
            several = min(max(self._ends[at] - first, 0), count)
            histogram.observe(now - self._times[at], several)
            first, count, at = self._ends[at], count - several, at + 1
        histogram.observe(now - self._times[end], count)


class PublishCounts:
    """Counts of one publish method, over all its calls.

    Attributes:
        messages: Messages taken.
        bytes: Total size of their requests.
        acked: Messages that JetStream has acked.
        failures: Messages that were refused or have no ack, by reason (see :func:`reason_of`).
        latency: Seconds from a request to JetStream's ack.
    """

    def __init__(self) -> None:
        self.messages = self.bytes = self.acked = 0
        self.failures: dict[str, int] = {}
        self.latency = LatencyHistogram()

    @property
    def pending(self) -> int:
        """Number of messages that are neither acked nor failed."""
        return self.messages - self.acked - sum(self.failures.values())

    def taken(self, messages: int, size: int) -> None:
        """Count messages, given the total size of their requests in bytes."""
        self.messages += messages
        self.bytes += size

    def fail(self, reason: str, count: int = 1) -> None:
        """Count messages that are refused or whose outcome is unknown."""
        self.failures[reason] = self.failures.get(reason, 0) + count

    def ack(self, seconds: float) -> None:
        """Count an acked message."""
        self.acked += 1
        self.latency.observe(seconds)

    def one(self, size: int) -> OnePublish:
        """Count a message; the returned context manager counts its end.

        Args:
            size: Size of the request in bytes.
        """
        self.taken(1, size)
        return OnePublish(self)


class OnePublish:
    """Message of a unary call. Leaving ``with`` settles it: as acked, or as failed after an exception."""

    def __init__(self, counts: PublishCounts) -> None:
        self._counts = counts
        self._began = time.monotonic()
        self._is_open = True

    def settle_with(self, future: asyncio.Future[Any]) -> None:
        """Leave it to a future to settle the message, also after the ``with`` block."""
        self._is_open = False
        future.add_done_callback(self._done)

    def fail(self, reason: str) -> None:
        """Settle the message as failed, although no exception leaves the ``with`` block."""
        self._is_open = False
        self._counts.fail(reason)

    def _done(self, future: asyncio.Future[Any]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        if error is None:
            self._counts.ack(time.monotonic() - self._began)
        else:
            self._counts.fail(reason_of(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_open:
            self._settle(error)


class PublishTally:
    """Counts the messages of one PublishAsync call, until it is closed.

    Args:
        counts: Counts of all calls of the method.

    Attributes:
        times: Times of the numbered messages of the fast path.
        open: Messages that are neither acked nor failed.
    """

    def __init__(self, counts: PublishCounts) -> None:
        self._counts = counts
        self._is_closed = False
        self.times = PublishTimes()
        self.open = 0

    def taken(self, messages: int, size: int) -> None:
        """Count messages that the call has received."""
        self.open += messages
        self._counts.taken(messages, size)

    def ack(self, seconds: float) -> None:
        """Count an acked message of the slow path."""
        if not self._is_closed:
            self.open -= 1
            self._counts.ack(seconds)

    def ack_numbered(self, first: int, last: int, count: int, now: float) -> None:
        """Count acked messages of the fast path, given the numbers of the first and last of them."""
        if not self._is_closed:
            self.open -= count
            self._counts.acked += count
            self.times.observe(self._counts.latency, first, last, count, now)

    def fail(self, reason: str) -> None:
        """Count a message that is refused or whose outcome is unknown."""
        if not self._is_closed:
            self.open -= 1
            self._counts.fail(reason)

    def close(self, reason: str) -> None:
        """Count the open messages as failed and nothing more, because the call ends."""
        if self.open:
            self._counts.fail(reason, self.open)
        self.open, self._is_closed = 0, True
