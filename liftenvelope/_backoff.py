"""Retry delays: exponential backoff with jitter, and a limit on the time without progress.

Sans-io: callers pass the time and sleep themselves. So asyncio, blocking and sans-io code share the policy.
"""

from __future__ import annotations

import random
from typing import Final

__all__ = ["Backoff", "Patience", "pause_before"]

_FIRST: Final = 0.05
_LONGEST: Final = 1.0
#: Clients that lost the same server at the same time must not all return at the same time.
_JITTER: Final = 0.5
#: Doublings after which every pause has reached its maximum. Bounds the power for any number of attempts.
_MOST_DOUBLINGS: Final = 64


def pause_before(
    attempt: int, *, first: float = _FIRST, longest: float = _LONGEST, jitter: float = _JITTER
) -> float:
    """Return the seconds to wait before an attempt: 0 for the first one, attempt 0.

    The maximum pause is ``first`` before attempt 1, doubles with each further attempt, and stops at
    ``longest``. Jitter takes off a random part.

    Args:
        attempt: Number of attempts made before.
        first: Maximum pause before attempt 1, in seconds. Default 0.05.
        longest: Maximum of all pauses, in seconds. Default 1.
        jitter: Largest fraction of a pause that is taken off, 0 to 1. Default 0.5; 0 for exact pauses.

    Example:
        >>> [pause_before(attempt, jitter=0.0) for attempt in range(7)]
        [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    """
    if attempt <= 0:
        return 0.0
    pause = min(first * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS), longest)
    return pause * (1.0 - jitter * random.random())


class Backoff:
    """Pauses between the attempts of one operation. Counts the failures in a row.

    Args:
        first: Maximum pause after the first failure, in seconds. Default 0.05.
        longest: Maximum of all pauses, in seconds. Default 1.
        jitter: Largest fraction of a pause that is taken off, 0 to 1. Default 0.5; 0 for exact pauses.

    Attributes:
        failures: Number of failures since the last :meth:`reset`.

    Example:
        >>> backoff = Backoff(first=0.1, longest=0.3, jitter=0.0)
        >>> backoff.next(), backoff.next(), backoff.next()
        (0.1, 0.2, 0.3)
        >>> backoff.reset()
        >>> backoff.next()
        0.1
    """

    __slots__ = ("_first", "_jitter", "_longest", "failures")

    def __init__(self, *, first: float = _FIRST, longest: float = _LONGEST, jitter: float = _JITTER) -> None:
        self._first, self._longest, self._jitter = first, longest, jitter
        self.failures = 0

    def next(self) -> float:
        """Record a failure, and return the seconds to wait before the next attempt."""
        self.failures += 1
        return pause_before(self.failures, first=self._first, longest=self._longest, jitter=self._jitter)

    def reset(self) -> None:
        """Record a success: the next pause is the first one again."""
        self.failures = 0


class Patience:
    """Backoff that ends after some time without progress.

    Args:
        limit: Seconds without progress after which :meth:`failed` returns None. With 0, the first failure
            is final.
        since: Time from which the limit counts. Default: the first failure.
        first: Maximum pause after the first failure, in seconds. Default 0.05.
        longest: Maximum of all pauses, in seconds. Default 1.

    Example:
        >>> patience = Patience(2.0)
        >>> 0.025 <= patience.failed(now=10.0) <= 0.05
        True
        >>> patience.progressed(now=11.0)
        >>> patience.failed(now=12.9) is None, patience.failed(now=13.0) is None
        (False, True)
    """

    __slots__ = ("_backoff", "_limit", "_since")

    def __init__(
        self,
        limit: float,
        since: float | None = None,
        *,
        first: float = _FIRST,
        longest: float = _LONGEST,
    ) -> None:
        self._limit, self._since = limit, since
        self._backoff = Backoff(first=first, longest=longest)

    def progressed(self, now: float) -> None:
        """Record progress: the limit counts from now, and the next pause is the first one again."""
        self._since = now
        self._backoff.reset()

    def failed(self, now: float) -> float | None:
        """Record a failure; return the seconds to wait before the next attempt, None if the limit is over."""
        if self._since is None:
            self._since = now
        return None if now - self._since >= self._limit else self._backoff.next()
