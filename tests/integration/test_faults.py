"""Servers killed under load: what was acked is there, and nothing that is pending hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from nats.aio.client import Client

from liftenvelope.envelope import Ack, AckPolicy
from liftenvelope.errors import AckTimeoutError, TransportError
from liftenvelope.nats import AckInbox, BatchAcks, BatchSummary, EnvelopePublisher
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, run_liftbridge, run_nats_server
from tests.integration.conftest import connect, until

BATCH = 200


class Load:
    """Publishes batches one after the other and keeps what became of every message."""

    def __init__(self, client: Client, inbox: AckInbox, stream: str, policy: AckPolicy) -> None:
        self.publisher: EnvelopePublisher[Ack, BatchAcks] = EnvelopePublisher(
            client, stream, inbox=inbox, ack_policy=policy, timeout=1.0
        )
        self.outcomes: list[tuple[int, BatchSummary]] = []
        self.refused = 0
        self.stopped = False

    async def run(self) -> None:
        first = 0
        while not self.stopped:
            values = [b"%d" % i for i in range(first, first + BATCH)]
            try:
                acks = await self.publisher.publish_batch(values)
            except TransportError:  # nothing of it was sent
                self.refused += 1
                await asyncio.sleep(0.01)
                continue
            async with asyncio.timeout(10):  # its deadline is 1 s: more would be a hang
                self.outcomes.append((first, await acks))
            first += BATCH

    def acked(self) -> dict[int, bytes]:
        """Offset to value of everything that the server said it has."""
        return {
            offset: b"%d" % (first + index)
            for first, summary in self.outcomes
            for index, offset in enumerate(summary.offsets)
            if offset >= 0
        }

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.01)

    async def acks_come(self, count: int = 2000) -> None:
        goal = len(self.acked()) + count
        await self.until(lambda: len(self.acked()) >= goal)

    async def acks_stop(self) -> None:
        before = len(self.outcomes)
        await self.until(
            lambda: any(not summary.ok for _, summary in self.outcomes[before:]) or bool(self.refused)
        )


def everything(cluster: LiftbridgeCluster, stream: str, newest: int) -> dict[int, bytes]:
    return {m.offset: bytes(m.value) for m in cluster.read(stream, start=0, count=newest + 1, timeout=60)}


def assert_nothing_acked_is_lost(load: Load, stored: dict[int, bytes]) -> None:
    acked = load.acked()
    assert len(acked) == sum(offset >= 0 for _, summary in load.outcomes for offset in summary.offsets)
    assert {offset: stored.get(offset) for offset in acked} == acked
    failures = [error for _, summary in load.outcomes for error in summary.failures.values()]
    assert all(isinstance(error, AckTimeoutError | TransportError) for error in failures)


@pytest.mark.parametrize("policy", [AckPolicy.LEADER, AckPolicy.ALL])
async def test_liftbridge_killed_under_load(policy: AckPolicy) -> None:
    with run_liftbridge() as cluster:
        cluster.create_stream("load")
        client = await connect(cluster.nats_url)
        async with AckInbox(client, max_outstanding=1000) as inbox:
            load = Load(client, inbox, "load", policy)
            running = asyncio.create_task(load.run())
            await load.acks_come()
            await asyncio.to_thread(cluster.nodes[0].kill)
            await load.acks_stop()
            await asyncio.to_thread(cluster.nodes[0].start)
            await load.acks_come()
            load.stopped = True
            await running
            assert inbox.outstanding == 0
            last = await inbox.publish("load", b"end", timeout=10)
        assert_nothing_acked_is_lost(load, await asyncio.to_thread(everything, cluster, "load", last.offset))
        await client.close()


async def test_nats_killed_under_load() -> None:
    with run_nats_server() as nats_server, run_liftbridge(nats_url=nats_server.url) as cluster:
        cluster.create_stream("load")
        client = await connect(nats_server.url)
        async with AckInbox(client, max_outstanding=1000) as inbox:
            load = Load(client, inbox, "load", AckPolicy.LEADER)
            running = asyncio.create_task(load.run())
            await load.acks_come()
            await asyncio.to_thread(nats_server.kill)
            await load.acks_stop()
            await asyncio.to_thread(nats_server.start)
            await load.acks_come()
            load.stopped = True
            await running
            assert client.stats["reconnects"] == 1
            assert inbox.outstanding == 0
            last = await inbox.publish("load", b"end", timeout=10)
        assert_nothing_acked_is_lost(load, await asyncio.to_thread(everything, cluster, "load", last.offset))
        await client.close()


async def test_what_is_pending_survives_a_reconnect(name: str) -> None:
    with run_liftbridge() as cluster, FaultProxy(cluster.nats_url) as proxy:
        cluster.create_stream(name)
        client = await connect(f"nats://{proxy.address}")
        async with AckInbox(client, timeout=20) as inbox:
            await inbox.publish(name, b"before")
            proxy.refuse()
            proxy.cut()
            await until(lambda: not client.is_connected)
            future = inbox.publish_nowait(name, b"while down")
            proxy.accept()
            assert (await future).offset == 1
            assert client.stats["reconnects"] == 1
        await client.close()


async def test_a_stalled_connection_times_out_and_recovers(name: str) -> None:
    with run_liftbridge() as cluster, FaultProxy(cluster.nats_url) as proxy:
        cluster.create_stream(name)
        client = await connect(f"nats://{proxy.address}")
        late: list[str] = []
        async with AckInbox(client, on_stray=lambda ack, kind: late.append(kind.value)) as inbox:
            proxy.stall()
            with pytest.raises(AckTimeoutError):
                await inbox.publish(name, b"stalled", timeout=0.2)
            proxy.resume()
            assert (await inbox.publish(name, b"on time")).offset == 1
            assert late == ["late"]
        await client.close()


async def test_three_nodes_lose_their_leader() -> None:
    with run_liftbridge(nodes=3) as cluster:
        await asyncio.to_thread(cluster.create_stream, "load", replication_factor=3)
        client = await connect(cluster.nats_url)
        async with AckInbox(client, max_outstanding=200) as inbox:
            load = Load(client, inbox, "load", AckPolicy.ALL)
            running = asyncio.create_task(load.run())
            await load.acks_come(1000)
            leader = (await asyncio.to_thread(cluster.partition_metadata, "load")).leader
            node = next(node for node in cluster.nodes if node.id == leader)
            await asyncio.to_thread(node.kill)
            await load.acks_stop()
            await load.acks_come(1000)
            load.stopped = True
            await running
            last = await inbox.publish("load", b"end", timeout=20, ack_policy=AckPolicy.ALL)
        assert_nothing_acked_is_lost(load, await asyncio.to_thread(everything, cluster, "load", last.offset))
        await client.close()
