"""Acks of everything that JetStream has received, also of messages that still wait to be stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client

import liftenvelope
from liftenvelope.gateway import Gateway
from liftenvelope.testing import NatsServer, run_nats_server
from tests.handled import handled
from tests.integration.conftest import connect, until
from tests.integration.gateway.test_acks import Partition, patient_readers

__all__ = ["patient_readers"]

#: Fewer than the 10,000 messages that a stream's queue holds. A synchronous write of each takes seconds.
BACKLOG = 9_000


@pytest.fixture(scope="module")
def slow_server() -> Any:
    """A server that writes each message to the disk before it stores the next one."""
    with run_nats_server(jetstream=True, config={"jetstream": {"sync_interval": "always"}}) as server:
        yield server


@pytest.fixture
def nats_url(slow_server: NatsServer) -> str:
    return slow_server.url


@pytest.fixture
async def partition(nc: Client, name: str) -> Partition:
    return await Partition(nc, name).create(max_msgs=BACKLOG)


async def caught_up(partition: Partition, reader: Any) -> list[int]:
    """Return the offsets that were acked when ``catch_up`` returned."""
    async with asyncio.timeout(240):
        await reader.catch_up(partition.js)
    await handled(partition.nc)
    return sorted(ack.offset for ack in partition.acks)


async def test_backlog_is_acked_however_slowly_it_is_stored(partition: Partition) -> None:
    async with partition.reader() as reader:
        await partition.publish(*map(str, range(BACKLOG)))
        assert await caught_up(partition, reader) == list(range(BACKLOG))


async def test_partition_without_messages_is_caught_up(partition: Partition) -> None:
    async with partition.reader() as reader:
        assert await caught_up(partition, reader) == []


async def test_earlier_readers_acks_count(partition: Partition) -> None:
    async with partition.reader() as reader:
        await partition.publish("a", "b")
        assert await caught_up(partition, reader) == [0, 1]
        await partition.all_done()
    async with partition.reader() as reader:
        assert await caught_up(partition, reader) == [0, 1]


async def test_removed_messages_are_not_waited_for(partition: Partition) -> None:
    await partition.publish("a", "b", "c")
    await partition.stored(3)
    for sequence in (1, 3):
        await partition.api.request(f"STREAM.MSG.DELETE.{partition.name}", {"seq": sequence})
    async with partition.reader() as reader:
        assert await caught_up(partition, reader) == [1]


@pytest.mark.parametrize("subject", ["{}.one.*", "{}.all.>"])
async def test_nobody_sees_how_the_queue_is_waited_for(nc: Client, name: str, subject: str) -> None:
    partition = await Partition(nc, name).create(subjects=[subject.format(name)])
    seen = await nc.subscribe(f"{name}.>")
    traced = await nc.subscribe("_lift.>")
    await handled(nc)
    async with partition.reader() as reader:
        assert await caught_up(partition, reader) == []
    assert (seen.pending_msgs, (await partition.state())["last_seq"]) == (0, 0)
    assert [(await traced.next_msg(60)).subject] == ["_lift.traces"]
    assert traced.pending_msgs == 0


async def test_partition_that_records_nothing_is_caught_up(nc: Client, name: str) -> None:
    source = await Partition(nc, f"{name}-source").create()
    copy = await Partition(nc, name).create(subjects=[], sources=[{"name": source.name}])
    await source.publish("a")
    await copy.stored(1)
    async with copy.reader() as reader:
        await reader.catch_up(copy.js)
        assert reader.acks_sent == 1


async def test_draining_gateway_acks_the_backlog(slow_server: NatsServer, nc: Client, name: str) -> None:
    gateway_nc = await connect(slow_server.url)
    gateway = Gateway(gateway_nc, broker_ttl=60.0)
    await gateway.start()
    async with liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
    partition = Partition(nc, name)
    await partition.listen()
    await partition.publish("first")
    await until(lambda: partition.acks)  # the gateway leads the partition
    await partition.publish(*map(str, range(1, BACKLOG)))
    await gateway.close(grace=240)
    await handled(nc)
    await gateway_nc.close()
    assert sorted(ack.offset for ack in partition.acks) == list(range(BACKLOG))
