"""Pulls whose messages are still on their way when the time of the pull is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import pytest
from nats.aio.client import Client

from liftenvelope.jetstream._pulling import fetching, pull
from liftenvelope.testing import NatsServer
from tests.integration.conftest import connect, until

from .pulling import Bench, Wire

#: Bytes that the slow network passes on at once, and seconds between.
CHUNK, PAUSE = 100_000, 0.1
#: 3 MB, which take more than three seconds. Sockets hold them: nats-server has sent them long before.
MESSAGES: Final = [bytes(50_000)] * 60


@pytest.fixture
async def slow_nc(jetstream_server: NatsServer) -> AsyncIterator[Client]:
    """A connection over a network that passes on 1 MB per second."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", jetstream_server.port)
        up = asyncio.create_task(pass_on(reader, to_server, 0.0))
        down = asyncio.create_task(pass_on(from_server, writer, PAUSE))
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        down.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        to_server.close()
        writer.close()  # since Python 3.12 a server waits for the ends of its connections

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = await connect(f"nats://127.0.0.1:{port}")
        yield client
        await client.close()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause: float) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(pause)


async def test_fetch_gets_messages_that_come_after_its_time(
    bench: Bench, slow_nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_GRACE", 0.5)
    await bench.consumer()
    await bench.publish(MESSAGES)
    consumer = await Bench(slow_nc, bench.name).consumer()
    batch = await consumer.fetch(len(MESSAGES), expires=0.5)
    assert (len(batch), batch.error) == (len(MESSAGES), None)


async def test_messages_pulls_no_more_while_a_pull_that_is_over_still_delivers(
    bench: Bench, slow_nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer would exceed its limit by as much as the network holds."""
    monkeypatch.setattr(pull, "_GRACE", 0.5)
    await bench.publish(MESSAGES * 2)
    consumer = await Bench(slow_nc, bench.name).consumer()
    async with (
        Wire(bench.nc, consumer.pull_subject) as wire,
        consumer.messages(max_messages=len(MESSAGES), expires=1) as messages,
    ):
        await until(lambda: messages.buffered == len(MESSAGES))
        assert [pull["batch"] for pull in wire.pulls()] == [len(MESSAGES)]
