"""Checkpoint bookkeeping: processed and stored offsets per partition, and due times.

Sans-io: no clock, no I/O. Rules for each partition:

- ``done`` only grows. If messages are announced with ``delivered()``, ``done`` advances only to the last
  offset below which none is outstanding, so a stored cursor never skips an unfinished message.
- A partition is pending while ``done`` is ahead of ``stored``. Only pending partitions become due.
- ``forget()`` drops the whole state. An outcome that arrives after it must be ignored: compare ``token()``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from liftenvelope._backoff import Backoff

__all__ = ["Checkpoints"]

_K = TypeVar("_K", bound=Hashable)


@dataclass(slots=True)
class _Progress:
    """Checkpoint state of one partition."""

    done: int | None = None
    stored: int | None = None
    count: int = 0
    #: Time of the first processed message since the last store.
    since: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.1, longest=5.0, jitter=0.0))
    #: Earliest time of the next attempt, after a failed one.
    retry_at: float = 0.0
    #: Announced offsets in order, from the first unprocessed one on. ``early`` has the processed ones among
    #: them.
    outstanding: deque[int] = field(default_factory=deque)
    early: set[int] = field(default_factory=set)

    @property
    def is_pending(self) -> bool:
        return self.done is not None and (self.stored is None or self.done > self.stored)


class Checkpoints(Generic[_K]):
    """Keeps the last processed and the last stored offset of each partition.

    Args:
        every_messages: Processed messages since the last store after which a partition is due. None: no
            count.
        every_seconds: Seconds after the first unstored message until a partition is due. None: no time limit.

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
        """Record a message as outstanding: no offset at or above it is stored until it is processed."""
        self._get(key).outstanding.append(offset)

    def processed(self, key: _K, offset: int, now: float) -> bool:
        """Record a message, and all earlier messages not announced with :meth:`delivered`, as processed.

        Returns:
            True if the next due time may be earlier now: the partition became pending or reached
            ``every_messages``.
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
        if one.stored is not None and offset <= one.stored:
            return False
        one.count += 1
        if not was_pending:
            one.since = now
        return not was_pending or one.count == self._every_messages

    def due(self, now: float) -> list[tuple[_K, int]]:
        """Return the partitions to store now, with their offsets."""
        return [
            (key, one.done)
            for key, one in self._partitions.items()
            if one.done is not None and one.is_pending and self._due_at(one) <= now
        ]

    def wait(self, now: float) -> float | None:
        """Return the seconds until the next partition is due; None if none will be."""
        times = [self._due_at(one) for one in self._partitions.values() if one.is_pending]
        first = min(times, default=float("inf"))
        return None if first == float("inf") else max(first - now, 0.0)

    def pending(self, keys: Collection[_K] | None = None) -> list[tuple[_K, int]]:
        """Return the processed offsets not stored yet, of the given partitions; None for all."""
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
        """Return the identity of a partition's state; it changes after :meth:`forget`."""
        return self._partitions.get(key)

    def stored(self, key: _K, offset: int, now: float) -> None:
        """Record an offset as stored, by this reader or by another one."""
        one = self._get(key)
        one.stored = offset if one.stored is None else max(one.stored, offset)
        one.count = 0
        one.backoff.reset()
        one.retry_at = 0.0
        one.since = now

    def failed(self, key: _K, now: float) -> None:
        """Record a failed attempt: the partition is due again after an exponential backoff, at most 5 s."""
        one = self._partitions.get(key)
        if one is None:  # forgotten during the attempt
            return
        one.retry_at = now + one.backoff.next()

    def forget(self, key: _K) -> None:
        """Drop the state of a partition."""
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
        """Mark an outstanding offset as processed; return the new ``done``, None if it is unchanged."""
        if offset not in one.outstanding:  # not announced: counts only below every outstanding offset
            return offset if offset < one.outstanding[0] else None
        one.early.add(offset)
        last = None
        while one.outstanding and one.outstanding[0] in one.early:
            last = one.outstanding.popleft()
            one.early.discard(last)
        return last
