"""Rests of an asyncio connection between small reads: other calls, deadlines and losses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from liftenvelope.errors import TransportError
from liftenvelope.rpc.aio import Call, Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import FaultProxy
from tests.integration.rpc.test_blocking import Service
from tests.integration.rpc.test_read_pauses import ENDLESS, AlwaysDue, one_byte_at_a_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftenvelope.rpc.aio.ReadPacer", AlwaysDue)


@pytest.fixture
async def channel(address: str) -> AsyncIterator[Channel]:
    async with await Channel.connect(address) as channel:
        yield channel


async def resting(channel: Channel) -> Call:
    """A conversation that has got a message, so that its connection rests without an end."""
    call = channel.bidi("/test/chat")
    call.pause = ENDLESS
    await call.send([b"first"])
    assert await asyncio.wait_for(call.receive(), 60) == [b"first"]
    return call


async def take_all(call: Call) -> list[bytes]:
    found: list[bytes] = []
    while (messages := await call.receive()) is not None:
        found += messages
    return found


async def test_another_call_ends_a_rest(channel: Channel) -> None:
    async with await resting(channel) as call:
        await call.send([b"second"])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call.receive(), 0.3)
        assert await channel.unary("/test/echo", b"urgent", timeout=60.0) == b"urgent"
        assert await asyncio.wait_for(call.receive(), 60) == [b"second"]


async def test_connection_does_not_rest_while_another_call_is_open(channel: Channel) -> None:
    async with channel.server_stream("/test/forever", b""), await resting(channel) as call:
        await call.send([b"second"])
        assert await asyncio.wait_for(call.receive(), 60) == [b"second"]


async def test_deadline_is_kept_in_a_rest(channel: Channel) -> None:
    async with channel.server_stream("/test/forever", b"", timeout=1.0) as call:
        call.pause = ENDLESS
        with pytest.raises(RpcError) as info:
            await asyncio.wait_for(take_all(call), 60)
        assert info.value.code is StatusCode.DEADLINE_EXCEEDED


async def test_call_cancelled_in_a_rest_is_cancelled_at_the_server(
    channel: Channel, service: Service
) -> None:
    async with channel.server_stream("/test/forever", b"") as call:
        call.pause = ENDLESS
        assert await asyncio.wait_for(call.receive(), 60) == [b"first"]
    assert await asyncio.to_thread(service.cancelled.wait, 60)


async def test_channel_closes_in_a_rest(channel: Channel) -> None:
    call = await resting(channel)
    await asyncio.wait_for(channel.close(), 60)
    with pytest.raises(TransportError, match="closed"):
        await call.receive()


async def test_rest_ends_by_itself(channel: Channel) -> None:
    async with channel.server_stream("/test/count", b"1000", timeout=60.0) as call:
        call.pause = 0.001
        assert await take_all(call) == [b"%d" % number for number in range(1000)]


async def test_stream_that_comes_byte_by_byte_is_whole(address: str) -> None:
    with one_byte_at_a_time(address) as slow:
        async with await Channel.connect(slow) as channel:
            call = channel.server_stream("/test/count", b"200", timeout=60.0)
            call.pause = 0.0005
            assert await take_all(call) == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize("size", [1, 9, 12, 1000])
async def test_connection_lost_inside_a_frame_is_no_end(address: str, size: int) -> None:
    with FaultProxy(address) as proxy:
        async with await Channel.connect(proxy.address) as channel:
            assert await channel.unary("/test/echo", b"whole", timeout=60.0) == b"whole"
            proxy.truncate(size)
            call = channel.server_stream("/test/flood", b"", timeout=60.0)
            call.pause = 0.0005
            with pytest.raises(TransportError):
                await take_all(call)
