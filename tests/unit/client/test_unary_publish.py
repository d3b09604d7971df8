"""Unary publishes that are given up, on scripted brokers."""

from __future__ import annotations

import asyncio

import pytest

from liftenvelope.errors import UsageError
from tests.unit.scripted_broker import client_of, scripted, stall, until

pytestmark = pytest.mark.usefixtures("loop_errors")


async def test_id_of_a_message_cancelled_without_a_connection_can_be_used_again() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(0)
        await client.publish("foo", b"first", ack_inbox="acks")  # the metadata is cached from here on
        await broker.server.close()
        for _ in range(3):
            task = asyncio.create_task(client.publish("foo", b"v", ack_inbox="acks", correlation_id="a"))
            await asyncio.wait([task], timeout=0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_id_of_a_message_cancelled_after_it_was_sent_is_refused() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.log(0)
        broker.next("Publish", stall)
        task = asyncio.create_task(client.publish("foo", b"v", ack_inbox="acks", correlation_id="a"))
        await until(lambda: broker.calls["Publish"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(UsageError, match="may still come"):
            await client.publish("foo", b"v", ack_inbox="acks", correlation_id="a")
