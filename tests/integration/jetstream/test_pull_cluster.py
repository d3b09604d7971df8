"""Three servers: the consumer's leader steps down, or is killed, while it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest
from nats.aio.client import Client

from liftenvelope.errors import CallTimeoutError, JetStreamError
from liftenvelope.jetstream import JetStream
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream._events import LeadershipChanged, MissedHeartbeats, OrderedReset, PullEvent
from liftenvelope.jetstream._ordered.consumer import OrderedConsumer
from liftenvelope.jetstream.message import Message
from liftenvelope.testing import NatsServer
from tests.integration.conftest import connect, until
from tests.integration.jetstream_cluster import three_servers

from .pulling import Bench, feed_of, numbered, until_pulled

T = TypeVar("T")


class ClusterBench(Bench):
    """A stream whose leader may change during a publish: servers on a loaded machine elect anew."""

    async def publish(
        self, payloads: Sequence[bytes], subject: str = "a", headers: dict[str, str] | None = None
    ) -> None:
        """Store messages, and again those without an ack, which come later then."""
        left = list(payloads)
        async with asyncio.timeout(120), JetStream(self.nc, timeout=5) as js:
            while left:
                futures = [
                    await js.publish_async(
                        f"{self.name}.{subject}",
                        payload,
                        message_id=f"{subject} {payload.decode()}",
                        headers=headers,
                    )
                    for payload in left
                ]
                outcomes = await asyncio.gather(*futures, return_exceptions=True)
                left = [one for one, said in zip(left, outcomes, strict=True) if isinstance(said, Exception)]


@pytest.fixture
async def cluster() -> AsyncIterator[dict[str, NatsServer]]:
    """Three servers by their names."""
    with three_servers() as servers:
        yield servers


@pytest.fixture
async def nc(cluster: dict[str, NatsServer]) -> AsyncIterator[Client]:
    client = await connect(cluster["n1"].url)
    yield client
    if not client.is_closed:
        await client.close()


@pytest.fixture
async def bench(nc: Client, name: str) -> ClusterBench:
    """A stream on all three."""
    bench = ClusterBench(nc, name)
    bench.api.timeout = 5  # while there is no leader, nobody answers
    await patiently(lambda: bench.create(num_replicas=3))
    return bench


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Make a request that may be repeated until it has an answer: elections may take longer than one."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await ask()
            except (JetStreamError, CallTimeoutError):
                await asyncio.sleep(0.1)


async def consumer_of(bench: Bench, name: str = "worker", **config: Any) -> Consumer:
    """Create a consumer."""
    return await patiently(lambda: bench.consumer(name, **config))


async def leader_of(consumer: Consumer) -> str:
    async with asyncio.timeout(60):
        while True:
            try:
                cluster = (await consumer.info()).cluster
            except (JetStreamError, CallTimeoutError):
                cluster = None
            if cluster is not None and cluster.leader:
                return cluster.leader
            await asyncio.sleep(0.05)


async def step_down(consumer: Consumer) -> None:
    path = f"{consumer.stream_name}.{consumer.name}"
    await patiently(lambda: consumer.api.request(f"CONSUMER.LEADER.STEPDOWN.{path}"))


async def test_the_leader_steps_down(bench: Bench) -> None:
    """A stall bug of nats.go (2063). The account stays exact, and no heartbeat is waited for."""
    consumer = await consumer_of(bench)
    events: list[PullEvent] = []
    async with consumer.messages(max_messages=100, on_event=events.append) as messages:
        for cycle in range(3):
            await until_pulled(consumer)
            await leader_of(consumer)
            before = events.count(LeadershipChanged())
            await step_down(consumer)
            await until(lambda count=before: events.count(LeadershipChanged()) > count)  # type: ignore[misc]
            await leader_of(consumer)
            await bench.publish(numbered(10, 10 * cycle))
            got = {(await messages.next(timeout=20)).data for _ in range(10)}
            assert got == set(numbered(10, 10 * cycle))
            core = feed_of(messages)._core
            assert core.asked + core.buffered <= 100
        assert not any(isinstance(event, MissedHeartbeats) for event in events)


async def test_the_leader_steps_down_under_load(bench: Bench) -> None:
    consumer = await consumer_of(bench, ack_wait=1_000_000_000)
    seen: set[bytes] = set()

    def handle(message: Message) -> None:
        seen.add(message.data)
        message.ack()

    async with await consumer.consume(handle, max_messages=20, expires=4):
        await bench.publish(numbered(500))
        await until(lambda: len(seen) > 50)
        await step_down(consumer)
        await bench.publish(numbered(500, 500))
        async with asyncio.timeout(60):
            while len(seen) < 1000:
                await asyncio.sleep(0.02)


async def test_the_leader_is_killed(bench: Bench, cluster: dict[str, NatsServer]) -> None:
    """The reader's own connection stays up: nothing but heartbeats that are missed tells it."""
    consumer = await consumer_of(bench, ack_wait=1_000_000_000)
    async with asyncio.timeout(60):
        while (leader := await leader_of(consumer)) == "n1":
            await step_down(consumer)
            await asyncio.sleep(0.1)
    seen: set[bytes] = set()
    async with consumer.messages(expires=2, idle_heartbeat=0.5) as messages:
        await until_pulled(consumer)
        await asyncio.to_thread(cluster[leader].kill)
        assert await leader_of(consumer) != leader
        async with asyncio.timeout(60):
            while True:
                try:
                    await bench.api.request(f"STREAM.INFO.{bench.name}", timeout=1)
                    await bench.publish(numbered(20))
                    break
                except (JetStreamError, CallTimeoutError, TimeoutError):
                    await asyncio.sleep(0.1)
        while len(seen) < 20:
            message = await messages.next(timeout=20)
            seen.add(message.data)
            message.ack()
    assert seen == set(numbered(20))


async def only_consumer(bench: Bench) -> tuple[str, str]:
    """Return the name of the one consumer and of its server, once the list has both."""
    async with asyncio.timeout(60):
        while True:
            answer = await patiently(lambda: bench.api.request(f"CONSUMER.LIST.{bench.name}"))
            match answer["consumers"]:
                case [{"name": name, "cluster": {"leader": leader}}]:
                    return name, leader
            await asyncio.sleep(0.05)


async def test_ordered_when_its_server_is_killed(bench: Bench, cluster: dict[str, NatsServer]) -> None:
    """Its consumer lives on one server, in memory."""
    await bench.publish(numbered(200))
    events: list[PullEvent] = []
    ordered = OrderedConsumer(bench.api, bench.name)
    async with ordered.messages(
        max_messages=10, expires=2, idle_heartbeat=0.5, on_event=events.append
    ) as messages:
        got = [(await messages.next(timeout=20)).data for _ in range(50)]
        consumer, home = await only_consumer(bench)
        if home == "n1":
            # Once, because it is created again: a second deletion might hit the new one.
            await bench.api.request(f"CONSUMER.DELETE.{bench.name}.{consumer}", timeout=60)
        else:
            await asyncio.to_thread(cluster[home].kill)
        async with asyncio.timeout(60):
            while len(got) < 200:
                got.append((await messages.next(timeout=60)).data)
    assert sorted(got, key=int) == numbered(200)
    assert any(isinstance(event, OrderedReset) for event in events)
