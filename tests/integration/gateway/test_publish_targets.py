"""Partitions that a gateway remembers for publishes: how many, and how often it looks at them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from nats.aio.msg import Msg

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
from tests.handled import handled
from tests.integration.conftest import connect, until

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


async def test_change_of_one_stream_keeps_the_routes_of_the_others(
    gateway: Gateway, client: Client, name: str
) -> None:
    changed, kept = f"{name}-changed", f"{name}-kept"
    assert gateway._running is not None
    core = gateway._running.core
    for stream in (changed, kept):
        await client.create_stream(stream, stream)
    # The removal of an event from a stream's record is a change, too.
    await until(lambda: not any(record.events for record in core.registry))
    inboxes: dict[str, list[str]] = {changed: [], kept: []}

    async def note(msg: Msg) -> None:
        inboxes[msg.subject].append(msg.reply.rpartition(".")[0])

    for stream in inboxes:
        await core.nc.subscribe(stream, cb=note)
    await handled(core.nc)
    async with await Channel.connect(gateway.address) as channel:
        call = channel.bidi("/proto.API/PublishAsync")

        async def publish(stream: str) -> None:
            await call.send([api_pb2.PublishRequest(stream=stream, value=b"x").SerializeToString()])
            await anext(call)

        for stream in (changed, kept, changed, kept):
            await publish(stream)
        for readonly in (True, False):
            await client.set_stream_readonly(changed, readonly=readonly)
        for stream in (changed, kept):
            await publish(stream)
        call.cancel()
    await until(lambda: min(map(len, inboxes.values())) == 3)
    # The first message of a partition has an inbox that all calls share, and the next ones that of the call.
    shared, own = inboxes[kept][0], inboxes[kept][1]
    assert shared != own
    assert inboxes[kept] == [shared, own, own]
    assert inboxes[changed] == [shared, own, shared]


async def test_messages_for_a_missing_stream_do_not_each_read_its_record(
    gateway: Gateway, client: Client, name: str
) -> None:
    assert gateway._running is not None
    nc, count, reads = gateway._running.core.nc, 5_000, 0

    async def note(_: Msg) -> None:
        nonlocal reads
        reads += 1

    await nc.subscribe("$JS.API.STREAM.MSG.GET.KV_lift_streams", cb=note)
    await handled(nc)
    request = api_pb2.PublishRequest(stream=name, value=b"x")
    async with await Channel.connect(gateway.address) as channel:
        call = channel.bidi("/proto.API/PublishAsync")
        sending = asyncio.create_task(call.send([request.SerializeToString()] * count))
        answers = [api_pb2.PublishResponse.FromString(await anext(call)) for _ in range(count)]
        await sending
        assert {answer.asyncError.code for answer in answers} == {api_pb2.PublishAsyncError.NOT_FOUND}
        await handled(nc)
        assert 1 <= reads < count / 10
        await client.create_stream(name, name)
        await call.send([request.SerializeToString()])
        assert api_pb2.PublishResponse.FromString(await anext(call)).ack.stream == name
        call.cancel()


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
