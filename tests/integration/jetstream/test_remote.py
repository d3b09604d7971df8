"""Consumers of a stream in another account, by an import, or in another domain, by a leaf node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from liftenvelope.errors import ConsumerDeletedError, NoJetStreamError
from liftenvelope.jetstream import AckPolicy, ConsumerConfig, JetStream, Stream, StreamConfig
from liftenvelope.nats import accelerate
from liftenvelope.testing import run_nats_server
from tests.integration.conftest import connect
from tests.integration.domains import hub_and_leaf

from .pulling import numbered, read_all, until_acked

SUBJECT = "orders.new"
#: The account APP imports the JetStream of the account STORE, under a prefix of its own.
ACCOUNTS = {
    "STORE": {
        "jetstream": "enabled",
        "users": [{"user": "store", "password": "s"}],
        "exports": [
            {"service": "$JS.API.>", "response_type": "stream"},
            {"service": "$JS.ACK.>"},
            {"service": SUBJECT},
        ],
    },
    "APP": {
        "users": [{"user": "app", "password": "a"}],
        "imports": [
            {"service": {"account": "STORE", "subject": "$JS.API.>"}, "to": "store.API.>"},
            {"service": {"account": "STORE", "subject": "$JS.ACK.>"}},
            {"service": {"account": "STORE", "subject": SUBJECT}},
        ],
    },
}


async def imported() -> AsyncIterator[tuple[Client, JetStream]]:
    with run_nats_server(jetstream=True, config={"accounts": ACCOUNTS}) as server:
        nc = await connect(server.url, user="app", password="a")
        yield nc, JetStream(nc, api_prefix="store.API", timeout=60)
        await nc.close()


async def behind_a_leaf(folder: Path) -> AsyncIterator[tuple[Client, JetStream]]:
    with hub_and_leaf(folder) as (_, leaf):
        nc = await connect(leaf.url)
        js = JetStream(nc, domain="hub", timeout=60)
        async with asyncio.timeout(60):
            while True:  # until the leaf node is connected to its hub
                try:
                    await js.account_info()
                    break
                except NoJetStreamError:
                    await asyncio.sleep(0.05)
        yield nc, js
        await nc.close()


@pytest.fixture(params=["import", "leaf"])
async def remote(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Client, JetStream]]:
    """A connection, and a JetStream that is not that of its account on its server."""
    async for found in imported() if request.param == "import" else behind_a_leaf(tmp_path):
        yield found


@pytest.fixture(params=["plain", "accelerated"])
async def js(request: pytest.FixtureRequest, remote: tuple[Client, JetStream]) -> AsyncIterator[JetStream]:
    nc, js = remote
    if request.param == "accelerated":
        assert accelerate(nc).active
    async with js:
        yield js


@pytest.fixture
async def stream(js: JetStream) -> Stream:
    """A stream of ten messages."""
    stream = await js.create_stream(StreamConfig(name="S", subjects=(SUBJECT,), allow_direct=True))
    for payload in numbered(10):
        assert (await js.publish(SUBJECT, payload, headers={"A": "b"})).stream == "S"
    return stream


async def test_messages_of_a_remote_stream_are_fetched_and_acked(stream: Stream) -> None:
    consumer = await stream.create_consumer(ConsumerConfig(name="worker"))
    batch = await consumer.fetch(9, expires=60)
    assert [(message.data, message.subject, message.headers["A"]) for message in batch] == [
        (payload, SUBJECT, "b") for payload in numbered(9)
    ]
    for message in [*batch, await consumer.next(60)]:
        message.ack()
    assert await consumer.fetch_no_wait(1) == []
    assert await consumer.fetch(1, expires=0.1) == []
    await until_acked(consumer)


async def test_readers_of_a_remote_stream_get_all_and_learn_that_their_consumer_is_deleted(
    stream: Stream,
) -> None:
    consumer = await stream.create_consumer(ConsumerConfig(name="worker"))
    async with consumer.messages(max_messages=3) as messages:
        assert [(await messages.next(60)).data for _ in range(10)] == numbered(10)
        await consumer.delete()
        with pytest.raises(ConsumerDeletedError):
            await messages.next(60)


async def test_drain_of_a_remote_consumer_without_acks_loses_nothing(stream: Stream) -> None:
    consumer = await stream.create_consumer(ConsumerConfig(name="worker", ack_policy=AckPolicy.NONE))
    got: list[bytes] = []
    async with consumer.messages(max_messages=3) as messages:
        got.append((await messages.next(60)).data)
        await messages.drain()
        await read_all(messages, got)
    assert len(got) == (await consumer.info()).delivered.stream_seq
    assert got == numbered(len(got))


async def test_remote_stream_is_read_in_order_and_directly(stream: Stream) -> None:
    async with stream.ordered_consumer().messages(max_messages=3, stop_after=10) as messages:
        assert [message.data async for message in messages] == numbered(10)
    assert [message.data async for message in stream.get_messages(10)] == numbered(10)
    assert (await stream.get_message(3)).data == b"2"
