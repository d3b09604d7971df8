"""Metrics of members of groups: what they have buffered, and what their partitions have left."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client

import liftenvelope
from liftenvelope.group import Coordinator, GroupConsumer, JetStreamTopic, LiftbridgeTopic
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.otel._telemetry import active
from liftenvelope.testing import GatewayCluster
from tests.integration.conftest import until

from .recording import Recording

LAG = "liftenvelope.group.lag"
BUFFERED = "liftenvelope.consumer.buffered"


@pytest.fixture
async def topic(js_nc: Client, name: str) -> AsyncIterator[JetStreamTopic]:
    """A topic with 5 messages in partition 0, and 3 in partition 1."""
    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",)))
        for partition, count in enumerate((5, 3)):
            for _ in range(count):
                await js.publish(f"{name}.{partition}")
    async with Coordinator(js_nc):
        yield JetStreamTopic.of_stream(name, [f"{name}.0", f"{name}.1"])


def left(recording: Recording, group: str, topic: str) -> dict[int, int]:
    """Return the lag of each partition, after a look at the other attributes."""
    found = {}
    for attributes, value in recording.points(LAG):
        partition = str(attributes["messaging.destination.partition.id"])
        assert attributes == {
            "messaging.system": "nats",
            "messaging.consumer.group.name": group,
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": partition,
        }
        found[int(partition)] = value
    return found


async def test_lag_is_that_of_the_partitions_of_a_member(
    js_nc: Client, recording: Recording, name: str, topic: JetStreamTopic
) -> None:
    async with GroupConsumer(js_nc, name, topic, auto_offset="earliest", timeout=60) as member:
        assert recording.points(LAG) == []
        first = await anext(member)
        assert left(recording, name, name) == {first.partition: 4 if first.partition == 0 else 2}
        taken = 1
        async for messages in member.batches():
            taken += len(messages)
            if taken == 8:
                break
        assert left(recording, name, name) == {0: 0, 1: 0}
    assert recording.points(LAG) == []


async def test_lag_of_a_partition_that_comes_back_is_unknown_before_its_next_message(
    js_nc: Client, recording: Recording, name: str, topic: JetStreamTopic
) -> None:
    async with GroupConsumer(js_nc, name, topic, auto_offset="earliest", timeout=60) as member:
        seen = 0
        async for messages in member.batches():
            seen += len(messages)
            if seen == 8:
                break
        await member.commit()
        assert left(recording, name, name) == {0: 0, 1: 0}
        async with GroupConsumer(js_nc, name, topic, timeout=60) as other:
            (moved,) = other.assignment
            await until(lambda: len(member.assignment) == 1)
        await until(lambda: len(member.assignment) == 2)
        assert left(recording, name, name) == {1 - moved.partition: 0}


async def test_lag_of_a_member_that_reads_batches_of_arrow(
    js_nc: Client, recording: Recording, name: str, topic: JetStreamTopic
) -> None:
    async with GroupConsumer(js_nc, name, topic, auto_offset="earliest", timeout=60) as member:
        await anext(member)
        rows = 1
        async for batch in member.arrow_batches(max_wait=0.1):
            rows += batch.num_rows
            if rows == 8:
                break
        assert left(recording, name, name) == {0: 0, 1: 0}


async def test_destination_template_is_never_called_by_the_exporter(
    js_nc: Client, name: str, topic: JetStreamTopic
) -> None:
    is_exporting = False

    def template(_: str) -> str:
        assert not is_exporting
        return "topics"

    with Recording(destination_template=template) as recording:
        async with GroupConsumer(js_nc, name, topic, auto_offset="earliest", timeout=60) as member:
            assert member.topics == (name,)
            await anext(member)
            forget_labels()
            is_exporting = True
            assert list(left(recording, name, "topics").values()) in ([4], [2])


def forget_labels() -> None:
    """Forget the labels of destinations, as happens after some thousands of them."""
    assert active.telemetry is not None
    active.telemetry.options.destinations._known.clear()


async def test_buffered_messages_of_a_member_are_observed(
    js_nc: Client, recording: Recording, name: str, topic: JetStreamTopic
) -> None:
    async with GroupConsumer(js_nc, name, topic, auto_offset="earliest", timeout=60) as member:
        await until(lambda: member.buffered == 8)
        # A reader of an earlier test that is not collected yet has its own point, of 0.
        points = [(labels, count) for labels, count in recording.points(BUFFERED) if count]
        assert points == [({"messaging.system": "nats", "liftenvelope.reader": "group"}, 8)]
        await anext(member)
        assert recording.total(BUFFERED) == 7
    assert recording.total(BUFFERED) == 0


async def test_liftbridge_tells_no_lag(
    gateway_server: GatewayCluster, js_nc: Client, recording: Recording, name: str
) -> None:
    async with liftenvelope.connect(gateway_server.addresses) as client:
        await client.create_stream(name, name)
        await client.publish(name, b"1")
        await client.publish(name, b"2")
        async with client.consumer(name, [name], auto_offset="earliest") as consumer:
            await anext(consumer)
            await until(lambda: consumer.buffered == 1)
            assert recording.total(BUFFERED, liftenvelope_reader="liftbridge") == 1
        topic = LiftbridgeTopic(client, name, 1)
        async with (
            Coordinator(js_nc),
            GroupConsumer(js_nc, name, topic, auto_offset="earliest", timeout=60) as member,
        ):
            await anext(member)
            await until(lambda: member.buffered == 1)
            assert recording.total(BUFFERED, liftenvelope_reader="group") == 1
        assert recording.points(LAG) == []
