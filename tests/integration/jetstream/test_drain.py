"""``drain()`` on a real server: every message that the server counts as delivered is handed out."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.client import Client

from liftenvelope.errors import UsageError
from liftenvelope.jetstream import Consumer
from liftenvelope.jetstream._pulling import endings
from liftenvelope.jetstream._pulling.endings import STALLED
from liftenvelope.jetstream.consuming import Messages
from liftenvelope.jetstream.infos import ConsumerInfo
from liftenvelope.jetstream.message import Message
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from tests.integration.conftest import connect, freeze, until

from .pulling import Bench, feed_of, numbered, stream_of, until_no_pulls, until_pulled

#: Drains of one test. Of so many, 2 to 10 left delivered messages when the subscription ended first.
DRAINS = 100
#: Far beyond what a drain takes here, and far below the time-out that it is given.
LONG, PATIENCE = 120, 60


@pytest.fixture
def messages_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a server that gets no processor time for a moment from looking like an idle consumer."""
    monkeypatch.setattr(endings, "QUIET", 10.0)


@asynccontextmanager
async def publishing(url: str, subject: str, pause: float = 0) -> AsyncIterator[None]:
    """A publisher on a connection of its own that goes on until the end of the block."""
    client = await connect(url)

    async def publish() -> None:
        while True:
            await client.publish(subject, b"more")
            await asyncio.sleep(pause)

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        await client.close()


async def drained(messages: Messages, first: int) -> list[bytes]:
    """Read some messages, drain, and read the rest."""
    got = [(await messages.next(timeout=PATIENCE)).data for _ in range(first)]
    await messages.drain(timeout=LONG)
    got += [message.data async for message in messages]
    await messages.closed()
    return got


async def delivered(consumer: Consumer) -> int:
    return (await consumer.info()).delivered.consumer_seq


@pytest.mark.parametrize("ack_policy", ["none", "explicit"])
async def test_drain_of_a_full_stream_hands_out_every_delivered_message(
    bench: Bench, ack_policy: str
) -> None:
    await bench.publish(numbered(2000))
    for number in range(DRAINS):
        consumer = await bench.consumer(f"c{number}", ack_policy=ack_policy, mem_storage=True)
        async with consumer.messages(max_messages=1000) as messages:
            got = await drained(messages, 1)  # the server is still filling the pull
        assert got == numbered(len(got))
        assert await delivered(consumer) == len(got)
        await until_no_pulls(consumer)
        await consumer.delete()


@pytest.mark.usefixtures("messages_keep_coming")
@pytest.mark.parametrize("ack_policy", ["none", "explicit"])
async def test_drain_hands_out_every_delivered_message_while_publishing_goes_on(
    bench: Bench, jetstream_server: NatsServer, ack_policy: str
) -> None:
    async with publishing(jetstream_server.url, f"{bench.name}.a"):
        for number in range(DRAINS // 2):
            consumer = await bench.consumer(
                f"c{number}", ack_policy=ack_policy, mem_storage=True, deliver_policy="new"
            )
            async with consumer.messages(max_messages=20) as messages:
                got = await drained(messages, 2)
            assert await delivered(consumer) == len(got)
            await consumer.delete()


class Publisher(threading.Thread):
    """Publishes from a thread of its own, so that a blocked event loop does not stop it."""

    def __init__(self, server: NatsServer, subject: str) -> None:
        super().__init__(daemon=True)
        self._server, self._frames = server, f"PUB {subject} 1\r\nx\r\n".encode() * 10
        self.publish, self.end = threading.Event(), threading.Event()

    def run(self) -> None:
        host, port = self._server.address.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\n')
            while not self.end.wait(0.001):
                if self.publish.is_set():
                    connection.sendall(self._frames)


async def test_drain_hands_out_every_delivered_message_although_the_event_loop_blocks(
    bench: Bench, jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop blocks while the consumer's info is on its way: messages sit behind the answer, unread."""
    publisher = Publisher(jetstream_server, f"{bench.name}.a")
    publisher.start()
    info = Consumer.info

    async def info_of_the_past(consumer: Consumer, *, timeout: float | None = None) -> ConsumerInfo:
        asking = asyncio.create_task(info(consumer, timeout=timeout))
        if not publisher.publish.is_set():
            for _ in range(5):  # turns of the loop in which the request is sent
                await asyncio.sleep(0)
            time.sleep(0.005)  # the server answers
            publisher.publish.set()
            time.sleep(0.5)
        return await asking

    try:
        for number in range(3):
            publisher.publish.clear()
            await asyncio.sleep(0.05)
            consumer = await bench.consumer(
                f"c{number}", ack_policy="none", mem_storage=True, deliver_policy="new"
            )
            async with consumer.messages(max_messages=20_000, expires=10) as messages:
                await until_pulled(consumer)
                with monkeypatch.context() as patch:
                    patch.setattr(Consumer, "info", info_of_the_past)
                    await messages.drain(timeout=LONG)
                got = [message.data async for message in messages]
            assert await delivered(consumer) == len(got)
            assert publisher.publish.is_set()
            await consumer.delete()
    finally:
        publisher.end.set()
        await asyncio.to_thread(publisher.join)


@pytest.mark.punctual  # a server that stood still drops a client that reads late
async def test_drain_of_a_server_that_stood_still_hands_out_every_delivered_message(name: str) -> None:
    """The server is paused for longer than a consumer may be silent before it counts as stalled."""
    loop = asyncio.get_running_loop()
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        bench = await Bench(nc, name).create()
        await bench.publish([bytes(10_000)] * 5000)
        for number in range(2):
            consumer = await bench.consumer(f"c{number}", ack_policy="none", mem_storage=True)
            async with consumer.messages(max_messages=5000, expires=LONG) as messages:
                got = [(await messages.next(timeout=PATIENCE)).data]
                assert server.pid is not None
                freeze(server.pid)
                loop.call_later(2 * STALLED, os.kill, server.pid, signal.SIGCONT)
                await messages.drain(timeout=LONG)
                got += [message.data async for message in messages]
            assert await delivered(consumer) == len(got)
        await nc.close()


@pytest.mark.usefixtures("messages_keep_coming")
async def test_drain_without_acks_waits_for_the_end_of_its_pulls(
    bench: Bench, jetstream_server: NatsServer
) -> None:
    """Messages come too slowly to fill the pull, and too often to call the consumer idle."""
    consumer = await bench.consumer(ack_policy="none")
    async with publishing(jetstream_server.url, f"{bench.name}.a", pause=0.01):
        async with consumer.messages(max_messages=100_000, expires=1) as messages:
            feed = feed_of(messages)
            got = [(await messages.next(timeout=PATIENCE)).data]
            await messages.drain(timeout=LONG)
            assert feed._core.asked == feed._core.waiting == 0
            got += [message.data async for message in messages]
        assert await delivered(consumer) == len(got)


async def test_drain_of_an_idle_consumption_does_not_wait_for_its_pulls(bench: Bench) -> None:
    await bench.publish(numbered(3))
    consumer = await bench.consumer()
    async with consumer.messages(expires=LONG) as messages:
        for _ in range(3):
            (await messages.next(timeout=PATIENCE)).ack()
        await until_pulled(consumer)
        async with asyncio.timeout(PATIENCE):
            await messages.drain(timeout=LONG)
        assert [message async for message in messages] == []
    await until_no_pulls(consumer)


@pytest.mark.usefixtures("messages_keep_coming")
async def test_drain_ends_at_its_timeout_while_messages_keep_coming(
    bench: Bench, jetstream_server: NatsServer
) -> None:
    consumer = await bench.consumer()
    async with (
        publishing(jetstream_server.url, f"{bench.name}.a", pause=0.01),
        consumer.messages(max_messages=100_000, expires=LONG) as messages,
    ):
        await messages.next(timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            await messages.drain(timeout=1)
            got = [message.data async for message in messages]
        assert got
        await until_no_pulls(consumer)


@pytest.mark.parametrize("reason", ["paused", "waits for acks"])
async def test_drain_of_a_stalled_consumer_does_not_wait_for_its_pulls(bench: Bench, reason: str) -> None:
    """There is something to deliver, and it does not come."""
    consumer = await bench.consumer(max_ack_pending=5)
    async with consumer.messages(expires=LONG) as messages:
        await until_pulled(consumer)
        if reason == "paused":
            await consumer.pause(600)
        await bench.publish(numbered(10))
        if reason == "waits for acks":
            await until(lambda: messages.buffered == 5)
        async with asyncio.timeout(PATIENCE):
            await messages.drain(timeout=LONG)
        got = [message.data async for message in messages]
    assert got == numbered(0 if reason == "paused" else 5)
    assert await delivered(consumer) == len(got)


async def test_drain_of_one_of_two_readers_loses_nothing(bench: Bench) -> None:
    consumer = await bench.consumer(ack_policy="none")
    async with (
        consumer.messages(max_messages=20) as staying,
        consumer.messages(max_messages=20) as leaving,
    ):
        await until_pulled(consumer, 2)
        await bench.publish(numbered(1000))
        got = await drained(leaving, 5)
        while len(got) < 1000:
            got.append((await staying.next(timeout=PATIENCE)).data)
    assert sorted(got) == sorted(numbered(1000))


@pytest.mark.usefixtures("messages_keep_coming")
async def test_drain_ends_when_the_connection_is_cut(jetstream_server: NatsServer, name: str) -> None:
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        bench = await Bench(nc, name).create()
        consumer = await bench.consumer(ack_policy="none")
        async with (
            publishing(jetstream_server.url, f"{name}.a", pause=0.01),
            consumer.messages(max_messages=100_000, expires=LONG) as messages,
        ):
            await messages.next(timeout=PATIENCE)
            draining = asyncio.create_task(messages.drain(timeout=LONG))
            await until(lambda: feed_of(messages)._machine._stopped)
            received = messages.buffered
            await until(lambda: messages.buffered > received)  # it takes what comes
            await asyncio.to_thread(proxy.cut)
            async with asyncio.timeout(PATIENCE):
                await draining
                got = [message.data async for message in messages]
            assert len(got) > received
        await bench.delete()


async def test_drain_of_an_ordered_consumer_hands_out_every_delivered_message(bench: Bench) -> None:
    await bench.publish(numbered(200))
    stream = await stream_of(bench)
    for _ in range(DRAINS // 4):
        async with stream.ordered_consumer().messages(max_messages=100) as messages:
            got = [(await messages.next(timeout=PATIENCE)).data for _ in range(10)]
            (name,) = [name async for name in stream.consumer_names()]
            consumer = await stream.consumer(name)
            await messages.drain(timeout=LONG)
            sent = await delivered(consumer)
            got += [message.data async for message in messages]
        assert got == numbered(sent)
        async with asyncio.timeout(PATIENCE):
            while [name async for name in stream.consumer_names()]:
                await asyncio.sleep(0.01)


async def test_drain_of_an_ordered_consumer_that_is_cancelled_ends_it(bench: Bench) -> None:
    stream = await stream_of(bench)
    async with stream.ordered_consumer().messages() as messages:
        draining = asyncio.create_task(messages.drain(timeout=LONG))
        await asyncio.sleep(0)
        draining.cancel()
        await asyncio.wait({draining})
        async with asyncio.timeout(PATIENCE):
            await messages.closed()


@pytest.mark.usefixtures("messages_keep_coming")
async def test_drain_of_consume_hands_out_every_delivered_message(
    bench: Bench, js_nc: Client, jetstream_server: NatsServer
) -> None:
    async with publishing(jetstream_server.url, f"{bench.name}.a"):
        for number in range(DRAINS // 4):
            consumer = await bench.consumer(f"c{number}", ack_policy="none", mem_storage=True)
            seen: list[bytes] = []

            async def handle(message: Message, seen: list[bytes] = seen) -> None:
                await asyncio.sleep(0)
                seen.append(message.data)

            async with await consumer.consume(handle, max_messages=30) as consumption:
                await until(lambda seen=seen: len(seen) > 5)  # type: ignore[misc]
                await consumption.drain(timeout=LONG)
            assert await delivered(consumer) == len(seen)
            await consumer.delete()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
async def test_drain_refuses_a_timeout_that_is_not_positive(bench: Bench, timeout: float) -> None:
    await bench.publish(numbered(1))
    consumer = await bench.consumer()
    async with consumer.messages() as messages:
        with pytest.raises(UsageError, match="timeout must be a positive number of seconds"):
            await messages.drain(timeout=timeout)
        assert (await messages.next(timeout=PATIENCE)).data == b"0"  # it goes on
    async with await consumer.consume(lambda _: None) as consumption:
        with pytest.raises(UsageError, match="timeout must be a positive number of seconds"):
            await consumption.drain(timeout=timeout)
