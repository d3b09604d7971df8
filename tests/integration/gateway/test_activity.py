"""The activity stream: each event once, in order, whatever JetStream does in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from liftenvelope._pb import api_pb2
from liftenvelope.gateway._cluster.activity import (
    ActivityLog,
    created,
    deleted,
    paused,
    readonly_set,
    resumed,
)
from liftenvelope.gateway._cluster.records import PartitionRecord, StreamRecord
from liftenvelope.jetstream.context import JetStream
from liftenvelope.jetstream.stream_config import StreamConfig
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import connect

Event = api_pb2.ActivityStreamEvent


@pytest.fixture
async def js(jetstream_server: NatsServer) -> AsyncIterator[JetStream]:
    async with JetStream(await connect(jetstream_server.url)) as context:
        yield context


def own_record(name: str) -> StreamRecord:
    """The record of an activity stream of the test's own."""
    return StreamRecord(name=name, subject=name, id="1")


async def make(js: JetStream, name: str) -> StreamRecord:
    record = own_record(name)
    await js.create_stream(StreamConfig(name=record.stream_of(0), subjects=(name,)))
    return record


def made(name: str, partitions: int = 1) -> StreamRecord:
    return StreamRecord(name=name, subject=name, id=name, partitions=(PartitionRecord(),) * partitions)


def tell(log: ActivityLog, *events: Event) -> None:
    log.tell("", [log.recorded(event) for event in events])


async def stored(js: JetStream, name: str, count: int) -> list[Event]:
    """Wait for so many events, and return all."""
    stream = await js.stream(own_record(name).stream_of(0))
    async with asyncio.timeout(60):
        while (last := (await stream.info()).state.last_seq) < count:
            await asyncio.sleep(0.01)
    found = [await stream.get_message(number) for number in range(1, last + 1)]
    return [Event.FromString(message.data) for message in found]


async def test_every_kind_of_event(js: JetStream, name: str) -> None:
    log = ActivityLog(js, await make(js, name))
    await log.start()
    stream = made("orders", 2)
    happened = [created(stream), paused("orders", [1], True), resumed("orders", [1])]
    tell(log, *happened, readonly_set("orders", [0], True))
    log.group_joined("g", "one", ["orders"])
    log.group_left("g", "one", expired=True)
    tell(log, deleted("orders"))
    found = await stored(js, name, 7)
    await log.close()
    assert [event.id for event in found] == [1, 2, 3, 4, 5, 6, 7]
    expected = [
        Event(
            op=api_pb2.CREATE_STREAM,
            createStreamOp=api_pb2.CreateStreamOp(stream="orders", partitions=[0, 1]),
        ),
        Event(
            op=api_pb2.PAUSE_STREAM,
            pauseStreamOp=api_pb2.PauseStreamOp(stream="orders", partitions=[1], resumeAll=True),
        ),
        Event(
            op=api_pb2.RESUME_STREAM,
            resumeStreamOp=api_pb2.ResumeStreamOp(stream="orders", partitions=[1]),
        ),
        Event(
            op=api_pb2.SET_STREAM_READONLY,
            setStreamReadonlyOp=api_pb2.SetStreamReadonlyOp(stream="orders", partitions=[0], readonly=True),
        ),
        Event(
            op=api_pb2.JOIN_CONSUMER_GROUP,
            joinConsumerGroupOp=api_pb2.JoinConsumerGroupOp(
                groupId="g", consumerId="one", streams=["orders"]
            ),
        ),
        Event(
            op=api_pb2.LEAVE_CONSUMER_GROUP,
            leaveConsumerGroupOp=api_pb2.LeaveConsumerGroupOp(groupId="g", consumerId="one", expired=True),
        ),
        Event(op=api_pb2.DELETE_STREAM, deleteStreamOp=api_pb2.DeleteStreamOp(stream="orders")),
    ]
    for number, event in enumerate(expected, 1):
        event.id = number
    assert found == expected


async def test_gateways_that_publish_at_once_get_ids_of_their_own(js: JetStream, name: str) -> None:
    record = await make(js, name)
    logs = [ActivityLog(js, record) for _ in range(3)]
    for log in logs:
        await log.start()
    for number in range(30):
        for place, log in enumerate(logs):
            tell(log, created(made(f"{place}-{number}")))
    found = await stored(js, name, 90)
    for log in logs:
        await log.close()
    assert [event.id for event in found] == list(range(1, 91))
    for place in range(3):
        own = [e.createStreamOp.stream for e in found if e.createStreamOp.stream.startswith(f"{place}-")]
        assert own == [f"{place}-{number}" for number in range(30)]


async def test_what_waits_is_published_when_the_log_is_closed(js: JetStream, name: str) -> None:
    log = ActivityLog(js, await make(js, name))
    await log.start()
    for number in range(20):
        tell(log, created(made(str(number))))
    await log.close(timeout=30)
    found = await stored(js, name, 20)
    assert [event.createStreamOp.stream for event in found] == list(map(str, range(20)))
    await log.close()


async def test_the_nats_server_is_killed_meanwhile(name: str) -> None:
    with run_nats_server(jetstream=True) as server:
        client = await connect(server.url)
        async with JetStream(client) as js, JetStream(client, timeout=1.0) as hasty:
            log = ActivityLog(hasty, await make(js, name))
            await log.start()
            tell(log, created(made("before")))
            await stored(js, name, 1)
            server.kill()
            for number in range(10):
                tell(log, created(made(str(number))))
            server.start()
            async with asyncio.timeout(60):
                while not client.stats["reconnects"] or not client.is_connected:
                    await asyncio.sleep(0.01)
            found = await stored(js, name, 11)
            await log.close()
        await client.close()
    assert [e.createStreamOp.stream for e in found] == ["before", *map(str, range(10))]
    assert [event.id for event in found] == list(range(1, 12))


async def test_without_a_stream_events_wait_and_the_oldest_go(
    js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("liftenvelope.gateway._cluster.activity._MOST_WAITING", 5)
    log = ActivityLog(js, own_record(name))
    for number in range(8):
        tell(log, created(made(str(number))))
    assert log.dropped == 3
    await log.start()
    async with asyncio.timeout(60):
        while "could not store an event" not in caplog.text:
            await asyncio.sleep(0.01)
    await make(js, name)
    found = await stored(js, name, 5)
    await log.close()
    assert [event.createStreamOp.stream for event in found] == ["3", "4", "5", "6", "7"]
