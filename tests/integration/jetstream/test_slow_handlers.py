"""Handlers that block the event loop for longer than two heartbeats: no reason to call the server silent."""

from __future__ import annotations

import asyncio
import time

from nats.aio.client import Client

from liftenvelope.jetstream import Message, MissedHeartbeats, PullEvent
from tests.integration.conftest import until

from .pulling import Bench, Wire, numbered, until_pulled


async def test_slow_handler_of_consume_misses_no_heartbeats(bench: Bench) -> None:
    """Heartbeats come every three seconds, and wait in the socket."""
    await bench.publish(numbered(2))
    consumer = await bench.consumer()
    events: list[PullEvent] = []
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        if not seen:
            time.sleep(6.5)  # more than two heartbeats
        seen.append(message.data)
        message.ack()

    async with await consumer.consume(
        handle, max_messages=10, expires=6, idle_heartbeat=3, on_event=events.append
    ):
        await until(lambda: len(seen) == 2)
    assert seen == numbered(2)
    assert not [event for event in events if isinstance(event, MissedHeartbeats)]


async def test_a_blocked_loop_does_not_pull_twice(bench: Bench, js_nc: Client) -> None:
    """Requested messages are still in transit: another pull would exceed the limit of the buffer."""
    consumer = await bench.consumer()
    async with (
        Wire(js_nc, consumer.pull_subject) as wire,
        consumer.messages(max_messages=10, expires=60, idle_heartbeat=3) as messages,
    ):
        await until(lambda: len(wire.payloads) == 1)
        await until_pulled(consumer)
        time.sleep(6.5)  # more than two heartbeats
        await bench.publish(numbered(30))
        await until(lambda: messages.buffered >= 10)
        assert messages.buffered == 10
        assert len(wire.payloads) == 1


async def test_blocked_loop_does_not_end_a_fetch(bench: Bench) -> None:
    consumer = await bench.consumer()
    fetching = asyncio.create_task(consumer.fetch(3, expires=60, idle_heartbeat=3))
    await until_pulled(consumer)
    time.sleep(6.5)  # more than two heartbeats
    await bench.publish(numbered(3))
    assert [message.data for message in await fetching] == numbered(3)
