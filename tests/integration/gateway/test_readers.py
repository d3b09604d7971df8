"""Readers of the gateway: what slow ones cost, large messages, consumers that are left over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.errors import ServerError, UsageError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway.feed import DeliveryFeed, PartitionDelivery, sequences_of
from liftenvelope.jetstream.context import JetStream
from liftenvelope.jetstream.stream_config import StreamConfig
from liftenvelope.nats.acceleration import accelerate
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import FaultProxy, NatsServer, run_gateway, run_nats_server
from tests.integration.conftest import connect, resident_mib

PATIENCE = 120.0


@pytest.fixture
async def js(jetstream_server: NatsServer, name: str) -> AsyncIterator[JetStream]:
    """JetStream on an accelerated connection, with a stream of the test's own."""
    client = await connect(jetstream_server.url)
    with accelerate(client):
        async with JetStream(client, timeout=60) as context:
            await context.create_stream(StreamConfig(name=name, subjects=(name,)))
            yield context
            await context.delete_stream(name)
    await client.close()


async def fill(js: JetStream, name: str, payloads: list[bytes]) -> None:
    """Store a message for each payload."""
    await asyncio.gather(*[await js.publish_async(name, payload) for payload in payloads])


async def take(feed: DeliveryFeed, count: int) -> list[PartitionDelivery]:
    """So many deliveries."""
    found: list[PartitionDelivery] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            found += await feed.take()
    return found


async def test_readers_that_take_nothing_cost_little_memory(name: str) -> None:
    readers, count = 120, 40_000
    with run_gateway() as gateway:
        pid = gateway.nodes[0].pid
        assert pid is not None
        request = api_pb2.SubscribeRequest(stream=name, startPosition=api_pb2.EARLIEST).SerializeToString()
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(liftenvelope.connect(gateway.addresses))
            await client.create_stream(name, name)
            await client.publish_many(name, (bytes(1_000) for _ in range(count)))
            before = resident_mib(pid)
            for _ in range(readers):
                channel = await Channel.connect(gateway.addresses[0], window=65_535)
                await stack.enter_async_context(channel)
                call = channel.server_stream("/proto.API/Subscribe", request)
                await stack.enter_async_context(call)
                assert await anext(call) == b""
            # Others are served meanwhile. When they have everything, the idle ones had the time to fill up.
            for _ in range(2):
                async with client.subscribe(name, start="earliest", stop="latest") as messages:
                    assert sum([1 async for _ in messages]) == count
            assert (resident_mib(pid) - before) / readers < 1.0


@pytest.mark.parametrize(("size", "count", "readers"), [(100_000, 150, 16), (3_500_000, 6, 8)])
async def test_readers_of_large_messages_do_not_cost_the_connection(
    name: str, size: int, count: int, readers: int
) -> None:
    with run_nats_server(jetstream=True, config={"max_payload": 8 << 20}) as server:
        nc = await connect(server.url)
        async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
            await client.create_stream(name, name)
            async with JetStream(nc, timeout=60) as js:
                for _ in range(count):
                    await js.publish(name, bytes(size))

            async def read() -> int:
                async with (
                    liftenvelope.connect([gateway.address]) as client,
                    client.subscribe(name, start="earliest", stop="latest") as messages,
                ):
                    return sum([len(message.value) async for message in messages])

            async with asyncio.timeout(PATIENCE):
                assert await asyncio.gather(*(read() for _ in range(readers))) == [size * count] * readers
            assert nc.stats["reconnects"] == 0
        await nc.close()


async def test_messages_of_all_sizes_come_in_order(js: JetStream, name: str) -> None:
    sizes = [10, 70_000, 10, 10, 1_000_000, 300_000, 10, 600_000, *([1_000] * 500), 900_000, 10]
    await fill(js, name, [bytes(size) for size in sizes])
    feed = DeliveryFeed(js, name, 1)
    await feed.open()
    deliveries = await take(feed, len(sizes))
    assert [len(delivery[3]) for delivery in deliveries] == sizes
    assert sequences_of(deliveries) == list(range(1, len(sizes) + 1))
    assert feed.pending == 0
    # And one that comes later, while only a small amount is asked for.
    await fill(js, name, [bytes(800_000), b"last"])
    assert [len(delivery[3]) for delivery in await take(feed, 2)] == [800_000, 4]
    await feed.close()


async def test_pull_that_ends_without_a_status_does_not_stop_the_reader(js: JetStream, name: str) -> None:
    # The server says nothing at the end of a pull whose last byte was used. So every message counts 1,024
    # bytes, and a pull for 64 KiB ends that way.
    stream = await js.stream(name)
    reply = f"$JS.ACK.{name}.{'c' * 16}.1.9999.9999.{'1' * 19}.9999"
    await fill(js, name, [bytes(1_024 - len(name) - len(reply))] * 12_000)
    feed = DeliveryFeed(js, name, 1)
    await feed.open()
    consumers = [consumer async for consumer in stream.consumer_names()]
    assert len(await take(feed, 12_000)) == 12_000
    assert [consumer async for consumer in stream.consumer_names()] == consumers
    await feed.close()


async def test_old_consumer_is_deleted_when_a_feed_begins_anew_or_ends(
    jetstream_server: NatsServer, js: JetStream, name: str
) -> None:
    stream = await js.stream(name)

    async def consumers(count: int) -> list[str]:
        """Wait until the stream has this number of consumers; return their names."""
        async with asyncio.timeout(PATIENCE):
            while len(found := [consumer async for consumer in stream.consumer_names()]) != count:
                await asyncio.sleep(0.01)
        return found

    await fill(js, name, [b"x"] * 10)
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}", reconnect_time_wait=0.01)
        async with JetStream(nc) as cut_off:
            feed = DeliveryFeed(cut_off, name, 1)
            await feed.open()
            first = await consumers(1)
            assert len(await take(feed, 10)) == 10
            proxy.cut()
            await fill(js, name, [b"y"])
            assert sequences_of(await take(feed, 1)) == [11]
            assert await consumers(1) != first
            await feed.close()
            assert await consumers(0) == []
        await nc.close()


async def test_feed_notices_that_the_messages_left_were_purged(js: JetStream, name: str) -> None:
    await fill(js, name, [bytes(1_000)] * 5_000)
    feed = DeliveryFeed(js, name, 1)
    await feed.open()
    assert feed.pending == 5_000
    await (await js.stream(name)).purge()
    async with asyncio.timeout(PATIENCE):
        while feed.pending:
            await feed.take()
    await fill(js, name, [b"next"])
    assert sequences_of(await take(feed, 1)) == [5_001]
    await feed.close()


async def test_bounded_read_ends_when_the_messages_left_are_purged(
    jetstream_server: NatsServer, js: JetStream, name: str
) -> None:
    request = api_pb2.SubscribeRequest(
        stream=name, startPosition=api_pb2.EARLIEST, stopPosition=api_pb2.STOP_LATEST
    )
    with run_gateway(nats_server=jetstream_server) as gateway:
        async with liftenvelope.connect(gateway.addresses) as client:
            before = {stored async for stored in js.stream_names()}
            await client.create_stream(f"{name}.gateway", name)
            [stored] = {stored async for stored in js.stream_names()} - before
            await client.publish_many(name, (bytes(1_000) for _ in range(40_000)))
        async with await Channel.connect(gateway.addresses[0], window=65_535) as channel:
            call = channel.server_stream("/proto.API/Subscribe", request.SerializeToString())
            async with call:
                assert await anext(call) == b""
                await anext(call)
                await (await js.stream(stored)).purge()
                with pytest.raises(RpcError, match="Stop offset reached") as ended:
                    async with asyncio.timeout(PATIENCE):
                        assert [message async for message in call]
            assert ended.value.code == StatusCode.RESOURCE_EXHAUSTED


async def test_largest_message_is_a_setting(name: str) -> None:
    with run_nats_server(jetstream=True, config={"max_payload": 4 << 20}) as server:
        nc = await connect(server.url)
        with pytest.raises(UsageError, match="max_message_bytes must be at least 1, got 0"):
            Gateway(nc, max_message_bytes=0)
        async with (
            Gateway(nc, max_message_bytes=3_000_000) as gateway,
            liftenvelope.connect([gateway.address]) as client,
        ):
            await client.create_stream(name, name)
            for size in (1_100_000, 2_999_000):
                assert await client.publish(name, bytes(size)) is not None
                await client.publish_many(name, [bytes(size)])
            with pytest.raises(ServerError, match="exceeds max replication size"):
                await client.publish(name, bytes(3_000_001))
            async with client.subscribe(name, start="earliest", stop="latest") as messages:
                assert [len(message.value) async for message in messages] == [
                    1_100_000,
                    1_100_000,
                    2_999_000,
                    2_999_000,
                ]
        await nc.close()
