"""Members of groups on a real server: what they are given, and what they can do about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope._pb import groups_pb2 as pb
from liftenvelope.errors import (
    CallTimeoutError,
    NoCursorError,
    OffsetOutOfRangeError,
    StreamNotFoundError,
    TransportError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.group import (
    ControllerLost,
    GroupConsumer,
    GroupEvent,
    GroupMessage,
    GroupRequestError,
    JetStreamTopic,
    MemberFenced,
    NotAssignedError,
    PartitionFeed,
    PartitionUnknown,
    SourceMessage,
    StaleGenerationError,
    TopicMismatchError,
    TopicPartition,
    TopicSpec,
    UnknownGroupError,
    UnknownMemberError,
)
from liftenvelope.group._member.rows import SCHEMA
from liftenvelope.group._topics import JetStreamTopicSource
from liftenvelope.group.calls import GroupCalls
from liftenvelope.group.clock import time_since_boot
from liftenvelope.payload import BadPayloadError
from liftenvelope.testing import FaultProxy, NatsServer
from tests.integration.conftest import connect

from .play import LONG, PATIENCE, SESSION, Play, coordinator, eventually, quiet, take


class TestReading:
    async def test_everything_comes_in_order(self, play: Play) -> None:
        await play.publish(20)
        async with play.member("a"):
            await play.all_read()
        play.log.check()
        assert len(play.log.entries) == 20

    async def test_the_next_one_goes_on_where_the_last_one_ended(self, play: Play) -> None:
        await play.publish(8)
        async with play.consumer("a") as consumer:
            taken = await take(consumer, 5)
        async with play.consumer("b") as consumer:
            taken += await take(consumer, 4)  # the last one of the first was not processed
        assert {*taken} == play.published
        assert len(taken) == 9

    async def test_where_new_partitions_begin(self, play: Play) -> None:
        await play.publish(4)
        async with play.consumer("a", auto_offset="new") as consumer:
            await play.publish(1)
            assert await take(consumer, 1) == [b"4"]
        # That place is kept, though nothing of the others was processed.
        await play.publish(3)
        async with play.consumer("b", auto_offset="new") as consumer:
            assert set(await take(consumer, 4)) == {b"4", b"5", b"6", b"7"}
        async with play.consumer("c", auto_offset="error") as consumer:
            assert len(await take(consumer, 1)) == 1

    async def test_the_newest_message_there_is(self, play: Play) -> None:
        await play.publish(7)  # the last one of partition 3 is the third
        async with play.consumer("a", auto_offset="latest") as consumer:
            assert set(await take(consumer, 4)) == {b"3", b"4", b"5", b"6"}
        whole = JetStreamTopic.of_streams("whole", [play.name])
        async with GroupConsumer(
            play.nc, f"{play.name}-w", whole, auto_offset="latest", timeout=PATIENCE
        ) as consumer:
            assert await take(consumer, 1) == [b"6"]
        stream = await play.js.stream(play.name)
        await stream.purge()
        async with GroupConsumer(
            play.nc, f"{play.name}-e", play.topic, auto_offset="latest", timeout=PATIENCE
        ) as consumer:
            assert all(consumer.position(play.name, number) == 7 for number in range(4))

    async def test_suspended_member_hands_out_nothing_that_may_be_another_members(
        self, play: Play, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A suspended machine stops the event loop's clock, not the one since boot. A jump stands for it."""
        await play.publish(8)
        events: list[GroupEvent] = []
        async with play.consumer("a", auto_commit_interval=None, on_event=events.append) as consumer:
            await take(consumer, 1)
            assert not events
            boot = time_since_boot() + 2 * LONG
            for module in ("member", "consumer"):
                monkeypatch.setattr(f"liftenvelope.group._member.{module}.time_since_boot", lambda: boot)
            consumer._hand.clock = lambda: boot
            # The message that was not committed comes again, because the partitions may have been lost.
            assert set(await take(consumer, 8)) == play.published
            assert [type(event) for event in events] == [MemberFenced]

    @pytest.mark.parametrize("auto_commit_interval", [None, PATIENCE])
    async def test_where_it_began_outlives_who_died_before_its_first_commit(
        self, play: Play, nc: Client, auto_commit_interval: float | None
    ) -> None:
        """The first member reads nothing and falls silent; what comes meanwhile is the next one's."""
        first = play.consumer("a", auto_offset="new", auto_commit_interval=auto_commit_interval)
        await first.open()
        assert set((await play.offsets()).values()) == {0}
        for task in first._tasks:
            task.cancel()  # as if it had been killed
        await play.publish(4)
        stale = next(iter((await play.client.describe_group(play.name)).members))
        request = pb.LeaveRequest(group=play.name, consumer_id=stale.consumer_id)
        await GroupCalls(nc).controller(play.name, "Leave", request, pb.LeaveResponse)
        async with play.consumer("b", auto_offset="new") as consumer:
            assert set(await take(consumer, 4)) == {b"0", b"1", b"2", b"3"}
        await first.close()

    async def test_a_partition_without_a_place_is_an_error_if_wanted(self, play: Play) -> None:
        async with play.consumer("a", auto_offset="error") as consumer:
            with pytest.raises(NoCursorError, match="rewind"):
                await take(consumer, 1)

    async def test_topics_of_several_streams(self, play: Play, nc: Client) -> None:
        other = await Play(nc, f"{play.name}-2", partitions=1).create()
        await other.publish(2)
        await play.publish(2)
        both = JetStreamTopic.of_streams("both", [play.name, other.name])
        async with GroupConsumer(
            nc, play.name, [both], auto_offset="earliest", timeout=PATIENCE, on_event=quiet
        ) as consumer:
            async with asyncio.timeout(PATIENCE):
                got = [await anext(consumer) for _ in range(4)]
        assert {(one.topic, one.partition, one.offset, one.data) for one in got} == {
            ("both", partition, offset, b"%d" % offset) for partition in (0, 1) for offset in (0, 1)
        }

    async def test_who_never_waits_keeps_nobody_from_working(self, play: Play) -> None:
        await play.publish(100)
        async with play.consumer("a") as consumer:
            await eventually(lambda: sum(one.buffer.waiting for one in consumer._readers.values()) == 100)
            turns = 0

            async def turn() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(turn())
            for _ in range(100):
                await anext(consumer)
                time.sleep(0.01)
            task.cancel()
            assert turns >= 5

    async def test_partitions_take_turns_message_by_message(self, play: Play) -> None:
        await play.publish(40)
        async with play.consumer("a") as consumer:
            await eventually(lambda: sum(one.buffer.waiting for one in consumer._readers.values()) == 40)
            async with asyncio.timeout(PATIENCE):
                partitions = [(await anext(consumer)).partition for _ in range(40)]
        assert partitions == partitions[:4] * 10
        assert sorted(partitions[:4]) == [0, 1, 2, 3]

    async def test_a_source_of_ones_own(self, play: Play) -> None:
        class Numbers:
            """Every partition has the numbers from 0 to 9."""

            spec = TopicSpec("numbers", 2)

            async def bounds(self, partition: int) -> tuple[int, int]:
                return 0, 10

            async def lag(self, partition: int, offset: int) -> int:
                return 10 - offset

            async def open(self, partition: int, offset: int) -> Feed:
                return Feed(offset)

        class Feed:
            def __init__(self, offset: int) -> None:
                self.offset = offset

            async def next(self) -> SourceMessage:
                if self.offset == 10:
                    await asyncio.Event().wait()
                self.offset += 1
                return SourceMessage(self.offset - 1, b"%d" % (self.offset - 1), None)

            async def close(self) -> None:
                pass

        async with GroupConsumer(
            play.nc, play.name, Numbers(), auto_offset="earliest", timeout=PATIENCE
        ) as consumer:
            assert sorted(await take(consumer, 20)) == sorted([b"%d" % number for number in range(10)] * 2)
            assert set((await consumer.lag()).values()) == {0}
            await consumer.commit()
        offsets = await play.offsets()
        assert offsets == {TopicPartition("numbers", 0): 10, TopicPartition("numbers", 1): 10}

    async def test_a_stream_that_was_made_anew_ends_it(self, play: Play) -> None:
        await play.publish(8)
        async with play.consumer("a") as consumer:
            await take(consumer, 8)
            await consumer.commit()
        await play.js.delete_stream(play.name)
        await play.create()
        await play.publish(1)
        async with play.consumer("b") as consumer:
            with pytest.raises(OffsetOutOfRangeError, match="rewind the group"):
                await take(consumer, 1)
        await play.client.rewind(play.name, {(play.name, number): 0 for number in range(4)})
        async with play.consumer("c") as consumer:
            assert await take(consumer, 1) == [b"8"]

    async def test_a_stream_that_is_not_there_ends_it(self, play: Play) -> None:
        topic = JetStreamTopic.of_streams("t", ["NO-SUCH-STREAM"])
        consumer = GroupConsumer(
            play.nc, play.name, topic, auto_offset="earliest", timeout=PATIENCE, on_event=quiet
        )
        async with consumer:
            with pytest.raises(StreamNotFoundError):
                await take(consumer, 1)


class TestCommits:
    async def test_nothing_is_committed_but_by_hand(self, play: Play) -> None:
        await play.publish(8)
        async with play.consumer("a", auto_commit_interval=None) as consumer:
            async with asyncio.timeout(PATIENCE):
                messages = [await anext(consumer) for _ in range(8)]
            chosen = messages[-1]
            await consumer.commit(chosen)
            offsets = await play.offsets()
            assert offsets.pop(TopicPartition(play.name, chosen.partition)) == chosen.offset + 1
            # Of the others it stands where they begin, and nothing more.
            assert offsets == {key: key.partition for key in offsets}
        assert max((await play.offsets()).values()) == chosen.offset + 1
        async with play.consumer("b", auto_commit_interval=None) as consumer:
            assert len(await take(consumer, 6)) == 6
            await consumer.commit()
        assert sorted((await play.offsets()).values()) == [5, 6, 7, 8]

    async def test_now_and_then(self, play: Play) -> None:
        await play.publish(4)
        async with play.consumer("a", auto_commit_interval=0.05) as consumer:
            await take(consumer, 4)
            waiting = asyncio.create_task(anext(consumer))
            async with asyncio.timeout(PATIENCE):
                while sorted((await play.offsets()).values()) != [1, 2, 3, 4]:
                    await asyncio.sleep(0.02)
            waiting.cancel()
            await asyncio.wait([waiting])

    async def test_several_messages_are_committed_at_once(self, play: Play) -> None:
        await play.publish(16)
        async with play.consumer("a", auto_commit_interval=None) as consumer:
            async with asyncio.timeout(PATIENCE):
                messages = [await anext(consumer) for _ in range(16)]
            messages.sort(key=lambda message: message.offset)
            await consumer.commit(messages[:12])
            assert sum((await play.offsets()).values()) == 9 + 10 + 11 + 12
            await consumer.commit([])
            await consumer.commit(messages[3])  # what is behind goes nowhere
            assert sum((await play.offsets()).values()) == 9 + 10 + 11 + 12
            await consumer.commit()
            assert sum((await play.offsets()).values()) == 13 + 14 + 15 + 16

    async def test_after_the_end(self, play: Play) -> None:
        await play.publish(4)
        consumer = play.consumer("a", auto_commit_interval=None)
        async with consumer:
            async with asyncio.timeout(PATIENCE):
                message = await anext(consumer)
        for what in (None, message, [message]):
            with pytest.raises(UnknownMemberError, match="commit before closing"):
                await consumer.commit(what)
        for call in (consumer.pause, consumer.resume, consumer.position):
            with pytest.raises(NotAssignedError):
                call(play.name, 0)
        assert [one async for one in consumer] == []
        assert [one async for one in consumer.batches()] == []

    async def test_commit_for_an_old_generation_is_refused(self, play: Play) -> None:
        await play.publish(40)
        async with play.consumer("a") as consumer:
            async with asyncio.timeout(PATIENCE):
                message = await anext(consumer)
                async with play.consumer("b"):
                    with pytest.raises(StaleGenerationError, match="the message will be redelivered"):
                        await consumer.commit(message)
                    fresh = await anext(consumer)
                    assert fresh.generation > message.generation
                    await consumer.commit(fresh)


class TestBatches:
    async def test_batches_hold_the_messages_there_are(self, play: Play) -> None:
        await play.publish(40)
        async with play.consumer("a", auto_commit_interval=None) as consumer:
            seen: list[GroupMessage] = []
            async with asyncio.timeout(PATIENCE):
                async for batch in consumer.batches(7, 0.05):
                    assert 1 <= len(batch) <= 7
                    seen += batch
                    await consumer.commit(batch)
                    offsets = await play.offsets()
                    for one in batch:
                        assert offsets[TopicPartition(play.name, one.partition)] > one.offset
                    if len(seen) == 40:
                        break
        assert {one.data for one in seen} == play.published
        for number in range(4):
            mine = [one.offset for one in seen if one.partition == number]
            assert mine == sorted(mine)

    async def test_a_list_counts_as_processed_when_the_next_one_is_asked_for(self, play: Play) -> None:
        await play.publish(8)
        async with play.consumer("a") as consumer:
            await eventually(lambda: sum(one.buffer.waiting for one in consumer._readers.values()) == 8)
            async with asyncio.timeout(PATIENCE):
                batches = consumer.batches(4, 0)
                first, _second = await anext(batches), await anext(batches)
            await consumer.commit(first[-1])
        async with play.consumer("b") as consumer:
            again = await take(consumer, 4)
        assert not {one.data for one in first} & set(again)

    async def test_more_is_not_waited_for_where_there_is_no_room(self, play: Play) -> None:
        await play.publish(40)
        async with play.consumer("a", prefetch=2) as consumer:
            count = 0
            async with asyncio.timeout(PATIENCE / 2):
                async for batch in consumer.batches(1000, PATIENCE):
                    assert len(batch) <= 8
                    count += len(batch)
                    if count == 40:
                        break

    async def test_a_list_waits_for_more(self, play: Play) -> None:
        async with play.consumer("a") as consumer:
            waiting = asyncio.ensure_future(anext(consumer.batches(3, PATIENCE)))
            await play.publish(3)
            assert {one.data for one in await waiting} == {b"0", b"1", b"2"}

    async def test_as_arrow(self, play: Play) -> None:
        await play.js.publish(play.subjects[1], b"x", headers={"a": "1", "b": "2"})
        await play.publish(1)
        async with play.consumer("a") as consumer:
            rows: list[dict[str, Any]] = []
            async with asyncio.timeout(PATIENCE):
                async for batch in consumer.arrow_batches(max_wait=0.01):
                    assert batch.schema == SCHEMA
                    rows += batch.to_pylist()
                    if len(rows) == 2:
                        break
            await consumer.commit()
        rows.sort(key=lambda row: int(row["offset"]))
        assert [(row["topic"], row["partition"], row["value"], row["key"]) for row in rows] == [
            (play.name, 1, b"x", None),
            (play.name, 0, b"0", None),
        ]
        assert {("a", b"1"), ("b", b"2")} <= set(rows[0]["headers"])
        assert rows[0]["subject"] == play.subjects[1]
        assert rows[0]["timestamp"].year >= 2024
        offsets = await play.offsets()
        assert offsets[TopicPartition(play.name, 0)] == 2
        assert offsets[TopicPartition(play.name, 1)] == 1

    async def test_as_typed_columns(self, play: Play) -> None:
        for value in (b'{"id": 1}', b"oops", b'{"id": 3}'):
            await play.js.publish(play.subjects[0], value)
        async with play.consumer("a") as consumer:
            with pytest.raises(BadPayloadError, match="message 1 is bad"):
                async for _ in consumer.arrow_batches(3, max_wait=PATIENCE, payload="json"):
                    pass
        async with play.consumer("b") as consumer:  # the row before the bad message was processed
            rows: list[Any] = []
            async with asyncio.timeout(PATIENCE):
                async for batch in consumer.arrow_batches(max_wait=0.5, payload="json", on_bad="column"):
                    rows += zip(batch["id"].to_pylist(), batch["bad_value"].to_pylist(), strict=True)
                    if len(rows) == 2:
                        break
            await consumer.commit()
        assert rows == [(None, b"oops"), (3, None)]
        assert (await play.offsets())[TopicPartition(play.name, 0)] == 3

    async def test_options(self, play: Play) -> None:
        consumer = play.consumer("a")
        wrong: list[Any] = [(0,), (True,), (1, -1.0), (1, float("nan")), (1, float("inf")), (1, "1")]
        for options in wrong:
            with pytest.raises(UsageError, match="max_"):
                await anext(consumer.batches(*options))
        with pytest.raises(UsageError, match="max_rows"):
            await anext(consumer.arrow_batches(0))
        for most in (0, 2**30 + 1):
            with pytest.raises(UsageError, match="max_bytes"):
                await anext(consumer.arrow_batches(max_bytes=most))


class TestPartitions:
    async def test_partitions_are_shared_and_every_member_is_told(self, play: Play) -> None:
        heard: list[tuple[str, list[int]]] = []

        def told(what: str) -> Any:
            return lambda partitions: heard.append((what, [number for _, number in partitions]))

        async def told_slowly(partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            heard.append(("b has", [number for _, number in partitions]))

        a = play.consumer("a", on_assigned=told("a has"), on_revoked=told("a gives"))
        async with a:
            assert heard == [("a has", [0, 1, 2, 3])]
            async with play.consumer("b", on_assigned=told_slowly) as b:
                await eventually(lambda: len(heard) == 4)
                assert heard[1] == ("a gives", [0, 1, 2, 3])
                assert sorted(heard[2:]) == [("a has", [0, 1]), ("b has", [2, 3])]
                assert not a.assignment & b.assignment
                assert a.generation == b.generation
            await eventually(lambda: len(a.assignment) == 4)
        assert heard[-1] == ("a gives", [0, 1, 2, 3])

    async def test_what_stays_is_not_opened_anew(self, play: Play) -> None:
        """Partitions that stay with their member only pause during a rebalance."""
        opened: list[tuple[int, int]] = []
        topic = Counted(play, opened)
        play.topic = topic  # type: ignore[assignment]
        async with play.member("a") as a:
            await play.publish(20)
            await play.all_read()
            assert sorted(partition for partition, _ in opened) == [0, 1, 2, 3]
            async with play.member("b") as b:
                await play.publish(20)
                await play.all_read()
                await eventually(lambda: len(opened) == 6)
                assert {partition for partition, _ in opened[4:]} == {p for _, p in b.assignment}
                await play.client.rewind(play.name, {(play.name, 0): 4})
                await eventually(lambda: (0, 4) in opened)
            await eventually(lambda: len(a.assignment) == 4 and len(opened) == 9)
            await play.publish(20)
            await play.all_read()
        play.log.check()

    async def test_what_was_in_hand_comes_again(self, play: Play) -> None:
        await play.publish(40)
        async with play.consumer("a") as a:
            await eventually(lambda: sum(one.buffer.waiting for one in a._readers.values()) == 40)
            async with asyncio.timeout(PATIENCE):
                batches = a.batches(20, 0)
                first = await anext(batches)
                generation = a.generation
                async with play.consumer("b") as b:
                    await eventually(lambda: a.generation > generation)
                    mine = {partition for _, partition in a.assignment}
                    assert len(mine) == len(b.assignment) == 2
                    seen: list[GroupMessage] = []
                    while len(seen) < 20:
                        seen.append(await anext(a))
            assert {one.partition for one in seen} == mine
            for number in mine:
                offsets = [one.offset for one in seen if one.partition == number]
                assert offsets == list(range(number, 40, 4))
            assert {one.data for one in first if one.partition in mine} <= {one.data for one in seen}

    async def test_what_was_processed_is_committed_when_they_go(self, play: Play) -> None:
        await play.publish(12)
        async with play.consumer("a", auto_commit_interval=PATIENCE) as consumer:
            await take(consumer, 12)
            waiting = asyncio.create_task(anext(consumer))  # so that the last one is processed, too
            async with play.consumer("b"):
                assert sum((await play.offsets()).values()) == 9 + 10 + 11 + 12
            waiting.cancel()
            await asyncio.wait([waiting])

    async def test_more_members_than_partitions(self, play: Play) -> None:
        async with AsyncExitStack() as stack:
            for name in "abcde":
                await stack.enter_async_context(play.member(name))
            found = await play.client.describe_group(play.name)
            await play.publish(20)
            await play.all_read()
            assert len(found.members) == 5
        play.log.check()

    async def test_pause_seek_lag(self, play: Play) -> None:
        await play.publish(12)
        async with play.consumer("a") as consumer:
            consumer.pause(play.name, 0)
            assert sorted(map(int, await take(consumer, 9))) == [n for n in range(12) if n % 4]
            assert await consumer.lag() == {
                TopicPartition(play.name, number): 0 if number else 3 for number in range(4)
            }
            consumer.resume(play.name, 0)
            assert await take(consumer, 3) == [b"0", b"4", b"8"]
            consumer.seek(play.name, 1, 5)
            assert consumer.position(play.name, 1) == 5
            assert await take(consumer, 2) == [b"5", b"9"]
            consumer.seek(play.name, 1, 0)
            async with asyncio.timeout(PATIENCE):
                message = await anext(consumer)
            assert message.data == b"1"
            await consumer.commit(message)
            assert (await play.offsets())[TopicPartition(play.name, 1)] == 2
            with pytest.raises(UsageError, match=r"offset must be at least 0, got -1"):
                consumer.seek(play.name, 1, -1)
            with pytest.raises(UsageTypeError):
                consumer.seek(play.name, 1, "1")  # type: ignore[arg-type]
            for call in (consumer.pause, consumer.resume, consumer.position):
                with pytest.raises(NotAssignedError):
                    call(play.name, 4)

    async def test_a_rewind_reaches_the_members(self, play: Play) -> None:
        await play.publish(8)
        async with play.member("a"), play.member("b"):
            await play.all_read()
            play.log.everything.clear()
            await play.client.rewind(play.name, {(play.name, number): 0 for number in range(4)})
            await play.all_read()

    async def test_a_topic_grows(self, play: Play) -> None:
        play.topic = JetStreamTopic.of_stream(play.name, play.subjects[:3])
        events: list[GroupEvent] = []

        def unknown() -> list[int]:
            return [event.partition for event in events if isinstance(event, PartitionUnknown)]

        async with play.member("a", on_event=events.append) as old:
            assert len(old.assignment) == 3
            play.topic = JetStreamTopic.of_stream(play.name, play.subjects)
            async with play.member("b"):
                await play.publish(8)
                await eventually(lambda: len(play.log.payloads) >= 6)
            # Who does not know the fourth one can't read it: its member has to be started anew.
            await eventually(lambda: 3 in unknown())
            assert len(old.assignment) == 3


class TestItsLife:
    async def test_options(self, nc: Client, name: str) -> None:
        topic = JetStreamTopic.of_streams("t", ["S"])
        wrong: list[dict[str, Any]] = [
            {"group": ""},
            {"topics": []},
            {"topics": [topic, topic]},
            {"topics": ["t"]},
            {"consumer_id": ""},
            {"session_timeout": 0},
            {"auto_commit_interval": 0},
            {"auto_offset": "oldest"},
            {"prefetch": 0},
            {"prefetch_bytes": 0},
            {"timeout": -1},
            {"on_assigned": 1},
            {"prefix": "a b"},
        ]
        for options in wrong:
            with pytest.raises((UsageError, GroupRequestError)):
                GroupConsumer(nc, **dict[str, Any]({"group": name, "topics": topic} | options))
        consumer = GroupConsumer(nc, name, topic)
        with pytest.raises(UsageError, match="not open"):
            _ = consumer.generation
        await consumer.close()

    async def test_without_a_coordinator(self, nc: Client, name: str) -> None:
        topic = JetStreamTopic.of_streams("t", ["S"])
        events: list[GroupEvent] = []
        consumer = GroupConsumer(
            nc, name, topic, prefix="nobody.is.here", timeout=0.3, on_event=events.append
        )
        with pytest.raises(CallTimeoutError, match=r"within 0.3 s: no coordinator answers on .*; start one"):
            await consumer.open()
        # No controller has heard of the consumer, so it does not try to leave for half of the timeout.
        assert {type(event) for event in events} == {ControllerLost}
        await consumer.close()

    async def test_what_the_group_refuses(self, play: Play) -> None:
        with pytest.raises(UnknownGroupError):
            await play.consumer("a", create=False).open()
        with pytest.raises(GroupRequestError, match="assignor must be one of"):
            await play.consumer("a", assignor="mine").open()
        async with play.consumer("a"):
            play.topic = JetStreamTopic.of_streams(play.name, ["OTHER"])
            with pytest.raises(TopicMismatchError):
                await play.consumer("b").open()

    async def test_member_joins_the_group_that_another_created_just_before(
        self, play: Play, nc: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both were told that the group does not exist; they have other topics, time-outs and assignors."""
        other = await Play(nc, f"{play.name}-2", partitions=2).create()
        first = play.consumer("a", session_timeout=LONG)
        second = GroupConsumer(
            nc,
            play.name,
            other.topic,
            consumer_id="b",
            session_timeout=LONG + 1,
            assignor="range",
            ephemeral=True,
            auto_offset="earliest",
            timeout=PATIENCE,
            on_event=quiet,
        )
        asked: list[str] = []
        call = second._calls.any

        async def create_too_late(method: str, *arguments: Any) -> Any:
            asked.append(method)
            await first.open()
            return await call(method, *arguments)

        monkeypatch.setattr(second._calls, "any", create_too_late)
        async with second:
            assert asked == ["CreateGroup"]
            assert {topic for topic, _ in second.assignment} == {other.name}
            await eventually(lambda: len(first.assignment) == 4)
            found = await play.client.describe_group(play.name)
            assert (found.session_timeout, found.ephemeral, found.assignor) == (LONG, False, "sticky")
            assert [member.session_timeout for member in found.members] == [LONG, LONG + 1]
            await first.close()

    async def test_an_id_that_is_in_use(self, play: Play) -> None:
        async with play.consumer("a"):
            with pytest.raises(CallTimeoutError):
                await play.consumer("a", timeout=0.5).open()
        async with play.consumer("a") as again:
            assert len(again.assignment) == 4

    async def test_a_callback_that_fails_ends_it(self, play: Play) -> None:
        def fail(_: list[TopicPartition]) -> None:
            raise RuntimeError("as the user wants")

        with pytest.raises(RuntimeError, match="as the user wants"):
            await play.consumer("a", on_assigned=fail).open()
        consumer = await play.consumer("a", on_revoked=fail, session_timeout=SESSION).open()
        async with play.consumer("b"):
            with pytest.raises(RuntimeError, match="as the user wants"):
                await take(consumer, 1)
            await consumer.close()

    async def test_callback_may_close_the_consumer_while_it_opens(self, play: Play) -> None:
        async def close(_: list[TopicPartition]) -> None:
            await consumer.close()

        revoked: list[list[TopicPartition]] = []
        consumer = play.consumer("a", on_assigned=close, on_revoked=revoked.append, timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(UnknownMemberError, match="closed while joining"):
                await consumer.open()
        assert [len(partitions) for partitions in revoked] == [play.partitions]
        assert (await play.client.describe_group(play.name)).members == ()
        assert not [task for task in asyncio.all_tasks() if "PartitionReader" in repr(task)]

    async def test_consumer_is_for_one_task_at_a_time(self, play: Play) -> None:
        async with play.consumer("a") as consumer:
            waiting = asyncio.create_task(take(consumer, 1))
            await eventually(lambda: consumer._is_awaited)
            with pytest.raises(UsageError, match="one task at a time"):
                await anext(consumer)
            with pytest.raises(UsageError, match="one task at a time"):
                await anext(consumer.batches())
            with pytest.raises(UsageError, match="one task at a time"):
                async for _ in consumer:
                    pass
            await play.publish(1)
            assert await waiting == [b"0"]

    async def test_closing_ends_the_iteration(self, play: Play) -> None:
        consumer = await play.consumer("a").open()
        waiting = asyncio.create_task(anext(consumer, None))
        await asyncio.sleep(0)
        await asyncio.gather(consumer.close(), consumer.close())
        assert await waiting is None
        assert (await play.client.describe_group(play.name)).members == ()
        with pytest.raises(UsageError, match="only once"):
            await consumer.open()

    async def test_the_errors_of_the_block_go_on(self, play: Play) -> None:
        with pytest.raises(KeyError):
            async with play.consumer("a"):
                raise KeyError("the user's own")
        with pytest.raises(asyncio.CancelledError):
            async with play.consumer("a"):
                raise asyncio.CancelledError
        assert (await play.client.describe_group(play.name)).members == ()

    async def test_a_closed_connection_ends_it(self, play: Play, jetstream_server: NatsServer) -> None:
        nc = await connect(jetstream_server.url)
        consumer = await play.consumer("a", nc=nc).open()
        await nc.close()
        with pytest.raises(TransportError):
            await take(consumer, 1)
        await consumer.close()


class TestFencing:
    @pytest.fixture
    async def play(self, nc: Client, name: str) -> AsyncIterator[Play]:
        async with coordinator(nc):
            yield await Play(nc, name).create()

    async def test_who_is_cut_off_stops_before_another_begins(
        self, play: Play, jetstream_server: NatsServer
    ) -> None:
        events: list[GroupEvent] = []
        with FaultProxy(jetstream_server.url) as proxy:
            nc = await connect(f"nats://{proxy.address}")
            async with play.member("far", nc=nc, on_event=events.append) as far, play.member("near") as near:
                await play.publish(200)
                await eventually(lambda: len(far.assignment) == len(near.assignment) == 2)
                proxy.stall()
                await eventually(lambda: len(near.assignment) == 4)
                assert not far.assignment or not far._running().owns
                given = len(play.log.by("far"))
                await play.publish(20)
                await play.all_read()
                assert len(play.log.by("far")) == given
                assert [event for event in events if isinstance(event, MemberFenced)]
                proxy.resume()
                await eventually(lambda: len(far.assignment) == 2)
                await play.publish(20)
                await play.all_read()
            await nc.close()
        play.log.check()

    async def test_who_hangs_is_fenced_when_it_comes_back(
        self, play: Play, jetstream_server: NatsServer
    ) -> None:
        """A member in a thread of its own, whose event loop is blocked for longer than its session."""
        hung = asyncio.Event()
        loop = asyncio.get_running_loop()
        outcome = asyncio.create_task(
            asyncio.to_thread(hanging_member, jetstream_server.url, play, hung, loop)
        )
        await play.publish(40)
        await asyncio.wait_for(hung.wait(), PATIENCE)
        async with play.member("b") as other:
            await eventually(lambda: len(other.assignment) == 4)
            first, later, error = await asyncio.wait_for(outcome, PATIENCE)
            assert isinstance(error, StaleGenerationError)
            assert later > first
            await play.all_read()


class Counted:
    """A JetStream topic that tells what is opened."""

    def __init__(self, play: Play, opened: list[tuple[int, int]]) -> None:
        self._source = JetStreamTopicSource(play.js, play.topic)
        self._opened = opened
        self.spec = self._source.spec
        self.bounds, self.lag = self._source.bounds, self._source.lag

    async def open(self, partition: int, offset: int) -> PartitionFeed:
        self._opened.append((partition, offset))
        return await self._source.open(partition, offset)


def hanging_member(
    url: str, play: Play, hung: asyncio.Event, loop: asyncio.AbstractEventLoop
) -> tuple[int, int, Exception | None]:
    async def run() -> tuple[int, int, Exception | None]:
        nc = await connect(url)
        mine = Play(nc, play.name)
        async with mine.consumer("a") as consumer:
            first = await anext(consumer)
            loop.call_soon_threadsafe(hung.set)
            deadline = time.monotonic() + PATIENCE
            # Until somebody else has everything.
            while time.monotonic() < deadline and not play.log.by("b"):
                time.sleep(0.05)
            later = await anext(consumer)
            try:
                await consumer.commit(first)
            except StaleGenerationError as exc:
                error: Exception | None = exc
            else:
                error = None
        await nc.close()
        return first.generation, later.generation, error

    return asyncio.run(run())
