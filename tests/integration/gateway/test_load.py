"""Under load, with acks, while gateways and the NATS server are killed and hang: nothing acked is missing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.testing import GatewayCluster, GatewayNode, run_gateway
from tests.integration.conftest import freeze

TTL = 1.5
PARTITIONS = 3


@pytest.fixture
async def cluster() -> AsyncIterator[GatewayCluster]:
    """Three gateways of a test's own."""
    async with run_gateway(3, config={"broker_ttl": TTL}) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: GatewayCluster) -> AsyncIterator[Client]:
    async with liftenvelope.connect(cluster.addresses) as client:
        yield client


@pytest.fixture
def nats_url(cluster: GatewayCluster) -> str:
    return cluster.nats_url


class Load:
    """Envelopes on raw NATS, some at a time, each with a value of its own, until it is told to stop.

    Attributes:
        acked: By partition, offset to value.
        failed: How many have no ack.
    """

    def __init__(self, nc: NatsClient, name: str) -> None:
        self._nc = nc
        self._name = name
        self._stop = asyncio.Event()
        self.acked: dict[int, dict[int, bytes]] = {number: {} for number in range(PARTITIONS)}
        self.failed = 0
        self.sent = 0

    async def run(self, timeout: float) -> None:
        async with AckInbox(self._nc) as inbox:
            publisher = EnvelopePublisher(self._nc, self._name, inbox=inbox, timeout=timeout)
            while not self._stop.is_set():
                await asyncio.gather(*(self._publish(inbox, number, timeout) for number in range(60)))
                await asyncio.sleep(0)
            await publisher.flush()

    async def _publish(self, inbox: AckInbox, number: int, timeout: float) -> None:
        partition = number % PARTITIONS
        value = b"%d-%d" % (partition, self.sent)
        self.sent += 1
        subject = f"{self._name}.{partition}" if partition else self._name
        try:
            ack = await inbox.publish(subject, value, timeout=timeout)
        except LiftEnvelopeError:
            self.failed += 1
        else:
            # An offset is acked for one message, and for that one alone.
            assert self.acked[partition].setdefault(ack.offset, value) == value

    def stop(self) -> None:
        self._stop.set()

    @property
    def count(self) -> int:
        return sum(map(len, self.acked.values()))

    async def more(self, count: int = 300) -> None:
        """Wait until so many more have their acks."""
        wanted = self.count + count
        async with asyncio.timeout(120):
            while self.count < wanted:
                await asyncio.sleep(0.01)


async def check(client: Client, name: str, load: Load) -> None:
    """Everything that was acked is there, where the ack said."""
    for partition, acked in load.acked.items():
        async with asyncio.timeout(120):
            async with client.subscribe(name, partition=partition, start="earliest", stop="latest") as found:
                stored = {message.offset: message.value async for message in found}
        assert {offset: stored.get(offset) for offset in acked} == acked


async def node_that_leads(cluster: GatewayCluster, client: Client, name: str, partition: int) -> GatewayNode:
    stream = (await client.fetch_metadata(streams=[name])).streams[name]
    leader = stream.partitions[partition].leader
    return next(node for node in cluster.nodes if node.id == leader)


async def test_gateways_are_killed_and_come_back(
    cluster: GatewayCluster, client: Client, nc: NatsClient, name: str
) -> None:
    await client.create_stream(name, name, partitions=PARTITIONS)
    load = Load(nc, name)
    running = asyncio.create_task(load.run(timeout=120))
    loop = asyncio.get_running_loop()
    await load.more()
    for partition in range(2):
        node = await node_that_leads(cluster, client, name, partition)
        node.kill()
        await load.more()
        await loop.run_in_executor(None, node.start)
        await load.more()
    load.stop()
    async with asyncio.timeout(180):
        await running
    # NATS was there all the time, and so every message was stored and acked, be it by another gateway.
    assert (load.failed, load.count) == (0, load.sent)
    await check(client, name, load)


async def test_a_gateway_hangs(cluster: GatewayCluster, client: Client, nc: NatsClient, name: str) -> None:
    await client.create_stream(name, name, partitions=PARTITIONS)
    load = Load(nc, name)
    running = asyncio.create_task(load.run(timeout=120))
    await load.more()
    node = await node_that_leads(cluster, client, name, 0)
    assert node.pid is not None
    freeze(node.pid)
    try:
        await load.more(600)  # what it leads is acked by another one, as soon as that takes it for dead
    finally:
        os.kill(node.pid, signal.SIGCONT)
    await load.more()
    load.stop()
    async with asyncio.timeout(180):
        await running
    assert (load.failed, load.count) == (0, load.sent)
    await check(client, name, load)


async def test_the_nats_server_is_killed(
    cluster: GatewayCluster, client: Client, nc: NatsClient, name: str
) -> None:
    await client.create_stream(name, name, partitions=PARTITIONS)
    load = Load(nc, name)
    running = asyncio.create_task(load.run(timeout=5))
    assert cluster.nats is not None
    loop = asyncio.get_running_loop()
    for _ in range(2):
        await load.more()
        await loop.run_in_executor(None, cluster.nats.kill)
        await loop.run_in_executor(None, cluster.nats.start)
    await load.more()
    load.stop()
    async with asyncio.timeout(180):
        await running
    await check(client, name, load)
