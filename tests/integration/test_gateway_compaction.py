"""Compaction of a partition in JetStream: the newest of each key stays, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from liftenvelope.envelope import new_message, unmarshal_message
from liftenvelope.errors import EnvelopeError, StreamNotFoundError, UsageError
from liftenvelope.gateway.compaction import Compaction, Compactor
from liftenvelope.jetstream.context import JetStream
from liftenvelope.jetstream.stream_config import StreamConfig
from liftenvelope.testing import NatsServer

from .conftest import connect


@pytest.fixture
async def js(jetstream_server: NatsServer, name: str) -> AsyncIterator[JetStream]:
    """JetStream with a stream of the test's own."""
    client = await connect(jetstream_server.url)
    # Thousands of publishes at once, and 64 deletions: on a busy disk each may wait for all before it.
    async with JetStream(client, timeout=60) as context:
        await context.create_stream(StreamConfig(name=name, subjects=(name,)))
        yield context
        await context.delete_stream(name)
    await client.close()


async def fill(js: JetStream, name: str, keys: list[bytes]) -> None:
    """Store a message for each key."""
    futures = [await js.publish_async(name, new_message(b"value", key=key)) for key in keys]
    await asyncio.gather(*futures)


async def left(js: JetStream, name: str) -> list[tuple[int, bytes]]:
    """Sequence and key of what is there; the whole payload of what is no envelope."""
    found: list[tuple[int, bytes]] = []
    stream = await js.stream(name)
    waiting = stream.cached_info.state.messages
    if waiting:
        async with stream.ordered_consumer().messages() as messages:
            for _ in range(waiting):
                message = await messages.next(timeout=60)
                try:
                    key = unmarshal_message(message.data).key
                except EnvelopeError:
                    key = message.data
                found.append((message.metadata.stream_sequence, key))
    return found


async def test_the_newest_of_each_key_stays(js: JetStream, name: str) -> None:
    await fill(js, name, [b"a", b"b", b"", b"a", b"c", b"b", b""])
    await js.publish(name, b"plain")
    await js.publish(name, b"plain")
    result = await Compactor(js, name).compact()
    assert result == Compaction(readings=1, read=9, deleted=2)
    kept = [(3, b""), (4, b"a"), (5, b"c"), (6, b"b"), (7, b""), (8, b"plain"), (9, b"plain")]
    assert await left(js, name) == kept


async def test_nothing_new_nothing_done(js: JetStream, name: str) -> None:
    compactor = Compactor(js, name)
    assert await compactor.compact() == Compaction()
    await fill(js, name, [b"a", b"a"])
    assert (await compactor.compact()).deleted == 1
    assert await compactor.compact() == Compaction()
    await fill(js, name, [b"a"])
    assert (await compactor.compact()).deleted == 1
    assert await left(js, name) == [(3, b"a")]


async def test_many_keys_in_little_memory(js: JetStream, name: str) -> None:
    keys = [b"key-%d" % (number % 700) for number in range(2_100)]
    await fill(js, name, keys)
    result = await Compactor(js, name, max_memory=60_000).compact()
    assert result.deleted == 1_400
    assert result.readings > 1
    assert await left(js, name) == [(n, keys[n - 1]) for n in range(1_401, 2_101)]


async def test_messages_that_come_and_go_meanwhile(js: JetStream, name: str) -> None:
    await fill(js, name, [b"%d" % (number % 50) for number in range(2_000)])
    stream = await js.stream(name)

    async def disturb() -> None:
        for number in range(20):
            await fill(js, name, [b"%d" % number])
            await stream.purge(sequence=number * 20 + 1)

    await asyncio.gather(Compactor(js, name).compact(), Compactor(js, name).compact(), disturb())
    await Compactor(js, name).compact()
    keys = [key for _, key in await left(js, name)]
    assert sorted(keys) == sorted(b"%d" % number for number in range(50))


async def test_a_partition_that_was_emptied(js: JetStream, name: str) -> None:
    await fill(js, name, [b"a", b"a"])
    await (await js.stream(name)).purge()
    assert (await Compactor(js, name).compact()).read == 0


async def test_the_newest_message_is_gone(js: JetStream, name: str) -> None:
    await fill(js, name, [b"a", b"a", b"b"])
    await (await js.stream(name)).delete_message(3)
    assert (await Compactor(js, name).compact()).deleted == 1
    assert await left(js, name) == [(2, b"a")]


async def test_in_the_background(js: JetStream, name: str) -> None:
    await fill(js, name, [b"a", b"a"])
    compactor = Compactor(js, name, interval=0.05)
    await compactor.start()
    async with asyncio.timeout(60):
        while (await js.stream(name)).cached_info.state.messages > 1:
            await asyncio.sleep(0.01)
    await compactor.close()
    await compactor.close()
    assert await left(js, name) == [(2, b"a")]


async def test_arguments_and_streams_that_are_not_there(js: JetStream, name: str) -> None:
    with pytest.raises(UsageError, match="interval"):
        Compactor(js, name, interval=0)
    with pytest.raises(StreamNotFoundError):
        await Compactor(js, "none").compact()
