"""Time-out of publish_many, on scripted brokers that do not ack: it counts from when a message is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from liftenvelope._deadlines import Deadline
from liftenvelope.client._publish_many import OutgoingMessage, PublishMany
from liftenvelope.client._sending.publish_stream import PublishStreams
from liftenvelope.client.client import Client
from liftenvelope.errors import CallTimeoutError
from tests.unit.scripted_broker import client_of, scripted

pytestmark = pytest.mark.usefixtures("loop_errors")

TIMEOUT = 60.0
PARTITIONS = 3


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with scripted() as (broker,):
        for partition in range(PARTITIONS):
            broker.log(0, partition=partition)
        async with client_of([broker]) as client:
            yield client


def one_for_each_partition() -> list[OutgoingMessage]:
    return [OutgoingMessage(value=b"v", partition=partition) for partition in range(PARTITIONS)]


async def test_streams_to_all_partitions_are_sought_at_the_same_time(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    all_have_asked = asyncio.Event()

    async def time_out(_: Any, info: Any, partition: int, deadline: Any) -> None:
        asked.append(deadline.left)
        if len(asked) == PARTITIONS:
            all_have_asked.set()
        await all_have_asked.wait()
        raise CallTimeoutError("no answer came")

    monkeypatch.setattr(PublishStreams, "pin", time_out)
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(CallTimeoutError) as info:
            await client.publish_many("foo", one_for_each_partition(), on_error="collect", timeout=5)
    assert info.value.summary is not None
    assert len(info.value.summary.failures) == PARTITIONS


@pytest.mark.parametrize("is_async", [False, True])
async def test_time_to_find_a_stream_counts(
    client: Client, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    delay, left = 0.3, list[float]()
    pin, submit = PublishStreams.pin, PublishStreams.submit

    async def pin_late(streams: Any, info: Any, partition: int, deadline: Any) -> Any:
        await asyncio.sleep(delay)
        return await pin(streams, info, partition, deadline)

    def record(streams: Any, lane: Any, entries: Any, timeout: float) -> None:
        left.append(timeout)
        submit(streams, lane, entries, 0.05)  # the broker never acks

    async def items() -> AsyncIterator[OutgoingMessage]:
        for item in one_for_each_partition():
            yield item

    monkeypatch.setattr(PublishStreams, "pin", pin_late)
    monkeypatch.setattr(PublishStreams, "submit", record)
    messages = items() if is_async else one_for_each_partition()
    async with asyncio.timeout(TIMEOUT):
        await client.publish_many("foo", messages, on_error="collect", timeout=TIMEOUT)
    assert len(left) == PARTITIONS
    assert max(left) <= TIMEOUT - delay + 0.01  # resolution of the clock


async def test_messages_taken_later_have_a_deadline_of_their_own(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: set[Deadline] = set()
    submitted = asyncio.Event()
    submit = PublishMany._submit

    def record(publish: Any, lane: Any, batches: Any) -> None:
        deadlines.update(batches)
        submit(publish, lane, batches)  # the broker refuses the messages
        submitted.set()

    async def items() -> AsyncIterator[bytes]:
        yield b"first"
        await submitted.wait()
        await asyncio.sleep(0.1)  # messages taken within 10 ms share a deadline
        yield b"second"

    monkeypatch.setattr(PublishMany, "_submit", record)
    async with asyncio.timeout(TIMEOUT):
        await client.publish_many("foo", items(), on_error="collect", timeout=TIMEOUT)
    assert len(deadlines) == 2
