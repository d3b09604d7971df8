"""Publishing one message, and without waiting, against a real server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.envelope import Ack, AckPolicy, marshal_ack, unmarshal_ack
from liftenvelope.errors import (
    AckTimeoutError,
    IncorrectOffsetError,
    MessageTooLargeError,
    NoSuchPartitionError,
    NoSuchStreamError,
    PublishError,
    ReadonlyPartitionError,
    ServerError,
    TransportError,
    UsageError,
)
from liftenvelope.partition import KeyPartitioner, RoundRobinPartitioner
from liftenvelope.testing import FaultProxy, LiftbridgeCluster
from tests.handled import handled
from tests.integration.conftest import until


@pytest.fixture
async def client(liftbridge_server: LiftbridgeCluster) -> AsyncIterator[Client]:
    async with liftenvelope.connect(liftbridge_server.addresses, ack_wait=60) as client:
        yield client


@pytest.fixture
async def stream(client: Client, name: str) -> str:
    await client.create_stream(name, name, partitions=3)
    return name


def values(server: LiftbridgeCluster, stream: str, partition: int = 0) -> list[bytes]:
    newest = server.partition_metadata(stream, partition).newestOffset
    return [message.value for message in server.read(stream, partition=partition, count=newest + 1)]


async def acked(future: Any) -> Ack:
    ack = await future
    assert isinstance(ack, Ack)
    return ack


async def test_a_message_is_stored_as_it_was_given(
    client: Client, stream: str, liftbridge_server: LiftbridgeCluster
) -> None:
    ack = await acked(
        client.publish(stream, bytearray(b"one tea"), key=memoryview(b"c8"), headers={"shop": b"7"})
    )
    assert ack.stream == stream
    assert ack.offset == 0
    assert ack.commit_timestamp_ns >= ack.reception_timestamp_ns > 0
    partition = next(p for p in range(3) if values(liftbridge_server, stream, p))
    [message] = liftbridge_server.read(stream, partition=partition, count=1)
    assert (message.value, message.key, message.headers["shop"]) == (b"one tea", b"c8", b"7")


@pytest.mark.parametrize("policy", [AckPolicy.LEADER, AckPolicy.ALL, 1])
async def test_ack_policies(client: Client, stream: str, policy: int) -> None:
    ack = await acked(client.publish(stream, b"v", ack_policy=policy))
    assert ack.ack_policy == policy
    assert (await acked(client.publish(stream, b"v", ack_policy=policy))).offset == 1


async def test_without_acks_refusals_come_back_all_the_same(
    client: Client, stream: str, liftbridge_server: LiftbridgeCluster
) -> None:
    assert await client.publish(stream, b"v", ack_policy=AckPolicy.NONE) is None
    await until(lambda: values(liftbridge_server, stream) == [b"v"])
    await client.set_stream_readonly(stream)
    with pytest.raises(ReadonlyPartitionError):
        await client.publish(stream, b"v", ack_policy=AckPolicy.NONE)
    future = await client.publish_async(stream, b"v", ack_policy=AckPolicy.NONE)
    with pytest.raises(ReadonlyPartitionError):
        await future


async def test_partitions(client: Client, stream: str) -> None:
    for key in (b"customer-8", b"customer-9", None, b""):
        ack = await acked(client.publish(stream, b"v", key=key))
        expected = KeyPartitioner().partition(stream, key, b"v", 3)
        assert ack.msg_subject == (f"{stream}.{expected}" if expected else stream)
    turns = [await acked(client.publish(stream, b"v", partitioner="round_robin")) for _ in range(2)]
    futures = [await client.publish_async(stream, b"v", partitioner="round_robin")]
    turns += [await acked(future) for future in futures]
    assert [ack.msg_subject for ack in turns] == [stream, f"{stream}.1", f"{stream}.2"]
    ack = await acked(client.publish(stream, b"v", partitioner=lambda key, value, count: count - 1))
    assert ack.msg_subject == f"{stream}.2"
    ack = await acked(client.publish(stream, b"v", partition=1, partitioner=lambda *_: 2))
    assert ack.msg_subject == f"{stream}.1"
    ack = await acked(client.publish(stream, b"v", partitioner=RoundRobinPartitioner()))
    assert ack.msg_subject == stream
    with pytest.raises(UsageError, match="3"):
        await client.publish(stream, b"v", partitioner=lambda *_: 3)


async def test_what_does_not_exist(client: Client, stream: str, name: str) -> None:
    with pytest.raises(NoSuchStreamError, match="nowhere"):
        await client.publish("nowhere", b"v")
    with pytest.raises(NoSuchPartitionError, match="3"):
        await client.publish(stream, b"v", partition=3)


async def test_a_stream_that_another_client_deleted_and_made_anew(
    client: Client, stream: str, liftbridge_server: LiftbridgeCluster
) -> None:
    await client.publish(stream, b"v", partition=2)
    async with liftenvelope.connect(liftbridge_server.addresses, ack_wait=60) as other:
        await other.delete_stream(stream)
        for partition in (2, 2):
            with pytest.raises((NoSuchStreamError, NoSuchPartitionError)):
                # A stream that was there counts as gone only when it was missing for some seconds.
                await client.publish(stream, b"v", partition=partition, timeout=60)
        await other.create_stream(stream, stream, partitions=5)
    ack = await acked(client.publish(stream, b"v", partition=4))
    assert ack.offset == 0


async def test_optimistic_concurrency(client: Client, name: str) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    assert (await acked(client.publish(name, b"v", expected_offset=0))).offset == 0
    with pytest.raises(IncorrectOffsetError):
        await client.publish(name, b"v", expected_offset=0)
    with pytest.raises(IncorrectOffsetError):
        await client.publish(name, b"v", expected_offset=0, ack_inbox=f"{name}.acks")
    assert (await acked(client.publish(name, b"v", expected_offset=1))).offset == 1
    assert (await acked(client.publish(name, b"v"))).offset == 2
    with pytest.raises(ServerError, match="AckPolicy"):
        await client.publish(name, b"v", ack_policy=AckPolicy.NONE)


async def test_too_large(client: Client, stream: str) -> None:
    with pytest.raises(MessageTooLargeError, match="5000"):
        await client.publish(stream, b"v" * 5_000_000)
    waiting = [await client.publish_async(stream, b"v") for _ in range(10)]
    with pytest.raises(MessageTooLargeError):
        await client.publish(stream, b"v" * 1_100_000)
    with pytest.raises(MessageTooLargeError):
        await client.publish(stream, b"v" * 1_100_000, ack_policy=AckPolicy.NONE)
    assert [ack.offset for ack in await asyncio.gather(*waiting) if ack is not None] == list(range(10))


async def test_an_ack_inbox_of_ones_own_gets_the_ack_as_well(
    client: Client, stream: str, lb_nc: NatsClient
) -> None:
    subscription = await lb_nc.subscribe(f"{stream}.acks")
    await handled(lb_nc)
    ack = await acked(client.publish(stream, b"v", ack_inbox=f"{stream}.acks", correlation_id="mine"))
    assert unmarshal_ack((await subscription.next_msg(timeout=60)).data) == ack
    assert (ack.correlation_id, ack.ack_inbox) == ("mine", f"{stream}.acks")


async def test_the_ack_of_another_message_on_the_ack_inbox_is_not_taken(
    client: Client, stream: str, lb_nc: NatsClient
) -> None:
    inbox = f"{stream}.acks"
    other = marshal_ack(Ack(stream=stream, offset=41, ack_inbox=inbox, correlation_id="other"))

    async def ack_late() -> None:
        while True:
            await lb_nc.publish(inbox, other)
            await asyncio.sleep(0)

    async def publish_on(publish: Any) -> None:
        for number in itertools.count():  # until the other ack wins the race
            own = f"{publish.__name__} {number}"
            ack = await acked(publish(stream, b"v", ack_inbox=inbox, correlation_id=own))
            assert ack.correlation_id == own

    late = asyncio.create_task(ack_late())
    for publish in (client.publish, client.publish_to_subject):
        with pytest.raises(AckTimeoutError, match=r"'other'.*came first") as caught:
            await publish_on(publish)
        assert caught.value.sent
        assert caught.value.correlation_id.startswith(publish.__name__)
    late.cancel()


@pytest.mark.parametrize("give_up", ["deadline", "cancellation"])
async def test_id_of_a_message_without_an_ack_is_not_used_again_on_the_same_ack_inbox(
    liftbridge_server: LiftbridgeCluster, client: Client, stream: str, give_up: str
) -> None:
    address = liftbridge_server.addresses[0]
    mine: dict[str, Any] = {"ack_inbox": f"{stream}.acks", "correlation_id": "a"}
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(address, address_map={address: proxy.address}, ack_wait=60) as late:
            await late.publish(stream, b"first")
            await late.publish(stream, b"second", **mine)  # on another connection, which stays open
            proxy.stall("to_client")
            timeout = 1.0 if give_up == "deadline" else 60
            given_up = asyncio.ensure_future(late.publish(stream, b"late", timeout=timeout, **mine))
            await until(lambda: len(values(liftbridge_server, stream)) == 3)
            if give_up == "cancellation":
                given_up.cancel()
            with pytest.raises(AckTimeoutError if give_up == "deadline" else asyncio.CancelledError):
                await given_up
            proxy.resume("to_client")
            with pytest.raises(UsageError, match="may still come"):
                await late.publish(stream, b"again", **mine)
            assert (
                await acked(late.publish(stream, b"other", **{**mine, "correlation_id": "b"}))
            ).offset == 3
    assert values(liftbridge_server, stream) == [b"first", b"second", b"late", b"other"]


async def test_an_ack_inbox_in_use_until_the_deadline(
    liftbridge_server: LiftbridgeCluster, name: str
) -> None:
    address = liftbridge_server.addresses[0]
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(address, address_map={address: proxy.address}) as client:
            await client.create_stream(name, name)
            await client.publish(name, b"v", ack_inbox=f"{name}.x")
            proxy.stall("to_client")
            before = proxy.bytes_to_server
            first = await client.publish_async(name, b"v", ack_inbox=f"{name}.x", timeout=60)
            await until(lambda: proxy.bytes_to_server > before)
            with pytest.raises(AckTimeoutError, match="earlier publishes used ack_inbox") as caught:
                await client.publish(name, b"v", ack_inbox=f"{name}.x", timeout=0.2)
            assert not caught.value.sent
            first.cancel()
            proxy.resume()
            await acked(client.publish(name, b"v", ack_inbox=f"{name}.x"))


async def test_a_correlation_id_is_repeated_and_can_be_in_flight_once(client: Client, stream: str) -> None:
    future = await client.publish_async(stream, b"v", correlation_id="mine")
    with pytest.raises(UsageError, match="'mine'"):
        await client.publish(stream, b"v", correlation_id="mine")
    assert (await acked(future)).correlation_id == "mine"
    assert (await acked(client.publish(stream, b"v", correlation_id="mine"))).correlation_id == "mine"
    with pytest.raises(UsageError, match="empty"):
        await client.publish(stream, b"v", correlation_id="")


async def test_several_streams_on_one_subject(client: Client, name: str) -> None:
    names = [f"{name}-{i}" for i in range(3)]
    for one in names:
        await client.create_stream(name, one)
    for _ in range(5):
        for one in names:
            assert (await acked(client.publish(one, b"v"))).stream == one
    outcomes = await asyncio.gather(
        *(client.publish(names[0], b"v", ack_inbox=f"{name}.x") for _ in range(30)), return_exceptions=True
    )
    # The server gives a unary publish whichever ack came first, perhaps a late one of the publish before.
    acks = [outcome for outcome in outcomes if isinstance(outcome, Ack)]
    assert {ack.stream for ack in acks} <= {names[0]}
    assert len({ack.correlation_id for ack in acks}) == len({ack.offset for ack in acks}) == len(acks)
    for outcome in outcomes:
        if not isinstance(outcome, Ack):
            assert isinstance(outcome, AckTimeoutError)
            assert outcome.sent
            assert "came first" in str(outcome)
            assert any(one in str(outcome) for one in names)


async def test_a_paused_stream_is_woken(client: Client, stream: str) -> None:
    assert (await acked(client.publish(stream, b"v"))).offset == 0
    await client.pause_stream(stream)
    assert (await acked(client.publish(stream, b"v"))).offset == 1
    await client.pause_stream(stream)
    assert (await acked(client.publish(stream, b"v", ack_inbox=f"{stream}.x"))).offset == 2


async def test_readonly(client: Client, stream: str) -> None:
    await client.set_stream_readonly(stream)
    with pytest.raises(ReadonlyPartitionError):
        await client.publish(stream, b"v")
    with pytest.raises(ReadonlyPartitionError):
        await client.publish(stream, b"v", ack_inbox=f"{stream}.x")
    await client.set_stream_readonly(stream, readonly=False)
    assert (await acked(client.publish(stream, b"v"))).offset == 0


async def test_many_futures_keep_their_order(
    client: Client, stream: str, liftbridge_server: LiftbridgeCluster
) -> None:
    futures = [await client.publish_async(stream, b"%d" % i, max_outstanding=50) for i in range(500)]
    offsets = [(await acked(future)).offset for future in futures]
    assert offsets == list(range(500))
    assert values(liftbridge_server, stream) == [b"%d" % i for i in range(500)]


async def test_no_more_than_max_outstanding_are_in_flight(client: Client, stream: str) -> None:
    futures: list[asyncio.Future[Ack | None]] = []
    for _ in range(200):
        futures.append(await client.publish_async(stream, b"v", max_outstanding=7))
        assert sum(not future.done() for future in futures) <= 7
    await asyncio.gather(*futures)


async def test_flush_waits_for_all_that_was_published(client: Client, stream: str) -> None:
    futures = [await client.publish_async(stream, b"v") for _ in range(100)]
    futures.append(await client.publish_async(stream, b"v", ack_policy=AckPolicy.NONE))
    await client.flush()
    assert all(future.done() for future in futures)
    await client.flush()


async def test_a_cancelled_future_gives_its_place_back(client: Client, stream: str) -> None:
    await client.publish(stream, b"v")
    future = await client.publish_async(stream, b"w", correlation_id="mine")
    future.cancel()
    assert not future.cancel()
    ack = await acked(client.publish(stream, b"x", correlation_id="mine"))
    assert ack.offset >= 1  # its own ack, whether or not the other one was stored
    await client.flush()


async def test_two_clients_and_many_tasks_at_once(
    client: Client, stream: str, liftbridge_server: LiftbridgeCluster
) -> None:
    async with liftenvelope.connect(liftbridge_server.addresses, ack_wait=60) as other:
        acks = await asyncio.gather(
            *(one.publish(stream, b"%d" % i) for i in range(100) for one in (client, other))
        )
    assert sorted(ack.offset for ack in acks if ack is not None) == list(range(200))


async def test_publish_to_subject(client: Client, stream: str, liftbridge_server: LiftbridgeCluster) -> None:
    ack = await client.publish_to_subject(
        f"{stream}.1", b"v", key=b"k", headers={"a": b"b"}, correlation_id="mine"
    )
    assert ack is not None
    assert (ack.stream, ack.msg_subject, ack.correlation_id) == (stream, f"{stream}.1", "mine")
    [message] = liftbridge_server.read(stream, partition=1, count=1)
    assert (message.value, message.key, message.headers["a"]) == (b"v", b"k", b"b")
    assert await client.publish_to_subject(stream, b"v", ack_policy=AckPolicy.NONE) is None


async def test_publish_to_subject_fails(client: Client, stream: str, name: str) -> None:
    with pytest.raises(AckTimeoutError) as caught:
        await client.publish_to_subject(f"{stream}-nobody", b"v", timeout=0.3)
    assert caught.value.sent
    with pytest.raises(PublishError):
        await client.publish_to_subject(stream, b"v" * 1_100_000)
    occ = f"{name}-occ"
    await client.create_stream(occ, occ, optimistic_concurrency=True)
    assert (await acked(client.publish_to_subject(occ, b"v"))).offset == 0
    with pytest.raises(IncorrectOffsetError) as refused:
        await client.publish_to_subject(occ, b"v")  # it can't say which offset it expects
    assert refused.value.ack is not None


async def test_time_outs(liftbridge_server: LiftbridgeCluster, client: Client, stream: str) -> None:
    address = liftbridge_server.addresses[0]
    loop = asyncio.get_running_loop()
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(
            address, address_map={address: proxy.address}, ack_wait=0.4
        ) as stalled:
            await stalled.publish(stream, b"v", timeout=60)
            proxy.stall("to_client")
            began = loop.time()
            for extra in ({}, {"ack_inbox": f"{stream}.x"}):
                with pytest.raises(AckTimeoutError) as caught:
                    await stalled.publish(stream, b"late", **extra)  # type: ignore[arg-type]
                assert caught.value.sent
            future = await stalled.publish_async(stream, b"late", timeout=0.1)
            with pytest.raises(AckTimeoutError):
                await future
            waiting = await stalled.publish_async(stream, b"waiting", timeout=60)
            with pytest.raises(AckTimeoutError, match="no place") as full:
                await stalled.publish_async(stream, b"never", timeout=0.2, max_outstanding=1)
            assert not full.value.sent
            assert loop.time() - began < 30
            proxy.resume("to_client")
            # The late acks were dropped. A server that is slow to begin a call may not store its message.
            offset = (await acked(waiting)).offset
            assert (await acked(stalled.publish(stream, b"last", timeout=60))).offset == offset + 1
            stored = values(liftbridge_server, stream)
            assert stored == [b"v", *[b"late"] * (offset - 1), b"waiting", b"last"]


async def test_deadlines_hold_while_the_transport_takes_nothing(
    liftbridge_server: LiftbridgeCluster, client: Client, stream: str
) -> None:
    address = liftbridge_server.addresses[0]
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(address, address_map={address: proxy.address}) as stalled:
            await stalled.publish(stream, b"v")
            proxy.stall()
            outcomes = await asyncio.gather(
                *(stalled.publish(stream, b"v" * 1_000_000, timeout=0.5) for _ in range(20)),
                return_exceptions=True,
            )
            assert all(isinstance(outcome, AckTimeoutError) for outcome in outcomes)
            assert not all(outcome.sent for outcome in outcomes if isinstance(outcome, AckTimeoutError))
            proxy.resume()
            assert await stalled.publish(stream, b"v", timeout=60) is not None


async def test_a_cut_connection_makes_the_outcome_unknown_and_the_next_publish_works(
    liftbridge_server: LiftbridgeCluster, client: Client, stream: str
) -> None:
    address = liftbridge_server.addresses[0]
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(address, address_map={address: proxy.address}, ack_wait=60) as cut:
            await cut.publish(stream, b"v")
            proxy.stall("to_client")
            future = await cut.publish_async(stream, b"unknown")
            again = await cut.publish_async(stream, b"again", retry_unacked=True)
            await until(lambda: len(values(liftbridge_server, stream)) == 3)
            proxy.cut()
            proxy.resume("to_client")
            with pytest.raises(TransportError) as caught:
                await future
            assert caught.value.sent
            assert (await acked(again)).offset == 3  # doubled, as asked for
            assert (await acked(cut.publish(stream, b"w"))).offset == 4
    assert values(liftbridge_server, stream) == [b"v", b"unknown", b"again", b"again", b"w"]


async def test_closing_settles_what_is_in_flight_and_leaves_no_task(
    liftbridge_server: LiftbridgeCluster, client: Client, stream: str
) -> None:
    address = liftbridge_server.addresses[0]
    tasks = asyncio.all_tasks()
    with FaultProxy(address) as proxy:
        closing = liftenvelope.connect(address, address_map={address: proxy.address})
        await closing.open()
        await closing.publish(stream, b"v")
        proxy.stall("to_client")
        futures = [
            await closing.publish_async(stream, b"w"),
            await closing.publish_async(stream, b"x", ack_policy=AckPolicy.NONE),
            await closing.publish_async(stream, b"y", ack_policy=AckPolicy.NONE),
        ]
        await asyncio.sleep(0)  # begins the calls
        futures[2].cancel()
        await closing.close()
        await closing.close()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes[:2]:
            assert isinstance(outcome, TransportError)
            assert outcome.sent
        assert isinstance(outcomes[2], asyncio.CancelledError)  # by this test, and not by the close
        await until(lambda: b"w" in values(liftbridge_server, stream))
    assert asyncio.all_tasks() == tasks


async def test_an_idle_stream_is_closed_and_another_made(
    liftbridge_server: LiftbridgeCluster, client: Client, stream: str
) -> None:
    tasks = asyncio.all_tasks()
    async with liftenvelope.connect(liftbridge_server.addresses, keep_alive_time=0.2) as idle:
        for offset in range(3):
            assert (await acked(idle.publish(stream, b"v"))).offset == offset
            assert asyncio.all_tasks() > tasks
            await until(lambda: asyncio.all_tasks() == tasks)


async def test_cancelling_a_publish(client: Client, stream: str) -> None:
    await client.publish(stream, b"v")
    task = asyncio.create_task(client.publish(stream, b"w"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await client.publish(stream, b"x") is not None
    await client.flush()


@pytest.mark.parametrize("give_up", ["deadline", "cancellation"])
@pytest.mark.parametrize("way", ["publish", "publish_async"])
async def test_late_ack_is_not_taken_for_that_of_the_next_message_with_the_same_id(
    liftbridge_server: LiftbridgeCluster, client: Client, stream: str, give_up: str, way: str
) -> None:
    address = liftbridge_server.addresses[0]
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(address, address_map={address: proxy.address}, ack_wait=60) as late:
            await late.publish(stream, b"first")
            proxy.stall("to_client")
            timeout = 0.1 if give_up == "deadline" else 60
            given_up = await late.publish_async(stream, b"late", correlation_id="a", timeout=timeout)
            await until(lambda: len(values(liftbridge_server, stream)) == 2)
            if give_up == "deadline":
                with pytest.raises(AckTimeoutError):
                    await given_up
            else:
                given_up.cancel()
            again: Any = late.publish(stream, b"again", correlation_id="a")
            if way == "publish_async":
                again.close()
                again = await late.publish_async(stream, b"again", correlation_id="a")
            again = asyncio.ensure_future(again)
            await asyncio.sleep(0)  # begins the call
            proxy.resume("to_client")
            ack = await acked(again)
            assert (ack.offset, ack.correlation_id) == (2, "a")
    assert values(liftbridge_server, stream) == [b"first", b"late", b"again"]


async def test_late_ack_of_a_message_that_times_out_while_the_next_one_waits_for_metadata(
    liftbridge_server: LiftbridgeCluster, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = liftbridge_server.addresses[0]
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(address, address_map={address: proxy.address}, ack_wait=60) as late:
            await late.publish(stream, b"first")
            proxy.stall("to_client")
            given_up = await late.publish_async(stream, b"late", correlation_id="a", timeout=0.5)
            streams, has_metadata = late._publisher.streams, asyncio.Event()
            find = streams.partition_info

            async def find_late(*given: Any) -> Any:
                await has_metadata.wait()
                return await find(*given)

            monkeypatch.setattr(streams, "partition_info", find_late)
            again = asyncio.create_task(late.publish(stream, b"again", correlation_id="a"))
            await until(lambda: len(values(liftbridge_server, stream)) == 2)
            with pytest.raises(AckTimeoutError):
                await given_up
            has_metadata.set()
            await until(lambda: streams.count == 1)
            proxy.resume("to_client")
            ack = await acked(again)
            assert (ack.offset, ack.correlation_id) == (2, "a")
    assert values(liftbridge_server, stream) == [b"first", b"late", b"again"]
