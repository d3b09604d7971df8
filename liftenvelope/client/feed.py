"""Items from a waiting thread's iterable, for the event loop that it waits for.

The iterable is asked in the thread of the caller, where it belongs: it may block, or call the client.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, Self, TypeVar

__all__ = ["Feed"]

_T = TypeVar("_T")
#: How many items may wait in between. The thread is woken when half of them have been taken.
_LIMIT: Final = 1024


class Feed(Generic[_T]):
    """An async iterator in the loop over what :meth:`fill` takes from an iterator in another thread.

    Args:
        items: What to take.
        post: Has a function called in the loop's thread.
    """

    def __init__(self, items: Iterator[_T], post: Callable[[Callable[[], object]], object]) -> None:
        self._items = items
        self._post = post
        self._there: deque[_T] = deque()
        self._is_over = False
        self._error: Exception | None = None
        # The loop waits for an item; it is set in its thread alone.
        self._came = asyncio.Event()
        self._is_hungry = False
        # The thread waits for room.
        self._room = threading.Event()

    def fill(self, until: Callable[[], bool], *, block: bool = True) -> None:
        """Take items until there are no more, or something is true. To be called in the caller's thread.

        Args:
            until: When to stop.
            block: Whether to wait where too many items are there; otherwise it returns then.
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
        """Have :meth:`fill` look again whether to stop."""
        self._room.set()

    def _put_next(self) -> bool:
        try:
            item = next(self._items)
        except StopIteration:
            return False
        except Exception as exc:  # noqa: BLE001 - the caller's own: raised where the items are taken
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
        # Looked at again, since either may have changed before the flag was cleared.
        if len(self._there) > _LIMIT // 2 and not until():
            self._room.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _T:
        while not self._there:
            self._came.clear()
            self._is_hungry = True
            # Looked at again, for the same reason. What was put last was put before it was over.
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
