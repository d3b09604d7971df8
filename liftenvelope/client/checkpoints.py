"""What was processed, what of it is stored, and when to store again. No clock and no I/O: sans-io."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

__all__ = ["Checkpoints"]

_K = TypeVar("_K", bound=Hashable)
_FIRST_RETRY: Final = 0.1
_LONGEST_RETRY: Final = 5.0


@dataclass(slots=True)
class _Progress:
    """How far one partition has come."""

    done: int | None = None
    stored: int | None = None
    count: int = 0
    #: When the first of what is not stored yet was processed.
    since: float = 0.0
    failures: int = 0
    #: Not before then: an attempt failed.
    retry_at: float = 0.0
    #: Handed out and not processed yet, in order; and what of it is finished though something before is not.
    outstanding: deque[int] = field(default_factory=deque)
    early: set[int] = field(default_factory=set)

    @property
    def is_pending(self) -> bool:
        return self.done is not None and (self.stored is None or self.done > self.stored)


class Checkpoints(Generic[_K]):
    """Keeps, for each partition, the last processed offset and the last stored one.

    Args:
        every_messages: A partition is due when so many of its messages were processed since,
        every_seconds: or so many seconds after the first of them. None: it is never due by itself.

    Example:
        >>> checkpoints = Checkpoints[str](every_messages=2, every_seconds=5.0)
        >>> checkpoints.processed("p", 7, now=0.0)
        True
        >>> checkpoints.due(now=0.0), checkpoints.wait(now=1.0)
        ([], 4.0)
        >>> checkpoints.due(now=5.0)
        [('p', 7)]
    """

    def __init__(self, every_messages: int | None, every_seconds: float | None) -> None:
        self._every_messages = every_messages
        self._every_seconds = every_seconds
        self._partitions: dict[_K, _Progress] = {}

    def delivered(self, key: _K, offset: int) -> None:
        """Note that a message was handed out: nothing from it on is stored before it was processed."""
        self._get(key).outstanding.append(offset)

    def processed(self, key: _K, offset: int, now: float) -> bool:
        """Note that a message was processed, and all before it that :meth:`delivered` does not know of.

        Returns:
            Whether the time to store something may have come, or is known only now.
        """
        one = self._get(key)
        if one.outstanding:
            held = self._release(one, offset)
            if held is None:
                return False
            offset = held
        if one.done is not None and offset <= one.done:
            return False
        was_pending = one.is_pending
        one.done = offset
        if not one.is_pending:
            return False
        one.count += 1
        if not was_pending:
            one.since = now
        return not was_pending or one.count == self._every_messages

    def due(self, now: float) -> list[tuple[_K, int]]:
        """Return what is to be stored now: partitions and offsets."""
        return [
            (key, one.done)
            for key, one in self._partitions.items()
            if one.done is not None and one.is_pending and self._due_at(one) <= now
        ]

    def wait(self, now: float) -> float | None:
        """Return in how many seconds something is due, None where nothing will be."""
        times = [self._due_at(one) for one in self._partitions.values() if one.is_pending]
        first = min(times, default=float("inf"))
        return None if first == float("inf") else max(first - now, 0.0)

    def pending(self, keys: Collection[_K] | None = None) -> list[tuple[_K, int]]:
        """Return what is processed and not stored, of these partitions or of all."""
        return [
            (key, one.done)
            for key, one in self._partitions.items()
            if one.done is not None and one.is_pending and (keys is None or key in keys)
        ]

    def last(self, key: _K) -> int | None:
        """Return the last processed offset of a partition."""
        one = self._partitions.get(key)
        return None if one is None else one.done

    def token(self, key: _K) -> object:
        """Return what is another object once a partition was begun anew."""
        return self._partitions.get(key)

    def stored(self, key: _K, offset: int, now: float) -> None:
        """Note that an offset is stored: by us, or by somebody else."""
        one = self._get(key)
        one.stored = offset if one.stored is None else max(one.stored, offset)
        one.count = one.failures = 0
        one.retry_at = 0.0
        one.since = now

    def failed(self, key: _K, now: float) -> None:
        """Note that an offset could not be stored: it is due again after a pause that grows."""
        one = self._partitions.get(key)
        if one is None:  # begun anew in the meantime
            return
        one.failures += 1
        one.retry_at = now + min(_FIRST_RETRY * 2 ** min(one.failures - 1, 16), _LONGEST_RETRY)

    def forget(self, key: _K) -> None:
        """Begin anew with a partition."""
        self._partitions.pop(key, None)

    def _get(self, key: _K) -> _Progress:
        one = self._partitions.get(key)
        if one is None:
            one = self._partitions[key] = _Progress()
        return one

    def _due_at(self, one: _Progress) -> float:
        if self._every_messages is not None and one.count >= self._every_messages:
            return one.retry_at
        if self._every_seconds is None:
            return float("inf")
        return max(one.since + self._every_seconds, one.retry_at)

    @staticmethod
    def _release(one: _Progress, offset: int) -> int | None:
        """Take an offset off those handed out; return the last one before which nothing is outstanding."""
        if offset not in one.outstanding:  # not announced: as it stands, if nothing before it is outstanding
            return offset if offset < one.outstanding[0] else None
        one.early.add(offset)
        last = None
        while one.outstanding and one.outstanding[0] in one.early:
            last = one.outstanding.popleft()
            one.early.discard(last)
        return last
