"""Requests while the connection is down, or the server silent, never give an empty answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import CallTimeoutError, TransportError
from liftenvelope.jetstream import JetStream, watch
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream._ordered.consumer import OrderedConsumer
from liftenvelope.jetstream._pulling import fetching as fetching_module
from liftenvelope.jetstream.api import Api
from liftenvelope.jetstream.message import Message
from liftenvelope.nats import accelerate
from liftenvelope.testing import FaultProxy, NatsServer
from tests.integration.conftest import connect, until

from . import pulling
from .pulling import Bench, consumers_of, numbered, until_no_pulls, until_pulled


class Far:
    """A second connection, which goes through a proxy, to the stream of a bench."""

    def __init__(self, proxy: FaultProxy, bench: Bench) -> None:
        self.proxy = proxy
        self.bench = bench

    async def go_offline(self) -> None:
        self.proxy.refuse()
        self.proxy.cut()
        await until(lambda: not self.bench.nc.is_connected)

    async def go_online(self) -> None:
        self.proxy.accept()
        await until(lambda: self.bench.nc.is_connected)


@pytest.fixture
async def far(
    jetstream_server: NatsServer, bench: Bench, request: pytest.FixtureRequest
) -> AsyncIterator[Far]:
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        if "accelerated" in request.node.name:  # as the other connection is
            assert accelerate(nc).active
        yield Far(proxy, Bench(nc, bench.name))
        await nc.close()


Pulling = Callable[[Consumer], Awaitable[Any]]
PULLS: dict[str, Pulling] = {
    "fetch": lambda consumer: consumer.fetch(5, expires=0.3),
    "fetch_bytes": lambda consumer: consumer.fetch_bytes(5000, expires=0.3),
    "fetch_no_wait": lambda consumer: consumer.fetch_no_wait(5),
    "next": lambda consumer: consumer.next(timeout=0.3),
}


@pytest.mark.parametrize("how", PULLS)
class TestPulls:
    async def test_made_while_offline(self, far: Far, how: str) -> None:
        consumer = await far.bench.consumer()
        await far.bench.publish(numbered(1))
        await far.go_offline()
        far.bench.api.timeout = 0.3  # that of fetch_no_wait
        with pytest.raises(TransportError, match="down"):
            await PULLS[how](consumer)
        await far.go_online()
        assert (await consumer.next(timeout=20)).data == b"0"

    async def test_the_server_never_answers(
        self, far: Far, bench: Bench, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The network has swallowed the pull, and nats-py has not noticed yet."""
        consumer = await far.bench.consumer(ack_wait=1_000_000_000)
        await PULLS["fetch_no_wait"](consumer)  # the inbox is there
        far.bench.api.timeout = 0.3
        far.proxy.stall()
        monkeypatch.setattr(fetching_module, "_GRACE", 0.5)  # nothing can come through the proxy
        with pytest.raises(CallTimeoutError, match="not answered"):
            await PULLS[how](consumer)
        monkeypatch.undo()
        far.proxy.resume()
        await bench.publish(numbered(1))
        await asyncio.wait_for(read_again(consumer, {b"0"}), 40)
        await until_no_pulls(Consumer(bench.api, consumer.cached_info))


async def test_fetch_and_next_notice_a_silent_server_long_before_their_end(far: Far) -> None:
    consumer = await far.bench.consumer()
    await consumer.fetch_no_wait(1)
    far.proxy.stall()
    async with asyncio.timeout(60):
        fetch, following = await asyncio.gather(
            consumer.fetch(1, expires=3600), consumer.next(timeout=3600), return_exceptions=True
        )
    for error in (fetch, following):
        assert isinstance(error, CallTimeoutError)
        assert "has been silent for 1" in str(error)


async def read_again(consumer: Consumer, wanted: set[bytes]) -> None:
    """Read until everything is there: what was on its way to a fetch that gave up comes after ack_wait."""
    while wanted:
        wanted -= {message.data for message in await consumer.fetch(1, expires=20)}


async def test_a_connection_lost_in_mid_batch(far: Far, bench: Bench) -> None:
    """The received messages are returned, with the error that ended the batch."""
    consumer = await far.bench.consumer()
    await bench.publish(numbered(2))
    received = far.bench.nc.stats["in_msgs"]
    fetching = asyncio.create_task(consumer.fetch(5, expires=8))
    # That the server counts them as delivered does not say that they have come.
    await until(lambda: far.bench.nc.stats["in_msgs"] >= received + 2)
    await far.go_offline()
    batch = await fetching
    assert [message.data for message in batch] == numbered(2)
    assert isinstance(batch.error, TransportError)
    await far.go_online()


async def test_the_rest_is_pulled_for_the_rest_of_the_time(far: Far, bench: Bench) -> None:
    """After a reconnect the server is not asked to wait for longer than the fetch does."""
    consumer = await far.bench.consumer()
    near = Consumer(bench.api, consumer.cached_info)
    async with pulling.Wire(bench.nc, consumer.pull_subject) as wire:
        fetching = asyncio.create_task(consumer.fetch(5, expires=20, idle_heartbeat=10))
        await until_pulled(near)
        await far.go_offline()
        await until_no_pulls(near)
        await far.go_online()
        await until_pulled(near)
        await bench.publish(numbered(5))
        assert [message.data for message in await asyncio.wait_for(fetching, 20)] == numbered(5)
    first, second = wire.pulls()
    assert first["expires"] == 20_000_000_000
    assert second["expires"] < 20_000_000_000
    # Half of the time must be left for a heartbeat, or the server refuses the pull.
    assert ("idle_heartbeat" in first, "idle_heartbeat" in second) == (True, False)


async def test_fetch_that_begins_before_a_reconnect_is_noticed_pulls_once(
    far: Far, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll told it of a reconnect that came before its pull, if another listener had begun before."""
    monkeypatch.setattr(watch, "_LOOK", 3_600.0)  # polled by hand below
    consumer, other = await far.bench.consumer(), await far.bench.consumer("other")
    connection = watch.watch_of(far.bench.nc)
    async with pulling.Wire(bench.nc, consumer.pull_subject) as wire:
        listening = asyncio.create_task(other.fetch(1, expires=60))
        await until_pulled(Consumer(bench.api, other.cached_info))
        await far.go_offline()
        await far.go_online()
        fetching = asyncio.create_task(consumer.fetch(1, expires=60))
        near = Consumer(bench.api, consumer.cached_info)
        await until_pulled(near)
        connection._look()
        await until_pulled(Consumer(bench.api, other.cached_info))  # which has lost its pull
        await bench.publish(numbered(1))
        assert [message.data for message in await fetching] == [b"0"]
        assert [message.data for message in await listening] == [b"0"]
        assert len(wire.pulls()) == 1


async def test_a_busy_loop_is_no_silent_server(bench: Bench) -> None:
    """The server has answered in time, and the program did not look."""
    consumer = await bench.consumer()
    async with pulling.Wire(bench.nc, consumer.pull_subject) as wire:
        fetching = asyncio.create_task(consumer.fetch(5, expires=0.3))
        await until(lambda: wire.payloads)
        time.sleep(6)  # blocks the loop, beyond the time-out and the grace after it
        assert await fetching == []


async def test_progress_acks_go_on_after_the_buffer_was_full(
    jetstream_server: NatsServer, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one that failed was raised after the body had succeeded, and ended a consumption."""
    await bench.publish(numbered(1))
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}", pending_size=1_000)
        far = Far(proxy, Bench(nc, bench.name))
        message = await (await far.bench.consumer()).next(timeout=60)
        send, outcomes = message._acks.send, list[bool]()

        def noted(message: Message, payload: bytes) -> None:
            outcomes.append(False)
            send(message, payload)
            outcomes[-1] = True

        monkeypatch.setattr(message._acks, "send", noted)
        async with pulling.Wire(bench.nc, message.reply) as wire:
            async with message.auto_ack_progress(0.05):
                await far.go_offline()
                await nc.publish("filler", bytes(1_000 - nc.pending_data_size - 30))
                await until(lambda: False in outcomes)
                await far.go_online()
            async with message.auto_ack_progress(0.05):
                await until(lambda: wire.payloads)
        assert wire.payloads[0] == b"+WPI"

        async def close() -> None:
            async with message.auto_ack_progress(0.05):
                outcomes.clear()
                await nc.close()
                await until(lambda: False in outcomes)

        with pytest.raises(TransportError, match="closed"):
            await close()


class TestRequests:
    """Defect 17: a request that the connection was lost under waited for its whole time-out."""

    async def lose(self, far: Far, work: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
        """Have a request swallowed, then the connection cut under it."""
        await far.bench.api.request("INFO")
        far.proxy.stall()
        nc = far.bench.nc
        sent = nc.stats["out_msgs"]
        task = asyncio.ensure_future(work())
        await until(lambda: nc.stats["out_msgs"] > sent and not nc.pending_data_size)  # it is on its way
        far.proxy.refuse()
        far.proxy.cut()
        far.proxy.resume()
        await until(lambda: not far.bench.nc.is_connected)
        return task

    async def test_request_that_times_out_while_the_socket_is_full_leaves_nothing_behind(
        self, far: Far
    ) -> None:
        nc = await connect(f"nats://{far.proxy.address}", pending_size=1_000)
        api = Api(nc, timeout=0.05)
        await api.request("INFO", timeout=60)
        far.proxy.stall()
        enough = asyncio.Event()

        async def fill() -> None:
            while not enough.is_set():
                await nc.publish("nobody", bytes(100_000))

        filling = asyncio.create_task(fill())
        for _ in range(20):  # some are cancelled while nats-py flushes, which swallows the cancellation
            with pytest.raises(CallTimeoutError):
                await api.request("INFO")
        await until(lambda: not nc._resp_map)
        enough.set()
        far.proxy.resume()
        await filling
        await nc.close()

    async def test_request_while_offline_says_that_the_connection_is_down(self, far: Far) -> None:
        await far.go_offline()
        with pytest.raises(CallTimeoutError, match=r"within 0\.1 s; the NATS connection is down"):
            await far.bench.api.request("INFO", timeout=0.1)
        await far.go_online()

    @pytest.mark.parametrize(
        "subject",
        [
            "INFO",
            "STREAM.NAMES",
            "STREAM.LIST",
            "STREAM.INFO.{}",
            "STREAM.MSG.GET.{}",
            "CONSUMER.NAMES.{}",
            "CONSUMER.LIST.{}",
            "CONSUMER.INFO.{}.worker",
        ],
    )
    async def test_reads_are_repeated(self, far: Far, bench: Bench, subject: str) -> None:
        await bench.consumer()
        await bench.publish(numbered(1))
        body = {"seq": 1} if "GET" in subject else None
        api = Api(far.bench.nc, timeout=60)
        task = await self.lose(far, lambda: api.request(subject.format(bench.name), body))
        await far.go_online()
        assert (await asyncio.wait_for(task, 20))["type"]

    @pytest.mark.parametrize(
        "subject",
        ["STREAM.PURGE.{}", "STREAM.MSG.DELETE.{}", "CONSUMER.DELETE.{}.worker", "CONSUMER.RESET.{}.worker"],
    )
    async def test_others_have_an_unknown_outcome(self, far: Far, bench: Bench, subject: str) -> None:
        await bench.consumer()
        api = Api(far.bench.nc, timeout=60)
        task = await self.lose(far, lambda: api.request(subject.format(bench.name)))
        with pytest.raises(TransportError, match="unknown") as caught:
            await asyncio.wait_for(task, 20)
        assert caught.value.sent
        await far.go_online()

    async def test_made_while_offline(self, far: Far, bench: Bench) -> None:
        """It goes out with the next connection, once."""
        await far.bench.api.request("INFO")
        await far.go_offline()
        api = Api(far.bench.nc, timeout=60)
        purging = asyncio.ensure_future(api.request(f"STREAM.PURGE.{bench.name}"))
        asking = asyncio.ensure_future(api.request(f"STREAM.INFO.{bench.name}"))
        await asyncio.sleep(0.4)  # longer than the pause between two looks at the connection
        assert not purging.done()
        await far.go_online()
        assert (await asyncio.wait_for(purging, 20))["purged"] == 0
        assert (await asyncio.wait_for(asking, 20))["config"]["name"] == bench.name

    async def test_an_ack_that_is_awaited(self, far: Far, bench: Bench) -> None:
        """Its outcome is unknown, and it may be tried again."""
        await bench.publish(numbered(1))
        consumer = await far.bench.consumer()
        message = await consumer.next(timeout=20)
        task = await self.lose(far, lambda: message.ack_sync(timeout=60))
        with pytest.raises(TransportError, match="unknown"):
            await asyncio.wait_for(task, 20)
        await far.go_online()
        await message.ack_sync(timeout=20)
        assert (await consumer.info()).num_ack_pending == 0

    async def test_direct_reads(self, far: Far, js_nc: Client, name: str) -> None:
        """One message is read again; of a batch the reader is told that it has not come whole."""
        bench = await Bench(js_nc, f"{name}-direct").create(allow_direct=True)
        await bench.publish([b"x" * 1000] * 20)
        stream = await JetStream(far.bench.nc, timeout=60).stream(bench.name)
        getting = await self.lose(far, lambda: stream.get_message(3))
        await far.go_online()
        assert (await asyncio.wait_for(getting, 20)).sequence == 3

        far.proxy.truncate(5_000)  # some messages of the batch, and then no connection
        got: list[int] = []

        async def read() -> None:
            async for message in stream.get_messages(20):
                got.append(message.sequence)  # noqa: PERF401  # what came before the error counts

        with pytest.raises(TransportError, match="ask for the rest"):
            await asyncio.wait_for(read(), 20)
        assert got == list(range(1, len(got) + 1))
        assert len(got) < 20
        await bench.delete()


@pytest.mark.parametrize("how", ["messages", "fetch"])
async def test_ordered_reading_that_ends_while_offline_leaves_no_consumer(
    bench: Bench, far: Far, how: str
) -> None:
    await bench.publish(numbered(1))
    consumer = OrderedConsumer(far.bench.api, far.bench.name)
    if how == "messages":
        async with consumer.messages() as messages:
            await messages.next(timeout=20)
            await far.go_offline()
    else:
        await consumer.next(timeout=20)
        await far.go_offline()
        with pytest.raises(TransportError):
            await consumer.next(timeout=0.1)
    assert await consumers_of(bench)
    await far.go_online()
    async with asyncio.timeout(60):
        while await consumers_of(bench):
            await asyncio.sleep(0.01)
