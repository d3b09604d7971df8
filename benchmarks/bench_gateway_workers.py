"""What two gateways on one NATS server serve, as two workers of ``liftenvelope serve``, beside one.

A machine with two processors has none left for clients and nats-server, so the processor time of the gateways
is measured. If the busier of two takes half as much for a message as one alone, two serve twice as much, each
with a processor of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import liftenvelope
from benchmarks import processor_time
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope.client import Client
from liftenvelope.testing import GatewayCluster, run_gateway

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
VALUE = b"x" * 256
STREAMS = 8
#: How long a round may take; more than that means that something hangs.
PATIENCE = 120.0
#: What limits the ratio.
LIMIT = (
    "The client and nats-server, on the same two processors, keep one gateway busy for 0.64 of the time and "
    "two for 0.4 each in reads, 0.38 and 0.2 in publishing. The less there is to do, the fewer messages share"
    " a turn of the loop."
)
#: Does something to each stream of a cluster, with one client.
Work = Callable[[Client, str, int], Coroutine[object, object, None]]


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[GatewayCluster, GatewayCluster]]:
    """One gateway, and two, on a NATS server each."""
    with run_gateway() as one, run_gateway(2) as two:
        yield one, two


async def _publish(client: Client, name: str, count: int) -> None:
    summary = await client.publish_many(name, (VALUE for _ in range(count)), max_in_flight=1_000)
    assert (summary.acked, summary.failures) == (count, {})


async def _read(client: Client, name: str, count: int) -> None:
    async with client.subscribe(name, start="earliest", stop=count - 1) as messages:
        read = 0
        async for batch in messages.batches(5_000, max_wait=1):
            read += len(batch)
        assert read == count


async def _make(cluster: GatewayCluster) -> list[str]:
    """Create the streams, led by each gateway in equal numbers."""
    names = []
    led = {node.id: STREAMS // len(cluster.nodes) for node in cluster.nodes}
    async with liftenvelope.connect(cluster.addresses) as client:
        while any(led.values()):
            name = f"bench-{uuid4().hex[:8]}"
            await client.create_stream(name, name)
            leader = (await client.fetch_partition_metadata(name, 0)).leader
            assert leader is not None
            if led[leader]:
                led[leader] -= 1
                names.append(name)
    return names


def _round(loop: asyncio.Runner, cluster: GatewayCluster, names: list[str], count: int, work: Work) -> Round:
    async def run() -> None:
        async with liftenvelope.connect(cluster.addresses) as client:
            await asyncio.gather(*(work(client, name, count) for name in names))

    def measure() -> float:
        before = [processor_time.of_process(node.pid) for node in cluster.nodes]
        loop.run(asyncio.wait_for(run(), PATIENCE))
        taken = (
            processor_time.of_process(node.pid) - began
            for node, began in zip(cluster.nodes, before, strict=True)
        )
        return max(taken) / count / len(names)

    return measure


@pytest.mark.parametrize("what", ["publish_many", "subscribe"])
def test_workers(
    compare: Comparison, loop: asyncio.Runner, clusters: tuple[GatewayCluster, GatewayCluster], what: str
) -> None:
    one, two = clusters
    count = compare.amount(20_000, 50)
    names = {cluster: loop.run(_make(cluster)) for cluster in clusters}
    if what == "subscribe":
        for cluster in clusters:
            _round(loop, cluster, names[cluster], count, _publish)()
    work = _read if what == "subscribe" else _publish
    compare(
        f"gateway: {what}, 256 B, on {STREAMS} streams, processor time of the busier of two workers",
        _round(loop, two, names[two], count, work),
        Peer("one gateway", _round(loop, one, names[one], count, work), 1.7, LIMIT),
        rounds=5,
    )
