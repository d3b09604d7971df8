"""Checks of the awaitables of queues, which are the same for each queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

#: Makes a queue whose waits are those of a function.
MakeQueue = Callable[[Callable[[], Awaitable[Any]]], Any]


async def check_default_is_for_the_end_and_not_for_a_wait(queue_of: MakeQueue) -> None:
    """Check an empty queue."""
    go_on = asyncio.Event()

    async def wait() -> str:
        await go_on.wait()
        return "waited"

    waiting = asyncio.ensure_future(anext(queue_of(wait), "the end"))
    await asyncio.sleep(0)
    go_on.set()
    assert await asyncio.wait_for(waiting, 60) == "waited"


async def check_next_item_can_be_a_task(
    queue_of: MakeQueue, items: list[Any], value: Callable[[Any], Any]
) -> None:
    """Check a queue of two items.

    Args:
        queue_of: Makes the queue, which holds the items.
        items: Values of the items.
        value: Returns the value of an item.
    """
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        begun.set()
        await go_on.wait()
        return "waited"

    queue = queue_of(wait)
    assert isinstance(anext(queue), Coroutine)
    with pytest.raises(ValueError, match="before the start"):
        anext(queue).throw(ValueError("before the start"))
    anext(queue).close()
    cancelled = asyncio.create_task(anext(queue))
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert cancelled.cancelled()
    assert value(await asyncio.create_task(anext(queue))) == items[0]
    with pytest.raises(StopIteration) as caught:
        anext(queue).send(None)
    assert value(caught.value.value) == items[1]
    cancelled = asyncio.create_task(anext(queue))
    await begun.wait()
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert cancelled.cancelled()
    waiting = asyncio.create_task(anext(queue))
    await asyncio.sleep(0)
    go_on.set()
    assert await asyncio.wait_for(waiting, 60) == "waited"
    step = anext(queue)
    with pytest.raises(StopIteration, match="waited"):
        step.send(None)
    step.close()
