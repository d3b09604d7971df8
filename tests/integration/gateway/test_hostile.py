"""A gateway among strangers: TLS, requests of any bytes, a stalled network, calls that are given up."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trustme

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.envelope import unmarshal_ack
from liftenvelope.errors import CallTimeoutError, LiftEnvelopeError, TransportError
from liftenvelope.jetstream import JetStream
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import FaultProxy, GatewayCluster, run_gateway
from tests.conformance.actions import fill, read, take
from tests.handled import handled
from tests.integration.certificates import Certificates, trusting
from tests.integration.conftest import connect, resident_mib, until

METHODS = [method.name for method in api_pb2.DESCRIPTOR.services_by_name["API"].methods]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def ca(certificates: Certificates) -> trustme.CA:
    return certificates.ca


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> Iterator[GatewayCluster]:
    """A gateway that speaks TLS, and wants to see a certificate of its clients."""
    config = {**certificates.gateway_config, "broker_ttl": 60.0}
    with run_gateway(config=config, tls=certificates.client("test")) as cluster:
        yield cluster


async def test_all_of_it_over_mtls(ca: trustme.CA, secured: GatewayCluster, name: str) -> None:
    tls = trusting(ca, ca.issue_cert("app@example.org"))
    async with liftenvelope.connect(secured.addresses, tls=tls) as client:
        await client.create_stream(name, name)
        sent = [b"%d" % number for number in range(300)]
        assert (await client.publish_many(name, sent)).acked == 300
        found = await read(client, name, start="earliest", stop="latest")
        assert [message.value for message in found] == sent


@pytest.mark.parametrize("how", ["plain", "no certificate", "another authority"])
async def test_strangers_are_not_let_in(ca: trustme.CA, secured: GatewayCluster, how: str) -> None:
    tls = None
    if how == "no certificate":
        tls = trusting(ca)
    elif how == "another authority":
        tls = trusting(ca, trustme.CA().issue_cert("app@example.org"))
    with pytest.raises((TransportError, CallTimeoutError)):  # the latter if the last attempt was cut short
        async with liftenvelope.connect(secured.addresses, tls=tls, timeout=3) as client:
            await client.fetch_metadata()


# Requests of any bytes


def mutated(seed: random.Random, sound: bytes) -> bytes:
    """A request that was sound, with a few bytes that are others, more or less."""
    raw = bytearray(sound)
    for _ in range(seed.randint(1, 4)):
        at = seed.randrange(len(raw) + 1)
        match seed.randrange(3):
            case 0:
                raw[at : at + 1] = bytes([seed.randrange(256)])
            case 1:
                raw[at:at] = seed.randbytes(seed.randint(1, 5))
            case _:
                del raw[at : at + seed.randint(1, 3)]
    return bytes(raw)


def sound_request(method: str, name: str) -> bytes:
    """A sound request of each method, as far as it takes any about a stream."""
    fields = {
        "CreateStream": api_pb2.CreateStreamRequest(name=f"{name}-new", subject=f"{name}-new", partitions=1),
        "DeleteStream": api_pb2.DeleteStreamRequest(name=f"{name}-new"),
        "PauseStream": api_pb2.PauseStreamRequest(name=name, partitions=[0]),
        "SetStreamReadonly": api_pb2.SetStreamReadonlyRequest(name=f"{name}-other", readonly=True),
        "Subscribe": api_pb2.SubscribeRequest(
            stream=name, startPosition=api_pb2.EARLIEST, stopPosition=api_pb2.STOP_LATEST, startOffset=1
        ),
        "Publish": api_pb2.PublishRequest(stream=name, value=b"v", key=b"k", headers={"h": b"x"}),
        "PublishAsync": api_pb2.PublishRequest(stream=name, value=b"v", correlationId="id"),
        "PublishToSubject": api_pb2.PublishToSubjectRequest(subject=name, value=b"v"),
        "SetCursor": api_pb2.SetCursorRequest(stream=name, cursorId="c", offset=4),
        "FetchCursor": api_pb2.FetchCursorRequest(stream=name, cursorId="c"),
        "JoinConsumerGroup": api_pb2.JoinConsumerGroupRequest(groupId=name, consumerId="c", streams=[name]),
        "LeaveConsumerGroup": api_pb2.LeaveConsumerGroupRequest(groupId=name, consumerId="c"),
    }
    message = fields.get(method, api_pb2.FetchPartitionMetadataRequest(stream=name, partition=1))
    return message.SerializeToString()


@pytest.mark.parametrize("method", METHODS)
async def test_requests_of_any_bytes(gateway_server: GatewayCluster, name: str, method: str) -> None:
    seed, before = random.Random(method), len(gateway_server.log())
    async with liftenvelope.connect(gateway_server.addresses) as client:
        await client.create_stream(name, name, partitions=2)
        await fill(client, name, 3, partition=0)
        async with await Channel.connect(gateway_server.addresses[0]) as channel:
            requests = [mutated(seed, sound_request(method, name)) for _ in range(60)]
            requests += [seed.randbytes(seed.randint(1, 40)) for _ in range(20)]
            for batch in range(0, len(requests), 20):
                calls = [one_call(channel, method, request) for request in requests[batch : batch + 20]]
                await asyncio.wait_for(asyncio.gather(*calls), 60)
        # It is there, and does what it is to do.
        offset = (await fill(client, name, [b"after"], partition=1))[0]
        found = await read(client, name, partition=1, start=offset, stop=offset)
        assert [message.value for message in found] == [b"after"]
    # An error that nobody has foreseen is written there.
    assert "Traceback" not in gateway_server.log()[before:]


async def one_call(channel: Channel, method: str, request: bytes) -> None:
    """Whatever it is answered, it is answered, or ends with its time."""
    path = f"/proto.API/{method}"
    with contextlib.suppress(LiftEnvelopeError):
        if method == "PublishAsync":
            async with channel.bidi(path, timeout=5) as call:
                await call.send([request])
                call.half_close()
                while await call.receive() is not None:
                    pass
        elif method == "Subscribe":
            async with channel.server_stream(path, request, timeout=1) as call:
                while await call.receive() is not None:
                    pass
        else:
            await channel.unary(path, request, timeout=1)


# Requests that want too much


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("CreateStream", api_pb2.CreateStreamRequest(name="n" * 1_000_000, subject="s")),
        ("CreateStream", api_pb2.CreateStreamRequest(name="n", subject="s" * 1_000_000)),
        ("SetCursor", api_pb2.SetCursorRequest(stream="n", cursorId="c" * 1_000_000)),
        ("JoinConsumerGroup", api_pb2.JoinConsumerGroupRequest(groupId="g", streams=["s"] * 10_001)),
        ("PublishToSubject", api_pb2.PublishToSubjectRequest(subject="s" * 3_501)),
    ],
    ids=["stream", "subject", "cursor", "list", "one more than the limit"],
)
async def test_oversized_names_are_refused_in_short(
    gateway_server: GatewayCluster, method: str, request_: Any
) -> None:
    async with await Channel.connect(gateway_server.addresses[0]) as channel:
        with pytest.raises(RpcError) as caught:
            await channel.unary(f"/proto.API/{method}", request_.SerializeToString(), timeout=30)
    assert caught.value.code == StatusCode.INVALID_ARGUMENT
    assert len(caught.value.description) < 200


async def test_unknown_method_with_a_long_path_is_refused_in_short(gateway_server: GatewayCluster) -> None:
    async with await Channel.connect(gateway_server.addresses[0]) as channel:
        with pytest.raises(RpcError) as caught:
            await channel.unary("/" + "p" * 15_000, b"", timeout=30)
    assert caught.value.code == StatusCode.UNIMPLEMENTED
    assert len(caught.value.description) == 1024


@pytest.mark.parametrize(
    "path", ["/grpc.health.v1.Health/Check", "/proto.API/Publish", "/proto.API/Subscribe"]
)
async def test_second_request_ends_a_call_that_takes_one(gateway_server: GatewayCluster, path: str) -> None:
    async with await Channel.connect(gateway_server.addresses[0]) as channel:
        call = channel.bidi(path, timeout=60)
        await call.send([b""])
        await call.send([b""])
        # Not half-closed: the server must not wait for more.
        with pytest.raises(RpcError, match="takes one request, more came") as caught:
            await call.receive()
    assert caught.value.code == StatusCode.INTERNAL


async def test_memory_stays_bounded_when_bodies_are_not_read(
    gateway_server: GatewayCluster, name: str
) -> None:
    (node,) = gateway_server.nodes
    assert node.pid is not None
    before = resident_mib(node.pid)
    async with await Channel.connect(gateway_server.addresses[0]) as channel:
        calls = [channel.bidi("/grpc.health.v1.Health/Check") for _ in range(100)]
        for call in calls:
            # Half of a message of 4,000,000 bytes: the server can take nothing of it yet.
            frames = b"\0" + (4_000_000).to_bytes(4, "big") + bytes(2_000_000)
            channel._link.protocol.send_framed(call._flow.call_id, frames)
        channel._link.flush()
        waiting = [asyncio.create_task(call.receive()) for call in calls]
        # 16 MiB may be unread on one connection. A window is 1 MiB, so each call sent half of it or more.
        await until(lambda: sum(one.done() for one in waiting) >= 60)
        assert resident_mib(node.pid) - before < 64
        for one in waiting:
            one.cancel()
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, RpcError | asyncio.CancelledError)
    async with liftenvelope.connect(gateway_server.addresses) as client:
        await client.create_stream(name, name)
        assert await fill(client, name, 3) == [0, 1, 2]


# Floods of frames


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def request(stream: int) -> bytes:
    """HEADERS of a call of Subscribe that stays open: the fields in plain literals (RFC 7541, 6.2.2)."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/proto.API/Subscribe",
        b":authority": b"a",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    block = b"".join(b"\0%c%b%c%b" % (len(name), name, len(value), value) for name, value in fields.items())
    return frame(1, 4, stream, block)


CANCEL = (8).to_bytes(4, "big")
#: What a flood repeats, by its name. Streams have odd numbers from 1 on.
FLOODS: dict[str, Callable[[int], bytes]] = {
    "rapid reset": lambda stream: request(stream) + frame(3, 0, stream, CANCEL),
    "reset by a window of zero": lambda stream: request(stream) + frame(8, 0, stream, bytes(4)),
    "reset by a closed stream": lambda stream: (
        request(stream) + frame(3, 0, stream, CANCEL) + frame(0, 1, stream, b"data")
    ),
    "settings": lambda stream: frame(4, 0, 0),
    "priority": lambda stream: frame(2, 0, stream, bytes(5)),
    "unknown": lambda stream: frame(0xFA, 0, 0),
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_flood_of_frames_is_cut_off_and_others_are_served(
    gateway_server: GatewayCluster, name: str, kind: str
) -> None:
    before = len(gateway_server.log())
    host, port = gateway_server.addresses[0].rsplit(":", 1)
    pieces = [FLOODS[kind](stream) for stream in range(1, 8_001, 2)]

    async def flood() -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + b"".join(pieces))
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
        writer.close()
        return answer

    async with liftenvelope.connect(gateway_server.addresses) as client:
        await client.create_stream(name, name)
        floods = [asyncio.create_task(flood()) for _ in range(4)]
        sent = 0
        while not all(task.done() for task in floods) or sent < 20:
            assert await fill(client, name, 1) == [sent]
            sent += 1
    for answer in await asyncio.gather(*floods):
        # A reset of TCP may overtake the GOAWAY with ENHANCE_YOUR_CALM.
        assert not answer or b"\x07\0\0\0\0\0" in answer
    assert "Traceback" not in gateway_server.log()[before:]


# Subjects of others


@pytest.mark.parametrize(
    "subject",
    [
        "_INBOX.>",
        "_INBOX.*",
        "_lift.activity",
        "liftenvelope.groups.>",
        "liftenvelope.groups.at.*.Leave",
        "liftenvelope.groups",
        "liftenvelope.*.at.>",
        "liftenvelope.>",
        "$KV.lift_streams.a",
        "$JS.API.>",
        ">",
        "*.>",
        "*.*",
        "*.orders",
    ],
)
async def test_streams_may_not_record_internal_subjects(
    gateway_server: GatewayCluster, name: str, subject: str
) -> None:
    async with liftenvelope.connect(gateway_server.addresses) as client:
        with pytest.raises(LiftEnvelopeError, match="Subject is invalid"):
            await client.create_stream(subject, name)


async def test_subject_that_fits_into_no_line_of_nats_is_refused(
    gateway_server: GatewayCluster, name: str
) -> None:
    before = len(gateway_server.log())
    async with await Channel.connect(gateway_server.addresses[0]) as channel:
        for size, is_taken in ((3_400, True), (3_401, False)):
            # 3 bytes each. Of a stream that checks offsets the gateway itself subscribes to the subject.
            subject = "\u20ac" * 1_100 + name
            subject += "s" * (size - len(subject.encode()))
            request = api_pb2.CreateStreamRequest(name=f"{name}-{size}", subject=subject)
            request.optimisticConcurrencyControl.value = True
            publish = api_pb2.PublishRequest(stream=f"{name}-{size}", value=b"v")
            if not is_taken:
                with pytest.raises(RpcError, match="must have at most 3400 bytes, got 3401") as caught:
                    await channel.unary("/proto.API/CreateStream", request.SerializeToString(), timeout=60)
                assert caught.value.code == StatusCode.INVALID_ARGUMENT
                continue
            await channel.unary("/proto.API/CreateStream", request.SerializeToString(), timeout=60)
            answer = await channel.unary("/proto.API/Publish", publish.SerializeToString(), timeout=60)
            assert api_pb2.PublishResponse.FromString(answer).ack.offset == 0
    assert "NATS is lost" not in gateway_server.log()[before:]


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API.STREAM.DELETE.{}",
        "$KV.lift_streams.{}",
        "_INBOX.{}",
        "_lift.{}",
        "liftenvelope.groups.at.{}.Leave",
    ],
)
async def test_clients_may_not_publish_to_internal_subjects(
    gateway_server: GatewayCluster, name: str, subject: str
) -> None:
    request = api_pb2.PublishToSubjectRequest(subject=subject.format(name), value=b"v")
    async with await Channel.connect(gateway_server.addresses[0]) as channel:
        with pytest.raises(RpcError, match="is internal") as caught:
            await channel.unary("/proto.API/PublishToSubject", request.SerializeToString(), timeout=30)
    assert caught.value.code == StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "inbox", ["$KV.lift_streams.{}", "_INBOX.a 0\r\n\r\nPUB {} 1\r\nx", "_lift.{}", "{}.acks", "_INBOX.>"]
)
@pytest.mark.parametrize("method", ["Publish", "Publish to a copying stream", "PublishToSubject"])
async def test_ack_inbox_of_a_request_must_be_allowed(
    gateway_server: GatewayCluster, name: str, method: str, inbox: str
) -> None:
    async with liftenvelope.connect(gateway_server.addresses) as client:
        await client.create_stream(f"{name}.data", name)
        await client.create_stream(f"{name}.data", f"{name}-copy")  # the same subject: this one copies
        fields: dict[str, Any] = {"ackInbox": inbox.format(name), "correlationId": name}
        request: Any = api_pb2.PublishRequest(stream=name, **fields)
        if method == "PublishToSubject":
            request = api_pb2.PublishToSubjectRequest(subject=f"{name}.data", **fields)
        elif method != "Publish":
            request.stream = f"{name}-copy"
        async with await Channel.connect(gateway_server.addresses[0]) as channel:
            path = f"/proto.API/{method.split(maxsplit=1)[0]}"
            with pytest.raises(RpcError, match="must be a subject that begins with one of") as caught:
                await channel.unary(path, request.SerializeToString(), timeout=30)
            assert caught.value.code == StatusCode.INVALID_ARGUMENT
            # Nothing was stored, and an inbox that is allowed gets its ack.
            nc = await connect(gateway_server.nats_url)
            sound = await nc.subscribe(f"_INBOX.{name}")
            await handled(nc)
            request.ackInbox = f"_INBOX.{name}"
            await channel.unary(path, request.SerializeToString(), timeout=30)
            assert unmarshal_ack((await sound.next_msg(timeout=60)).data).offset == 0


# A bad network, and callers who go


async def test_a_client_whose_network_stalls(gateway_server: GatewayCluster, name: str) -> None:
    (address,) = gateway_server.addresses
    async with liftenvelope.connect([address]) as client:
        await client.create_stream(name, name)
        await client.publish_many(name, (bytes(10_000) for _ in range(2_000)))
        with FaultProxy(address) as proxy:
            mapped = {address: proxy.address}
            async with (
                liftenvelope.connect([proxy.address], address_map=mapped) as other,
                other.subscribe(name, start="earliest") as messages,
            ):
                await take(messages, 10)
                proxy.stall("to_client")
                # Others don't wait for it.
                assert len(await read(client, name, start=1_990, stop="latest")) == 10
                proxy.resume()
                assert [m.offset for m in await take(messages, 1_990)] == list(range(10, 2_000))


async def test_calls_that_are_given_up(gateway_server: GatewayCluster, name: str) -> None:
    async with liftenvelope.connect(gateway_server.addresses) as client:
        await client.create_stream(name, name)
        await fill(client, name, 10)
        async with await Channel.connect(gateway_server.addresses[0]) as channel:
            request = api_pb2.SubscribeRequest(stream=name).SerializeToString()
            for number in range(100):
                call = channel.server_stream("/proto.API/Subscribe", request)
                if number % 2:
                    await call.receive()
                call.cancel()
        await consumers_are_gone(gateway_server, name)
        assert await fill(client, name, 1) == [10]


async def consumers_are_gone(cluster: GatewayCluster, name: str) -> None:
    """Wait until the consumers of all subscriptions are removed and only that of the acks is left."""
    nc = await connect(cluster.nats_url)
    async with asyncio.timeout(60), JetStream(nc) as js:
        stream = await js.stream(f"lift_{name}_0")
        while len([name async for name in stream.consumer_names()]) > 1:
            await asyncio.sleep(0.05)
    await nc.close()
