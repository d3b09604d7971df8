"""Consumers and checkpointers of SCRIPTED brokers: hanging calls, cancelled reads, a close while joining."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from liftenvelope._pb import api_pb2
from liftenvelope.client._brokers import cluster as cluster_module
from liftenvelope.client._consuming import member as member_module
from liftenvelope.client._events import ClientEvent, CursorAheadOfStream
from liftenvelope.client.retries import RETRIES
from liftenvelope.consumers.shell import TURN
from liftenvelope.errors import CallTimeoutError, TransportError
from liftenvelope.rpc.server import ServerCall
from tests.unit.scripted_broker import ScriptedBroker, client_of, scripted, stall, until

pytestmark = pytest.mark.usefixtures("loop_errors")

SECOND_NS = 1_000_000_000


class Group:
    """Coordinator of one group that assigns the same partitions of stream ``foo`` to every member."""

    def __init__(self, broker: ScriptedBroker, timeout: int = 30, partitions: Sequence[int] = (0,)) -> None:
        self.partitions = partitions
        self.members: set[str] = set()
        self.timeout = timeout
        self.is_held = asyncio.Event()
        self._broker = broker
        self.is_joining = asyncio.Event()
        self.may_join = asyncio.Event()
        self.may_join.set()
        self.joins: set[asyncio.Task[None]] = set()
        self._may_answer = asyncio.Event()
        self._may_answer.set()
        broker.always("JoinConsumerGroup", self._join)
        broker.always("LeaveConsumerGroup", self._leave)
        broker.always("FetchConsumerGroupAssignments", self._assign)

    def hold(self) -> None:
        self._may_answer.clear()

    def release(self) -> None:
        self._may_answer.set()

    async def _join(self, call: ServerCall, request: bytes) -> bytes:
        consumer = api_pb2.JoinConsumerGroupRequest.FromString(request).consumerId
        join = asyncio.create_task(self._carry_out(consumer))  # also if the call is cancelled, as servers do
        self.joins.add(join)
        join.add_done_callback(self.joins.discard)
        await asyncio.wait({join})
        return api_pb2.JoinConsumerGroupResponse(
            coordinator=self._broker.id,
            consumerTimeout=self.timeout * SECOND_NS,
            coordinatorTimeout=self.timeout * SECOND_NS,
        ).SerializeToString()

    async def _carry_out(self, consumer: str) -> None:
        self.is_joining.set()
        await self.may_join.wait()
        self.members.add(consumer)

    async def _leave(self, call: ServerCall, request: bytes) -> bytes:
        self.members.discard(api_pb2.LeaveConsumerGroupRequest.FromString(request).consumerId)
        return b""

    async def _assign(self, call: ServerCall, request: bytes) -> bytes:
        if not self._may_answer.is_set():
            self.is_held.set()
            await self._may_answer.wait()
        answer = api_pb2.FetchConsumerGroupAssignmentsResponse()
        answer.assignments.add(stream="foo", partitions=self.partitions)
        return answer.SerializeToString()

    async def join_in_silence(self, call: ServerCall, request: bytes) -> None:
        """Join, and answer at the deadline only, as Liftbridge 1.9.0 does when it misses a result of Raft."""
        await self._join(call, request)
        await asyncio.Event().wait()


@asynccontextmanager
async def cluster() -> AsyncIterator[ScriptedBroker]:
    """A broker with a stream of three messages, and cursors."""
    async with scripted() as (broker,):
        broker.log(*range(3))
        broker.log(stream="__cursors")
        yield broker


async def test_flush_ends_at_its_timeout_while_an_earlier_write_hangs() -> None:
    async with cluster() as broker, client_of([broker], timeout=600.0, on_event=lambda _: None) as client:
        checkpointer = client.checkpointer("me", "foo", every_messages=1)
        broker.always("FetchCursor", stall)
        async with asyncio.timeout(60), checkpointer as checkpoints:
            checkpoints.processed(0, 1)
            await until(lambda: broker.calls["FetchCursor"] == 1)
            for call in (checkpoints.flush(timeout=0.2), checkpoints.reset(0, timeout=0.2)):
                with pytest.raises(CallTimeoutError, match="an earlier write has not ended"):
                    await call
            broker.always("FetchCursor", api_pb2.FetchCursorResponse(offset=-1))
            broker.drop()


async def test_commit_ends_at_its_timeout_while_the_coordinator_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member_module, "_LONGEST_ATTEMPT", 600.0)
    async with cluster() as broker, client_of([broker], timeout=600.0, on_event=lambda _: None) as client:
        group = Group(broker, timeout=900)
        async with (
            asyncio.timeout(60),
            client.consumer("g", "foo", auto_offset="earliest", auto_commit_interval=None) as consumer,
        ):
            message = await anext(consumer)
            group.hold()
            with pytest.raises(CallTimeoutError, match=r"did not answer in 0.2 s"):
                await consumer.commit(message, timeout=0.2)  # a heartbeat may take longer than the test
            group.release()
            await consumer.commit(message)
        assert [request.offset for request in broker.read("SetCursor")] == [0]
        assert not group.members


@pytest.mark.parametrize("ended_by", ["cancel", "close"])
async def test_consumer_that_is_given_up_while_it_joins_leaves_no_member(ended_by: str) -> None:
    async with cluster() as broker, client_of([broker]) as client:
        group = Group(broker)
        group.may_join.clear()
        consumer = client.consumer("g", "foo", auto_offset="earliest")
        opening = asyncio.create_task(consumer.open())
        await group.is_joining.wait()
        closing = asyncio.create_task(consumer.close()) if ended_by == "close" else None
        if closing is None:
            opening.cancel()
        for _ in range(20):  # a leave that does not wait for the join would overtake these calls
            await client.fetch_metadata()
        group.may_join.set()
        with pytest.raises(asyncio.CancelledError if closing is None else TransportError):
            await opening
        if closing is not None:
            await closing
        await until(lambda: not group.joins)
        assert group.members == set()


async def test_consumer_that_is_given_up_leaves_although_its_join_is_not_answered() -> None:
    async with cluster() as broker, client_of([broker], timeout=1.0) as client:
        group = Group(broker)
        group.may_join.clear()
        opening = asyncio.create_task(client.consumer("g", "foo").open())
        await group.is_joining.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert broker.calls["LeaveConsumerGroup"] == 1
        group.may_join.set()


async def test_lag_asks_for_all_partitions_at_once() -> None:
    partitions = {0, 1, 2}
    async with cluster() as broker, client_of([broker]) as client:
        Group(broker, partitions=sorted(partitions))
        for number in (1, 2):
            broker.log(*range(number), partition=number)
        broker.always("FetchCursor", api_pb2.FetchCursorResponse(offset=-1))
        asked: set[int] = set()

        async def answer_when_all_are_asked(call: ServerCall, request: bytes) -> bytes:
            asked.add(api_pb2.FetchPartitionMetadataRequest.FromString(request).partition)
            await until(lambda: asked == partitions)
            return await broker._partition(call, request)

        async with client.consumer("g", "foo", auto_offset="earliest", auto_commit_interval=None) as consumer:
            await until(lambda: broker.calls["Subscribe"] == len(partitions))  # they have asked before
            broker.always("FetchPartitionMetadata", answer_when_all_are_asked)
            lag = await consumer.lag(timeout=20)
            assert lag == {("foo", 0): 3, ("foo", 1): 1, ("foo", 2): 2}


async def test_close_leaves_the_group_while_cursors_hang() -> None:
    async with cluster() as broker, client_of([broker], timeout=2.0, on_event=lambda _: None) as client:
        group = Group(broker)
        consumer = client.consumer("g", "foo", auto_offset="earliest", auto_commit_interval=None)
        await consumer.open()
        for _ in range(2):
            await anext(consumer)
        broker.always("FetchCursor", stall)
        with pytest.raises(CallTimeoutError):
            await consumer.close()
        assert not group.members


@pytest.mark.parametrize("late", [(9, 12), (6, 7)])
async def test_cancelled_batch_gives_back_every_chunk_of_a_compacted_stream(late: tuple[int, int]) -> None:
    async with cluster() as broker, client_of([broker]) as client:
        Group(broker)
        log = broker.log(0, 5)
        async with asyncio.timeout(60), client.consumer("g", "foo", auto_offset="earliest") as consumer:
            reading = asyncio.ensure_future(anext(consumer.batches(1000, max_wait=600)))
            await until(lambda: consumer.position("foo", 0) == 6)
            log.append(*late)
            await until(lambda: consumer.position("foo", 0) == late[1] + 1)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert consumer.position("foo", 0) == 0
            assert [(await anext(consumer)).offset for _ in range(4)] == [0, 5, *late]


async def test_cancelled_batch_gives_back_only_what_came_after_a_seek() -> None:
    async with cluster() as broker, client_of([broker]) as client:
        Group(broker)
        log = broker.log(0, 1)
        async with asyncio.timeout(60), client.consumer("g", "foo", auto_offset="earliest") as consumer:
            reading = asyncio.ensure_future(anext(consumer.batches(1000, max_wait=600)))
            await until(lambda: consumer.position("foo", 0) == 2)
            consumer.seek("foo", 0, 2)
            log.append(2, 3)
            await until(lambda: consumer.position("foo", 0) == 4)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert [(await anext(consumer)).offset for _ in range(2)] == [2, 3]


async def test_cursor_is_kept_if_the_leader_learns_of_its_messages_late() -> None:
    events: list[ClientEvent] = []
    async with cluster() as broker, client_of([broker], events=events) as client:
        Group(broker)
        broker.always("FetchCursor", api_pb2.FetchCursorResponse(offset=1))
        early = api_pb2.FetchPartitionMetadataResponse()
        early.metadata.leader, early.metadata.newestOffset, early.metadata.highWatermark = broker.id, 0, 0
        broker.next("FetchPartitionMetadata", early, early)
        async with (
            asyncio.timeout(60),
            client.consumer("g", "foo", auto_offset="earliest", auto_commit_interval=None) as consumer,
        ):
            assert (await anext(consumer)).offset == 2
        assert not broker.read("SetCursor")
    assert not [event for event in events if isinstance(event, CursorAheadOfStream)]


@pytest.mark.parametrize("resubscribe_wait", [0, 30], ids=["lost", "regained"])
async def test_stream_that_was_created_again_is_read_from_its_start(resubscribe_wait: int) -> None:
    events: list[ClientEvent] = []
    options = {"resubscribe_wait": resubscribe_wait, "events": events}
    async with cluster() as broker, client_of([broker], **options) as client:
        Group(broker)
        broker.created_ns = 1
        broker.always("FetchCursor", api_pb2.FetchCursorResponse(offset=1))
        async with (
            asyncio.timeout(60),
            client.consumer("g", "foo", auto_offset="earliest", auto_commit_interval=None) as consumer,
        ):
            assert (await anext(consumer)).offset == 2
            broker.created_ns = 2
            broker.log(*range(10))
            broker.drop()
            assert [(await anext(consumer)).offset for _ in range(10)] == list(range(10))
        assert broker.read("SetCursor")[0].offset == -1
    ahead = [event for event in events if isinstance(event, CursorAheadOfStream)]
    assert [(event.offset, event.newest_offset) for event in ahead] == [(1, 9)]


@pytest.mark.parametrize("in_batches", [False, True])
async def test_other_tasks_run_while_a_caller_works_without_awaiting(in_batches: bool) -> None:
    async with cluster() as broker, client_of([broker]) as client:
        Group(broker)
        async with asyncio.timeout(60), client.consumer("g", "foo", auto_offset="earliest") as consumer:
            batches = consumer.batches(1)
            reader = consumer._readers["foo", 0]
            await until(lambda: len(reader._messages) == 3)
            ran = asyncio.Event()
            for _ in range(2):
                asyncio.get_running_loop().call_soon(ran.set)
                time.sleep(2 * TURN)  # work that blocks the event loop
                await anext(batches if in_batches else consumer)
                assert ran.is_set()
                ran.clear()


async def test_consumer_closed_while_it_joins_leaves_the_group() -> None:
    async with cluster() as broker, client_of([broker], on_event=lambda _: None) as client:
        group = Group(broker)
        group.hold()
        consumer = client.consumer("g", "foo")
        opening = asyncio.create_task(consumer.open())
        await group.is_held.wait()
        await consumer.close()
        group.members.add(consumer.consumer_id)  # the cluster carries out a join that was on its way
        group.release()
        with pytest.raises(TransportError, match="the consumer was closed while it was opened"):
            await opening
        assert not group.members
        assert not [task for task in asyncio.all_tasks() if "ConsumerMember" in repr(task.get_coro())]


async def test_join_that_is_done_but_not_answered_is_undone_and_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = {
        name: replace(rule, attempt_timeout=min(rule.attempt_timeout or 60.0, 0.5))
        for name, rule in RETRIES.items()
    }
    monkeypatch.setattr(cluster_module, "RETRIES", rules)
    async with cluster() as broker, client_of([broker], timeout=60.0) as client:
        group = Group(broker)
        broker.next("JoinConsumerGroup", group.join_in_silence)
        async with asyncio.timeout(40), client.consumer("g", ["foo"], auto_offset="earliest") as consumer:
            assert [(await anext(consumer)).offset for _ in range(3)] == [0, 1, 2]
        assert broker.calls["JoinConsumerGroup"] >= 2
        assert broker.calls["LeaveConsumerGroup"] >= 2
