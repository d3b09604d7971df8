"""Publishes that wait: for a place among the outstanding ones, and for room in the connection's buffer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import AckTimeoutError, TransportError
from liftenvelope.jetstream._publishing import PublishFuture
from liftenvelope.jetstream.context import JetStream
from liftenvelope.jetstream.stream_config import StorageType, StreamConfig
from liftenvelope.nats.link import Link
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import connect, until

#: Buffer of the connections that are cut. One message of BODY bytes fits, a second one does not.
BUFFER = 1_000
BODY = bytes(500)


@pytest.fixture
async def nc(jetstream_server: NatsServer) -> Client:
    return await connect(jetstream_server.url)


async def _silent(_: object) -> None:
    """Ack nothing."""


async def cut(server: NatsServer, nc: Client) -> None:
    await asyncio.to_thread(server.kill)
    await until(lambda: not nc.is_connected)


@asynccontextmanager
async def disconnected(name: str) -> AsyncIterator[tuple[NatsServer, Client, JetStream]]:
    """Yield a server that was killed after one message of a new stream, its connection, and JetStream."""
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url, pending_size=BUFFER)
        async with JetStream(nc, timeout=60) as js:
            await js.create_stream(StreamConfig(name=name))
            await js.publish(name)
            await cut(server, nc)
            yield server, nc, js
        await nc.close()


async def restore(server: NatsServer, nc: Client) -> None:
    await asyncio.to_thread(server.start)
    await until(lambda: nc.is_connected)


def retries_left(future: PublishFuture) -> int:
    assert future.kept is not None
    return future.kept[4]


async def test_workers_that_publish_in_loops_take_turns(nc: Client, name: str) -> None:
    """Messages are sent in the order of the calls, so no worker waits while the others go on."""
    async with JetStream(nc, timeout=60, max_outstanding=7) as js:
        await js.create_stream(StreamConfig(name=name, storage=StorageType.MEMORY))
        await js.publish(name)
        order: list[int] = []

        async def work(worker: int) -> None:
            for i in range(100):
                call = len(order)
                order.append(-1)
                order[call] = (await js.publish(name, b"%d %d" % (worker, i))).sequence

        await asyncio.gather(*(work(worker) for worker in range(8)))
        assert order == list(range(2, 802))
        await js.delete_stream(name)


async def test_freed_place_wakes_one_waiting_publish(
    nc: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with JetStream(nc, timeout=60, max_outstanding=10) as js:
        await js.create_stream(StreamConfig(name=name, storage=StorageType.MEMORY))
        await js.publish(name)
        wait, waits = js._until_freed, 0

        async def counted() -> None:
            nonlocal waits
            waits += 1
            await wait()

        monkeypatch.setattr(js, "_until_freed", counted)
        acks = await asyncio.gather(*(js.publish(name) for _ in range(1_000)))
        assert [ack.sequence for ack in acks] == list(range(2, 1_002))
        assert 0 < waits <= 1_000
        await js.delete_stream(name)


async def test_cancelled_publish_leaves_the_line(nc: Client, name: str) -> None:
    async with JetStream(nc, timeout=60, max_outstanding=1) as js:
        await js.create_stream(StreamConfig(name=name, storage=StorageType.MEMORY))
        subscription = await nc.subscribe(f"{name}.silent", cb=_silent)
        first = await js.publish_async(f"{name}.silent", timeout=1)
        second, third, fourth = [asyncio.create_task(js.publish(name, b"%d" % i)) for i in range(3)]
        await asyncio.sleep(0)
        second.cancel()  # the first in line
        await asyncio.sleep(0)
        fourth.cancel()  # the last
        with pytest.raises(AckTimeoutError):
            await first
        assert (await third).sequence == 1
        assert second.cancelled()
        assert fourth.cancelled()
        assert (await js.publish(name)).sequence == 2
        await subscription.unsubscribe()
        await js.delete_stream(name)


async def test_first_publishes_keep_the_order_of_the_calls(
    jetstream_server: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Injected: a subscription that takes a while. nats-py's takes one if its queue of flushes is full."""
    nc = await connect(jetstream_server.url)
    subscribe = Link.subscribe

    async def slow(*arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0.1)
        return await subscribe(*arguments, **options)

    monkeypatch.setattr(Link, "subscribe", slow)
    async with JetStream(nc, timeout=60) as js:
        stream = await js.create_stream(StreamConfig(name=name, subjects=(name,)))

        async def publish(*payloads: bytes) -> None:
            for future in [await js.publish_async(name, payload) for payload in payloads]:
                await future

        await asyncio.gather(publish(b"0", b"2", b"3"), publish(b"1"))
        found = [(await stream.get_message(sequence)).data for sequence in range(1, 5)]
        assert found == [b"0", b"1", b"2", b"3"]
        await js.delete_stream(name)
    await nc.close()


@pytest.mark.parametrize("what", ["context", "connection"])
async def test_close_ends_all_waiting_publishes(jetstream_server: NatsServer, name: str, what: str) -> None:
    nc = await connect(jetstream_server.url)
    await nc.subscribe(name, cb=_silent)
    js = JetStream(nc, timeout=600, max_outstanding=1)
    first = await js.publish_async(name)
    waiting = [asyncio.create_task(js.publish(name)) for _ in range(3)]
    await asyncio.sleep(0)
    await (js.close() if what == "context" else nc.close())
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert [(type(outcome), getattr(outcome, "sent", None)) for outcome in outcomes] == [
        (TransportError, True),
        *[(TransportError, False)] * 3,
    ]
    await nc.close()


class TestFullBuffer:
    async def test_wait_for_a_place_does_not_count_as_wait_for_room(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with run_nats_server(jetstream=True) as server:
            nc = await connect(server.url, pending_size=BUFFER)
            async with JetStream(nc, max_outstanding=1) as js:
                await js.create_stream(StreamConfig(name=name), timeout=60)
                await js.publish(name, timeout=60)
                await cut(server, nc)
                first = await js.publish_async(name, BODY, timeout=6)
                room, lefts = js._link.room, list[float]()

                async def noted(size: int, deadline: float) -> None:
                    lefts.append(deadline - asyncio.get_running_loop().time())
                    await room(size, deadline)

                monkeypatch.setattr(js._link, "room", noted)
                second = asyncio.create_task(js.publish(name, BODY, timeout=3))
                with pytest.raises(AckTimeoutError):
                    await first
                with pytest.raises(TransportError, match="buffer is full"):
                    await second
                [left] = lefts
                assert 0 < left <= 3
                monkeypatch.undo()
                await restore(server, nc)
            await nc.close()

    async def test_publishes_that_wait_for_the_same_room_fail_together(self, name: str) -> None:
        async with disconnected(name) as (server, nc, js):
            first = await js.publish_async(name, BODY)
            waiting = [js.publish(name, BODY, timeout=0.5) for _ in range(200)]
            async with asyncio.timeout(50):  # 100 s, if one waited after the other
                outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {TransportError}
            assert all("buffer is full" in str(outcome) for outcome in outcomes)
            await restore(server, nc)
            assert (await first).sequence == 2
            assert (await js.publish(name)).sequence == 3

    async def test_waiting_publishes_are_stored_in_order_after_the_reconnect(self, name: str) -> None:
        async with disconnected(name) as (server, nc, js):
            waiting = [asyncio.create_task(js.publish(name, BODY)) for _ in range(20)]
            waiting.append(asyncio.create_task(js.publish(name, b"small")))
            await asyncio.sleep(0)
            await restore(server, nc)
            acks = await asyncio.gather(*waiting)
            assert [ack.sequence for ack in acks] == list(range(2, 23))

    async def test_message_that_fits_without_its_subject_waits(self, name: str) -> None:
        """The whole command must fit: it was refused at once instead of waiting."""
        async with disconnected(name) as (server, nc, js):
            pending = nc.pending_data_size
            waiting = asyncio.create_task(js.publish(name, bytes(BUFFER - pending - 1)))
            await asyncio.sleep(0)
            assert not waiting.done()
            assert nc.pending_data_size == pending
            await restore(server, nc)
            assert (await waiting).sequence == 2

    async def test_retry_waits_for_room(self, name: str) -> None:
        with run_nats_server(jetstream=True) as server:
            nc = await connect(server.url, pending_size=BUFFER)
            async with JetStream(nc, timeout=120) as js:
                retried = await js.publish_async(name, BODY, retry_attempts=1_000, retry_wait=1)
                await until(lambda: js._retries)
                await cut(server, nc)
                await nc.publish("filler", bytes(BUFFER - nc.pending_data_size - 100))
                left = retries_left(retried)
                await until(lambda: retries_left(retried) < left)
                assert not retried.done()
                await restore(server, nc)
                await js.create_stream(StreamConfig(name=name))
                assert (await retried).sequence == 1
            await nc.close()
