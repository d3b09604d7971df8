"""Deadlines of one operation, and of many entries without a timer for each; the error for a late ack.

:class:`Deadline` reads the clock itself, so that shells need no arithmetic. :class:`DeadlineBuckets` is
sans-io: callers pass the time.
"""

from __future__ import annotations

import math
import sys
import time
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.errors import AckTimeoutError, UsageError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A dict that takes more bytes than this per entry is mostly holes. A growing dict takes 30 to 60.
_SPARSE_BYTES: Final = 128
_TIDIED_AT_ONCE: Final = 2
#: Least seconds left, so that the value is a valid timeout of sockets and requests.
_LEAST: Final = 0.001
#: Outcome of a message that was handed to the connection and got no ack.
MAY_BE_STORED: Final = "the message may be stored, and publishing it again may store it twice"
#: Outcome of a message that never left this process.
NOT_STORED: Final = "the message was never sent, so publishing it again is safe"
#: Usual causes of a missing ack for an envelope published to a subject.
SUBJECT_CAUSES: Final = (
    "no stream records the subject; the stream is paused or read-only; the server is slow or unreachable"
)


class Deadline:
    """Deadline of one operation, on the monotonic clock that event loops use as well.

    Args:
        timeout: Seconds from now.

    Attributes:
        timeout: The seconds given, for error texts.

    Example:
        >>> deadline = Deadline(60.0)
        >>> deadline.is_over, 59.0 < deadline.left <= 60.0, deadline.pause_before(0)
        (False, True, 0.0)
        >>> passed = Deadline(0.0)
        >>> passed.is_over, passed.left, passed.pause_before(3)
        (True, 0.001, 0.001)
    """

    __slots__ = ("_end", "timeout")

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._end = time.monotonic() + timeout

    @property
    def left(self) -> float:
        """Seconds left, at least 0.001, so that the value is always a valid timeout."""
        return max(self._end - time.monotonic(), _LEAST)

    @property
    def is_over(self) -> bool:
        """True once the deadline has passed."""
        return time.monotonic() >= self._end

    def pause_before(self, attempt: int) -> float:
        """Return the seconds to wait before an attempt: the default backoff, but not past the deadline."""
        from liftenvelope._backoff import pause_before  # loads ``random``, which the codec does not need

        return min(pause_before(attempt), self.left)


class DeadlineBuckets:
    """Buckets of entries, plain dicts: one for each time slice of ``resolution`` seconds.

    The user of a bucket adds and removes entries freely, but must call ``clear()`` when a bucket has become
    empty: a dict emptied by ``pop()`` keeps its hash table, which may be as large as the largest burst.

    A bucket is due at the end of its slice: at most one resolution after the deadlines in it.

    Args:
        resolution: Width of a slice, in seconds.

    Raises:
        UsageError: ``resolution`` is not positive and finite.

    Example:
        >>> buckets = DeadlineBuckets(0.5)
        >>> buckets.bucket(3.2)["a"] = 1
        >>> buckets.bucket(3.4)["b"] = 2
        >>> buckets.next_end()
        3.5
        >>> list(buckets.pop_due(3.4)), list(buckets.pop_due(3.5))
        ([], [{'a': 1, 'b': 2}])
    """

    def __init__(self, resolution: float) -> None:
        if not 0 < resolution < math.inf:
            raise UsageError(f"resolution must be a positive number of seconds, got {resolution!r}")
        self._resolution = resolution
        # Keyed by the end of the slice. The heap holds exactly the keys of the dict.
        self._buckets: dict[float, dict[str, Any]] = {}
        self._ends: list[float] = []
        self._tidied = 0
        self._open: dict[str, Any] = {}
        self._open_from, self._open_until = math.inf, -math.inf

    def bucket(self, deadline: float) -> dict[str, Any]:
        """Return the bucket for a deadline; create it if missing.

        Raises:
            UsageError: The deadline is not finite.
            UsageTypeError: The deadline is not a number.
        """
        # Almost always the same slice as the last deadline. Invalid values, NaN too, fail the comparison.
        try:
            if self._open_from <= deadline < self._open_until:
                return self._open
            slice_number = math.floor(deadline / self._resolution)
            end = (slice_number + 1) * self._resolution
        except TypeError:
            message = f"deadline must be a number of seconds, got {deadline!r}"
            raise UsageTypeError(message) from None
        except (ValueError, OverflowError):
            raise UsageError(f"deadline must be a finite number of seconds, got {deadline!r}") from None
        if end not in self._buckets:
            self._buckets[end] = {}
            heappush(self._ends, end)
            self._tidy()
        self._open_from, self._open_until = slice_number * self._resolution, end
        self._open = self._buckets[end]
        return self._open

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterate over the buckets, in any order."""
        return iter(self._buckets.values())

    def pop_due(self, now: float) -> Iterator[dict[str, Any]]:
        """Remove the buckets that are due; yield them, earliest first."""
        while self._ends and self._ends[0] <= now:
            yield self._pop()

    def next_end(self) -> float | None:
        """Return the due time of the next non-empty bucket; None if there is none."""
        while self._ends and not self._buckets[self._ends[0]]:
            self._pop()
        return self._ends[0] if self._ends else None

    def _pop(self) -> dict[str, Any]:
        bucket = self._buckets.pop(heappop(self._ends))
        if bucket is self._open:
            self._open, self._open_from, self._open_until = {}, math.inf, -math.inf
        return bucket

    def _tidy(self) -> None:
        """Shrink the next buckets in turn if they are mostly holes."""
        for _ in range(_TIDIED_AT_ONCE):
            self._tidied = (self._tidied + 1) % len(self._ends)
            repack(self._buckets[self._ends[self._tidied]])


def repack(table: dict[str, Any]) -> None:
    """Shrink a dict that is mostly holes; Python does so only on insertions. Amortised over the removals."""
    if sys.getsizeof(table) > _SPARSE_BYTES * (len(table) + 16):
        live = list(table.items())
        table.clear()
        table.update(live)


def ack_timeout(
    what: str,
    correlation_id: str = "",
    *,
    sent: bool = True,
    came: str = "no ack",
    unknown: str = MAY_BE_STORED,
    causes: str = SUBJECT_CAUSES,
) -> AckTimeoutError:
    """Return the error for a message whose acks did not all arrive in time.

    Args:
        what: The message, with its subject or partition: ``the message on 'orders'``.
        correlation_id: Id that the ack would have carried. Default: none.
        sent: True if the message was handed to the connection. Default True.
        came: Number of acks received, as text. Default ``no ack``.
        unknown: Outcome of a message that was sent. Default :data:`MAY_BE_STORED`.
        causes: The usual causes, separated by semicolons. The text has them only if the message was sent.
    """
    outcome = f"{unknown}. Usual causes: {causes}" if sent else NOT_STORED
    return AckTimeoutError(f"{came} came in time for {what}: {outcome}", correlation_id, sent)
