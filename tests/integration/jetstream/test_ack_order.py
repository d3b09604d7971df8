"""Acks are in the connection's buffer when ack() returns: in order, and written by flush, drain and close."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from liftenvelope.jetstream import JetStream, StorageType, StreamConfig
from liftenvelope.jetstream.message import ACK, NAK, TERM
from liftenvelope.testing import NatsServer
from tests.handled import handled
from tests.integration.conftest import connect, until

from .pulling import Bench, numbered, until_acked


async def test_acks_keep_their_order_among_publishes(
    jetstream_server: NatsServer, js_nc: Client, bench: Bench
) -> None:
    seen: list[bytes] = []
    other = f"{bench.name}-other"

    async def note(msg: Msg) -> None:
        if msg.subject == other or msg.subject.startswith(f"$JS.ACK.{bench.name}."):
            seen.append(msg.data)

    watcher = await connect(jetstream_server.url)
    consumer = await bench.consumer()
    await bench.publish(numbered(5))
    messages = await consumer.fetch(5)
    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=other, storage=StorageType.MEMORY))
        await watcher.subscribe(">", cb=note)  # one subscription: nats-py keeps no order among several
        await handled(watcher)
        messages[0].ack()
        await js_nc.publish(other, b"nats-py")
        messages[1].ack()
        messages[2].term()
        future = await js.publish_async(other, b"small")
        messages[3].ack()
        large = await js.publish_async(other, b"l" * 5_000)
        messages[4].nak()
        await asyncio.gather(future, large)
        await until(lambda: len(seen) >= 8)
        assert seen == [ACK, b"nats-py", ACK, TERM, b"small", ACK, b"l" * 5_000, NAK]
        await js.delete_stream(other)
    await watcher.close()


@pytest.mark.parametrize("end", [Client.close, Client.drain, Client.flush], ids=["close", "drain", "flush"])
async def test_acks_are_written_before_the_connection_ends(
    jetstream_server: NatsServer, js_nc: Client, bench: Bench, end: Callable[[Client], Awaitable[None]]
) -> None:
    await bench.consumer()
    await bench.publish(numbered(300))
    other = await connect(jetstream_server.url)
    consumer = await Bench(other, bench.name).consumer()
    async with JetStream(js_nc) as js:
        messages = await (await js.consumer(bench.name, "worker")).fetch(300)
        assert len(messages) == 300
    for message in messages:
        message.ack()
    await end(js_nc)
    await until_acked(consumer)
    assert (await consumer.info()).ack_floor.stream_seq == 300
    await other.close()
