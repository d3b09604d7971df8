"""Brokers that are killed while messages are on their way: what was acked is there, and nothing hangs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.client._publish_many import PublishMany
from liftenvelope.errors import AckTimeoutError, TransportError
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, run_liftbridge
from tests.integration.conftest import until
from tests.integration.stored import Stored


async def collect(many: PublishMany) -> dict[int, int]:
    """The offset of each acked message, by its index."""
    return {index: ack.offset async for index, ack in many}


async def kill_and_restart(cluster: LiftbridgeCluster) -> None:
    await asyncio.to_thread(cluster.nodes[0].kill)
    await asyncio.to_thread(cluster.nodes[0].start)


@pytest.mark.parametrize("retry", [False, True])
async def test_a_broker_that_is_killed_and_comes_back(retry: bool) -> None:
    tasks = asyncio.all_tasks()
    async with run_liftbridge() as cluster, liftenvelope.connect(cluster.addresses, ack_wait=60) as client:
        await client.create_stream("orders", "orders")
        enough = asyncio.Event()

        async def messages() -> AsyncIterator[bytes]:
            for i in itertools.count():
                if enough.is_set():
                    return
                if i % 100 == 0:
                    await asyncio.sleep(0)
                yield b"%d" % i

        many = client.publish_many(
            "orders", messages(), max_in_flight=200, timeout=60, retry_unacked=retry, on_error="collect"
        )
        run = asyncio.create_task(collect(many))
        await until(lambda: many.summary.acked > 1000)
        await kill_and_restart(cluster)
        before = many.summary.acked
        await until(lambda: many.summary.acked > before + 1000)
        enough.set()
        offsets = await run
        failed = dict(many.summary.failures)
        # A killed server shows the last messages only once another one was published.
        assert await client.publish("orders", b"last", timeout=60) is not None
        kept = await asyncio.to_thread(Stored, cluster, "orders")
    assert offsets.keys() | failed.keys() == set(range(len(offsets) + len(failed)))
    for index, offset in offsets.items():
        assert kept.at[offset] == b"%d" % index
    if retry:
        assert not failed
    else:
        assert len(failed) <= 200  # none, if the kill came while nothing was on its way
        assert all(isinstance(error, TransportError) and error.sent for error in failed.values())
        assert len(set(kept.values)) == len(kept.values), "doubled"
    assert asyncio.all_tasks() == tasks


async def test_a_broker_that_came_back_while_nothing_was_published() -> None:
    async with run_liftbridge() as cluster, liftenvelope.connect(cluster.addresses, ack_wait=60) as client:
        await client.create_stream("orders", "orders")
        offsets = []
        for _ in range(3):
            ack = await client.publish("orders", b"v", timeout=60)
            assert ack is not None
            offsets.append(ack.offset)
            await kill_and_restart(cluster)
        assert offsets == [0, 1, 2]


@pytest.mark.parametrize("retry", [False, True])
async def test_a_cut_connection_in_the_midst(
    liftbridge_server: LiftbridgeCluster, name: str, retry: bool
) -> None:
    address = liftbridge_server.addresses[0]
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(address, address_map={address: proxy.address}) as client:
            await client.create_stream(name, name)
            many = client.publish_many(
                name,
                (b"%d" % i for i in range(20_000)),
                max_in_flight=100,
                timeout=60,
                retry_unacked=retry,
                on_error="collect",
            )
            run = asyncio.create_task(collect(many))
            for acked in (2000, 8000, 14_000):
                await until(lambda acked=acked: many.summary.acked > acked)  # type: ignore[misc]
                proxy.cut()
            offsets = await run
            failed = dict(many.summary.failures)
    kept = await asyncio.to_thread(Stored, liftbridge_server, name)
    assert len(offsets) + len(failed) == 20_000
    assert all(kept.at[offset] == b"%d" % index for index, offset in offsets.items())
    if retry:
        assert not failed
        assert set(kept.values) == {b"%d" % i for i in range(20_000)}
    else:
        assert len(failed) <= 300
        assert len(set(kept.values)) == len(kept.values)
        # Order is kept: what is there is there in the order of the input.
        numbers = [int(value) for value in kept.values]
        assert numbers == sorted(numbers)


async def test_truncated_answers(liftbridge_server: LiftbridgeCluster, name: str) -> None:
    address = liftbridge_server.addresses[0]
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(address, address_map={address: proxy.address}) as client:
            await client.create_stream(name, name)
            await client.publish(name, b"first")
            proxy.truncate(1000)
            summary = await client.publish_many(
                name, [b"v"] * 500, max_in_flight=50, timeout=60, on_error="collect"
            )
            assert summary.acked + len(summary.failures) == 500
            assert 0 < len(summary.failures) <= 50
            assert all(isinstance(e, TransportError) and e.sent for e in summary.failures.values())


async def test_what_was_never_sent_says_so(liftbridge_server: LiftbridgeCluster, name: str) -> None:
    address = liftbridge_server.addresses[0]
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(address, address_map={address: proxy.address}) as client:
            await client.create_stream(name, name)
            await client.publish(name, b"first")
            proxy.refuse()
            proxy.cut()
            await until(lambda: proxy.open_connections == 0)
            outcomes = await asyncio.gather(
                *(client.publish(name, b"never", timeout=0.5) for _ in range(5)), return_exceptions=True
            )
            for outcome in outcomes:
                assert isinstance(outcome, AckTimeoutError | TransportError)
            late = asyncio.create_task(client.publish(name, b"late", timeout=60))
            with pytest.raises(TransportError) as refused:
                await client.publish(name, b"unary", timeout=0.5, ack_policy=2)
            assert not refused.value.sent
            proxy.accept()
            ack = await late
            assert ack is not None
    kept = await asyncio.to_thread(Stored, liftbridge_server, name)
    assert kept.at[0] == b"first"
    assert kept.at[ack.offset] == b"late"


async def _until_acked(many: PublishMany, more: int) -> None:
    goal = many.summary.acked + more
    async with asyncio.timeout(60):
        while many.summary.acked < goal:
            await asyncio.sleep(0.05)


async def test_a_leader_that_is_killed() -> None:
    async with (
        run_liftbridge(nodes=3) as cluster,
        liftenvelope.connect(cluster.addresses, ack_wait=60) as client,
    ):
        await client.create_stream("orders", "orders", replication_factor=3)
        await client.publish("orders", b"first", ack_policy=1, timeout=60)
        leader = (await client.fetch_metadata(streams=["orders"])).streams["orders"].partitions[0].leader
        stop = asyncio.Event()

        def messages() -> Iterator[bytes]:
            for i in itertools.count():
                if stop.is_set():
                    return
                yield b"%d" % i

        many = client.publish_many(
            "orders", messages(), ack_policy=1, max_in_flight=50, timeout=2, on_error="collect"
        )
        run = asyncio.create_task(collect(many))
        await _until_acked(many, 300)
        node = next(node for node in cluster.nodes if node.id == leader)
        await asyncio.to_thread(node.kill)
        await _until_acked(many, 300)
        stop.set()
        offsets = await run
        failed = dict(many.summary.failures)
        assert await client.publish("orders", b"last", ack_policy=1, timeout=60) is not None
        kept = await asyncio.to_thread(Stored, cluster, "orders")
    assert len(offsets) >= 600
    for index, offset in offsets.items():
        assert kept.at[offset] == b"%d" % index
    assert failed
    for index, error in failed.items():
        assert isinstance(error, TransportError | AckTimeoutError)
        assert error.sent or b"%d" % index not in kept.values
    assert len(set(kept.values)) == len(kept.values)


async def test_the_broker_that_messages_go_by_is_killed_and_another_serves() -> None:
    async with (
        run_liftbridge(nodes=3) as cluster,
        liftenvelope.connect(cluster.addresses, ack_wait=60) as client,
    ):
        await client.create_stream("orders", "orders", replication_factor=3)
        await client.publish("orders", b"first", ack_policy=1, timeout=60)
        await _kill_leader(cluster, client)
        retried = await client.publish("orders", b"again", timeout=60, retry_unacked=True)
        assert retried is not None or pytest.fail("no ack")
        kept = await asyncio.to_thread(Stored, cluster, "orders")
        assert kept.at[retried.offset] == b"again"


async def _kill_leader(cluster: LiftbridgeCluster, client: Client) -> None:
    """Kill the leader, and return when there is another one."""
    old: Any = (await client.fetch_metadata(streams=["orders"])).streams["orders"].partitions[0].leader
    await asyncio.to_thread(next(node for node in cluster.nodes if node.id == old).kill)
    async with asyncio.timeout(60):
        while True:
            found = (await client.fetch_metadata(streams=["orders"])).streams.get("orders")
            if found is not None and found.partitions[0].leader not in ("", old):
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("hook", ["broker_selection", "on_event"])
@pytest.mark.parametrize("way", ["publish", "publish_async", "publish_many"])
async def test_error_of_a_user_function_reaches_the_publishes_and_the_next_one_works(
    liftbridge_server: LiftbridgeCluster, name: str, hook: str, way: str
) -> None:
    class BrokenError(Exception):
        pass

    def fail_if_broken(argument: Any) -> Any:
        if is_broken:
            raise BrokenError
        return argument[0] if hook == "broker_selection" else None

    async def publish(client: Client) -> object:
        if way == "publish_many":
            return await client.publish_many(name, [b"waits"] * 3, on_error="collect")
        if way == "publish_async":
            return await (await client.publish_async(name, b"waits"))
        return await client.publish(name, b"waits")

    is_broken, address = False, liftbridge_server.addresses[0]
    hooks: dict[str, Any] = {hook: fail_if_broken}
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(
            address, address_map={address: proxy.address}, ack_wait=60, timeout=60, **hooks
        ) as client:
            await client.create_stream(name, name)
            assert await client.publish(name, b"v") is not None
            is_broken = True
            proxy.refuse()
            proxy.cut()
            await until(lambda: not client._publisher.streams._lanes)
            publishing = asyncio.ensure_future(publish(client))
            if hook == "on_event":  # is called once the metadata has been fetched
                await until(lambda: client.publish_async_pending)
                proxy.accept()
            with pytest.raises(BrokenError):
                await publishing
            assert client.publish_async_pending == 0
            is_broken = False
            proxy.accept()
            assert await client.publish(name, b"w") is not None
    assert [message.value for message in liftbridge_server.read(name, count=2)] == [b"v", b"w"]


async def test_broker_that_accepts_connections_and_stands_still_is_passed_over(
    liftbridge_server: LiftbridgeCluster, name: str
) -> None:
    address = liftbridge_server.addresses[0]
    liftbridge_server.create_stream(name)
    seed = f"localhost:{address.rpartition(':')[2]}"  # for the client, another broker than the advertised one
    with FaultProxy(address) as proxy:
        proxy.stall()
        async with liftenvelope.connect(
            seed, address_map={address: proxy.address}, connect_timeout=1.0, ack_wait=60, timeout=60
        ) as client:
            assert await client.publish(name, b"v") is not None
        assert proxy.connections
