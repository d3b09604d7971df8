"""The pool of connections, to servers that are scripted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

import pytest

from liftenvelope._deadlines import Deadline
from liftenvelope._pb import api_pb2
from liftenvelope.client._brokers import connections as connections_module
from liftenvelope.client._brokers.connections import Connections
from liftenvelope.client.options import Options
from liftenvelope.errors import TransportError
from liftenvelope.rpc.status import CallNotProcessedError
from tests.unit.scripted_broker import ScriptedBroker, client_of, scripted, stall, until

pytestmark = pytest.mark.usefixtures("loop_errors")

METHOD = "/proto.API/FetchMetadata"
#: Seconds for connections and calls that must succeed, however slow the machine is.
PATIENT = 60.0


def pool(**options: Any) -> Connections:
    return Connections(Options(**{"addresses": "127.0.0.1:1", "connect_timeout": PATIENT, **options}))


def pause_all(broker: ScriptedBroker) -> asyncio.Event:
    """Have the broker answer FetchMetadata only when the event is set."""
    go_on = asyncio.Event()

    async def wait(call: Any, request: bytes) -> bytes:
        await go_on.wait()
        return api_pb2.FetchMetadataResponse().SerializeToString()

    broker.always("FetchMetadata", wait)
    return go_on


async def call(connections: Connections, address: str) -> bytes:
    channel = await connections.channel(address)
    return await channel.unary(METHOD, b"", timeout=PATIENT)


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address where connections are never accepted, nor refused."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield "{}:{}".format(*listener.getsockname())


class TestSharing:
    @pytest.mark.parametrize("most", [1, 2, 5])
    async def test_no_more_than_allowed(self, most: int) -> None:
        async with scripted() as (broker,):
            go_on = pause_all(broker)
            connections = pool(max_conns_per_broker=most)
            calls = [asyncio.create_task(call(connections, broker.address)) for _ in range(50)]
            await until(lambda: broker.calls["FetchMetadata"] == 50)
            assert len(broker.server.links) == most
            loads = sorted(len(link.tasks) for link in broker.server.links)
            assert loads[-1] - loads[0] <= 1
            go_on.set()
            await asyncio.gather(*calls)
            await connections.close()

    async def test_calls_one_after_the_other_need_one(self) -> None:
        async with scripted() as (broker,):
            connections = pool()
            for _ in range(10):
                await call(connections, broker.address)
            assert len(broker.server.links) == 1
            await connections.close()

    async def test_one_that_goes_away_is_replaced(self) -> None:
        async with scripted() as (broker,):
            connections = pool()
            await call(connections, broker.address)
            (link,) = broker.server.links
            broker.go_away()
            await until(lambda: not connections._usable(broker.address))
            await call(connections, broker.address)
            await until(lambda: link not in broker.server.links)
            assert len(broker.server.links) == 1
            await connections.close()

    async def test_what_is_open_on_one_that_goes_away_goes_on(self) -> None:
        async with scripted() as (broker,):
            go_on = pause_all(broker)
            connections = pool()
            first = asyncio.create_task(call(connections, broker.address))
            await until(lambda: broker.calls["FetchMetadata"] == 1)
            broker.go_away()
            await until(lambda: not connections._usable(broker.address))
            second = asyncio.create_task(call(connections, broker.address))
            await until(lambda: broker.calls["FetchMetadata"] == 2)
            go_on.set()
            assert [await first, await second] == [b"", b""]
            await connections.close()

    async def test_one_that_is_lost_is_replaced(self) -> None:
        async with scripted() as (broker,):
            connections = pool()
            await call(connections, broker.address)
            broker.drop()
            await until(lambda: not connections._usable(broker.address))
            await call(connections, broker.address)
            await connections.close()


class TestIdle:
    async def test_is_closed(self) -> None:
        async with scripted() as (broker,):
            connections = pool(keep_alive_time=0.1)
            await call(connections, broker.address)
            assert len(broker.server.links) == 1
            await until(lambda: not broker.server.links)
            assert connections._sweep is None  # nothing is left to look after
            await call(connections, broker.address)
            await connections.close()

    async def test_is_not_closed_while_a_call_is_open(self) -> None:
        async with scripted() as (broker,):
            go_on = pause_all(broker)
            connections = pool(keep_alive_time=0.05)
            waiting = asyncio.create_task(call(connections, broker.address))
            await until(lambda: broker.calls["FetchMetadata"] == 1)
            begun = asyncio.get_running_loop().time()
            await until(lambda: asyncio.get_running_loop().time() > begun + 0.3)
            go_on.set()
            assert await waiting == b""
            await connections.close()

    async def test_is_not_closed_when_it_was_used_in_between(self) -> None:
        # Two looks find it without a call, and there was one between them.
        async with scripted() as (broker,):
            connections = pool(keep_alive_time=1000)
            for _ in range(3):
                await call(connections, broker.address)
                connections._close_idle()
            assert len(connections._usable(broker.address)) == 1
            connections._close_idle()
            assert connections._usable(broker.address) == []
            await connections.close()


class TestFailure:
    async def test_nobody_listens(self) -> None:
        connections = pool()
        with pytest.raises(CallNotProcessedError, match="can't connect"):
            await connections.channel("127.0.0.1:1")
        assert connections.latency("127.0.0.1:1") is None
        await connections.close()

    async def test_an_address_that_does_not_answer(self, black_hole: str) -> None:
        connections = pool(connect_timeout=0.2)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(CallNotProcessedError):
            await connections.channel(black_hole, 30)
        assert asyncio.get_running_loop().time() - begun < 20
        await connections.close()

    async def test_nobody_waits_for_the_attempts_of_others(self, black_hole: str) -> None:
        # Ten that connect one after the other would take twenty seconds.
        connections = pool(connect_timeout=2.0)
        begun = asyncio.get_running_loop().time()
        waits = [connections.channel(black_hole, 2.4) for _ in range(10)]
        found = await asyncio.gather(*waits, return_exceptions=True)
        assert asyncio.get_running_loop().time() - begun < 12
        assert {type(one) for one in found} == {CallNotProcessedError}
        await connections.close()

    async def test_an_attempt_that_is_given_up(self, black_hole: str) -> None:
        connections = pool()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connections.channel(black_hole)
        await connections.close()

    async def test_a_second_connection_that_fails_is_not_missed(self) -> None:
        async with scripted() as (broker,):
            go_on = pause_all(broker)
            connections = pool()
            first = asyncio.create_task(call(connections, broker.address))
            await until(lambda: broker.calls["FetchMetadata"] == 1)
            assert broker.server._listener is not None
            broker.server._listener.close()
            second = asyncio.create_task(call(connections, broker.address))
            await until(lambda: broker.calls["FetchMetadata"] == 2)
            assert len(broker.server.links) == 1
            go_on.set()
            await asyncio.gather(first, second)
            await connections.close()

    async def test_connection_is_shared_if_no_further_one_can_be_made(
        self, black_hole: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections_module, "_AVOIDED", 600.0)
        async with scripted() as (broker,):
            go_on = pause_all(broker)
            mapped = {"broker.invalid:9292": broker.address}
            connections = pool(address_map=mapped)
            calls = [asyncio.create_task(call(connections, "broker.invalid:9292"))]
            await until(lambda: broker.calls["FetchMetadata"] == 1)
            connections._options = replace(connections._options, connect_timeout=0.2)
            connections._options.address_map["broker.invalid:9292"] = black_hole  # type: ignore[index]
            tried: list[str] = []
            connect = connections._connect

            async def noted(address: str, timeout: float) -> None:
                tried.append(address)
                await connect(address, timeout)

            connections._connect = noted  # type: ignore[method-assign]
            calls += [asyncio.create_task(call(connections, "broker.invalid:9292")) for _ in range(5)]
            await until(lambda: broker.calls["FetchMetadata"] == 6)
            assert len(tried) == 1  # the others did not each wait for it in vain
            go_on.set()
            await asyncio.gather(*calls)
            await connections.close()


class TestClose:
    async def test_ends_what_is_open(self) -> None:
        async with scripted() as (broker,):
            broker.always("FetchMetadata", stall)
            connections = pool()
            waiting = asyncio.create_task(call(connections, broker.address))
            await until(lambda: broker.calls["FetchMetadata"] == 1)
            await connections.close()
            with pytest.raises(TransportError):
                await waiting
            await connections.close()
            with pytest.raises(CallNotProcessedError, match="the client is closed"):
                await connections.channel(broker.address)

    async def test_leaves_nothing_behind(self) -> None:
        async with scripted() as (broker,):
            before = asyncio.all_tasks()
            async with client_of([broker]) as client:
                await client.fetch_metadata()
            mine = {task for task in asyncio.all_tasks() - before if not task.get_name().startswith("serve")}
            assert mine == set()
            await until(lambda: not broker.server.links)


async def lose(connections: Connections, address: str, broker: ScriptedBroker) -> None:
    """Lose the only connection to an address, and have the pool notice it."""
    (one,) = connections._usable(address)
    broker.drop()
    await until(lambda: not one.channel.is_usable)
    assert not connections._usable(address)


async def test_addresses_that_are_named_once_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "_MOST_ADDRESSES", 10)
    async with scripted() as (broker,):
        made_up = [f"127.0.1.{number}:1" for number in range(50)]
        mapped = [f"named-{number}.invalid:1" for number in range(50)]
        connections = pool(address_map=dict.fromkeys(mapped, broker.address), keep_alive_time=60.0)
        for refused, reached in zip(made_up, mapped, strict=True):
            with pytest.raises(CallNotProcessedError):
                await connections.channel(refused)
            assert await call(connections, reached)
            await lose(connections, reached, broker)
        for table in (connections._making, connections._latencies, connections._lost):
            assert len(table) <= 10
        connections._close_idle()
        assert not connections._pool
        await connections.close()


async def test_knows_how_long_connecting_took() -> None:
    async with scripted() as (broker,):
        connections = pool()
        begun = perf_counter()
        await connections.channel(broker.address)
        assert 0 < (connections.latency(broker.address) or 0) <= perf_counter() - begun
        await connections.close()


async def test_connects_where_the_map_says() -> None:
    async with scripted() as (broker,):
        connections = pool(address_map={"elsewhere.invalid:9292": broker.address})
        assert await call(connections, "elsewhere.invalid:9292")
        await connections.close()


class Ending:
    """Open resource of a client that closes after some turns of the loop, perhaps with an error."""

    def __init__(self, turns: int, error: Exception | None = None) -> None:
        self.turns, self.error, self.could_call = turns, error, False
        self.client: Any = None

    async def close(self) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.could_call = bool(await self.client._context.cluster.fetch([], deadline=Deadline(5.0)))


async def test_one_that_fails_to_end_does_not_keep_others_from_it() -> None:
    async with scripted() as (broker,):
        client = await client_of([broker])
        failing, other = Ending(1, TransportError("not stored")), Ending(50)
        failing.client = other.client = client
        client._context.open_resources |= {failing, other}
        with pytest.raises(TransportError, match="not stored"):
            await client.close()
        assert other.could_call
