"""One client can't keep others out by the connections that it holds."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import pytest
import trustme

from liftenvelope.errors import TransportError
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.limits import ServerLimits
from liftenvelope.rpc.server import Server, ServerCall, unary
from tests.integration.certificates import client_tls, server_tls, trusting

PATIENCE = 120.0
PLACES = 20


async def echo(request: bytes) -> bytes:
    return request


async def chat(call: ServerCall) -> None:
    while (requests := await call.receive()) is not None:
        await call.send(requests)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    limits = ServerLimits(max_connections=PLACES)
    async with Server({"/test/echo": unary(echo), "/test/chat": chat}, limits=limits) as server:
        await server.start()
        yield server


async def silent(
    server: Server, source: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection from an address, and send nothing."""
    host, port = server.address.rsplit(":", 1)
    return await asyncio.open_connection(host, int(port), local_addr=(source, 0))


async def is_closed(reader: asyncio.StreamReader) -> None:
    """Wait until the server has closed the connection."""
    async with asyncio.timeout(PATIENCE):
        with suppress(ConnectionError):
            await reader.read()


async def test_silent_connections_make_room_for_others_and_served_ones_stay(server: Server) -> None:
    async with await Channel.connect(server.address) as served:
        await served.unary("/test/echo", b"1", timeout=PATIENCE)
        opened = [await silent(server) for _ in range(2 * PLACES)]
        for reader, _ in opened[: PLACES + 1]:
            await is_closed(reader)
        async with await Channel.connect(server.address) as other:
            assert await other.unary("/test/echo", b"2", timeout=PATIENCE) == b"2"
        assert await served.unary("/test/echo", b"3", timeout=PATIENCE) == b"3"
        assert len(server.links) <= PLACES
        for _, writer in opened:
            writer.close()


async def test_connections_with_open_calls_make_room_for_another_client(server: Server) -> None:
    async with AsyncExitStack() as stack:
        calls = []
        for _ in range(PLACES):
            channel = await stack.enter_async_context(await Channel.connect(server.address))
            calls.append(channel.bidi("/test/chat"))
            await calls[-1].send([b"open"])
            assert await anext(calls[-1]) == b"open"
        reader, writer = await silent(server)  # the same client, which has its share
        await is_closed(reader)
        writer.close()
        reader, writer = await silent(server, "127.0.0.2")
        with pytest.raises(TransportError):
            await calls[0].receive()
        assert len(server.links) <= PLACES
        writer.close()


async def test_newcomer_from_the_address_of_a_certified_client_ends_no_call() -> None:
    authority = trustme.CA()
    own = client_tls(authority, "ann")
    limits = ServerLimits(max_connections=3, handshake_timeout=PATIENCE)
    async with Server({"/test/chat": chat}, limits=limits) as server, AsyncExitStack() as stack:
        await server.start(tls=server_tls(authority))
        calls = []
        for _ in range(3):
            channel = await stack.enter_async_context(await Channel.connect(server.address, tls=own))
            calls.append(channel.bidi("/test/chat"))
            await calls[-1].send([b"open"])
            assert await anext(calls[-1]) == b"open"
        assert (
            {link.address for link in server.links} == {"127.0.0.1"} != {link.client for link in server.links}
        )
        reader, writer = await silent(server)
        await is_closed(reader)
        writer.close()
        for call in calls:
            await call.send([b"still"])
            assert await anext(call) == b"still"


async def test_unfinished_handshakes_make_room() -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    limits = ServerLimits(max_connections=PLACES, handshake_timeout=PATIENCE)
    async with Server({"/test/echo": unary(echo)}, limits=limits) as server:
        await server.start(tls=tls)
        opened = [await silent(server) for _ in range(2 * PLACES)]
        async with await Channel.connect(server.address, tls=trusting(authority)) as channel:
            assert await channel.unary("/test/echo", b"x", timeout=PATIENCE) == b"x"
        for _, writer in opened:
            writer.close()
