"""publish_many against a real server: what it takes, what it gives, and what it does when something fails."""

from __future__ import annotations

import asyncio
import gc
import itertools
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.client._publish_many import Item, OutgoingMessage
from liftenvelope.envelope import AckPolicy, Message
from liftenvelope.errors import (
    AckTimeoutError,
    IncorrectOffsetError,
    MessageTooLargeError,
    NoSuchPartitionError,
    NoSuchStreamError,
    TransportError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.partition import KeyPartitioner
from liftenvelope.testing import FaultProxy, LiftbridgeCluster
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


async def slowly(items: Any, pause: float = 0.0) -> AsyncIterator[Any]:
    for item in items:
        await asyncio.sleep(pause)
        yield item


@pytest.mark.parametrize("max_in_flight", [1, 7, 1000, 100_000])
async def test_all_are_stored_in_order(
    client: Client, stream: str, liftbridge_server: LiftbridgeCluster, max_in_flight: int
) -> None:
    count = 200 if max_in_flight == 1 else 3000
    sent = [b"%d" % i for i in range(count)]
    summary = await client.publish_many(stream, sent, max_in_flight=max_in_flight)
    assert (summary.acked, summary.failures) == (count, {})
    assert summary.offsets == {0: (0, count - 1)}
    assert values(liftbridge_server, stream) == sent


async def test_every_kind_of_message(
    client: Client, stream: str, liftbridge_server: LiftbridgeCluster
) -> None:
    items: list[Item] = [
        b"plain",
        bytearray(b"array"),
        memoryview(b"view"),
        (None, b"no key"),
        (b"k", bytearray(b"pair")),
        OutgoingMessage(value=b"full", key=b"k", headers={"a": b"b"}, partition=2),
        Message(b"read", key=b"k", headers={"c": b"d"}, partition=1),
    ]
    summary = await client.publish_many(stream, items)
    assert summary.acked == 7
    assert sum(last - first + 1 for first, last in summary.offsets.values()) == 7
    by_key = KeyPartitioner().partition(stream, b"k", b"", 3)
    assert b"no key" in values(liftbridge_server, stream, 0)
    assert {b"pair", b"read"} <= set(values(liftbridge_server, stream, by_key))
    full = next(m for m in liftbridge_server.read(stream, partition=2, count=1))
    assert full.value in (b"full", b"pair")


async def test_partitions(client: Client, stream: str, liftbridge_server: LiftbridgeCluster) -> None:
    sent = [b"%d" % i for i in range(9)]
    summary = await client.publish_many(stream, sent, partitioner="round_robin")
    assert summary.offsets == {0: (0, 2), 1: (0, 2), 2: (0, 2)}
    assert values(liftbridge_server, stream, 1) == [b"1", b"4", b"7"]
    assert (await client.publish_many(stream, sent, partition=2)).offsets == {2: (3, 11)}
    by_value = await client.publish_many(stream, sent, partitioner=lambda _, value, count: int(value) % count)
    assert by_value.offsets[1] == (3, 5)
    with pytest.raises(NoSuchPartitionError):
        await client.publish_many(stream, sent, partition=3)


async def test_acks_come_in_the_order_of_the_input(client: Client, stream: str) -> None:
    items = [(b"%d" % i, b"v") for i in range(500)]
    seen = [(index, ack.offset) async for index, ack in client.publish_many(stream, items, max_in_flight=20)]
    assert [index for index, _ in seen] == list(range(500))
    many = client.publish_many(stream, slowly(items), max_in_flight=20, ack_policy=AckPolicy.ALL)
    assert [index async for index, _ in many] == list(range(500))
    assert many.summary.acked == 500


@pytest.mark.parametrize("max_in_flight", [1, 2, 200])
async def test_a_loop_over_a_quick_async_iterable_never_stalls(
    client: Client, stream: str, max_in_flight: int
) -> None:
    async def messages() -> AsyncIterator[bytes]:
        for i in range(1000):
            if i % 100 == 0:
                await asyncio.sleep(0)
            yield b"v"

    async with asyncio.timeout(120):
        many = client.publish_many(stream, messages(), max_in_flight=max_in_flight)
        assert [index async for index, _ in many] == list(range(1000))


async def test_a_slow_loop_slows_the_taking(client: Client, stream: str) -> None:
    taken = itertools.count()
    many = client.publish_many(stream, (b"%d" % next(taken) for _ in range(100)), max_in_flight=5)
    async for index, _ in many:
        assert next(taken) <= index + 12 + index  # every look counts one
    assert many.summary.acked == 100


@pytest.mark.parametrize("items", [[], iter(()), slowly([])])
async def test_nothing(client: Client, stream: str, items: Any) -> None:
    many = client.publish_many(stream, items)
    summary = await many
    assert (summary.acked, summary.failures, summary.offsets) == (0, {}, {})
    assert await many == summary
    assert [ack async for ack in client.publish_many(stream, [])] == []


async def test_an_async_iterable(client: Client, stream: str, liftbridge_server: LiftbridgeCluster) -> None:
    tasks = asyncio.all_tasks()
    sent = [b"%d" % i for i in range(300)]
    summary = await client.publish_many(stream, slowly(sent), max_in_flight=10)
    assert summary.acked == 300
    assert values(liftbridge_server, stream) == sent
    assert len(asyncio.all_tasks()) <= len(tasks) + 2  # the stream's own


async def test_a_missing_stream(client: Client) -> None:
    taken = itertools.count()
    with pytest.raises(NoSuchStreamError):
        await client.publish_many("nowhere", (b"%d" % next(taken) for _ in range(3)))
    assert next(taken) == 0


def failing(count: int) -> Iterator[bytes]:
    for i in range(count):
        yield b"%d" % i
    raise ZeroDivisionError("the source is broken")


@pytest.mark.parametrize("on_error", ["raise", "collect"])
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_an_iterable_that_raises(
    client: Client, stream: str, liftbridge_server: LiftbridgeCluster, how: str, on_error: Any
) -> None:
    source = failing(700) if how == "sync" else slowly(failing(700))
    many = client.publish_many(stream, source, max_in_flight=50, on_error=on_error)
    with pytest.raises(ZeroDivisionError, match="broken"):
        await many
    assert many.summary.acked == 700
    assert len(values(liftbridge_server, stream)) == 700
    with pytest.raises(ZeroDivisionError):
        await many


async def test_an_iterable_that_raises_in_a_loop_gives_its_acks_first(client: Client, stream: str) -> None:
    seen = []

    async def loop() -> None:
        async for index, _ in client.publish_many(stream, failing(30), max_in_flight=50):
            seen.append(index)

    with pytest.raises(ZeroDivisionError):
        await loop()
    assert seen == list(range(30))


async def test_a_partitioner_that_raises(client: Client, stream: str) -> None:
    many = client.publish_many(stream, [b"1", b"0", b"2"], partitioner=lambda _, value, __: 1 // int(value))
    with pytest.raises(ZeroDivisionError):
        await many
    assert many.summary.acked == 1


GARBAGE = [5, None, "text", (b"k",), (b"k", b"v", b"x"), (5, b"v"), (b"k", 5), object()]


@pytest.mark.parametrize("item", GARBAGE)
async def test_garbage_ends_it(
    client: Client, stream: str, liftbridge_server: LiftbridgeCluster, item: Any
) -> None:
    with pytest.raises(UsageError) as caught:
        await client.publish_many(stream, [b"a", b"b", item, b"c"])
    assert caught.value.__notes__ == ["message 2 of publish_many"]
    assert caught.value.summary is not None
    assert (caught.value.summary.acked, len(caught.value.summary.failures)) == (2, 1)
    assert values(liftbridge_server, stream) == [b"a", b"b"]


async def test_garbage_is_collected(client: Client, name: str) -> None:
    await client.create_stream(name, name)
    items = [b"a", *GARBAGE, OutgoingMessage(value=b"v", partition=1), b"v" * 5_000_000, b"b"]
    summary = await client.publish_many(name, items, on_error="collect")  # type: ignore[arg-type]  # that is it
    assert summary.acked == 2
    assert list(summary.failures) == list(range(1, 11))
    assert isinstance(summary.failures[1], UsageTypeError)
    assert isinstance(summary.failures[9], NoSuchPartitionError)
    assert isinstance(summary.failures[10], MessageTooLargeError)


@pytest.mark.parametrize("is_async", [False, True], ids=["iterable", "async iterable"])
@pytest.mark.parametrize(("max_in_flight", "count"), [(1, 1), (1, 3), (100, 100), (100, 1000)])
@pytest.mark.parametrize("in_a_loop", [False, True])
async def test_invalid_messages_that_fill_the_room_do_not_stop_the_sending(
    client: Client, stream: str, max_in_flight: int, count: int, is_async: bool, in_a_loop: bool
) -> None:
    invalid: Any = b"x" * 4_200_000 if count == 1 else (b"three", b"parts", b"here")
    items = [b"a", *[invalid] * count, b"b"]
    source = slowly(items) if is_async else items
    many = client.publish_many(stream, source, max_in_flight=max_in_flight, on_error="collect")
    async with asyncio.timeout(60):
        if in_a_loop:
            assert [index async for index, _ in many] == [0, count + 1]
        else:
            await many
    assert many.summary.acked == 2
    assert list(many.summary.failures) == list(range(1, count + 1))


async def test_reserved_headers(client: Client, stream: str) -> None:
    with pytest.raises(UsageError, match="subject"):
        await client.publish_many(stream, [OutgoingMessage(value=b"v", headers={"subject": b"x"})])


async def test_the_first_failure_ends_it_when_all_is_settled(client: Client, name: str) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    taken: list[int] = []

    def messages() -> Iterator[OutgoingMessage]:
        for i in range(100_000):
            taken.append(i)
            yield OutgoingMessage(value=b"v", expected_offset=i if i != 50 else 7)

    many = client.publish_many(name, messages(), max_in_flight=20)
    with pytest.raises(IncorrectOffsetError) as caught:
        await many
    summary = caught.value.summary
    assert summary == many.summary
    assert min(summary.failures) == 50
    assert 50 <= summary.acked < 200
    assert len(taken) == summary.acked + len(summary.failures) < 200


async def test_failures_are_collected(client: Client, name: str) -> None:
    await client.create_stream(name, name, optimistic_concurrency=True)
    items = [OutgoingMessage(value=b"%d" % i, expected_offset=99 if i % 10 == 5 else -1) for i in range(100)]
    many = client.publish_many(name, items, on_error="collect", max_in_flight=8)
    assert [index async for index, _ in many] == [i for i in range(100) if i % 10 != 5]
    assert list(many.summary.failures) == [i for i in range(100) if i % 10 == 5]
    assert many.summary.offsets == {0: (0, 89)}


async def test_two_at_once_keep_their_own_order(
    client: Client, stream: str, liftbridge_server: LiftbridgeCluster
) -> None:
    one, two = ([b"%s%d" % (who, i) for i in range(1000)] for who in (b"a", b"b"))
    summaries = await asyncio.gather(client.publish_many(stream, one), client.publish_many(stream, two))
    assert [summary.acked for summary in summaries] == [1000, 1000]
    stored = values(liftbridge_server, stream)
    assert [value for value in stored if value in set(one)] == one
    assert [value for value in stored if value in set(two)] == two


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_cancelling_half_way(client: Client, stream: str, how: str) -> None:
    endless = (b"v" for _ in itertools.count())
    many = client.publish_many(stream, endless if how == "sync" else slowly(endless), max_in_flight=50)
    task = asyncio.ensure_future(_await(many))
    await until(lambda: many.summary.acked > 200)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    acked = many.summary.acked
    await client.flush()
    assert many.summary.acked == acked
    assert await client.publish(stream, b"v") is not None


async def _await(many: Any) -> Any:
    return await many


async def test_leaving_a_loop(client: Client, stream: str) -> None:
    many = client.publish_many(stream, slowly(b"v" for _ in itertools.count()), max_in_flight=10)
    async for index, _ in many:
        if index == 25:
            break
    await many.aclose()
    await many.aclose()
    assert [ack async for ack in many] == []
    assert len([task for task in asyncio.all_tasks() if "_pull" in repr(task)]) == 0


async def test_closing_the_client_ends_an_endless_one(
    liftbridge_server: LiftbridgeCluster, client: Client, stream: str
) -> None:
    tasks = asyncio.all_tasks()
    closing = liftenvelope.connect(liftbridge_server.addresses)
    await closing.open()
    endless = [b"v"] * 10
    runs = [
        closing.publish_many(stream, itertools.cycle(endless), on_error="collect"),
        closing.publish_many(stream, slowly(itertools.cycle(endless)), on_error="raise"),
    ]
    waiting = [asyncio.ensure_future(_await(run)) for run in runs]
    await until(lambda: all(run.summary.acked > 100 for run in runs))
    await closing.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, TransportError) for outcome in outcomes)
    assert asyncio.all_tasks() == tasks


async def test_an_endless_iterable_runs_in_flat_memory(client: Client, stream: str) -> None:
    sizes: list[int] = []

    def messages() -> Iterator[bytes]:
        for i in range(40_000):
            if i in (10_000, 39_999):
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
            yield b"%0100d" % i

    tracemalloc.start()
    try:
        assert (await client.publish_many(stream, messages(), max_in_flight=200)).acked == 40_000
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 300_000


async def test_messages_that_get_no_ack_fail_at_their_deadlines(
    liftbridge_server: LiftbridgeCluster, client: Client, stream: str
) -> None:
    address = liftbridge_server.addresses[0]
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(address, address_map={address: proxy.address}) as stalled:
            await stalled.publish(stream, b"v")
            proxy.stall("to_client")
            began = asyncio.get_running_loop().time()
            summary = await stalled.publish_many(
                stream, [b"v"] * 25, max_in_flight=10, timeout=0.3, on_error="collect"
            )
            taken = asyncio.get_running_loop().time() - began
            assert 0.85 < taken < 30
            assert summary.acked == 0
            assert len(summary.failures) == 25
            assert all(isinstance(e, AckTimeoutError) and e.sent for e in summary.failures.values())
            proxy.resume()
            assert (await stalled.publish_many(stream, [b"w"] * 5)).acked == 5
            newest = liftbridge_server.partition_metadata(stream).newestOffset
    assert newest == 30


async def _cancelled_inside() -> AsyncIterator[Item]:
    yield b"v"
    inner = asyncio.ensure_future(asyncio.sleep(60))
    inner.cancel()
    await inner
    yield b"w"


async def test_an_async_iterable_that_awaits_something_cancelled_ends_it(client: Client, stream: str) -> None:
    many = client.publish_many(stream, _cancelled_inside())
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(60):
            await many
    assert many.summary.acked == 1


@pytest.mark.parametrize("count", [0, 3])
async def test_closing_the_client_fails_one_whose_iterable_has_not_ended(
    liftbridge_server: LiftbridgeCluster, client: Client, stream: str, count: int
) -> None:
    async def some_then_none() -> AsyncIterator[Item]:
        for _ in range(count):
            yield b"v"
        has_blocked.set()
        await asyncio.Event().wait()

    has_blocked = asyncio.Event()
    closing = liftenvelope.connect(liftbridge_server.addresses)
    await closing.open()
    many = closing.publish_many(stream, some_then_none())
    waiting = asyncio.ensure_future(_await(many))
    await has_blocked.wait()
    await until(lambda: many.summary.acked == count)
    await closing.close()
    with pytest.raises(TransportError, match="closed") as caught:
        await asyncio.wait_for(waiting, 60)
    assert caught.value.summary is not None
    assert caught.value.summary.acked == count
