"""Readers of streams whose ``consumer_limits`` allow less inactivity than they ask for, on a real server."""

from __future__ import annotations

import pytest
from nats.aio.client import Client

from liftenvelope.errors import JetStreamError
from liftenvelope.jetstream import ConsumerConfig, ConsumerLimits, JetStream, Stream, StreamConfig
from liftenvelope.jetstream.counting import at_sequence, count_from

from .pulling import numbered

#: Seconds, less than those of all readers.
LIMIT = 2.0


@pytest.fixture
async def limited(js_nc: Client, name: str) -> Stream:
    """A stream with a limit for inactive consumers, and three messages."""
    js = JetStream(js_nc)
    stream = await js.create_stream(
        StreamConfig(name=name, consumer_limits=ConsumerLimits(inactive_threshold=LIMIT))
    )
    for payload in numbered(3):
        await js.publish(name, payload)
    return stream


async def test_ordered_iteration_keeps_the_limit_of_its_stream(limited: Stream) -> None:
    async with limited.ordered_consumer().messages() as messages:
        assert [(await messages.next(timeout=20)).data for _ in range(3)] == numbered(3)
        assert [each.config.inactive_threshold async for each in limited.consumers()] == [LIMIT]


async def test_ordered_iteration_goes_on_with_the_limit_after_its_consumer_is_lost(limited: Stream) -> None:
    async with limited.ordered_consumer(inactive_threshold=60).messages(max_messages=1) as messages:
        got = [(await messages.next(timeout=20)).data]
        for lost in [each async for each in limited.consumer_names()]:
            await limited.delete_consumer(lost)
        got += [(await messages.next(timeout=20)).data for _ in range(2)]
    assert got == numbered(3)


async def test_ordered_fetch_keeps_the_limit_of_its_stream(limited: Stream) -> None:
    consumer = limited.ordered_consumer()
    assert [message.data for message in await consumer.fetch(3)] == numbered(3)
    await consumer.close()


async def test_messages_are_counted_within_the_limit_of_their_stream(limited: Stream) -> None:
    assert await count_from(limited, at_sequence(2)) == 2


async def test_consumer_of_a_user_above_the_limit_is_refused(limited: Stream) -> None:
    with pytest.raises(JetStreamError, match="inactive threshold exceeds"):
        await limited.create_consumer(ConsumerConfig(name="mine", inactive_threshold=LIMIT + 1))
