"""Code of a user of the two clients; mypy must see these types."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from typing import assert_type

import liftenvelope
from liftenvelope import Ack, BlockingClient, Client, Message
from liftenvelope.client import (
    Consumer,
    MergedSubscription,
    Metadata,
    PublishMany,
    PublishSummary,
    Subscription,
)
from liftenvelope.client.blocking import (
    BlockingCheckpointer,
    BlockingConsumer,
    BlockingMergedSubscription,
    BlockingSubscription,
)


async def use(client: Client) -> None:
    assert_type(await client.publish("orders", b"tea", key=b"7"), Ack | None)
    assert_type(await client.publish_async("orders", b"tea"), asyncio.Future[Ack | None])
    assert_type(client.publish_many("orders", [b"tea"]), PublishMany)
    assert_type(await client.fetch_metadata(streams=["orders"]), Metadata)
    assert_type(await client.fetch_cursor("me", "orders", 0), int | None)
    assert_type(client.subscribe("orders"), Subscription)
    assert_type(client.subscribe("orders", partition="all"), MergedSubscription)
    assert_type(client.subscribe("orders", partitions=[1, 2]), MergedSubscription)
    assert_type(client.consumer("billing", "orders"), Consumer)
    async with liftenvelope.connect("localhost") as other:
        assert_type(other, Client)
    await client.publish("orders")  # type: ignore[call-arg]
    await client.publish("orders", "tea")  # type: ignore[arg-type]
    await client.create_stream("orders", "orders", partition=3)  # type: ignore[call-arg]


def use_blocking(client: BlockingClient) -> None:
    assert_type(client.publish("orders", b"tea", key=b"7"), Ack | None)
    assert_type(client.publish_async("orders", b"tea"), concurrent.futures.Future[Ack | None])
    assert_type(client.publish_many("orders", [b"tea"]), PublishSummary)
    assert_type(client.publish_acks("orders", [b"tea"]), Iterator[tuple[int, Ack]])
    assert_type(client.fetch_metadata(streams=["orders"]), Metadata)
    assert_type(client.fetch_cursor("me", "orders", 0), int | None)
    assert_type(client.subscribe("orders"), BlockingSubscription)
    assert_type(client.subscribe("orders", partition="all"), BlockingMergedSubscription)
    assert_type(client.subscribe("orders", partitions=[1, 2]), BlockingMergedSubscription)
    assert_type(client.consumer("billing", "orders"), BlockingConsumer)
    assert_type(client.checkpointer("me", "orders"), BlockingCheckpointer)
    with liftenvelope.connect_blocking("localhost", ack_wait=3) as other:
        assert_type(other, BlockingClient)
    with client.subscribe("orders", start="earliest") as messages:
        assert_type(next(messages), Message)
        assert_type([message.value for message in messages], list[bytes])
        assert_type(messages.batches(10), Iterator[list[Message]])
        assert_type(messages.position, int | None)
    client.publish("orders")  # type: ignore[call-arg]
    client.publish("orders", "tea")  # type: ignore[arg-type]
