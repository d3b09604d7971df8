"""Lag of a topic in JetStream: what needs no consumer, and what the count is."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import CallTimeoutError
from liftenvelope.group import GroupConsumer, JetStreamTopic, JetStreamTopicSource, Place, TopicPartition
from liftenvelope.group._topics import lag_of
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.jetstream.counting import at_sequence, count_from

from .play import LONG, PATIENCE, coordinator, eventually, quiet, take


async def stored(js: JetStream, name: str, count: int, **options: Any) -> None:
    """Create a stream with so many messages, in turn on two subjects."""
    await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",), **options))
    for number in range(count):
        await js.publish(f"{name}.{number % 2}", b"%d" % number)


async def test_lag_of_whole_streams_is_known_at_the_limit_of_consumers(nc: Client, name: str) -> None:
    async with JetStream(nc) as js, coordinator(nc, lease=LONG):
        await stored(js, name, 5, max_consumers=1)
        topic = JetStreamTopic.of_streams("t", [name])
        async with GroupConsumer(
            nc, name, topic, auto_offset="earliest", timeout=PATIENCE, on_event=quiet
        ) as consumer:
            await take(consumer, 2)
            assert await consumer.lag() == {TopicPartition("t", 0): 3}
            await eventually(lambda: consumer.buffered == 3)
            await (await js.stream(name)).delete_message(4)
            assert await consumer.lag() == {TopicPartition("t", 0): 3}  # all were read ahead
            await take(consumer, 3)
            assert await consumer.lag() == {TopicPartition("t", 0): 0}


async def test_lag_of_a_subject_is_counted_by_the_consumer_that_reads(nc: Client, name: str) -> None:
    """So it is known at the limit of consumers, and a call makes none at the server."""
    async with JetStream(nc) as js, coordinator(nc, lease=LONG):
        await stored(js, name, 40, max_consumers=2)
        topic = JetStreamTopic.of_stream(name, [f"{name}.0", f"{name}.1"], name="t")
        first, second = TopicPartition("t", 0), TopicPartition("t", 1)
        async with GroupConsumer(
            nc, name, topic, auto_offset="earliest", prefetch=4, timeout=PATIENCE, on_event=quiet
        ) as consumer:
            await eventually(lambda: consumer.buffered == 8)
            assert await consumer.lag() == {first: 20, second: 20}
            consumer.pause(*second)
            await take(consumer, 17)
            assert await consumer.lag() == {first: 3, second: 20}
            await take(consumer, 3)
            assert await consumer.lag() == {first: 0, second: 20}
            await js.publish(f"{name}.0")  # acked before the consumer has counted it
            async with asyncio.timeout(60):
                while await consumer.lag() != {first: 1, second: 20}:
                    await asyncio.sleep(0.05)
            consumer.seek(*second, 35)
            await eventually(lambda: consumer.buffered == 4)
            assert await consumer.lag() == {first: 1, second: 3}
            await (await js.stream(name)).delete_message(38)
            consumer.seek(*second, 35)
            await eventually(lambda: consumer.buffered == 3)
            assert await consumer.lag() == {first: 1, second: 2}


@pytest.mark.parametrize("removed", ["nothing", "the oldest", "one between", "all"])
@pytest.mark.parametrize("subject", ["", "{}.1"])
async def test_lag_is_what_a_consumer_would_count(nc: Client, name: str, removed: str, subject: str) -> None:
    async with JetStream(nc) as js:
        await stored(js, name, 6)
        stream = await js.stream(name)
        if removed == "the oldest":
            await stream.purge(sequence=3)
        elif removed == "one between":
            await stream.delete_message(3)
        elif removed == "all":
            await stream.purge()
        place = Place(name, subject.format(name))
        source = JetStreamTopicSource(js, JetStreamTopic("t", (place,)))
        for offset in range(9):
            subjects = [place.subject] if subject else []
            counted = await count_from(stream, at_sequence(offset + 1), subjects)
            assert await source.lag(0, offset) == counted, offset


async def test_readers_are_asked_again_a_while_after_a_request_without_an_answer(
    nc: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As during the election of a leader."""
    async with JetStream(nc) as js:
        await stored(js, name, 6)
        source = JetStreamTopicSource(js, JetStreamTopic("t", (Place(name, f"{name}.1"),)))
        asked: list[str] = []

        async def unread(leader: str) -> int:
            asked.append(leader)
            if len(asked) == 1:
                raise CallTimeoutError("no answer")
            return 17

        lags = [await lag_of(source, 0, 0, unread) for _ in "ab"]
        assert (lags, len(asked)) == ([3, 3], 1)
        monkeypatch.setattr(source, "_asks_readers_at", time.monotonic())
        assert await lag_of(source, 0, 0, unread) == 17
