"""Bounded queue from a blocked caller's iterable to the event loop.

The iterable runs in the caller's thread, because it may block or call the client. Two wake-ups cross the
threads:

- ``_came`` wakes the loop for an item. Only the loop's thread sets it, through ``post``. The loop sets
  ``_is_hungry`` before it waits, and the caller's thread posts a wake-up only then, or at the end.
- ``_room`` wakes the caller's thread when at most half of ``_LIMIT`` items are left.

Each side clears its flag first and checks the state again before it waits. Otherwise a change between the
check and the clear would be lost, and the side would wait forever.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, Self, TypeVar

__all__ = ["Feed"]

_T = TypeVar("_T")
#: Maximum number of queued items. The caller's thread is woken when half of them have been taken.
_LIMIT: Final = 1024


class Feed(Generic[_T]):
    """Async iterator in the loop over items that :meth:`fill` takes from an iterator in another thread.

    Args:
        items: Iterator of the caller.
        post: Schedules a function call in the loop's thread.
    """

    def __init__(self, items: Iterator[_T], post: Callable[[Callable[[], object]], object]) -> None:
        self._items = items
        self._post = post
        self._there: deque[_T] = deque()
        self._is_over = False
        self._error: Exception | None = None
        # The loop waits on it for an item. Set in the loop's thread only.
        self._came = asyncio.Event()
        self._is_hungry = False
        # The caller's thread waits on it for room.
        self._room = threading.Event()

    def fill(self, until: Callable[[], bool], *, block: bool = True) -> None:
        """Take items until the iterator ends or ``until`` returns True. Call it in the caller's thread.

        Args:
            until: Condition to stop.
            block: True to wait for room if the queue is full, False to return then. Default True.
        """
        while not self._is_over and not until():
            if len(self._there) >= _LIMIT:
                if not block:
                    return
                self._wait_for_room(until)
            elif not self._put_next():
                self._is_over = True
                self._wake()

    def stop_waiting(self) -> None:
        """Wake :meth:`fill` to check its ``until`` condition again."""
        self._room.set()

    def _put_next(self) -> bool:
        try:
            item = next(self._items)
        except StopIteration:
            return False
        except Exception as exc:  # noqa: BLE001 - the caller's own error: raised by __anext__
            self._error = exc
            return False
        self._there.append(item)
        if self._is_hungry:
            self._wake()
        return True

    def _wake(self) -> None:
        self._is_hungry = False
        self._post(self._came.set)

    def _wait_for_room(self, until: Callable[[], bool]) -> None:
        self._room.clear()
        # Checked again, since either may have changed before the flag was cleared.
        if len(self._there) > _LIMIT // 2 and not until():
            self._room.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _T:
        while not self._there:
            self._came.clear()
            self._is_hungry = True
            # Checked again, for the same reason. Read before the queue: the last item is put before _is_over
            # is set.
            over = self._is_over
            if self._there:
                break
            if over:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            await self._came.wait()
        if len(self._there) <= _LIMIT // 2 + 1 and not self._room.is_set():
            self._room.set()
        return self._there.popleft()
