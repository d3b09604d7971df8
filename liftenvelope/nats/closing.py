"""Closes nats-py connections, whatever state they are in."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["close_connection"]


async def close_connection(nc: Client) -> None:
    """Close a nats-py connection, also one that is lost, reconnecting or not yet connected.

    ``Client.close`` can then fail with errors that say nothing to the caller:

    - It flushes pending data even on a lost connection: OSError. Since Python 3.12, asyncio raises TypeError
      when data is written to a closed transport (python/cpython issue 136234).
    - It asserts that ``connect`` has checked its options: AssertionError.
    - It cancels its reconnection, which may be waiting for the end of the old transport. That cancels the
      future on which ``close`` waits next: CancelledError, in a task that nobody has cancelled.

    Args:
        nc: The connection. Closing twice is fine.

    Raises:
        asyncio.CancelledError: The calling task was cancelled.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    with suppress(OSError, TypeError, AssertionError):
        try:
            await nc.close()
        except asyncio.CancelledError:
            if task.cancelling() > cancelled:
                raise
