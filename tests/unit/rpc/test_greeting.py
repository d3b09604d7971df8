"""First frame of a server, which shows that there is an HTTP/2 server that runs."""

from __future__ import annotations

import asyncio

import pytest

from liftenvelope.errors import TransportError
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.server import Server

pytestmark = pytest.mark.usefixtures("loop_errors")


async def test_server_that_runs_greets_without_a_call() -> None:
    server = Server({})
    address = await server.start()
    async with await Channel.connect(address) as channel:
        await channel.wait_greeted(60.0)
        await channel.wait_greeted(60.0)
        assert channel.is_usable
    await server.close()


@pytest.mark.parametrize(
    ("greeting", "timeout", "text"),
    [
        (None, 0.05, "accepted the connection and sent nothing within 0.05 s"),
        (b"", 60.0, "closed the connection before it sent anything"),
        (b"INFO {}\r\n", 60.0, "so a NATS server greets"),
    ],
)
async def test_peer_that_is_no_running_server_is_reported(
    greeting: bytes | None, timeout: float, text: str
) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.read(1)  # unread bytes would make the close a reset
        if greeting is not None:
            writer.write(greeting)
            writer.close()

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, await Channel.connect(f"{host}:{port}") as channel:
        with pytest.raises(TransportError, match=f"{host}:{port}.*{text}"):
            await channel.wait_greeted(timeout)
        assert channel.is_usable == (greeting is None)
        for writer in writers:
            writer.close()
