"""Closes nats-py connections, whatever state they are in."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.nats.link import mark_reconnecting

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["close_connection"]

#: Seconds in which a cancelled task of nats-py ends, unless the cancellation was lost.
_ENDED: Final = 0.1


async def close_connection(nc: Client) -> None:
    """Close a nats-py connection, also one that is lost, reconnecting or not yet connected.

    ``Client.close`` can then fail with errors that say nothing to the caller:

    - It flushes pending data even on a lost connection: OSError. Since Python 3.12, asyncio raises TypeError
      when data is written to a closed transport (python/cpython issue 136234); uvloop raises RuntimeError.
    - It asserts that ``connect`` has checked its options: AssertionError.
    - It cancels its reconnection, which may be waiting for the end of the old transport. That cancels the
      future on which ``close`` waits next: CancelledError, in a task that nobody has cancelled.

    Or a reconnection goes on after it, for good: ``asyncio.wait_for`` of Python 3.11 forgets a cancellation
    that comes with the result, and nats-py forgets a reconnection that it has cancelled.

    Args:
        nc: The connection. Closing twice is fine.

    Raises:
        asyncio.CancelledError: The calling task was cancelled.
    """
    await _close(nc)
    while (reconnections := await _reconnections(nc)) or not nc.is_closed:
        for one in reconnections:
            one.cancel()
        mark_reconnecting(nc)  # otherwise the next close leaves open what they have opened
        await _close(nc)


async def _close(nc: Client) -> None:
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    with suppress(OSError, TypeError, AssertionError, RuntimeError):
        try:
            await nc.close()
        except asyncio.CancelledError:
            if task.cancelling() > cancelled:
                raise


async def _reconnections(nc: Client) -> set[asyncio.Task[Any]]:
    """Return the reconnections of a closed connection that do not end."""
    found = {task for task in asyncio.all_tasks() if _reconnects(task, nc)} - {asyncio.current_task()}
    return (await asyncio.wait(found, timeout=_ENDED))[1] if found else set()


def _reconnects(task: asyncio.Task[Any], nc: Client) -> bool:
    coroutine = task.get_coro()
    frame = getattr(coroutine, "cr_frame", None)
    is_reconnection = getattr(coroutine, "__name__", "") == "_attempt_reconnect"
    return is_reconnection and frame is not None and frame.f_locals.get("self") is nc
