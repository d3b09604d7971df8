"""Parts that both samplers share: the clock, turns of single reads, and faults of parts of a sample."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, TypeVar

from liftenvelope._secrets import without_secrets
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.monitor._snapshots import SampleFault

__all__ = ["RoundRobin", "each", "fault_of", "steady_clock"]

_Item = TypeVar("_Item")
_Read = TypeVar("_Read")
#: Characters of a fault's text: servers write some of it.
_LONGEST: Final = 500


def steady_clock() -> Callable[[], float]:
    """Return a clock of seconds since 1970 that runs on when the system's clock is set.

    Rates divide by times, so a time must never go back.
    """
    start = time.time() - time.monotonic()
    return lambda: start + time.monotonic()


def fault_of(part: str, error: LiftEnvelopeError, others: int = 0) -> SampleFault:
    """Return the fault for a part of a sample, without passwords and tokens.

    Args:
        part: Name of the part.
        error: Error of a read, which the text tells.
        others: Number of further reads that failed.
    """
    text = without_secrets(str(error) or type(error).__name__)[:_LONGEST]
    return SampleFault(part, f"{text} (and {others} more)" if others else text)


class RoundRobin:
    """Chooses what to read singly in a sample, so that everything has its turn. Sans-io.

    Example:
        >>> turns = RoundRobin()
        >>> turns.take(["a", "b", "c"], 2), turns.take(["a", "b", "c"], 2)
        (['a', 'b'], ['c', 'a'])
        >>> turns.take(["a", "b", "c"], 2, first=["c"])
        ['c', 'b']
    """

    def __init__(self) -> None:
        self._place = 0

    def take(self, items: Iterable[_Item], limit: int, *, first: Collection[_Item] = ()) -> list[_Item]:
        """Return the items to read now: those of ``first``, then the next ones in turn."""
        found = list(items)
        chosen = [item for item in found if item in first][:limit] if first else []
        if len(found) <= limit:
            self._place = 0
            return found
        place = self._place % len(found)
        for item in found[place:] + found[:place]:
            if len(chosen) >= limit:
                break
            self._place += 1
            if item not in first:
                chosen.append(item)
        return chosen


async def each(
    items: Iterable[_Item], read: Callable[[_Item], Awaitable[_Read]], at_once: int
) -> list[_Read | LiftEnvelopeError]:
    """Call ``read`` for each item, several at once; return the results, or the errors, in order."""
    slots = asyncio.Semaphore(at_once)

    async def one(item: _Item) -> _Read | LiftEnvelopeError:
        async with slots:
            try:
                return await read(item)
            except LiftEnvelopeError as exc:
                return exc

    return await asyncio.gather(*map(one, items))
