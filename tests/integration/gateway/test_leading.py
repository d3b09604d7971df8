"""The leader work of partitions ends with its gateway, whatever it does at that moment."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope._backoff import Backoff
from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._acks import reader as ack_reader
from liftenvelope.gateway._acks.reader import PartitionAckReader
from liftenvelope.gateway._leader import leading as leading_module
from liftenvelope.gateway._leader.led_partition import LedPartition
from liftenvelope.gateway._protocol.names import partition_stream
from liftenvelope.nats.receiving import DirectSubscription
from liftenvelope.testing import NatsServer
from tests.integration.conftest import until


@pytest.fixture
def nats_url(jetstream_server: NatsServer) -> str:
    return jetstream_server.url


async def test_gateway_that_closes_while_it_stops_leading_closes_the_ack_readers(
    nc: NatsClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked: the first attempt to close a reader takes long."""
    close, begun = PartitionAckReader.close, asyncio.Event()

    async def close_slowly(reader: PartitionAckReader) -> None:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        await close(reader)

    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
        assert gateway._running is not None
        leading = gateway._running.leading
        await until(lambda: name in {stream for stream, _, _ in leading.readers()})
        [reader] = [reader for stream, _, reader in leading.readers() if stream == name]
        monkeypatch.setattr(PartitionAckReader, "close", close_slowly)
        await client.delete_stream(name)
        await begun.wait()
        assert isinstance(reader._subscription, DirectSubscription)
    assert not isinstance(reader._subscription, DirectSubscription)
    assert reader._task is None


async def test_deletion_of_a_stream_is_no_reason_to_warn_of_its_acks(
    nc: NatsClient, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Slowed down: JetStream tells the reader of the deletion before the gateway closes it."""
    close, told = PartitionAckReader.close, asyncio.Event()

    async def close_once_told(reader: PartitionAckReader) -> None:
        await told.wait()
        await close(reader)

    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
        assert gateway._running is not None
        leading = gateway._running.leading
        await until(lambda: name in {stream for stream, _, _ in leading.readers()})
        [reader] = [reader for stream, _, reader in leading.readers() if stream == name]
        tell = reader._on_error
        assert tell is not None

        def note(error: LiftEnvelopeError) -> None:
            tell(error)
            told.set()

        monkeypatch.setattr(reader, "_on_error", note)
        monkeypatch.setattr(PartitionAckReader, "close", close_once_told)
        await client.delete_stream(name)
        await told.wait()
        assert not [record for record in caplog.records if "acks of" in record.message]


async def test_acks_go_on_as_soon_as_the_lease_is_back(
    nc: NatsClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked: the end of the lease, before its time. A reader that paused would go on after hours."""
    monkeypatch.setattr(ack_reader, "Backoff", lambda **_: Backoff(first=10_000.0, longest=10_000.0))
    async with Gateway(nc, broker_ttl=600.0) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
        assert gateway._running is not None
        leading = gateway._running.leading
        brokers = leading._core.brokers
        await until(lambda: [reader for stream, _, reader in leading.readers() if stream == name])
        [reader] = [reader for stream, _, reader in leading.readers() if stream == name]
        await until(lambda: reader.is_bound)
        inbox = nc.new_inbox()
        acks = await nc.subscribe(inbox)
        brokers._lease.end()
        await nc.publish(name, new_message(b"x", ack_inbox=inbox))
        await until(lambda: not reader.is_bound)
        await brokers._beat()
        assert unmarshal_ack((await acks.next_msg(240)).data).stream == name


async def test_leader_work_that_ends_with_a_defect_is_logged_and_makes_the_gateway_unready(
    nc: NatsClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Faked: there is no known defect."""

    async def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    async with Gateway(nc, broker_ttl=60.0) as gateway:
        await until(lambda: gateway.readiness().is_ready)
        assert gateway._running is not None
        leading = gateway._running.leading
        monkeypatch.setattr(leading, "_settle", fail)
        leading.look()
        await until(lambda: "partitions" in gateway.readiness().reasons)
        assert dict(gateway.readiness().reasons) == {"partitions": "the leader work has ended with a defect"}
        [record] = [one for one in caplog.records if "ended with a defect" in one.message]
        assert record.exc_info is not None


async def test_partition_recreated_during_its_start_does_not_wait_for_the_start_of_others(
    nc: NatsClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slowed down: partition 0 never starts, and partition 1 not before its stream was recreated."""
    monkeypatch.setattr(leading_module, "_SLOW", 0.1)
    monkeypatch.setattr(leading_module, "_SELDOM", 10_000.0)
    start, begun, recreated = LedPartition.start, asyncio.Event(), asyncio.Event()

    async def start_slowly(led: LedPartition) -> None:
        if led.stream.startswith(partition_stream(name, 0)):
            await asyncio.Event().wait()
        if led.stream.startswith(partition_stream(name, 1)) and not begun.is_set():
            begun.set()
            await recreated.wait()
        await start(led)

    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        assert gateway._running is not None
        leading, registry = gateway._running.leading, gateway._running.core.registry
        monkeypatch.setattr(LedPartition, "start", start_slowly)
        await client.create_stream(name, name, partitions=2)
        await begun.wait()
        await client.delete_stream(name)
        await client.create_stream(name, name, partitions=2)
        record = registry.known(name)
        assert record is not None
        await until(lambda: not leading._wanted.is_set())  # a pass has left out both partitions
        recreated.set()
        await until(lambda: [led.record_id for led in leading._led.get(name, {}).values()] == [record.id])
