"""Defects of other clients that have no test elsewhere, by the numbers that other tests name, too."""

from __future__ import annotations

import asyncio

from nats.aio.client import Client

from liftenvelope.testing import NatsServer

from .pulling import Bench, feed_of, numbered, until_no_pulls


async def test_nothing_waits_for_a_clock(bench: Bench) -> None:
    """Defect 2: buffers were refilled by a poll every 100 ms, so that 1,000 refills took 100 s."""
    await bench.publish(numbered(1_000))
    consumer = await bench.consumer(ack_policy="none")
    async with asyncio.timeout(60), consumer.messages(max_messages=1) as messages:
        got = [(await messages.next()).data for _ in range(1_000)]
    assert got == numbered(1_000)


async def test_an_iteration_that_is_left_early(bench: Bench, js_nc: Client) -> None:
    """Defect 3: an early break left the subscription behind."""
    await bench.publish(numbered(50))
    consumer = await bench.consumer()
    before = len(js_nc._subs)
    for _ in range(10):
        async with consumer.messages(max_messages=5) as messages:
            async for _ in messages:
                break
    assert len(js_nc._subs) == before
    await until_no_pulls(consumer)


async def test_headers_that_occur_twice(bench: Bench, jetstream_server: NatsServer) -> None:
    """Defect 20: repeated names were lost, and counted for too little. The account must not drift."""
    block = b"NATS/1.0\r\nA:1\r\nA: 2\r\nB:  \xc3\xb6\r\n\r\n"
    body = block + b"x" * 100
    frame = b"HPUB %b.a %d %d\r\n%b\r\n" % (bench.name.encode(), len(block), len(body), body)
    await send(jetstream_server, frame * 60)
    async with asyncio.timeout(60):
        while (await bench.api.request(f"STREAM.INFO.{bench.name}"))["state"]["messages"] < 60:
            await asyncio.sleep(0.01)
    consumer = await bench.consumer(ack_policy="none")
    async with asyncio.timeout(60), consumer.messages(max_bytes=1_000) as messages:
        feed = feed_of(messages)
        for _ in range(60):
            message = await messages.next()
            assert len(message.data) == 100
            assert message.headers["B"].strip() == "ö"
        assert feed._core.buffered == 0


async def send(server: NatsServer, frames: bytes) -> None:
    """Publish what no client would, and wait until the server has it."""
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n' + frames + b"PING\r\n")
    async with asyncio.timeout(60):
        while not (line := await reader.readline()).startswith(b"PONG"):
            assert line.startswith((b"INFO", b"PING")), line
    writer.close()
    await writer.wait_closed()
