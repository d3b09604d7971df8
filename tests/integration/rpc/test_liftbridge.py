"""The transport against a real Liftbridge server, which is grpc-go's."""

from __future__ import annotations

import asyncio

import pytest

from liftenvelope._pb import api_pb2
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import FaultProxy, LiftbridgeCluster


def subscription(name: str) -> bytes:
    request = api_pb2.SubscribeRequest(
        stream=name, startPosition=api_pb2.EARLIEST, stopPosition=api_pb2.STOP_LATEST
    )
    return request.SerializeToString()


async def publish(channel: Channel, name: str, values: list[bytes]) -> list[int]:
    """Publish by PublishAsync with acks; return the offsets."""
    requests = [
        api_pb2.PublishRequest(stream=name, value=value, correlationId=str(n)).SerializeToString()
        for n, value in enumerate(values)
    ]
    offsets: dict[str, int] = {}
    async with channel.bidi("/proto.API/PublishAsync") as call:
        sending = asyncio.create_task(call.send(requests))
        while len(offsets) < len(values):
            for data in await call.receive() or ():
                answer = api_pb2.PublishResponse.FromString(data)
                assert not answer.HasField("asyncError"), answer
                offsets[answer.ack.correlationId] = answer.ack.offset
        await sending
        call.half_close()
        assert await call.receive() is None
    return [offsets[str(n)] for n in range(len(values))]


@pytest.mark.parametrize(("count", "size"), [(20_000, 100), (60, 500_000)])
async def test_publish_and_read_back(
    liftbridge_server: LiftbridgeCluster, name: str, count: int, size: int
) -> None:
    values = [b"%d:" % n + bytes(size) for n in range(count)]
    await asyncio.to_thread(liftbridge_server.create_stream, name)
    async with await Channel.connect(liftbridge_server.addresses[0]) as channel:
        assert await publish(channel, name, values) == list(range(count))
        async with channel.server_stream("/proto.API/Subscribe", subscription(name)) as call:
            assert await anext(call) == b""
            for value in values:
                assert api_pb2.Message.FromString(await anext(call)).value == value
            with pytest.raises(RpcError, match="Stop offset reached") as info:
                await anext(call)
        assert info.value.code == StatusCode.RESOURCE_EXHAUSTED


async def test_slow_reader_slows_the_server_and_loses_nothing(
    liftbridge_server: LiftbridgeCluster, name: str
) -> None:
    await asyncio.to_thread(liftbridge_server.create_stream, name)
    with FaultProxy(liftbridge_server.addresses[0]) as proxy:
        async with await Channel.connect(proxy.address, window=65_535) as channel:
            await publish(channel, name, [bytes(1000)] * 2_000)
            before = proxy.bytes_to_client
            async with channel.server_stream("/proto.API/Subscribe", subscription(name)) as call:
                assert await anext(call) == b""
                # Of one stream: the server has those of the whole run.
                only = api_pb2.FetchMetadataRequest(streams=[name]).SerializeToString()
                for _ in range(20):
                    await channel.unary("/proto.API/FetchMetadata", only)
                assert proxy.bytes_to_client - before < 200_000
                for expected in range(2_000):
                    assert api_pb2.Message.FromString(await anext(call)).offset == expected
                with pytest.raises(RpcError, match="RESOURCE_EXHAUSTED"):
                    await anext(call)


async def test_error_of_the_server(liftbridge_server: LiftbridgeCluster, name: str) -> None:
    async with await Channel.connect(liftbridge_server.addresses[0]) as channel:
        async with channel.server_stream("/proto.API/Subscribe", subscription(name)) as call:
            with pytest.raises(RpcError) as info:
                await call.receive()
        assert info.value.code == StatusCode.NOT_FOUND
        request = api_pb2.DeleteStreamRequest(name=name).SerializeToString()
        with pytest.raises(RpcError) as info:
            await channel.unary("/proto.API/DeleteStream", request, timeout=60.0)
        assert info.value.code == StatusCode.NOT_FOUND
