"""Bounded concurrency of a coordinator's lookups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

__all__ = ["at_once"]

_T = TypeVar("_T")
#: Items of one call that run concurrently.
_AT_ONCE: Final = 32


async def at_once(work: list[Callable[[], Awaitable[_T]]]) -> list[_T]:
    """Run work concurrently, a few items at a time; when all are done, raise the first failure."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(do: Callable[[], Awaitable[_T]]) -> _T:
        async with room:
            return await do()

    tasks = [asyncio.ensure_future(one(do)) for do in work]
    try:
        if tasks:
            await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()  # no effect, except when this call was cancelled
    return [task.result() for task in tasks]
