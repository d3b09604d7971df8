"""The activity stream of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import liftenvelope
from liftenvelope import Client
from liftenvelope._deadlines import Deadline
from liftenvelope._pb import api_pb2
from liftenvelope.client.activity import (
    Activity,
    ActivityEvent,
    ActivityStream,
    GroupJoined,
    GroupLeft,
    StreamCreated,
    StreamDeleted,
    StreamPaused,
    StreamReadonlySet,
    StreamResumed,
    UnknownActivity,
)
from liftenvelope.errors import NoSuchStreamError, UsageError
from liftenvelope.rpc.blocking import BlockingChannel
from liftenvelope.testing import LiftbridgeCluster, run_liftbridge

from . import test_groups as groups

#: A server that drops no group member because of a short pause.
liftbridge_server = groups.liftbridge_server


@pytest.fixture
async def client(liftbridge_server: LiftbridgeCluster) -> AsyncIterator[Client]:
    async with liftenvelope.connect(liftbridge_server.addresses, ack_wait=60) as client:
        yield client


def is_about(event: ActivityEvent, name: str) -> bool:
    return getattr(event, "stream", getattr(event, "group", None)) == name


async def take(events: ActivityStream, name: str, count: int) -> list[ActivityEvent]:
    """The next events about a stream or group; other tests use the server as well."""
    found: list[ActivityEvent] = []
    async with asyncio.timeout(60):
        async for event in events:
            if is_about(event, name):
                found.append(event)
                if len(found) == count:
                    break
    return found


async def change_everything(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=2)
    await client.set_stream_readonly(name, partitions=[1])
    await client.set_stream_readonly(name, partitions=[1], readonly=False)
    await client.pause_stream(name, partitions=[0], resume_all=True)
    async with client.subscribe(name, resume=True):
        pass
    await client.delete_stream(name)


async def test_streams(client: Client, name: str) -> None:
    async with client.activity() as events:
        await change_everything(client, name)
        found = await take(events, name, 6)
        assert events.position == found[-1].offset + 1
    created, readonly, writable, paused, resumed, deleted = found
    assert isinstance(created, StreamCreated)
    assert created.partitions == (0, 1)
    assert isinstance(readonly, StreamReadonlySet)
    assert (readonly.partitions, readonly.readonly) == ((1,), True)
    assert isinstance(writable, StreamReadonlySet)
    assert writable.readonly is False
    assert isinstance(paused, StreamPaused)
    assert (paused.partitions, paused.resume_all) == ((0,), True)
    assert isinstance(resumed, StreamResumed)
    assert resumed.partitions == (0,)
    assert isinstance(deleted, StreamDeleted)
    assert [event.id for event in found] == sorted({event.id for event in found})
    assert all(event.timestamp_ns > 0 for event in found)


async def test_reading_goes_on_behind_an_event(client: Client, name: str) -> None:
    async with client.activity() as events:
        await change_everything(client, name)
        every = await take(events, name, 6)
    async with client.activity(start=every[2].offset + 1) as events:
        assert await take(events, name, 3) == every[3:]
    async with client.activity(start=every[0].offset, stop=every[4].offset) as events:
        assert [event async for event in events if is_about(event, name)] == every[:5]
        assert events.finished
        assert await events.next() is None


async def test_a_bounded_read_ends(client: Client, name: str) -> None:
    async with client.activity() as events:
        await client.create_stream(name, name)
        (created,) = await take(events, name, 1)
    async with client.activity(start="earliest", stop="latest") as events:
        assert created in [event async for event in events]


async def test_next_waits_no_longer_than_told(client: Client) -> None:
    last = 0
    async with client.activity(start="earliest", stop="latest") as events:
        async for event in events:
            last = event.offset
    async with client.activity(start=last + 1000) as events:
        async with asyncio.timeout(60):
            while await events.next(0.05) is not None:  # the end of what another test has done
                pass
        assert not events.finished


def ask(cluster: LiftbridgeCluster, method: str, request: bytes) -> None:
    with BlockingChannel(cluster.addresses[0]) as channel:
        channel.unary(f"/proto.API/{method}", request, timeout=60)


async def test_groups(client: Client, liftbridge_server: LiftbridgeCluster, name: str) -> None:
    """One consumer leaves, the other falls silent and is dropped."""
    await client.create_stream(name, name)
    group = f"g-{name}"
    async with client.activity() as events:
        for consumer in ("one", "two"):
            join = api_pb2.JoinConsumerGroupRequest(groupId=group, consumerId=consumer, streams=[name])
            await asyncio.to_thread(ask, liftbridge_server, "JoinConsumerGroup", join.SerializeToString())
        leave = api_pb2.LeaveConsumerGroupRequest(groupId=group, consumerId="one")
        await asyncio.to_thread(ask, liftbridge_server, "LeaveConsumerGroup", leave.SerializeToString())
        found = await take(events, group, 4)
    common = [{"id": e.id, "timestamp_ns": e.timestamp_ns, "offset": e.offset} for e in found]
    assert found == [
        GroupJoined(**common[0], group=group, consumer="one", streams=(name,)),
        GroupJoined(**common[1], group=group, consumer="two", streams=(name,)),
        GroupLeft(**common[2], group=group, consumer="one", expired=False),
        GroupLeft(**common[3], group=group, consumer="two", expired=True),
    ]


async def record(client: Client, value: bytes) -> None:
    """Publish to the activity stream: servers take messages for it from anyone."""
    request = api_pb2.PublishRequest(stream="__activity", value=value, ackPolicy=api_pb2.LEADER)
    await client._context.cluster.call(
        "Publish",
        request.SerializeToString(),
        client._context.cluster.leader_of("__activity", 0),
        Deadline(10.0),
        "the activity stream",
    )


async def test_event_that_the_server_records_twice_comes_once(client: Client, name: str) -> None:
    """Liftbridge did so once in this file, on a busy machine: the copies had offsets 3 and 4, and one id."""
    op = api_pb2.DeleteStreamOp(stream=name)
    event = api_pb2.ActivityStreamEvent(id=1_000_000, op=api_pb2.DELETE_STREAM, deleteStreamOp=op)
    async with client.activity() as events:
        for number in (1_000_000, 1_000_000, 1_000_001, 1_000_002, 1_000_002):
            event.id = number
            await record(client, event.SerializeToString())
        first, second = await take(events, name, 2)
        third = await events.next(60)
        while third is not None and not is_about(third, name):  # the end of what another test has begun
            third = await events.next(60)
        assert third is not None
        assert (first.id, second.id, third.id) == (1_000_000, 1_000_001, 1_000_002)
        assert second.offset >= first.offset + 2
        assert events.position == third.offset + 1
        later = await events.next(0.05)
        assert later is None or not is_about(later, name)


@pytest.mark.parametrize("stored", [False, True], ids=["event", "id_and_offset"])
async def test_start_after_an_event_leaves_out_its_copies(client: Client, name: str, stored: bool) -> None:
    op = api_pb2.DeleteStreamOp(stream=name)
    event = api_pb2.ActivityStreamEvent(id=2_000_000, op=api_pb2.DELETE_STREAM, deleteStreamOp=op)
    async with client.activity() as events:
        await record(client, event.SerializeToString())
        (last,) = await take(events, name, 1)
    # The copy, then another event: the server made no record of its own in between that has this id.
    await record(client, event.SerializeToString())
    event.id += 1
    await record(client, event.SerializeToString())
    start = Activity(id=last.id, offset=last.offset, timestamp_ns=0) if stored else last
    async with client.activity(start=start) as events:
        (after,) = await take(events, name, 1)
    assert (after.id, after.offset > last.offset + 1) == (2_000_001, True)


async def test_start_after_a_message_that_is_no_event(client: Client, name: str) -> None:
    """Such messages have id 0; only the offset counts."""
    value = name.encode()
    async with client.activity() as events:
        for _ in range(2):
            await record(client, b"\xff" + value)
            await record(client, b"\xfe" + value)
        async with asyncio.timeout(60):
            first = await anext(events)
            while not (isinstance(first, UnknownActivity) and first.value == b"\xff" + value):
                first = await anext(events)
    found: list[bytes] = []
    async with client.activity(start=first) as events, asyncio.timeout(60):
        while len(found) < 3:
            event = await anext(events)
            if isinstance(event, UnknownActivity):
                found.append(event.value)
    assert found == [b"\xfe" + value, b"\xff" + value, b"\xfe" + value]


async def test_what_others_publish_there_does_not_stop_it(client: Client, name: str) -> None:
    async with client.activity() as events:
        await record(client, b"\xff no event")
        await client.create_stream(name, name)
        async with asyncio.timeout(60):
            foreign = await anext(events)
            while not isinstance(foreign, UnknownActivity):  # the end of what another test has begun
                foreign = await anext(events)
        (created,) = await take(events, name, 1)
    assert (foreign.op, foreign.value) == (None, b"\xff no event")
    assert created.offset > foreign.offset


async def test_arguments(client: Client) -> None:
    with pytest.raises(UsageError, match=r"start must be .*, got 'yesterday'"):
        client.activity(start="yesterday")
    with pytest.raises(UsageError, match="stop must be at least 0, got -1"):
        client.activity(stop=-1)


async def test_closing_twice_is_fine(client: Client) -> None:
    events = client.activity()
    await events.open()
    await events.close()
    await events.close()
    assert [event async for event in events] == []


async def test_a_server_that_keeps_none() -> None:
    with run_liftbridge(config={"activity.stream.enabled": False}) as cluster:
        async with liftenvelope.connect(cluster.addresses, ack_wait=60) as client:
            with pytest.raises(NoSuchStreamError, match=r"activity\.stream\.enabled"):
                await client.activity().open()
