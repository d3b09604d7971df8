"""Arrow batches of a group consumer: which messages a commit between two batches covers, and their size."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pyarrow as pa
import pytest
from nats.aio.client import Client

from liftenvelope.group import GroupConsumer, GroupMessage, JetStreamTopic, TopicPartition
from liftenvelope.nats import accelerate
from liftenvelope.payload import BadPayloadError

from .play import LONG, PATIENCE, Play, coordinator


@pytest.fixture
async def play(nc: Client, name: str) -> Any:
    """A group that reads one partition."""
    async with coordinator(nc, lease=LONG):
        yield await Play(nc, name, partitions=1, session=LONG).create()


async def publish(play: Play, *values: bytes) -> None:
    for value in values:
        await play.js.publish(play.subjects[0], value)


async def committed(play: Play) -> Any:
    return (await play.offsets())[TopicPartition(play.name, 0)]


def packed(*numbers: int) -> bytes:
    """A message that carries rows."""
    batch = pa.record_batch({"n": pa.array(numbers, pa.int64())})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue()


async def all_there(consumer: GroupConsumer, count: int) -> None:
    """Wait until so many messages are read ahead, so that they are decoded together."""
    [reader] = consumer._readers.values()
    async with asyncio.timeout(PATIENCE):
        while reader.buffer.waiting < count:
            await asyncio.sleep(0.01)


async def read_and_commit(consumer: GroupConsumer, rows: list[int]) -> None:
    """Commit after each batch."""
    async for batch in consumer.arrow_batches(payload="json", max_wait=0.0):
        rows += batch["n"].to_pylist()
        await consumer.commit()


async def test_batch_does_not_wait_for_more_than_its_bytes(play: Play) -> None:
    await publish(play, *[bytes(1_000)] * 10)
    async with play.consumer("a") as consumer, asyncio.timeout(PATIENCE):
        await all_there(consumer, 10)
        batch = await anext(consumer.arrow_batches(max_wait=10 * PATIENCE, max_bytes=4_000))
        assert batch.num_rows == 4


async def test_commit_before_a_bad_message_covers_only_the_rows_that_came(play: Play) -> None:
    await publish(play, b'{"n": 0}', b'{"n": 1}', b"bad", b'{"n": 3}')
    rows: list[int] = []
    async with play.consumer("a", auto_commit_interval=None) as consumer:
        await all_there(consumer, 4)
        with pytest.raises(BadPayloadError, match="message 2 is bad"):
            await read_and_commit(consumer, rows)
        assert (rows, await committed(play)) == ([0, 1], 2)
        async for batch in consumer.arrow_batches(payload="json", on_bad="column", max_wait=0.0):
            assert batch["bad_value"].to_pylist() == [b"bad", None]
            assert batch["n"].to_pylist() == [None, 3]
            await consumer.commit()
            break
    assert await committed(play) == 4


async def test_commit_between_messages_that_were_decoded_together_waits_for_the_last(play: Play) -> None:
    await publish(play, packed(0, 1), packed(2), packed(3, 4))
    seen: list[tuple[list[int], int]] = []
    async with play.consumer("a", auto_commit_interval=None) as consumer:
        await all_there(consumer, 3)
        async for batch in consumer.arrow_batches(payload="arrow", max_wait=0.0):
            await consumer.commit()
            # -1 until the start is committed, which no batch waits for.
            seen.append((batch["n"].to_pylist(), max(await committed(play), 0)))
            if len(seen) == 3:
                break
    assert seen == [([0, 1], 0), ([2], 0), ([3, 4], 3)]


async def test_messages_without_rows_are_passed(play: Play) -> None:
    await publish(play, packed(), packed())
    async with play.consumer("a") as consumer:
        await all_there(consumer, 2)
        batches = consumer.arrow_batches(payload="arrow", max_wait=0.0)
        waiting = asyncio.ensure_future(anext(batches))
        [reader] = consumer._readers.values()
        async with asyncio.timeout(PATIENCE):
            while reader.buffer.waiting:
                await asyncio.sleep(0.01)
        await publish(play, packed(7))
        assert (await asyncio.wait_for(waiting, PATIENCE))["n"].to_pylist() == [7]


async def test_seek_between_messages_that_were_decoded_together(play: Play) -> None:
    await publish(play, *(packed(number) for number in range(4)))
    seen: list[int] = []
    async with play.consumer("a") as consumer:
        await all_there(consumer, 4)
        async with asyncio.timeout(PATIENCE):
            async for batch in consumer.arrow_batches(payload="arrow", max_wait=0.5):
                seen += batch["n"].to_pylist()
                if len(seen) == 2:
                    consumer.seek(play.name, 0, 1)
                if seen[-1:] == [3]:
                    break
    assert seen == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("is_accelerated", [False, True])
async def test_ways_of_reading_take_turns_on_one_consumer(
    play: Play, nc: Client, is_accelerated: bool
) -> None:
    """On an accelerated connection messages are rows until they are handed out one by one."""
    count, rows = 300, list[tuple[int, str, bytes, list[tuple[str, bytes]], int]]()
    published = [(f"{play.name}.{number % 3}", b"%d" % number) for number in range(count)]
    for number, (subject, data) in enumerate(published):
        await play.js.publish(subject, data, headers={"Nats-Msg-Id": str(number)} if number % 4 else None)

    def add(message: GroupMessage) -> None:
        stored = message.message
        headers = [(name, value.encode()) for name, value in stored.headers.items()]
        rows.append((message.offset, stored.subject, message.data, headers, stored.metadata.timestamp_ns))

    if is_accelerated:
        accelerate(nc)
    topic = JetStreamTopic.of_stream(play.name, [f"{play.name}.*"], name="all")
    async with (
        GroupConsumer(nc, f"{play.name}-all", topic, auto_offset="earliest", timeout=PATIENCE) as consumer,
        asyncio.timeout(PATIENCE),
    ):
        await all_there(consumer, count)
        while len(rows) < count:
            add(await anext(consumer))
            async for messages in consumer.batches(7):
                for message in messages:
                    add(message)
                break
            async for batch in consumer.arrow_batches(40, max_wait=0.0):
                batch.validate(full=True)
                found = (batch[name] for name in ("offset", "subject", "value", "headers"))
                times = batch["timestamp"].cast(pa.int64())
                rows += zip(*(column.to_pylist() for column in (*found, times)), strict=True)
                break
        last = consumer.handed_out[TopicPartition("all", 0)]
        assert (last.data, last.metadata.stream_sequence) == (b"299", count)
        await consumer.commit()
    assert [row[:3] for row in rows] == [(at, *one) for at, one in enumerate(published)]
    assert [row[3] for row in rows] == [
        [("Nats-Msg-Id", b"%d" % number)] if number % 4 else [] for number in range(count)
    ]
    stream = await play.js.stream(play.name)
    assert rows[17][4] == (await stream.get_message(18)).timestamp_ns


async def test_batch_ends_at_max_bytes(play: Play) -> None:
    await publish(play, *(b"x" * size for size in (100, 100, 100, 300, 100)))
    sizes: list[list[int]] = []
    async with play.consumer("a") as consumer:
        await all_there(consumer, 5)
        async for batch in consumer.arrow_batches(max_bytes=250, max_wait=0.0):
            sizes.append([len(value) for value in batch["value"].to_pylist()])
            if sum(map(len, sizes)) == 5:
                break
    assert sizes == [[100, 100], [100], [300], [100]]
