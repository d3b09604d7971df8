"""Consumers and streams that are deleted at each moment: who reads is told, by the right error."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from liftenvelope.errors import ConsumerDeletedError, NoJetStreamError, StreamNotFoundError, UsageError
from liftenvelope.jetstream import Message, NoResponders, PullEvent
from liftenvelope.jetstream._consumer import Consumer
from tests.integration.conftest import until

from .pulling import Bench, numbered, read_all, stream_of, until_pulled

#: Makes a consumer, or its stream, go away.
Deleting = Callable[[Bench, Consumer], Awaitable[None]]


async def delete_consumer(bench: Bench, consumer: Consumer) -> None:
    await consumer.delete()


async def delete_stream(bench: Bench, consumer: Consumer) -> None:
    await bench.delete()


@pytest.mark.parametrize("delete", [delete_consumer, delete_stream])
class TestAtEachMoment:
    async def test_before_the_first_pull(self, bench: Bench, delete: Deleting) -> None:
        """Nobody answers the first pull, and the server says why."""
        consumer = await bench.consumer()
        await delete(bench, consumer)
        events: list[PullEvent] = []
        async with consumer.messages(on_event=events.append) as messages:
            with pytest.raises(ConsumerDeletedError):
                await messages.next(timeout=20)
        # More than one if the server does not say at once that the consumer is gone.
        assert set(events) == {NoResponders()}
        consumption = await consumer.consume(lambda _: None)
        with pytest.raises(ConsumerDeletedError):
            await asyncio.wait_for(consumption.closed(), 20)
        for work in (
            consumer.fetch(1),
            consumer.fetch_bytes(1000),
            consumer.next(),
            consumer.fetch_no_wait(1),
        ):
            with pytest.raises(NoJetStreamError):
                await asyncio.wait_for(work, 20)

    async def test_while_a_pull_waits(self, bench: Bench, delete: Deleting) -> None:
        consumer = await bench.consumer()
        async with consumer.messages() as messages:
            await until_pulled(consumer)
            await delete(bench, consumer)
            with pytest.raises(ConsumerDeletedError):
                await messages.next(timeout=20)

    @pytest.mark.parametrize("what", ["fetch", "fetch_bytes", "next"])
    async def test_while_a_fetch_waits(self, bench: Bench, delete: Deleting, what: str) -> None:
        consumer = await bench.consumer()
        fetching = asyncio.ensure_future(getattr(consumer, what)(30))
        await until_pulled(consumer)
        await delete(bench, consumer)
        with pytest.raises(ConsumerDeletedError):
            await asyncio.wait_for(fetching, 20)

    async def test_with_a_full_buffer(self, bench: Bench, delete: Deleting) -> None:
        """No pull waits: what has come is delivered, and then it ends."""
        await bench.publish(numbered(10))
        consumer = await bench.consumer()
        async with consumer.messages(max_messages=4) as messages:
            await until(lambda: messages.buffered == 4)
            await delete(bench, consumer)
            got: list[bytes] = []
            async with asyncio.timeout(60):
                with pytest.raises(ConsumerDeletedError):
                    await read_all(messages, got)
        assert got == numbered(4)

    async def test_in_the_handler(self, bench: Bench, delete: Deleting) -> None:
        await bench.publish(numbered(6))
        consumer = await bench.consumer()
        seen: list[bytes] = []

        async def handle(message: Message) -> None:
            seen.append(message.data)
            if len(seen) == 2:
                await delete(bench, consumer)

        # A pull that reaches the server beside the request is dropped without a word: only heartbeats tell.
        consumption = await consumer.consume(handle, max_messages=3, expires=2, idle_heartbeat=0.5)
        with pytest.raises(ConsumerDeletedError):
            await asyncio.wait_for(consumption.closed(), 20)
        assert seen == numbered(len(seen))
        assert len(seen) >= 2

    async def test_while_it_is_drained(self, bench: Bench, delete: Deleting) -> None:
        """A drain during the deletion delivers the received messages and ends without an error."""
        await bench.publish(numbered(5))
        consumer = await bench.consumer()
        async with consumer.messages() as messages:
            await until(lambda: messages.buffered == 5)
            await asyncio.gather(messages.drain(), delete(bench, consumer))
            got: list[bytes] = []
            await read_all(messages, got)
        assert got == numbered(5)

    async def test_under_an_ordered_consumer(self, bench: Bench, delete: Deleting) -> None:
        await bench.publish(numbered(30))
        stream = await stream_of(bench)
        # A pull that reaches the server beside the request is dropped without a word: only heartbeats tell.
        async with stream.ordered_consumer().messages(max_messages=5, idle_heartbeat=1.0) as messages:
            got = [(await messages.next(timeout=20)).data for _ in range(7)]
            (name,) = [name async for name in stream.consumer_names()]
            await delete(bench, await stream.consumer(name))
            if delete is delete_stream:
                with pytest.raises(StreamNotFoundError):
                    await asyncio.wait_for(read_all(messages, got), 20)
            else:
                got += [(await messages.next(timeout=20)).data for _ in range(23)]
        assert got == numbered(len(got))

    async def test_acks_of_it(self, bench: Bench, delete: Deleting) -> None:
        """An ack that nobody takes: said, where an answer is awaited."""
        await bench.publish(numbered(2))
        consumer = await bench.consumer()
        first, second = await consumer.fetch(2, expires=10)
        await delete(bench, consumer)
        first.ack()
        with pytest.raises(NoJetStreamError):
            await second.ack_sync(timeout=10)


async def test_made_again_under_its_name(bench: Bench) -> None:
    """A reader of the old one has ended; a fetch reads on."""
    await bench.publish(numbered(1))
    consumer = await bench.consumer()
    async with consumer.messages() as messages:
        assert (await messages.next(timeout=20)).data == b"0"
        await consumer.delete()
        await bench.consumer()
        with pytest.raises(ConsumerDeletedError):
            await messages.next(timeout=20)
    assert (await consumer.next(timeout=20)).data == b"0"


class TestOrderedReaders:
    async def test_one_waits_at_a_time(self, bench: Bench) -> None:
        """A second one is refused, and the first one goes on."""
        async with (await stream_of(bench)).ordered_consumer().messages() as messages:
            waiting = asyncio.ensure_future(messages.next())
            await asyncio.sleep(0)
            with pytest.raises(UsageError, match="read in one task at a time"):
                await messages.next(timeout=1)
            await bench.publish(numbered(1))
            assert (await asyncio.wait_for(waiting, 20)).data == b"0"

    async def test_cancelled_while_it_is_made_anew(self, bench: Bench) -> None:
        """At every await; whoever asks again gets what comes next."""
        stream = await stream_of(bench)
        async with stream.ordered_consumer().messages() as messages:
            for number, turns in enumerate((1, 2, 3, 5, 8, 13, 21, 34, 55, 89)):
                async with asyncio.timeout(60):
                    while not [info async for info in stream.consumers() if info.num_waiting]:
                        await asyncio.sleep(0.01)
                for name in [name async for name in stream.consumer_names()]:
                    await stream.delete_consumer(name)
                waiting = asyncio.ensure_future(messages.next())
                for _ in range(turns):
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait({waiting})
                assert waiting.cancelled()
                await bench.publish([b"%d" % number])
                assert (await messages.next(timeout=20)).data == b"%d" % number

    async def test_drained_before_anybody_reads(self, bench: Bench) -> None:
        async with (await stream_of(bench)).ordered_consumer().messages() as messages:
            await messages.drain()
            await asyncio.wait_for(messages.closed(), 20)
            assert [message async for message in messages] == []

    async def test_drained_after_a_gap(self, bench: Bench) -> None:
        """Injected: a message that has come is taken away. What comes after it is not in order any more."""
        await bench.publish(numbered(20))
        async with (await stream_of(bench)).ordered_consumer().messages(max_messages=20) as messages:
            assert (await messages.next(timeout=20)).data == b"0"
            await until(lambda: messages.buffered == 19)
            messages._feed._feed.pop()  # type: ignore[attr-defined]
            await messages.drain()
            assert [message async for message in messages] == []
            await asyncio.wait_for(messages.closed(), 20)


async def test_a_drain_that_is_cancelled_ends_it_too(bench: Bench) -> None:
    """Nothing is pulled any more, so that a reader would wait for ever."""
    await bench.publish(numbered(3))
    for turns in range(8):
        consumer = await bench.consumer(f"worker-{turns}")
        async with consumer.messages() as messages:
            await until(lambda: messages.buffered == 3)  # called in this very turn
            draining = asyncio.ensure_future(messages.drain())
            for _ in range(turns):
                await asyncio.sleep(0)
            draining.cancel()
            await asyncio.wait({draining})
            if turns == 0:
                continue  # it had not begun
            got: list[bytes] = []
            await asyncio.wait_for(read_all(messages, got), 20)
            assert got == numbered(3)


async def test_cancelled_request_leaves_no_unseen_error(bench: Bench) -> None:
    """Cancelled in each turn of the loop, also in that of the answer. The fixture sees unseen errors."""
    for number in range(600):
        asking = asyncio.create_task(bench.api.ask(f"nobody.{bench.name}", b""))
        for _ in range(number % 60):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled() or isinstance(asking.exception(), NoJetStreamError)
        del asking
    gc.collect()
