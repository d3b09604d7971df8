"""How a server shares its event loop and its calls among connections."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from liftenvelope.gateway.health import HealthService
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.limits import ServerLimits
from liftenvelope.rpc.server import Server, ServerCall, _ServerLink
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.hostile.frames import CANCEL, GREETING, RST_STREAM, SETTINGS, frame, headers, stream_id

#: Less than are allowed at once.
FLOOD = frame(SETTINGS, 0, 0) * 900


async def test_one_flooded_connection_is_served_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, turn, pieces, reads = asyncio.get_running_loop(), 0, Counter[int](), Counter[int]()
    receive, buffer_updated = _ServerLink.receive, _ServerLink.buffer_updated

    def note_piece(link: _ServerLink, data: bytes) -> None:
        pieces[turn] += 1
        receive(link, data)

    def note_read(link: _ServerLink, nbytes: int) -> None:
        reads[turn] += 1
        buffer_updated(link, nbytes)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    monkeypatch.setattr(_ServerLink, "receive", note_piece)
    monkeypatch.setattr(_ServerLink, "buffer_updated", note_read)
    async with Server({}) as server:
        host, port = (await server.start()).rsplit(":", 1)
        connections = [await asyncio.open_connection(host, int(port)) for _ in range(6)]
        next_turn()
        for _, writer in connections:
            writer.write(GREETING + FLOOD)
        acks = [asyncio.create_task(reader.readexactly(9 * 900)) for reader, _ in connections]
        await asyncio.gather(*acks)
        for _, writer in connections:
            writer.close()
    assert sum(pieces.values()) > 60
    # The first piece of what was read is handled at once; of the rest, one piece of one connection.
    assert [count for at, count in pieces.items() if count > reads[at] + 1] == []


async def test_call_that_is_reset_at_once_costs_no_task() -> None:
    async with Server({}) as server:
        host, port = (await server.start()).rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        await reader.read(1)  # the server's greeting: it has accepted the connection
        (link,) = server.links
        # Not by the socket: pieces may be smaller than a call with its reset.
        link.receive(GREETING + headers(stream_id(0), "/") + frame(RST_STREAM, 0, stream_id(0), CANCEL))
        assert link.tasks == {}
        link.receive(headers(stream_id(1), "/"))
        assert len(link.tasks) == 1
        writer.close()


async def test_calls_of_all_clients_together_are_bounded() -> None:
    release = asyncio.Event()

    async def wait(call: ServerCall) -> None:
        await release.wait()

    async with Server({"/": wait}, limits=ServerLimits(max_calls=3)) as server:
        address = await server.start()
        async with await Channel.connect(address) as one, await Channel.connect(address) as other:
            calls = [channel.bidi("/") for channel in (one, other, one)]
            while server.calls < 3:
                await asyncio.sleep(0)
            with pytest.raises(RpcError, match="try again later") as caught:
                await other.bidi("/").receive()
            assert caught.value.code == StatusCode.RESOURCE_EXHAUSTED
            release.set()
            assert [await call.receive() for call in calls] == [None, None, None]
            assert await other.bidi("/").receive() is None
    assert server.calls == 0


def looks() -> int:
    return len([task for task in asyncio.all_tasks() if task.get_name() == "watch health"])


async def test_watches_of_the_health_share_one_look() -> None:
    is_connected, draining = True, asyncio.Event()
    health = HealthService(lambda: is_connected, draining)
    async with Server({"/": health.watch}) as server, await Channel.connect(await server.start()) as channel:
        calls = [channel.server_stream("/", b"") for _ in range(200)]
        assert [await call.receive() for call in calls] == [[b"\x08\x01"]] * 200
        assert looks() == 1
        is_connected = False
        assert [await call.receive() for call in calls] == [[b"\x08\x02"]] * 200
        for call in calls[:-1]:
            call.cancel()
        while server.calls > 1:
            await asyncio.sleep(0)
        is_connected = True
        assert await calls[-1].receive() == [b"\x08\x01"]
        calls[-1].cancel()
        while looks():
            await asyncio.sleep(0)
        later = channel.server_stream("/", b"")
        assert await later.receive() == [b"\x08\x01"]
        draining.set()
        assert await later.receive() == [b"\x08\x02"]
        with pytest.raises(RpcError, match="the gateway is stopping"):
            await later.receive()
