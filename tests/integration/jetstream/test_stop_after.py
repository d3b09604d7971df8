"""Readings that end after a number of messages, and buffers that are limited in messages and in bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liftenvelope.errors import ServerError, TransportError
from liftenvelope.jetstream import Message, Recorder
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream._ordered.consumer import OrderedConsumer
from liftenvelope.jetstream._ordered.feed import OrderedFeed
from liftenvelope.jetstream._ordered.places import OrderedPlaces
from liftenvelope.jetstream.api import Api
from liftenvelope.testing import NatsServer
from tests.integration.conftest import connect, until

from .pulling import Bench, feed_of, numbered, read_all, until_acked, until_no_pulls


@pytest.mark.parametrize("policy", ["none", "explicit"])
@pytest.mark.parametrize(("max_messages", "stop_after"), [(500, 1), (1, 3), (7, 20), (20, 20), (500, 21)])
async def test_iteration_ends_after_so_many_and_takes_no_more(
    bench: Bench, policy: str, max_messages: int, stop_after: int
) -> None:
    await bench.publish(numbered(30))
    consumer = await bench.consumer(ack_policy=policy)
    got: list[bytes] = []
    async with asyncio.timeout(60):
        async with consumer.messages(max_messages=max_messages, stop_after=stop_after) as messages:
            await read_all(messages, got)
            await messages.closed()
    assert got == numbered(stop_after)
    await until_no_pulls(consumer)
    info = await consumer.info()
    assert (info.num_pending, info.delivered.consumer_seq) == (30 - stop_after, stop_after)


async def test_consumption_ends_after_so_many(bench: Bench) -> None:
    await bench.publish(numbered(30))
    consumer = await bench.consumer()
    got: list[bytes] = []

    def handle(message: Message) -> None:
        got.append(message.data)
        message.ack()

    async with await consumer.consume(handle, stop_after=12, max_messages=5) as consumption:
        await asyncio.wait_for(consumption.closed(), 60)
    assert got == numbered(12)
    await until_acked(consumer)
    assert (await consumer.info()).num_pending == 18


async def test_messages_beyond_the_last_are_given_back(bench: Bench) -> None:
    """They come in one read if a pull that counted as lost is answered after all."""
    acks = Recorder()
    consumer = await bench.consumer()
    came = [Message("a", f"$JS.ACK.S.C.1.{n}.{n}.0.0", b"%d" % n, None, acks) for n in range(1, 5)]
    got: list[bytes] = []
    async with consumer.messages(stop_after=2) as messages:
        feed_of(messages)._inbox._on_messages(came)
        await asyncio.wait_for(read_all(messages, got), 60)
    assert got == [b"1", b"2"]
    assert acks.sent == [(message.reply, b"-NAK") for message in came[2:]]


async def test_ordered_reading_counts_over_all_of_its_consumers(bench: Bench) -> None:
    await bench.publish(numbered(40))
    got: list[bytes] = []
    async with asyncio.timeout(60):
        async with OrderedConsumer(bench.api, bench.name).messages(stop_after=30, max_messages=8) as messages:
            feed = messages._feed
            assert isinstance(feed, OrderedFeed)
            async for message in messages:
                got.append(message.data)
                if len(got) in (1, 13):
                    assert feed._feed is not None
                    buffer = feed._feed.buffer
                    await until(buffer.__len__)
                    buffer.pop()  # lost on its way
    assert got == numbered(30)


async def test_ordered_reading_that_loses_its_consumer_after_the_last_message_ends(bench: Bench) -> None:
    await bench.publish(numbered(5))
    async with asyncio.timeout(60):
        async with OrderedConsumer(bench.api, bench.name).messages(stop_after=2) as messages:
            feed = messages._feed
            assert isinstance(feed, OrderedFeed)
            assert [(await anext(messages)).data for _ in range(2)] == numbered(2)
            feed._reason = "it was lost"
            feed._close_feed()
            with pytest.raises(StopAsyncIteration):
                await messages.next()


@pytest.mark.parametrize("pinned", [False, True])
async def test_buffer_is_limited_in_messages_and_in_bytes(bench: Bench, pinned: bool) -> None:
    await bench.publish([b"s" * 10] * 20 + [b"m" * 1_000] * 20 + [b"l" * 9_000] + [b"s" * 10] * 5)
    config: dict[str, Any] = {"priority_policy": "pinned_client", "priority_groups": ["g"]} if pinned else {}
    consumer = await bench.consumer(**config)
    sizes: list[int] = []
    most = most_bytes = 0
    group = "g" if pinned else None
    reading = consumer.messages(max_messages=10, buffer_bytes=5_000, stop_after=46, group=group)
    async with asyncio.timeout(60), reading as messages:
        buffer = feed_of(messages).buffer
        async for message in messages:
            most = max(most, len(buffer) + 1)
            if len(buffer):  # a message larger than the limit comes alone
                most_bytes = max(most_bytes, buffer.size + len(message.data))
            sizes.append(len(message.data))
            message.ack()
            if len(sizes) == 21:  # the first of 1,000 bytes
                await until(lambda: buffer.size > 2_000)
    assert sizes == [10] * 20 + [1_000] * 20 + [9_000] + [10] * 5
    assert most <= 10
    assert 2_000 < most_bytes <= 5_000


async def test_attempt_whose_connection_was_lost_and_is_back_does_not_count(
    bench: Bench, jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.publish(numbered(2))
    nc = await connect(jetstream_server.url)
    make, places = OrderedPlaces.make, list[int]()

    async def make_or_lose(self: OrderedPlaces, after: int) -> Consumer:
        places.append(after)
        if len(places) == 2:
            await nc.force_reconnect()
            await until(lambda: nc.is_connected and nc.stats["reconnects"])
            raise TransportError("the connection was lost")
        return await make(self, after)

    monkeypatch.setattr(OrderedPlaces, "make", make_or_lose)
    ordered = OrderedConsumer(Api(nc, timeout=60), bench.name, max_reset_attempts=1)
    async with ordered.messages() as messages:
        assert (await messages.next(timeout=60)).data == b"0"
        feed = messages._feed
        assert isinstance(feed, OrderedFeed)
        feed._reason = "it was lost"
        feed._close_feed()
        assert (await messages.next(timeout=60)).data == b"1"
    assert places == [0, 1, 1]
    await nc.close()


async def test_reading_ends_after_so_many_failed_attempts_to_create_its_consumer(bench: Bench) -> None:
    await bench.publish(numbered(3))
    ordered = OrderedConsumer(bench.api, bench.name, max_reset_attempts=2)
    other = OrderedConsumer(bench.api, bench.name)
    async with ordered.messages() as messages, other.messages() as endless:
        assert (await messages.next(timeout=60)).data == b"0"
        assert (await endless.next(timeout=60)).data == b"0"
        bench.api.prefix = "$JS.nobody.API"
        for each in (messages, endless):
            feed = each._feed
            assert isinstance(feed, OrderedFeed)
            feed._reason = "it was lost"
            feed._close_feed()
        with pytest.raises(ServerError, match=r"nothing answers on '\$JS\.nobody\.API"):
            await asyncio.wait_for(messages.next(), 60)
        with pytest.raises(TimeoutError):
            await endless.next(timeout=1)
        bench.api.prefix = "$JS.API"
        assert (await endless.next(timeout=60)).data == b"1"
