"""Consumptions end from inside, from outside, or by the owner of the connection, at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import ConnectionClosedError, UsageError
from liftenvelope.jetstream import Consumption, Message
from liftenvelope.testing import NatsServer
from tests.integration.conftest import connect, until

from . import pulling
from .pulling import Bench, numbered, until_no_pulls, until_pulled


class TestInsideTheHandler:
    """Calls that wait for the handler are refused inside the handler."""

    @pytest.mark.parametrize("what", ["drain", "closed", "aclose"])
    async def test_is_refused_and_says_what_to_do(self, bench: Bench, what: str) -> None:
        await bench.publish(numbered(3))
        consumer = await bench.consumer()
        seen: list[bytes] = []

        async def handle(message: Message) -> None:
            seen.append(message.data)
            await getattr(consumption, what)()

        consumption = await consumer.consume(handle)
        with pytest.raises(UsageError, match=rf"{what}\(\) waits for the handler.*call stop\(\)"):
            await asyncio.wait_for(consumption.closed(), 20)
        assert seen == numbered(1)
        await until_no_pulls(consumer)

    async def test_nothing_has_happened_then(self, bench: Bench) -> None:
        """The refusal leaves the consumption as it was."""
        await bench.publish(numbered(3))
        consumer = await bench.consumer()
        seen: list[bytes] = []

        async def handle(message: Message) -> None:
            with pytest.raises(UsageError):
                await consumption.drain()
            seen.append(message.data)

        async with await consumer.consume(handle) as consumption:
            await until(lambda: len(seen) == 3)
            await bench.publish(numbered(3, 3))
            await until(lambda: seen == numbered(6))

    async def test_another_task_may_drain(self, bench: Bench) -> None:
        await bench.publish(numbered(30))
        consumer = await bench.consumer()
        seen: list[bytes] = []
        draining: list[asyncio.Task[None]] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            seen.append(message.data)
            message.ack()
            if not draining:
                draining.append(asyncio.create_task(consumption.drain()))

        async with await consumer.consume(handle, max_messages=30) as consumption:
            await asyncio.wait_for(consumption.closed(), 20)
        await draining[0]
        assert seen == numbered(len(seen))
        assert (await consumer.info()).delivered.consumer_seq == len(seen)

    async def test_stop_ends_it(self, bench: Bench) -> None:
        await bench.publish(numbered(30))
        consumer = await bench.consumer()
        seen: list[bytes] = []

        def handle(message: Message) -> None:
            seen.append(message.data)
            if len(seen) == 5:
                consumption.stop()

        consumption = await consumer.consume(handle)
        await asyncio.wait_for(consumption.closed(), 20)
        assert seen == numbered(5)


class TestStop:
    async def test_what_is_buffered_comes_after_ack_wait(self, bench: Bench) -> None:
        await bench.publish(numbered(5))
        consumer = await bench.consumer(ack_wait=2_000_000_000)
        async with consumer.messages() as messages:
            await until(lambda: messages.buffered >= 5)  # more if they are redelivered before the test looks
        assert (await consumer.info()).num_ack_pending == 5
        assert len(await consumer.fetch(5, expires=20)) == 5

    async def test_stop_with_nak_gives_buffered_messages_back(self, bench: Bench) -> None:
        await bench.publish(numbered(5))
        consumer = await bench.consumer(ack_wait=120_000_000_000)
        async with consumer.messages() as messages:
            (await messages.next(timeout=20)).ack()
            await until(lambda: messages.buffered == 4)
            messages.stop(nak=True)
            messages.stop(nak=True)
        again = await consumer.fetch(4, expires=20)
        assert sorted(message.data for message in again) == numbered(4, 1)
        assert {message.metadata.num_delivered for message in again} == {2}

    async def test_stop_with_nak_leaves_the_message_of_the_handler(self, bench: Bench) -> None:
        await bench.publish(numbered(5))
        consumer = await bench.consumer(ack_wait=120_000_000_000)

        async def handle(message: Message) -> None:
            await until(lambda: consumption._feed.buffered == 4)
            consumption.stop(nak=True)
            message.ack()

        consumption = await consumer.consume(handle)
        await asyncio.wait_for(consumption.closed(), 20)
        again = await consumer.fetch(4, expires=20)
        assert sorted(message.data for message in again) == numbered(4, 1)

    async def test_to_a_reader_that_waits(self, bench: Bench) -> None:
        """Not to the pulls of the one that has stopped, in which they would be lost until ack_wait."""
        await bench.publish(numbered(20))
        consumer = await bench.consumer(ack_wait=120_000_000_000)
        async with consumer.messages(max_messages=20, threshold_messages=20) as first:
            await until(lambda: first.buffered == 20)
            for _ in range(10):  # the pull for these waits at the server
                (await first.next(timeout=20)).ack()
            await until_pulled(consumer)
            async with consumer.messages() as second:
                first.stop(nak=True)
                got = {(await second.next(timeout=20)).data for _ in range(10)}
        assert got == set(numbered(10, 10))

    @pytest.mark.parametrize("noticed", [False, True])
    async def test_on_a_closed_connection(self, bench: Bench, js_nc: Client, noticed: bool) -> None:
        await bench.publish(numbered(5))
        consumer = await bench.consumer()
        async with consumer.messages() as messages:
            await until(lambda: messages.buffered == 5)
            await js_nc.close()
            if noticed:
                feed: Any = messages._feed
                await until(lambda: feed._ending)
            messages.stop(nak=True)
            assert [message async for message in messages] == []


#: What its owner does to the connection.
OWNERS = ["close", "drain"]


@pytest.mark.parametrize("owner", OWNERS)
class TestTheOwnersConnection:
    """Closed or drained while it is read, whatever reads; nothing hangs, nothing ends without a reason."""

    async def end(self, nc: Client, owner: str) -> asyncio.Task[None]:
        return asyncio.ensure_future(getattr(nc, owner)())

    async def test_consume_idle(self, bench: Bench, js_nc: Client, owner: str) -> None:
        consumer = await bench.consumer()
        consumption = await consumer.consume(lambda _: None)
        await until_pulled(consumer)
        ending = await self.end(js_nc, owner)
        with pytest.raises(ConnectionClosedError):
            await asyncio.wait_for(consumption.closed(), 20)
        await ending

    async def test_consume_under_load(self, bench: Bench, js_nc: Client, owner: str) -> None:
        await bench.publish(numbered(500))
        consumer = await bench.consumer()
        seen: list[bytes] = []

        async def handle(message: Message) -> None:
            seen.append(message.data)
            await asyncio.sleep(0)

        consumption = await consumer.consume(handle, max_messages=20)
        await until(lambda: len(seen) > 50)
        ending = await self.end(js_nc, owner)
        with pytest.raises(ConnectionClosedError):
            await asyncio.wait_for(consumption.closed(), 20)
        await ending
        assert seen == numbered(len(seen))  # what had come was delivered, in order

    async def test_ordered(self, bench: Bench, js_nc: Client, owner: str) -> None:
        await bench.publish(numbered(5))
        stream = await pulling.stream_of(bench)
        async with stream.ordered_consumer().messages() as messages:
            for _ in range(5):
                await messages.next(timeout=20)
            ending = await self.end(js_nc, owner)
            with pytest.raises(ConnectionClosedError):
                await asyncio.wait_for(messages.next(), 20)
            await ending

    @pytest.mark.parametrize("what", ["fetch", "fetch_bytes", "next"])
    async def test_a_fetch_that_waits(self, bench: Bench, js_nc: Client, owner: str, what: str) -> None:
        consumer = await bench.consumer()
        fetching = asyncio.ensure_future(getattr(consumer, what)(20))
        await until_pulled(consumer)
        ending = await self.end(js_nc, owner)
        with pytest.raises(ConnectionClosedError):
            await asyncio.wait_for(fetching, 20)
        await ending

    async def test_made_afterwards(self, bench: Bench, js_nc: Client, owner: str) -> None:
        consumer = await bench.consumer()
        await bench.publish(numbered(3))
        for work in (consumer.fetch(1), consumer.next(), consumer.fetch_no_wait(1)):
            await work  # whose inbox is kept for a moment
        await getattr(js_nc, owner)()
        for work in (consumer.fetch(1), consumer.next(), consumer.fetch_no_wait(1)):
            with pytest.raises(ConnectionClosedError, match=r"closed|drained"):
                await asyncio.wait_for(work, 20)
        with pytest.raises(OSError, match=r"closed|drained"):
            await consumer.consume(lambda _: None)
        with pytest.raises(OSError, match=r"closed|drained"):
            await consumer.messages().__aenter__()


class TestCancelled:
    """At every await: no subscription is left, no pull waits, no task goes on."""

    async def leaves_nothing(self, bench: Bench, works: list[Awaitable[None]], turns: int) -> None:
        for work in works:
            task = asyncio.ensure_future(work)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled() or task.exception() is None

    async def test_consume(self, bench: Bench, js_nc: Client) -> None:
        await bench.publish(numbered(50))
        consumer = await bench.consumer(ack_policy="none")
        await consumer.info()
        before, tasks = len(js_nc._subs), len(asyncio.all_tasks())

        async def handle(_: Message) -> None:
            await asyncio.sleep(0)

        async def consume_on() -> None:
            async with await consumer.consume(handle, max_messages=5) as consumption:
                await consumption.closed()

        async def drain_it() -> None:
            async with await consumer.consume(handle, max_messages=5) as consumption:
                await consumption.drain()

        async def drain_messages() -> None:
            async with consumer.messages(max_messages=5) as messages:
                await messages.drain()
                await messages.closed()

        for turns in range(14):
            await self.leaves_nothing(bench, [consume_on(), drain_it(), drain_messages()], turns)
        await until(lambda: len(js_nc._subs) == before)
        await until(lambda: len(asyncio.all_tasks()) == tasks)
        await until_no_pulls(consumer)

    async def test_ordered(self, bench: Bench, js_nc: Client) -> None:
        await bench.publish(numbered(50))
        stream = await pulling.stream_of(bench)
        before, tasks = len(js_nc._subs), len(asyncio.all_tasks())

        async def read_on() -> None:
            async with stream.ordered_consumer().messages(max_messages=5) as messages:
                async for _ in messages:
                    await asyncio.sleep(0)

        async def consume_on() -> None:
            async with await stream.ordered_consumer().consume(lambda _: None) as consumption:
                await consumption.closed()

        async def fetch_on() -> None:
            ordered = stream.ordered_consumer()
            while True:
                await ordered.fetch(3, expires=20)

        for turns in (0, 1, 2, 3, 5, 8, 13, 21, 34):
            await self.leaves_nothing(bench, [read_on(), consume_on(), fetch_on()], turns)
        await until(lambda: len(js_nc._subs) == before)
        await until(lambda: len(asyncio.all_tasks()) == tasks)

    async def test_a_reader_among_many(self, bench: Bench, jetstream_server: NatsServer) -> None:
        """A cancelled wait for the end does not end the consumption for others."""
        consumer = await bench.consumer()
        seen: list[bytes] = []
        async with await consumer.consume(lambda message: seen.append(message.data)) as consumption:
            waiting = asyncio.ensure_future(consumption.closed())
            await asyncio.sleep(0)
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            await bench.publish(numbered(3))
            await until(lambda: seen == numbered(3))
            assert isinstance(consumption, Consumption)
        other = await connect(jetstream_server.url)
        await other.close()


@pytest.mark.parametrize("hook", ["on_event", "on_pinned", "on_unpinned"])
async def test_hooks_are_plain_functions(bench: Bench, hook: str) -> None:
    async def tell(_: object) -> None:
        """Nobody would await it."""

    consumer = await bench.consumer()
    for wrong in (tell, 5):
        with pytest.raises(UsageError, match=f"{hook} must be a plain function"):
            consumer.messages(**{hook: wrong})  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=f"{hook} must be a plain function"):
            await consumer.consume(lambda _: None, **{hook: wrong})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="on_event must be a plain function"):
        (await pulling.stream_of(bench)).ordered_consumer().messages(on_event=tell)  # type: ignore[arg-type]


async def test_entered_twice(bench: Bench) -> None:
    """The second time is refused, and what runs goes on."""
    consumer = await bench.consumer()
    async with consumer.messages() as messages:
        with pytest.raises(UsageError, match="started, or stopped, before"):
            await messages.__aenter__()
        await bench.publish(numbered(1))
        assert (await messages.next(timeout=20)).data == b"0"
    with pytest.raises(UsageError, match="started, or stopped, before"):
        await messages.__aenter__()
    ordered = (await pulling.stream_of(bench)).ordered_consumer()
    async with ordered.messages() as in_order:
        with pytest.raises(UsageError, match="started, or stopped, before"):
            await in_order.__aenter__()
        assert (await in_order.next(timeout=20)).data == b"0"
