"""Advisories about consumers, from a real server."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.client import Client

from liftenvelope.errors import ConnectionClosedError, UsageError
from liftenvelope.jetstream._advisories import (
    Advisories,
    Advisory,
    ConsumerCreatedAdvisory,
    ConsumerDeletedAdvisory,
    ConsumerPausedAdvisory,
    MaxDeliveriesAdvisory,
    MessageTerminatedAdvisory,
    PinnedAdvisory,
    UnpinnedAdvisory,
    read_advisory,
)

from .pulling import Bench, numbered


async def next_of(advisories: Advisories) -> Advisory:
    async with asyncio.timeout(60):
        return await anext(advisories)


async def test_a_group(bench: Bench, js_nc: Client) -> None:
    async with Advisories(js_nc, stream=bench.name) as advisories:
        consumer = await bench.consumer(priority_policy="pinned_client", priority_groups=["jobs"])
        created = await next_of(advisories)
        assert isinstance(created, ConsumerCreatedAdvisory)
        assert (created.stream, created.consumer) == (bench.name, "worker")
        assert created.time is not None
        assert created.id
        await bench.publish(numbered(2))
        (await consumer.next(timeout=20, group="jobs")).ack()
        pinned = await next_of(advisories)
        assert isinstance(pinned, PinnedAdvisory)
        state = (await consumer.info()).priority_groups[0]
        assert (pinned.group, pinned.pinned_id) == ("jobs", state.pinned_client_id)
        await consumer.unpin("jobs")
        unpinned = await next_of(advisories)
        assert isinstance(unpinned, UnpinnedAdvisory)
        assert (unpinned.group, unpinned.reason) == ("jobs", "admin")
        await consumer.pause(60)
        paused = await next_of(advisories)
        assert isinstance(paused, ConsumerPausedAdvisory)
        assert paused.paused
        await consumer.delete()
        assert isinstance(await next_of(advisories), ConsumerDeletedAdvisory)


async def test_messages_given_up(bench: Bench, js_nc: Client) -> None:
    consumer = await bench.consumer(max_deliver=1, ack_wait=120_000_000_000)
    await bench.publish(numbered(2))
    async with Advisories(js_nc, stream=bench.name, consumer="worker") as advisories:
        await bench.consumer("another")
        first, _ = await consumer.fetch(2, expires=20)
        first.term("no good")
        terminated = await next_of(advisories)
        assert isinstance(terminated, MessageTerminatedAdvisory)
        assert (terminated.stream_sequence, terminated.reason) == (1, "no good")
        await bench.consumer(max_deliver=1, ack_wait=1_000_000_000)
        # The server notices when the consumer is next asked for messages after ack_wait.
        await consumer.fetch(1, expires=3)
        exceeded = await next_of(advisories)
        assert isinstance(exceeded, MaxDeliveriesAdvisory)
        assert (exceeded.stream_sequence, exceeded.deliveries) == (2, 1)


async def test_ends_with_the_connection(js_nc: Client, bench: Bench) -> None:
    async with Advisories(js_nc) as advisories:
        waiting = asyncio.ensure_future(next_of(advisories))
        await asyncio.sleep(0)
        await js_nc.close()
        with pytest.raises(ConnectionClosedError):
            await waiting
    with pytest.raises(UsageError, match="entered before"):
        await advisories.__aenter__()


def test_one_of_a_kind_that_is_new() -> None:
    advisory = read_advisory(b'{"type":"io.nats.jetstream.advisory.v1.brand_new","stream":"S","more":1}')
    assert type(advisory) is Advisory
    assert (advisory.type, advisory.stream, advisory.data["more"]) == ("brand_new", "S", 1)


@pytest.mark.parametrize("payload", [b"", b"x", b"[]", b"{}", b'{"type":1}', b'"x"'])
def test_what_is_none(payload: bytes) -> None:
    with pytest.raises(UsageError, match="advisory"):
        read_advisory(payload)


def test_a_consumer_without_its_stream(js_nc: Client) -> None:
    with pytest.raises(UsageError, match="stream must be given with consumer"):
        Advisories(js_nc, consumer="worker")
