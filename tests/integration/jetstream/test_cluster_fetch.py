"""Three servers: the consumer's leader steps down, or is killed, under fetches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from liftenvelope.errors import CallTimeoutError, JetStreamError, NoJetStreamError
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream.message import Message
from liftenvelope.testing import NatsServer

from . import test_pull_cluster as three
from .pulling import Bench, numbered, stream_of, until_no_pulls, until_pulled
from .test_pull_cluster import consumer_of, leader_of, step_down

#: Fixtures.
cluster, nc, bench = three.cluster, three.nc, three.bench


async def taken(seen: set[bytes], fetch: Callable[[], Awaitable[Any]], enough: int) -> None:
    """Fetch until all has been seen, by whomever."""
    while len(seen) < enough:
        try:
            got = await fetch()
        except (NoJetStreamError, CallTimeoutError):
            await asyncio.sleep(0.05)
            continue
        for message in got if isinstance(got, list) else [got]:
            seen.add(message.data)
            message.ack()


async def waits(fetching: asyncio.Task[Any], consumer: Consumer) -> bool:
    """Wait for a fetch's pull to wait at the server; false if the fetch ended before."""
    pulled = asyncio.create_task(until_pulled(consumer))
    await asyncio.wait([fetching, pulled], return_when=asyncio.FIRST_COMPLETED)
    if fetching.done():
        pulled.cancel()
        await asyncio.wait([pulled])
        return False
    await pulled
    return True


async def test_the_leader_steps_down(bench: Bench) -> None:
    """Under a fetch that waits; then under load, with three that share a consumer, and an ordered reader."""
    waited_for = await consumer_of(bench, "waiter", filter_subject=f"{bench.name}.b")
    fetching = asyncio.create_task(waited_for.fetch(5, expires=60))
    assert await waits(fetching, waited_for), fetching.result()
    await leader_of(waited_for)
    await step_down(waited_for)
    await leader_of(waited_for)
    await bench.publish(numbered(5), subject="b")
    batch = await asyncio.wait_for(fetching, 50)
    assert ([message.data for message in batch], batch.error) == (numbered(5), None)

    config: dict[str, Any] = {"ack_wait": 1_000_000_000, "filter_subject": f"{bench.name}.a"}
    consumer = await consumer_of(bench, **config)
    ordered = (await stream_of(bench)).ordered_consumer(filter_subjects=[f"{bench.name}.a"])
    seen: set[bytes] = set()
    in_order: list[Message] = []

    async def read_in_order() -> None:
        async with asyncio.timeout(90):
            while len(in_order) < 600:
                try:
                    in_order.extend(await ordered.fetch(20, expires=2))
                except (NoJetStreamError, CallTimeoutError):
                    await asyncio.sleep(0.05)

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(read_in_order())
        group.create_task(taken(seen, lambda: consumer.fetch(10, expires=2), 600))
        group.create_task(taken(seen, lambda: consumer.next(timeout=2), 600))
        group.create_task(taken(seen, lambda: consumer.fetch_no_wait(5), 600))
        for cycle in range(3):
            await bench.publish(numbered(200, 200 * cycle))
            await leader_of(consumer)
            await step_down(consumer)
    assert seen == set(numbered(600))
    assert sorted(int(message.data) for message in in_order) == list(range(600))
    sequences = [message.metadata.stream_sequence for message in in_order]
    assert sequences == sorted(sequences)
    await leader_of(consumer)  # until there is one, servers answer 503
    await until_no_pulls(consumer)


async def test_the_leader_is_killed_under_a_fetch_that_waits(
    bench: Bench, cluster: dict[str, NatsServer]
) -> None:
    """The reader's own connection stays up. Heartbeats that are missed say that nobody waits for messages."""
    consumer = await consumer_of(bench)
    async with asyncio.timeout(60):
        while (leader := await leader_of(consumer)) == "n1":
            await step_down(consumer)
            await asyncio.sleep(0.1)
    fetching = asyncio.create_task(consumer.fetch(5, expires=60, idle_heartbeat=0.5))
    while not await waits(fetching, consumer):  # servers without processor time are silent as well
        fetching = asyncio.create_task(consumer.fetch(5, expires=60, idle_heartbeat=0.5))
    await asyncio.to_thread(cluster[leader].kill)
    with pytest.raises((CallTimeoutError, JetStreamError)):
        await asyncio.wait_for(fetching, 50)
    assert await leader_of(Consumer(bench.api, consumer.cached_info)) != leader
