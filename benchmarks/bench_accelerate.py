"""Receiving on an accelerated connection, compared with nats-py on one server, and the effect on acks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from time import perf_counter

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.rounds import Comparison, Loop, Peer
from liftenvelope._native import frames
from liftenvelope.nats import accelerate
from liftenvelope.nats.receiving import subscribe_direct
from liftenvelope.testing import NatsServer

SUBJECT, PAYLOAD = "bench.receive", b"x" * 100
FRAME = b"PUB bench.receive 100\r\n%b\r\n" % PAYLOAD
#: Upper bound of a round, in seconds; a longer one means that something hangs.
PATIENCE = 120.0


@pytest.fixture
def nc(loop: asyncio.Runner, plain_nats: NatsServer) -> Iterator[Client]:
    """A connection to a server without Liftbridge."""
    client = loop.run(nats.connect(plain_nats.url))
    yield client
    loop.run(client.close())


class Count:
    """Counts the payloads that are as they should be, and says when there are enough."""

    def __init__(self, wanted: int) -> None:
        self.left = wanted
        self.all_here = asyncio.Event()

    def add(self, payloads: list[bytes]) -> None:
        self.left -= payloads.count(PAYLOAD)
        if self.left <= 0:
            self.all_here.set()


def _send(server: NatsServer, count: int) -> None:
    """Have the server hold so many messages, before the client reads the first of them."""
    with (
        socket.create_connection(("127.0.0.1", server.port)) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(b'CONNECT {"verbose": false}\r\n' + FRAME * count + b"PING\r\n")
        while answers.readline() != b"PONG\r\n":
            pass


def _receive(
    loop: asyncio.Runner,
    server: NatsServer,
    count: int,
    subscribe: Callable[[Count], Awaitable[Callable[[], Awaitable[None]]]],
) -> float:
    """Seconds per message, from the first read to the last handler."""

    async def prepare() -> tuple[Count, Callable[[], Awaitable[None]]]:
        counter = Count(count)
        return counter, await subscribe(counter)

    async def wait() -> None:
        await asyncio.wait_for(counter.all_here.wait(), PATIENCE)

    counter, unsubscribe = loop.run(prepare())
    _send(server, count)
    began = perf_counter()
    loop.run(wait())
    taken = perf_counter() - began
    loop.run(_end(unsubscribe))
    return taken / count


async def _end(unsubscribe: Callable[[], Awaitable[None]]) -> None:
    await unsubscribe()


@pytest.mark.parametrize("payloads", [True, False], ids=["payloads", "messages"])
def test_receive(
    compare: Comparison, loop: asyncio.Runner, nc: Client, plain_nats: NatsServer, payloads: bool
) -> None:
    count = compare.amount(500_000, 500)

    async def directly(counter: Count) -> Callable[[], Awaitable[None]]:
        def take(messages: list[tuple[str, bytes, bytes | None, bytes]]) -> None:
            counter.add([payload for _, _, _, payload in messages])

        direct = await subscribe_direct(nc, SUBJECT, counter.add if payloads else take, payloads=payloads)
        await nc.flush()
        await nc.flush()
        return direct.unsubscribe

    async def by_callback(counter: Count) -> Callable[[], Awaitable[None]]:
        async def take(msg: Msg) -> None:
            counter.add([msg.data])

        sub = await nc.subscribe(SUBJECT, cb=take, pending_msgs_limit=0, pending_bytes_limit=0)
        await nc.flush()
        await nc.flush()
        return sub.unsubscribe

    def accelerated() -> float:
        with accelerate(nc) as acceleration:
            assert acceleration.active
            return _receive(loop, plain_nats, count, directly)

    compare(
        f"receive 100 B, accelerated, {'payloads' if payloads else 'with subject, reply, headers'}",
        accelerated,
        Peer("nats-py cb=", lambda: _receive(loop, plain_nats, count, by_callback), 3),
        Peer("itself, not accelerated", lambda: _receive(loop, plain_nats, count, directly)),
        rate=True,
        rounds=5,
    )


def test_walk(compare: Comparison) -> None:
    count = 200
    data = (b"MSG bench.receive 7 100\r\n%b\r\n" % PAYLOAD) * count

    def walking(payloads: bool) -> Loop:
        def loop(turns: Iterable[None]) -> None:
            for _ in turns:
                walker = frames.NatsWalker(1 << 30)
                walker.open(7, payloads)
                walker.feed(data)
                walker.walk()

        return loop

    compare(
        "NatsWalker, 100 B, with subject, reply, headers",
        compare.timed(walking(False), per=count),
        Peer("payloads alone", compare.timed(walking(True), per=count)),
    )
