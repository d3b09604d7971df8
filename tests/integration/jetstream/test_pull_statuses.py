"""Statuses that one server alone does not send, injected into the inbox; and what must not be touched."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import NoJetStreamError
from liftenvelope.jetstream._events import (
    LeadershipChanged,
    LimitExceeded,
    MissedHeartbeats,
    NoResponders,
    PullEvent,
)
from liftenvelope.jetstream._pulling import feed as feed_module
from liftenvelope.jetstream._pulling import fetching as fetching_module
from liftenvelope.jetstream.infos import ConsumerInfo
from liftenvelope.nats.link import Link
from liftenvelope.testing import FaultProxy, NatsServer
from tests.integration.conftest import connect, until

from .pulling import Bench, Wire, feed_of, numbered, until_pulled

#: A fake, as nats-server 2.15.1 writes it: read in its source (consumer.go), since it takes a cluster.
LEADERSHIP_CHANGE = b"NATS/1.0 409 Leadership Change\r\n\r\n"
#: A fake of a pull that nobody takes, as captured from nats-server 2.15.1.
NO_RESPONDERS = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n"


async def inject(nc: Client, inbox: str, block: bytes) -> None:
    """Send a status as a server would: a block of headers, and nothing else."""
    Link(nc).write(b"HPUB %b %d %d\r\n%b\r\n" % (inbox.encode(), len(block), len(block), block), 1, 0)


async def test_leadership_change_without_headers(bench: Bench, js_nc: Client) -> None:
    """Defect 9, injected: the account went from 100 to 200."""
    consumer = await bench.consumer()
    events: list[PullEvent] = []
    async with (
        Wire(js_nc, consumer.pull_subject) as wire,
        consumer.messages(max_messages=100, on_event=events.append) as messages,
    ):
        for cycle in range(1, 6):
            await until(lambda count=cycle: len(wire.replies) == count)  # type: ignore[misc]
            await inject(js_nc, wire.replies[-1], LEADERSHIP_CHANGE)
            await until(lambda count=cycle: events.count(LeadershipChanged()) == count)  # type: ignore[misc]
        await until(lambda: len(wire.replies) == 6)
        assert [json.loads(payload)["batch"] for payload in wire.payloads] == [100] * 6
        core = feed_of(messages)._core
        assert (core.asked, core.waiting) == (100, 1)


async def test_nobody_answers_for_a_while(bench: Bench, js_nc: Client) -> None:
    """Defect 10, injected: a 503 ended the consumption."""
    consumer = await bench.consumer()
    events: list[PullEvent] = []
    async with (
        Wire(js_nc, consumer.pull_subject) as wire,
        consumer.messages(on_event=events.append) as messages,
    ):
        for cycle in range(1, 4):
            await until(lambda count=cycle: len(wire.replies) == count)  # type: ignore[misc]
            await inject(js_nc, wire.replies[-1], NO_RESPONDERS % consumer.pull_subject.encode())
        await bench.publish(numbered(3))
        assert [(await messages.next(timeout=20)).data for _ in range(3)] == numbered(3)
    assert events == [NoResponders()] * 3


async def test_fetch_waits_for_the_next_leader(bench: Bench, js_nc: Client) -> None:
    """Injected. Between two leaders no server takes a pull, which must not end the fetch."""
    consumer = await bench.consumer()
    nobody = NO_RESPONDERS % consumer.pull_subject.encode()
    async with Wire(js_nc, consumer.pull_subject) as wire:
        fetching = asyncio.create_task(consumer.fetch(3, expires=30))
        for number, status in enumerate([LEADERSHIP_CHANGE, nobody, nobody], 1):
            await until(lambda count=number: fetching.done() or len(wire.replies) == count)  # type: ignore[misc]
            await inject(js_nc, wire.replies[-1], status)
        await bench.publish(numbered(3))
        assert [message.data for message in await fetching] == numbered(3)


async def test_fetch_that_nobody_takes_yet_waits_if_the_consumer_exists(bench: Bench, js_nc: Client) -> None:
    """Injected. A server of a cluster sent this status to the first pull of a consumer just created."""
    consumer = await bench.consumer()
    async with Wire(js_nc, consumer.pull_subject) as wire:
        fetching = asyncio.create_task(consumer.fetch(3, expires=30))
        for number in (1, 2):
            await until(lambda count=number: fetching.done() or len(wire.replies) == count)  # type: ignore[misc]
            await inject(js_nc, wire.replies[-1], NO_RESPONDERS % consumer.pull_subject.encode())
        await until(lambda: fetching.done() or len(wire.replies) == 3)
        await bench.publish(numbered(3))
        assert [message.data for message in await fetching] == numbered(3)


async def test_reconnect_before_a_retry_is_due_sends_one_pull(
    jetstream_server: NatsServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second pull would take messages that nobody reads, or after the fetch has ended."""
    monkeypatch.setattr(fetching_module, "_PAUSE", 2.0)
    arrived, take_status = asyncio.Event(), fetching_module._Fetch.take_status

    def noted(fetch: Any, number: int, headers: Any) -> None:
        take_status(fetch, number, headers)
        arrived.set()

    monkeypatch.setattr(fetching_module._Fetch, "take_status", noted)
    watcher = await connect(jetstream_server.url)
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        bench = await Bench(nc, name).create()
        consumer = await bench.consumer()
        async with Wire(watcher, consumer.pull_subject) as wire:
            fetching = asyncio.create_task(consumer.fetch(3, expires=60))
            await until(lambda: len(wire.replies) == 1)
            await inject(watcher, wire.replies[0], LEADERSHIP_CHANGE)
            await asyncio.wait_for(arrived.wait(), 60)
            proxy.cut()
            await until(lambda: len(wire.replies) == 2)
            await asyncio.sleep(2.5)
            assert len(wire.replies) == 2
            await bench.publish(numbered(3))
            assert [message.data for message in await fetching] == numbered(3)
        await bench.delete()
        await nc.close()
    await watcher.close()


async def test_fetch_from_a_deleted_consumer_fails_at_once(bench: Bench) -> None:
    consumer = await bench.consumer()
    await bench.api.request(f"CONSUMER.DELETE.{bench.name}.worker")
    async with asyncio.timeout(60):
        with pytest.raises(NoJetStreamError, match="consumer not found: 'worker'"):
            await consumer.fetch(3, expires=3600)


async def test_fetch_ends_if_its_consumer_is_deleted_after_it_was_looked_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = await bench.consumer()
    info, known, looked_up = consumer.info, await consumer.info(), 0

    async def there_once(*, timeout: float | None = None) -> ConsumerInfo:
        nonlocal looked_up
        looked_up += 1
        return known if looked_up == 1 else await info(timeout=timeout)

    monkeypatch.setattr(consumer, "info", there_once)
    await bench.api.request(f"CONSUMER.DELETE.{bench.name}.worker")
    async with asyncio.timeout(60):
        with pytest.raises(NoJetStreamError, match="consumer not found: 'worker'"):
            await consumer.fetch(3, expires=3600)
    assert looked_up == 2


async def test_max_waiting(bench: Bench) -> None:
    """Defect 8: with heartbeats the server drops such a pull without a word; without, it refuses it."""
    consumer = await bench.consumer(max_waiting=1)
    events: list[PullEvent] = []
    async with consumer.messages(expires=1, idle_heartbeat=0.5) as first:
        await until_pulled(consumer)
        async with consumer.messages(expires=2, idle_heartbeat=0.5, on_event=events.append) as second:
            await until(lambda: any(isinstance(event, MissedHeartbeats | LimitExceeded) for event in events))
            first.stop()
            await bench.publish(numbered(3))
            assert [(await second.next(timeout=20)).data for _ in range(3)] == numbered(3)


async def test_a_missed_heartbeat_pulls_anew(bench: Bench, js_nc: Client) -> None:
    """Nobody serves the pulls: the consumer's subject is one that no server listens to."""
    consumer = await bench.consumer()
    events: list[PullEvent] = []

    async def swallow(_: Any) -> None:
        """Answers nothing, so that there is no 503 either."""

    dead_end = f"dead.{bench.name}"
    sub = await js_nc.subscribe(dead_end, cb=swallow)
    messages = consumer.messages(expires=1, idle_heartbeat=0.5, on_event=events.append)
    feed = feed_of(messages)
    alive, feed._subject = feed._subject, dead_end
    async with messages:
        await until(lambda: any(isinstance(event, MissedHeartbeats) for event in events))
        feed._subject = alive
        await bench.publish(numbered(1))
        assert (await messages.next(timeout=20)).data == b"0"
    await sub.unsubscribe()


async def test_the_connections_callbacks_are_left_alone(bench: Bench, js_nc: Client) -> None:
    """Defect 4: two more callbacks with every call."""
    names = [name for name in vars(js_nc) if name.endswith("_cb")]
    assert "_disconnected_cb" in names
    before = [getattr(js_nc, name) for name in names]
    consumer = await bench.consumer()
    await bench.publish(numbered(40))
    for _ in range(10):
        await consumer.fetch(1, expires=60, idle_heartbeat=20)
        async with consumer.messages(max_messages=1) as messages:
            await messages.next(timeout=20)
            assert [getattr(js_nc, name) for name in names] == before
    assert [getattr(js_nc, name) for name in names] == before
    assert js_nc.is_connected


async def test_a_slow_handler_is_no_silence(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats count when they arrive, whatever the reader is doing."""
    heartbeat, loop = 0.5, asyncio.get_running_loop()
    await bench.publish(numbered(3))
    consumer = await bench.consumer()
    heard = [loop.time()]
    silences: list[float] = []
    events: list[PullEvent] = []
    take_status = feed_module.PullFeed._take_status

    def noted(feed: Any, number: int, headers: Any) -> None:
        heard.append(loop.time())
        take_status(feed, number, headers)

    monkeypatch.setattr(feed_module.PullFeed, "_take_status", noted)

    def on_event(event: PullEvent) -> None:
        events.append(event)
        silences.append(loop.time() - heard[-1])

    async with consumer.messages(
        max_messages=10, expires=60, idle_heartbeat=heartbeat, on_event=on_event
    ) as messages:
        for handled in range(1, 4):
            await messages.next(timeout=20)
            await until(lambda count=handled: len(heard) > 3 * count)  # type: ignore[misc]
    # A server that gets no processor time for a second is silent.
    assert all(isinstance(event, MissedHeartbeats) for event in events)
    assert all(silence >= 2 * heartbeat for silence in silences)


@pytest.mark.parametrize("rounds", [40])
async def test_drain_loses_nothing_again_and_again(bench: Bench, rounds: int) -> None:
    """Defect 16: nats-py's own drain lost delivered messages in 34 of 200 runs.

    What the server itself hands to an inbox that has just gone comes again after ack_wait, and is not lost.
    """
    await bench.publish(numbered(2000))
    consumer = await bench.consumer(ack_wait=1_000_000_000)
    seen: set[bytes] = set()
    for _ in range(rounds):
        async with consumer.messages(max_messages=30) as messages:
            for _ in range(5):
                message = await messages.next(timeout=20)
                seen.add(message.data)
                message.ack()
            await messages.drain()
            async for message in messages:
                seen.add(message.data)
                message.ack()
    while len(seen) < 2000:
        for message in await consumer.fetch(500, expires=2):
            seen.add(message.data)
            message.ack()
    assert seen == set(numbered(2000))


async def test_cancelled_at_every_step(bench: Bench, js_nc: Client) -> None:
    """After each number of the loop's turns: no subscription is left, and no pull waits."""
    await bench.publish(numbered(5))
    consumer = await bench.consumer(ack_policy="none")
    await consumer.info()
    before = len(js_nc._subs)
    for turns in range(12):
        for work in (consumer.fetch(10, expires=20), read_for_ever(consumer), consumer.next(timeout=20)):
            task = asyncio.ensure_future(work)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
    await until(lambda: len(js_nc._subs) == before)
    async with asyncio.timeout(20):
        while (await consumer.info()).num_waiting:
            await asyncio.sleep(0.01)


async def read_for_ever(consumer: Any) -> None:
    async with consumer.messages() as messages:
        async for _ in messages:
            await asyncio.sleep(0)
