"""The barrier of a link, and what nats-py's own ``flush()`` does to a connection (defects 15 and 17)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client

from liftenvelope.errors import TransportError
from liftenvelope.nats.link import Link
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from tests.handled import handled
from tests.integration.conftest import connect, until


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    with run_nats_server() as server:
        yield server


@pytest.fixture
async def proxy(server: NatsServer) -> AsyncIterator[FaultProxy]:
    with FaultProxy(server.address) as proxy:
        yield proxy


@pytest.fixture
async def far_nc(proxy: FaultProxy) -> AsyncIterator[Client]:
    client = await connect(f"nats://{proxy.address}")
    yield client
    await client.close()


async def check_that_it_reads(nc: Client) -> None:
    """Check that a published message arrives."""
    sub = await nc.subscribe("echo")
    await nc.publish("echo", b"1")
    assert (await sub.next_msg(timeout=60)).data == b"1"
    await sub.unsubscribe()


async def test_what_was_written_before_is_handled(server: NatsServer, far_nc: Client) -> None:
    """Defect 15: the PING of nats-py's flush goes out ahead of what is buffered."""
    other = await connect(server.url)
    link = Link(far_nc)
    for round_ in range(20):
        subject = f"a.{round_}"
        sub = await far_nc.subscribe(subject)
        await link.barrier(60)
        await other.publish(subject, b"x")  # the server knows of the subscription now
        await handled(other)
        assert (await sub.next_msg(timeout=60)).data == b"x"
        await sub.unsubscribe()
    await other.close()


async def test_a_barrier_that_is_cancelled(far_nc: Client) -> None:
    """nats-py's reader died of the PONG that came later, and the connection was deaf."""
    link = Link(far_nc)
    for turns in range(30):
        waiting = asyncio.ensure_future(link.barrier(60))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
    await check_that_it_reads(far_nc)
    await link.barrier(60)


async def test_a_barrier_whose_time_is_up(far_nc: Client, proxy: FaultProxy) -> None:
    link = Link(far_nc)
    proxy.stall()
    for _ in range(2):
        with pytest.raises(TransportError, match=r"no answer .* within 0\.2 s"):
            await link.barrier(0.2)
    proxy.resume()
    await check_that_it_reads(far_nc)
    await link.barrier(60)


async def test_while_the_connection_is_restored(far_nc: Client, proxy: FaultProxy) -> None:
    """Defect 17: nats-py's flush returns at once, without an error."""
    link = Link(far_nc)
    proxy.refuse()
    proxy.cut()
    await until(lambda: not far_nc.is_connected)
    await far_nc.flush(timeout=60)  # as it is: nothing was flushed
    with pytest.raises(TransportError, match="not restored"):
        await link.barrier(0.2)
    waiting = asyncio.ensure_future(link.barrier(60))
    await asyncio.sleep(0)
    proxy.accept()
    await waiting
    assert far_nc.is_connected


async def test_lost_meanwhile(far_nc: Client, proxy: FaultProxy) -> None:
    """It was noticed at the end of the timeout only, as a server that does not answer."""
    link = Link(far_nc)
    proxy.stall()
    waiting = asyncio.ensure_future(link.barrier(10_000))
    await until(lambda: far_nc._pongs)
    proxy.cut()
    proxy.resume()
    async with asyncio.timeout(120):
        with pytest.raises(TransportError, match="lost during the flush"):
            await waiting
    await until(lambda: far_nc.is_connected)
    await check_that_it_reads(far_nc)


async def test_closed_meanwhile(far_nc: Client, proxy: FaultProxy) -> None:
    proxy.stall()
    waiting = asyncio.ensure_future(Link(far_nc).barrier(10_000))
    await until(lambda: far_nc._pongs)
    await far_nc.close()
    async with asyncio.timeout(120):
        with pytest.raises(TransportError, match="is closed"):
            await waiting


async def test_a_barrier_ends_while_another_task_publishes_without_pause(server: NatsServer) -> None:
    """It waited for an empty buffer, which another task filled again before each look."""
    nc = await connect(server.url)

    async def publish_for_ever() -> None:
        while True:
            await nc.publish("a", b"x")
            await asyncio.sleep(0)

    publishing = [asyncio.ensure_future(publish_for_ever()) for _ in range(3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await Link(nc).barrier(3600)
    for task in publishing:
        task.cancel()
    await asyncio.wait(publishing)
    await nc.close()
