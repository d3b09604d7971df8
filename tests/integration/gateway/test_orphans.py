"""Partitions in JetStream that a killed gateway made for a stream which another one had removed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._cluster.records import PartitionRecord, StreamPhase, StreamRecord
from liftenvelope.gateway._leader import leading
from liftenvelope.gateway._partitions.storage import Storage
from liftenvelope.gateway._protocol.names import partition_stream
from liftenvelope.gateway._streams.orphans import remove_all_orphans
from liftenvelope.gateway._streams.repairing import Repairs
from liftenvelope.gateway._streams.unfinished import UnfinishedStreams
from liftenvelope.jetstream import JetStream
from liftenvelope.testing import NatsServer
from tests.conformance.actions import eventually, read
from tests.handled import handled
from tests.integration.conftest import until


@pytest.fixture
def nats_url(own_nats: NatsServer) -> str:
    return own_nats.url


@pytest.fixture
async def js(nc: NatsClient) -> AsyncIterator[JetStream]:
    async with JetStream(nc) as js:
        yield js


@pytest.fixture
async def gateway(nc: NatsClient) -> AsyncIterator[Gateway]:
    async with Gateway(nc) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[Client]:
    async with liftenvelope.connect([gateway.address]) as client:
        yield client


async def leave(gateway: Gateway, js: JetStream, name: str, partitions: int = 1) -> None:
    """Leave partitions whose creator was killed, with a message in the first one.

    It was taken for dead in the middle of the creation, and the gateway has undone that.
    """
    assert gateway._running is not None
    core = gateway._running.core
    record = StreamRecord(
        name=name,
        subject=name,
        id="dead",
        maker="dead",
        state=StreamPhase.CREATING,
        partitions=(PartitionRecord(),) * partitions,
    )
    await core.registry.create(record)
    await UnfinishedStreams(core, Repairs(core)).remove(record)
    for number in range(partitions):
        await Storage(js).create(record, number)
    await js.publish(name, b"of no stream")


async def is_gone(js: JetStream, name: str) -> bool:
    return partition_stream(name, 0) not in [one async for one in js.stream_names()]


async def remove(gateway: Gateway) -> None:
    assert gateway._running is not None
    await remove_all_orphans(gateway._running.core)


async def test_stream_of_the_same_name_can_be_created(
    gateway: Gateway, client: Client, js: JetStream, name: str
) -> None:
    await leave(gateway, js, name, partitions=2)
    await client.create_stream(name, name, partitions=2)
    for partition in range(2):
        ack = await client.publish(name, b"first", partition=partition)
        assert ack is not None
        assert ack.offset == 0


async def test_next_gateway_removes_them(nc: NatsClient, js: JetStream, name: str) -> None:
    async with Gateway(nc) as gateway:
        await leave(gateway, js, name)
    async with Gateway(nc):
        await eventually(lambda: is_gone(js, name))


async def test_running_gateway_removes_them(
    nc: NatsClient, js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "_SELDOM", 0.05)
    monkeypatch.setattr(leading, "_CHECK_EVERY", 1)
    async with Gateway(nc) as gateway:
        assert gateway._running is not None
        at_start = gateway._running.leading
        await until(lambda: not at_start._check)
        await leave(gateway, js, name)
        await eventually(lambda: is_gone(js, name))


async def test_copy_takes_over_the_subject_with_all_messages(
    gateway: Gateway, client: Client, js: JetStream, name: str
) -> None:
    await leave(gateway, js, name)
    await client.create_stream(name, f"{name}-copy")
    await js.publish(name, b"copied")
    await read(client, f"{name}-copy", start=0, stop=0)
    await remove(gateway)
    assert await is_gone(js, name)
    await js.publish(name, b"recorded")
    found = await read(client, f"{name}-copy", start=0, stop=1)
    assert [message.value for message in found] == [b"copied", b"recorded"]


async def test_partition_beyond_those_of_a_later_stream_is_removed(
    gateway: Gateway, client: Client, js: JetStream, name: str
) -> None:
    await leave(gateway, js, name, partitions=2)
    await js.delete_stream(partition_stream(name, 0))
    await client.create_stream(name, name)
    await remove(gateway)
    names = [one async for one in js.stream_names()]
    assert partition_stream(name, 1) not in names
    assert partition_stream(name, 0) in names


async def test_restored_partition_of_a_deleted_stream_stays(
    gateway: Gateway, client: Client, js: JetStream, name: str
) -> None:
    await leave(gateway, js, f"{name}-undone")
    await client.create_stream(name, name)
    stream = await js.stream(partition_stream(name, 0))
    await client.delete_stream(name)
    await js.create_stream(stream.cached_info.config)
    await js.publish(name, b"restored")
    await remove(gateway)
    assert not await is_gone(js, name)
    with pytest.raises(LiftEnvelopeError, match="stream name already in use"):
        await client.create_stream(name, name)
    assert not await is_gone(js, name)


async def test_partition_that_records_nothing_is_repaired_without_a_change(
    nc: NatsClient, js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last request of a killed gateway may arrive late."""
    monkeypatch.setattr(leading, "_SELDOM", 0.05)
    monkeypatch.setattr(leading, "_CHECK_EVERY", 1)
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
        assert gateway._running is not None
        at_start = gateway._running.leading
        await until(lambda: not at_start._check)
        record = gateway._running.core.registry.known(name)
        assert record is not None
        await Storage(js).detach(record, 0)

        async def is_stored() -> bool:
            await nc.publish(name, b"raw")
            await handled(nc)
            return (await client.fetch_partition_metadata(name)).newest_offset >= 0

        await eventually(is_stored)
