"""Deadlines without timers: entries in buckets by the slice of time in which they expire."""

from __future__ import annotations

import math
import sys
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A dict that takes more bytes than this for each entry is mostly holes. A growing one takes 30 to 60.
_SPARSE_BYTES: Final = 128
_TIDIED_AT_ONCE: Final = 2


class DeadlineBuckets:
    """Plain dicts, one for each slice of ``resolution`` seconds in which a deadline lies.

    The user of a bucket adds to it and removes from it as it likes. It clears one that it has emptied, for
    a dict that is popped empty keeps its table, which may be as large as the largest burst.

    A bucket is due at the end of its slice: after the deadlines in it, by one resolution at most.

    Args:
        resolution: The width of a slice in seconds.

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
            raise UsageError(f"resolution must be a positive number of seconds, not {resolution!r}")
        self._resolution = resolution
        # Keyed by the end of the slice. The heap holds exactly the keys of the dict.
        self._buckets: dict[float, dict[str, Any]] = {}
        self._ends: list[float] = []
        self._tidied = 0
        self._open: dict[str, Any] = {}
        self._open_from, self._open_until = math.inf, -math.inf

    def bucket(self, deadline: float) -> dict[str, Any]:
        """The bucket for a deadline, made if need be.

        Raises:
            UsageError: The deadline is not finite.
            UsageTypeError: It is not a number.
        """
        # Almost always the slice of the one before. Anything odd, NaN too, fails the comparison.
        try:
            if self._open_from <= deadline < self._open_until:
                return self._open
            slice_number = math.floor(deadline / self._resolution)
            end = (slice_number + 1) * self._resolution
        except TypeError:
            message = f"deadline must be a number of seconds, not {type(deadline).__name__}"
            raise UsageTypeError(message) from None
        except (ValueError, OverflowError):
            raise UsageError(f"deadline must be a finite number of seconds, not {deadline!r}") from None
        if end not in self._buckets:
            self._buckets[end] = {}
            heappush(self._ends, end)
            self._tidy()
        self._open_from, self._open_until = slice_number * self._resolution, end
        self._open = self._buckets[end]
        return self._open

    def pop_due(self, now: float) -> Iterator[dict[str, Any]]:
        """Take out the buckets that are due, the earliest first."""
        while self._ends and self._ends[0] <= now:
            yield self._pop()

    def next_end(self) -> float | None:
        """When the next bucket with something in it is due; None if there is none."""
        while self._ends and not self._buckets[self._ends[0]]:
            self._pop()
        return self._ends[0] if self._ends else None

    def _pop(self) -> dict[str, Any]:
        bucket = self._buckets.pop(heappop(self._ends))
        if bucket is self._open:
            self._open, self._open_from, self._open_until = {}, math.inf, -math.inf
        return bucket

    def _tidy(self) -> None:
        """Shrink some buckets if they are mostly holes; the next ones have their turn next time."""
        for _ in range(_TIDIED_AT_ONCE):
            self._tidied = (self._tidied + 1) % len(self._ends)
            repack(self._buckets[self._ends[self._tidied]])


def repack(table: dict[str, Any]) -> None:
    """Shrink a dict that is mostly holes, which Python does only at insertions. The removals pay for it."""
    if sys.getsizeof(table) > _SPARSE_BYTES * (len(table) + 16):
        live = list(table.items())
        table.clear()
        table.update(live)
