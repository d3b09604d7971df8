"""What is left half done is finished or undone: by the next gateway, and by the same one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client import Client
from liftenvelope.gateway import Gateway
from liftenvelope.gateway.activity import deleted, paused, resumed
from liftenvelope.gateway.names import encode_name, partition_stream
from liftenvelope.gateway.records import PartitionRecord, RecordedEvent, StreamPhase, StreamRecord
from liftenvelope.gateway.reserved import ACTIVITY
from liftenvelope.gateway.storage import Storage
from liftenvelope.jetstream import JetStream
from liftenvelope.jetstream.bucket import Bucket
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError
from liftenvelope.testing import NatsServer, run_nats_server
from tests.conformance.actions import eventually, fill, read
from tests.integration.conftest import connect


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """A NATS server of these tests' own: they write into the buckets of the gateways."""
    with run_nats_server(jetstream=True) as server:
        yield server


@pytest.fixture
async def nc(server: NatsServer) -> AsyncIterator[NatsClient]:
    client = await connect(server.url)
    yield client
    await client.close()


@pytest.fixture
async def js(nc: NatsClient) -> AsyncIterator[JetStream]:
    async with JetStream(nc) as js:
        yield js


async def leave_behind(js: JetStream, record: StreamRecord, partitions: int) -> None:
    """What a gateway leaves that dies after it has put a record and made so many partitions."""
    bucket = Bucket(js, "lift_streams")
    await bucket.create()
    await bucket.put(encode_name(record.name), record.to_json())
    for number in range(partitions):
        await Storage(js).create(record, number)


@pytest.mark.parametrize("state", [StreamPhase.CREATING, StreamPhase.DELETING])
@pytest.mark.parametrize("partitions", [0, 1, 3])
async def test_streams_that_the_dead_left(
    nc: NatsClient, js: JetStream, name: str, state: StreamPhase, partitions: int
) -> None:
    parts = (PartitionRecord(),) * 3
    record = StreamRecord(name=name, subject=name, id="1", maker="dead", state=state, partitions=parts)
    await leave_behind(js, record, partitions)
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        assert name not in (await client.fetch_metadata()).streams

        async def is_free() -> bool:
            try:
                await client.create_stream(name, name, partitions=3)
            except liftenvelope.errors.StreamExistsError:
                return False
            return True

        await eventually(is_free)
        assert await fill(client, name, 1, partition=2) == [0]


async def test_streams_of_living_gateways_are_left_to_them(
    server: NatsServer, nc: NatsClient, js: JetStream, name: str
) -> None:
    async with Gateway(nc, id=f"{name}-one"):
        record = StreamRecord(
            name=name, subject=name, id="1", maker=f"{name}-two", state=StreamPhase.CREATING
        )
        second = await connect(server.url)
        async with Gateway(second, id=f"{name}-two") as other:
            await leave_behind(js, record, 1)
            # The other one is not making it: it undoes it, before it goes or later.
            async with liftenvelope.connect([other.address]) as client:
                await client.create_stream(f"{name}-next", f"{name}-next")

                async def is_gone() -> bool:
                    entry = await Bucket(js, "lift_streams").get(encode_name(name))
                    return entry.value is None

                await eventually(is_gone)
        await second.close()


def left_over(gateway: str, *events: api_pb2.ActivityStreamEvent) -> tuple[RecordedEvent, ...]:
    """What a gateway leaves in a record that dies before it has told of it."""
    return tuple(
        RecordedEvent(
            token=f"{event.op}-{gateway}", gateway=gateway, run="1", data=event.SerializeToString().hex()
        )
        for event in events
    )


async def told(js: JetStream, name: str) -> list[int]:
    """The operations that the activity stream has of a stream."""
    stream = await js.stream(partition_stream(ACTIVITY, 0))
    last = (await stream.info()).state.last_seq
    stored = [await stream.get_message(number) for number in range(1, last + 1)]
    events = [api_pb2.ActivityStreamEvent.FromString(message.data) for message in stored]
    assert [event.id for event in events] == list(range(1, last + 1))
    return [event.op for event in events if name in str(event)]


@pytest.mark.parametrize("who", ["dead", "again"])
async def test_what_the_dead_did_not_tell(nc: NatsClient, js: JetStream, name: str, who: str) -> None:
    bucket, key = Bucket(js, "lift_streams"), encode_name(name)
    async with Gateway(nc, id=f"{name}-again") as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
    entry = await bucket.get(key)
    assert entry is not None
    assert entry.value is not None
    record = StreamRecord.from_json(entry.value)
    events = left_over(f"{name}-{who}", paused(name, [0], False), resumed(name, [0]))
    garbage = RecordedEvent(token="t", gateway=f"{name}-{who}", run="1", data="no hex")
    await bucket.put(key, record.with_events((garbage, *events)).to_json(), revision=entry.revision)
    async with Gateway(nc, id=f"{name}-again") as gateway:
        async with liftenvelope.connect([gateway.address]) as client:

            async def is_told() -> bool:
                entry = await bucket.get(key)
                assert entry is not None
                assert entry.value is not None
                return StreamRecord.from_json(entry.value).events == (garbage,)

            await eventually(is_told)
            await client.delete_stream(name)
        # What is told is told before the record goes.
        ops = [api_pb2.CREATE_STREAM, api_pb2.PAUSE_STREAM, api_pb2.RESUME_STREAM, api_pb2.DELETE_STREAM]
        assert await told(js, name) == ops


async def test_a_removal_that_the_dead_did_not_tell(nc: NatsClient, js: JetStream, name: str) -> None:
    events = left_over("dead", deleted(name))
    record = StreamRecord(
        name=name, subject=name, id="1", maker="dead", state=StreamPhase.DELETING, events=events
    )
    await leave_behind(js, record, 1)
    async with Gateway(nc):

        async def is_gone() -> bool:
            entry = await Bucket(js, "lift_streams").get(encode_name(name))
            return entry.value is None

        await eventually(is_gone)
        assert await told(js, name) == [api_pb2.DELETE_STREAM]


async def test_a_subject_that_nobody_records(nc: NatsClient, js: JetStream, name: str) -> None:
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
        await client.create_stream(name, f"{name}-copy")
        await fill(client, name, 2)
        await read(client, f"{name}-copy", start=0, stop=1)
    # As if a gateway had died after it had stopped the first stream and before another took the subject over.
    record = StreamRecord(name=name, subject=name, id="1")
    await Storage(js).detach(record, 0)
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:

        async def is_stored(stream: str = name) -> bool:
            await nc.publish(name, b"x")
            await nc.flush()
            return (await client.fetch_partition_metadata(stream)).newest_offset >= 2

        await eventually(is_stored)
        await eventually(lambda: is_stored(f"{name}-copy"))


async def test_garbage_in_the_buckets(nc: NatsClient, js: JetStream, name: str) -> None:
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        for bucket in ("lift_streams", "lift_brokers"):
            for key, value in ((f"{name}-x", b"garbage"), (f"{name}-y", b'{"name":7}'), (f"{name}-z", b"")):
                await Bucket(js, bucket).put(key, value)
        await client.create_stream(name, name)
        assert await fill(client, name, 1) == [0]
    # It does not keep a gateway from starting either.
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        assert await fill(client, name, 1) == [1]
        await client.delete_stream(name)


async def test_what_it_has_made_is_not_known_yet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faked: only a cluster loses what was made a moment ago, when the leader that made it is replaced."""
    create = Bucket.create
    lost: list[str] = []

    async def create_and_lose(bucket: Bucket) -> None:
        await create(bucket)
        if bucket.stream.startswith("KV_lift_") and bucket.stream not in lost:  # not that of the groups
            lost.append(bucket.stream)
            await bucket.js.delete_stream(bucket.stream)

    monkeypatch.setattr(Bucket, "create", create_and_lose)
    with run_nats_server(jetstream=True) as own:
        nc = await connect(own.url)
        async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
            await client.create_stream(name, name)
            assert await fill(client, name, 1) == [0]
            await client.set_cursor("reader", name, 0, 7)
            assert await client.fetch_cursor("reader", name, 0) == 7
    assert lost == ["KV_lift_streams", "KV_lift_brokers", "KV_lift_cursors"]


@pytest.mark.parametrize("after", [0.0, 0.002, 0.01])
async def test_callers_that_do_not_wait(nc: NatsClient, name: str, after: float) -> None:
    request = api_pb2.CreateStreamRequest(name=name, subject=name, partitions=5).SerializeToString()
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        async with await Channel.connect(gateway.address) as channel:
            call = asyncio.create_task(channel.unary("/proto.API/CreateStream", request, timeout=60))
            await asyncio.sleep(after)
            call.cancel()
            await asyncio.wait([call])
        await settle(client, name)
        async with await Channel.connect(gateway.address) as channel:
            delete = api_pb2.DeleteStreamRequest(name=name).SerializeToString()
            call = asyncio.create_task(channel.unary("/proto.API/DeleteStream", delete, timeout=60))
            await asyncio.sleep(after)
            call.cancel()
            await asyncio.wait([call])
        await settle(client, name)


async def settle(client: Client, name: str) -> None:
    """Make a stream; it exists then, whatever was begun before."""

    async def is_there() -> bool:
        try:
            await client.create_stream(name, name, partitions=5)
        except liftenvelope.errors.StreamExistsError:
            return await is_usable(client, name)
        return True

    await eventually(is_there)


async def is_usable(client: Client, name: str) -> bool:
    """Whether it can be published to, which it can't while it is being removed."""
    try:
        await client.publish(name, b"x", partition=4, timeout=2)
    except (liftenvelope.errors.LiftEnvelopeError, RpcError):
        return False
    return True
