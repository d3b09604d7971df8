"""The gateway beside the Liftbridge server over gRPC, in turn, with the same clients: ours, and Go's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias
from uuid import uuid4

import pytest

import liftenvelope
from benchmarks.go_peers import GoPeers
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope._pb import api_pb2
from liftenvelope.rpc.aio import Channel
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster

VALUE = b"x" * 256
#: How long a round may take; more than that means that something hangs.
PATIENCE = 120.0
#: What limits the gateway.
READING = "Of the processor time for a message nats-server takes some 45 %, the gateway some 35 %."
PUBLISHING = (
    "nats-server stores and acks each message by itself: of 15 us of CPU for a message it takes 8, "
    "the gateway 3.6 and the client 3.3. With Liftbridge a message takes 18, of which Liftbridge "
    "takes 12."
)
Cluster: TypeAlias = GatewayCluster | LiftbridgeCluster
#: How many messages there are, and the streams that they are in: the gateway's, and Liftbridge's.
Filled: TypeAlias = tuple[int, str, str]


def _round(loop: asyncio.Runner, make: Callable[[], Coroutine[Any, Any, float]]) -> Round:
    return lambda: loop.run(asyncio.wait_for(make(), PATIENCE))


async def _read(cluster: Cluster, name: str, count: int) -> float:
    async with (
        liftenvelope.connect(cluster.addresses) as client,
        client.subscribe(name, start="earliest", stop=count - 1) as messages,
    ):
        began, read = perf_counter(), 0
        async for batch in messages.batches(5_000, max_wait=1):
            read += len(batch)
        assert read == count
        return (perf_counter() - began) / count


def _streams(loop: asyncio.Runner, clusters: list[Cluster], count: int) -> list[str]:
    """A stream with so many messages on each."""
    names = []
    for cluster in clusters:

        async def fill(cluster: Cluster = cluster) -> str:
            async with liftenvelope.connect(cluster.addresses) as client:
                name = f"bench-{uuid4().hex[:8]}"
                await client.create_stream(name, name)
                await client.publish_many(name, (VALUE for _ in range(count)), max_in_flight=2_000)
                return name

        names.append(loop.run(fill()))
    return names


@pytest.fixture(scope="module")
def quick(pytestconfig: pytest.Config) -> bool:
    """True in a small run, which only shows that everything works."""
    return not pytestconfig.getoption("benchmark_enable")


@pytest.fixture(scope="module")
def filled(gateway: GatewayCluster, liftbridge: LiftbridgeCluster, quick: bool) -> Filled:
    """The same messages on both."""
    count = 500 if quick else 200_000
    with asyncio.Runner() as loop:
        ours, theirs = _streams(loop, [gateway, liftbridge], count)
    return count, ours, theirs


def test_subscribe(
    compare: Comparison,
    loop: asyncio.Runner,
    gateway: GatewayCluster,
    liftbridge: LiftbridgeCluster,
    filled: Filled,
) -> None:
    count, ours, theirs = filled
    compare(
        "gateway: subscribe with our client, 256 B",
        _round(loop, lambda: _read(gateway, ours, count)),
        Peer("Liftbridge", _round(loop, lambda: _read(liftbridge, theirs, count)), 1, READING),
        rate=True,
        rounds=5,
    )


def test_subscribe_with_go(
    compare: Comparison, gateway: GatewayCluster, liftbridge: LiftbridgeCluster, filled: Filled, go: GoPeers
) -> None:
    count, ours, theirs = filled

    def consume(cluster: Cluster, name: str) -> Round:
        flags = {"addr": cluster.addresses[0], "stream": name, "n": count}
        return lambda: float(go.run("consume", **flags)["seconds"]) / count

    compare(
        "gateway: subscribe with go-liftbridge, 256 B",
        consume(gateway, ours),
        Peer("Liftbridge", consume(liftbridge, theirs), 0.8, READING),
        rate=True,
        rounds=5,
    )


@pytest.mark.parametrize("window", [1_000, 10_000])
def test_publish(
    compare: Comparison,
    loop: asyncio.Runner,
    gateway: GatewayCluster,
    liftbridge: LiftbridgeCluster,
    window: int,
) -> None:
    count = compare.amount(100_000, 500)
    ours, theirs = _streams(loop, [gateway, liftbridge], 1)
    compare(
        f"gateway: publish_many, 256 B, {window:,} in flight",
        _round(loop, lambda: _publish(gateway, ours, count, window)),
        Peer("Liftbridge", _round(loop, lambda: _publish(liftbridge, theirs, count, window)), 1, PUBLISHING),
        rate=True,
        rounds=5,
    )


async def _publish(cluster: Cluster, name: str, count: int, window: int) -> float:
    async with liftenvelope.connect(cluster.addresses) as client:
        began = perf_counter()
        summary = await client.publish_many(
            name, (VALUE for _ in range(count)), max_in_flight=window, timeout=PATIENCE
        )
        took = perf_counter() - began
    assert (summary.acked, summary.failures) == (count, {})
    return took / count


def test_single_publishes(
    compare: Comparison, loop: asyncio.Runner, gateway: GatewayCluster, liftbridge: LiftbridgeCluster
) -> None:
    count = compare.amount(1_000, 20)
    ours, theirs = _streams(loop, [gateway, liftbridge], 1)
    compare(
        "gateway: a Publish call, 256 B, p50: at most 2 of Liftbridge's",
        _round(loop, lambda: _publish_singly(gateway, ours, count)),
        Peer("Liftbridge", _round(loop, lambda: _publish_singly(liftbridge, theirs, count)), 0.5, PUBLISHING),
        rounds=5,
    )


async def _publish_singly(cluster: Cluster, name: str, count: int) -> float:
    """The median of the seconds of a call, one at a time."""
    request = api_pb2.PublishRequest(stream=name, value=VALUE, ackPolicy=api_pb2.LEADER).SerializeToString()
    taken = []
    async with await Channel.connect(cluster.addresses[0]) as channel:
        for _ in range(count):
            began = perf_counter()
            answer = await channel.unary("/proto.API/Publish", request, timeout=PATIENCE)
            taken.append(perf_counter() - began)
            assert api_pb2.PublishResponse.FromString(answer).HasField("ack")
    return median(taken)
