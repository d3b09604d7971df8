"""Partitions that a gateway remembers for publishes: how many, and how often it looks at them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client import Client
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._cluster.records import StreamRecord
from liftenvelope.gateway._cluster.registry import StreamRegistry
from liftenvelope.gateway._publishing import intake
from liftenvelope.gateway._publishing.intake import Intake
from liftenvelope.gateway._streams.service import StreamService
from liftenvelope.rpc.aio import Channel
from liftenvelope.testing import run_nats_server
from tests.integration.conftest import connect

PARTITIONS = 40


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with Gateway(nc, broker_ttl=60.0) as serving:
            yield serving
        await nc.close()


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[Client]:
    async with liftenvelope.connect([gateway.address], timeout=240) as client:
        yield client


async def test_batch_for_one_partition_does_not_look_at_all_partitions_of_the_call(
    gateway: Gateway, client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_stream(name, name, partitions=PARTITIONS)
    looks = 0
    known = StreamRegistry.known

    def counted(registry: StreamRegistry, stream: str) -> StreamRecord | None:
        nonlocal looks
        looks += 1
        return known(registry, stream)

    def request(partition: int) -> bytes:
        return api_pb2.PublishRequest(stream=name, partition=partition, value=b"x").SerializeToString()

    async with await Channel.connect(gateway.address) as channel:
        call = channel.bidi("/proto.API/PublishAsync")
        # Twice, because the event of the new stream may be removed from its record meanwhile.
        for partition in [*range(PARTITIONS)] * 2:
            await call.send([request(partition)])
            await anext(call)
        monkeypatch.setattr(StreamRegistry, "known", counted)
        for _ in range(PARTITIONS):
            await call.send([request(0)])
            await anext(call)
        call.cancel()
    assert looks < PARTITIONS**2 / 2


async def test_deleted_streams_are_forgotten(
    gateway: Gateway, client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "_LEAST_ROOM", 3)
    assert gateway._running is not None
    core = gateway._running.core
    publishing = Intake(core, StreamService(core))
    await client.create_stream(name, name)
    await publishing.target(api_pb2.PublishRequest(stream=name))
    for number in range(10):
        stream = f"{name}-{number}"
        await client.create_stream(stream, stream)
        await publishing.target(api_pb2.PublishRequest(stream=stream))
        await client.delete_stream(stream)
    assert len(publishing._targets) <= 3
    assert (await publishing.target(api_pb2.PublishRequest(stream=name))).record.name == name
