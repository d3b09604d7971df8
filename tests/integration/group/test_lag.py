"""Lag of a topic in JetStream: what needs no consumer, and what the count is."""

from __future__ import annotations

from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import ResourcesExceededError
from liftenvelope.group import GroupConsumer, JetStreamTopic, JetStreamTopicSource, Place, TopicPartition
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
            with pytest.raises(ResourcesExceededError):
                await consumer.lag()
            await take(consumer, 3)  # all were read ahead
            assert await consumer.lag() == {TopicPartition("t", 0): 0}


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
