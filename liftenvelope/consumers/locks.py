"""A lock that is waited for no longer than until a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from liftenvelope._deadlines import Deadline
from liftenvelope.errors import CallTimeoutError

__all__ = ["holding"]


@asynccontextmanager
async def holding(lock: asyncio.Lock, deadline: Deadline, text: str) -> AsyncIterator[None]:
    """Hold a lock while the block runs.

    Args:
        lock: The lock.
        deadline: Deadline of the wait for it.
        text: Text of the error.

    Raises:
        CallTimeoutError: The lock was not free before the deadline.
    """
    try:
        async with asyncio.timeout(deadline.left):
            await lock.acquire()
    except TimeoutError as exc:
        raise CallTimeoutError(text) from exc
    try:
        yield
    finally:
        lock.release()
