"""Ordered consumers on a server whose configuration limits the messages of a pull."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from liftenvelope.group import Coordinator, GroupConsumer, JetStreamTopic
from liftenvelope.jetstream import JetStream, Stream, StreamConfig
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import connect

from .pulling import numbered

#: Most messages of a pull.
LIMIT = 10
COUNT = 35


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    config = {"jetstream": {"limits": {"max_request_batch": LIMIT}}}
    with run_nats_server(jetstream=True, config=config) as running:
        yield running


@pytest.fixture
async def stream(server: NatsServer, name: str) -> AsyncIterator[Stream]:
    """A stream with more messages than a pull may ask for."""
    nc = await connect(server.url)
    async with JetStream(nc) as js:
        stream = await js.create_stream(StreamConfig(name=name))
        for payload in numbered(COUNT):
            await js.publish(name, payload)
        yield stream
    await nc.close()


@pytest.mark.parametrize(
    "options", [{}, {"max_messages": COUNT}, {"max_bytes": 100_000}, {"stop_after": COUNT}]
)
async def test_ordered_iteration_pulls_no_more_than_the_server_allows(
    stream: Stream, options: dict[str, Any]
) -> None:
    async with asyncio.timeout(60), stream.ordered_consumer().messages(**options) as messages:
        assert [(await anext(messages)).data for _ in range(COUNT)] == numbered(COUNT)


async def test_ordered_fetch_is_full_although_it_takes_several_pulls(stream: Stream) -> None:
    consumer = stream.ordered_consumer()
    assert [message.data for message in await consumer.fetch(COUNT - 1)] == numbered(COUNT - 1)
    assert [message.data for message in await consumer.fetch(COUNT, expires=0.5)] == numbered(COUNT)[-1:]
    await consumer.close()


async def test_ordered_fetch_no_wait_takes_what_is_there_in_several_pulls(stream: Stream) -> None:
    consumer = stream.ordered_consumer()
    assert [message.data for message in await consumer.fetch_no_wait(2 * COUNT)] == numbered(COUNT)
    assert not await consumer.fetch_no_wait(2 * COUNT)
    await consumer.close()


async def test_group_reads_although_its_prefetch_is_more_than_the_server_allows(
    server: NatsServer, stream: Stream
) -> None:
    nc = await connect(server.url)
    topic = JetStreamTopic.of_streams(stream.name, [stream.name])
    async with (
        asyncio.timeout(60),
        Coordinator(nc),
        GroupConsumer(nc, stream.name, topic, auto_offset="earliest") as consumer,
    ):
        assert [(await anext(consumer)).data for _ in range(COUNT)] == numbered(COUNT)
    await nc.close()
