"""Groups over NATS that read Liftbridge streams: of the real server, and of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from nats.aio.client import Client

import liftenvelope
from liftenvelope.errors import (
    ConnectionClosedError,
    LiftEnvelopeError,
    NoSuchStreamError,
    OffsetOutOfRangeError,
    StreamDeletedError,
    UsageError,
)
from liftenvelope.group import (
    GroupClient,
    GroupConsumer,
    GroupRequestError,
    JetStreamTopic,
    LiftbridgeTopic,
    TopicPartition,
)
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, NatsServer, run_liftbridge
from tests.integration.conftest import connect

from .play import LONG, PATIENCE, SESSION, Delivery, Log, Play, coordinator, eventually, quiet, take


@dataclass
class World:
    """A server of the Liftbridge API, and a NATS server where somebody coordinates groups."""

    client: liftenvelope.Client
    nc: Client
    name: str
    is_gateway: bool

    async def create(self, partitions: int = 2, *messages: bytes) -> LiftbridgeTopic:
        await self.client.create_stream(self.name, self.name, partitions=partitions, timeout=PATIENCE)
        await self.publish(*messages, partitions=partitions)
        return await LiftbridgeTopic.of_stream(self.client, self.name)

    async def publish(self, *messages: bytes, partitions: int = 2) -> None:
        for number, message in enumerate(messages):
            await self.client.publish(self.name, message, partition=number % partitions)

    async def until_committed(self, offset: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while (await GroupClient(self.nc, timeout=PATIENCE).committed(self.name)).get(
                TopicPartition(self.name, 0), -1
            ) != offset:
                await asyncio.sleep(0.05)

    def consumer(self, topic: Any, **options: Any) -> GroupConsumer:
        settings: dict[str, Any] = {
            "session_timeout": LONG,
            "auto_offset": "earliest",
            "timeout": PATIENCE,
            "on_event": quiet,
            **options,
        }
        return GroupConsumer(self.nc, self.name, topic, **settings)


@pytest.fixture(params=["liftbridge", "gateway"])
async def world(request: pytest.FixtureRequest, name: str) -> AsyncIterator[World]:
    """Liftbridge with a coordinator elsewhere; or the gateway, which coordinates groups itself."""
    async with AsyncExitStack() as stack:
        if request.param == "gateway":
            gateway: GatewayCluster = request.getfixturevalue("gateway_server")
            addresses, nats_url = gateway.addresses, gateway.nats_url
        else:
            cluster: LiftbridgeCluster = request.getfixturevalue("liftbridge_server")
            jetstream: NatsServer = request.getfixturevalue("jetstream_server")
            addresses, nats_url = cluster.addresses, jetstream.url
        patient = liftenvelope.connect(addresses, timeout=PATIENCE, ack_wait=PATIENCE)
        client = await stack.enter_async_context(patient)
        nc = await connect(nats_url)
        stack.push_async_callback(nc.close)
        if request.param == "liftbridge":
            source = LiftbridgeTopic(client, name, 2)
            await stack.enter_async_context(coordinator(nc, lease=LONG, sources=[source]))
        yield World(client, nc, name, request.param == "gateway")


async def test_a_group_goes_on_where_it_was(world: World) -> None:
    topic = await world.create(2, *(b"%d" % number for number in range(8)))
    async with world.consumer(topic) as consumer:
        first = await take(consumer, 5)
        assert sum((await consumer.lag()).values()) == 3
    await world.publish(b"8", b"9")
    async with world.consumer(topic) as consumer:
        rest = await take(consumer, 6)  # the last one of the first was not processed
        await consumer.commit()
        assert sum((await consumer.lag()).values()) == 0
    assert {*first, *rest} == {b"%d" % number for number in range(10)}
    committed = await GroupClient(world.nc, timeout=PATIENCE).committed(world.name)
    assert committed == {TopicPartition(world.name, 0): 5, TopicPartition(world.name, 1): 5}


async def test_members_share_it_and_lose_nothing(world: World) -> None:
    topic = await world.create(3)
    log, published = Log(), set[bytes]()

    async def work(name: str, consumer: GroupConsumer) -> None:
        async for message in consumer:
            log.everything.append(
                Delivery(name, message.generation, message.partition, message.offset, message.data)
            )

    async def publish(count: int) -> None:
        for _ in range(count):
            payload = b"%d" % len(published)
            await world.client.publish(world.name, payload, partition=len(published) % 3)
            published.add(payload)

    tasks: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        for name in "ab":

            def told(partitions: list[TopicPartition], name: str = name) -> None:
                log.assigned(name, partitions)

            member = world.consumer(topic, consumer_id=name, on_assigned=told, session_timeout=SESSION)
            await stack.enter_async_context(member)
            tasks.append(asyncio.create_task(work(name, member)))
            await publish(30)
        await eventually(lambda: published <= log.payloads)
        assert log.by("a")
        assert log.by("b")
    await asyncio.gather(*tasks)
    log.check()


async def test_where_it_begins(world: World) -> None:
    topic = await world.create(1, *(b"%d" % number for number in range(4)))
    for auto_offset, first in (("earliest", b"0"), ("latest", b"3"), ("new", b"4")):
        group = f"{world.name}-{auto_offset}"
        consumer = GroupConsumer(
            world.nc, group, topic, auto_offset=auto_offset, timeout=PATIENCE, session_timeout=LONG
        )
        async with consumer:
            if auto_offset == "new":
                await world.publish(b"4", partitions=1)
            assert await take(consumer, 1) == [first]


async def test_rewinds_are_clamped(world: World) -> None:
    topic = await world.create(2, b"0", b"1", b"2")
    async with world.consumer(topic) as consumer:
        await take(consumer, 3)
        await consumer.commit()
    client = GroupClient(world.nc, timeout=PATIENCE)
    key = TopicPartition(world.name, 0)
    assert await client.rewind(world.name, {key: 1000}) == {key: 2}
    assert await client.rewind(world.name, {key: -1}) == {key: 0}
    outcome = await client.rewind(world.name, {(world.name, 2): 0})
    assert isinstance(outcome[TopicPartition(world.name, 2)], GroupRequestError)
    async with world.consumer(topic) as consumer:
        assert await take(consumer, 2) == [b"0", b"2"]


async def test_as_arrow(world: World) -> None:
    topic = await world.create(1)
    await world.client.publish(world.name, b"tea", key=b"anna", headers={"a": b"1"})
    await world.client.publish(world.name, b"")
    async with world.consumer(topic) as consumer:
        rows: list[dict[str, Any]] = []
        async with asyncio.timeout(PATIENCE):
            async for batch in consumer.arrow_batches(max_wait=0.01):
                rows += batch.to_pylist()
                if len(rows) == 2:
                    break
        await consumer.commit()
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (0, b"anna", b"tea"),
        (1, None, b""),
    ]
    assert ("a", b"1") in rows[0]["headers"]
    assert {(row["topic"], row["partition"], row["subject"]) for row in rows} == {(world.name, 0, world.name)}
    assert rows[0]["timestamp"] <= rows[1]["timestamp"]
    await world.until_committed(2)


async def test_a_stream_that_is_paused_or_readonly_is_waited_for(world: World) -> None:
    topic = await world.create(1, b"0")
    async with world.consumer(topic) as consumer:
        assert await take(consumer, 1) == [b"0"]
        await world.client.pause_stream(world.name)
        waiting = asyncio.create_task(take(consumer, 1))
        await world.publish(b"1", partitions=1)
        assert await waiting == [b"1"]
        await world.client.set_stream_readonly(world.name)
        waiting = asyncio.create_task(take(consumer, 1))
        await world.client.set_stream_readonly(world.name, readonly=False)
        await world.publish(b"2", partitions=1)
        assert await waiting == [b"2"]


async def test_a_stream_that_is_deleted_ends_it(world: World) -> None:
    topic = await world.create(1, *[b"x"] * 4)
    async with world.consumer(topic, auto_commit_interval=None, timeout=5.0) as consumer:
        await take(consumer, 4)
        await consumer.commit()
        await world.client.delete_stream(world.name)
        with pytest.raises((StreamDeletedError, NoSuchStreamError)):
            await take(consumer, 1)
    # One of the same name that is shorter is another one.
    topic = await world.create(1, b"y")
    if world.is_gateway:
        await world.until_committed(-1)  # it knew that the stream was gone, and told the group
    else:
        await world.until_committed(4)
        async with world.consumer(topic) as consumer:
            with pytest.raises(OffsetOutOfRangeError, match="rewind the group"):
                await take(consumer, 1)
        await GroupClient(world.nc, timeout=PATIENCE).rewind(world.name, {(world.name, 0): 0})
    async with world.consumer(topic) as consumer:
        assert await take(consumer, 1) == [b"y"]


async def test_a_stream_that_was_created_again_and_has_outgrown_the_offset(world: World) -> None:
    topic = await world.create(1, *[b"x"] * 4)
    async with world.consumer(topic, auto_commit_interval=None) as consumer:
        await take(consumer, 4)
        await consumer.commit()
    await world.client.delete_stream(world.name)
    messages = [b"%d" % number for number in range(8)]
    topic = await world.create(1, *messages)
    if world.is_gateway:
        await world.until_committed(-1)
    else:
        async with world.consumer(topic) as consumer:
            with pytest.raises(OffsetOutOfRangeError, match=r"earlier stream .* rewind the group"):
                await take(consumer, 1)
        await GroupClient(world.nc, timeout=PATIENCE).rewind(world.name, {(world.name, 0): 0})
    async with world.consumer(topic) as consumer:
        assert await take(consumer, 8) == messages


async def test_member_of_an_empty_stream_reads_the_one_that_is_created_again(world: World) -> None:
    topic = await world.create(1)
    async with world.consumer(topic) as consumer:
        waiting = asyncio.create_task(take(consumer, 2))
        await world.until_committed(0)
        await world.client.delete_stream(world.name)
        await world.create(1, b"0", b"1")
        assert await waiting == [b"0", b"1"]


async def test_a_client_that_is_closed_ends_it(world: World) -> None:
    await world.create(1, b"0")
    addresses = world.client._context.options.addresses
    async with liftenvelope.connect(addresses, timeout=PATIENCE) as client:
        topic = await LiftbridgeTopic.of_stream(client, world.name)
        consumer = await world.consumer(topic).open()
        assert await take(consumer, 1) == [b"0"]
    with pytest.raises(ConnectionClosedError, match="closed"):
        await take(consumer, 1)
    await consumer.close()
    async with world.consumer(topic) as again:
        with pytest.raises(ConnectionClosedError, match="closed"):
            await take(again, 1)


async def test_together_with_a_topic_of_jetstream(world: World) -> None:
    topic = await world.create(1, b"liftbridge")
    play = await Play(world.nc, f"{world.name}-js", partitions=1).create()
    await play.publish(1)
    both = [topic, JetStreamTopic.of_streams("jetstream", [play.name])]
    async with world.consumer(both) as consumer:
        assert set(await take(consumer, 2)) == {b"liftbridge", b"0"}


async def test_what_makes_no_sense(world: World) -> None:
    with pytest.raises(NoSuchStreamError):
        await LiftbridgeTopic.of_stream(world.client, world.name)
    for stream, partitions, options in (("", 1, {}), ("s", 0, {}), ("s", True, {}), ("s", 1, {"name": ""})):
        with pytest.raises((UsageError, GroupRequestError)):
            LiftbridgeTopic(world.client, stream, partitions, **options)  # type: ignore[arg-type]


async def test_the_server_is_killed(jetstream_server: NatsServer, name: str) -> None:
    """For longer than the client waits for it: the member reads on when it is back."""
    nc = await connect(jetstream_server.url)
    with run_liftbridge() as cluster:
        async with (
            coordinator(nc, lease=LONG),
            liftenvelope.connect(cluster.addresses, resubscribe_wait=0.5) as client,
        ):
            world = World(client, nc, name, is_gateway=False)
            topic = await world.create(1, b"0")
            async with world.consumer(topic) as consumer:
                assert await take(consumer, 1) == [b"0"]
                waiting = asyncio.create_task(take(consumer, 1))
                (node,) = cluster.nodes
                node.kill()
                await asyncio.sleep(1.0)
                node.start()
                async with asyncio.timeout(PATIENCE):
                    while not await is_published(client, name, b"1"):
                        await asyncio.sleep(0.1)
                assert await waiting == [b"1"]
    await nc.close()


async def is_published(client: liftenvelope.Client, name: str, message: bytes) -> bool:
    try:
        await client.publish(name, message)
    except LiftEnvelopeError:
        return False
    return True
