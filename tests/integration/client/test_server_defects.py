"""The client hides defects of Liftbridge servers in reads of old messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client import Client
from liftenvelope.client._reading.async_start_lookup import AsyncStartLookup
from liftenvelope.client.start_lookup import StartLookup
from liftenvelope.envelope import Ack
from liftenvelope.testing import LiftbridgeCluster, run_liftbridge
from tests.cleaner_clock import MARGIN, CleanerClock


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiftbridgeCluster]:
    """A node of its own: one that rolls a segment while it cleans may die, see cleaner_clock.py."""
    with run_liftbridge() as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: LiftbridgeCluster) -> AsyncIterator[Client]:
    async with liftenvelope.connect(cluster.addresses, ack_wait=60) as client:
        yield client


async def until_times_are_lost(client: Client, stream: str, *, empty: bool) -> None:
    """Wait until the server takes the beginning of time for the end of the log; or has removed all of it."""
    lookup = StartLookup(stream, 0)
    async with asyncio.timeout(60):
        while True:
            shell = AsyncStartLookup(client._context.cluster, stream, 0, client._context.deadline(None))
            newest = (await client.fetch_partition_metadata(stream)).newest_offset
            first = await shell.run(lookup.resolve(api_pb2.TIMESTAMP, 0))
            are_lost = first is not None and first > newest
            if are_lost and (await shell.run(lookup.peek(0, newest)) is None) == empty:
                return
            await asyncio.sleep(0.1)


async def offsets(client: Client, stream: str, **options: object) -> list[int]:
    async with asyncio.timeout(60), client.subscribe(stream, **options) as messages:  # type: ignore[call-overload]
        return [message.offset async for message in messages]


async def publish(client: Client, cleaner: CleanerClock, name: str, value: bytes) -> Ack:
    """Publish while the cleaner sleeps."""
    await cleaner.wait_async()
    ack = await client.publish(name, value)
    assert ack is not None
    return ack


async def in_one_segment(client: Client, name: str, count: int) -> list[Ack]:
    """Create a stream and publish, again if that took long enough for a second segment to begin.

    If two segments have messages, the server finds times in the first one of them.
    """
    while True:
        cleaner = await CleanerClock.create_stream(client, name, segment_max_age=0.5)
        await cleaner.wait_async()
        began = time.monotonic()
        acks = [await client.publish(name, str(number).encode()) for number in range(count)]
        if time.monotonic() - began < MARGIN:
            return [ack for ack in acks if ack is not None]
        await client.delete_stream(name)


async def test_a_time_with_an_empty_newest_segment(client: Client, name: str) -> None:
    sent = await in_one_segment(client, name, 5)
    await until_times_are_lost(client, name, empty=False)
    assert await offsets(client, name, start=timedelta(hours=1), stop="latest") == [0, 1, 2, 3, 4]
    since = liftenvelope.client.Timestamp(sent[2].reception_timestamp_ns)
    assert (await offsets(client, name, start=since, stop="latest"))[-2:] == [3, 4]
    assert await offsets(client, name, start=timedelta(0), stop="latest") == []


async def test_all_was_removed(client: Client, name: str) -> None:
    cleaner = await CleanerClock.create_stream(client, name, segment_max_age=0.3, retention_max_age=0.6)
    for number in range(3):
        await publish(client, cleaner, name, str(number).encode())
    await until_times_are_lost(client, name, empty=True)
    for start in ("earliest", "latest", 0, 2, timedelta(hours=1)):
        assert await offsets(client, name, start=start, stop="latest") == []
    for start in ("latest", 1):  # not even a server that reads forwards only has anything to send
        assert await offsets(client, name, start=start, reverse=True) == []
    async with asyncio.timeout(60), client.subscribe(name, start="earliest", stop="latest") as messages:
        while not messages.finished:  # no time-out may cut short the check for an empty log
            assert await messages.next(0.2) is None
    async with asyncio.timeout(60):
        ack = await publish(client, cleaner, name, b"one more")
        while not (found := await offsets(client, name, start="earliest", stop="latest")):
            # On a slow machine it is removed as well before it is read.
            ack = await publish(client, cleaner, name, b"one more")
    assert 3 <= found[0] <= found[-1] == ack.offset


async def test_a_stop_that_is_yet_to_come_is_waited_for(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    reading = asyncio.create_task(offsets(client, name, start="earliest", stop=1))
    await asyncio.sleep(1.0)  # longer than a read waits before it asks whether there is anything
    assert not reading.done()
    await client.publish(name, b"0")
    await client.publish(name, b"1")
    assert await reading == [0, 1]
