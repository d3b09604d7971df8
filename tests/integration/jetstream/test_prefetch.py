"""``next`` with ``prefetch`` on a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import (
    CallTimeoutError,
    ConnectionClosedError,
    ConsumerDeletedError,
    NoJetStreamError,
    UsageError,
)
from liftenvelope.jetstream._consumer import Consumer
from tests.integration.conftest import until

from .pulling import Bench, Wire, numbered, until_no_pulls

SECOND = 1_000_000_000


async def payloads(consumer: Consumer, count: int, prefetch: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = await consumer.next(timeout=20, prefetch=prefetch)
        message.ack()
        found.append(message.data)
    return found


async def test_many_messages_need_few_pulls(bench: Bench, js_nc: Client) -> None:
    await bench.publish(numbered(100))
    consumer = await bench.consumer()
    async with Wire(js_nc, consumer.pull_subject) as wire:
        assert await payloads(consumer, 100, prefetch=20) == numbered(100)
        await until(lambda: len(wire.payloads) == 6)  # the last one is sent when the last message is taken
        assert {pull["batch"] for pull in wire.pulls()} == {20}
    consumer.give_back()
    await until_no_pulls(consumer)
    assert (await consumer.info()).num_redelivered == 0


async def test_calls_without_it_buffer_nothing(bench: Bench, js_nc: Client) -> None:
    await bench.publish(numbered(3))
    consumer = await bench.consumer()
    assert await payloads(consumer, 2, prefetch=1) == numbered(2)
    assert consumer.give_back() == 0
    assert (await consumer.info()).num_pending == 1


async def test_what_is_given_back_is_redelivered_at_once(bench: Bench) -> None:
    await bench.publish(numbered(10))
    consumer = await bench.consumer(ack_wait=300 * SECOND)
    first = await consumer.next(timeout=20, prefetch=10)
    await first.ack_sync()
    await until(lambda: buffered(consumer) == 9)
    assert consumer.give_back() == 9
    assert consumer.give_back() == 0
    again = await consumer.fetch(9, expires=20)
    assert sorted(message.data for message in again) == numbered(9, 1)
    assert {message.metadata.num_delivered for message in again} == {2}


def buffered(consumer: Consumer) -> int:
    return sum(
        0 if one._feed is None else one._feed.buffered for one in consumer._prefetchers._known.values()
    )


async def test_what_nobody_takes_is_given_back_after_half_of_the_ack_wait(bench: Bench) -> None:
    await bench.publish(numbered(5))
    consumer = await bench.consumer(ack_wait=4 * SECOND)
    began = asyncio.get_running_loop().time()
    await (await consumer.next(timeout=20, prefetch=5)).ack_sync()
    again = await consumer.fetch(4, expires=20)
    waited = asyncio.get_running_loop().time() - began
    assert sorted(message.data for message in again) == numbered(4, 1)
    assert waited > 1.9
    assert {message.metadata.num_delivered for message in again} == {2}
    await until_no_pulls(consumer)


async def test_open_pull_ends_if_no_call_follows(bench: Bench, js_nc: Client) -> None:
    await bench.publish(numbered(1))
    consumer = await bench.consumer(ack_wait=SECOND)
    subscriptions = len(js_nc._subs)
    assert await payloads(consumer, 1, prefetch=10) == numbered(1)
    await until_no_pulls(consumer)
    await until(lambda: len(js_nc._subs) == subscriptions)


async def test_slow_caller_gets_fewer_at_a_time(bench: Bench, js_nc: Client) -> None:
    """Otherwise each message would be given back again and again, until ``max_deliver`` is reached."""
    await bench.publish(numbered(40))
    consumer = await bench.consumer(ack_wait=120 * SECOND)
    async with Wire(js_nc, consumer.pull_subject) as wire:
        await (await consumer.next(timeout=20, prefetch=40)).ack_sync()
        await until(lambda: buffered(consumer) == 39)
        (prefetcher,) = consumer._prefetchers._known.values()
        prefetcher._empty_at -= 60  # as if half of the ack_wait had passed
        prefetcher._tick()
        assert not buffered(consumer)
        assert len(await payloads(consumer, 30, prefetch=40)) == 30
        sizes = [pull["batch"] for pull in wire.pulls()]
    assert sizes[:2] == [40, 1]
    assert max(sizes[2:]) > 1  # it grows again
    assert (await consumer.info()).num_pending == 0


async def test_several_tasks_share_the_buffer(bench: Bench) -> None:
    await bench.publish(numbered(100))
    consumer = await bench.consumer()
    found: list[bytes] = []

    async def work() -> None:
        while True:
            message = await consumer.next(timeout=240, prefetch=8)
            found.append(message.data)
            message.ack()
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        workers = [tasks.create_task(work()) for _ in range(5)]
        await until(lambda: len(found) >= 100)
        for worker in workers:
            worker.cancel()
    assert found == numbered(100)


async def test_cancelled_call_takes_no_message(bench: Bench) -> None:
    consumer = await bench.consumer()
    call = asyncio.create_task(consumer.next(timeout=20, prefetch=5))
    waiting = asyncio.create_task(consumer.next(timeout=20, prefetch=5))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait({call})
    await bench.publish(numbered(2))
    assert (await waiting).data == b"0"
    assert (await consumer.next(timeout=20, prefetch=5)).data == b"1"


async def test_no_message_in_time(bench: Bench) -> None:
    consumer = await bench.consumer()
    with pytest.raises(CallTimeoutError, match=r"no message came within 0\.1 s"):
        await consumer.next(timeout=0.1, prefetch=5)
    await bench.publish(numbered(1))
    assert (await consumer.next(timeout=20, prefetch=5)).data == b"0"


async def test_consumer_is_deleted(bench: Bench, js_nc: Client) -> None:
    await bench.publish(numbered(2))
    consumer = await bench.consumer()
    assert await payloads(consumer, 1, prefetch=5) == numbered(1)
    await until(lambda: buffered(consumer) == 1)
    await js_nc.request(f"$JS.API.CONSUMER.DELETE.{bench.name}.worker", timeout=20)
    assert await payloads(consumer, 1, prefetch=5) == numbered(1, 1)  # it was here before
    with pytest.raises(ConsumerDeletedError):
        await consumer.next(timeout=20, prefetch=5)
    await bench.consumer()
    assert await payloads(consumer, 1, prefetch=5) == numbered(1)


async def test_nothing_answers(bench: Bench) -> None:
    consumer = await bench.consumer()
    await consumer.delete()
    with pytest.raises((NoJetStreamError, ConsumerDeletedError)):
        await consumer.next(timeout=20, prefetch=5)


async def test_connection_is_closed(bench: Bench, js_nc: Client) -> None:
    consumer = await bench.consumer()
    call = asyncio.create_task(consumer.next(timeout=20, prefetch=5))
    await asyncio.sleep(0.1)
    await js_nc.close()
    with pytest.raises(ConnectionClosedError):
        await call
    with pytest.raises(ConnectionClosedError):
        await consumer.next(timeout=20, prefetch=5)


@pytest.mark.parametrize(
    ("prefetch", "config", "text"),
    [
        (0, {}, "prefetch must be at least 1, got 0"),
        (11, {"max_batch": 10}, "prefetch must be at most 10, got 11"),
        (2, {"ack_policy": "none"}, "prefetch must be 1 for a consumer without acks, got 2"),
        (2, {"max_deliver": 1}, "prefetch must be 1 for a consumer with max_deliver=1, got 2"),
    ],
)
async def test_refused(bench: Bench, prefetch: int, config: dict[str, Any], text: str) -> None:
    consumer = await bench.consumer(**config)
    with pytest.raises(UsageError, match=text):
        await consumer.next(prefetch=prefetch)


async def test_unknown_group(bench: Bench) -> None:
    consumer = await bench.consumer()
    with pytest.raises(UsageError, match="group must be None"):
        await consumer.next(prefetch=2, group="jobs")
