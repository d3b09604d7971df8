"""Consumer groups on one real server: nothing lost, order kept, whoever comes and goes.

The server's consumer timeout is 9 seconds here: a member that is gone is found out within them, and one that
the machine holds up for a moment is not taken for gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client._consuming.consumer import Consumer
from liftenvelope.client._events import (
    ClientEvent,
    CursorAheadOfStream,
    GroupMemberExpired,
    GroupPartitionFenced,
    LiftEnvelopeWarning,
    MetadataRefreshed,
)
from liftenvelope.client.partition_read import GroupIdentity
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    FencedError,
    NoCursorError,
    NoSuchStreamError,
    TransportError,
    UsageError,
)
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, run_liftbridge
from tests.integration.conftest import until

PARTITIONS = 4
#: How long the server waits for a sign of life; members give one after two fifths of it.
TIMEOUT = 9


@pytest.fixture(scope="module")
def liftbridge_server() -> Iterator[LiftbridgeCluster]:
    config = {"groups.consumer.timeout": f"{TIMEOUT}s", "groups.coordinator.timeout": f"{TIMEOUT}s"}
    with run_liftbridge(config=config) as cluster:
        yield cluster


@pytest.fixture
async def client(liftbridge_server: LiftbridgeCluster) -> AsyncIterator[liftenvelope.Client]:
    async with liftenvelope.connect(liftbridge_server.addresses, ack_wait=60) as client:
        yield client
    assert len(asyncio.all_tasks()) == 1


@pytest.fixture
async def stream(client: liftenvelope.Client, name: str) -> str:
    await client.create_stream(name, name, partitions=PARTITIONS)
    return name


async def publish(client: liftenvelope.Client, stream: str, begin: int, end: int) -> None:
    for number in range(begin, end):
        await client.publish(stream, b"%d" % number, partition=number % PARTITIONS)


async def publish_patiently(client: liftenvelope.Client, stream: str, begin: int, end: int) -> None:
    """Publish through a server that has only just started, and may not take in every message yet."""
    for number in range(begin, end):
        while True:
            try:
                await client.publish(stream, b"%d" % number, partition=number % PARTITIONS, timeout=1.0)
            except (AckTimeoutError, TransportError, CallTimeoutError):
                continue
            break


async def cursors(client: liftenvelope.Client, stream: str) -> list[int | None]:
    return [await client.fetch_cursor(f"__group:{stream}", stream, number) for number in range(PARTITIONS)]


class Member:
    """A consumer in a task of its own, and all that it got."""

    def __init__(self, client: liftenvelope.Client, stream: str, **options: Any) -> None:
        self.messages: list[liftenvelope.Message] = []
        self.calls: list[tuple[str, list[tuple[str, int]]]] = []
        options = {"auto_offset": "earliest", "auto_commit_interval": 0.2, **options}
        self.consumer = client.consumer(
            stream,
            [stream],
            on_assigned=lambda partitions: self.calls.append(("assigned", partitions)),
            on_revoked=lambda partitions: self.calls.append(("revoked", partitions)),
            **options,
        )
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        async with self.consumer as consumer:
            async for message in consumer:
                self.messages.append(message)

    @property
    def values(self) -> set[bytes]:
        return {message.value for message in self.messages}

    def holds(self, count: int) -> bool:
        if self.task.done():
            self.task.result()
        return len(self.consumer.assignment) == count

    async def end(self) -> None:
        await self.consumer.close()
        await self.task


def check(messages: list[liftenvelope.Message], count: int) -> None:
    """All are there, and those of a partition come in order the first time."""
    assert {message.value for message in messages} == {b"%d" % number for number in range(count)}
    by_partition: dict[int, list[int]] = defaultdict(list)
    for message in messages:
        by_partition[message.partition].append(message.offset)
    for offsets in by_partition.values():
        firsts = list(dict.fromkeys(offsets))
        assert firsts == sorted(firsts)


def in_order(messages: list[liftenvelope.Message]) -> bool:
    seen: dict[int, int] = defaultdict(lambda: -1)
    for message in messages:
        if message.offset != seen[message.partition] + 1:
            return False
        seen[message.partition] = message.offset
    return True


class TestOneMember:
    async def test_reads_all_and_goes_on_after_the_cursor(
        self, client: liftenvelope.Client, stream: str
    ) -> None:
        await publish(client, stream, 0, 100)
        member = Member(client, stream)
        await until(lambda: len(member.messages) == 100)
        check(member.messages, 100)
        assert in_order(member.messages)
        await until(lambda: member.holds(PARTITIONS))
        await member.consumer.commit()
        assert await cursors(client, stream) == [24] * PARTITIONS
        assert await member.consumer.lag() == {(stream, number): 0 for number in range(PARTITIONS)}
        assert member.consumer.position(stream, 0) == 25
        await member.end()
        everything = [(stream, number) for number in range(PARTITIONS)]
        assert member.calls == [("assigned", everything), ("revoked", everything)]
        await publish(client, stream, 100, 120)
        again = Member(client, stream, auto_offset="error")
        await until(lambda: len(again.messages) == 20)
        await again.end()
        check(member.messages + again.messages, 120)

    async def test_the_message_in_hand_is_not_processed(
        self, client: liftenvelope.Client, stream: str
    ) -> None:
        for number in range(5):
            await client.publish(stream, b"%d" % number)
        seen: list[int] = []
        for _ in range(2):
            async with client.consumer(stream, stream, auto_offset="earliest") as consumer:
                async for message in consumer:
                    seen.append(message.offset)
                    if len(seen) in (3, 6):
                        break
        assert seen == [0, 1, 2, 2, 3, 4]
        async with client.consumer(stream, stream, auto_offset="earliest") as consumer:
            message = await anext(consumer)
            await consumer.commit(message)
        assert message.offset == 4
        assert (await cursors(client, stream))[0] == 4

    async def test_commit_by_hand_alone(self, client: liftenvelope.Client, stream: str) -> None:
        for number in range(5):
            await client.publish(stream, b"%d" % number)
        consumer = client.consumer(stream, stream, auto_offset="earliest", auto_commit_interval=None)
        async with consumer:
            messages = [await anext(consumer) for _ in range(4)]
            await consumer.commit(messages[1])
            assert (await cursors(client, stream))[0] == 2  # the third was settled by asking for the fourth
            await consumer.commit()
            assert (await cursors(client, stream))[0] == 3

    @pytest.mark.parametrize(("auto_offset", "first"), [("earliest", b"0"), ("latest", b"4"), ("new", b"5")])
    async def test_where_it_begins(
        self, client: liftenvelope.Client, stream: str, auto_offset: Any, first: bytes
    ) -> None:
        for number in range(5):
            await client.publish(stream, b"%d" % number)
        async with client.consumer(stream, stream, auto_offset=auto_offset) as consumer:
            await until(lambda: consumer.position(stream, 0) is not None)
            await client.publish(stream, b"5")
            assert (await anext(consumer)).value == first

    async def test_new_stays_where_it_was(self, client: liftenvelope.Client, stream: str) -> None:
        # The first member ends before it has processed anything: what came in between is not lost.
        await client.publish(stream, b"before")
        async with client.consumer(stream, stream) as consumer:
            await until(lambda: consumer.position(stream, 0) == 1)
        await client.publish(stream, b"between")
        async with client.consumer(stream, stream) as consumer:
            assert (await anext(consumer)).value == b"between"

    async def test_no_cursor_is_an_error_if_wanted(self, client: liftenvelope.Client, stream: str) -> None:
        async with client.consumer(stream, stream, auto_offset="error") as consumer:
            with pytest.raises(NoCursorError, match=stream):
                await anext(consumer)

    async def test_no_such_stream(self, client: liftenvelope.Client, name: str) -> None:
        with pytest.raises(NoSuchStreamError):
            await client.consumer(name, name).open()

    async def test_batches(self, client: liftenvelope.Client, stream: str) -> None:
        await publish(client, stream, 0, 100)
        seen: list[liftenvelope.Message] = []
        async with client.consumer(stream, stream, auto_offset="earliest") as consumer:
            async for batch in consumer.batches(30, max_wait=0.2):
                assert 1 <= len(batch) <= 30
                seen += batch
                if len(seen) == 100:
                    await consumer.commit()
                    break
        check(seen, 100)
        assert in_order(seen)
        assert await cursors(client, stream) == [24] * PARTITIONS

    async def test_a_batch_that_nobody_got_is_not_processed(
        self, client: liftenvelope.Client, stream: str
    ) -> None:
        await publish(client, stream, 0, 40)
        async with client.consumer(stream, stream, auto_offset="earliest") as consumer:
            reading = asyncio.ensure_future(anext(consumer.batches(1000, max_wait=600)))
            await until(lambda: all(consumer.position(*key) == 10 for key in consumer.assignment))
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert await cursors(client, stream) == [None] * PARTITIONS
            seen = [await anext(consumer) for _ in range(40)]
        check(seen, 40)
        assert in_order(seen)

    async def test_pause_seek_and_resume(self, client: liftenvelope.Client, stream: str) -> None:
        await publish(client, stream, 0, 40)
        async with client.consumer(stream, stream, auto_offset="earliest") as consumer:
            consumer.pause(stream, 0)
            seen = [await anext(consumer) for _ in range(30)]
            assert {message.partition for message in seen} == {1, 2, 3}
            consumer.seek(stream, 0, 7)
            consumer.resume(stream, 0)
            assert [(await anext(consumer)).offset for _ in range(3)] == [7, 8, 9]
            await consumer.commit()
            assert await cursors(client, stream) == [9] * PARTITIONS
            consumer.seek(stream, 0, 2)
            message = await anext(consumer)
            assert (message.partition, message.offset) == (0, 2)
            await consumer.commit(message)
            assert await cursors(client, stream) == [2, 9, 9, 9]
            with pytest.raises(UsageError, match="offset must be at least 0, got -1"):
                consumer.seek(stream, 0, -1)
            with pytest.raises(FencedError):
                consumer.seek(stream, 9, 0)

    async def test_seek_in_on_assigned_which_may_be_a_coroutine_function(
        self, client: liftenvelope.Client, stream: str
    ) -> None:
        await publish(client, stream, 0, 40)

        async def assigned(partitions: list[tuple[str, int]]) -> None:
            for place in partitions:
                consumer.seek(*place, 8)

        consumer = client.consumer(stream, stream, on_assigned=assigned)
        async with consumer:
            offsets = [(await anext(consumer)).offset for _ in range(2 * PARTITIONS)]
        assert sorted(offsets) == [8] * PARTITIONS + [9] * PARTITIONS

    async def test_an_error_of_a_callback_is_raised(self, client: liftenvelope.Client, stream: str) -> None:
        def assigned(_: list[tuple[str, int]]) -> None:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await client.consumer(stream, stream, on_assigned=assigned).open()

    @pytest.mark.parametrize("by_another_task", [False, True])
    async def test_closing_in_on_assigned_is_an_error_of_opening(
        self, client: liftenvelope.Client, stream: str, by_another_task: bool
    ) -> None:
        revoked: list[list[tuple[str, int]]] = []

        async def close(_: list[tuple[str, int]]) -> None:
            await (asyncio.create_task(consumer.close()) if by_another_task else consumer.close())

        consumer = client.consumer(stream, stream, on_assigned=close, on_revoked=revoked.append)
        with pytest.raises(TransportError, match="the consumer was closed while it was opened"):
            await consumer.open()
        assert [len(partitions) for partitions in revoked] == [PARTITIONS]
        assert not (await client.fetch_metadata(streams=[stream], groups=[stream])).groups

    async def test_on_revoked_comes_before_the_last_checkpoint_and_may_commit(
        self, client: liftenvelope.Client, stream: str
    ) -> None:
        await publish(client, stream, 0, 8)
        seen: list[list[int | None]] = []

        async def revoked(_: list[tuple[str, int]]) -> None:
            seen.append(await cursors(client, stream))
            await consumer.commit()
            seen.append(await cursors(client, stream))

        consumer = client.consumer(
            stream, stream, auto_offset="earliest", auto_commit_interval=None, on_revoked=revoked
        )
        async with consumer:
            for _ in range(8):
                await anext(consumer)
        assert seen == [[None] * PARTITIONS, [1] * PARTITIONS]

    async def test_offsets_are_stored_if_on_revoked_raises(
        self, client: liftenvelope.Client, stream: str
    ) -> None:
        await publish(client, stream, 0, 8)

        def revoked(_: list[tuple[str, int]]) -> None:
            raise KeyError("mine")

        consumer = client.consumer(
            stream, stream, auto_offset="earliest", auto_commit_interval=None, on_revoked=revoked
        )
        await consumer.open()
        async with asyncio.timeout(60):
            got = [await anext(consumer) for _ in range(3)]
        with pytest.raises(KeyError, match="mine"):
            await consumer.close()
        expected: list[int | None] = [None] * PARTITIONS
        for message in got[:2]:  # the last one handed out was not processed
            expected[message.partition] = message.offset
        assert await cursors(client, stream) == expected
        assert not (await client.fetch_metadata(streams=[stream], groups=[stream])).groups

    @pytest.mark.parametrize("count", [0, 8])
    @pytest.mark.parametrize("error", [KeyError("mine"), TransportError("mine")], ids=["foreign", "own"])
    async def test_error_of_on_revoked_during_a_rebalance_ends_the_iteration(
        self, client: liftenvelope.Client, stream: str, count: int, error: Exception
    ) -> None:
        def revoked(_: list[tuple[str, int]]) -> None:
            raise error

        await publish(client, stream, 0, count)
        consumer = client.consumer(
            stream, stream, auto_offset="earliest", auto_commit_interval=None, on_revoked=revoked
        )
        await consumer.open()
        second: Member | None = None
        try:
            async with asyncio.timeout(60):
                for _ in range(count):
                    await anext(consumer)
                second = Member(client, stream)
                with pytest.raises(type(error), match="mine"):
                    await anext(consumer)
            with pytest.raises(type(error), match="mine"):
                await consumer.close()  # calls on_revoked with the other partitions
        finally:
            if second is not None:
                await second.end()

    async def test_closed_by_its_own_callback(self, client: liftenvelope.Client, stream: str) -> None:
        async def revoked(_: list[tuple[str, int]]) -> None:
            await consumer.close()

        await publish(client, stream, 0, 8)
        consumer = client.consumer(stream, stream, auto_offset="earliest", on_revoked=revoked)
        async with consumer:
            for _ in range(8):
                await anext(consumer)
            second = Member(client, stream)
            with pytest.raises(StopAsyncIteration):
                await anext(consumer)
        await until(lambda: second.holds(PARTITIONS))
        assert await cursors(client, stream) == [1] * PARTITIONS
        await second.end()

    async def test_a_paused_partition_is_woken_if_wanted(
        self, client: liftenvelope.Client, stream: str
    ) -> None:
        await client.publish(stream, b"0")
        await client.pause_stream(stream, partitions=[0])
        async with client.consumer(stream, stream, auto_offset="earliest", resume=True) as consumer:
            assert (await anext(consumer)).value == b"0"

    async def test_seek_forgets_what_was_read_ahead(self, client: liftenvelope.Client, stream: str) -> None:
        await publish(client, stream, 0, 80)
        async with client.consumer(stream, stream, auto_offset="earliest") as consumer:
            for number in range(1, PARTITIONS):
                consumer.pause(stream, number)
            offsets = [(await anext(consumer)).offset for _ in range(3)]
            for target in (15, 3, 10):
                consumer.seek(stream, 0, target)
            offsets += [(await anext(consumer)).offset for _ in range(3)]
            assert offsets == [0, 1, 2, 10, 11, 12]
            assert consumer.position(stream, 0) == 13

    async def test_seek_beside_a_waiting_list_leaves_out_what_was_taken_before(
        self, client: liftenvelope.Client, stream: str
    ) -> None:
        await publish(client, stream, 0, 40)
        async with client.consumer(stream, stream, auto_offset="earliest") as consumer:
            for number in range(1, PARTITIONS):
                consumer.pause(stream, number)
            lists = consumer.batches(15, max_wait=60)
            waiting = asyncio.ensure_future(anext(lists))
            async with asyncio.timeout(60):
                while consumer.position(stream, 0) != 10:
                    await asyncio.sleep(0.01)
                consumer.seek(stream, 0, 5)
                assert [message.offset for message in await waiting] == [5, 6, 7, 8, 9]
            await consumer.commit()
            assert (await cursors(client, stream))[0] == 9

    async def test_two_streams(self, client: liftenvelope.Client, stream: str) -> None:
        other = f"{stream}-2"
        await client.create_stream(other, other)
        await client.publish(stream, b"a")
        await client.publish(other, b"b")
        async with client.consumer(stream, [stream, other], auto_offset="earliest") as consumer:
            assert {(await anext(consumer)).stream for _ in range(2)} == {stream, other}
            # A stream that is deleted is taken away; the others are read on.
            await client.delete_stream(other)
            await until(lambda: (other, 0) not in consumer.assignment)
            await client.publish(stream, b"c")
            assert (await anext(consumer)).value == b"c"

    async def test_the_same_id_again(self, client: liftenvelope.Client, stream: str) -> None:
        await publish(client, stream, 0, 8)
        request = api_pb2.JoinConsumerGroupRequest(groupId=stream, consumerId="me", streams=[stream])
        answer = api_pb2.JoinConsumerGroupResponse
        await client._context.call(
            "JoinConsumerGroup", request, answer, client._context.deadline(None), "a crashed member"
        )
        async with client.consumer(stream, stream, consumer_id="me", auto_offset="earliest") as consumer:
            assert len([await anext(consumer) for _ in range(8)]) == 8

    async def test_readonly_and_writable_again(self, client: liftenvelope.Client, stream: str) -> None:
        await client.publish(stream, b"0")
        async with client.consumer(stream, stream, auto_offset="earliest") as consumer:
            await anext(consumer)
            await client.set_stream_readonly(stream, partitions=[0])
            await client.publish(stream, b"other", partition=1)
            assert (await anext(consumer)).value == b"other"
            assert (stream, 0) in consumer.assignment
            await client.set_stream_readonly(stream, partitions=[0], readonly=False)
            await client.publish(stream, b"1")
            assert (await anext(consumer)).value == b"1"

    async def test_paused_and_awake_again(self, client: liftenvelope.Client, stream: str) -> None:
        await client.publish(stream, b"0")
        async with client.consumer(stream, stream, auto_offset="earliest") as consumer:
            await anext(consumer)
            await client.pause_stream(stream, partitions=[0])
            await client.publish(stream, b"other", partition=1)
            assert (await anext(consumer)).value == b"other"
            await client.publish(stream, b"1")  # a publish through gRPC wakes it
            assert (await anext(consumer)).value == b"1"

    async def test_a_new_stream_of_the_same_name(
        self, liftbridge_server: LiftbridgeCluster, name: str
    ) -> None:
        events: list[ClientEvent] = []
        async with liftenvelope.connect(
            liftbridge_server.addresses, ack_wait=60, on_event=events.append
        ) as client:
            await client.create_stream(name, name)
            await client.set_cursor(f"__group:{name}", name, 0, 1_000)
            await client.publish(name, b"new")
            async with client.consumer(name, name, auto_offset="earliest") as consumer:
                assert (await anext(consumer)).value == b"new"
                await consumer.commit()
            assert await client.fetch_cursor(f"__group:{name}", name, 0) == 0
        assert [event.offset for event in events if isinstance(event, CursorAheadOfStream)] == [1_000]


class TestMembers:
    async def test_share_and_leave(self, client: liftenvelope.Client, stream: str) -> None:
        first = Member(client, stream)
        await until(lambda: first.holds(PARTITIONS))
        await publish(client, stream, 0, 40)
        await until(lambda: len(first.messages) == 40)
        await first.consumer.commit()
        second = Member(client, stream)
        await until(lambda: first.holds(2) and second.holds(2))
        await publish(client, stream, 40, 80)
        await until(lambda: len(first.values | second.values) == 80)
        assert first.consumer.epoch == second.consumer.epoch > 0
        await first.end()
        await until(lambda: second.holds(PARTITIONS))
        await publish(client, stream, 80, 120)
        await until(lambda: len(first.values | second.values) == 120)
        await second.end()
        check(first.messages + second.messages, 120)
        assert await cursors(client, stream) == [29] * PARTITIONS
        # The members handed everything over, so next to nothing was read twice.
        assert len(first.messages) + len(second.messages) < 120 + 2 * PARTITIONS

    async def test_partitions_are_shared_before_the_next_heartbeat(self, name: str) -> None:
        """The server's end of the old subscriptions is acted on: the next heartbeats are 40 minutes away."""
        config = {"groups.consumer.timeout": "100m", "groups.coordinator.timeout": "100m"}
        with run_liftbridge(config=config) as cluster:
            async with liftenvelope.connect(cluster.addresses) as client:
                await client.create_stream(name, name, partitions=PARTITIONS)
                first = Member(client, name)
                await until(lambda: first.holds(PARTITIONS))
                second = Member(client, name)
                await until(lambda: first.holds(2) and second.holds(2))
                await first.end()
                await second.end()

    async def test_errors_of_revoked_partitions_are_not_raised(
        self, client: liftenvelope.Client, stream: str
    ) -> None:
        """They were raised although the partitions belonged to another member."""
        await publish(client, stream, 0, PARTITIONS)
        async with client.consumer(stream, stream, auto_offset="error") as first:
            await until(lambda: len(first._failures) == PARTITIONS)  # no partition has a cursor
            second = Member(client, stream)
            await until(lambda: len(first.assignment) == 2 and second.holds(2))
            kept = sorted(first.assignment)
            for key in kept:
                first.seek(*key, 0)
            async with asyncio.timeout(60):
                found = [await anext(first) for _ in kept]
            assert sorted((message.stream, message.partition) for message in found) == kept
            await second.end()

    async def test_what_does_not_move_is_read_on(self, client: liftenvelope.Client, stream: str) -> None:
        first = Member(client, stream)
        await until(lambda: first.holds(PARTITIONS))
        readers = dict(first.consumer._readers)
        second = Member(client, stream)
        await until(lambda: first.holds(2) and second.holds(2))
        assert all(first.consumer._readers[key] is readers[key] for key in first.consumer.assignment)
        await publish(client, stream, 0, 20)
        await until(lambda: len(first.messages) + len(second.messages) == 20)
        for member in (first, second):
            await member.end()

    async def test_more_members_than_partitions(self, client: liftenvelope.Client, stream: str) -> None:
        members = [Member(client, stream) for _ in range(PARTITIONS + 1)]
        await until(lambda: sum(len(member.consumer.assignment) for member in members) == PARTITIONS)
        await until(lambda: sorted(len(m.consumer.assignment) for m in members) == [0, 1, 1, 1, 1])
        await publish(client, stream, 0, 20)
        await until(lambda: len(set[bytes]().union(*(member.values for member in members))) == 20)
        for member in members:
            await member.end()

    async def test_while_messages_come_all_the_time(self, client: liftenvelope.Client, stream: str) -> None:
        publishing = asyncio.create_task(publish(client, stream, 0, 1_500))
        members = [Member(client, stream)]
        for _ in range(2):
            await until(lambda: len(members[-1].messages) > 50)
            members.append(Member(client, stream))
        await until(lambda: len(members[-1].messages) > 20)
        await members[0].end()
        await publishing
        await until(lambda: len(set[bytes]().union(*(member.values for member in members))) == 1_500)
        for member in members[1:]:
            await member.end()
        for member in members:
            by_partition: dict[int, list[int]] = defaultdict(list)
            for message in member.messages:
                by_partition[message.partition].append(message.offset)
            for number, offsets in by_partition.items():
                # A partition that came back to a member may begin a little earlier again.
                steps = sum(b != a + 1 for a, b in pairwise(offsets))
                changes = sum((stream, number) in keys for what, keys in member.calls if what == "assigned")
                assert steps <= changes - 1
        assert await cursors(client, stream) == [374] * PARTITIONS

    async def test_commit_of_what_has_gone_to_another(self, client: liftenvelope.Client, stream: str) -> None:
        await publish(client, stream, 0, 40)
        async with client.consumer(stream, stream, auto_offset="earliest") as consumer:
            messages = [await anext(consumer) for _ in range(40)]
            second = Member(client, stream)
            await until(lambda: len(consumer.assignment) == 2 and not consumer._leaving)
            gone = next(m for m in messages if (stream, m.partition) not in consumer.assignment)
            with pytest.raises(FencedError):
                await consumer.commit(gone)
            await second.end()

    async def test_a_late_checkpoint_does_not_move_the_group_back(
        self, client: liftenvelope.Client, stream: str
    ) -> None:
        await publish(client, stream, 0, 40)
        async with client.consumer(stream, stream, auto_offset="earliest") as consumer:
            # The server may lose a cursor that is set while it reads it first: see docs/client-cursors.md.
            partitions: set[int] = set()
            while len(partitions) < PARTITIONS:
                partitions.add((await anext(consumer)).partition)
            # Somebody else is further by now.
            for number in range(PARTITIONS):
                await client.set_cursor(f"__group:{stream}", stream, number, 9)
            await consumer.commit()
        assert await cursors(client, stream) == [9] * PARTITIONS

    async def test_slow_work_does_not_end_the_membership(
        self, client: liftenvelope.Client, stream: str
    ) -> None:
        await publish(client, stream, 0, 4)
        async with client.consumer(stream, stream, auto_offset="earliest") as consumer:
            epoch = consumer.epoch
            for _ in range(4):
                await anext(consumer)
            await asyncio.sleep(
                TIMEOUT + 1
            )  # longer than the consumer timeout: what a user may do in the loop
            await consumer.commit()
            assert consumer.epoch == epoch
        assert await cursors(client, stream) == [0] * PARTITIONS


MEMBER = """
import asyncio, sys, warnings
import liftenvelope
async def main(address, stream, block):
    warnings.simplefilter("ignore")
    async with liftenvelope.connect(address) as client:
        async with client.consumer(stream, stream, consumer_id="child", auto_offset="earliest",
                                   auto_commit_interval=0.2) as consumer:
            count = 0
            async for message in consumer:
                print(message.partition, message.offset, flush=True)
                count += 1
                if count == block:
                    sys.stdin.readline()  # blocks the loop
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


class Child:
    """A member in a process of its own, which prints what it gets."""

    def __init__(self, folder: Path, address: str, stream: str, block: int = -1) -> None:
        script = folder / "member.py"
        script.write_text(textwrap.dedent(MEMBER), "utf-8")
        self.output = folder / "out.txt"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(script), address, stream, str(block)],
                stdin=subprocess.PIPE,
                stdout=out,
                env=dict(os.environ),
            )

    def places(self) -> list[tuple[int, int]]:
        """Partition and offset of each message that it got."""
        assert self.process.poll() in (None, -signal.SIGKILL)
        lines = self.output.read_text("utf-8").splitlines(keepends=True)
        return [(int(a), int(b)) for a, b in (line.split() for line in lines if line.endswith("\n"))]

    def unblock(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def start_child(liftbridge_server: LiftbridgeCluster, tmp_path: Path) -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(stream: str, block: int = -1) -> Child:
        children.append(Child(tmp_path, liftbridge_server.addresses[0], stream, block))
        return children[-1]

    yield start
    for child in children:
        child.end()


def places(member: Member) -> set[tuple[int, int]]:
    return {(message.partition, message.offset) for message in member.messages}


EVERY_PLACE = {count: {(n % PARTITIONS, n // PARTITIONS) for n in range(count)} for count in (80, 120)}


class TestProcesses:
    async def test_killed(
        self, client: liftenvelope.Client, stream: str, start_child: Callable[..., Child]
    ) -> None:
        await publish(client, stream, 0, 40)
        child = start_child(stream)
        await until(lambda: len(set(child.places())) == 40)
        member = Member(client, stream)
        await until(lambda: member.holds(2))
        await publish(client, stream, 40, 80)
        await until(lambda: set(child.places()) | places(member) == EVERY_PLACE[80])
        child.end()
        await publish(client, stream, 80, 120)
        await until(lambda: member.holds(PARTITIONS))
        await until(lambda: set(child.places()) | places(member) == EVERY_PLACE[120])
        await member.end()
        assert await cursors(client, stream) == [29] * PARTITIONS

    @pytest.mark.parametrize("how", ["stopped", "blocked"])
    async def test_hangs_and_comes_back(
        self, client: liftenvelope.Client, stream: str, start_child: Callable[..., Child], how: str
    ) -> None:
        await publish(client, stream, 0, 40)
        child = start_child(stream, 40 if how == "blocked" else -1)
        await until(lambda: len(child.places()) >= 40)
        if how == "stopped":
            child.process.send_signal(signal.SIGSTOP)
        # Whoever is silent for longer than the consumer timeout loses its place.
        member = Member(client, stream)
        await until(lambda: member.holds(PARTITIONS))
        await publish(client, stream, 40, 80)
        await until(lambda: places(member) >= EVERY_PLACE[80] - EVERY_PLACE_40)
        await member.consumer.commit()
        assert await cursors(client, stream) == [19] * PARTITIONS
        if how == "stopped":
            child.process.send_signal(signal.SIGCONT)
        else:
            child.unblock()
        await until(lambda: member.holds(2))  # it has joined anew
        assert await cursors(client, stream) == [19] * PARTITIONS
        before = len(child.places())
        await publish(client, stream, 80, 120)
        await until(lambda: set(child.places()) | places(member) == EVERY_PLACE[120])
        assert len(child.places()) > before
        await member.end()


EVERY_PLACE_40 = {(n % PARTITIONS, n // PARTITIONS) for n in range(40)}


class TestTrouble:
    async def test_a_zombie_of_a_higher_epoch(self, liftbridge_server: LiftbridgeCluster, name: str) -> None:
        """A group that was made anew begins at epoch 0; a reader from before it goes before its members."""
        events: list[ClientEvent] = []
        async with liftenvelope.connect(
            liftbridge_server.addresses, ack_wait=60, on_event=events.append
        ) as client:
            await client.create_stream(name, name)
            await client.publish(name, b"0")
            zombie = client._subscriptions.subscribe_for_group(
                name, 0, "earliest", GroupIdentity(name, 1_000, "zombie")
            )
            await zombie.open()
            async with client.consumer(name, name, auto_offset="earliest") as consumer:
                waiting = asyncio.create_task(anext(consumer))
                await until(lambda: any(isinstance(event, GroupPartitionFenced) for event in events))
                assert not waiting.done()
                await zombie.close()
                assert (await waiting).value == b"0"
            fenced = [event for event in events if isinstance(event, GroupPartitionFenced)]
            assert (fenced[0].stream, fenced[0].epoch, fenced[0].attempts) == (name, 0, 1)
            assert len([event for event in events if isinstance(event, MetadataRefreshed)]) < 100

    async def test_a_zombie_is_warned_of_in_the_end(self, client: liftenvelope.Client, stream: str) -> None:
        zombie = client._subscriptions.subscribe_for_group(
            stream, 0, "earliest", GroupIdentity(stream, 1_000, "zombie")
        )
        await zombie.open()
        async with client.consumer(stream, stream):
            with pytest.warns(LiftEnvelopeWarning, match="must be stopped") as warned:
                await until(lambda: any("must be stopped" in str(one.message) for one in warned))
        await zombie.close()

    async def test_thrown_out_joins_anew(self, liftbridge_server: LiftbridgeCluster, name: str) -> None:
        events: list[ClientEvent] = []
        async with liftenvelope.connect(
            liftbridge_server.addresses, ack_wait=60, on_event=events.append
        ) as client:
            await client.create_stream(name, name, partitions=PARTITIONS)
            member = Member(client, name, consumer_id="me")
            await publish(client, name, 0, 20)
            await until(lambda: len(member.messages) == 20)
            request = api_pb2.LeaveConsumerGroupRequest(groupId=name, consumerId="me")
            answer = api_pb2.LeaveConsumerGroupResponse
            await client._context.call(
                "LeaveConsumerGroup", request, answer, client._context.deadline(None), "test"
            )
            await until(lambda: [what for what, _ in member.calls] == ["assigned", "revoked", "assigned"])
            await publish(client, name, 20, 40)
            await until(lambda: len(member.values) == 40)
            await member.end()
            check(member.messages, 40)
        expired = [event for event in events if isinstance(event, GroupMemberExpired)]
        assert [(event.group, event.consumer_id) for event in expired] == [(name, "me")]

    async def test_server_gone_and_back(self, liftbridge_server: LiftbridgeCluster, name: str) -> None:
        address = liftbridge_server.addresses[0]
        with FaultProxy(address) as proxy:
            async with (
                liftenvelope.connect(liftbridge_server.addresses) as straight,
                liftenvelope.connect(
                    proxy.address, address_map={address: proxy.address}, on_event=lambda _: None
                ) as client,
            ):
                await straight.create_stream(name, name, partitions=PARTITIONS)
                member = Member(client, name)
                await publish(straight, name, 0, 40)
                await until(lambda: len(member.messages) == 40)
                proxy.refuse()
                proxy.cut()
                await publish(straight, name, 40, 80)
                await asyncio.sleep(TIMEOUT + 1)  # longer than the consumer timeout
                proxy.accept()
                await until(lambda: len(member.values) == 80)
                await until(lambda: member.holds(PARTITIONS))
                await member.end()
                check(member.messages, 80)
                assert await cursors(straight, name) == [19] * PARTITIONS

    async def test_close_with_the_server_gone(self, liftbridge_server: LiftbridgeCluster, name: str) -> None:
        address = liftbridge_server.addresses[0]
        with FaultProxy(address) as proxy:
            client = liftenvelope.connect(
                proxy.address, address_map={address: proxy.address}, timeout=5.0, on_event=lambda _: None
            )
            async with client:
                await client.create_stream(name, name, timeout=60)
                await client.publish(name, b"0")
                consumer = await client.consumer(name, name, auto_offset="earliest").open()
                await anext(consumer)
                proxy.refuse()
                proxy.cut()
                begun = time.monotonic()
                await consumer.close()  # nothing was processed
                assert time.monotonic() - begun < 30
                await consumer.close()
                with pytest.raises(StopAsyncIteration):
                    await anext(consumer)
            assert len(asyncio.all_tasks()) == 1

    async def test_no_server_at_all(self, name: str) -> None:
        async with asyncio.timeout(60):
            client = liftenvelope.connect("127.0.0.1:1", timeout=0.5)
            with pytest.raises(TransportError):
                await client.consumer(name, name).open()
            await client.close()
            assert len(asyncio.all_tasks()) == 1

    async def test_closed_with_its_client(self, liftbridge_server: LiftbridgeCluster, name: str) -> None:
        async with liftenvelope.connect(liftbridge_server.addresses, ack_wait=60) as another:
            await another.create_stream(name, name)
            await another.publish(name, b"0")
            await another.publish(name, b"1")
            client = await liftenvelope.connect(liftbridge_server.addresses)
            consumer: Consumer = await client.consumer(name, name, auto_offset="earliest").open()
            await anext(consumer)
            await anext(consumer)
            waiting = asyncio.create_task(anext(consumer))
            await asyncio.sleep(0)
            await client.close()
            with pytest.raises(StopAsyncIteration):
                await waiting
            # What was processed is stored, and the group is left.
            assert await another.fetch_cursor(f"__group:{name}", name, 0) == 1
            assert not (await another.fetch_metadata(streams=[name], groups=[name])).groups

    async def test_a_warning_that_is_an_error_is_raised(
        self, client: liftenvelope.Client, stream: str
    ) -> None:
        async with client.consumer(stream, stream, consumer_id="me") as consumer:
            request = api_pb2.LeaveConsumerGroupRequest(groupId=stream, consumerId="me")
            answer = api_pb2.LeaveConsumerGroupResponse
            await client._context.call(
                "LeaveConsumerGroup", request, answer, client._context.deadline(None), "test"
            )
            with pytest.raises(LiftEnvelopeWarning, match="no longer a member"):
                await anext(consumer)

    async def test_cancelled_while_it_closes(self, client: liftenvelope.Client, stream: str) -> None:
        hangs = asyncio.Event()

        async def revoked(_: list[tuple[str, int]]) -> None:
            hangs.set()
            await asyncio.Event().wait()

        consumer = await client.consumer(stream, stream, on_revoked=revoked).open()
        closing = asyncio.create_task(consumer.close())
        await hangs.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await consumer.close()
        assert not (await client.fetch_metadata(streams=[stream], groups=[stream])).groups

    async def test_one_task_at_a_time(self, client: liftenvelope.Client, stream: str) -> None:
        async with client.consumer("g", [stream], auto_offset="earliest") as consumer:
            first = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0)
            with pytest.raises(UsageError, match="another task waits"):
                await anext(consumer)
            await client.publish(stream, b"for the first", partition=0)
            assert (await first).value == b"for the first"

    async def test_cancelled_while_it_waits(self, client: liftenvelope.Client, stream: str) -> None:
        member = Member(client, stream)
        await until(lambda: member.holds(PARTITIONS))
        member.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await member.task
        assert not (await client.fetch_metadata(streams=[stream], groups=[stream])).groups

    async def test_server_restarted(self, name: str) -> None:
        with run_liftbridge() as cluster:
            async with liftenvelope.connect(cluster.addresses, on_event=lambda _: None) as client:
                await client.create_stream(name, name, partitions=PARTITIONS)
                member = Member(client, name)
                await publish(client, name, 0, 40)
                await until(lambda: len(member.messages) == 40)
                await asyncio.to_thread(cluster.stop)
                await asyncio.to_thread(cluster.start)
                await publish_patiently(client, name, 40, 80)
                await until(lambda: len(member.values) == 80)
                await member.end()
                check(member.messages, 80)
