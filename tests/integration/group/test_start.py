"""Start of new partitions on a real server: nothing published after ``open`` is skipped."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.client import Client

from liftenvelope.errors import StreamNotFoundError, UsageError
from liftenvelope.group import (
    GroupConsumer,
    JetStreamTopic,
    PartitionFeed,
    TopicPartition,
    UnknownMemberError,
)
from liftenvelope.group._topics import JetStreamTopicSource
from liftenvelope.jetstream import RetentionPolicy, StreamConfig

from .play import PATIENCE, Play, eventually, quiet, take


class Gated:
    """A JetStream topic that tells its bounds only while its gate is open."""

    def __init__(self, play: Play) -> None:
        self._source = JetStreamTopicSource(play.js, play.topic)
        self.spec = self._source.spec
        self.lag = self._source.lag
        self.gate = asyncio.Event()
        self.asked: list[int] = []

    async def bounds(self, partition: int) -> tuple[int, int]:
        self.asked.append(partition)
        await self.gate.wait()
        return await self._source.bounds(partition)

    async def open(self, partition: int, offset: int) -> PartitionFeed:
        return await self._source.open(partition, offset)


@pytest.fixture
def gated(play: Play) -> Gated:
    topic = Gated(play)
    play.topic = topic  # type: ignore[assignment]
    return topic


async def opening(consumer: GroupConsumer, gated: Gated, partitions: int) -> asyncio.Task[GroupConsumer]:
    """Open a consumer, and wait until it looks for the starts of its partitions."""
    task = asyncio.create_task(consumer.open())
    await eventually(lambda: len(gated.asked) >= partitions)
    for _ in range(50):  # all that is due without an answer of the gate
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("auto_offset", ["new", "latest"])
async def test_message_published_right_after_open_is_read(
    nc: Client, play: Play, name: str, auto_offset: str
) -> None:
    wide = await Play(nc, f"{name}-wide", partitions=60).create()
    async with wide.consumer("a", auto_offset=auto_offset) as consumer:
        acks = [wide.js.publish(subject, subject.encode()) for subject in wide.subjects * 2]
        await asyncio.gather(*acks)
        assert set(await take(consumer, 120)) == {subject.encode() for subject in wide.subjects}


async def test_open_waits_until_the_starts_are_committed(play: Play, gated: Gated) -> None:
    consumer = play.consumer("a", auto_offset="new")
    task = await opening(consumer, gated, 4)
    assert not task.done()
    gated.gate.set()
    await task
    assert set((await play.offsets()).values()) == {0}
    await consumer.close()


async def test_open_does_not_wait_for_starts_that_no_message_moves(play: Play, gated: Gated) -> None:
    await play.publish(4)
    async with play.consumer("a", auto_offset="earliest") as consumer:
        assert len(consumer.assignment) == 4
        gated.gate.set()
        assert set(await take(consumer, 4)) == play.published


async def test_open_waits_for_the_starts_after_a_rebalance(play: Play, gated: Gated) -> None:
    a, b = (play.consumer(name, auto_offset="new") for name in "ab")
    first = await opening(a, gated, 4)
    second = await opening(b, gated, 8)
    await eventually(lambda: len(a.assignment) == len(b.assignment) == 2)
    assert not first.done()
    assert not second.done()
    gated.gate.set()
    await asyncio.gather(first, second)
    await play.publish(8)
    assert set(await take(a, 4)) | set(await take(b, 4)) == play.published
    await a.close()
    await b.close()


async def test_consumer_that_is_closed_while_it_looks_for_its_start(play: Play, gated: Gated) -> None:
    consumer = play.consumer("a", auto_offset="new")
    task = await opening(consumer, gated, 4)
    assert f"the start of {play.name}[0] could not be found" in consumer._why_unsettled(1.0)
    await consumer.close()
    with pytest.raises(UnknownMemberError, match="closed while joining"):
        await task


async def test_seek_replaces_the_start(play: Play, gated: Gated) -> None:
    await play.publish(8)

    def seek(partitions: list[TopicPartition]) -> None:
        for topic, partition in partitions:
            consumer.seek(topic, partition, 4)
            consumer.pause(topic, partition)

    consumer = play.consumer("a", auto_offset="new", on_assigned=seek)
    async with consumer:
        assert not gated.asked
        for number in range(4):
            consumer.resume(play.name, number)
        assert set(await take(consumer, 4)) == {b"4", b"5", b"6", b"7"}


async def test_seek_while_open_waits_for_the_start(play: Play, gated: Gated) -> None:
    await play.publish(8)
    consumer = play.consumer("a", auto_offset="new")
    task = await opening(consumer, gated, 4)
    for number in range(4):
        consumer.seek(play.name, number, 4)
    await task
    assert set(await take(consumer, 4)) == {b"4", b"5", b"6", b"7"}
    await consumer.close()


async def test_open_fails_if_a_stream_with_a_new_partition_does_not_exist(play: Play) -> None:
    topic = JetStreamTopic.of_streams("t", ["NO-SUCH-STREAM"])
    with pytest.raises(StreamNotFoundError):
        await GroupConsumer(play.nc, play.name, topic, timeout=PATIENCE, on_event=quiet).open()
    assert not (await play.client.describe_group(play.name)).members


@pytest.mark.parametrize("auto_offset", ["earliest", "new"])
@pytest.mark.parametrize("retention", [RetentionPolicy.INTEREST, RetentionPolicy.WORK_QUEUE])
async def test_stream_that_deletes_delivered_messages_is_refused_and_keeps_them(
    play: Play, retention: RetentionPolicy, auto_offset: str
) -> None:
    name = f"{play.name}-kept"
    stream = await play.js.create_stream(StreamConfig(name=name, retention=retention))
    topic = JetStreamTopic.of_streams(name, [name])
    with pytest.raises(UsageError, match=f"'{name}' must have the retention limits .* got {retention}"):
        async with (
            asyncio.timeout(PATIENCE),
            GroupConsumer(play.nc, play.name, topic, auto_offset=auto_offset, on_event=quiet) as consumer,
        ):
            await anext(consumer)
    assert (await stream.info()).state.consumer_count == 0
