"""Acked publishing on raw NATS: a gateway beside the Liftbridge server, with the same clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from uuid import uuid4

import nats
import pytest
from nats.aio.client import Client

from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope.nats import AckInbox, EnvelopePublisher, accelerate
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster

VALUE = b"x" * 256
#: How long a round may take; more than that means that something hangs.
PATIENCE = 120.0
#: What limits the gateway.
LIMIT = (
    "nats-server takes 6 to 7 us of the 10 us of CPU for a message: a third of that to write the "
    "message to the stream's file, by itself, the rest to hand it to the stream, from there to the "
    "gateway, and the ack back to the publisher. The gateway takes 1.0 to 1.4. Liftbridge and its "
    "nats-server take 6 to 10."
)


class Side:
    """A server, a stream on it, and an accelerated connection to its NATS server."""

    def __init__(self, loop: asyncio.Runner, cluster: GatewayCluster | LiftbridgeCluster) -> None:
        self._loop = loop
        self._cluster = cluster
        self.stream = f"bench-{uuid4().hex[:8]}"
        cluster.create_stream(self.stream)
        self.nc: Client = loop.run(nats.connect(cluster.nats_url))
        accelerate(self.nc)

    def close(self) -> None:
        self._loop.run(self.nc.close())
        self._cluster.delete_stream(self.stream)

    async def publish_batch(self, count: int, window: int) -> float:
        """Seconds for a message, with so many outstanding."""
        async with AckInbox(self.nc, max_outstanding=window, timeout=PATIENCE) as inbox:
            publisher = EnvelopePublisher(self.nc, self.stream, inbox=inbox, timeout=PATIENCE)
            began = perf_counter()
            summary = await (await publisher.publish_batch([VALUE] * count))
            seconds = perf_counter() - began
        assert summary.ok
        assert list(summary.offsets) == list(range(summary.offsets[0], summary.offsets[0] + count))
        return seconds / count

    async def publish_singly(self, count: int) -> float:
        """The median of the seconds from a publish to its ack, one at a time."""
        taken = []
        async with AckInbox(self.nc, timeout=PATIENCE) as inbox:
            for _ in range(count):
                began = perf_counter()
                ack = await inbox.publish(self.stream, VALUE)
                taken.append(perf_counter() - began)
                assert ack.stream == self.stream
        return median(taken)

    def batch_round(self, count: int, window: int) -> Round:
        return lambda: self._loop.run(asyncio.wait_for(self.publish_batch(count, window), PATIENCE))

    def single_round(self, count: int) -> Round:
        return lambda: self._loop.run(asyncio.wait_for(self.publish_singly(count), PATIENCE))


@pytest.fixture
def ours(loop: asyncio.Runner, gateway: GatewayCluster) -> Iterator[Side]:
    side = Side(loop, gateway)
    yield side
    side.close()


@pytest.fixture
def theirs(loop: asyncio.Runner, liftbridge: LiftbridgeCluster) -> Iterator[Side]:
    side = Side(loop, liftbridge)
    yield side
    side.close()


@pytest.mark.parametrize("window", [1_000, 10_000])
def test_acked_on_raw_nats(compare: Comparison, ours: Side, theirs: Side, window: int) -> None:
    count = compare.amount(100_000, 500)
    compare(
        f"gateway: acked on raw NATS, 256 B, {window:,} outstanding",
        ours.batch_round(count, window),
        Peer("Liftbridge", theirs.batch_round(count, window), 1.2, LIMIT),
        rate=True,
        rounds=7,
    )


def test_ack_latency_on_raw_nats(compare: Comparison, ours: Side, theirs: Side) -> None:
    count = compare.amount(2_000, 20)
    compare(
        "gateway: one acked on raw NATS, 256 B, p50: at most 2 of Liftbridge's",
        ours.single_round(count),
        Peer("Liftbridge", theirs.single_round(count), 0.5, LIMIT),
        rounds=5,
    )
