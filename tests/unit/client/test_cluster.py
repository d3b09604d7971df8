"""Finding brokers, metadata and leaders, and making calls again: with brokers that are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import liftenvelope
from liftenvelope._deadlines import Deadline
from liftenvelope.client._brokers import cluster as cluster_module
from liftenvelope.client._brokers import connections as connections_module
from liftenvelope.client._brokers import known as known_module
from liftenvelope.client._events import MetadataRefreshed
from liftenvelope.client.client import Client
from liftenvelope.client.metadata import BrokerInfo
from liftenvelope.client.retries import Retry
from liftenvelope.errors import (
    CallTimeoutError,
    LiftEnvelopeError,
    NoSuchPartitionError,
    NoSuchStreamError,
    NotLeaderError,
    StreamExistsError,
    TransportError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.rpc.server import ServerCall
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode
from tests.unit.scripted_broker import ScriptedBroker, client_of, read, scripted, stall, until

pytestmark = pytest.mark.usefixtures("loop_errors")

#: Sent by a gateway. Liftbridge 1.9.0 answers no call with UNAVAILABLE: when it stops, it closes connections.
UNAVAILABLE = RpcError(StatusCode.UNAVAILABLE, "JetStream does not answer: nothing answers on '$JS.API.INFO'")
NOT_LEADER = RpcError(StatusCode.FAILED_PRECONDITION, "Server not partition leader")
EXISTS = RpcError(StatusCode.ALREADY_EXISTS, "stream already exists")
DENIED = RpcError(StatusCode.UNKNOWN, "The client is not authorized to call FetchMetadata on resource *")
MISSING = RpcError(StatusCode.NOT_FOUND, "stream does not exist")


def first_by_id(known: Sequence[BrokerInfo]) -> BrokerInfo:
    return min(known, key=lambda one: one.id)


async def make_call(client: Client, method: str, timeout: float = 30.0) -> bytes | None:
    """Call a method of any broker as parts of the client do."""
    route = client._context.cluster.any_broker
    return await client._context.cluster.call(method, b"", route, Deadline(timeout), "it")


@pytest.mark.usefixtures("patient_attempts")
class TestMetadata:
    async def test_metadata_of_a_new_cluster_is_merged_from_all_brokers(self) -> None:
        # Each broker lists only itself, and knows of one stream.
        async with scripted(2) as (first, second):
            first.log(0)
            first.streams["foo"] = ["b0", "b1"]
            first.lists, second.lists = [first], [second]
            second.streams["bar"] = ["b1"]
            async with client_of([first, second]) as client:
                for _ in range(5):
                    found = await client.fetch_metadata(streams=["foo", "bar"])
                    assert set(found.brokers) == {"b0", "b1"}
                    assert set(found.streams) == {"foo", "bar"}
                    assert found.missing_brokers() == set()

    async def test_new_stream_is_found_when_only_one_broker_knows_it(self) -> None:
        async with scripted(3) as brokers:
            brokers[2].log(0)
            async with client_of(brokers) as client:
                assert (await client.fetch_partition_metadata("foo")).newest_offset == 0

    async def test_metadata_of_no_streams_is_empty(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            async with client_of([broker]) as client:
                assert dict((await client.fetch_metadata(streams=[])).streams) == {}
                assert set((await client.fetch_metadata()).streams) == {"foo"}

    async def test_names_in_a_str_are_a_mistake(self) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            for given in ({"streams": "foo"}, {"groups": "foo"}, {"streams": [5]}, {"groups": [5]}):
                with pytest.raises(UsageTypeError):
                    await client.fetch_metadata(**given)
            with pytest.raises(UsageError):
                await client.fetch_metadata(streams=[""])
            assert broker.calls["FetchMetadata"] == 1

    async def test_what_does_not_exist_is_left_out(self) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            assert dict((await client.fetch_metadata(streams=["foo"], groups=["g"])).streams) == {}
            with pytest.raises(NoSuchStreamError, match="'foo'"):
                await client.fetch_partition_metadata("foo")

    async def test_a_broker_that_stalls_is_left_for_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        quick = {"FetchMetadata": Retry(repeatable=True, attempt_timeout=0.2)}
        monkeypatch.setattr(cluster_module, "RETRIES", quick)
        async with scripted(2) as (stalling, other):
            stalling.always("FetchMetadata", stall)
            async with client_of([stalling, other], timeout=60.0) as client:
                async with asyncio.timeout(40):
                    for _ in range(4):
                        await client.fetch_metadata()
            assert other.calls["FetchMetadata"] >= 5

    async def test_a_broker_that_is_slow_gets_more_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = {"FetchMetadata": Retry(repeatable=True, attempt_timeout=0.1, doubles=True)}
        async with scripted() as (broker,), client_of([broker], timeout=60.0) as client:

            async def late(_: ServerCall, request: bytes) -> bytes:
                await asyncio.sleep(1.0)
                return broker.metadata(request).SerializeToString()

            monkeypatch.setattr(cluster_module, "RETRIES", slow)
            broker.always("FetchMetadata", late)
            await client.fetch_metadata()

    async def test_all_brokers_stall(self) -> None:
        async with scripted(2) as brokers:
            for broker in brokers:
                broker.always("FetchMetadata", stall)
            with pytest.raises(CallTimeoutError):
                await liftenvelope.connect([broker.address for broker in brokers], timeout=0.2)

    async def test_no_broker_is_there(self) -> None:
        before = asyncio.all_tasks()
        with pytest.raises(TransportError, match="can't connect"):
            await liftenvelope.connect(["127.0.0.1:1", "127.0.0.1:2"], timeout=0.3)
        assert asyncio.all_tasks() == before

    async def test_a_client_that_can_not_be_opened_leaves_no_connection(self) -> None:
        async with scripted() as (broker,):
            broker.always("FetchMetadata", DENIED)
            with pytest.raises(LiftEnvelopeError):
                await client_of([broker])
            await until(lambda: not broker.server.links)

    async def test_is_shared_by_those_who_ask_at_the_same_time(self) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.log(0)
            before = broker.calls["FetchMetadata"]
            await asyncio.gather(*(client.fetch_partition_metadata("foo") for _ in range(20)))
            assert broker.calls["FetchMetadata"] == before + 1
            assert broker.calls["FetchPartitionMetadata"] == 20

    async def test_is_used_again_until_it_is_too_old(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            async with client_of([broker], metadata_max_age=600.0) as client:
                await client.fetch_partition_metadata("foo")
                before = broker.calls["FetchMetadata"]
                await client.fetch_partition_metadata("foo")
                assert broker.calls["FetchMetadata"] == before
                known = client._context.cluster._streams
                known["foo"] = (known["foo"][0], known["foo"][1] - 600.0)
                await client.fetch_partition_metadata("foo")
                assert broker.calls["FetchMetadata"] == before + 1

    async def test_one_who_gives_up_does_not_take_it_from_the_others(self) -> None:
        go_on = asyncio.Event()
        async with scripted() as (broker,):

            async def later(call: Any, request: bytes) -> bytes:
                await go_on.wait()
                return bytes(broker.metadata(request).SerializeToString())

            async with client_of([broker]) as client:
                broker.log(0)
                broker.next("FetchMetadata", later)
                tasks = [asyncio.create_task(client.fetch_partition_metadata("foo")) for _ in range(2)]
                await until(lambda: broker.calls["FetchMetadata"] == 2)
                tasks[0].cancel()
                go_on.set()
                assert (await tasks[1]).newest_offset == 0
                assert tasks[0].cancelled()

    async def test_refresh_without_waiters_may_fail(self) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.next("FetchMetadata", stall)
            waiting = asyncio.create_task(client.fetch_partition_metadata("foo"))
            await until(lambda: broker.calls["FetchMetadata"] == 2)
            waiting.cancel()
            await asyncio.wait([waiting])
            broker.always("FetchMetadata", DENIED)
            (fetching,) = client._context.cluster._fetching._running.values()
            broker.drop()
            await until(fetching.done)  # the fixture sees to it that nothing is said of it

    async def test_tells_of_itself(self) -> None:
        events: list[Any] = []
        async with scripted() as (broker,), client_of([broker], events=events) as client:
            await client.fetch_metadata(streams=["foo"])
        assert events == [MetadataRefreshed(broker.address, ()), MetadataRefreshed(broker.address, ("foo",))]


class TestLeaders:
    async def test_are_asked_for_anew(self) -> None:
        async with scripted(2) as (old, new):
            old.log(0)
            new.streams["foo"] = ["b0"]
            async with client_of([old, new]) as client:
                await client.fetch_partition_metadata("foo")
                old.logs.clear()
                new.log(*range(4))
                old.streams["foo"] = new.streams["foo"] = ["b1"]
                assert (await client.fetch_partition_metadata("foo")).newest_offset == 3
            assert old.calls["FetchPartitionMetadata"] == 2

    async def test_are_waited_for(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            broker.streams["foo"] = [""]
            async with client_of([broker]) as client:
                waiting = asyncio.create_task(client.fetch_partition_metadata("foo"))
                await until(lambda: broker.calls["FetchMetadata"] > 3)
                broker.streams["foo"] = ["b0"]
                assert (await waiting).newest_offset == 0

    @pytest.mark.parametrize("leader", ["", "unheard-of"])
    async def test_leader_that_never_comes_is_an_error(self, leader: str) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            broker.streams["foo"] = [leader]
            async with client_of([broker]) as client:
                with pytest.raises((NotLeaderError, CallTimeoutError)):
                    await client.fetch_partition_metadata("foo", timeout=0.3)

    async def test_leader_that_always_refuses_is_an_error(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            broker.always("FetchPartitionMetadata", NOT_LEADER)
            async with client_of([broker]) as client:
                with pytest.raises((NotLeaderError, CallTimeoutError)):
                    await client.fetch_partition_metadata("foo", timeout=2.0)
            assert broker.calls["FetchPartitionMetadata"] > 1

    @pytest.mark.parametrize("leader", ["", "unheard-of"])
    async def test_caller_that_does_not_wait_learns_that_there_is_no_leader(self, leader: str) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            broker.streams["foo"] = [leader]
            async with client_of([broker]) as client:
                with pytest.raises(NotLeaderError, match=r"foo\[0\] had no leader"):
                    await client.fetch_partition_metadata("foo", wait_for_leader=False)

    async def test_caller_that_does_not_wait_looks_for_the_leader_twice(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            broker.always("FetchPartitionMetadata", NOT_LEADER)
            async with client_of([broker]) as client:
                with pytest.raises(NotLeaderError):
                    await client.fetch_partition_metadata("foo", wait_for_leader=False)
            assert broker.calls["FetchPartitionMetadata"] == 2

    async def test_streams_that_come_and_go_are_forgotten_by_listings(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cluster_module, "_GONE_AFTER", 0.0)
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.log(0)
            for number in range(20):
                broker.log(stream=f"s{number}")
                await client.fetch_metadata()
                del broker.streams[f"s{number}"]
            await client.fetch_metadata()
            assert set(client._context.cluster._seen) <= {"foo", "s19"}

    async def test_outdated_metadata_of_streams_that_are_used_once_is_dropped(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cluster_module, "_FEW", 10)
        async with scripted() as (broker,):
            names = [f"job-{number}" for number in range(50)]
            broker.streams = {name: [broker.id] for name in names}
            async with client_of([broker], metadata_max_age=1e-9) as client:
                cluster = client._context.cluster
                for name in names:
                    assert (await cluster.stream(name, Deadline(30.0))).name == name
                    assert len(cluster._streams) <= 11

    async def test_stream_missing_from_a_listing_may_still_reappear(self) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.log(0)
            await client.fetch_metadata()
            partitions = broker.streams.pop("foo")  # as on a broker that has just started
            for _ in range(2):
                assert not (await client.fetch_metadata()).streams
            with pytest.raises(CallTimeoutError, match="is missing now"):
                await client._context.cluster.stream("foo", Deadline(0.2))
            broker.streams["foo"] = partitions
            assert (await client._context.cluster.stream("foo", Deadline(30.0))).name == "foo"

    async def test_leader_of_a_missing_partition_is_an_error(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            async with client_of([broker]) as client:
                with pytest.raises(NoSuchPartitionError, match="no partition 5"):
                    await client.fetch_partition_metadata("foo", 5)

    async def test_leader_of_a_new_partition_is_found(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            async with client_of([broker]) as client:
                await client.fetch_partition_metadata("foo")
                broker.log(0, 1, partition=1)
                assert (await client.fetch_partition_metadata("foo", 1)).newest_offset == 1


class TestAgain:
    @pytest.mark.parametrize(
        "method", ["CreateStream", "DeleteStream", "PauseStream", "SetStreamReadonly", "SetCursor"]
    )
    @pytest.mark.parametrize("how", ["unavailable", "lost"])
    async def test_what_may_be_done_twice(self, method: str, how: str) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.next(method, UNAVAILABLE if how == "unavailable" else broker.drop_at)
            assert await make_call(client, method) is not None
            assert broker.calls[method] == 2

    @pytest.mark.parametrize("method", ["Publish", "JoinConsumerGroup"])
    @pytest.mark.parametrize("how", ["unavailable", "lost", "stalled"])
    async def test_call_that_must_be_made_once_is_not_repeated(self, method: str, how: str) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            steps: dict[str, Any] = {"unavailable": UNAVAILABLE, "lost": broker.drop_at, "stalled": stall}
            broker.always(method, steps[how])
            with pytest.raises(LiftEnvelopeError):
                await make_call(client, method, 2.0 if how == "stalled" else 30.0)
            assert broker.calls[method] == 1

    @pytest.mark.parametrize("method", ["Publish", "CreateStream"])
    async def test_what_a_server_that_goes_away_never_saw(self, method: str) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            for link in broker.server.links:
                link.protocol.go_away()  # and the client is told only when it calls
            assert await make_call(client, method) is not None
            assert broker.calls[method] == 1

    async def test_refused_call_is_not_repeated(self) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.always("CreateStream", RpcError(StatusCode.INVALID_ARGUMENT, "Subject is invalid"))
            with pytest.raises(RpcError, match="Subject is invalid"):
                await make_call(client, "CreateStream")
            assert broker.calls["CreateStream"] == 1

    async def test_with_another_broker(self) -> None:
        async with scripted(3) as brokers:
            for broker in brokers[:2]:
                broker.always("DeleteStream", UNAVAILABLE)
            async with client_of(brokers) as client:
                for _ in range(6):
                    assert await make_call(client, "DeleteStream") is not None
            assert brokers[2].calls["DeleteStream"] == 6
            assert all(broker.calls["DeleteStream"] <= 6 for broker in brokers)

    async def test_until_the_time_is_up(self) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.always("DeleteStream", UNAVAILABLE)
            begun = asyncio.get_running_loop().time()
            with pytest.raises(RpcError, match="JetStream does not answer"):
                await make_call(client, "DeleteStream", 3.0)
            assert 2.9 < asyncio.get_running_loop().time() - begun < 30
            assert 1 < broker.calls["DeleteStream"] < 30

    async def test_reason_is_told_if_the_last_attempt_has_little_time(self) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.next("FetchMetadata", UNAVAILABLE)
            broker.next("FetchMetadata", stall)
            with pytest.raises(RpcError, match="JetStream does not answer"):
                await make_call(client, "FetchMetadata", 1.0)

    async def test_why_there_is_no_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not that there was too little time for the last of many attempts."""
        reasons = iter(["the certificate is not trusted"])

        async def channel(address: str, timeout: float) -> None:
            if (reason := next(reasons, None)) is not None:
                raise CallNotProcessedError(reason)
            raise CallNotProcessedError(f"no connection within {timeout} s") from TimeoutError()

        async with scripted() as (broker,), client_of([broker]) as client:
            monkeypatch.setattr(client._context.cluster.connections, "channel", channel)
            with pytest.raises(TransportError, match="not trusted"):
                await make_call(client, "DeleteStream", 0.5)

    async def test_no_answer_in_time(self) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.always("DeleteStream", stall)
            with pytest.raises(CallTimeoutError, match="DeleteStream was not answered in time"):
                await client.delete_stream("foo", timeout=0.2)
            assert broker.calls["DeleteStream"] == 1

    async def test_call_is_not_repeated_after_close(self) -> None:
        async with scripted() as (broker,):
            client = await client_of([broker], timeout=30.0)
            broker.always("DeleteStream", stall)
            waiting = asyncio.create_task(client.delete_stream("foo"))
            await until(lambda: broker.calls["DeleteStream"])
            async with asyncio.timeout(20):
                await client.close()
                with pytest.raises(TransportError):
                    await waiting
            with pytest.raises(TransportError, match="the client is closed"):
                await client.delete_stream("foo")


class TestDoneAlready:
    async def test_a_stream_that_the_lost_attempt_made(self) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.next("CreateStream", broker.drop_at, EXISTS)
            broker.streams["foo"], broker.subjects["foo"] = ["b0", "b0"], "bar"
            await client.create_stream("bar", "foo", partitions=2)
            assert broker.calls["CreateStream"] == 2

    @pytest.mark.parametrize(("subject", "partitions"), [("other", 2), ("bar", 3)])
    async def test_a_stream_that_somebody_else_made(self, subject: str, partitions: int) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.next("CreateStream", broker.drop_at, EXISTS)
            broker.streams["foo"], broker.subjects["foo"] = ["b0"] * partitions, subject
            with pytest.raises(StreamExistsError, match="another stream has that name"):
                await client.create_stream("bar", "foo", partitions=2)

    async def test_a_stream_that_was_there_before(self) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.next("CreateStream", EXISTS)
            broker.streams["foo"] = ["b0"]
            with pytest.raises(StreamExistsError, match="already exists"):
                await client.create_stream("foo", "foo")

    async def test_a_stream_that_the_lost_attempt_deleted(self) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.next("DeleteStream", broker.drop_at, MISSING)
            await client.delete_stream("foo")
            broker.next("DeleteStream", MISSING)
            with pytest.raises(NoSuchStreamError):
                await client.delete_stream("foo")

    async def test_a_wrong_broker_says_nothing_of_what_was_done(self) -> None:
        # Both answers have the same code.
        elsewhere = RpcError(StatusCode.FAILED_PRECONDITION, "broker is not the consumer group coordinator")
        gone = RpcError(StatusCode.FAILED_PRECONDITION, "consumer is not a member of the consumer group")
        async with scripted() as (broker,), client_of([broker]) as client:
            broker.next("LeaveConsumerGroup", broker.drop_at, elsewhere)
            assert await make_call(client, "LeaveConsumerGroup") == b""
            assert broker.calls["LeaveConsumerGroup"] == 3
            broker.next("LeaveConsumerGroup", broker.drop_at, gone)
            assert await make_call(client, "LeaveConsumerGroup") is None


class TestTime:
    async def test_connecting_and_calling_share_it(self) -> None:
        seen: list[float | None] = []

        async def note(call: Any, request: bytes) -> bytes:
            seen.append(call.timeout)
            return b""

        async with scripted() as (broker,), client_of([broker]) as client:
            broker.always("DeleteStream", note)
            await client.delete_stream("foo", timeout=15.0)
        assert len(seen) == 1
        assert 0 < (seen[0] or 0) <= 15.0

    @pytest.mark.parametrize("timeout", [0, -1, float("nan"), "1"])
    async def test_invalid_timeout_is_refused(self, timeout: Any) -> None:
        async with scripted() as (broker,), client_of([broker]) as client:
            with pytest.raises(UsageError, match="timeout"):
                await client.delete_stream("foo", timeout=timeout)
            assert broker.calls["DeleteStream"] == 0


@pytest.mark.usefixtures("patient_attempts")
class TestSelection:
    async def asked(self, brokers: list[ScriptedBroker], selection: Any, times: int = 12) -> list[int]:
        """Return the number of DeleteStream calls of each broker."""
        async with client_of(brokers, broker_selection=selection) as client:
            for _ in range(times):
                await make_call(client, "DeleteStream")
        return [broker.calls["DeleteStream"] for broker in brokers]

    async def test_at_random(self) -> None:
        async with scripted(2) as brokers:
            found = await self.asked(brokers, "random", 40)
        assert sum(found) == 40
        assert min(found) > 0

    async def test_broker_is_selected_by_workload(self) -> None:
        async with scripted(3) as brokers:
            for broker, count in zip(brokers, (7, 2, 5), strict=True):
                broker.partition_count = count
            assert await self.asked(brokers, "workload") == [0, 12, 0]

    async def test_broker_is_selected_by_latency(self) -> None:
        async with scripted(3) as brokers:
            async with client_of(brokers, broker_selection="latency") as client:
                taken = dict(zip([broker.address for broker in brokers], (0.3, 0.1, 0.2), strict=True))
                client._context.cluster.connections._latencies.update(taken)
                for _ in range(5):
                    await make_call(client, "DeleteStream")
            assert [broker.calls["DeleteStream"] for broker in brokers] == [0, 5, 0]

    async def test_broker_is_selected_by_a_function(self) -> None:
        async with scripted(3) as brokers:
            assert await self.asked(brokers, lambda known: max(known, key=lambda one: one.id)) == [0, 0, 12]

    async def test_selecting_function_must_return_a_known_broker(self) -> None:
        async with scripted(2) as brokers, client_of(brokers, broker_selection=lambda known: None) as client:
            with pytest.raises(
                UsageTypeError, match=r"broker_selection must return one of the brokers .*, got None"
            ):
                await make_call(client, "DeleteStream")

    async def test_failed_brokers_are_selected_last(self) -> None:
        async with scripted(2) as brokers:
            brokers[0].always("DeleteStream", UNAVAILABLE)
            assert await self.asked(brokers, first_by_id, 3) == [3, 3]

    @pytest.mark.parametrize("selection", ["latency", "workload", first_by_id])
    async def test_unreachable_brokers_are_selected_last(
        self, selection: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections_module, "_AVOIDED", 600.0)
        tried: list[str] = []
        async with scripted(2) as brokers:
            brokers[1].partition_count = 1
            await brokers[0].server.close()
            async with client_of(brokers[1:], broker_selection=selection) as client:
                connections = client._context.cluster.connections
                connect = connections._connect

                async def noted(address: str, timeout: float) -> None:
                    tried.append(address)
                    await connect(address, timeout)

                connections._connect = noted  # type: ignore[method-assign]
                for _ in range(5):
                    await make_call(client, "DeleteStream")
        assert brokers[1].calls["DeleteStream"] == 5
        assert tried.count(brokers[0].address) == 1

    async def test_brokers_that_metadata_leaves_out_are_selected_last_and_then_forgotten(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with scripted(3) as brokers, client_of(brokers) as client:
            addresses = [broker.address for broker in brokers]
            await client.fetch_metadata(streams=[])
            for broker in brokers:
                broker.lists = brokers[:1]
            await client.fetch_metadata(streams=[])
            for _ in range(20):
                await make_call(client, "DeleteStream")
            assert [broker.calls["DeleteStream"] for broker in brokers] == [20, 0, 0]
            assert {broker.address for broker in client._context.cluster._brokers} == set(addresses)
            brokers[0].next("DeleteStream", UNAVAILABLE)
            await make_call(client, "DeleteStream")
            assert brokers[1].calls["DeleteStream"] + brokers[2].calls["DeleteStream"] == 1
            monkeypatch.setattr(known_module, "_FORGOTTEN_AFTER", 0.0)
            await client.fetch_metadata(streams=[])
            assert [broker.address for broker in client._context.cluster._brokers] == addresses[:1]

    @pytest.mark.parametrize("selection", ["latency", "workload"])
    async def test_replica_that_is_unreachable_is_read_last(self, selection: str) -> None:
        async with scripted(2) as (leader, dead):
            leader.log(0, 1, 2)
            leader.isr, leader.partition_count = [leader.id, dead.id], 1
            await dead.server.close()
            async with client_of([leader], broker_selection=selection, timeout=10.0) as client:
                assert await read(client, start=0, stop=2, read_isr_replica=True) == [0, 1, 2]


class TestAddresses:
    async def test_are_mapped(self) -> None:
        async with scripted() as (broker,):
            broker.log(0)
            broker.advertised = "broker.invalid:9292"
            mapped = {"broker.invalid:9292": broker.address}
            async with client_of([broker], address_map=mapped) as client:
                assert (await client.fetch_partition_metadata("foo")).newest_offset == 0
                assert (await client.fetch_metadata()).addresses == ("broker.invalid:9292",)

    async def test_given_addresses_stay_when_advertised_ones_fail(self) -> None:
        async with scripted() as (broker,):
            broker.advertised = "127.0.0.1:1"
            async with client_of([broker]) as client:
                for _ in range(3):
                    assert await make_call(client, "DeleteStream") is not None

    async def test_broker_address_is_found_by_id(self) -> None:
        async with scripted(2) as brokers, client_of(brokers[:1]) as client:
            assert await client._context.cluster.broker_address("b1", Deadline(2)) == brokers[1].address
            with pytest.raises(NotLeaderError, match="'b7'"):
                await client._context.cluster.broker_address("b7", Deadline(2))


async def test_one_that_can_not_be_closed_does_not_keep_the_rest_open() -> None:
    class StuckError(Exception):
        pass

    class Stuck:
        async def close(self) -> None:
            raise StuckError

    async with scripted() as (broker,):
        client = await client_of([broker])
        client._context.open_resources.add(Stuck())
        with pytest.raises(StuckError):
            await client.close()
        await until(lambda: not broker.server.links)
