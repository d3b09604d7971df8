"""Calls that the server resets with HTTP/2's CANCEL.

A Liftbridge 1.9.0 built with grpc-go 1.85 was seen to do this at a call's deadline, in 73 of 600 calls before
the client's own timer fired: RST_STREAM with error 8, no headers before it. Liftbridge 26.01 does the same.
Here a scripted broker does it, at a known moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from liftenvelope import bulk
from liftenvelope.client._sending.in_flight import Ending, ending_of
from liftenvelope.client.client import Client
from liftenvelope.errors import AckTimeoutError, CallTimeoutError, TransportError
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.blocking import BlockingChannel
from liftenvelope.rpc.server import ServerCall
from liftenvelope.rpc.status import RpcError, StatusCode, cancelled_by_server
from tests.unit.scripted_broker import (
    HANDSHAKE,
    client_of,
    message,
    read,
    reset,
    reset_at_deadline,
    reset_at_once,
    scripted,
)

METHOD = "/proto.API/CreateStream"
CALLS = 10


@pytest.mark.parametrize(
    ("left", "code"),
    [
        (None, StatusCode.UNAVAILABLE),
        (5.0, StatusCode.UNAVAILABLE),
        (0.05, StatusCode.DEADLINE_EXCEEDED),
        (-1.0, StatusCode.DEADLINE_EXCEEDED),
    ],
)
def test_cancel_means_deadline_only_when_the_deadline_is_near(left: float | None, code: StatusCode) -> None:
    assert cancelled_by_server(left).code is code


def blocking_call(address: str, timeout: float | None) -> StatusCode | int:
    with BlockingChannel(address) as channel, pytest.raises(RpcError) as info:
        channel.unary(METHOD, b"", timeout=timeout)
    return info.value.code


async def asyncio_call(address: str, timeout: float | None) -> StatusCode | int:
    async with await Channel.connect(address) as channel:
        with pytest.raises(RpcError) as info:
            await channel.unary(METHOD, b"", timeout=timeout)
    return info.value.code


async def call_blocking(address: str, timeout: float | None) -> StatusCode | int:
    return await asyncio.to_thread(blocking_call, address, timeout)


@pytest.mark.parametrize("call", [asyncio_call, call_blocking], ids=["asyncio", "blocking"])
class TestChannels:
    async def test_reset_at_the_deadline_is_deadline_exceeded(
        self, call: Callable[[str, float | None], Awaitable[int]]
    ) -> None:
        async with scripted() as (broker,):
            broker.always("CreateStream", reset_at_deadline)
            codes = await asyncio.gather(*(call(broker.address, 0.3) for _ in range(CALLS)))
        assert set(codes) == {StatusCode.DEADLINE_EXCEEDED}

    @pytest.mark.parametrize("timeout", [None, 60.0])
    async def test_reset_at_another_time_is_unavailable(
        self, call: Callable[[str, float | None], Awaitable[int]], timeout: float | None
    ) -> None:
        async with scripted() as (broker,):
            broker.always("CreateStream", reset_at_once)
            assert await call(broker.address, timeout) == StatusCode.UNAVAILABLE


async def delete(client: Client) -> None:
    await client.delete_stream("foo", timeout=0.3)


async def create(client: Client) -> None:
    await client.create_stream("foo", "foo", timeout=0.3)


async def pause(client: Client) -> None:
    await client.pause_stream("foo", timeout=0.3)


@pytest.mark.parametrize(
    ("method", "call"),
    [("DeleteStream", delete), ("CreateStream", create), ("PauseStream", pause)],
)
async def test_call_reset_at_its_deadline_is_a_call_timeout(
    method: str, call: Callable[[Client], Awaitable[object]]
) -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(0)
        broker.always(method, reset_at_deadline)
        for _ in range(3):
            with pytest.raises(CallTimeoutError) as info:
                await call(client)
            assert info.value.retriable


async def test_publish_reset_at_its_deadline_may_be_stored() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(0)
        broker.always("Publish", reset_at_deadline)
        for _ in range(3):
            with pytest.raises(AckTimeoutError) as info:
                await client.publish("foo", b"x", ack_inbox="my.inbox", timeout=1.0)
            assert (info.value.sent, info.value.retriable) == (True, True)
            assert "may be stored" in str(info.value)


async def test_publish_reset_early_may_be_stored_and_is_not_sent_again() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(0)
        broker.always("Publish", reset_at_once)
        with pytest.raises(TransportError) as info:
            await client.publish("foo", b"x", ack_inbox="my.inbox", timeout=60.0)
        assert (info.value.sent, info.value.retriable) == (True, True)
        assert broker.calls["Publish"] == 1


async def test_call_reset_early_is_made_again() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(0)
        broker.next("DeleteStream", reset_at_once)
        broker.next("FetchPartitionMetadata", reset_at_once)
        assert (await client.fetch_partition_metadata("foo")).newest_offset == 0
        await client.delete_stream("foo")
        assert broker.calls["DeleteStream"] == 2


async def test_subscription_reset_by_the_server_goes_on() -> None:
    async with scripted() as (broker,), client_of([broker], events=[]) as client:
        broker.log(0, 1, 2)

        async def begin(call: ServerCall, request: bytes) -> bytes | None:
            await call.send([HANDSHAKE, message(0)])
            reset(call)
            return None

        broker.next("Subscribe", begin)
        assert await read(client, start=0, stop=2) == [0, 1, 2]


@pytest.mark.parametrize("code", [StatusCode.CANCELLED, StatusCode.UNAVAILABLE])
def test_publish_stream_ended_by_the_server_is_lost(code: StatusCode) -> None:
    assert ending_of(RpcError(code, "stopping")) is Ending.LOST


async def test_bulk_read_asks_again_after_a_reset() -> None:
    async with scripted() as (broker,):
        broker.log(*range(5))
        broker.next("FetchPartitionMetadata", reset_at_once)
        broker.next("FetchMetadata", reset_at_once)
        reader = await asyncio.to_thread(bulk.read, broker.address, "foo", start=0)
        table = await asyncio.to_thread(reader.read_all)
    assert table.num_rows == 5
