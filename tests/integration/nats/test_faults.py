"""Servers killed under load: what was acked is there, and nothing that is pending hangs."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client

import liftenvelope
from liftenvelope import bulk
from liftenvelope.envelope import Ack, AckPolicy, new_message
from liftenvelope.errors import AckTimeoutError, TransportError
from liftenvelope.jetstream.message import Message, Recorder
from liftenvelope.nats import AckInbox, BatchAcks, BatchSummary, EnvelopePublisher
from liftenvelope.nats.pull_inbox import PullInbox
from liftenvelope.testing import FaultProxy, NatsServer, run_liftbridge, run_nats_server
from tests.handled import handled
from tests.integration.conftest import connect, freeze, until
from tests.integration.stored import Stored, await_stream

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
            async with asyncio.timeout(60):  # its deadline is 1 s: more would be a hang
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

    async def acks_come(self, count: int = 2000) -> None:
        goal = len(self.acked()) + count
        await until(lambda: len(self.acked()) >= goal)

    async def acks_stop(self) -> None:
        before = len(self.outcomes)
        await until(
            lambda: any(not summary.ok for _, summary in self.outcomes[before:]) or bool(self.refused)
        )


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
            await inbox.publish("load", b"end", timeout=60)  # without it, the last ones may stay hidden
        assert_nothing_acked_is_lost(load, (await asyncio.to_thread(Stored, cluster, "load")).at)
        await client.close()


def test_killed_between_log_and_index() -> None:
    """The server numbers by its index: it then gives the offsets of what got no ack to what comes next.

    A kill can't be timed so well: the index is put back by hand.
    """
    rows, entry = 10, 20  # an entry has 20 bytes: offset, timestamp, position, size
    with run_liftbridge() as cluster:
        cluster.create_stream("log")
        with liftenvelope.connect_blocking(cluster.addresses) as client:
            client.publish_many("log", [b"before %d" % i for i in range(rows)], partition=0)
            node = cluster.nodes[0]
            node.kill()
            with next((node._folder / "data/streams/log/0").glob("*.index")).open("r+b") as index:
                index.seek((rows - 3) * entry)
                index.write(bytes(3 * entry))
            node.start()
            await_stream(cluster, "log")
            acks = client.publish_many("log", [b"after %d" % i for i in range(5)], partition=0)
            assert (acks.acked, acks.offsets[0]) == (5, (7, 11))
            offsets = [*range(rows), *range(7, 12)]
            values = [b"before %d" % i for i in range(rows)] + [b"after %d" % i for i in range(5)]
            table = bulk.read(cluster.addresses, "log", columns=["offset", "value"]).read_all()
            assert (table["offset"].to_pylist(), table["value"].to_pylist()) == (offsets, values)
            with client.subscribe("log", start=0, stop=11) as messages:
                assert [(m.offset, m.value) for m in messages] == list(zip(offsets, values, strict=True))
            with client.subscribe("log", start=7, stop=11) as messages:
                assert [m.value for m in messages] == values[rows:]


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
            await inbox.publish("load", b"end", timeout=60)  # without it, the last ones may stay hidden
        assert_nothing_acked_is_lost(load, (await asyncio.to_thread(Stored, cluster, "load")).at)
        await client.close()


async def test_what_is_pending_survives_a_reconnect(name: str) -> None:
    with run_liftbridge() as cluster, FaultProxy(cluster.nats_url) as proxy:
        cluster.create_stream(name)
        client = await connect(f"nats://{proxy.address}")
        async with AckInbox(client, timeout=60) as inbox:
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
            assert (await inbox.publish(name, b"on time", timeout=60)).offset == 1
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
            await inbox.publish("load", b"end", timeout=60, ack_policy=AckPolicy.ALL)
        assert_nothing_acked_is_lost(load, (await asyncio.to_thread(Stored, cluster, "load")).at)
        await client.close()


@pytest.mark.parametrize("kind", ["ack inbox", "pull inbox"])
async def test_subscription_that_begins_and_ends_offline_is_not_made(kind: str) -> None:
    """The next connection sent the buffered SUB, and the server kept the subscription."""
    with run_nats_server() as server:
        nc, other = await connect(server.url), await connect(server.url)
        server.stop()
        await until(lambda: not nc.is_connected)
        if kind == "ack inbox":
            async with AckInbox(nc) as inbox:
                subject = inbox.subject
        else:
            pulls = PullInbox(nc, Message, Recorder(), lambda _: None, lambda *_: None)
            await pulls.open()
            pulls.close()
            subject = f"{pulls._prefix}1"
        server.start()
        await until(lambda: nc.is_connected and other.is_connected)
        await handled(nc)
        with pytest.raises(nats.errors.NoRespondersError):
            await other.request(subject, timeout=60)
        await nc.close()
        await other.close()


async def test_publishes_that_time_out_offline_are_not_kept() -> None:
    with run_nats_server() as server:
        nc = await connect(server.url, pending_size=10_000)
        async with AckInbox(nc) as inbox:
            server.stop()
            await until(lambda: not nc.is_connected)
            for _ in range(5):
                futures = [inbox.publish_nowait("a", bytes(1000), timeout=0.05) for _ in range(20)]
                outcomes = await asyncio.gather(*futures, return_exceptions=True)
                assert {type(outcome) for outcome in outcomes} == {AckTimeoutError}
            assert len(inbox._outbox._queue) <= 20
            server.start()
            await until(lambda: nc.is_connected)
        await nc.close()


async def stall(nc: Client, server: NatsServer) -> None:
    """Stop the server's process, and fill the connection's buffer."""
    assert server.pid is not None
    freeze(server.pid)
    filler = EnvelopePublisher(nc, "filler", timeout=0.5)

    async def fill() -> None:
        while True:
            await filler.publish(bytes(100_000))

    with pytest.raises(TransportError, match="full"):
        await fill()


async def test_batches_that_wait_for_the_buffer_keep_max_outstanding(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = [0]
    with run_nats_server() as server:
        nc = await connect(server.url, pending_size=100_000)
        inbox = await AckInbox(nc, timeout=60, max_outstanding=2000).start()
        register = inbox.register_batch

        def note(*args: Any) -> list[str]:
            ids = register(*args)
            peaks.append(inbox.outstanding)
            return ids

        monkeypatch.setattr(inbox, "register_batch", note)
        publisher = EnvelopePublisher(nc, "no.stream", inbox=inbox, timeout=2)
        await stall(nc, server)
        batches = [asyncio.ensure_future(publisher.publish_batch([b"v"] * 1000)) for _ in range(5)]
        await asyncio.sleep(0)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGCONT)
        await asyncio.gather(*batches, return_exceptions=True)  # as their rows time out
        await inbox.close()
        await nc.close()
    assert max(peaks) <= 2000


@pytest.mark.parametrize("how", ["at once", "queued", "without an inbox"])
async def test_envelope_that_fits_without_its_subject_waits_for_the_reconnect(name: str, how: str) -> None:
    """The whole command must fit into the buffer: such an envelope was refused at once."""
    with run_nats_server() as server, FaultProxy(server.url) as proxy:
        observer = await connect(server.url)
        arrived = await observer.subscribe(name)
        await handled(observer)
        nc = await connect(f"nats://{proxy.address}", pending_size=4_000)
        async with AckInbox(nc, timeout=120, max_outstanding=1) as inbox:
            proxy.refuse()
            proxy.cut()
            await until(lambda: not nc.is_connected)
            first = inbox.publish_nowait(name, b"", timeout=1) if how == "queued" else None
            options: Any = {"correlation_id": "a"}
            payload = new_message(bytes(1_000), **options)
            if how != "without an inbox":
                options["timeout"] = 60
                payload = new_message(bytes(1_000), ack_inbox=inbox.subject, correlation_id="a")
            filler = 4_000 - nc.pending_data_size - len(payload) - len(name)
            await nc.publish("filler", bytes(filler - len("PUB filler  1000\r\n\r\n")))
            assert len(payload) < 4_000 - nc.pending_data_size < len(f"PUB {name}") + len(payload)
            if how == "without an inbox":
                publisher = EnvelopePublisher(nc, name, timeout=120)
                waiting: asyncio.Future[Any] = asyncio.create_task(publisher.publish(bytes(1_000), **options))
            else:
                waiting = inbox.publish_nowait(name, bytes(1_000), **options)
            if first is not None:
                with pytest.raises(AckTimeoutError):
                    await first
                assert (await arrived_later(nc, proxy, arrived, 2))[-1] == payload
            else:
                await asyncio.sleep(0)
                assert not waiting.done()
                assert await arrived_later(nc, proxy, arrived, 1) == [payload]
            waiting.cancel()
        await nc.close()
        await observer.close()


async def arrived_later(nc: Client, proxy: FaultProxy, arrived: Any, count: int) -> list[bytes]:
    """Restore the connection, and return the next messages of a subscription."""
    proxy.accept()
    await until(lambda: nc.is_connected)
    return [(await arrived.next_msg(timeout=60)).data for _ in range(count)]
