"""Starts background tasks of asyncio, and ends tasks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from logging import Logger

__all__ = ["background", "cancel"]


def background(work: Coroutine[Any, Any, None], *, name: str, log: Logger) -> asyncio.Task[None]:
    """Start a task that runs until it is cancelled, and log a defect that ends it before.

    Its owner does not await it before it closes, and would drop the defect then.

    Args:
        work: The work.
        name: Name of the task, for the log.
        log: Logger of the owner.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (defect := task.exception()) is not None:
            log.error("the background task '%s' ended with a defect", name, exc_info=defect)

    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(ended)
    return task


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end, except for the current task: callbacks may call ``close``."""
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
