"""Three nodes, of which some die: subscriptions follow the leader, and what was acked is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.client._events import ClientEvent, StoppedAtHighWatermark, SubscriptionResumed
from liftenvelope.client._reading.subscription import Subscription
from liftenvelope.client._streams import MAX_REPLICATION
from liftenvelope.client.metadata import BrokerInfo
from liftenvelope.envelope import AckPolicy, Message
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    LiftEnvelopeError,
    NotLeaderError,
    TransportError,
)
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, LiftbridgeNode, run_liftbridge
from tests.conformance.actions import take
from tests.integration.conftest import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiftbridgeCluster]:
    """Three nodes; each test leaves all of them running."""
    with run_liftbridge(nodes=3) as cluster:
        yield cluster


@pytest.fixture
def events() -> list[ClientEvent]:
    return []


@pytest.fixture
async def client(cluster: LiftbridgeCluster, events: list[ClientEvent]) -> AsyncIterator[Client]:
    before = asyncio.all_tasks()
    async with liftenvelope.connect(
        cluster.addresses, timeout=60, ack_wait=60, on_event=events.append
    ) as client:
        yield client
    assert not asyncio.all_tasks() - before - {asyncio.current_task()}


async def leader_of(client: Client, cluster: LiftbridgeCluster, stream: str) -> LiftbridgeNode:
    leader = (await client.fetch_partition_metadata(stream)).leader
    return next(node for node in cluster.nodes if node.id == leader)


async def in_sync(client: Client, stream: str, count: int) -> None:
    """Wait until so many replicas are in sync."""
    async with asyncio.timeout(60):
        while len((await client.fetch_partition_metadata(stream)).isr) < count:
            await asyncio.sleep(0.1)


async def publish_numbers(client: Client, stream: str, acked: dict[int, bytes], stop: asyncio.Event) -> None:
    """Publish one number after the other, none twice; note what was acked by all, by its offset."""
    number = 0
    while not stop.is_set():
        value = b"%d" % number
        number += 1
        try:
            ack = await client.publish(stream, value, ack_policy=AckPolicy.ALL, timeout=3)
        except (AckTimeoutError, CallTimeoutError, NotLeaderError, TransportError):
            await asyncio.sleep(0.05)
        else:
            assert ack is not None
            assert ack.offset not in acked, "two messages were given one offset"
            acked[ack.offset] = value


async def read_to(messages: Subscription, into: list[Message], end: asyncio.Future[int]) -> None:
    """Read until the offset has come that ``end`` gets in the end."""
    while not (end.done() and into and into[-1].offset >= end.result()):
        message = await messages.next(0.1)
        if message is not None:
            into.append(message)


async def test_as_many_replicas_as_there_are(client: Client, name: str) -> None:
    await client.create_stream(name, name, replication_factor=MAX_REPLICATION)
    await in_sync(client, name, 3)
    info = await client.fetch_partition_metadata(name)
    assert set(info.replicas) == {"node1", "node2", "node3"}
    acks = [await client.publish(name, b"%d" % n, ack_policy=AckPolicy.ALL, timeout=60) for n in range(5)]
    assert [ack.offset for ack in acks if ack is not None] == [0, 1, 2, 3, 4]


async def test_many_partitions_are_read_as_one(client: Client, name: str) -> None:
    await client.create_stream(name, name, partitions=6, replication_factor=2)
    summary = await client.publish_many(
        name, ((b"key-%d" % n, b"%d" % n) for n in range(600)), ack_policy=AckPolicy.ALL, timeout=60
    )
    assert summary.acked == 600
    async with (
        asyncio.timeout(60),
        client.subscribe(name, partition="all", start="earliest", stop="latest") as messages,
    ):
        values = [int(message.value) async for message in messages]
    assert sorted(values) == list(range(600))


async def test_any_replica_in_sync_may_serve(client: Client, cluster: LiftbridgeCluster, name: str) -> None:
    await client.create_stream(name, name, replication_factor=3)
    await in_sync(client, name, 3)
    leader = await leader_of(client, cluster, name)
    offered: list[set[str]] = []

    def choose(brokers: Sequence[BrokerInfo]) -> BrokerInfo:
        offered.append({broker.id for broker in brokers})
        return next(broker for broker in brokers if broker.id != leader.id or len(brokers) == 1)

    async with (
        liftenvelope.connect(cluster.addresses, broker_selection=choose) as reader,
        reader.subscribe(name, read_isr_replica=True, start="earliest") as messages,
    ):
        assert offered[-1] == {"node1", "node2", "node3"}
        for number in range(20):
            await client.publish(name, b"%d" % number, ack_policy=AckPolicy.ALL, timeout=60)
        assert [message.value for message in await take(messages, 20)] == [b"%d" % n for n in range(20)]


async def test_seeds_that_are_dead(cluster: LiftbridgeCluster, name: str) -> None:
    with FaultProxy(cluster.addresses[0]) as closed, FaultProxy(cluster.addresses[0]) as silent:
        closed.refuse()
        silent.stall()
        seeds = [closed.address, silent.address, cluster.addresses[1]]
        for _ in range(3):  # they are asked in any order
            async with liftenvelope.connect(seeds, connect_timeout=1, timeout=60) as client:
                metadata = await client.fetch_metadata()
                assert set(metadata.brokers) == {"node1", "node2", "node3"}
        async with liftenvelope.connect(seeds, connect_timeout=1, timeout=60) as client:
            await client.create_stream(name, name, replication_factor=3)
            assert (await client.fetch_metadata(streams=[name])).partition_count(name) == 1


@pytest.mark.parametrize("end", [LiftbridgeNode.kill, LiftbridgeNode.stop], ids=["killed", "stopped"])
async def test_the_leader_ends(
    client: Client,
    cluster: LiftbridgeCluster,
    events: list[ClientEvent],
    name: str,
    end: Callable[[LiftbridgeNode], int | None],
) -> None:
    # Without a second replica nothing is acked: a leader that the machine leaves alone would lose it.
    await client.create_stream(name, name, replication_factor=3, min_isr=2)
    await in_sync(client, name, 3)
    leader = await leader_of(client, cluster, name)
    found: list[Message] = []
    acked: dict[int, bytes] = {}
    stop, last = asyncio.Event(), asyncio.get_running_loop().create_future()
    async with client.subscribe(name) as messages:
        reading = asyncio.create_task(read_to(messages, found, last))
        publishing = asyncio.create_task(publish_numbers(client, name, acked, stop))
        await until(lambda: len(acked) >= 50)
        await in_sync(client, name, 3)
        earlier = len(events)
        await asyncio.to_thread(end, leader)
        before = len(acked)
        await until(lambda: len(acked) >= before + 50)
        await asyncio.to_thread(leader.start)
        stop.set()
        await publishing
        last.set_result(max(acked))
        async with asyncio.timeout(60):
            await reading
    offsets = [message.offset for message in found]
    assert offsets == list(range(len(offsets)))
    by_offset = {message.offset: message.value for message in found}
    assert {offset: by_offset[offset] for offset in acked} == acked
    values = [message.value for message in found]
    assert len(set(values)) == len(values), "what was published once is there twice"
    resumed = [event.address for event in events[earlier:] if isinstance(event, SubscriptionResumed)]
    assert set(resumed) - {leader.address}
    await in_sync(client, name, 3)


async def test_a_cluster_that_has_only_just_started(
    client: Client, cluster: LiftbridgeCluster, name: str
) -> None:
    # In a young cluster a node can list no streams, or itself as the only broker, or not answer at all.
    await client.create_stream(name, name, replication_factor=3)
    for number in range(5):
        await client.publish(name, b"%d" % number, ack_policy=AckPolicy.ALL, timeout=60)
    async with client.subscribe(name) as messages:
        waiting = asyncio.create_task(take(messages, 1))
        await asyncio.to_thread(cluster.kill)
        for node in cluster.nodes:
            await asyncio.to_thread(node.start, wait=False)
        async with liftenvelope.connect(cluster.addresses, timeout=60) as young:
            other = f"{name}-new"
            await young.create_stream(other, other, replication_factor=3)
            ack = await young.publish(other, b"x", ack_policy=AckPolicy.ALL, timeout=60)
            assert ack is not None
            assert ack.offset == 0
        await asyncio.to_thread(cluster.start)
        ack = await client.publish(name, b"more", ack_policy=AckPolicy.ALL, timeout=60)
        assert ack is not None
        assert ack.offset == 5
        assert [message.offset for message in await waiting] == [5]


async def test_two_of_three_are_down(
    client: Client, cluster: LiftbridgeCluster, events: list[ClientEvent], name: str
) -> None:
    # What is left of a cluster stores what its leader alone has to, and decides nothing.
    await client.create_stream(name, name, replication_factor=3)
    await in_sync(client, name, 3)
    await client.publish(name, b"of all", ack_policy=AckPolicy.ALL, timeout=60)
    leader = await leader_of(client, cluster, name)
    others = [node for node in cluster.nodes if node is not leader]
    for node in others:
        await asyncio.to_thread(node.kill)
    await acked_by_leader(client, name, b"of one")
    with pytest.raises(AckTimeoutError, match=name) as late:
        await client.publish(name, b"of too few", ack_policy=AckPolicy.ALL, timeout=5)
    assert late.value.sent
    with pytest.raises(LiftEnvelopeError, match=f"{name}-more"):
        await client.create_stream(f"{name}-more", f"{name}-more", timeout=1)
    async with (
        asyncio.timeout(60),
        client.subscribe(name, start="earliest", stop="latest") as messages,
    ):
        assert [message.value async for message in messages] == [b"of all"]
    assert any(isinstance(event, StoppedAtHighWatermark) for event in events)
    for node in others:
        await asyncio.to_thread(node.start)
    await in_sync(client, name, 3)
    await client.publish(name, b"of all again", ack_policy=AckPolicy.ALL, timeout=60)
    async with (
        asyncio.timeout(60),
        client.subscribe(name, start="earliest", stop="latest") as messages,
    ):
        values = [message.value async for message in messages]
    # Nothing was promised of those between them.
    assert values[0] == b"of all"
    assert values[-1] == b"of all again"


async def acked_by_leader(client: Client, name: str, value: bytes) -> None:
    """Publish until the leader acks: the publish stream may have gone by way of a dead broker."""
    async with asyncio.timeout(60):
        while True:
            try:
                await client.publish(name, value, timeout=3)
            except (AckTimeoutError, CallTimeoutError, NotLeaderError, TransportError):
                continue
            return
