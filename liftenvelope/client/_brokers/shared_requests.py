"""Requests that concurrent callers share: one at a time for each key."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from liftenvelope.client.failures import call_error
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable
    from typing import Any

    from liftenvelope._deadlines import Deadline

__all__ = ["SharedRequests"]

_K = TypeVar("_K", bound="Hashable")
_V = TypeVar("_V")


class SharedRequests(Generic[_K, _V]):
    """Runs one request for each key at a time. It goes on if some or all of its callers give up.

    Args:
        method: Name of the method that is called, for error texts.
    """

    def __init__(self, method: str) -> None:
        self._method = method
        self._running: dict[_K, asyncio.Task[_V]] = {}

    async def result(
        self, key: _K, make: Callable[[], Coroutine[Any, Any, _V]], deadline: Deadline, about: str
    ) -> _V:
        """Return the result of the running request for a key, or of a new one if there is none.

        Args:
            key: The key.
            make: Makes the request.
            deadline: Deadline of the caller.
            about: Subject of the request, for error texts.

        Raises:
            CallTimeoutError: The deadline has passed.
            CallNotProcessedError: The client was closed.
            Exception: The error of the request.
        """
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(make())
            task.add_done_callback(partial(self._ended, key))
        done, _ = await asyncio.wait([task], timeout=deadline.left)
        if not done:
            late = RpcError(StatusCode.DEADLINE_EXCEEDED, f"no answer came within {deadline.timeout:.4g} s")
            raise call_error(self._method, late, about)
        if task.cancelled():
            raise CallNotProcessedError("the client is closed")
        return task.result()

    async def close(self) -> None:
        """Cancel the running requests."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _ended(self, key: _K, task: asyncio.Task[_V]) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the callers raise it, but all may have given up
