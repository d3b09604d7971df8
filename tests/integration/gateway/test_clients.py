"""The gateway served to clients that others wrote: go-liftbridge, gufo_liftbridge, and plain grpcio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing
from typing import Any

import grpc
import pytest
from gufo.liftbridge.client import LiftbridgeClient
from gufo.liftbridge.types import AckPolicy, StartPosition

from benchmarks.go_peers import GoPeers
from liftenvelope._pb import api_pb2
from liftenvelope.testing import GatewayCluster, run_gateway
from tests.conformance.conftest import SERVERS, Server

#: None of them is taken for dead on a loaded machine.
PATIENT = 20.0
VALUES = [str(number) for number in range(4)]
#: How go-liftbridge says RESOURCE_EXHAUSTED, which is how all reads with an end end.
END = "readonly partition"
#: What go-liftbridge finds on Liftbridge 1.9.0, and has to find here.
TOUR = {
    "client": "v2.4.0",
    "streams": {
        "broker": True,
        "deleted": True,
        "exists": True,
        "led": 3,
        "publish_gone": "stream partition does not exist",
        "recent": True,
        "subject": True,
    },
    "publish": {
        "leader": [0, "id-1", True, True, True],
        "all": [1, True],
        "none": True,
        "other": [0, True],
        "direct": [1, True],
        "first": [0, "k", "one", "v", True, True, 0],
        "values": ["one", "two", "three"],
    },
    "async": {"acked": 2000, "in_order": 2000},
    "checked": {"offsets": [0, 1, 2], "wrong": "incorrect expected offset"},
    "subscribe": {
        "earliest": [VALUES, END],
        "offset": [VALUES[2:], END],
        "latest": [VALUES[3:], END],
        "time": [VALUES[3:], END],
        "delta": [VALUES, END],
        "stop_offset": [VALUES[:2], END],
        "stop_time": [VALUES[:3], END],
        "replica": [VALUES, END],
    },
    "follow": {"value": "new", "offset": 2, "deleted": True},
    "states": {
        "paused": True,
        "woken": 2,
        "resumed": [VALUES[:3], END],
        "refused": True,
        "end": [VALUES[:3], END],
        "writable": 3,
        "newest": [3, 3],
        "readonly": False,
        "when": True,
    },
    "cursors": {"offsets": [-1, 7, 3]},
    "group": {"first": ["0", "1", "2", "3", "4"], "second": ["5", "6", "7"]},
}


def three_gateways() -> GatewayCluster:
    """Gateways that share the partitions, so that a client has to find the leader of each."""
    timeouts = dict.fromkeys(("consumer_timeout", "coordinator_timeout", "broker_ttl"), PATIENT)
    return run_gateway(3, config=timeouts)


#: By name, what makes the servers that go-liftbridge is shown.
TOURED: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    **SERVERS,
    "three gateways": three_gateways,
}


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> GoPeers:
    """The Go program, built."""
    return GoPeers(tmp_path_factory.mktemp("go"), "tour")


@pytest.mark.timeout(900)  # the first one waits for what Go has to compile
@pytest.mark.parametrize("make", TOURED)
def test_go_liftbridge(go: GoPeers, make: str, name: str) -> None:
    with TOURED[make]() as server:
        assert go.run("tour", addr=server.addresses[-1], stream=name, deadline="10m") == TOUR


# gufo_liftbridge


@pytest.fixture
async def gufo(gateway_server: GatewayCluster) -> AsyncIterator[Any]:
    """A client of the gateway."""
    async with LiftbridgeClient(gateway_server.addresses) as client:
        yield client


async def read(client: Any, stream: str, count: int, **options: Any) -> list[tuple[int, bytes]]:
    """The first so many messages of a subscription, with their offsets."""
    found: list[tuple[int, bytes]] = []
    async with aclosing(client.subscribe(stream, **options)) as messages:
        async for message in messages:
            found.append((message.offset, message.value))
            if len(found) == count:
                break
    return found


async def test_gufo(gufo: Any, name: str) -> None:
    await gufo.create_stream(subject=name, name=name, partitions=2, wait_for_stream=True)
    for number in range(5):
        await gufo.publish(b"%d" % number, stream=name, partition=1, key=b"k")
    stored = [(number, b"%d" % number) for number in range(5)]
    earliest, offset = StartPosition.EARLIEST, StartPosition.OFFSET
    assert await read(gufo, name, 5, partition=1, start_position=earliest) == stored
    assert await read(gufo, name, 2, partition=1, start_position=offset, start_offset=3) == stored[3:]
    latest = StartPosition.LATEST
    assert await read(gufo, name, 1, partition=1, start_position=latest, allow_isr=True) == stored[4:]
    partition = await gufo.get_partition_metadata(name, 1)
    assert (partition.newest_offset, partition.high_watermark) == (4, 4)
    assert {stream.name for stream in (await gufo.get_metadata(name)).metadata} == {name}
    await gufo.delete_stream(name)


async def test_gufo_bulk_and_cursor(gufo: Any, name: str) -> None:
    await gufo.create_stream(subject=name, name=name, wait_for_stream=True)
    requests = (
        gufo.get_publish_request(
            b"%d" % number, stream=name, partition=0, correlation_id=str(number), ack_policy=policy
        )
        for number, policy in enumerate([AckPolicy.LEADER, AckPolicy.ALL] * 500)
    )
    # To wait for the last ack is what the server does; gufo_liftbridge's own way misses it now and then.
    answers = [answer async for answer in gufo.publish_bulk(requests, wait=False)]
    acked = sorted((answer.ack.offset, answer.correlationId) for answer in answers)
    assert acked == [(number, str(number)) for number in range(1000)]
    await gufo.wait_for_cursors()
    await gufo.set_cursor(name, 0, "reader", 996)
    stored = [(number, b"%d" % number) for number in range(1000)]
    resumed = {"start_position": StartPosition.RESUME, "cursor_id": "reader"}
    # gufo_liftbridge keeps the offset of the message that is next.
    assert await gufo.get_cursor(name, 0, "reader") == 997
    assert await read(gufo, name, 3, partition=0, **resumed) == stored[997:]


# grpcio


class Grpcio:
    """Calls by method name, with protobuf messages."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    async def __call__(self, method: str, request: Any, answer: Any) -> Any:
        call = self.channel.unary_unary(f"/proto.API/{method}")
        return answer.FromString(await call(request.SerializeToString(), timeout=60))

    def subscribe(self, **options: Any) -> Any:
        request = api_pb2.SubscribeRequest(**options)
        return self.channel.unary_stream("/proto.API/Subscribe")(request.SerializeToString())


@pytest.fixture
async def grpcio(gateway_server: GatewayCluster) -> AsyncIterator[Grpcio]:
    """A connection of grpcio to the gateway."""
    address = gateway_server.addresses[0]
    async with grpc.aio.insecure_channel(address) as channel:
        yield Grpcio(channel)


async def test_grpcio(grpcio: Grpcio, name: str) -> None:
    creation = api_pb2.CreateStreamRequest(name=name, subject=name)
    await grpcio("CreateStream", creation, api_pb2.CreateStreamResponse)
    for number in range(3):
        request = api_pb2.PublishRequest(stream=name, value=b"%d" % number, key=b"k")
        response = await grpcio("Publish", request, api_pb2.PublishResponse)
        assert response.ack.offset == number
    reading = grpcio.subscribe(stream=name, startPosition=api_pb2.EARLIEST, stopPosition=api_pb2.STOP_LATEST)
    found = [api_pb2.Message.FromString(await reading.read()) for _ in range(4)]
    with pytest.raises(grpc.aio.AioRpcError, match="Stop offset reached"):
        await reading.read()
    assert [(m.offset, m.value, m.key) for m in found[1:]] == [(n, b"%d" % n, b"k") for n in range(3)]
    deletion = api_pb2.DeleteStreamRequest(name=f"{name}-no")
    with pytest.raises(grpc.aio.AioRpcError, match="No such stream") as info:
        await grpcio("DeleteStream", deletion, api_pb2.DeleteStreamResponse)
    assert info.value.code() == grpc.StatusCode.NOT_FOUND


async def test_grpcio_publish_async(grpcio: Grpcio, name: str) -> None:
    creation = api_pb2.CreateStreamRequest(name=name, subject=name)
    await grpcio("CreateStream", creation, api_pb2.CreateStreamResponse)
    call = grpcio.channel.stream_stream("/proto.API/PublishAsync")()
    for number in range(100):
        stream = name if number % 10 else f"{name}-no"
        request = api_pb2.PublishRequest(stream=stream, value=b"x", correlationId=str(number))
        await call.write(request.SerializeToString())
    await call.done_writing()
    answers = [api_pb2.PublishResponse.FromString(raw) async for raw in call]
    assert await call.code() is grpc.StatusCode.OK
    refused = {int(a.correlationId) for a in answers if a.HasField("asyncError")}
    assert refused == set(range(0, 100, 10))
    acks = [a.ack for a in answers if not a.HasField("asyncError")]
    acked = sorted((ack.offset, int(ack.correlationId)) for ack in acks)
    assert acked == list(enumerate(number for number in range(100) if number % 10))


async def test_grpcio_health(grpcio: Grpcio) -> None:
    serving = b"\x08\x01"
    check = grpcio.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert await check(b"", timeout=60) == serving
    assert await check(b"\x0a\x09proto.API", timeout=60) == serving
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await check(b"\x0a\x02no", timeout=60)
    assert info.value.code() is grpc.StatusCode.NOT_FOUND
    watching = grpcio.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
    assert await watching.read() == serving
    watching.cancel()
