"""Ordered consumers that are lost while a member reads: it continues, unless the stream is another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from math import inf
from pathlib import Path

import pytest
from nats.aio.client import Client

from liftenvelope import bulk
from liftenvelope.errors import NoCursorError, OffsetOutOfRangeError, StreamNotFoundError
from liftenvelope.group import (
    GroupConsumer,
    GroupEvent,
    GroupMessage,
    JetStreamTopic,
    JetStreamTopicSource,
    PartitionUnreadable,
)
from liftenvelope.group._member.reader import Outage
from liftenvelope.jetstream import api
from liftenvelope.testing import FaultProxy, NatsServer
from tests.integration.conftest import connect

from .play import LONG, PATIENCE, Play, coordinator, eventually, take


async def delete_consumers(play: Play) -> None:
    stream = await play.js.stream(play.name)
    for name in [name async for name in stream.consumer_names()]:
        await stream.delete_consumer(name)


async def test_member_continues_after_its_consumers_were_deleted(play: Play) -> None:
    async with play.member("a"):
        for _ in range(3):
            await play.publish(20)
            await delete_consumers(play)
            await play.publish(20)
            await play.all_read()
    play.log.check()
    assert sorted(entry.data for entry in play.log.entries) == sorted(play.published)


async def test_member_continues_after_its_connection_was_lost(
    play: Play, jetstream_server: NatsServer
) -> None:
    with FaultProxy(jetstream_server.url) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        async with play.member("a", nc=nc):
            for _ in range(3):
                await play.publish(20)
                proxy.cut()
                await play.publish(20)
                await play.all_read()
        await nc.close()
    play.log.check()
    assert sorted(entry.data for entry in play.log.entries) == sorted(play.published)


async def test_lost_connections_do_not_make_a_quiet_partition_unreadable(
    play: Play, jetstream_server: NatsServer
) -> None:
    events: list[GroupEvent] = []
    with FaultProxy(jetstream_server.url) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        options = {"nc": nc, "session_timeout": LONG, "on_event": events.append}
        async with play.consumer("a", **options) as consumer:
            await eventually(lambda: len(consumer._readers) == play.partitions)
            readers = list(consumer._readers.values())
            for _ in range(2):
                await eventually(lambda: all(reader._outage._opened_at < inf for reader in readers))
                for reader in readers:
                    reader._outage, reader.last_error = Outage(0.0), None
                proxy.cut()
                await eventually(lambda: None not in [reader.last_error for reader in readers])
            await play.publish(4)
            assert {*await take(consumer, 4)} == play.published
        await nc.close()
    assert not [event for event in events if isinstance(event, PartitionUnreadable)]


async def test_stream_that_is_created_again_while_a_member_reads_is_not_skipped(
    play: Play, jetstream_server: NatsServer
) -> None:
    """The member learns of it once the new stream exists: until then its connection stands still."""
    await play.publish(8)
    with FaultProxy(jetstream_server.url) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        async with play.consumer("a", nc=nc) as consumer:
            messages: list[GroupMessage] = []
            async with asyncio.timeout(PATIENCE):
                while len(messages) < 8:
                    messages.append(await anext(consumer))
            await consumer.commit()
            proxy.stall()
            await play.js.delete_stream(play.name)
            await play.create()
            await play.publish(4)
            proxy.resume()
            await refused(consumer)
        await nc.close()


async def refused(consumer: GroupConsumer) -> None:
    with pytest.raises(OffsetOutOfRangeError, match="rewind the group"):
        async with asyncio.timeout(PATIENCE):
            await anext(consumer)


@pytest.fixture
async def behind(play: Play) -> AsyncIterator[GroupConsumer]:
    """A consumer whose stream was created again and ends before the group's offsets."""
    await play.publish(8)
    async with play.member("a"):
        # Not only read: the last message that it is given counts as processed when it asks for the next one.
        async with asyncio.timeout(PATIENCE):
            while sorted((await play.offsets()).values()) != [5, 6, 7, 8]:
                await asyncio.sleep(0.02)
    await play.js.delete_stream(play.name)
    await play.create()
    play.published.clear()
    await play.publish(4)
    async with play.consumer("b") as consumer:
        await refused(consumer)
        yield consumer


async def test_consumer_reads_on_after_the_rewind_that_its_error_asks_for(
    play: Play, behind: GroupConsumer
) -> None:
    await refused(behind)
    await play.client.rewind(play.name, {(play.name, number): 0 for number in range(4)})
    assert set(await take(behind, 4)) == play.published


async def test_consumer_reads_on_after_seeks_to_offsets_that_exist(play: Play, behind: GroupConsumer) -> None:
    for number in range(4):
        behind.seek(play.name, number, 0)
    assert set(await take(behind, 4)) == play.published
    await behind.commit()
    assert sorted((await play.offsets()).values()) == [1, 2, 3, 4]


async def test_seek_cures_the_sought_partition_alone(play: Play, behind: GroupConsumer) -> None:
    await eventually(lambda: len(behind._failures) == 4)
    behind.seek(play.name, 0, 0)
    await refused(behind)


async def outgrown(play: Play, *, is_deleted: bool = False) -> None:
    """Create the stream again, with more messages than the group has read."""
    if not is_deleted:
        await play.js.delete_stream(play.name)
    await play.create()
    play.published.clear()
    await play.publish(16)


async def read_all(play: Play, count: int) -> None:
    async with play.consumer("a") as consumer:
        await take(consumer, count)
        await consumer.commit()


@pytest.mark.parametrize("is_rewound", [True, False])
async def test_stream_that_has_outgrown_the_offsets_is_not_read_from_the_middle(
    play: Play, is_rewound: bool
) -> None:
    await play.publish(8)
    await read_all(play, 8)
    await outgrown(play)
    async with play.consumer("b") as consumer:
        with pytest.raises(
            OffsetOutOfRangeError, match=r"earlier stream .* created again.* rewind"
        ) as caught:
            await take(consumer, 1)
        assert (caught.value.stream, caught.value.newest) == (play.name, 15)
        if is_rewound:
            await play.client.rewind(play.name, {(play.name, number): 0 for number in range(4)})
        else:
            for number in range(4):
                consumer.seek(play.name, number, 0)
        assert set(await take(consumer, 16)) == play.published
        await consumer.commit()
    await play.publish(4)
    async with play.consumer("c") as consumer:
        assert set(await take(consumer, 4)) == {b"%d" % number for number in range(16, 20)}


async def test_start_of_a_group_that_read_nothing_is_not_taken_for_one_of_another_stream(play: Play) -> None:
    await play.publish(8)
    async with play.consumer("a", auto_offset="new"):
        pass
    await outgrown(play)
    async with play.consumer("b") as consumer:
        with pytest.raises(OffsetOutOfRangeError, match="earlier stream"):
            await take(consumer, 1)


async def test_member_that_reads_notices_a_stream_that_outgrows_its_position(
    play: Play, jetstream_server: NatsServer
) -> None:
    await play.publish(8)
    with FaultProxy(jetstream_server.url) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        async with play.consumer("a", nc=nc) as consumer:
            await take(consumer, 8)
            await consumer.commit()
            proxy.stall()
            await outgrown(play)
            proxy.resume()
            with pytest.raises(OffsetOutOfRangeError, match="earlier stream"):
                await take(consumer, 1)
        await nc.close()


async def test_offsets_of_another_stream_are_recognized_after_a_takeover(nc: Client, name: str) -> None:
    play = await Play(nc, name, session=LONG).create()
    await play.publish(8)
    async with coordinator(nc, lease=LONG):
        await read_all(play, 8)
    await outgrown(play)
    async with coordinator(nc, lease=LONG), play.consumer("b") as consumer:
        with pytest.raises(OffsetOutOfRangeError, match="earlier stream"):
            await take(consumer, 1)


async def test_stream_that_was_restored_from_a_backup_is_read_on(
    play: Play, jetstream_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also once its messages of before, by which it is recognized, are gone."""
    monkeypatch.setattr(api, "_OLDER_NS", 0)  # the backup is of messages of now
    await play.publish(8)
    await read_all(play, 8)
    backup = tmp_path / "backup"
    await asyncio.to_thread(bulk.backup, jetstream_server.url, play.name, backup)
    await play.js.delete_stream(play.name)
    await asyncio.to_thread(bulk.restore_backup, backup, jetstream_server.url)
    await play.publish(4)
    async with play.consumer("b") as consumer:
        assert set(await take(consumer, 4)) == {b"%d" % number for number in range(8, 12)}
        await consumer.commit()
    await (await play.js.stream(play.name)).purge()
    await play.publish(4)
    async with play.consumer("c") as consumer:
        assert set(await take(consumer, 4)) == {b"%d" % number for number in range(12, 16)}


async def test_group_without_an_offset_is_read_after_a_rewind(play: Play) -> None:
    await play.publish(4)
    async with play.consumer("a", auto_offset="error") as consumer:
        with pytest.raises(NoCursorError, match="rewind the group first"):
            await take(consumer, 1)
        await play.client.rewind(play.name, {(play.name, number): 0 for number in range(4)})
        assert set(await take(consumer, 4)) == play.published


async def test_partition_is_opened_with_one_look_at_its_stream(nc: Client, play: Play) -> None:
    await play.publish(4)
    asked = await nc.subscribe(f"$JS.API.STREAM.INFO.{play.name}")
    made = await nc.subscribe(f"$JS.API.CONSUMER.CREATE.{play.name}.>")
    await nc.flush()
    topic = JetStreamTopic.of_stream(play.name, [f"{play.name}.0"])
    feed = await JetStreamTopicSource(play.js, topic).open(0, 0)
    await feed.next()
    await feed.close()
    await made.next_msg(60)
    assert asked.pending_msgs == 1


async def deleted_while_it_is_read(play: Play, consumer: GroupConsumer) -> None:
    """Return once all readers have found that the stream is gone."""
    await eventually(lambda: len(consumer._readers) == play.partitions)
    await take(consumer, 8)
    await consumer.commit()
    await play.js.delete_stream(play.name)
    readers = list(consumer._readers.values())
    await eventually(lambda: all(isinstance(one.last_error, StreamNotFoundError) for one in readers))


async def test_member_waits_while_its_stream_is_deleted_and_created_again(play: Play) -> None:
    """Its error is that of a stream that was created again, whether or not it looked in between."""
    await play.publish(8)
    async with play.consumer("a") as consumer:
        await deleted_while_it_is_read(play, consumer)
        await outgrown(play, is_deleted=True)
        with pytest.raises(OffsetOutOfRangeError, match=r"earlier stream .* created again.* rewind"):
            await take(consumer, 1)
        await play.client.rewind(play.name, {(play.name, number): 0 for number in range(4)})
        assert set(await take(consumer, 16)) == play.published


async def test_member_that_starts_while_its_stream_is_missing_waits_for_it(play: Play) -> None:
    await play.publish(8)
    await read_all(play, 8)
    await play.js.delete_stream(play.name)
    async with play.consumer("b") as consumer:
        await eventually(lambda: len(consumer._readers) == play.partitions)
        readers = list(consumer._readers.values())
        await eventually(lambda: all(isinstance(one.last_error, StreamNotFoundError) for one in readers))
        await outgrown(play, is_deleted=True)
        with pytest.raises(OffsetOutOfRangeError, match="earlier stream"):
            await take(consumer, 1)


async def test_member_raises_the_error_of_a_stream_that_stays_deleted(play: Play) -> None:
    await play.publish(8)
    async with play.consumer("a", timeout=10.0) as consumer:  # also the time to join, on a busy machine
        await deleted_while_it_is_read(play, consumer)
        with pytest.raises(StreamNotFoundError):
            await take(consumer, 1)


async def test_group_that_read_nothing_of_an_empty_stream_reads_the_next_one(play: Play) -> None:
    async with play.consumer("a", auto_offset="new"):
        pass
    assert set((await play.offsets()).values()) == {0}
    await outgrown(play)
    async with play.consumer("b", auto_offset="new") as consumer:
        assert set(await take(consumer, 16)) == play.published
        await consumer.commit()
    await play.publish(4)
    async with play.consumer("c") as consumer:
        assert set(await take(consumer, 4)) == {b"%d" % number for number in range(16, 20)}


async def test_member_of_an_empty_stream_reads_the_one_that_is_created_again(play: Play) -> None:
    async with play.consumer("a", auto_offset="new") as consumer:
        await outgrown(play)
        assert set(await take(consumer, 16)) == play.published
