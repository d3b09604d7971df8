"""Readers of the gateway: what slow ones cost, large messages, consumers that are left over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.envelope import new_message
from liftenvelope.errors import MessageTooLargeError, ServerError, UsageError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._leader.compaction import Compactor
from liftenvelope.gateway._partitions.feed import DeliveryFeed, PartitionDelivery, sequences_of
from liftenvelope.gateway._protocol.names import partition_stream
from liftenvelope.jetstream.context import JetStream
from liftenvelope.jetstream.stream_config import StreamConfig
from liftenvelope.nats.acceleration import accelerate
from liftenvelope.nats.link import Link
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
    readers, count = 60, 10_000
    with run_gateway(config={"broker_ttl": 60.0}) as gateway:
        pid = gateway.nodes[0].pid
        assert pid is not None
        request = api_pb2.SubscribeRequest(stream=name, startPosition=api_pb2.EARLIEST).SerializeToString()
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(liftenvelope.connect(gateway.addresses))
            await client.create_stream(name, name)
            await client.publish_many(name, (bytes(1_000) for _ in range(count)))

            async def others_read() -> None:
                for _ in range(2):
                    async with client.subscribe(name, start="earliest", stop="latest") as messages:
                        assert sum([1 async for _ in messages]) == count

            await others_read()  # so that the memory for these is not counted
            before = resident_mib(pid)
            for _ in range(readers):
                channel = await Channel.connect(gateway.addresses[0], window=65_535)
                await stack.enter_async_context(channel)
                call = channel.server_stream("/proto.API/Subscribe", request)
                await stack.enter_async_context(call)
                assert await anext(call) == b""
            # Others are served meanwhile. When they have everything, the idle ones had the time to fill up.
            await others_read()
            assert (resident_mib(pid) - before) / readers <= 0.5


async def test_reading_backwards_holds_a_chunk_though_the_last_messages_are_far_larger_than_most(
    name: str,
) -> None:
    values = [*(b"%d" % number for number in range(10_000)), *(bytes(900_000) for _ in range(60)), b"last"]
    with run_gateway(config={"broker_ttl": 60.0}) as gateway:
        pid = gateway.nodes[0].pid
        assert pid is not None
        async with liftenvelope.connect(gateway.addresses) as client:
            await client.create_stream(name, name)
            await client.publish_many(name, values)
            before = resident_mib(pid, "VmHWM")
            async with client.subscribe(name, start="latest", reverse=True) as messages:
                assert [message.value async for message in messages] == values[::-1]
            assert resident_mib(pid, "VmHWM") - before <= 32


async def test_reading_backwards_over_deleted_messages_takes_few_consumers(name: str) -> None:
    dense, deleted = 2_500, 8_000
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        made: list[str] = []

        async def note(msg: Msg) -> None:
            made.append(msg.subject)

        async with (
            Gateway(nc, broker_ttl=60.0) as gateway,
            liftenvelope.connect([gateway.address]) as client,
            JetStream(nc, timeout=60) as js,
        ):
            await client.create_stream(name, name)
            await client.publish_many(name, [b"%d" % number for number in range(dense)])
            for _ in range(deleted // 1_000):
                await fill(js, name, [new_message(b"same", key=b"key")] * 1_000)
            await Compactor(js, f"lift_{name}_0").compact()
            await nc.subscribe(f"$JS.API.CONSUMER.CREATE.lift_{name}_0.>", cb=note)
            async with client.subscribe(name, start="latest", reverse=True) as messages:
                offsets = [message.offset async for message in messages]
            assert offsets == [dense + deleted - 1, *reversed(range(dense))]
            assert len(made) <= 7  # two for the deleted messages, three for the others
        await nc.close()


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


@asynccontextmanager
async def two_connections(name: str) -> AsyncIterator[tuple[Client, Client, FaultProxy, liftenvelope.Client]]:
    """A gateway with a stream: its first connection, its read connection with a proxy, and a client."""
    with run_nats_server(jetstream=True) as server, FaultProxy(server.address) as proxy:
        nc, read_nc = await connect(server.url), await connect(f"nats://{proxy.address}")
        async with (
            asyncio.timeout(PATIENCE),
            Gateway(nc, read_nc=read_nc, broker_ttl=60.0) as gateway,
            liftenvelope.connect([gateway.address]) as client,
        ):
            await client.create_stream(name, name)
            yield nc, read_nc, proxy, client
        await nc.close()
        await read_nc.close()


async def test_messages_for_subscriptions_come_over_the_read_connection(name: str) -> None:
    """Also after that connection was lost."""
    size, count, times = 10_000, 100, 10
    async with two_connections(name) as (nc, read_nc, proxy, client):
        await client.publish_many(name, [bytes(size)] * count)
        for _ in range(times):
            async with client.subscribe(name, start="earliest", stop="latest") as messages:
                assert sum([1 async for _ in messages]) == count
        assert read_nc.stats["in_bytes"] > size * count * times
        # The gateway reads each message over the first connection too, once, to ack it.
        assert nc.stats["in_bytes"] < size * count * times / 2
        async with client.subscribe(name, start="latest") as messages:
            await anext(messages)
            proxy.cut()
            await client.publish(name, b"after the cut")
            assert (await anext(messages)).value == b"after the cut"
        async with client.subscribe(name, start="latest", reverse=True) as messages:
            assert (await anext(messages)).value == b"after the cut"


async def test_reader_of_a_partition_made_readonly_gets_what_a_lost_connection_held_back(name: str) -> None:
    """The change is told over the first connection, the messages come over the second."""
    async with two_connections(name) as (_, _, proxy, client):
        await client.publish(name, b"0")
        async with client.subscribe(name, start="earliest") as messages:
            assert (await anext(messages)).value == b"0"
            proxy.stall()
            await client.publish(name, b"1")
            await client.set_stream_readonly(name)
            await asyncio.sleep(2.5)  # the gateway looks every second whether the reader has everything
            proxy.resume()
            assert (await anext(messages)).value == b"1"
            with pytest.raises(ServerError, match="End of readonly partition"):
                await anext(messages)


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


async def test_late_status_of_an_earlier_consumer_does_not_lose_the_next_one(
    js: JetStream, name: str
) -> None:
    """FAKE: the status, which the server sends here before it answers that the next consumer is made."""
    stream = await js.stream(name)
    feed = DeliveryFeed(js, name, 1)
    await feed.open()
    feed.replace_consumer()
    await fill(js, name, [b"1"])
    assert len(await take(feed, 1)) == 1
    consumers = [consumer async for consumer in stream.consumer_names()]
    status = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
    head = f"HPUB {feed._inbox}.1 {len(status)} {len(status)}\r\n".encode()
    Link(js.api.nc).write(head + status + b"\r\n", 1, 0)
    await fill(js, name, [b"2"])
    assert sequences_of(await take(feed, 1)) == [2]
    assert [consumer async for consumer in stream.consumer_names()] == consumers
    await feed.close()


async def test_feeds_cancelled_while_they_start_leave_no_consumers(js: JetStream, name: str) -> None:
    """JetStream executes requests concurrently: a deletion may overtake the creation."""
    stream = await js.create_stream(StreamConfig(name=name, subjects=(name,)))
    for number in range(500):
        feed = DeliveryFeed(js, name, 1)
        opening = asyncio.create_task(feed.open())
        for _ in range(number % 10):  # the cancellation meets each step of the start
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        await feed.close()
    async with asyncio.timeout(30):  # JetStream removes an unused one after 60 s
        while [consumer async for consumer in stream.consumer_names()]:
            await asyncio.sleep(0.05)


async def test_recount_is_not_settled_by_an_older_delivery(js: JetStream, name: str) -> None:
    await fill(js, name, [b"0"])
    feed = DeliveryFeed(js, name, 1)
    await feed.open()
    async with asyncio.timeout(PATIENCE):
        while not feed._received:
            await asyncio.sleep(0.01)
        feed.recount()
        assert len(await feed.take()) == 1
        assert feed.pending == 1  # the delivery said 0
        while feed.pending:
            assert await feed.take() == []
    await feed.close()


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
    with run_gateway(nats_server=jetstream_server, config={"broker_ttl": 60.0}) as gateway:
        async with liftenvelope.connect(gateway.addresses) as client:
            await client.create_stream(f"{name}.gateway", name)
            await client.publish_many(name, (bytes(1_000) for _ in range(40_000)))
        async with await Channel.connect(gateway.addresses[0], window=65_535) as channel:
            call = channel.server_stream("/proto.API/Subscribe", request.SerializeToString())
            async with call:
                assert await anext(call) == b""
                await anext(call)
                await (await js.stream(partition_stream(name, 0))).purge()
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


async def test_client_publishes_as_much_as_its_own_limit_and_that_of_the_gateway(name: str) -> None:
    big, most = bytes(5_000_000), 6_000_000
    with run_nats_server(jetstream=True, config={"max_payload": 8 << 20}) as server:
        nc = await connect(server.url)
        async with (
            Gateway(nc, max_message_bytes=most) as gateway,
            liftenvelope.connect([gateway.address]) as usual,
            liftenvelope.connect(
                [gateway.address], max_message_bytes=most, max_request_bytes=5_000_100
            ) as client,
        ):
            await client.create_stream(name, name)
            limit = r"at most 4194304 bytes, got 50\d+: raise max_request_bytes of connect\(\)"
            with pytest.raises(MessageTooLargeError, match=limit):
                await usual.publish(name, big)
            await client.publish(name, big)
            await client.publish(name, big, ack_inbox=nc.new_inbox())
            await client.publish_many(name, [big, b"small"])
            await client.publish_to_subject(name, big)
            with pytest.raises(MessageTooLargeError, match="max_request_bytes"):
                await client.publish(name, bytes(5_000_100))
            with pytest.raises(MessageTooLargeError, match="max_request_bytes"):
                await client.publish_many(name, [bytes(5_000_100)])
            with pytest.raises(MessageTooLargeError, match="max_request_bytes"):
                await client.publish_to_subject(name, bytes(5_000_100))
            async with client.subscribe(name, start="earliest", stop="latest") as messages:
                assert [len(message.value) async for message in messages] == [len(big)] * 3 + [5, len(big)]
        await nc.close()


async def test_reader_pulls_no_more_than_its_server_allows(name: str) -> None:
    config = {"jetstream": {"limits": {"max_request_batch": 10}}}
    async with run_nats_server(jetstream=True, config=config) as server:
        client = await connect(server.url)
        with accelerate(client):
            async with JetStream(client) as js:
                await js.create_stream(StreamConfig(name=name))
                await fill(js, name, [b"%d" % number for number in range(95)])
                feed = DeliveryFeed(js, name, 1)
                await feed.open()
                assert sequences_of(await take(feed, 95)) == list(range(1, 96))
                await feed.close()
        await client.close()
