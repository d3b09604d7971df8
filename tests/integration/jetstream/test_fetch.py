"""``fetch``, ``fetch_bytes``, ``fetch_no_wait`` and ``next`` on a real server."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from nats.aio.client import Client

from liftenvelope.errors import (
    CallTimeoutError,
    ConnectionClosedError,
    ConsumerDeletedError,
    JetStreamError,
    NoJetStreamError,
    UnsupportedByServerError,
    UsageError,
)
from liftenvelope.jetstream import ConsumerConfig, JetStream, StreamConfig
from liftenvelope.nats.link import Link
from liftenvelope.testing import run_nats_server
from tests.integration.conftest import connect, until

from .pulling import Bench, Wire, numbered, until_no_pulls, until_pulled


class TestFetch:
    async def test_a_full_batch(self, bench: Bench) -> None:
        await bench.publish(numbered(10))
        consumer = await bench.consumer()
        batch = await consumer.fetch(10, expires=20)
        assert [message.data for message in batch] == numbered(10)
        assert batch.error is None
        for message in batch:
            await message.ack_sync()
        assert (await consumer.info()).num_ack_pending == 0

    async def test_what_there_is_when_the_time_is_up(self, bench: Bench) -> None:
        await bench.publish(numbered(3))
        consumer = await bench.consumer()
        assert [message.data for message in await consumer.fetch(10, expires=3)] == numbered(3)
        assert await consumer.fetch(10, expires=0.1) == []
        await until_no_pulls(consumer)

    async def test_no_wait(self, bench: Bench) -> None:
        consumer = await bench.consumer()
        assert await consumer.fetch_no_wait(5) == []
        await bench.publish(numbered(7))
        async with asyncio.timeout(60):  # the server tells a consumer of a message after it has acked it
            while (await consumer.info()).num_pending < 7:
                pass
        assert [message.data for message in await consumer.fetch_no_wait(5)] == numbered(5)
        assert [message.data for message in await consumer.fetch_no_wait(5)] == numbered(2, 5)

    async def test_no_wait_while_acks_are_missing(self, bench: Bench) -> None:
        """The server queues such a pull, and says nothing."""
        await bench.publish(numbered(5))
        consumer = await bench.consumer(max_ack_pending=2)
        first = await consumer.fetch_no_wait(5)
        assert [message.data for message in first] == numbered(2)
        assert await consumer.fetch_no_wait(5) == []
        await until_no_pulls(consumer)
        for message in first:
            await message.ack_sync()
        more = await consumer.fetch_no_wait(2)
        assert [message.data for message in more] == numbered(2, 2)
        assert [message.metadata.num_delivered for message in more] == [1, 1]
        assert first.error is more.error is None

    async def test_bytes(self, bench: Bench) -> None:
        """Defect 13: a batch of one; here as much as fits, and no pull is left over."""
        await bench.publish([b"x" * 100] * 50, headers={"A": "b"})
        consumer = await bench.consumer()
        batch = await consumer.fetch_bytes(2000, expires=2)
        assert 5 < len(batch) < 20
        assert len(batch) + len(await consumer.fetch_bytes(2000, expires=2)) > len(batch)
        await until_no_pulls(consumer)

    async def test_bytes_that_fit_exactly(self, bench: Bench) -> None:
        """The server ends such a pull without a word."""
        await bench.publish([b"x" * 100] * 4, headers={"A": "b"})
        consumer = await bench.consumer(ack_policy="none")
        first = await consumer.next(timeout=20)
        size = len(first.subject) + len(first.reply) + 100 + len("NATS/1.0\r\nA: b\r\n\r\n")
        async with asyncio.timeout(20):  # not until it expires
            assert len(await consumer.fetch_bytes(2 * size, expires=60)) == 2

    async def test_one_after_the_other_uses_one_subscription(self, bench: Bench, js_nc: Client) -> None:
        """Defect 3: every call left a subscription behind."""
        await bench.publish(numbered(100))
        consumer = await bench.consumer()
        before = len(js_nc._subs)
        for number in range(100):
            assert (await consumer.next(timeout=20)).data == b"%d" % number
            assert len(js_nc._subs) <= before + 1
        await until(lambda: len(js_nc._subs) <= before)

    async def test_many_at_once(self, bench: Bench, js_nc: Client) -> None:
        await bench.publish(numbered(100))
        consumer = await bench.consumer()
        before = len(js_nc._subs)
        batches = await asyncio.gather(*(consumer.fetch(10, expires=20) for _ in range(10)))
        assert sorted(int(m.data) for batch in batches for m in batch) == list(range(100))
        await until(lambda: len(js_nc._subs) <= before)

    async def test_next_times_out(self, bench: Bench) -> None:
        consumer = await bench.consumer()
        with pytest.raises(CallTimeoutError, match=r"0\.2 s"):
            await consumer.next(timeout=0.2)
        with pytest.raises(TimeoutError):
            await consumer.next(timeout=0.2)

    async def test_cancelled_gives_back_what_had_come(self, bench: Bench, js_nc: Client) -> None:
        """Defect 3: 40 of 50 messages were lost until ack_wait."""
        await bench.publish(numbered(5))
        consumer = await bench.consumer()
        before, received = len(js_nc._subs), js_nc.stats["in_msgs"]
        fetching = asyncio.create_task(consumer.fetch(10, expires=20))
        async with asyncio.timeout(60):
            # That the server counts them as delivered does not say that they have come.
            while js_nc.stats["in_msgs"] < received + 5:
                await asyncio.sleep(0.01)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        assert len(js_nc._subs) == before
        await until_no_pulls(consumer)
        again = await consumer.fetch(5, expires=20)
        assert sorted(message.data for message in again) == numbered(5)

    async def test_consumer_deleted_meanwhile(self, bench: Bench) -> None:
        """Defect 22: an empty list after the full time-out."""
        consumer = await bench.consumer()
        fetching = asyncio.create_task(consumer.fetch(5, expires=30))
        await until_pulled(consumer)
        await consumer.delete()
        with pytest.raises(ConsumerDeletedError):
            await asyncio.wait_for(fetching, 20)

    async def test_consumer_deleted_after_some_had_come(self, bench: Bench) -> None:
        await bench.publish(numbered(2))
        consumer = await bench.consumer()
        fetching = asyncio.create_task(consumer.fetch(5, expires=30))
        async with asyncio.timeout(20):
            while (await consumer.info()).num_ack_pending < 2:
                await asyncio.sleep(0.01)
        await consumer.delete()
        batch = await asyncio.wait_for(fetching, 20)
        assert [message.data for message in batch] == numbered(2)
        assert isinstance(batch.error, ConsumerDeletedError)

    async def test_consumer_gone_before(self, bench: Bench) -> None:
        consumer = await bench.consumer()
        await consumer.delete()
        with pytest.raises(NoJetStreamError, match=f"consumer not found: 'worker' of stream '{bench.name}'"):
            await consumer.fetch(1, expires=20)

    async def test_refused(self, bench: Bench) -> None:
        consumer = await bench.consumer()
        await bench.consumer(max_batch=5)
        with pytest.raises(JetStreamError, match="MaxRequestBatch"):
            await consumer.fetch(10, expires=20)

    async def test_connection_closed_by_its_owner(self, bench: Bench, js_nc: Client) -> None:
        consumer = await bench.consumer()
        fetching = asyncio.create_task(consumer.fetch(5))
        await until_pulled(consumer)
        await js_nc.close()
        with pytest.raises(ConnectionClosedError):
            await asyncio.wait_for(fetching, 20)

    async def test_heartbeats(self, bench: Bench, js_nc: Client) -> None:
        """On by themselves from 10 s on, as in nats.go, and never so many that the server refuses them."""
        consumer = await bench.consumer()
        async with Wire(js_nc, consumer.pull_subject) as wire:
            fetching = [
                asyncio.create_task(consumer.fetch(5, expires=10)),
                asyncio.create_task(consumer.fetch(5, expires=9.9)),
                asyncio.create_task(consumer.fetch(5, expires=4, idle_heartbeat=0.5)),
            ]
            await until(lambda: len(wire.payloads) == 3)
            for task in fetching:
                task.cancel()
            await asyncio.wait(fetching)
        assert [b"heartbeat" in payload for payload in wire.payloads] == [True, False, True]

    @pytest.mark.parametrize(
        ("what", "arguments", "options"),
        [
            ("fetch", (0,), {}),
            ("fetch", (-1,), {}),
            ("fetch", (2**63,), {}),
            ("fetch", (5,), {"expires": 0}),
            ("fetch", (5,), {"expires": None}),
            ("fetch_bytes", (5,), {"expires": None}),
            ("fetch", (5,), {"expires": 30, "idle_heartbeat": 20}),
            ("fetch", (5,), {"group": "jobs"}),
            ("fetch_bytes", (0,), {}),
            ("fetch_no_wait", (0,), {}),
            ("next", (-1,), {}),
        ],
    )
    async def test_options(
        self, bench: Bench, js_nc: Client, what: str, arguments: tuple[int], options: dict[str, int | None]
    ) -> None:
        consumer = await bench.consumer()
        sent = js_nc.stats["out_msgs"]
        with pytest.raises(UsageError):
            await getattr(consumer, what)(*arguments, **options)
        assert js_nc.stats["out_msgs"] == sent


class TestOperations:
    async def test_info_asks_and_cached_info_does_not(self, bench: Bench) -> None:
        """Defect 12."""
        consumer = await bench.consumer()
        await bench.publish(numbered(3))
        assert consumer.cached_info.num_pending == 0
        # nats-server tells consumers of a message after it has acked it.
        async with asyncio.timeout(60):
            while (await consumer.info()).num_pending != 3:
                assert consumer.cached_info.num_pending < 3
        assert consumer.cached_info.num_pending == 3

    async def test_pause_and_resume(self, bench: Bench) -> None:
        await bench.publish(numbered(1))
        consumer = await bench.consumer()
        paused = await consumer.pause(60)
        assert paused.paused
        assert 50 < paused.pause_remaining <= 60
        assert await consumer.fetch(1, expires=0.2) == []
        assert not (await consumer.resume()).paused
        assert (await consumer.next(timeout=20)).data == b"0"

    @pytest.mark.parametrize(
        ("until", "match"),
        [
            (1e300, r"before the year 10000, got 1e\+300 seconds from now"),
            (datetime.max, "a datetime with a time zone"),
            (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "in the years 1 to 9999"),
        ],
    )
    async def test_pause_until_impossible_times(
        self, bench: Bench, until: datetime | float, match: str
    ) -> None:
        consumer = await bench.consumer()
        with pytest.raises(UsageError, match=f"until must be {match}"):
            await consumer.pause(until)
        assert not (await consumer.info()).paused

    async def test_reset(self, bench: Bench) -> None:
        await bench.publish(numbered(5))
        consumer = await bench.consumer()
        for message in await consumer.fetch(5, expires=20):
            message.ack()
        assert (await consumer.reset(3)).reset_seq == 3
        assert [message.data for message in await consumer.fetch(3, expires=20)] == numbered(3, 2)

    async def test_acks(self, bench: Bench) -> None:
        await bench.publish(numbered(4))
        consumer = await bench.consumer()
        first, second, third, fourth = await consumer.fetch(4, expires=20)
        first.ack()
        second.nak()
        third.nak(delay=0.3)
        fourth.in_progress()
        fourth.term("no good")
        again = await consumer.fetch(2, expires=20)
        assert [message.data for message in again] == [b"1", b"2"]
        assert [message.metadata.num_delivered for message in again] == [2, 2]
        for message in again:
            await message.ack_sync(timeout=20)
        with pytest.raises(UsageError, match="acknowledged before"):
            await again[0].ack_sync()
        assert (await consumer.info()).num_ack_pending == 0

    async def test_metadata(self, bench: Bench) -> None:
        await bench.publish(numbered(2))
        consumer = await bench.consumer()
        await consumer.next(timeout=20)
        metadata = (await consumer.next(timeout=20)).metadata
        assert (metadata.stream, metadata.consumer) == (bench.name, "worker")
        assert (metadata.stream_sequence, metadata.consumer_sequence) == (2, 2)
        assert (metadata.num_pending, metadata.num_delivered, metadata.domain) == (0, 1, "")
        assert metadata.timestamp.year >= 2024


async def test_fetch_bytes_of_headers_that_are_not_utf8_leaves_no_pull_open(
    bench: Bench, js_nc: Client
) -> None:
    """This side counts more bytes than the server, which kept the filled pull open and delivered to it."""
    block = b"NATS/1.0\r\nA: " + b"\xff" * 300 + b"\r\n\r\n"
    link = Link(js_nc)
    for _ in range(2):
        link.write(b"HPUB %b.a %d %d\r\n%b\r\n" % (bench.name.encode(), len(block), len(block), block), 1, 0)
    await link.barrier(60)
    consumer = await bench.consumer()
    # Without acceleration nats-py replaces each odd byte by a character of three bytes.
    for message in await consumer.fetch_bytes(1100, expires=2):
        message.ack()
    await bench.publish([b"next"])
    await consumer.info()
    assert (await consumer.next(timeout=60)).metadata.num_delivered == 1


async def test_reads_name_a_server_that_sends_no_headers_and_so_no_statuses(name: str) -> None:
    with run_nats_server(jetstream=True, config={"no_header_support": True}) as server:
        nc = await connect(server.url)
        async with JetStream(nc, timeout=60) as js:
            stream = await js.create_stream(StreamConfig(name=name, subjects=(name,), allow_direct=True))
            consumer = await stream.create_consumer(ConsumerConfig(name="worker"))
            for read in (consumer.fetch_no_wait(1), consumer.next(0.1), stream.get_message(1)):
                with pytest.raises(UnsupportedByServerError, match="no_header_support"):
                    await read
            await js.publish(name, b"x")
            batch = await consumer.fetch(2, expires=0.1)
            assert [message.data for message in batch] == [b"x"]
            assert isinstance(batch.error, UnsupportedByServerError)
            assert (await stream.get_message(1, direct=False)).data == b"x"
        await nc.close()
