"""Subscriptions on brokers that are scripted: losses and ends that no real server makes on demand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liftenvelope._deadlines import Deadline
from liftenvelope._pb import api_pb2
from liftenvelope.client._brokers import cluster as cluster_module
from liftenvelope.client._events import (
    CursorAheadOfStream,
    StoppedAtHighWatermark,
    SubscriptionLost,
    SubscriptionResumed,
)
from liftenvelope.client._reading import ahead
from liftenvelope.client._reading import read_start as read_start_module
from liftenvelope.client._reading import subscription as subscription_module
from liftenvelope.client.metadata import BrokerInfo
from liftenvelope.client.partition_read import GroupIdentity
from liftenvelope.client.positions import Cursor, Timestamp
from liftenvelope.errors import (
    FencedError,
    OffsetOutOfRangeError,
    PartitionPausedError,
    PermissionDeniedError,
    ReadonlyPartitionError,
    StreamDeletedError,
    SubscriptionLostError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.rpc.server import ServerCall
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.unit.scripted_broker import (
    HANDSHAKE,
    ScriptedBroker,
    StandingStill,
    TimesLost,
    answers,
    client_of,
    message,
    offsets,
    patiently,
    read,
    scripted,
    until,
)

pytestmark = pytest.mark.usefixtures("loop_errors", "patient_attempts")

#: Retention closes a segment before it takes it off the list.
CLOSED = RpcError(StatusCode.INTERNAL, "Failed to create stream reader: segment has been closed")
CLEANED = RpcError(StatusCode.UNKNOWN, "segment has been closed")
NOT_LEADER = RpcError(StatusCode.FAILED_PRECONDITION, "Server not partition leader")
#: Sent by the gateway for a call that it stops serving. Liftbridge 1.9.0 closes the connection instead.
CANCELLED = RpcError(StatusCode.CANCELLED, "the server stopped serving the call")


def id_of(broker: BrokerInfo) -> str:
    return broker.id


def starts(broker: ScriptedBroker) -> list[int]:
    """Return the start offset of each Subscribe call."""
    return [request.startOffset for request in broker.read("Subscribe")]


class TestReading:
    async def test_to_the_latest(self) -> None:
        async with scripted() as (broker,):
            broker.log(*range(10))
            async with client_of([broker]) as client:
                assert await read(client, start="earliest", stop="latest") == list(range(10))
                assert await read(client, start=3, stop=5) == [3, 4, 5]
                assert await read(client, start="latest", stop="latest") == [9]

    async def test_reading_an_empty_partition_makes_no_subscribe_call(self) -> None:
        async with scripted() as (broker,):
            broker.log()
            async with client_of([broker]) as client:
                assert await read(client, start="earliest", stop="latest") == []
            assert broker.calls["Subscribe"] == 0

    async def test_new_messages_as_they_come(self) -> None:
        async with scripted() as (broker,):
            log = broker.log(0, 1)
            async with client_of([broker]) as client, client.subscribe("foo") as reader:
                assert (reader.position, await reader.next(0.02)) == (2, None)
                log.add(2)
                assert await offsets(reader, 2) == [2, 3]
                assert reader.positions == {("foo", 0): 4}

    async def test_sees_no_deadline(self) -> None:
        # Servers can end a call whose time is up with OK, which looks like a fence.
        seen: list[float | None] = []

        async def note(call: Any, request: bytes) -> None:
            seen.append(call.timeout)
            await call.send([HANDSHAKE])
            raise RpcError(StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached")

        async with scripted() as (broker,):
            broker.log(0)
            broker.always("Subscribe", note)
            async with client_of([broker]) as client:
                assert await read(client, start=0, stop=0) == []
        assert seen == [None]

    async def test_the_high_watermark_is_where_the_latest_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(read_start_module, "_COMMIT_ANSWERS", 2)
        events: list[Any] = []
        async with scripted() as (broker,):
            broker.log(*range(6), high_watermark=3)
            async with client_of([broker], events=events) as client:
                assert await read(client, start="earliest", stop="latest") == [0, 1, 2, 3]
        assert [event for event in events if isinstance(event, StoppedAtHighWatermark)] == [
            StoppedAtHighWatermark("foo", 0, 3, 5)
        ]

    async def test_the_high_watermark_is_waited_for(self) -> None:
        events: list[Any] = []
        async with scripted() as (broker,):
            log = broker.log(*range(6), high_watermark=3)
            async with client_of([broker], events=events) as client:
                reading = asyncio.create_task(read(client, start="earliest", stop="latest"))
                await until(lambda: broker.calls["FetchPartitionMetadata"] > 1)
                log.high_watermark = 5
                assert await reading == list(range(6))
        assert not [event for event in events if isinstance(event, StoppedAtHighWatermark)]

    async def test_nothing_visible_ends_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(read_start_module, "_COMMIT_ANSWERS", 1)
        events: list[Any] = []
        async with scripted() as (broker,):
            broker.log(*range(6), high_watermark=-1)
            async with client_of([broker], events=events) as client:
                assert await read(client, start="earliest", stop="latest") == []
        assert StoppedAtHighWatermark("foo", 0, -1, 5) in events


class TestCursors:
    """A subscription starts after a cursor."""

    async def begun(self, cursor: int, **options: Any) -> tuple[list[int], list[Any]]:
        """Return the offsets read of messages 0 to 5, and the events."""
        events: list[Any] = []
        async with scripted() as (broker,):
            broker.log(*range(6))
            broker.streams["__cursors"] = ["b0"]
            broker.always("FetchCursor", api_pb2.FetchCursorResponse(offset=cursor))
            async with client_of([broker], events=events) as client:
                found = await read(client, start=Cursor("c", **options), stop="latest")
        return found, [event for event in events if isinstance(event, CursorAheadOfStream)]

    async def test_after_its_message(self) -> None:
        assert await self.begun(2) == ([3, 4, 5], [])
        assert await self.begun(0) == ([1, 2, 3, 4, 5], [])
        assert await self.begun(5) == ([], [])

    @pytest.mark.parametrize(
        ("default", "found"), [("earliest", [0, 1, 2, 3, 4, 5]), ("latest", [5]), ("new", [])]
    )
    async def test_where_there_is_none(self, default: str, found: list[int]) -> None:
        assert await self.begun(-1, default=default) == (found, [])

    async def test_cursor_of_an_earlier_stream_falls_back_to_the_default(self) -> None:
        found, events = await self.begun(6, default="latest")
        assert (found, events) == ([5], [CursorAheadOfStream("foo", 0, "c", 6, 5, "latest")])

    async def test_short_timeout_leaves_time_to_fall_back_to_the_default(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ahead, "_CERTAIN", 3_600.0)
        monkeypatch.setattr(ahead, "_SPARE", 9.0)
        async with scripted() as (broker,):
            broker.log(*range(6))
            broker.streams["__cursors"] = ["b0"]
            broker.always("FetchCursor", api_pb2.FetchCursorResponse(offset=6))
            async with client_of([broker], timeout=10, events=[]) as client:
                assert await read(client, start=Cursor("c", default="latest"), stop="latest") == [5]

    async def test_all_partitions_look_for_three_seconds_together(self) -> None:
        async with scripted() as (broker,):
            for partition in range(20):
                broker.log(*range(6), partition=partition)
            broker.streams["__cursors"] = ["b0"]
            broker.always("FetchCursor", api_pb2.FetchCursorResponse(offset=6))
            async with client_of([broker], events=[]) as client, asyncio.timeout(50):
                start = Cursor("c", default="latest")
                assert await read(client, start=start, stop="latest", partition="all") == [5] * 20

    async def test_leader_learns_of_its_messages_late(self) -> None:
        events: list[Any] = []
        async with scripted() as (broker,):
            broker.log(*range(6))
            broker.streams["__cursors"] = ["b0"]
            broker.always("FetchCursor", api_pb2.FetchCursorResponse(offset=4))
            early = api_pb2.FetchPartitionMetadataResponse()
            early.metadata.leader, early.metadata.newestOffset, early.metadata.highWatermark = "b0", 2, 2
            broker.next("FetchPartitionMetadata", early, early)
            async with client_of([broker], events=events) as client:
                assert await read(client, start=Cursor("c", default="new"), stop="latest") == [5]
        assert not [event for event in events if isinstance(event, CursorAheadOfStream)]


class TestReplicas:
    async def test_may_serve_if_that_is_wanted(self) -> None:
        async with scripted(2) as (leader, replica):
            leader.log(*range(4))
            replica.logs["foo", 0] = leader.logs["foo", 0]
            leader.isr = replica.isr = ["b0", "b1"]
            replica.streams["foo"] = ["b0"]
            async with client_of(
                [leader, replica], broker_selection=lambda known: max(known, key=id_of)
            ) as client:
                assert await read(client, start="earliest", stop=3, read_isr_replica=True) == [0, 1, 2, 3]
                assert (leader.calls["Subscribe"], replica.calls["Subscribe"]) == (0, 1)
                assert replica.read("Subscribe")[0].readISRReplica
                assert await read(client, start="earliest", stop=3) == [0, 1, 2, 3]
                assert (leader.calls["Subscribe"], replica.calls["Subscribe"]) == (1, 1)


class TestUse:
    async def test_opened_first_and_once(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            async with client_of([broker]) as client:
                reader = client.subscribe("foo")
                with pytest.raises(UsageError, match="open the subscription first"):
                    await reader.next()
                reader = client.subscribe("foo")
                async with reader:
                    with pytest.raises(UsageError, match="opened before"):
                        await reader.open()

    @pytest.mark.parametrize(
        ("kind", "options"),
        [
            (UsageError, {"partition": -1}),
            (UsageTypeError, {"partition": "every"}),
            (UsageTypeError, {"partition": True}),
            (UsageError, {"start": -1}),
            (UsageError, {"start": "begin"}),
            (UsageError, {"stop": "end"}),
            (UsageError, {"start": 5, "stop": 4}),
            (UsageError, {"reverse": True, "start": "earliest"}),
            (UsageError, {"reverse": True, "stop": "latest"}),
            (UsageTypeError, {"reverse": "no"}),
            (UsageTypeError, {"resume": 1}),
            (UsageTypeError, {"read_isr_replica": None}),
        ],
    )
    async def test_arguments(self, kind: type[Exception], options: dict[str, Any]) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            with pytest.raises(kind):
                client.subscribe("foo", **options)

    @pytest.mark.parametrize(
        ("method", "options"),
        [
            ("batches", {"max_messages": 0}),
            ("batches", {"max_messages": True}),
            ("batches", {"max_wait": -1}),
            ("arrow_batches", {"max_rows": 0}),
            ("arrow_batches", {"max_wait": float("nan")}),
            ("arrow_batches", {"max_bytes": 0}),
            ("arrow_batches", {"max_bytes": (1 << 30) + 1}),
        ],
    )
    async def test_arguments_of_lists(self, method: str, options: dict[str, Any]) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            async with client_of([broker]) as client, client.subscribe("foo") as reader:
                with pytest.raises(UsageError):
                    await anext(getattr(reader, method)(**options))

    async def test_next_takes_no_negative_time(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            async with client_of([broker]) as client, client.subscribe("foo") as reader:
                with pytest.raises(
                    UsageError, match="timeout must be a finite number of seconds, 0 or more, got -1"
                ):
                    await reader.next(-1)
                assert await reader.next(0) is None


class TestLoss:
    async def test_goes_on_after_the_last_message(self) -> None:
        events: list[Any] = []
        async with scripted() as (broker,):
            log = broker.log(*range(5))
            async with (
                client_of([broker], events=events) as client,
                client.subscribe("foo", start="earliest") as reader,
            ):
                assert await offsets(reader, 5) == [0, 1, 2, 3, 4]
                broker.drop()
                log.add(2)
                assert await offsets(reader, 2) == [5, 6]
            assert starts(broker) == [0, 5]
            (lost,) = [event for event in events if isinstance(event, SubscriptionLost)]
            assert (lost.stream, lost.partition, lost.position) == ("foo", 0, 5)
            assert SubscriptionResumed("foo", 0, 5, broker.address) in events

    @pytest.mark.parametrize(
        "end",
        [
            None,
            CANCELLED,
            RpcError(StatusCode.UNAVAILABLE, "the gateway is stopping"),
            RpcError(StatusCode.INTERNAL, "no known metadata leader"),
        ],
        ids=["ok", "cancelled", "unavailable", "no leader"],
    )
    async def test_ends_that_nobody_asked_for(self, end: RpcError | None) -> None:
        async with scripted() as (broker,):
            broker.log(*range(6))
            broker.next("Subscribe", answers(HANDSHAKE, message(0), message(1), error=end))
            async with client_of([broker]) as client:
                assert await read(client, start=0, stop=5) == list(range(6))
            assert starts(broker) == [0, 2]

    async def test_loss_fences_a_group_member(self) -> None:
        async with scripted() as (broker,):
            broker.log(*range(6))
            broker.next("Subscribe", answers(HANDSHAKE, message(0), error=None))
            async with client_of([broker]) as client:
                group = GroupIdentity("g", 3, "me")
                async with client._subscriptions.subscribe_for_group("foo", 0, "earliest", group) as reader:
                    assert await offsets(reader, 1) == [0]
                    for _ in range(3):
                        with pytest.raises(FencedError, match=r"foo\[0\]"):
                            await reader.next()
            consumer = broker.read("Subscribe")[0].consumer
            assert (consumer.groupId, consumer.groupEpoch, consumer.consumerId) == ("g", 3, "me")
            assert broker.calls["Subscribe"] == 1

    async def test_loss_before_the_first_new_message_skips_none(self) -> None:
        # What was published while the connection was away counts as new.
        async with scripted() as (broker,):
            log = broker.log(0, 1, 2)
            async with client_of([broker]) as client, client.subscribe("foo") as reader:
                broker.drop()
                log.add(3)
                assert await offsets(reader, 3) == [3, 4, 5]
            assert starts(broker) == [3, 3]

    async def test_open_subscription_survives_goaway(self) -> None:
        async with scripted() as (broker,):
            log = broker.log(*range(3))
            async with client_of([broker]) as client, client.subscribe("foo", start="earliest") as reader:
                assert await offsets(reader, 3) == [0, 1, 2]
                broker.go_away()
                log.add(1)  # what is open goes on
                assert await offsets(reader, 1) == [3]
                assert (await client.fetch_partition_metadata("foo", 0)).newest_offset == 3
            assert broker.calls["Subscribe"] == 1

    async def test_for_good(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 0.0

        class RefusedDeadline(Deadline):
            """Deadline on a clock that only refused calls move."""

            def __init__(self, timeout: float) -> None:
                super().__init__(timeout)
                self._end = now + timeout

            @property
            def left(self) -> float:
                return max(self._end - now, 0.001)

            @property
            def is_over(self) -> bool:
                return now >= self._end

        async def refuse(call: ServerCall, request: bytes) -> None:
            nonlocal now
            now += 10.0
            raise RpcError(StatusCode.UNAVAILABLE, "the gateway is stopping")

        monkeypatch.setattr(subscription_module, "Deadline", RefusedDeadline)
        async with scripted() as (broker,):
            broker.log(*range(3))
            async with (
                client_of([broker], resubscribe_wait=30) as client,
                client.subscribe("foo", start="earliest") as reader,
                asyncio.timeout(60),
            ):
                assert await offsets(reader, 3) == [0, 1, 2]
                broker.always("Subscribe", refuse)
                broker.drop()
                errors = []
                for _ in range(2):
                    with pytest.raises(SubscriptionLostError, match=r"not regained in 30 s") as caught:
                        await reader.next()
                    errors.append(caught.value)
                assert errors[0] is errors[1]
            assert broker.calls["Subscribe"] == 1 + 3

    async def test_without_trying_again(self) -> None:
        async with scripted() as (broker,):
            broker.log(*range(3))
            async with (
                client_of([broker], resubscribe_wait=0) as client,
                client.subscribe("foo", start="earliest") as reader,
            ):
                assert await offsets(reader, 3) == [0, 1, 2]
                broker.drop()
                with pytest.raises(SubscriptionLostError):
                    await reader.next()
            assert broker.calls["Subscribe"] == 1

    async def test_what_came_before_is_handed_out_first(self) -> None:
        async with scripted() as (broker,):
            broker.log(*range(3))  # sent as one piece
            async with (
                client_of([broker], resubscribe_wait=0) as client,
                client.subscribe("foo", start="earliest") as reader,
            ):
                assert await offsets(reader, 1) == [0]
                broker.drop()
                assert await offsets(reader, 2) == [1, 2]
                with pytest.raises(SubscriptionLostError):
                    await reader.next()

    async def test_a_shorter_log_afterwards(self) -> None:
        async with scripted() as (broker,):
            log = broker.log(*range(6))
            async with client_of([broker]) as client, client.subscribe("foo", start="earliest") as reader:
                assert await offsets(reader, 6) == list(range(6))
                log.offsets = [0, 1]
                broker.drop()
                with pytest.raises(OffsetOutOfRangeError) as caught:
                    await reader.next()
                with pytest.raises(OffsetOutOfRangeError):
                    await reader.next()
                error = caught.value
                assert (error.stream, error.partition, error.wanted, error.newest) == ("foo", 0, 6, 1)

    @pytest.mark.parametrize("start", ["new", "latest"])
    async def test_before_the_first_message_when_the_end_was_never_committed(self, start: str) -> None:
        # The leader is lost with what only it had; the next one gives the same offsets to what comes now.
        async with scripted() as (broker,):
            log = broker.log(*range(6), high_watermark=2)
            async with client_of([broker]) as client, client.subscribe("foo", start=start) as reader:
                waiting = asyncio.create_task(offsets(reader, 2))
                await asyncio.sleep(0)
                log.offsets = [0, 1, 2, 3, 4]
                log.high_watermark = 4
                broker.drop()
                assert await waiting == [3, 4]

    async def test_a_shorter_log_is_seen_by_impatient_readers_too(self) -> None:
        async with scripted() as (broker,):
            log = broker.log(*range(6))
            async with client_of([broker]) as client, client.subscribe("foo", start="earliest") as reader:
                assert await offsets(reader, 6) == list(range(6))
                log.offsets = [0, 1]
                broker.drop()
                with pytest.raises(OffsetOutOfRangeError):
                    await patiently(reader)

    async def test_is_regained_by_impatient_readers(self) -> None:
        # Each wait is shorter than the pause before the first attempt.
        events: list[Any] = []
        async with scripted() as (broker,):
            log = broker.log(*range(3))
            async with (
                client_of([broker], events=events) as client,
                client.subscribe("foo", start="earliest") as reader,
            ):
                assert await offsets(reader, 3) == [0, 1, 2]
                broker.drop()
                log.add(1)
                assert await patiently(reader) == 3
        assert len([event for event in events if isinstance(event, SubscriptionLost)]) == 1
        assert len([event for event in events if isinstance(event, SubscriptionResumed)]) == 1

    async def test_to_another_leader(self) -> None:
        async with scripted(2) as (old, new):
            old.log(*range(3))
            new.streams["foo"] = ["b0"]
            async with client_of([old, new]) as client, client.subscribe("foo", start="earliest") as reader:
                assert await offsets(reader, 3) == [0, 1, 2]
                old.logs.clear()
                new.log(*range(5))
                old.streams["foo"] = new.streams["foo"] = ["b1"]
                old.drop()
                assert await offsets(reader, 2) == [3, 4]
            assert starts(new) == [3]

    @pytest.mark.parametrize("reverse", [False, True])
    async def test_leader_that_is_lost_while_the_read_makes_its_next_call(self, reverse: bool) -> None:
        # The next call after a segment was removed, and the second one of a reverse read.
        events: list[Any] = []
        async with scripted(2) as (broker, later):
            broker.log(0, 1)
            later.streams = broker.streams
            if not reverse:
                broker.next("Subscribe", answers(HANDSHAKE, message(0), error=CLEANED))
            options: dict[str, Any] = {"timeout": 3.0, "resubscribe_wait": 60.0, "events": events}
            async with (
                client_of([broker, later], **options) as client,
                client.subscribe("foo", start=int(reverse), reverse=reverse) as reader,
            ):
                broker.always("Subscribe", NOT_LEADER)
                broker.streams["foo"] = [""]  # an election
                assert await offsets(reader, 1) == [int(reverse)]
                reading = asyncio.create_task(offsets(reader, 1))
                await until(lambda: reading.done() or any(type(one) is SubscriptionLost for one in events))
                later.log(0, 1)
                broker.streams["foo"] = [later.id]
                assert await reading == [int(not reverse)]

    async def test_a_handler_that_fails_does_not_end_the_read(self) -> None:
        class BrokenError(Exception):
            pass

        def fail_once(event: Any) -> None:
            if isinstance(event, SubscriptionLost) and not seen:
                seen.append(event)
                raise BrokenError

        seen: list[Any] = []
        async with scripted() as (broker,):
            log = broker.log(*range(3))
            async with (
                client_of([broker], on_event=fail_once) as client,
                client.subscribe("foo", start="earliest") as reader,
            ):
                assert await offsets(reader, 3) == [0, 1, 2]
                broker.drop()
                log.add(1)
                with pytest.raises(BrokenError):
                    await reader.next()
                assert await offsets(reader, 1) == [3]


class TestEnds:
    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (RpcError(StatusCode.NOT_FOUND, "commit log was deleted"), StreamDeletedError),
            (RpcError(StatusCode.RESOURCE_EXHAUSTED, "End of readonly partition"), ReadonlyPartitionError),
            (RpcError(StatusCode.INTERNAL, "disk on fire"), RpcError),
            (
                RpcError(
                    StatusCode.UNKNOWN, "The client is not authorized to call Subscribe on resource foo"
                ),
                PermissionDeniedError,
            ),
        ],
    )
    async def test_are_errors_again_and_again(self, error: RpcError, kind: type[Exception]) -> None:
        async with scripted() as (broker,):
            broker.log(0, 1)
            broker.next("Subscribe", answers(HANDSHAKE, message(0), error=error))
            async with client_of([broker]) as client, client.subscribe("foo", start="earliest") as reader:
                assert await offsets(reader, 1) == [0]
                with pytest.raises(kind) as first:
                    await reader.next()
                with pytest.raises(kind) as second:
                    await anext(reader)
                with pytest.raises(kind) as third:
                    await anext(reader.batches())
                assert first.value is second.value is third.value
            assert broker.calls["Subscribe"] == 1

    async def test_read_only_partition_ends_a_read_with_a_stop(self) -> None:
        over = RpcError(StatusCode.RESOURCE_EXHAUSTED, "End of readonly partition")
        async with scripted() as (broker,):
            broker.log(0, 1)
            broker.next("Subscribe", answers(HANDSHAKE, message(0), message(1), error=over))
            async with client_of([broker]) as client:
                assert await read(client, start="earliest", stop="latest") == [0, 1]

    async def test_paused_partition_ends_the_subscription(self) -> None:
        closed = RpcError(StatusCode.FAILED_PRECONDITION, "commit log was closed")
        async with scripted() as (broker,):
            broker.log(0, 1)
            broker.next("Subscribe", answers(HANDSHAKE, message(0), error=closed), closed)
            async with client_of([broker]) as client, client.subscribe("foo", start="earliest") as reader:
                assert await offsets(reader, 1) == [0]
                with pytest.raises(PartitionPausedError):
                    await reader.next()

    async def test_deleted_stream_ends_the_subscription(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster_module, "_GONE_AFTER", 0.2)
        async with scripted() as (broker,):
            broker.log(0, 1)
            async with client_of([broker]) as client, client.subscribe("foo", start="earliest") as reader:
                assert await offsets(reader, 2) == [0, 1]
                broker.streams.clear()
                broker.logs.clear()
                broker.drop()
                with pytest.raises(StreamDeletedError):
                    await reader.next()


@pytest.mark.parametrize(
    "refusal",
    [
        None,
        CLOSED,
        RpcError(StatusCode.UNAVAILABLE, "the gateway is stopping"),
        RpcError(StatusCode.OK, "the server is stopping"),
    ],
)
async def test_a_broker_that_stands_still_is_not_taken_for_an_empty_log(refusal: RpcError | None) -> None:
    async with scripted() as brokers, client_of(brokers, timeout=30.0) as client:
        StandingStill(brokers[0], refusal)
        assert await read(client, start="earliest", stop="latest") == list(range(5))


@pytest.mark.parametrize("timeout", [0.0, 0.05])
async def test_polled_read_of_an_emptied_partition_ends(timeout: float) -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(removed_to=4)
        async with client.subscribe("foo", start="earliest", stop="latest") as reader, asyncio.timeout(60):
            while not reader.finished:
                assert await reader.next(timeout) is None
                await asyncio.sleep(0.01)


async def test_read_of_a_partition_that_is_emptied_during_a_loss_ends() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        log = broker.log(0)
        async with client.subscribe("foo", start="earliest", stop=4) as reader:
            assert await offsets(reader, 1) == [0]
            log.add(2)  # these do not come with the handshake
            assert await offsets(reader, 2) == [1, 2]
            log.offsets, log.removed_to = [], 4
            broker.drop()
            assert await offsets(reader) == []


async def test_read_survives_a_check_for_an_empty_log_that_is_not_answered() -> None:
    # A gateway that had 200 MB to send to 16 readers took longer than the time-out for each first message.
    unanswered = asyncio.Event()

    async def hang(call: ServerCall, request: bytes) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            unanswered.set()

    async def send_late(call: ServerCall, request: bytes) -> None:
        await call.send([HANDSHAKE])
        broker.always("FetchPartitionMetadata", hang)
        await unanswered.wait()
        await call.send(log.payloads(0, 4))
        raise RpcError(StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached")

    async with scripted() as (broker,), client_of([broker], timeout=3.0) as client:
        log = broker.log(*range(5))
        broker.always("Subscribe", send_late)
        assert await read(client, start="earliest", stop="latest") == list(range(5))
    assert unanswered.is_set()


@pytest.mark.parametrize("refusal", [CLOSED, RpcError(StatusCode.NOT_FOUND, "No such partition")])
async def test_start_by_time_is_looked_up_again_after_a_refusal(refusal: RpcError) -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        TimesLost(broker)
        broker.next("Subscribe", refusal)
        assert await read(client, start=Timestamp(2500), stop="latest") == [3, 4]


async def test_start_by_time_is_looked_up_again_after_a_lost_connection() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        TimesLost(broker)
        broker.next("Subscribe", broker.drop_at)
        assert await read(client, start=Timestamp(2500), stop="latest") == [3, 4]


async def test_start_by_time_is_looked_up_at_the_new_leader() -> None:
    async with scripted(2) as (old, new), client_of([old, new]) as client:
        old.log(*range(5))
        TimesLost(new)
        new.streams["foo"] = [old.id]

        async def move(call: ServerCall, request: bytes) -> None:
            old.streams["foo"] = new.streams["foo"] = [new.id]
            del old.logs["foo", 0]
            raise RpcError(StatusCode.FAILED_PRECONDITION, "Server not partition leader")

        old.next("Subscribe", move)
        assert await read(client, start=Timestamp(2500), stop="latest") == [3, 4]
