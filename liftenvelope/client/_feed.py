"""Bounded queue from a blocked caller's iterable to the event loop.

The iterable runs in the caller's thread, because it may block or call the client. Two wake-ups cross the
threads:

- ``_came`` wakes the loop for an item or the end. The loop sets ``_is_hungry`` before it waits, and the
  caller's thread posts a wake-up only then.
- ``_room`` wakes the caller's thread when at most half of ``_LIMIT`` items are left.

Each side announces its wait first and then checks the state again. Otherwise a change between the check and
the announcement would be lost, and the side would wait forever.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, Self, TypeVar

__all__ = ["LOOK_UP", "Feed"]

_T = TypeVar("_T")
#: Maximum number of queued items. The caller's thread is woken when half of them have been taken.
_LIMIT: Final = 1024
#: Longest time in seconds that a waiting thread sleeps before it checks for signals.
LOOK_UP: Final = 0.5


class Feed(Generic[_T]):
    """Async iterator in the loop over items that :meth:`fill` takes from an iterator in another thread.

    Args:
        items: Iterator of the caller.
        post: Schedules a function call in the loop's thread.
    """

    def __init__(self, items: Iterator[_T], post: Callable[[Callable[[], object]], object]) -> None:
        self._items = items
        self._post = post
        self._queue: deque[_T] = deque()
        # Set behind the last item: StopAsyncIteration, or the error of the iterator.
        self._end: Exception | None = None
        self._is_hungry = False
        self._came = asyncio.Event()
        self._room = threading.Event()

    def fill(self, until: Callable[[], bool]) -> None:
        """Take items until the iterator ends or ``until`` returns True. Call it in the caller's thread."""
        while self._end is None and not until():
            if len(self._queue) < _LIMIT:
                self._put_next()
                continue
            self._room.clear()
            if len(self._queue) > _LIMIT // 2 and not until():
                # Not for ever: a signal that arrives just before the wait does not interrupt it.
                self._room.wait(LOOK_UP)

    def stop_waiting(self) -> None:
        """Wake :meth:`fill` to check its ``until`` condition again."""
        self._room.set()

    def _put_next(self) -> None:
        try:
            self._queue.append(next(self._items))
        except StopIteration:
            self._end = StopAsyncIteration()
        except Exception as exc:  # noqa: BLE001 - the caller's own error: raised by __anext__
            self._end = exc
        if self._is_hungry:
            self._is_hungry = False
            self._post(self._came.set)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _T:
        while not self._queue:
            self._came.clear()
            self._is_hungry = True
            end = self._end  # read before the queue: the last item is put before the end is set
            if self._queue:
                break
            if end is not None:
                raise end
            await self._came.wait()
        if len(self._queue) <= _LIMIT // 2 + 1 and not self._room.is_set():
            self._room.set()
        return self._queue.popleft()
