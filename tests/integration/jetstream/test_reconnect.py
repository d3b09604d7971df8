"""Consumptions continue under load when the server is killed or stopped, or the network fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import ConsumerDeletedError, TransportError
from liftenvelope.jetstream._events import Disconnected, PullEvent, Reconnected
from liftenvelope.jetstream.consuming import Messages
from liftenvelope.jetstream.message import Message
from liftenvelope.nats import accelerate
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from tests.integration.conftest import connect, until

from .pulling import (
    Bench,
    feed_of,
    numbered,
    publish_patiently,
    restart,
    until_no_pulls,
    until_pulled,
)

#: Seconds between heartbeats, as long as they may be: messages that come sooner did not wait for one.
BEAT = 30.0


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    """A server of the test's own, to be killed."""
    with run_nats_server(jetstream=True) as server:
        yield server


@pytest.fixture(params=["plain", "accelerated"])
async def nc(request: pytest.FixtureRequest, server: NatsServer) -> AsyncIterator[Client]:
    client = await connect(server.url)
    if request.param == "accelerated":
        assert accelerate(client).active
    yield client
    if not client.is_closed:
        await client.close()


@pytest.fixture
async def bench(nc: Client, name: str) -> Bench:
    return await Bench(nc, name).create()


@pytest.mark.parametrize("how", ["kill", "stop"])
class TestRestart:
    """Defect 5: with default options nothing was delivered any more, for ever and without an error."""

    async def test_messages(self, server: NatsServer, bench: Bench, how: str) -> None:
        await bench.publish(numbered(100))
        consumer = await bench.consumer(ack_wait=1_000_000_000)
        events: list[PullEvent] = []
        seen: set[bytes] = set()
        async with consumer.messages(max_messages=20, on_event=events.append) as messages:
            while len(seen) < 30:
                seen.add(await taken(messages))
            await restart(server, how)
            await publish_patiently(bench, numbered(10, 100))
            async with asyncio.timeout(60):
                while len(seen) < 110:
                    seen.add(await taken(messages))
        assert seen == set(numbered(110))
        assert Disconnected() in events
        assert events.count(Reconnected()) == 1

    async def test_an_idle_reader_gets_what_comes_later(
        self, server: NatsServer, bench: Bench, how: str
    ) -> None:
        consumer = await bench.consumer()
        async with consumer.messages(idle_heartbeat=BEAT, expires=2 * BEAT) as messages:
            await until_pulled(consumer)
            await restart(server, how)
            await until(lambda: bench.nc.is_connected)
            await publish_patiently(bench, numbered(30))
            got = [(await messages.next(timeout=BEAT)).data for _ in range(30)]
            assert got == numbered(30)
            assert (await consumer.info()).num_waiting <= 2  # nothing was sent twice

    async def test_consume(self, server: NatsServer, bench: Bench, how: str) -> None:
        consumer = await bench.consumer(ack_wait=1_000_000_000)
        seen: set[bytes] = set()

        def handle(message: Message) -> None:
            seen.add(message.data)
            message.ack()

        async with await consumer.consume(handle, max_messages=10):
            await bench.publish(numbered(200))
            await until(lambda: len(seen) > 20)
            await restart(server, how)
            await publish_patiently(bench, numbered(100, 200))
            await until(lambda: len(seen) == 300)
        assert seen == set(numbered(300))

    async def test_fetch(self, server: NatsServer, bench: Bench, how: str) -> None:
        """A fetch that waits while the connection is lost pulls the rest when it is back."""
        consumer = await bench.consumer()
        fetching = asyncio.create_task(consumer.fetch(5, expires=240))
        await until_pulled(consumer)
        await restart(server, how)
        await publish_patiently(bench, numbered(5))
        assert [message.data for message in await asyncio.wait_for(fetching, 240)] == numbered(5)
        await until_no_pulls(consumer)


async def taken(messages: Messages) -> bytes:
    """The next message, acknowledged."""
    message = await messages.next()
    message.ack()
    return message.data


async def test_without_heartbeats_fetch_ends_while_offline(server: NatsServer, bench: Bench) -> None:
    """Its own time-out ends it."""
    consumer = await bench.consumer()
    await asyncio.to_thread(server.stop)
    await until(lambda: not bench.nc.is_connected)
    with pytest.raises(TransportError, match="down"):
        await asyncio.wait_for(consumer.fetch(5, expires=0.5), 20)
    await asyncio.to_thread(server.start)
    await until(lambda: bench.nc.is_connected)


async def test_pulls_are_not_piled_up_while_offline(server: NatsServer, bench: Bench) -> None:
    """Defect 18: every pull of those that nats-py keeps was sent on the reconnect."""
    await bench.publish(numbered(20))
    consumer = await bench.consumer()
    async with consumer.messages(max_messages=20, threshold_messages=20) as messages:
        await until(lambda: messages.buffered == 20)
        await asyncio.to_thread(server.stop)
        await until(lambda: not bench.nc.is_connected)
        for _ in range(15):  # each of these would pull
            (await messages.next(timeout=20)).ack()
        await asyncio.to_thread(server.start)
        await until(lambda: bench.nc.is_connected)
        await until_pulled(consumer)
        assert (await consumer.info()).num_waiting == 1
        assert feed_of(messages)._core.asked == 15


@pytest.mark.parametrize("on_reconnect", ["pull", "check"])
async def test_a_consumer_that_is_gone_after_the_reconnect(
    server: NatsServer, bench: Bench, on_reconnect: Any
) -> None:
    """ADR-37's first revision ends it; its newest goes on, and finds a consumer that is made later."""
    with FaultProxy(server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        consumer = await Bench(nc, bench.name).consumer()
        async with consumer.messages(on_reconnect=on_reconnect) as messages:
            await until_pulled(consumer)
            proxy.refuse()
            proxy.cut()
            await until(lambda: not nc.is_connected)
            await bench.api.request(f"CONSUMER.DELETE.{bench.name}.worker")
            proxy.accept()
            if on_reconnect == "check":
                with pytest.raises(ConsumerDeletedError):
                    await messages.next(timeout=20)
            else:
                await until(lambda: nc.is_connected)
                with pytest.raises(TimeoutError):
                    await messages.next(timeout=0.5)
                await bench.consumer()
                await bench.publish(numbered(1))
                assert (await messages.next(timeout=20)).data == b"0"
        await nc.close()


async def test_a_network_that_fails(server: NatsServer, bench: Bench) -> None:
    """The server lives on; the connection is cut again and again."""
    with FaultProxy(server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        reader = Bench(nc, bench.name)
        consumer = await reader.consumer(ack_wait=1_000_000_000)
        seen: set[bytes] = set()
        async with consumer.messages(max_messages=10) as messages:
            for cut in range(3):
                await bench.publish(numbered(50, 50 * cut))
                while len(seen) < 50 * cut + 20:
                    message = await messages.next(timeout=20)
                    seen.add(message.data)
                    message.ack()
                proxy.cut()
                await until(lambda epoch=cut: nc.stats["reconnects"] > epoch)  # type: ignore[misc]
            while len(seen) < 150:
                message = await messages.next(timeout=20)
                seen.add(message.data)
                message.ack()
            assert seen == set(numbered(150))
        await nc.close()


async def test_resumes_soon_after_the_reconnect(server: NatsServer, bench: Bench) -> None:
    """It takes 0.5 s on a machine that does nothing else."""
    nc = await connect(server.url)
    consumer = await Bench(nc, bench.name).consumer()
    async with consumer.messages(idle_heartbeat=BEAT, expires=2 * BEAT) as messages:
        await until_pulled(consumer)
        publishing = asyncio.create_task(restart_and_publish(server, bench))
        assert (await messages.next(timeout=BEAT)).data == b"0"
        await publishing
    await nc.close()


async def restart_and_publish(server: NatsServer, bench: Bench) -> None:
    await restart(server, "kill")
    await publish_patiently(bench, numbered(1))
