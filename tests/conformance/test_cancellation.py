"""Calls that are cancelled at any step leave nothing behind, and no other call waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import repeat
from typing import Any, TypeAlias
from uuid import uuid4

import pytest

import liftenvelope
from liftenvelope.client import Client, ClientEvent
from tests.conformance.actions import PATIENCE, eventually, new_stream
from tests.conformance.conftest import Server

Work: TypeAlias = Callable[[Client, str, asyncio.Event], Awaitable[object]]

#: How many turns of the loop pass before the cancellation. All waits of what is cancelled are in there.
TURNS = range(1, 13)


async def subscribe(client: Client, name: str, begun: asyncio.Event, **options: Any) -> None:
    async with client.subscribe(name, start="earliest", **options) as messages:
        async for _ in messages:
            begun.set()


async def merge(client: Client, name: str, begun: asyncio.Event) -> None:
    await subscribe(client, name, begun, partitions="all")


async def consume(client: Client, name: str, begun: asyncio.Event) -> None:
    group = f"{name}-{uuid4().hex[:8]}"  # a group that is there has a cursor, maybe after the last message
    async with client.consumer(group, [name], auto_offset="earliest") as consumer:
        async for _ in consumer:
            begun.set()


async def checkpoint(client: Client, name: str, begun: asyncio.Event) -> None:
    async with client.checkpointer(name, name) as checkpoints:
        checkpoints.processed(0, 1)
        await subscribe(client, name, begun)


async def publish_endlessly(client: Client, name: str, begun: asyncio.Event) -> None:
    def values() -> Iterator[bytes]:
        begun.set()
        yield from repeat(b"x")

    await client.publish_many(name, values(), partition=1)


async def publish_some(client: Client, name: str, begun: asyncio.Event) -> None:
    futures = [await client.publish_async(name, b"x", partition=1) for _ in range(100)]
    begun.set()
    await asyncio.gather(*futures, return_exceptions=True)


WORK: list[Work] = [subscribe, merge, consume, checkpoint, publish_endlessly, publish_some]


async def begin(work: Work, client: Client, name: str, events: list[ClientEvent]) -> asyncio.Task[object]:
    begun = asyncio.Event()
    task = asyncio.ensure_future(work(client, name, begun))
    try:
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
    except TimeoutError:
        pytest.fail(f"nothing has begun; events of the client: {events}")
    return task


async def cancel_after(task: asyncio.Task[Any], turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait([task])


async def none_left(before: set[asyncio.Task[Any]]) -> None:
    async def ended() -> bool:
        return asyncio.all_tasks() - before == {asyncio.current_task()} - before

    await eventually(ended)


@pytest.mark.parametrize("work", WORK)
async def test_closing_the_client(server: Server, client: Client, name: str, work: Work) -> None:
    await new_stream(client, name, 5, partitions=2)
    before = asyncio.all_tasks()
    for turns in TURNS:
        events: list[ClientEvent] = []
        other = await liftenvelope.connect(server.addresses, on_event=events.append)
        working = await begin(work, other, name, events)
        await cancel_after(asyncio.ensure_future(other.close()), turns)
        async with asyncio.timeout(PATIENCE):  # who works is told, though the close was given up
            await asyncio.wait([working])
            await other.close()
        await none_left(before)
        if not working.cancelled():
            working.exception()


@pytest.mark.parametrize("work", WORK)
async def test_twice(server: Server, client: Client, name: str, work: Work) -> None:
    # The second one comes while the first one is still being heeded.
    await new_stream(client, name, 5, partitions=2)
    before = asyncio.all_tasks()
    for turns in TURNS:
        events: list[ClientEvent] = []
        async with liftenvelope.connect(server.addresses, on_event=events.append) as other:
            working = await begin(work, other, name, events)
            working.cancel()
            await cancel_after(working, turns)
            assert working.cancelled() or working.exception() is None
            assert await other.publish(name, b"still works", partition=1)
        await none_left(before)
