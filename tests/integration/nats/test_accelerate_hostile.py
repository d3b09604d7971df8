"""Accelerated connections and hostile peers: servers that are FAKE, and a publisher on a real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import nats.errors
import pytest
from nats.aio.client import Client

from liftenvelope.errors import UsageError
from liftenvelope.nats import accelerate
from liftenvelope.nats.receiving import parser_of, subscribe_direct
from liftenvelope.testing import NatsServer
from tests.handled import handled
from tests.integration.conftest import connect
from tests.unit.hostile_nats import INFO

LIMIT = 200_000
#: An attack in two parts: what it begins with, and what follows for ever.
ENDLESS = {
    "line": (b"INFO ", b"x" * 65_536),
    "line without a verb": (b"", b"y" * 65_536),
    "error line": (b"-ERR '", b"z" * 65_536),
    "subject": (b"MSG ", b"s" * 65_536),
    "headers": (b"HMSG x 1 5000000000 5000000000\r\n", b"h" * 65_536),
    "message": (b"MSG x 1 5000000000\r\n", bytes(65_536)),
    "message over the limit": (b"MSG x 1 %d\r\n" % (LIMIT + 1), bytes(65_536)),
}


class Attacker:
    """A server that lets a client in and attacks it as soon as it is told to."""

    def __init__(self, begin: bytes, then: bytes) -> None:
        self.begin, self.then = begin, then
        self.go_on = asyncio.Event()
        self.sent = 0
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Attacker]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(INFO)
            await reader.readuntil(b"PING\r\n")
            writer.write(b"PONG\r\n")
            await self.go_on.wait()
            writer.write(self.begin)
            while self.then:
                writer.write(self.then)
                self.sent += len(self.then)
                await writer.drain()
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


async def connected(attacker: Attacker) -> tuple[Client, asyncio.Event]:
    lost = asyncio.Event()

    async def note() -> None:
        lost.set()

    async def ignore(error: Exception) -> None:
        pass

    url = f"nats://127.0.0.1:{attacker.port}"
    nc = await nats.connect(
        url, allow_reconnect=False, connect_timeout=60, disconnected_cb=note, error_cb=ignore
    )
    return nc, lost


@pytest.mark.parametrize("attack", ENDLESS.values(), ids=ENDLESS.keys())
@pytest.mark.parametrize("subscribed", [False, True], ids=["left to nats-py", "taken"])
async def test_connection_ends_before_much_is_held(attack: tuple[bytes, bytes], subscribed: bool) -> None:
    async with Attacker(*attack).running() as attacker:
        nc, lost = await connected(attacker)
        acceleration = accelerate(nc, max_message_bytes=LIMIT)
        if subscribed:
            await subscribe_direct(nc, "x", lambda messages: None)
        attacker.go_on.set()
        async with asyncio.timeout(60):
            await lost.wait()
        # What was sent beyond the limits lies in the buffers of the system and of asyncio.
        assert attacker.sent < 50_000_000
        acceleration.restore()
        await nc.close()


async def test_message_at_the_limit_is_delivered() -> None:
    message = b"MSG x 1 %d\r\n" % LIMIT + bytes(LIMIT) + b"\r\n"
    async with Attacker(message, b"").running() as attacker:
        nc, _ = await connected(attacker)
        accelerate(nc, max_message_bytes=LIMIT)
        subscription = await nc.subscribe("x")
        attacker.go_on.set()
        assert len((await subscription.next_msg(60)).data) == LIMIT
        await nc.close()


@pytest.mark.parametrize("limit", [0, -1])
async def test_limit_must_be_positive(limit: int, nats_server: object) -> None:
    nc = await connect(nats_server.url)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=f"max_message_bytes must be at least 1, got {limit}"):
        accelerate(nc, max_message_bytes=limit)
    assert parser_of(nc) is None
    await nc.close()


async def test_headers_of_a_message_are_no_commands_of_the_server(nats_server: NatsServer, name: str) -> None:
    """A publisher forges a message to another subscription. nats-py alone delivers the forged one (2.16)."""
    nc = await connect(nats_server.url)
    accelerate(nc)
    read, victim = await nc.subscribe(name), await nc.subscribe(f"{name}.victim")
    await handled(nc)
    forged = b"MSG %b.victim %d 6\r\nforged\r\n" % (name.encode(), victim._id)
    headers = b"0\r\n\r\n" + forged
    reader, writer = await asyncio.open_connection("127.0.0.1", nats_server.port)
    writer.write(b'CONNECT {"headers":true}\r\n')
    writer.write(b"HPUB %b %d %d\r\n%bpayload\r\n" % (name.encode(), len(headers), len(headers) + 7, headers))
    writer.write(b"PUB %b.victim 4\r\ntrue\r\nPING\r\n" % name.encode())
    await asyncio.wait_for(reader.readuntil(b"PONG\r\n"), 60)
    assert (await victim.next_msg(60)).data == b"true"
    assert (await read.next_msg(60)).data == b"payload"
    writer.close()
    await nc.close()
