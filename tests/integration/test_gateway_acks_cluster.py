"""Acks of a partition that three NATS servers keep: one of them is killed, and leaders step down."""

from __future__ import annotations

import asyncio

from nats.aio.client import Client

from liftenvelope.errors import CallTimeoutError, JetStreamError
from liftenvelope.nats import accelerate
from liftenvelope.testing import NatsServer

from .conftest import connect, until
from .test_gateway_acks import Partition
from .test_jetstream_pull_cluster import cluster

__all__ = ["cluster"]


async def made(nc: Client, name: str) -> Partition:
    """A partition on all three, as soon as they have found each other."""
    partition = Partition(nc, name)
    async with asyncio.timeout(60):
        while True:
            try:
                return await partition.create(num_replicas=3)
            except (JetStreamError, CallTimeoutError):
                await asyncio.sleep(0.1)


async def leader_of(partition: Partition) -> str:
    async with asyncio.timeout(60):
        while True:
            try:
                info = await partition.api.request(f"STREAM.INFO.{partition.name}")
            except (JetStreamError, CallTimeoutError):
                info = {}
            if leader := info.get("cluster", {}).get("leader"):
                return str(leader)
            await asyncio.sleep(0.05)


async def acked(partition: Partition, *ids: str) -> None:
    """Publish, again and again as long as there is no ack: without a leader JetStream stores nothing."""
    async with asyncio.timeout(120):
        while missing := [ident for ident in ids if ident not in partition.ids]:
            await partition.publish(*missing)
            for _ in range(100):
                if all(ident in partition.ids for ident in missing):
                    break
                await asyncio.sleep(0.02)


async def test_leaders_step_down_and_one_server_is_killed(cluster: dict[str, NatsServer], name: str) -> None:
    nc = await connect(cluster["n1"].url)
    partition = await made(nc, name)
    leader = await leader_of(partition)
    # The gateway and the publisher stay connected: what is lost is the one that JetStream leads from.
    (home, *_) = [one for one in cluster if one != leader]
    publisher, gateway = await connect(cluster[home].url), await connect(cluster[home].url)
    accelerate(gateway)
    partition = Partition(publisher, name)
    await publisher.subscribe(partition.inbox, cb=partition._note)
    await nc.close()
    async with partition.reader(gateway, heartbeat=1.0):
        await acked(partition, *(f"a{number}" for number in range(200)))
        for consumer in await partition.consumers():
            await step_down(partition, f"CONSUMER.LEADER.STEPDOWN.{name}.{consumer['name']}")
        await acked(partition, *(f"b{number}" for number in range(200)))
        await step_down(partition, f"STREAM.LEADER.STEPDOWN.{name}")
        await acked(partition, *(f"c{number}" for number in range(200)))
        async with asyncio.timeout(120):
            while (victim := await leader_of(partition)) == home:
                await step_down(partition, f"STREAM.LEADER.STEPDOWN.{name}")
        await asyncio.to_thread(cluster[victim].kill)
        await acked(partition, *(f"d{number}" for number in range(200)))
        await asyncio.to_thread(cluster[victim].start)
        await acked(partition, *(f"e{number}" for number in range(200)))
        await until(lambda: len(set(partition.ids)) == 1_000)
    # No offset was acked for two different messages.
    by_offset = {ack.offset: ack.correlation_id for ack in partition.acks}
    assert all(by_offset[ack.offset] == ack.correlation_id for ack in partition.acks)
    await publisher.close()
    await gateway.close()


async def step_down(partition: Partition, subject: str) -> None:
    """Have a leader step down; it does not matter if there is none just now."""
    try:
        await partition.api.request(subject)
    except (JetStreamError, CallTimeoutError):
        await asyncio.sleep(0.1)
