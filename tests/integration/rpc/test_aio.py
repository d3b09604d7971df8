"""The channel of asyncio against a gRPC server of Google's making."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from liftenvelope.errors import TransportError, UsageError
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode
from liftenvelope.testing import FaultProxy, NatsServer
from tests.integration.conftest import until
from tests.integration.rpc.test_blocking import HTTP1, Service


@pytest.fixture
async def channel(address: str) -> AsyncIterator[Channel]:
    async with await Channel.connect(address, max_message=8_000_000) as channel:
        yield channel
    assert asyncio.all_tasks() <= {asyncio.current_task()}


async def status_of(call: object) -> RpcError:
    with pytest.raises(RpcError) as info:
        await call  # type: ignore[misc]
    return info.value


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_536, 5_000_000])
async def test_unary(channel: Channel, size: int) -> None:
    request = (bytes(range(256)) * (size // 256 + 1))[:size]
    assert await channel.unary("/test/echo", request, timeout=60.0) == request
    assert channel.open_calls == 0


async def test_many_calls_at_once(channel: Channel) -> None:
    answers = await asyncio.gather(*(channel.unary("/test/echo", b"%d" % n) for n in range(300)))
    assert answers == [b"%d" % n for n in range(300)]


async def test_status(channel: Channel) -> None:
    error = await status_of(channel.unary("/test/fail", b"", timeout=60.0))
    assert error.code is StatusCode.FAILED_PRECONDITION
    assert error.description == "nöt so: 100%\n"
    assert (await status_of(channel.unary("/test/nothing", b""))).code == StatusCode.UNIMPLEMENTED


async def test_deadline_is_kept_and_told_to_the_server(channel: Channel, service: Service) -> None:
    while not service.begun.is_set():  # a call whose time was up before it got there is not begun
        error = await status_of(channel.unary("/test/slow", b"", timeout=2.0))
        assert error.code == StatusCode.DEADLINE_EXCEEDED
    await until(service.cancelled.is_set)
    assert await channel.unary("/test/echo", b"on") == b"on"


async def test_stream_one_by_one_and_in_lists(channel: Channel) -> None:
    async with channel.server_stream("/test/count", b"1000") as call:
        assert [int(message) async for message in call] == list(range(1000))
        assert await call.receive() is None
    async with channel.server_stream("/test/count", b"1000") as call:
        first = await anext(call)
        rest: list[bytes] = []
        while (messages := await call.receive()) is not None:
            assert messages
            rest += messages
        assert [int(message) for message in (first, *rest)] == list(range(1000))


async def test_stream_where_one_answer_is_wanted(channel: Channel) -> None:
    for count in (b"0", b"2"):
        with pytest.raises(RpcError, match="exactly one"):
            await channel.unary("/test/count", count, timeout=60.0)


async def test_bidi(channel: Channel) -> None:
    async with channel.bidi("/test/chat") as call:
        for turn in range(10):
            await call.send([b"%d" % turn])
            assert await call.receive() == [b"%d" % turn]
        call.half_close()
        assert await call.receive() is None
        with pytest.raises(RpcError, match="has ended the call"):
            await call.send([b"late"])


async def test_many_messages_are_packed(channel: Channel) -> None:
    async with channel.bidi("/test/total") as call:
        assert await anext(call) == b"ready"
        for _ in range(100):
            await call.send([bytes(100)] * 100)
        call.half_close()
        assert await anext(call) == b"1000000"


async def test_sending_waits_for_the_window(channel: Channel) -> None:
    async with channel.bidi("/test/total") as call:
        for _ in range(30):
            await call.send([bytes(1_000_000)])
        call.half_close()
        assert [message async for message in call] == [b"ready", b"30000000"]


async def test_metadata_both_ways(channel: Channel) -> None:
    sent: list[tuple[str, str | bytes]] = [("x-text", "a b"), ("x-bytes-bin", b"\x00\xff"), ("x-empty", "")]
    async with channel.bidi("/test/metadata", timeout=50.0, metadata=sent) as call:
        assert 40 < float(await anext(call)) <= 50
        assert call.initial_metadata is not None
        assert sorted(call.initial_metadata) == sorted(sent)
        assert await call.receive() is None
        assert dict(call.trailing_metadata)["x-end-bin"] == b"\xff\x00"


async def test_leaving_a_call_resets_it(channel: Channel, service: Service) -> None:
    async with channel.server_stream("/test/forever", b"") as call:
        assert await anext(call) == b"first"
    await until(service.cancelled.is_set)
    assert (await status_of(call.receive())).code == StatusCode.CANCELLED
    assert channel.open_calls == 0


async def test_cancelling_the_task_resets_the_call(channel: Channel, service: Service) -> None:
    task = asyncio.create_task(channel.unary("/test/slow", b""))
    await until(service.begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert channel.open_calls == 0
    await until(service.cancelled.is_set)


async def test_unread_stream_holds_the_server_back_and_nobody_else(
    channel: Channel, service: Service
) -> None:
    async with channel.server_stream("/test/flood", b"") as call:
        for _ in range(50):
            assert await channel.unary("/test/echo", bytes(10_000)) == bytes(10_000)
        assert service.sent < 120
        assert sum([len(message) async for message in call]) == 200 * 100_000


async def test_small_window_and_large_messages(address: str) -> None:
    async with await Channel.connect(address, window=65_535, max_message=8_000_000) as channel:
        request = bytes(5_000_000)
        assert await channel.unary("/test/echo", request, timeout=60.0) == request
        async with channel.server_stream("/test/flood", b"") as call:
            assert sum([len(message) async for message in call]) == 200 * 100_000


async def test_message_over_the_limit(address: str) -> None:
    async with await Channel.connect(address, max_message=1000) as channel:
        assert await channel.unary("/test/echo", bytes(1000)) == bytes(1000)
        error = await status_of(channel.unary("/test/echo", bytes(1001)))
        assert error.code == StatusCode.RESOURCE_EXHAUSTED
        assert "1001 bytes came, the limit is 1000: raise max_message_bytes" in error.description
        assert "(in Spark, maxMessageBytes)" in error.description


async def test_lost_connection_ends_every_call(address: str) -> None:
    with FaultProxy(address) as proxy:
        async with (
            await Channel.connect(proxy.address) as channel,
            channel.server_stream("/test/forever", b"") as call,
        ):
            assert await anext(call) == b"first"
            waiting = asyncio.create_task(channel.unary("/test/slow", b""))
            await until(lambda: channel.open_calls == 2)
            proxy.cut()
            for ending in (anext(call), waiting):
                with pytest.raises(TransportError):
                    await ending
            assert not channel.is_usable
            with pytest.raises(CallNotProcessedError):
                await channel.unary("/test/echo", b"")


@pytest.mark.parametrize("size", [0, 1, 9, 30, 700])
async def test_truncated_answer_is_never_an_end(address: str, size: int) -> None:
    with FaultProxy(address) as proxy:
        async with await Channel.connect(proxy.address) as channel:
            assert await channel.unary("/test/echo", b"whole", timeout=60.0) == b"whole"
            proxy.truncate(size)
            with pytest.raises(TransportError):
                await channel.unary("/test/echo", bytes(1000), timeout=60.0)


async def test_stalled_server_meets_the_deadline(address: str) -> None:
    with FaultProxy(address) as proxy:
        async with await Channel.connect(proxy.address) as channel:
            proxy.stall()
            error = await status_of(channel.unary("/test/echo", bytes(10_000_000), timeout=0.2))
            assert error.code == StatusCode.DEADLINE_EXCEEDED


async def test_stalled_server_is_noticed_by_ping(address: str) -> None:
    with FaultProxy(address) as proxy:
        channel = await Channel.connect(proxy.address, keepalive=0.1, keepalive_timeout=4.0)
        async with channel, channel.server_stream("/test/forever", b"") as call:
            assert await anext(call) == b"first"
            proxy.stall()
            with pytest.raises(TransportError, match="ping"):
                await anext(call)


async def test_pings_are_answered(address: str, service: Service) -> None:
    with FaultProxy(address) as proxy:
        channel = await Channel.connect(proxy.address, keepalive=0.05)
        async with channel, channel.server_stream("/test/forever", b"") as call:
            assert await anext(call) == b"first"
            before = proxy.bytes_to_client
            await until(lambda: proxy.bytes_to_client >= before + 17)
            assert await channel.unary("/test/echo", b"on") == b"on"


async def test_closing_the_channel_ends_its_calls(address: str, service: Service) -> None:
    channel = await Channel.connect(address)
    call = channel.server_stream("/test/forever", b"")
    assert await anext(call) == b"first"
    await channel.close()
    await channel.close()
    with pytest.raises(TransportError, match="closed"):
        await anext(call)
    await until(service.cancelled.is_set)


async def test_close_with_a_stalled_server(address: str) -> None:
    with FaultProxy(address) as proxy:
        channel = await Channel.connect(proxy.address)
        proxy.stall()
        call = channel.bidi("/test/total")
        sending = asyncio.create_task(call.send([bytes(4_000_000)] * 10))
        await until(lambda: channel.open_calls)
        await channel.close()
        with pytest.raises(TransportError, match="closed"):
            await sending


async def test_no_server() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        with pytest.raises(TransportError, match="can't connect"):
            await Channel.connect(f"127.0.0.1:{listener.getsockname()[1]}")


async def test_server_that_is_not_grpc() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"SM\r\n\r\n")
        writer.write(HTTP1)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, await Channel.connect(f"{host}:{port}") as channel:
        with pytest.raises(TransportError, match=r"HTTP/1\.1 400"):
            await channel.unary("/test/echo", b"")


async def test_nats_server_is_named_as_such(nats_server: NatsServer) -> None:
    async with await Channel.connect(nats_server.address) as channel:
        with pytest.raises(TransportError, match="a NATS server greets"):
            await channel.unary("/test/echo", b"")


@pytest.mark.parametrize(
    "options", [{"method": "echo"}, {"method": "/a b"}, {"timeout": 0}, {"metadata": [("Grpc", "")]}]
)
async def test_arguments_that_make_no_sense(channel: Channel, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        await channel.unary(**{"method": "/test/echo", "request": b"", **options})  # type: ignore[arg-type]
    assert channel.open_calls == 0


async def test_close_while_data_is_still_being_sent() -> None:
    """The transport then closes itself once everything is sent."""
    reading, ended = asyncio.Event(), asyncio.Event()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reading.wait()
        with suppress(OSError):  # a machine that needs more than a second sees an abort
            while await reader.read(1 << 20):
                pass
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(read, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    channel = await Channel.connect(f"{host}:{port}")
    transport = channel._link._transport
    assert transport is not None
    transport.write(bytes(32 << 20))  # more than the buffers of the sockets hold
    closing = asyncio.create_task(channel.close())
    await asyncio.sleep(0)
    reading.set()
    async with asyncio.timeout(60):
        await closing
        await ended.wait()
    assert channel._link.closed.done()
    server.close()
    await server.wait_closed()
