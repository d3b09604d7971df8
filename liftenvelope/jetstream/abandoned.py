"""Removes what an abandoned request may still create.

nats-server executes the requests of one connection concurrently. So a request to delete that is sent before
the answer to the request to create may overtake it, and what is created then stays.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from liftenvelope.errors import CallTimeoutError, LiftEnvelopeError, TransportError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

__all__ = ["created_or_removed", "in_background"]

_T = TypeVar("_T")
#: Removals in progress. The event loop holds only weak references to tasks.
_removing: Final[set[asyncio.Task[None]]] = set()


async def created_or_removed(
    creating: Coroutine[Any, Any, _T], remove: Callable[[], Awaitable[object]]
) -> _T:
    """Await a request to create something. If its outcome is unknown, remove what it creates.

    Args:
        creating: The request.
        remove: Sends the request to delete, in the background, once ``creating`` has ended. Its errors are
            ignored, because no caller waits any more.

    Returns:
        The result of ``creating``.

    Raises:
        CancelledError: The caller was cancelled. ``creating`` is not.
        LiftEnvelopeError: The error of ``creating``.
    """
    task = asyncio.ensure_future(creating)
    try:
        return await asyncio.shield(task)
    except (asyncio.CancelledError, CallTimeoutError, TransportError):
        in_background(_remove(task, remove))
        raise


async def _remove(creating: asyncio.Future[Any], remove: Callable[[], Awaitable[object]]) -> None:
    await asyncio.wait([creating])
    if not creating.cancelled():
        creating.exception()  # retrieved, because the caller may have been cancelled
    try:
        await remove()
    except LiftEnvelopeError:
        return


def in_background(removing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run a removal in a task of its own, and return the task. It need not be awaited."""
    task = asyncio.get_running_loop().create_task(removing)
    _removing.add(task)
    task.add_done_callback(_removing.discard)
    return task
