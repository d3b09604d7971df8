"""The activity stream: what is done is told, in order, and can be gone on with."""

from __future__ import annotations

import asyncio
from typing import Any

from liftenvelope.client import Client
from liftenvelope.client.activity import (
    ActivityEvent,
    GroupJoined,
    GroupLeft,
    StreamCreated,
    StreamDeleted,
    StreamPaused,
    StreamReadonlySet,
    StreamResumed,
)
from tests.conformance.actions import PATIENCE, fill


async def events_about(events: Any, name: str, count: int) -> list[ActivityEvent]:
    """Return the next so many events that are about a stream or group; other tests make events as well."""
    found: list[ActivityEvent] = []
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            if name in (getattr(event, "stream", None), getattr(event, "group", None)):
                found.append(event)
                if len(found) == count:
                    break
    return found


async def test_what_happens_to_a_stream(client: Client, name: str) -> None:
    async with client.activity() as events:
        await client.create_stream(name, name, partitions=2)
        await client.pause_stream(name, partitions=[1], resume_all=True)
        await fill(client, name, [b"wake"], partition=1)
        await client.set_stream_readonly(name, partitions=[0])
        await client.set_stream_readonly(name, partitions=[0], readonly=False)
        await client.delete_stream(name)
        found = await events_about(events, name, 6)
    created, paused, resumed, readonly, writable, deleted = found
    assert isinstance(created, StreamCreated)
    assert created.partitions == (0, 1)
    assert isinstance(paused, StreamPaused)
    assert (paused.partitions, paused.resume_all) == ((1,), True)
    assert isinstance(resumed, StreamResumed)
    assert resumed.partitions == (1,)
    assert isinstance(readonly, StreamReadonlySet)
    assert (readonly.partitions, readonly.readonly) == ((0,), True)
    assert isinstance(writable, StreamReadonlySet)
    assert (writable.partitions, writable.readonly) == ((0,), False)
    assert isinstance(deleted, StreamDeleted)
    assert [event.id for event in found] == sorted({event.id for event in found})
    assert [event.offset for event in found] == sorted({event.offset for event in found})
    assert all(event.timestamp_ns > 0 for event in found)


async def test_what_happens_to_a_group(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    async with client.activity() as events:
        async with client.consumer(name, [name], consumer_id="one"):
            pass
        joined, left = [
            e for e in await events_about(events, name, 2) if isinstance(e, GroupJoined | GroupLeft)
        ]
    assert isinstance(joined, GroupJoined)
    assert (joined.consumer, joined.streams) == ("one", (name,))
    assert isinstance(left, GroupLeft)
    assert (left.consumer, left.expired) == ("one", False)


async def test_going_on_behind_an_event(client: Client, name: str) -> None:
    async with client.activity() as events:
        await client.create_stream(name, name)
        created = (await events_about(events, name, 1))[0]
    await client.delete_stream(name)
    async with client.activity(start=created.offset + 1) as events:
        assert isinstance((await events_about(events, name, 1))[0], StreamDeleted)


async def test_all_there_is_so_far(client: Client, name: str) -> None:
    async with client.activity() as events:
        await client.create_stream(name, name)
        await events_about(events, name, 1)
    async with client.activity(start="earliest", stop="latest") as events:
        found = [event async for event in events]
        assert events.finished
    assert [e for e in found if isinstance(e, StreamCreated) and e.stream == name]
    assert [event.offset for event in found] == list(range(found[0].offset, found[0].offset + len(found)))
