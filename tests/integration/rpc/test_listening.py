"""Messages that go to a function as they come, and such as are sent without waiting: on a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.server import Server, ServerCall
from liftenvelope.rpc.status import RpcError, StatusCode

METHOD = "/test/echo"


async def echo(call: ServerCall) -> None:
    async for message in call:
        if message == b"fail":
            raise RpcError(StatusCode.ABORTED, "as asked")
        await call.send([message])


@pytest.fixture
async def channel() -> AsyncIterator[Channel]:
    async with (
        Server({METHOD: echo}) as server,
        await Channel.connect(await server.start(), window=1 << 16) as channel,
    ):
        yield channel


async def until(count: int, got: list[bytes]) -> None:
    async with asyncio.timeout(60):
        while len(got) < count:
            await asyncio.sleep(0.001)


async def test_messages_come_in_order_and_the_window_is_given_again(channel: Channel) -> None:
    got: list[bytes] = []
    async with channel.bidi(METHOD) as call:
        call.listen(got.extend)
        sent = [bytes([number]) * 1_000 for number in range(256)]  # four windows
        await call.send(sent)
        await until(len(sent), got)
        assert got == sent
        call.half_close()
        assert await call.receive() is None


async def test_the_end_is_told_as_ever(channel: Channel) -> None:
    got: list[bytes] = []
    async with channel.bidi(METHOD) as call:
        call.listen(got.extend)
        await call.send([b"one", b"fail"])
        with pytest.raises(RpcError, match="as asked"):
            await call.receive()
        assert got == [b"one"]
        assert call.is_over
        assert not call.is_idle


async def test_idle_once_in_a_turn_of_the_loop(channel: Channel) -> None:
    got: list[bytes] = []
    async with channel.bidi(METHOD) as call:
        call.listen(got.extend)
        await asyncio.sleep(0)
        assert call.is_idle
        call.send_soon([b"first"])
        assert not call.is_idle
        await until(1, got)
        assert call.is_idle
