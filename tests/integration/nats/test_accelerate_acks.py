"""The tests of the ack inbox and of the publisher again, on accelerated connections, and under faults."""

from __future__ import annotations

import pytest
from nats.aio.client import Client

from liftenvelope.nats import AckInbox, EnvelopePublisher, accelerate
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, NatsServer, run_liftbridge
from tests.integration.conftest import connect, until
from tests.integration.nats.test_acks import (
    test_a_failing_on_stray_costs_no_ack,
    test_ack_timeout_names_the_subject_and_the_usual_causes,
    test_acks_can_be_correlated_by_hand,
    test_drain_waits_for_every_outcome,
    test_each_policy_that_acks,
    test_optimistic_concurrency,
    test_places_are_waited_for_and_nothing_is_dropped,
    test_several_streams_on_one_subject,
    test_what_is_no_ack_is_counted,
    test_wildcard_subjects,
)
from tests.integration.nats.test_publisher import (
    test_a_cancelled_batch_leaves_nothing_behind,
    test_batches_of_every_size_are_acked_in_order,
    test_two_batches_at_once,
)

__all__ = [
    "test_a_cancelled_batch_leaves_nothing_behind",
    "test_a_failing_on_stray_costs_no_ack",
    "test_ack_timeout_names_the_subject_and_the_usual_causes",
    "test_acks_can_be_correlated_by_hand",
    "test_batches_of_every_size_are_acked_in_order",
    "test_drain_waits_for_every_outcome",
    "test_each_policy_that_acks",
    "test_optimistic_concurrency",
    "test_places_are_waited_for_and_nothing_is_dropped",
    "test_several_streams_on_one_subject",
    "test_two_batches_at_once",
    "test_what_is_no_ack_is_counted",
    "test_wildcard_subjects",
]


@pytest.fixture
async def nc(nats_server: NatsServer) -> Client:
    """A connection to a plain NATS server, accelerated."""
    client = await connect(nats_server.url)
    assert accelerate(client).active
    return client


@pytest.fixture
async def lb_nc(liftbridge_server: LiftbridgeCluster) -> Client:
    """A connection to the NATS server that the Liftbridge server uses, accelerated."""
    client = await connect(liftbridge_server.nats_url)
    assert accelerate(client).active
    return client


async def test_accelerated_between_publishes(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str
) -> None:
    """An inbox that was there before, and is there afterwards."""
    liftbridge_server.create_stream(name)
    client = await connect(liftbridge_server.nats_url)
    async with AckInbox(client, max_outstanding=100) as inbox:
        publisher = EnvelopePublisher(client, name, inbox=inbox, timeout=60)
        for round_ in range(4):
            acceleration = accelerate(client) if round_ % 2 else None
            summary = await (await publisher.publish_batch([b"%d" % i for i in range(1_000)]))
            assert list(summary.offsets) == list(range(round_ * 1_000, round_ * 1_000 + 1_000))
            if acceleration is not None:
                acceleration.restore()
        assert inbox.stats.completed == 4_000
    await client.close()


@pytest.mark.parametrize("cut_at", [1, 100, 5_000])
async def test_acks_around_a_lost_connection(name: str, cut_at: int) -> None:
    """Each publish ends once; those after the reconnect are acked again."""
    with run_liftbridge() as cluster, FaultProxy(cluster.nats_url) as proxy:
        cluster.create_stream(name)
        client = await connect(f"nats://{proxy.address}")
        accelerate(client)
        async with AckInbox(client, timeout=60) as inbox:
            proxy.truncate(cut_at)
            publisher = EnvelopePublisher(client, name, inbox=inbox, timeout=2.0)
            summary = await (await publisher.publish_batch([b"x"] * 500))
            stored = [offset for offset in summary.offsets if offset >= 0]
            assert len(set(stored)) == len(stored) == 500 - len(summary.failures)
            await until(lambda: client.is_connected and client.stats["reconnects"] == 1)
            assert (await inbox.publish(name, b"after", timeout=60)).offset >= len(stored)
            assert inbox.malformed == 0
        await client.close()
