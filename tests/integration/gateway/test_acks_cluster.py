"""Acks of a partition that three NATS servers keep: one of them is killed, and leaders step down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import CallTimeoutError, JetStreamError
from liftenvelope.gateway._acks.consumers import ACK_CONSUMER, ack_consumer
from liftenvelope.gateway._acks.reader import PartitionAckReader
from liftenvelope.nats import accelerate
from liftenvelope.testing import NatsServer
from tests.integration.conftest import connect, until
from tests.integration.jetstream.test_pull_cluster import cluster

from .test_acks import Partition

__all__ = ["cluster"]


async def made(nc: Client, name: str) -> Partition:
    """A partition on all three, as soon as they have found each other."""
    partition = Partition(nc, name)
    await partition.listen()
    async with asyncio.timeout(60):
        while True:
            try:
                return await partition.store(num_replicas=3)
            except (JetStreamError, CallTimeoutError):
                await asyncio.sleep(0.1)


async def started(reader: PartitionAckReader) -> PartitionAckReader:
    """Start a reader, again and again: servers that have just elected a leader may answer late."""
    async with asyncio.timeout(120):
        while True:
            try:
                await reader.start()
            except (JetStreamError, CallTimeoutError):
                await asyncio.sleep(0.1)
            else:
                return reader


@asynccontextmanager
async def reading(reader: PartitionAckReader) -> AsyncIterator[PartitionAckReader]:
    await started(reader)
    try:
        yield reader
    finally:
        await reader.close()


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
    await partition.listen()
    await nc.close()
    async with reading(partition.reader(gateway, heartbeat=1.0)):
        await acked(partition, *(f"a{number}" for number in range(200)))
        for consumer in await listed(partition):
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


async def listed(partition: Partition) -> list[dict[str, Any]]:
    """Return the ack consumers, none if nobody answers just now."""
    try:
        return await partition.consumers()
    except (JetStreamError, CallTimeoutError):
        return []


async def host_of(partition: Partition, reader: PartitionAckReader) -> str:
    """Return the server that holds the reader's consumer, once no other consumer is listed.

    A new consumer is listed before the old one is deleted, and before its server is known.
    """
    async with asyncio.timeout(60):
        while True:
            consumers = await listed(partition)
            names = [consumer["name"] for consumer in consumers]
            # The reader is bound when it has deleted the others, and knows that.
            if names == [reader._consumer] == [reader._bound]:
                assert consumers[0]["config"]["num_replicas"] == 1
                if leader := consumers[0].get("cluster", {}).get("leader"):
                    return str(leader)
            await asyncio.sleep(0.05)


async def host_other_than(home: str, partition: Partition, reader: PartitionAckReader) -> str:
    """Have the reader replace its consumer until another server holds it; return that server."""
    async with asyncio.timeout(120):
        while (host := await host_of(partition, reader)) == home:
            before = reader._consumer
            reader.server_lost()
            await until(lambda before=before: reader._consumer != before)  # type: ignore[misc]
        return host


async def until_all_done(partition: Partition) -> None:
    """Wait until JetStream has heard that every message so far is dealt with, the copies of acked() as well.

    Copies of one connection are stored in order, so none comes after a message that was published last.
    """
    await acked(partition, "last")
    async with asyncio.timeout(60):
        while True:
            try:
                return await partition.all_done()
            except (JetStreamError, CallTimeoutError):
                await asyncio.sleep(0.1)


async def test_server_that_holds_the_ack_consumer_is_lost(cluster: dict[str, NatsServer], name: str) -> None:
    gateway, publisher = await connect(cluster["n1"].url), await connect(cluster["n1"].url)
    accelerate(gateway)
    partition = await made(publisher, name)
    # Heartbeats are as rare as those of a gateway: no reader waits for them.
    async with reading(partition.reader(gateway, heartbeat=300.0)) as reader:
        await acked(partition, *(f"a{number}" for number in range(50)))
        host = await host_other_than("n1", partition, reader)  # this connection is to stay
        await until_all_done(partition)
        before = [ident for ident in partition.ids if ident.startswith("a")]
        await asyncio.to_thread(cluster[host].kill)
        await acked(partition, *(f"b{number}" for number in range(50)))
        # What had its ack is not acked again: the reader knows where it was.
        assert [ident for ident in partition.ids if ident.startswith("a")] == before
        await asyncio.to_thread(cluster[host].start)
        await acked(partition, *(f"c{number}" for number in range(50)))

        async def alone() -> bool:
            try:
                names = await partition.api.request(f"CONSUMER.NAMES.{name}")
            except (JetStreamError, CallTimeoutError):
                return False
            return len(names["consumers"]) == 1

        async with asyncio.timeout(60):
            while not await alone():
                await asyncio.sleep(0.1)
    await gateway.close()
    await publisher.close()


async def test_reader_and_the_server_of_its_consumer_are_lost_together(
    cluster: dict[str, NatsServer], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await connect(cluster["n1"].url), await connect(cluster["n1"].url)
    for nc in (first, second):
        accelerate(nc)
    partition = await made(second, name)
    reader = await started(partition.reader(first, heartbeat=300.0))
    host = await host_other_than("n1", partition, reader)
    await acked(partition, *(f"a{number}" for number in range(50)))
    await reader.close()
    await asyncio.to_thread(cluster[host].kill)
    partition.acks.clear()
    async with asyncio.timeout(120):
        while (await leader_of(partition)) == host:
            await asyncio.sleep(0.05)
    await partition.publish(*(f"b{number}" for number in range(50)))
    ahead, now = 3_600 * 10**9, time.time_ns
    monkeypatch.setattr(
        time, "time_ns", lambda: now() + ahead
    )  # the clock of the next gateway is not JetStream's
    # A gateway makes a new reader for each attempt to lead a partition.
    async with asyncio.timeout(120):
        while True:
            reader = partition.reader(second, heartbeat=300.0)
            try:
                await reader.start()
                break
            except (JetStreamError, CallTimeoutError):
                await asyncio.sleep(0.1)
    # The floor is lost: the messages of the last minute are acked, those that had their acks once more.
    await until(lambda: {f"a{number}" for number in range(50)} <= set(partition.ids))
    await acked(partition, *(f"{letter}{number}" for letter in "ab" for number in range(50)))
    await reader.close()
    await first.close()
    await second.close()


async def test_replicated_consumer_of_an_older_gateway_is_replaced(
    cluster: dict[str, NatsServer], name: str
) -> None:
    nc = await connect(cluster["n1"].url)
    accelerate(nc)
    partition = await made(nc, name)
    reader = partition.reader(nc)
    config = {**ack_consumer(f"{ACK_CONSUMER}old", nc.new_inbox(), 1, 30.0), "num_replicas": 3}
    request = {"stream_name": name, "config": config}
    async with asyncio.timeout(60):
        while True:
            try:
                await partition.api.request(f"CONSUMER.CREATE.{name}.{ACK_CONSUMER}old", request)
                break
            except (JetStreamError, CallTimeoutError):
                await asyncio.sleep(0.1)
    await partition.publish("a", "b")
    async with reading(reader):
        await acked(partition, "a", "b")
        await host_of(partition, reader)
    await nc.close()


async def step_down(partition: Partition, subject: str) -> None:
    """Have a leader step down; it does not matter if there is none just now."""
    try:
        await partition.api.request(subject)
    except (JetStreamError, CallTimeoutError):
        await asyncio.sleep(0.1)
