"""Incomplete changes of streams are finished or undone, by the next gateway and by the same one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from google.protobuf.message import Message
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client import Client
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._cluster.activity import deleted, paused, resumed
from liftenvelope.gateway._cluster.records import PartitionRecord, RecordedEvent, StreamPhase, StreamRecord
from liftenvelope.gateway._partitions import probes
from liftenvelope.gateway._partitions.probes import remove_old_probes
from liftenvelope.gateway._partitions.storage import Storage
from liftenvelope.gateway._protocol.names import encode_name, partition_stream
from liftenvelope.gateway._streams import service as changing_streams
from liftenvelope.gateway._streams.reserved import ACTIVITY
from liftenvelope.jetstream import DiscardPolicy, JetStream, StreamConfig, StreamSource
from liftenvelope.jetstream.bucket import Bucket
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError
from liftenvelope.testing import NatsServer, run_nats_server
from tests.conformance.actions import PATIENCE, eventually, fill, read
from tests.handled import handled
from tests.integration.conftest import connect


@pytest.fixture
def nats_url(own_nats: NatsServer) -> str:
    return own_nats.url


@pytest.fixture
async def js(nc: NatsClient) -> AsyncIterator[JetStream]:
    async with JetStream(nc) as js:
        yield js


async def leave_behind(js: JetStream, record: StreamRecord, partitions: int) -> None:
    """Leave the state of a gateway that died after it stored a record and created some partitions."""
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
    own_nats: NatsServer, nc: NatsClient, js: JetStream, name: str
) -> None:
    async with Gateway(nc, id=f"{name}-one"):
        record = StreamRecord(
            name=name, subject=name, id="1", maker=f"{name}-two", state=StreamPhase.CREATING
        )
        second = await connect(own_nats.url)
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
    """Return the events in a record of a gateway that died before it published them."""
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


async def until_told(js: JetStream, name: str, ops: Sequence[int]) -> None:
    """Wait until the activity stream has these operations: a call waits a limited time for its event."""

    async def are_told() -> bool:
        return await told(js, name) == list(ops)

    await eventually(are_told)


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
        ops = [api_pb2.CREATE_STREAM, api_pb2.PAUSE_STREAM, api_pb2.RESUME_STREAM, api_pb2.DELETE_STREAM]
        await until_told(js, name, ops)


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
        await until_told(js, name, [api_pb2.DELETE_STREAM])


async def test_a_subject_that_nobody_records(nc: NatsClient, js: JetStream, name: str) -> None:
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
        await client.create_stream(name, f"{name}-copy")
        await fill(client, name, 2)
        await read(client, f"{name}-copy", start=0, stop=1)
    # As if a gateway had died after it had stopped the first stream and before another took the subject over.
    storage = Storage(js)
    id_ = await storage.id_of(partition_stream(name, 0))
    assert id_
    await storage.detach(StreamRecord(name=name, subject=name, id=id_), 0)
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:

        async def is_stored(stream: str = name) -> bool:
            await nc.publish(name, b"x")
            await handled(nc)
            return (await client.fetch_partition_metadata(stream)).newest_offset >= 2

        await eventually(is_stored)
        await eventually(lambda: is_stored(f"{name}-copy"))


async def test_garbage_in_the_buckets(nc: NatsClient, js: JetStream, name: str) -> None:
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        for bucket in ("lift_streams", "lift_brokers"):
            for key, value in ((f"{name}-x", b"garbage"), (f"{name}-y", b'{"name":7}'), (f"{name}-z", b"")):
                await Bucket(js, bucket).put(key, value)
        for note in (b"garbage", b"7", b'[{"id":7}]'):
            await Bucket(js, "lift_streams").delete(encode_name(name), left=note)
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
    """Return True if a publish succeeds; while the stream is being removed, it fails."""
    try:
        await client.publish(name, b"x", partition=4, timeout=2)
    except (liftenvelope.errors.LiftEnvelopeError, RpcError):
        return False
    return True


async def test_probe_streams_of_killed_gateways_are_deleted(
    nc: NatsClient, js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that is killed between creating a probe stream and deleting it leaves this."""
    probe = f"lift_probe_{name}"
    await js.create_stream(StreamConfig(name=probe, subjects=(f"{probes._SUBJECT}{probe}",)))
    await remove_old_probes(js)
    await js.stream(probe)  # too young: another gateway may be using it
    monkeypatch.setattr(probes, "_AGE", 0.0)
    async with Gateway(nc), asyncio.timeout(PATIENCE):
        while [found async for found in js.stream_names() if found == probe]:
            await asyncio.sleep(0.05)


async def test_streams_of_users_are_no_probes(
    js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server lists them beside the probes, because their subjects overlap."""
    monkeypatch.setattr(probes, "_AGE", 0.0)
    await js.create_stream(StreamConfig(name=name, subjects=(f"*.probe.{name}",), no_ack=True))
    await remove_old_probes(js)
    await js.stream(name)


async def call(gateway: Gateway, method: str, request: Message) -> None:
    """Make a call once: clients would try it again."""
    async with await Channel.connect(gateway.address) as channel:
        await channel.unary(f"/proto.API/{method}", request.SerializeToString(), timeout=60)


async def is_free_of(js: JetStream, name: str) -> bool:
    """Return True if neither the bucket nor JetStream has anything of a stream."""
    entry = await Bucket(js, "lift_streams").get(encode_name(name))
    return entry.value is None and partition_stream(name, 0) not in [one async for one in js.stream_names()]


@pytest.mark.parametrize("again", [False, True])
async def test_stream_that_jetstream_creates_after_the_timeout_is_removed(
    nc: NatsClient, js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Faked: nats-server executes requests concurrently, so a deletion may overtake a creation."""
    create, late = JetStream.create_stream, list[asyncio.Task[object]]()

    async def create_later(js: JetStream, config: StreamConfig) -> object:
        if config.name != partition_stream(name, 0) or late:
            return await create(js, config)

        async def creating() -> None:
            await asyncio.sleep(0.2)
            await create(js, config)

        late.append(asyncio.create_task(creating()))
        raise liftenvelope.errors.CallTimeoutError("no answer")

    monkeypatch.setattr(JetStream, "create_stream", create_later)
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        with pytest.raises(RpcError, match="no answer"):
            await call(gateway, "CreateStream", api_pb2.CreateStreamRequest(name=name, subject=name))
        if not again:
            await late[0]
            await eventually(lambda: is_free_of(js, name))
        await client.create_stream(f"{name}.other", name)
        assert await fill(client, name, 1) == [0]
        await asyncio.sleep(2.5)  # longer than the removal waits
        assert await fill(client, name, 1) == [1]


async def test_deletion_without_an_answer_is_finished(
    nc: NatsClient, js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked: the answer is lost."""
    delete, unanswered = JetStream.delete_stream, list[str]()

    async def delete_without_an_answer(js: JetStream, stream: str) -> None:
        if stream == partition_stream(name, 1) and not unanswered:
            unanswered.append(stream)
            raise liftenvelope.errors.CallTimeoutError("no answer")
        await delete(js, stream)

    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name, partitions=2)
        monkeypatch.setattr(JetStream, "delete_stream", delete_without_an_answer)
        with pytest.raises(RpcError, match="no answer"):
            await call(gateway, "DeleteStream", api_pb2.DeleteStreamRequest(name=name))
        await eventually(lambda: is_free_of(js, name))
        await client.create_stream(name, name)


@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_creation_that_was_taken_for_dead_leaves_no_partitions_and_the_record_of_another_gateway(
    nc: NatsClient, js: JetStream, name: str, is_made_anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked: a gateway stands still during a creation, while another one removes the stream."""
    create, bucket, key = Storage.create, Bucket(js, "lift_streams"), encode_name(name)
    other = StreamRecord(name=name, subject=f"{name}.other", id="other", maker="other")

    async def stand_still(storage: Storage, record: StreamRecord, partition: int) -> str | None:
        if record.name == name and partition == 0:
            await bucket.delete(key)
            if is_made_anew:
                await bucket.put(key, other.to_json())
        return await create(storage, record, partition)

    monkeypatch.setattr(Storage, "create", stand_still)
    async with Gateway(nc) as gateway:
        request = api_pb2.CreateStreamRequest(name=name, subject=name, partitions=2)
        with pytest.raises(RpcError, match="another gateway has removed"):
            await call(gateway, "CreateStream", request)
        made = {partition_stream(name, number) for number in range(2)}
        assert made.isdisjoint([one async for one in js.stream_names()])
        entry = await bucket.get(key)
        assert entry.value == (other.to_json() if is_made_anew else None)


async def test_stream_whose_subject_was_recorded_until_a_moment_ago_may_be_created_again(
    nc: NatsClient, js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Storage._source

    async def source_of_deleted(storage: Storage, config: StreamConfig) -> StreamSource:
        if config.name == partition_stream(name, 0):
            await js.delete_stream(f"{name}-other")
        return await source(storage, config)

    monkeypatch.setattr(Storage, "_source", source_of_deleted)
    async with Gateway(nc) as gateway:
        await js.create_stream(StreamConfig(name=f"{name}-other", subjects=(name,)))
        request = api_pb2.CreateStreamRequest(name=name, subject=name)
        with pytest.raises(RpcError, match=r"UNAVAILABLE: the stream that recorded .* is being changed"):
            await call(gateway, "CreateStream", request)
        await call(gateway, "CreateStream", request)


async def hold_back(js: JetStream, stream: str, limit: int) -> None:
    """Make JetStream refuse what a stream copies beyond a number of messages; -1 for no limit."""
    config = (await js.stream(stream)).cached_info.config
    await js.update_stream(replace(config, max_msgs=limit, discard=DiscardPolicy.NEW))


@pytest.mark.parametrize("change", ["delete", "pause", "readonly"])
async def test_copy_that_lags_takes_over_the_subject_without_losing_messages(
    nc: NatsClient, js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(changing_streams, "_CATCH_UP", 0.5)
    copy = partition_stream(f"{name}-copy", 0)
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
        await client.create_stream(name, f"{name}-copy")
        await fill(client, name, [b"0"])
        await read(client, f"{name}-copy", start=0, stop=0)
        await hold_back(js, copy, 1)
        await fill(client, name, [b"1", b"2"])
        if change == "delete":
            with pytest.raises(RpcError, match=r"UNAVAILABLE.*has not copied all messages"):
                await call(gateway, "DeleteStream", api_pb2.DeleteStreamRequest(name=name))
        elif change == "pause":
            await client.pause_stream(name)
        else:
            await client.set_stream_readonly(name)
        await hold_back(js, copy, -1)

        async def has_taken_over() -> bool:
            await nc.publish(name, b"x")
            await handled(nc)
            return (await client.fetch_partition_metadata(f"{name}-copy")).newest_offset >= 3

        await eventually(has_taken_over)
        found = await read(client, f"{name}-copy", start=0, stop=3)
        assert [message.value for message in found] == [b"0", b"1", b"2", b"x"]
        if change == "delete":
            await eventually(lambda: is_free_of(js, name))
        else:
            assert await newest_offset(client, name) == 2


async def newest_offset(client: Client, stream: str) -> int:
    return (await client.fetch_partition_metadata(stream)).newest_offset


async def detached_copy(js: JetStream, name: str) -> tuple[Storage, StreamRecord, StreamRecord]:
    """Make a stream, and a copy of five messages of an earlier one of that name, which copies no more."""
    first, copy = (StreamRecord(name=f"{name}-{n}", subject=name, id=str(n)) for n in range(2))
    storage = Storage(js)
    for record in (first, copy):
        await storage.create(record, 0)
    for _ in range(5):
        await js.publish(name, b"old")
    await eventually(lambda: has_caught_up(storage, copy))
    await storage.detach(copy, 0)
    await storage.delete(first, 0)
    await storage.create(first, 0)
    return storage, first, copy


async def test_copy_that_has_not_started_is_not_taken_for_complete(
    nc: NatsClient, js: JetStream, name: str
) -> None:
    """The source shows no lag but was never active: nats-server waits for a sequence beyond its end."""
    storage, first, copy = await detached_copy(js, name)
    # As earlier versions of the gateway did: nats-server goes on after the fifth message.
    config = (await js.stream(copy.stream_of(0))).cached_info.config
    source = StreamSource(name=first.stream_of(0), opt_start_seq=1)
    await js.update_stream(replace(config, subjects=(), sources=(source,)))
    for _ in range(7):
        await js.publish(name, b"new")
    await storage.detach(first, 0)
    with pytest.raises(RpcError, match="has not copied all messages"):
        await storage.wait_copied([(copy, 0)], timeout=1)
    with pytest.raises(RpcError, match="has not copied all messages"):
        await storage.attach(copy, 0)
    (info,) = (await js.stream(copy.stream_of(0))).cached_info.sources
    assert (info.lag, info.active < 0) == (0, True)


async def has_caught_up(storage: Storage, copy: StreamRecord, newest: int = 4) -> bool:
    return (await storage.state(copy.stream_of(0))).newest == newest


async def test_wait_for_a_copy_ends_with_its_last_message(js: JetStream, name: str) -> None:
    first, copy = (StreamRecord(name=f"{name}-{n}", subject=f"{name}.*", id=str(n)) for n in range(2))
    part = StreamRecord(name=f"{name}-part", subject=f"{name}.a", id="part")
    storage = Storage(js)
    for record in (first, copy, part):
        await storage.create(record, 0)
    for number in range(2000):
        await js.publish(f"{name}.{'ab'[number % 2]}", b"value")
    await storage.detach(first, 0)
    await storage.wait_copied([(copy, 0), (part, 0)], timeout=PATIENCE)
    assert await has_caught_up(storage, copy, 1999)
    assert await has_caught_up(storage, part, 999)


async def test_wait_for_a_copy_whose_messages_were_removed_ends(js: JetStream, name: str) -> None:
    first, copy = (StreamRecord(name=f"{name}-{n}", subject=name, id=str(n)) for n in range(2))
    storage = Storage(js)
    for record in (first, copy):
        await storage.create(record, 0)
    await js.publish(name, b"value")
    await eventually(lambda: has_caught_up(storage, copy, 0))
    await (await js.stream(copy.stream_of(0))).purge()
    await storage.detach(first, 0)
    await storage.wait_copied([(copy, 0)], timeout=PATIENCE)


async def test_wait_for_a_copy_ignores_messages_of_an_earlier_source_of_the_same_name(
    js: JetStream, name: str
) -> None:
    storage, first, copy = await detached_copy(js, name)
    assert await storage.attach(copy, 0) == first.stream_of(0)
    await hold_back(js, copy.stream_of(0), 5)
    await js.publish(name, b"new")
    await storage.detach(first, 0)
    with pytest.raises(RpcError, match="has not copied all messages"):
        await storage.wait_copied([(copy, 0)], timeout=0)
    await hold_back(js, copy.stream_of(0), -1)
    await storage.wait_copied([(copy, 0)], timeout=PATIENCE)
    assert await has_caught_up(storage, copy, 5)
