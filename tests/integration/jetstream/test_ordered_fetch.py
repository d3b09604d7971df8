"""Fetches of ordered consumers on a real server: nothing missing, nothing twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import (
    CallTimeoutError,
    NoJetStreamError,
    StreamNotFoundError,
    TransportError,
    UsageError,
)
from liftenvelope.jetstream import Batch, DeliverPolicy, OrderedConsumer, Stream
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream._ordered.fetch import _OrderedReader
from liftenvelope.jetstream._ordered.places import OrderedPlaces
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from tests.integration.conftest import connect, until

from . import pulling
from .pulling import Bench, Wire, numbered, publish_patiently, restart


@pytest.fixture
async def stream(bench: Bench) -> Stream:
    return await pulling.stream_of(bench)


async def delete_consumers(stream: Stream) -> int:
    names = [name async for name in stream.consumer_names()]
    for name in names:
        await stream.delete_consumer(name)
    return len(names)


async def data_of(work: Any) -> list[bytes]:
    return [message.data for message in await work]


class TestFetch:
    async def test_each_goes_on_where_the_last_one_ended(self, bench: Bench, stream: Stream) -> None:
        await bench.publish(numbered(30))
        ordered = stream.ordered_consumer()
        assert await data_of(ordered.fetch(10, expires=20)) == numbered(10)
        assert (await ordered.next(timeout=20)).data == b"10"
        assert await data_of(ordered.fetch_no_wait(5)) == numbered(5, 11)
        some = await data_of(ordered.fetch_bytes(500, expires=20))
        assert some == numbered(len(some), 16)
        assert 1 <= len(some) <= 10
        rest = await data_of(ordered.fetch(30, expires=3))
        assert some + rest == numbered(14, 16)
        assert await data_of(ordered.fetch_no_wait(5)) == []
        assert await data_of(ordered.fetch(5, expires=0.2)) == []
        with pytest.raises(CallTimeoutError):
            await ordered.next(timeout=0.2)
        await bench.publish(numbered(1, 30))
        assert (await ordered.next(timeout=20)).data == b"30"
        # All that took one consumer at the server.
        assert len([name async for name in stream.consumer_names()]) == 1

    async def test_beside_messages(self, bench: Bench, stream: Stream) -> None:
        """An iteration is a reading of its own."""
        await bench.publish(numbered(6))
        ordered = stream.ordered_consumer(
            filter_subjects=[f"{bench.name}.*"],
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=3,
        )
        assert await data_of(ordered.fetch(2, expires=20)) == numbered(2, 2)
        async with ordered.messages() as messages:
            assert (await messages.next(timeout=20)).data == b"2"
        assert await data_of(ordered.fetch(2, expires=20)) == numbered(2, 4)

    async def test_consumer_is_deleted_between_fetches(self, bench: Bench, stream: Stream) -> None:
        await bench.publish(numbered(20))
        ordered = stream.ordered_consumer()
        got = []
        for number in (3, 4, 5):
            got += await data_of(ordered.fetch(number, expires=20))
            assert await delete_consumers(stream) == 1
        got.append((await ordered.next(timeout=20)).data)
        await delete_consumers(stream)
        got += await data_of(ordered.fetch_no_wait(3))
        await delete_consumers(stream)
        got += await data_of(ordered.fetch_bytes(100_000, expires=5))
        assert got == numbered(20)

    async def test_consumer_is_deleted_during_a_fetch(self, bench: Bench, stream: Stream) -> None:
        await bench.publish(numbered(3))
        ordered = stream.ordered_consumer()
        fetching = asyncio.create_task(data_of(ordered.fetch(6, expires=30)))
        async with asyncio.timeout(60):
            while not [info async for info in stream.consumers() if info.delivered.consumer_seq == 3]:
                await asyncio.sleep(0.01)
        await delete_consumers(stream)
        await bench.publish(numbered(3, 3))
        assert await asyncio.wait_for(fetching, 20) == numbered(6)

    async def test_a_cancelled_one_loses_nothing(self, bench: Bench, stream: Stream) -> None:
        await bench.publish(numbered(4))
        ordered = stream.ordered_consumer()
        assert (await ordered.next(timeout=20)).data == b"0"
        for turns in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55):
            fetching = asyncio.create_task(ordered.fetch(5, expires=30))
            for _ in range(turns):
                await asyncio.sleep(0)
            fetching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetching
        assert await data_of(ordered.fetch(3, expires=20)) == numbered(3, 1)

    async def test_a_lost_message_is_read_again(self, bench: Bench, stream: Stream) -> None:
        """Injected: somebody else takes what was meant for this reader."""
        await bench.publish(numbered(3))
        ordered = stream.ordered_consumer()
        assert (await ordered.next(timeout=20)).data == b"0"
        (name,) = [name async for name in stream.consumer_names()]
        await (await stream.consumer(name)).next(timeout=20)
        got: list[bytes] = []
        async with asyncio.timeout(60):
            while len(got) < 2:
                with suppress(CallTimeoutError):  # if JetStream takes more than moments for a new consumer
                    got += await data_of(ordered.fetch(2 - len(got), expires=4))
        assert got == numbered(2, 1)

    async def test_one_at_a_time(self, bench: Bench, stream: Stream) -> None:
        ordered = stream.ordered_consumer()
        fetching = asyncio.create_task(ordered.fetch(1, expires=20))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="await it before the next one"):
            await ordered.next(timeout=1)
        await bench.publish(numbered(1))
        assert await data_of(fetching) == numbered(1)

    async def test_the_stream_is_gone(self, bench: Bench, stream: Stream) -> None:
        await bench.publish(numbered(1))
        ordered = stream.ordered_consumer()
        assert (await ordered.next(timeout=20)).data == b"0"
        await bench.delete()
        with pytest.raises(StreamNotFoundError):
            await ordered.next(timeout=20)
        await bench.create()

    async def test_the_connection_is_closed(self, bench: Bench, stream: Stream, js_nc: Client) -> None:
        ordered = stream.ordered_consumer()
        fetching = asyncio.create_task(ordered.fetch(1, expires=60))
        async with asyncio.timeout(60):
            while not [info async for info in stream.consumers() if info.num_waiting]:
                await asyncio.sleep(0.01)
        await js_nc.close()
        for _ in range(2):
            with pytest.raises(TransportError):
                await asyncio.wait_for(fetching, 20)
            fetching = asyncio.create_task(ordered.fetch(1, expires=60))
        fetching.cancel()
        await asyncio.wait({fetching})

    @pytest.mark.parametrize(
        ("expires", "given", "beat"),
        [(30, None, 2_000_000_000), (60, None, 2_000_000_000), (30, 5.0, 5_000_000_000), (0.9, None, None)],
    )
    async def test_pulls_ask_for_heartbeats_that_show_the_loss_of_their_server(
        self,
        bench: Bench,
        stream: Stream,
        js_nc: Client,
        expires: float,
        given: float | None,
        beat: int | None,
    ) -> None:
        async with Wire(js_nc, f"$JS.API.CONSUMER.MSG.NEXT.{bench.name}.*") as wire:
            fetching = asyncio.create_task(
                stream.ordered_consumer().fetch(1, expires=expires, idle_heartbeat=given)
            )
            await until(lambda: wire.payloads)
            fetching.cancel()
            await asyncio.wait({fetching})
        assert wire.pulls()[0].get("idle_heartbeat") == beat

    @pytest.mark.parametrize(
        ("what", "arguments", "options"),
        [
            ("fetch", (0,), {}),
            ("fetch", (5,), {"expires": 0}),
            ("fetch", (5,), {"expires": None}),
            ("fetch_bytes", (5,), {"expires": None}),
            ("fetch", (5,), {"expires": 30, "idle_heartbeat": 20}),
            ("fetch_bytes", (0,), {}),
            ("fetch_no_wait", (0,), {}),
            ("next", (-1,), {}),
        ],
    )
    async def test_options(
        self, stream: Stream, js_nc: Client, what: str, arguments: tuple[int], options: dict[str, int | None]
    ) -> None:
        sent = js_nc.stats["out_msgs"]
        with pytest.raises(UsageError):
            await getattr(stream.ordered_consumer(), what)(*arguments, **options)
        assert js_nc.stats["out_msgs"] == sent


async def far_consumer(proxy: FaultProxy, name: str) -> tuple[Client, OrderedConsumer]:
    nc = await connect(f"nats://{proxy.address}")
    stream = await pulling.stream_of(Bench(nc, name))
    return nc, stream.ordered_consumer()


async def test_what_the_network_lost_is_read_again(
    jetstream_server: NatsServer, bench: Bench, stream: Stream
) -> None:
    """The consumer takes it for delivered, and nothing else comes: only the new connection tells."""
    with FaultProxy(jetstream_server.address) as proxy:
        nc, ordered = await far_consumer(proxy, bench.name)
        await bench.publish(numbered(2))
        assert await data_of(ordered.fetch(2, expires=20)) == numbered(2)
        fetching = asyncio.create_task(data_of(ordered.fetch(1, expires=60)))
        async with asyncio.timeout(60):
            while not [info async for info in stream.consumers() if info.num_waiting]:
                await asyncio.sleep(0.01)
        proxy.stall("to_client")
        await bench.publish(numbered(1, 2))
        async with asyncio.timeout(60):
            while not [info async for info in stream.consumers() if info.delivered.consumer_seq == 3]:
                await asyncio.sleep(0.01)
        proxy.cut()
        proxy.resume("to_client")
        assert await asyncio.wait_for(fetching, 30) == numbered(1, 2)
        await nc.close()


async def test_offline(jetstream_server: NatsServer, bench: Bench) -> None:
    with FaultProxy(jetstream_server.address) as proxy:
        nc, ordered = await far_consumer(proxy, bench.name)
        await bench.publish(numbered(3))
        assert await data_of(ordered.fetch(1, expires=20)) == numbered(1)
        proxy.refuse()
        proxy.cut()
        await until(lambda: not nc.is_connected)
        with pytest.raises(TransportError, match="down"):
            await ordered.fetch(1, expires=0.3)
        fetching = asyncio.create_task(data_of(ordered.fetch(2, expires=60)))
        await asyncio.sleep(0)
        proxy.accept()
        assert await asyncio.wait_for(fetching, 30) == numbered(2, 1)
        await nc.close()


@pytest.fixture
async def own_server() -> AsyncIterator[NatsServer]:
    with run_nats_server(jetstream=True) as server:
        yield server


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_the_server_is_restarted_under_load(own_server: NatsServer, name: str, how: str) -> None:
    """The consumer lives in the server's memory, and is gone."""
    nc = await connect(own_server.url)
    bench = await Bench(nc, name).create()
    ordered = (await pulling.stream_of(bench)).ordered_consumer()
    await bench.publish(numbered(200))
    got: list[bytes] = []

    async def read() -> None:
        for turn in count():
            try:
                if turn % 2:
                    got.append((await ordered.next(timeout=20)).data)
                else:
                    got.extend(await data_of(ordered.fetch(min(7, 300 - len(got)), expires=20)))
            except (NoJetStreamError, CallTimeoutError, TransportError):
                continue  # the place is kept
            if len(got) == 300:
                return

    reading = asyncio.create_task(read())
    await until(lambda: len(got) > 50)
    await restart(own_server, how)
    await publish_patiently(bench, numbered(100, 200))
    await asyncio.wait_for(reading, 60)
    assert got == numbered(300)
    await nc.close()


async def test_what_comes_before_a_new_consumer_is_not_skipped(bench: Bench, stream: Stream) -> None:
    """With the policy NEW: what is published while the consumer is made anew is new as well."""
    await bench.publish(numbered(3))
    ordered = stream.ordered_consumer(deliver_policy=DeliverPolicy.NEW)
    assert await data_of(ordered.fetch_no_wait(5)) == []
    async with ordered.messages() as messages:
        assert await delete_consumers(stream) == 2
        await bench.publish(numbered(2, 3))
        assert [(await messages.next(timeout=20)).data for _ in range(2)] == numbered(2, 3)
    assert await data_of(ordered.fetch(2, expires=20)) == numbered(2, 3)


async def test_fetch_ends_at_its_deadline_though_each_batch_has_a_gap(
    bench: Bench, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Injected: gaps. Their number of attempts had no bound."""
    await bench.publish(numbered(1))
    ordered = stream.ordered_consumer()
    with monkeypatch.context() as patch:
        make, made = OrderedPlaces.make, list[int]()

        def find_gap(reader: Any, batch: Batch, into: Batch) -> bool:
            assert batch
            if len(made) == 1:
                time.sleep(3.1)  # until the deadline has passed
            return False

        patch.setattr(_OrderedReader, "take", find_gap)

        async def counted(places: OrderedPlaces, sequence: int, **options: Any) -> Consumer:
            made.append(sequence)
            return await make(places, sequence, **options)

        patch.setattr(OrderedPlaces, "make", counted)
        with pytest.raises(CallTimeoutError):
            await ordered.fetch(1, expires=3)
        assert len(made) <= 4
    assert await data_of(ordered.fetch(1, expires=20)) == [b"0"]


async def test_fetches_cancelled_while_they_start_leave_no_consumers(stream: Stream) -> None:
    """JetStream executes requests concurrently: a deletion may overtake the creation."""
    for number in range(300):
        fetching = asyncio.create_task(stream.ordered_consumer().fetch(1, expires=60))
        for _ in range(number % 10):  # the cancellation meets each step of the start
            await asyncio.sleep(0)
        fetching.cancel()
        await asyncio.wait([fetching])
    async with asyncio.timeout(60):  # JetStream removes an unused one after five minutes
        while [name async for name in stream.consumer_names()]:
            await asyncio.sleep(0.05)
