"""Fetches that wait for longer than one pull may, to keep a pin or by the consumer's configuration."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.client import Client

from liftenvelope.errors import CallTimeoutError
from liftenvelope.jetstream._consumer import Consumer
from tests.integration.conftest import until

from .pulling import Bench, Wire, numbered, until_no_pulls, until_pulled


async def pinned_consumer(bench: Bench, timeout: int) -> Consumer:
    return await bench.consumer(
        priority_policy="pinned_client", priority_groups=["jobs"], priority_timeout=timeout * 10**9
    )


async def test_a_fetch_keeps_its_pin(bench: Bench, js_nc: Client) -> None:
    """Servers count pulls for a sign of life: one of a minute would lose the pin after twelve seconds."""
    consumer = await pinned_consumer(bench, timeout=12)
    standby = Consumer(bench.api, consumer.cached_info)
    async with Wire(js_nc, consumer.pull_subject) as wire:
        fetching = asyncio.create_task(consumer.fetch(3, expires=60, idle_heartbeat=20, group="jobs"))
        await until_pulled(consumer)
        await bench.publish(numbered(1))
        async with asyncio.timeout(60):
            while not (state := (await consumer.info()).priority_groups[0]).pinned_client_id:
                await asyncio.sleep(0.01)
        waiting = asyncio.create_task(standby.fetch(1, expires=60, group="jobs"))
        async with asyncio.timeout(60):
            while sum(pull.get("id") == state.pinned_client_id for pull in wire.pulls()) < 2:
                await asyncio.sleep(0.01)
        await bench.publish(numbered(2, 1))
        batch = await asyncio.wait_for(fetching, 20)
        waiting.cancel()
        await asyncio.wait({waiting})
    assert [message.data for message in batch] == numbered(3)
    assert all(pull["expires"] <= 6_000_000_000 for pull in wire.pulls())
    assert all(2 * pull.get("idle_heartbeat", 0) <= pull["expires"] for pull in wire.pulls())


async def test_long_fetch_ends_when_its_time_is_up(bench: Bench, js_nc: Client) -> None:
    consumer = await pinned_consumer(bench, timeout=2)
    async with Wire(js_nc, consumer.pull_subject) as wire:
        assert await consumer.fetch(3, expires=6, group="jobs") == []
    waits = [pull["expires"] / 1e9 for pull in wire.pulls()]
    assert len(waits) >= 2
    assert sum(waits) <= 6
    assert max(waits) <= 1
    with pytest.raises(CallTimeoutError):
        await consumer.next(timeout=1.2, group="jobs")
    await until_no_pulls(consumer)


async def test_longer_than_the_consumer_allows_a_pull(bench: Bench, js_nc: Client) -> None:
    """The defaults of fetch and next go with every consumer."""
    consumer = await bench.consumer(max_expires=1_000_000_000)
    async with Wire(js_nc, consumer.pull_subject) as wire:
        fetching = asyncio.create_task(consumer.fetch(2))
        await until(lambda: len(wire.payloads) >= 3)
        await bench.publish(numbered(3))
        assert [message.data for message in await asyncio.wait_for(fetching, 20)] == numbered(2)
        assert (await consumer.next()).data == b"2"
    assert all(pull["expires"] <= 1_000_000_000 for pull in wire.pulls())
    await until_no_pulls(consumer)
