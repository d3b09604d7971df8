"""The gateway on its own: inside an application, shared subjects, garbage, lost consumers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client import Client
from liftenvelope.envelope import AckPolicy, new_message, unmarshal_ack
from liftenvelope.errors import NoJetStreamError, ServerError, TransportError, UsageError
from liftenvelope.gateway import Gateway
from liftenvelope.jetstream import ConsumerConfig, JetStream
from liftenvelope.nats import AckInbox
from liftenvelope.rpc.aio import Call, Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import GatewayCluster, NatsServer
from tests.conformance.actions import PATIENCE, eventually, fill, read, take
from tests.handled import handled
from tests.integration.conftest import connect


@pytest.fixture
async def js_nc(gateway_server: GatewayCluster) -> NatsClient:
    """A connection to the NATS server of the gateway."""
    return await connect(gateway_server.nats_url)


@pytest.fixture
async def client(gateway_server: GatewayCluster) -> AsyncIterator[Client]:
    """A client of the gateway."""
    async with liftenvelope.connect(gateway_server.addresses) as client:
        yield client


@pytest.fixture
async def channel(gateway_server: GatewayCluster) -> AsyncIterator[Channel]:
    """A bare connection to the gateway."""
    async with await Channel.connect(gateway_server.addresses[0]) as channel:
        yield channel


# Inside an application


async def test_inside_an_application(jetstream_server: NatsServer, name: str) -> None:
    nc = await connect(jetstream_server.url)
    await nc.jetstream().account_info()  # nats-py has a subscription for answers from the first request on
    before = asyncio.all_tasks()
    async with Gateway(nc, id=name) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream(name, name)
        await client.publish(name, b"value")
        assert [message.value for message in await read(client, name, start="earliest", stop="latest")] == [
            b"value"
        ]
    assert not nc.is_closed

    async def nothing_left() -> bool:
        gc.collect()
        return asyncio.all_tasks() - before <= {asyncio.current_task()}

    await eventually(nothing_left)
    # Once more, on the same connection: all that there was is there.
    async with Gateway(nc) as gateway, liftenvelope.connect([gateway.address]) as client:
        assert (await client.publish(name, b"another")).offset == 1  # type: ignore[union-attr]
    await nc.close()


async def test_started_twice_closed_twice_not_started(jetstream_server: NatsServer) -> None:
    nc = await connect(jetstream_server.url)
    gateway = Gateway(nc)
    with pytest.raises(UsageError, match="not started"):
        _ = gateway.address
    await gateway.start()
    with pytest.raises(UsageError, match="already"):
        await gateway.start()
    await gateway.close()
    await gateway.close()
    await nc.close()


async def test_closed_as_soon_as_it_is_started(jetstream_server: NatsServer) -> None:
    # Its tasks are cancelled at whatever they are about: none may miss that.
    nc = await connect(jetstream_server.url)
    async with asyncio.timeout(120):
        for _ in range(8):
            async with Gateway(nc):
                pass
    await nc.close()


async def test_where_it_can_not_be_started(nats_server: NatsServer, jetstream_server: NatsServer) -> None:
    nc = await connect(nats_server.url)
    with pytest.raises(NoJetStreamError):
        await Gateway(nc).start()
    await nc.close()
    nc = await connect(jetstream_server.url)
    async with Gateway(nc) as gateway:
        port = int(gateway.address.rpartition(":")[2])
        with pytest.raises(TransportError, match=str(port)):
            await Gateway(nc, port=port).start()
    await nc.close()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"port": 70_000}, "port must be from 0 to 65535, got 70000"),
        ({"broker_ttl": 0}, "broker_ttl must .* got 0"),
        ({"ack_timeout": float("inf")}, "ack_timeout must .* got inf"),
        ({"replicas": 6}, "replicas must be from 1 to 5, got 6"),
        ({"advertise": "nohost"}, "nohost"),
    ],
)
async def test_options_that_make_no_sense(nats_server: NatsServer, options: Any, match: str) -> None:
    nc = await connect(nats_server.url)
    with pytest.raises(UsageError, match=match):
        Gateway(nc, **options)
    await nc.close()


async def test_connection_without_its_own_messages_is_refused(nats_server: NatsServer) -> None:
    nc = await connect(nats_server.url, no_echo=True)
    with pytest.raises(UsageError, match="connect it without no_echo=True"):
        Gateway(nc)
    await nc.close()


# Raw NATS


async def test_raw_messages_are_stored_unless_readonly_or_paused(
    client: Client, js_nc: NatsClient, name: str
) -> None:
    await client.create_stream(name, name)

    async def publish(value: bytes) -> None:
        await js_nc.publish(name, value)
        await handled(js_nc)

    async def values() -> list[bytes]:
        return [m.value for m in await read(client, name, start="earliest", stop="latest", resume=True)]

    async def until_there(*expected: bytes) -> None:
        async def are_there() -> bool:
            return await values() == list(expected)

        await eventually(are_there)

    await publish(b"one")
    await client.set_stream_readonly(name)
    await publish(b"lost")
    await client.set_stream_readonly(name, readonly=False)
    await publish(b"two")
    await client.pause_stream(name)
    await publish(b"lost, too")
    # The server stores what it was sent a moment later.
    await until_there(b"one", b"two")
    await publish(b"three")
    await until_there(b"one", b"two", b"three")


async def test_garbage_is_stored_as_it_is(client: Client, js_nc: NatsClient, name: str) -> None:
    await client.create_stream(name, name)
    magic = b"\xb9\x0e\x43\xb4"
    garbage = [
        b"",
        b"\0" * 8,
        magic,
        magic + b"\0\x09\0\0",
        magic + b"\0\xff\0\0",
        magic + b"\0\x0c\x01\0",
        magic + b"\0\x08\0\0\x0a\xff",
        magic + b"\0\0\0\0xyz",
        bytes(range(256)) * 100,
    ]
    for payload in garbage:
        await js_nc.publish(name, payload)
    ack_inbox = await js_nc.subscribe(f"_INBOX.{name}")
    await js_nc.publish(name, new_message(b"sound", ack_inbox=f"_INBOX.{name}", correlation_id="id"))
    ack = unmarshal_ack((await ack_inbox.next_msg(timeout=PATIENCE)).data)
    assert (ack.offset, ack.correlation_id) == (len(garbage), "id")
    found = await read(client, name, start="earliest", stop="latest")
    assert [message.value for message in found] == [*garbage, b"sound"]


# Subjects that streams share


async def test_a_copy_takes_over_when_the_first_stream_is_deleted(
    client: Client, js_nc: NatsClient, name: str
) -> None:
    streams = [f"{name}-{number}" for number in range(3)]
    for stream in streams:
        await client.create_stream(name, stream)
    await fill(client, streams[0], [b"0"])
    # It begins with what comes after it was made.
    await client.create_stream(name, f"{name}-late")
    await fill(client, streams[2], [b"1"])
    await client.delete_stream(streams[0])
    assert await fill(client, streams[1], [b"2"]) == [2]
    await client.set_stream_readonly(streams[1])
    assert await fill(client, streams[2], [b"3"]) == [3]
    for stream, count in ((streams[1], 3), (streams[2], 4)):
        found = await read(client, stream, start=0, stop=count - 1)
        assert [m.value for m in found] == [b"%d" % n for n in range(count)]
    late = await read(client, f"{name}-late", start=0, stop=2)
    assert [m.value for m in late] == [b"1", b"2", b"3"]
    await client.set_stream_readonly(streams[1], readonly=False)
    assert await fill(client, streams[1], [b"4"]) == [3]


async def test_each_stream_of_a_subject_acks_a_raw_message(
    client: Client, js_nc: NatsClient, name: str
) -> None:
    for number in range(2):
        await client.create_stream(name, f"{name}-{number}")
    inbox = await js_nc.subscribe(f"_INBOX.{name}")
    await js_nc.publish(name, new_message(b"x", ack_inbox=f"_INBOX.{name}", correlation_id="id"))
    acks = [unmarshal_ack((await inbox.next_msg(timeout=PATIENCE)).data) for _ in range(2)]
    assert {(ack.stream, ack.offset) for ack in acks} == {(f"{name}-0", 0), (f"{name}-1", 0)}


async def test_a_part_of_a_wider_subject(client: Client, js_nc: NatsClient, name: str) -> None:
    await client.create_stream(f"{name}.>", name)
    await client.create_stream(f"{name}.a", f"{name}-a")
    await js_nc.publish(f"{name}.b", b"b")
    await js_nc.publish(f"{name}.a", b"a")
    found = await read(client, f"{name}-a", start=0, stop=0)
    assert [(m.value, m.subject) for m in found] == [(b"a", f"{name}.a")]


async def test_a_wider_subject_than_that_of_another_stream_is_refused(client: Client, name: str) -> None:
    await client.create_stream(f"{name}.a", name)
    with pytest.raises(ServerError, match="wider") as info:
        await client.create_stream(f"{name}.*", f"{name}-all")
    assert info.value.code == StatusCode.FAILED_PRECONDITION
    # Nothing is left of it.
    assert f"{name}-all" not in (await client.fetch_metadata()).streams
    await client.create_stream(f"{name}.b", f"{name}-all")


async def test_a_stream_of_the_users_own_is_copied_from(client: Client, js_nc: NatsClient, name: str) -> None:
    js = JetStream(js_nc)
    await js.create_stream(liftenvelope.jetstream.StreamConfig(name=name, subjects=(f"{name}.>",)))
    await client.create_stream(f"{name}.a", name)
    await js_nc.publish(f"{name}.a", b"value")
    assert [m.value for m in await read(client, name, start=0, stop=0)] == [b"value"]
    await js.close()


# Reading


async def test_backwards(client: Client, channel: Channel, name: str) -> None:
    await client.create_stream(name, name)
    request = api_pb2.SubscribeRequest(stream=name, startPosition=api_pb2.LATEST, reverse=True)
    found, error = await collect(channel, request)
    assert (found, error.code, error.description) == ([], StatusCode.INTERNAL, "segment not found")
    await client.publish_many(name, (b"%d" % number for number in range(2500)))
    found, error = await collect(channel, request)
    assert [message.offset for message in found] == list(range(2499, -1, -1))
    assert (error.code, error.description) == (StatusCode.UNKNOWN, "EOF")
    request.startPosition, request.startOffset = api_pb2.OFFSET, 3
    assert [m.offset for m in (await collect(channel, request))[0]] == [3, 2, 1, 0]
    async with client.subscribe(name, start=10, stop=7, reverse=True) as messages:
        assert [message.offset async for message in messages] == [10, 9, 8, 7]


async def collect(
    channel: Channel, request: api_pb2.SubscribeRequest
) -> tuple[list[api_pb2.Message], RpcError]:
    """The messages of a subscription, without its handshake, and its end."""
    found: list[bytes] = []
    try:
        async with (
            asyncio.timeout(PATIENCE),
            channel.server_stream("/proto.API/Subscribe", request.SerializeToString()) as call,
        ):
            async for payload in call:
                found.append(payload)  # noqa: PERF401 - it is to be there when the call fails
    except RpcError as exc:
        return [api_pb2.Message.FromString(payload) for payload in found[1:]], exc
    raise AssertionError("a clean end")


async def test_a_lost_consumer_is_made_anew(client: Client, js_nc: NatsClient, name: str) -> None:
    await client.create_stream(name, name)
    async with client.subscribe(name) as messages:
        await fill(client, name, 3)
        await take(messages, 3)
        js = JetStream(js_nc)
        stream = await js.stream(f"lift_{name}_0")
        removed = 0
        async for info in stream.consumers():
            if info.config.durable_name is None:
                await stream.delete_consumer(info.name)
                removed += 1
        assert removed == 1
        await fill(client, name, 3)
        assert [message.offset for message in await take(messages, 3)] == [3, 4, 5]
        await js.close()


async def test_consumers_that_are_named_like_those_of_acks_are_left_alone(
    jetstream_server: NatsServer, name: str
) -> None:
    nc = await connect(jetstream_server.url)
    async with JetStream(nc) as js:
        async with Gateway(nc, id=name) as gateway, liftenvelope.connect([gateway.address]) as client:
            await client.create_stream(name, name)
            stream = await js.stream(f"lift_{name}_0")
            await stream.create_consumer(ConsumerConfig(durable_name="lift-acks-mine"))
        async with (
            Gateway(nc, id=name) as gateway,
            liftenvelope.connect([gateway.address]) as client,
            AckInbox(nc) as inbox,
        ):
            await client.create_stream(f"{name}-2", f"{name}-2")
            for led in (name, f"{name}-2"):
                assert (await inbox.publish(led, b"v", timeout=PATIENCE)).stream == led
        assert "lift-acks-mine" in [consumer async for consumer in stream.consumer_names()]
    await nc.close()


async def test_messages_that_went_by_hand(client: Client, js_nc: NatsClient, name: str) -> None:
    await client.create_stream(name, name)
    await fill(client, name, 6)
    js = JetStream(js_nc)
    stream = await js.stream(f"lift_{name}_0")
    for sequence in (1, 3, 6):
        await stream.delete_message(sequence)
    assert [m.offset for m in await read(client, name, start="earliest", stop="latest")] == [1, 3, 4]
    await stream.purge()
    assert await read(client, name, start="earliest", stop="latest") == []
    assert await fill(client, name, [b"next"]) == [6]
    await js.close()


async def count_until_stopped(call: Call) -> int:
    """Return the number of messages before the stop."""
    count = 0
    try:
        async with asyncio.timeout(PATIENCE):
            async for _ in call:
                count += 1
    except RpcError as exc:
        assert exc.description == "Stop offset reached"  # noqa: PT017 - the count is wanted as well
    return count


async def test_a_reader_that_takes_nothing_holds_little_back(
    gateway_server: GatewayCluster, client: Client, channel: Channel, name: str
) -> None:
    await client.create_stream(name, name)
    await client.publish_many(name, (bytes(100_000) for _ in range(400)))
    request = api_pb2.SubscribeRequest(
        stream=name, startPosition=api_pb2.EARLIEST, stopPosition=api_pb2.STOP_LATEST
    )
    async with channel.server_stream("/proto.API/Subscribe", request.SerializeToString()) as call:
        assert await anext(call) == b""
        # Others are served meanwhile, and it gets all in the end.
        assert len(await read(client, name, start=390, stop="latest")) == 10
        assert await count_until_stopped(call) == 400


# Publishing


async def test_without_a_deadline_there_is_an_ack(channel: Channel, client: Client, name: str) -> None:
    await client.create_stream(name, name)
    request = api_pb2.PublishRequest(stream=name, value=b"x", correlationId="id")
    answer = await channel.unary("/proto.API/Publish", request.SerializeToString())
    assert api_pb2.PublishResponse.FromString(answer).ack.correlationId == "id"


@pytest.mark.parametrize(
    ("fields", "code", "match"),
    [
        ({"stream": ""}, StatusCode.INVALID_ARGUMENT, "no stream provided"),
        ({"stream": "__cursors"}, StatusCode.INVALID_ARGUMENT, "reserved"),
        ({"stream": "no-such"}, StatusCode.NOT_FOUND, "No such stream"),
        ({"partition": 9}, StatusCode.NOT_FOUND, "No such partition"),
        ({"value": bytes(1 << 20)}, StatusCode.INVALID_ARGUMENT, "exceeds max replication size"),
        ({"headers": {"h" * 40_000: b""}}, StatusCode.INVALID_ARGUMENT, "header name"),
    ],
)
async def test_refusals(
    channel: Channel, client: Client, name: str, fields: dict[str, Any], code: StatusCode, match: str
) -> None:
    await client.create_stream(name, name)
    request = api_pb2.PublishRequest(**{"stream": name, "value": b"x", **fields}).SerializeToString()
    with pytest.raises(RpcError, match=match) as info:
        await channel.unary("/proto.API/Publish", request, timeout=PATIENCE)
    assert info.value.code == code
    # PublishAsync refuses the same messages alone. It looks for an empty name, as Liftbridge does.
    expected = "No such stream" if fields == {"stream": ""} else match
    good = api_pb2.PublishRequest(stream=name, correlationId="good").SerializeToString()
    async with asyncio.timeout(PATIENCE), channel.bidi("/proto.API/PublishAsync") as call:
        await call.send([good, request, good])
        call.half_close()
        answers = [api_pb2.PublishResponse.FromString(payload) async for payload in call]
    failed = [answer for answer in answers if answer.HasField("asyncError")]
    assert len(answers) == 3
    assert [expected in answer.asyncError.message for answer in failed] == [True]


async def test_what_can_not_be_read_ends_the_call(channel: Channel, client: Client, name: str) -> None:
    await client.create_stream(name, name)
    for method in ("CreateStream", "FetchMetadata", "Publish", "Subscribe", "SetCursor"):
        with pytest.raises(RpcError) as info:
            await channel.unary(f"/proto.API/{method}", b"\xff\xff", timeout=PATIENCE)
        assert info.value.code == StatusCode.INTERNAL
    with pytest.raises(RpcError) as info:
        await channel.unary("/proto.API/NoSuch", b"", timeout=PATIENCE)
    assert info.value.code == StatusCode.UNIMPLEMENTED
    await client.publish(name, b"all is well")


async def test_a_partition_that_is_paused_between_publishes(client: Client, name: str) -> None:
    # The quick way of a PublishAsync call has to notice each time.
    await client.create_stream(name, name)
    for offset in range(4):
        assert await fill(client, name, [b"x"]) == [offset]
        await client.pause_stream(name)


async def test_policies_in_one_call(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    policies = [AckPolicy.NONE, AckPolicy.LEADER, AckPolicy.ALL] * 30
    futures = [await client.publish_async(name, b"x", ack_policy=policy) for policy in policies]
    acks = await asyncio.gather(*futures)
    assert [ack is None for ack in acks] == [policy is AckPolicy.NONE for policy in policies]
    # Those without an ack go by calls of their own, and may overtake.
    offsets = [ack.offset for ack in acks if ack is not None]
    assert offsets == sorted(set(offsets))
    assert len(await read(client, name, start=0, stop=89)) == 90
