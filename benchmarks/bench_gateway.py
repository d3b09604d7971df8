"""The gateway beside the Liftbridge server over gRPC, in turn, with the same clients: ours, and Go's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, TypeAlias
from uuid import uuid4

import pytest

import liftenvelope
from benchmarks import processor_time
from benchmarks.go_peers import GoPeers
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, run_gateway

VALUE = b"x" * 256
#: How long a round may take; more than that means that something hangs.
PATIENCE = 120.0
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
    """Whether this run is only to show that everything works."""
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
        Peer("Liftbridge", _round(loop, lambda: _read(liftbridge, theirs, count)), 1),
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
        Peer("Liftbridge", consume(liftbridge, theirs), 0.8),
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
        Peer("Liftbridge", _round(loop, lambda: _publish(liftbridge, theirs, count, window)), 1),
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
    assert (summary.acked, summary.failed) == (count, ())
    return took / count


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_an_idle_gateway(quick: bool) -> None:
    """Of 1,000 streams: how much of a processor it takes, and memory."""
    streams, seconds = (20, 1) if quick else (1_000, 20)
    with run_gateway() as cluster:
        for number in range(streams):
            cluster.create_stream(f"idle-{number}")
        sleep(0 if quick else 10)  # what comes of making them is over then
        pid = cluster.nodes[0].pid
        assert pid is not None
        before = processor_time.of_process(pid)
        sleep(seconds)
        share = (processor_time.of_process(pid) - before) / seconds
        print(f"\nidle with {streams:,} streams: {share:.1%} of a processor, {_memory(pid) >> 20} MiB")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_long_read_takes_no_memory(quick: bool, loop: asyncio.Runner, gateway: GatewayCluster) -> None:
    """While 1,000,000 messages are read, what the gateway holds stays the same."""
    count = 20_000 if quick else 1_000_000
    (name,) = _streams(loop, [gateway], count)
    pid = gateway.nodes[0].pid
    assert pid is not None
    loop.run(_read(gateway, name, count // 10))
    before = _memory(pid)
    loop.run(_read(gateway, name, count))
    grown = _memory(pid) - before
    print(f"\na read of {count:,} messages: {before >> 20} MiB before, {grown / 2**20:+.1f} MiB after")
    assert grown < 64 << 20


def _memory(pid: int) -> int:
    """The most that it has had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10
