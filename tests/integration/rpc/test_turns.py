"""A server shares its event loop and its calls among connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

from liftenvelope.gateway._calls.health import HealthService
from liftenvelope.rpc._events import Event
from liftenvelope.rpc._link import Flow
from liftenvelope.rpc._server_side import ServerConnection
from liftenvelope.rpc._turns import PieceOutcome, Turns
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.limits import ServerLimits
from liftenvelope.rpc.server import Server, ServerCall, _ServerLink
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.hostile.frames import (
    CANCEL,
    DATA,
    GREETING,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    headers,
    message,
    stream_id,
)

#: Less than are allowed at once.
FLOOD = frame(SETTINGS, 0, 0) * 900


#: Seconds by which a fake clock advances per reading. It is read after each frame: the 0.3 ms of a piece are
#: 10 frames. A turn has at most two pieces within the budget, and one of useless frames.
STEP = 0.00003
MOST_FRAMES = 30


async def test_flooded_connections_share_the_frames_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, turn, frames, now = asyncio.get_running_loop(), 0, Counter[int](), 0.0
    handle_frame = ServerConnection._handle_frame

    def note_frame(protocol: ServerConnection, data: bytes) -> list[Event]:
        frames[turn] += 1
        return handle_frame(protocol, data)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    def clock() -> float:
        nonlocal now
        now += STEP
        return now

    monkeypatch.setattr(ServerConnection, "_handle_frame", note_frame)
    async with Server({}) as server:
        server.turns = Turns(clock)
        host, port = (await server.start()).rsplit(":", 1)
        connections = [await asyncio.open_connection(host, int(port)) for _ in range(6)]
        next_turn()
        for _, writer in connections:
            writer.write(GREETING + FLOOD + frame(PING, 0, 0, b"the last"))
        await asyncio.gather(*(reader.readuntil(b"the last") for reader, _ in connections))
        for _, writer in connections:
            writer.close()
    # None is lost between two turns.
    assert sum(frames.values()) >= 6 * 900
    assert max(frames.values()) <= MOST_FRAMES


async def send_without_pause(address: str) -> None:
    host, port = address.rsplit(":", 1)
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(GREETING + headers(1, "/"))
    try:
        while True:
            writer.write(frame(DATA, 0, 1, message(bytes(16_000))) * 8)
            await writer.drain()
    finally:
        writer.transport.abort()


async def echo_short_messages(call: ServerCall) -> None:
    async for received in call:
        if len(received) < 100:
            await call.send([received])


class Waits:
    """Counts the pieces of other connections between the arrival of bytes on one connection and its piece.

    Attributes:
        link: The connection.
        pieces: Pieces so far, of all connections.
        counts: The pieces of others, per arrival.
    """

    def __init__(self, link: _ServerLink, monkeypatch: pytest.MonkeyPatch) -> None:
        self.link, self.pieces, self.counts = link, 0, list[int]()
        self._arrived_at: int | None = None
        arrived, work = _ServerLink.buffer_updated, _ServerLink.work

        def note_arrival(link: _ServerLink, size: int) -> None:
            if link is self.link:
                self._arrived_at = self.pieces
            arrived(link, size)

        def note_work(link: _ServerLink, is_over: Callable[[], bool]) -> PieceOutcome:
            if link is self.link and self._arrived_at is not None:
                self.counts.append(self.pieces - self._arrived_at)
                self._arrived_at = None
            self.pieces += 1
            return work(link, is_over)

        monkeypatch.setattr(_ServerLink, "buffer_updated", note_arrival)
        monkeypatch.setattr(_ServerLink, "work", note_work)


async def test_message_is_read_before_those_of_clients_that_send_without_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = count()
    async with Server({"/": echo_short_messages}) as server:
        server.turns = Turns(lambda: STEP * next(readings))
        address = await server.start()
        async with asyncio.timeout(60), await Channel.connect(address) as channel:
            call = channel.bidi("/")
            await call.send([b"the first"])
            assert await call.receive() == [b"the first"]
            waits = Waits(next(iter(server.links)), monkeypatch)
            floods = [asyncio.create_task(send_without_pause(address)) for _ in range(20)]
            for number in range(1, 21):
                while waits.pieces < 200 * number:
                    await asyncio.sleep(0)
                await call.send([b"short"])
                assert await call.receive() == [b"short"]
            for flood in floods:
                flood.cancel()
            await asyncio.gather(*floods, return_exceptions=True)
    # Not one piece of each of the others, although most of them wait at any time.
    assert len(waits.counts) >= 20
    assert max(waits.counts) <= 1


async def test_few_calls_start_per_turn_however_fast_their_frames_are() -> None:
    loop, turn, starts = asyncio.get_running_loop(), 0, Counter[int]()

    async def wait(call: ServerCall) -> None:
        starts[turn] += 1
        await asyncio.Event().wait()

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    async with Server({"/": wait}) as server:
        server.turns = Turns(lambda: 0.0)
        host, port = (await server.start()).rsplit(":", 1)
        _, writer = await asyncio.open_connection(host, int(port))
        next_turn()
        writer.write(GREETING + b"".join(headers(stream_id(number), "/") for number in range(200)))
        while server.calls < 200 or sum(starts.values()) < 200:
            await asyncio.sleep(0)
        writer.close()
    # Six events end a piece.
    assert max(starts.values()) <= 18


class WaitingCalls:
    """Calls that end only if they are cancelled, and their numbers."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    async def wait(self, call: ServerCall) -> None:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1

    async def lose_connection(self, server: Server) -> None:
        """Begin 500 calls on a connection, and break it off."""
        host, port = (await server.start()).rsplit(":", 1)
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(GREETING + b"".join(headers(stream_id(number), "/") for number in range(500)))
        while self.begun < 500:
            await asyncio.sleep(0)
        writer.transport.abort()


async def test_calls_of_a_lost_connection_are_cancelled_a_few_per_turn() -> None:
    calls, before = WaitingCalls(), 0
    async with Server({"/": calls.wait}) as server:
        await calls.lose_connection(server)
        while server.calls:
            await asyncio.sleep(0)
            assert calls.ended - before <= 16
            before = calls.ended
    assert calls.ended == 500


async def test_server_that_closes_waits_for_the_calls_of_lost_connections() -> None:
    calls = WaitingCalls()
    async with Server({"/": calls.wait}) as server:
        await calls.lose_connection(server)
        while not calls.ended:
            await asyncio.sleep(0)
        assert calls.ended < 500
    assert calls.ended == 500


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


async def test_write_looks_only_at_calls_whose_sender_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[Flow]()
    wake_sender = Flow.wake_sender

    async def fill(call: ServerCall) -> None:
        await call.send([bytes(1 << 20)] if call.flow.call_id == 1 else [])
        await asyncio.Event().wait()

    def note(flow: Flow) -> None:
        looked.append(flow)
        wake_sender(flow)

    async with Server({"/": fill}) as server:
        host, port = (await server.start()).rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(GREETING + b"".join(headers(stream_id(number), "/") for number in range(100)))
        while server.calls < 100:
            await asyncio.sleep(0)
        await reader.readexactly(65_535)
        (link,) = server.links
        monkeypatch.setattr(Flow, "wake_sender", note)
        link.flush()
        assert looked == [link.flows[1]]
        # The window of the call opens, then that of the connection: its sender goes on.
        for stream in (1, 0):
            link.receive(frame(WINDOW_UPDATE, 0, stream, (1 << 22).to_bytes(4, "big")))
        link.flush()
        assert not link.senders
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
