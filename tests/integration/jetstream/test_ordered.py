"""Ordered consumers on a real server: nothing missing, nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import (
    ConnectionClosedError,
    ServerProtocolError,
    StreamNotFoundError,
    TransportError,
    UsageError,
)
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream._consumer_config import DeliverPolicy
from liftenvelope.jetstream._events import Disconnected, OrderedReset, PullEvent, Reconnected
from liftenvelope.jetstream._ordered import consumer as consumer_module
from liftenvelope.jetstream._ordered.blocks import OrderedBlocks
from liftenvelope.jetstream._ordered.consumer import OrderedConsumer
from liftenvelope.jetstream._ordered.places import OrderedPlaces
from liftenvelope.jetstream.api import Api
from liftenvelope.jetstream.message import Message, Recorder
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import connect, freeze, until

from .pulling import Bench, consumers_of, numbered, read_all


class TestOrdered:
    async def test_all_in_order(self, bench: Bench) -> None:
        await bench.publish(numbered(1000))
        consumer = OrderedConsumer(bench.api, bench.name)
        async with consumer.messages(max_messages=50) as messages:
            got = [await messages.next(timeout=20) for _ in range(1000)]
        assert [message.data for message in got] == numbered(1000)
        async with asyncio.timeout(20):
            while await consumers_of(bench):
                await asyncio.sleep(0.01)

    @pytest.mark.parametrize("by", ["messages", "consume"])
    async def test_connection_that_is_closed_after_a_read_leaves_no_consumer(
        self, bench: Bench, jetstream_server: NatsServer, by: str
    ) -> None:
        await bench.publish(numbered(1))
        came = asyncio.Event()
        nc = await connect(jetstream_server.url)
        consumer = OrderedConsumer(Api(nc), bench.name)
        if by == "messages":
            async with consumer.messages() as messages:
                await messages.next(timeout=20)
        else:
            async with await consumer.consume(lambda _: came.set()):
                await asyncio.wait_for(came.wait(), 20)
        await nc.close()
        async with asyncio.timeout(20):
            while await consumers_of(bench):
                await asyncio.sleep(0.01)

    async def test_pull_that_is_full_to_the_byte_is_followed_by_another(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server ends such a pull without a status; here, it would expire after ten minutes."""
        monkeypatch.setattr(consumer_module, "_EXPIRES", 600.0)
        await bench.publish([bytes(100)] * 8)  # of one size, as each number in the replies has one digit

        async def read(max_bytes: int) -> list[int]:
            feed = OrderedConsumer(bench.api, bench.name).feed(max_bytes=max_bytes)
            await feed.start()
            try:
                async with asyncio.timeout(30):
                    return [(await feed.next())._size for _ in range(8)]
            finally:
                feed.stop()

        [size] = set(await read(1_000_000))
        assert await read(4 * size) == [size] * 8
        assert await read(4 * size - 1) == [size] * 8
        assert await read(size - 1) == [size] * 8

    async def test_made_anew_when_its_consumer_is_deleted(self, bench: Bench) -> None:
        await bench.publish(numbered(30))
        events: list[PullEvent] = []
        consumer = OrderedConsumer(bench.api, bench.name)
        # In one of a thousand runs nats-server deletes the consumer before it has read a pull, and drops it.
        # Then only missing heartbeats show that nobody will answer.
        reading = consumer.messages(max_messages=5, idle_heartbeat=1.0, on_event=events.append)
        async with reading as messages:
            got = [(await messages.next(timeout=20)).data for _ in range(12)]
            for each in await consumers_of(bench):
                await bench.api.request(f"CONSUMER.DELETE.{bench.name}.{each}")
            got += [(await messages.next(timeout=20)).data for _ in range(18)]
        assert got == numbered(30)
        resets = [event for event in events if isinstance(event, OrderedReset)]
        assert any(13 <= event.sequence <= 18 for event in resets)
        # A server that gets no processor time for two seconds is silent as well.
        assert sum("was silent" not in event.reason for event in resets) <= 1

    async def test_a_lost_message_is_read_again(self, bench: Bench, js_nc: Client) -> None:
        """Injected: a message that nats-py has got is taken away."""
        await bench.publish(numbered(20))
        consumer = OrderedConsumer(bench.api, bench.name)
        async with consumer.messages(max_messages=20) as messages:
            got = [(await messages.next(timeout=20)).data for _ in range(4)]
            feed = messages._feed._feed  # type: ignore[attr-defined]
            await until(lambda: len(feed.buffer) == 16)
            assert feed.buffer.pop().data == b"4"
            got += [(await messages.next(timeout=20)).data for _ in range(16)]
        assert got == numbered(20)

    async def test_message_that_async_for_misses_is_read_again(self, bench: Bench) -> None:
        """Injected: a message that nats-py has got is taken away."""
        await bench.publish(numbered(20))
        got: list[bytes] = []
        async with (
            asyncio.timeout(60),
            OrderedConsumer(bench.api, bench.name).messages(max_messages=20) as messages,
        ):
            feed = messages._feed._feed  # type: ignore[attr-defined]
            await until(lambda: len(feed.buffer) == 20)
            received = [feed.buffer.pop() for _ in range(20)]
            feed.buffer.extend([message for message in received if message.data not in (b"0", b"7")])
            async for message in messages:
                got.append(message.data)
                if message.data == b"3":
                    await until(lambda: messages.buffered == 16)
                    messages._feed._feed.buffer.pop()  # type: ignore[attr-defined]
                if len(got) == 20:
                    break
        assert got == numbered(20)

    async def test_reading_without_async_with_is_refused(self, bench: Bench) -> None:
        await bench.publish(numbered(1))
        messages = OrderedConsumer(bench.api, bench.name).messages()
        for reading in (anext(aiter(messages)), messages.next(timeout=60)):
            with pytest.raises(UsageError, match="use async with"):
                await reading
        assert await consumers_of(bench) == []

    async def test_two_tasks_cannot_wait_at_once(self, bench: Bench) -> None:
        async with OrderedConsumer(bench.api, bench.name).messages() as messages:
            iterator = aiter(messages)
            waiting = asyncio.ensure_future(anext(iterator))
            await until(lambda: messages._feed._feed._waiter is not None)  # type: ignore[attr-defined]
            for other in (anext(iterator), messages.next(timeout=60)):
                with pytest.raises(UsageError, match="one task at a time"):
                    await other
            await bench.publish(numbered(2))
            assert (await waiting).data == b"0"
            assert (await anext(iterator)).data == b"1"

    async def test_number_too_large_in_a_reply_ends_it(self, bench: Bench) -> None:
        """Injected: no server sends such a number."""
        await bench.publish(numbered(1))
        async with OrderedConsumer(bench.api, bench.name).messages() as messages:
            await until(lambda: messages.buffered == 1)
            reply = f"$JS.ACK.S.C.1.{2**63}.2.17.0"
            feed = messages._feed._feed  # type: ignore[attr-defined]
            feed.buffer.append(Message("a", reply, b"x", None, Recorder()))
            assert (await messages.next(timeout=60)).data == b"0"
            with pytest.raises(ServerProtocolError, match="reply subject of a message is invalid"):
                await messages.next(timeout=60)

    async def test_filters_and_beginnings(self, bench: Bench) -> None:
        await bench.publish(numbered(5), subject="a")
        await bench.publish(numbered(5, 5), subject="b")
        consumer = OrderedConsumer(
            bench.api,
            bench.name,
            filter_subjects=[f"{bench.name}.b", f"{bench.name}.c"],
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=8,
        )
        async with consumer.messages() as messages:
            assert [(await messages.next(timeout=20)).data for _ in range(3)] == numbered(3, 7)

    async def test_last_per_subject_needs_no_filter_and_survives_a_loss(self, bench: Bench) -> None:
        """After a loss every later message comes: none stored meanwhile may be missing."""
        for number, subject in enumerate("xaab"):
            await bench.publish([b"%d" % number], subject=subject)
        consumer = OrderedConsumer(bench.api, bench.name, deliver_policy=DeliverPolicy.LAST_PER_SUBJECT)
        assert [message.data for message in await consumer.fetch(3, expires=20)] == [b"0", b"2", b"3"]
        async with consumer.messages(max_messages=1, idle_heartbeat=1.0) as messages:
            assert (await messages.next(timeout=20)).data == b"0"
            for each in await consumers_of(bench):
                await bench.api.request(f"CONSUMER.DELETE.{bench.name}.{each}")
            await bench.publish([b"4"], subject="a")
            found = [(await messages.next(timeout=20)).data]
            while found[-1] != b"4":
                found.append((await messages.next(timeout=20)).data)
        assert found in ([b"1", b"2", b"3", b"4"], [b"2", b"3", b"4"])  # one may have been on its way

    @pytest.mark.parametrize("subjects", [(), ("a", "b"), ("b",)])
    async def test_last_skips_nothing_if_the_first_fetch_is_cancelled(
        self, bench: Bench, subjects: tuple[str, ...]
    ) -> None:
        """The next consumer begins where the first one did, although another message is the last now."""
        await bench.publish(numbered(3))
        consumer = OrderedConsumer(
            bench.api,
            bench.name,
            filter_subjects=[f"{bench.name}.{subject}" for subject in subjects],
            deliver_policy=DeliverPolicy.LAST,
        )
        fetching = asyncio.create_task(consumer.fetch(5, expires=60))
        async with asyncio.timeout(60):
            while not (await self.infos(bench) or [{}])[0].get("num_waiting"):
                await asyncio.sleep(0.01)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        await bench.publish(numbered(2, 3), subject="b")
        expected = numbered(2, 3) if subjects == ("b",) else numbered(3, 2)
        assert [message.data for message in await consumer.fetch(len(expected), expires=20)] == expected

    async def infos(self, bench: Bench) -> list[dict[str, Any]]:
        return list((await bench.api.request(f"CONSUMER.LIST.{bench.name}"))["consumers"] or [])

    async def test_consume_stop_and_drain(self, bench: Bench) -> None:
        await bench.publish(numbered(100))
        seen: list[bytes] = []

        def handle(message: Message) -> None:
            seen.append(message.data)

        async with await OrderedConsumer(bench.api, bench.name).consume(handle) as consumption:
            await until(lambda: len(seen) == 100)
            await consumption.drain()
        assert seen == numbered(100)

    async def test_stream_deleted_ends_it(self, bench: Bench) -> None:
        await bench.publish(numbered(1))
        async with OrderedConsumer(bench.api, bench.name).messages() as messages:
            await messages.next(timeout=20)
            await bench.delete()
            with pytest.raises(StreamNotFoundError):
                await messages.next(timeout=20)
            with pytest.raises(StreamNotFoundError):
                await messages.closed()
        await bench.create()

    async def test_connection_closed_ends_it(self, bench: Bench, js_nc: Client) -> None:
        async with OrderedConsumer(bench.api, bench.name).messages() as messages:
            waiting = asyncio.ensure_future(messages.next())
            await asyncio.sleep(0)
            await js_nc.close()
            with pytest.raises(ConnectionClosedError):
                await asyncio.wait_for(waiting, 20)

    async def test_drain_after_its_consumer_was_lost_ends_the_iteration(self, bench: Bench) -> None:
        await bench.publish(numbered(10))
        async with OrderedConsumer(bench.api, bench.name).messages() as messages:
            first = (await messages.next(timeout=20)).data
            feed = messages._feed._feed  # type: ignore[attr-defined]
            await until(lambda: messages.buffered == 9)
            for each in await consumers_of(bench):
                await bench.api.request(f"CONSUMER.DELETE.{bench.name}.{each}")
            await until(lambda: feed.is_ending)
            await messages.drain()
            got: list[bytes] = []
            async with asyncio.timeout(60):
                await read_all(messages, got)
        assert [first, *got] == numbered(10)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"deliver_policy": "by_start_sequence", "opt_start_seq": 3}, [b"2", b"3"]),
            ({"deliver_policy": "last_per_subject"}, [b"3"]),
        ],
    )
    async def test_deliver_policy_may_have_the_name_of_the_server(
        self, bench: Bench, options: dict[str, Any], expected: list[bytes]
    ) -> None:
        await bench.publish(numbered(4))
        consumer = OrderedConsumer(bench.api, bench.name, **options)
        assert [message.data for message in await consumer.fetch_no_wait(10)] == expected
        await consumer.close()

    @pytest.mark.parametrize(
        "options",
        [
            {"opt_start_seq": 3},
            {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE},
            {"deliver_policy": DeliverPolicy.BY_START_TIME},
            {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": 0},
            {"filter_subjects": "a.b"},
            {"filter_subjects": 5},
            {"filter_subjects": ["a..b"]},
            {"inactive_threshold": 0},
            {"max_reset_attempts": 0},
        ],
    )
    async def test_options(self, bench: Bench, options: dict[str, object]) -> None:
        with pytest.raises(UsageError):
            OrderedConsumer(bench.api, bench.name, **options)  # type: ignore[arg-type]


async def pairs(feed: OrderedBlocks, limit: int) -> list[tuple[int, Message]]:
    """Return the next messages with their stream sequences."""
    return list(zip(*await feed.next_many(limit), strict=True))


class TestFeed:
    async def test_lists_are_in_order_and_no_longer_than_asked_for(self, bench: Bench) -> None:
        await bench.publish(numbered(100))
        async with reading(bench, max_messages=20) as feed:
            got: list[tuple[int, Message]] = []
            while len(got) < 100:
                messages = await pairs(feed, 7)
                assert 1 <= len(messages) <= 7
                got += messages
        assert [sequence for sequence, _ in got] == list(range(1, 101))
        assert [message.data for _, message in got] == numbered(100)
        assert [message.metadata.stream_sequence for _, message in got] == list(range(1, 101))

    async def test_list_ends_before_a_lost_message_which_is_read_again(self, bench: Bench) -> None:
        """Injected: a message that nats-py has got is taken away."""
        await bench.publish(numbered(20))
        events: list[PullEvent] = []
        async with reading(bench, max_messages=20, on_event=events.append) as feed:
            await until(lambda: feed.buffered == 20)
            queue = feed._feed.blocks  # type: ignore[union-attr]
            received = [message for block in queue.take(20) for message in block.messages()]
            queue.extend([message for message in received if message.data != b"5"])
            first = await pairs(feed, 20)
            assert [message.data for _, message in first] == numbered(5)
            second: list[bytes] = []
            while len(second) < 15:
                second += [message.data for _, message in await pairs(feed, 20)]
        assert second == numbered(15, 5)
        resets = [event for event in events if isinstance(event, OrderedReset)]
        assert [event.sequence for event in resets] == [6]
        assert "delivery 6 was lost: 7 came" in resets[0].reason

    async def test_messages_before_a_malformed_one_come_before_its_error(self, bench: Bench) -> None:
        """Injected: no server sends such a reply subject."""
        await bench.publish(numbered(3))
        async with reading(bench) as feed:
            await until(lambda: feed.buffered == 3)
            acks = Recorder()
            feed._feed.blocks.extend([Message("a", "$JS.ACK.x", b"x", None, acks)])  # type: ignore[union-attr]
            assert [message.data for _, message in await pairs(feed, 20)] == numbered(3)
            for _ in range(2):
                with pytest.raises(UsageError, match="must be the reply subject"):
                    await pairs(feed, 20)

    async def test_cancelled_wait_loses_nothing(self, bench: Bench) -> None:
        async with reading(bench) as feed:
            for number in range(3):
                waiting = asyncio.ensure_future(pairs(feed, 20))
                await until(lambda: feed._feed._waiter is not None)  # type: ignore[union-attr]
                waiting.cancel()
                await asyncio.wait({waiting})
                await bench.publish(numbered(2, 2 * number))
                got = await pairs(feed, 20)
                while len(got) < 2:
                    got += await pairs(feed, 20)
                assert [message.data for _, message in got] == numbered(2, 2 * number)

    async def test_lists_end_after_stop(self, bench: Bench) -> None:
        await bench.publish(numbered(3))
        async with reading(bench) as feed:
            await feed.next_many(1)
            feed.stop()
            with pytest.raises(StopAsyncIteration):
                await feed.next_many(1)


@contextlib.asynccontextmanager
async def reading(bench: Bench, **options: Any) -> AsyncIterator[OrderedBlocks]:
    """A started feed of an ordered consumer."""
    feed = OrderedConsumer(bench.api, bench.name).feed(**options)
    await feed.start()
    try:
        async with asyncio.timeout(60):
            yield feed
    finally:
        feed.stop()


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_goes_on_after_a_restart(how: str, name: str) -> None:
    """Defect 5: after a restart it hung for ever."""
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        bench = await Bench(nc, name).create()
        await bench.publish(numbered(100))
        events: list[PullEvent] = []
        async with OrderedConsumer(Api(nc), name).messages(
            max_messages=20, on_event=events.append
        ) as messages:
            got = [(await messages.next(timeout=20)).data for _ in range(30)]
            await asyncio.to_thread(getattr(server, how))
            reading = asyncio.ensure_future(read(messages, 70))  # at most 20 of them are buffered
            await asyncio.to_thread(server.start)
            got += await asyncio.wait_for(reading, 60)
        assert got == numbered(100)
        await nc.close()


async def test_reader_with_short_timeouts_goes_on_after_an_outage(name: str) -> None:
    """Each timeout began the creation of the next consumer, and its pause, anew."""
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        bench = await Bench(nc, name).create()
        await bench.publish(numbered(2))
        api = Api(nc, timeout=20)
        consumer = OrderedConsumer(api, name)
        async with consumer.messages(expires=1, idle_heartbeat=0.5) as messages:
            got = [(await messages.next(timeout=20)).data]
            for each in await consumers_of(bench):
                await bench.api.request(f"CONSUMER.DELETE.{name}.{each}")
            got.append((await messages.next(timeout=20)).data)
            api.timeout = 1.0
            assert server.pid is not None
            freeze(server.pid)
            try:
                for _ in range(12):
                    with pytest.raises(TimeoutError):
                        await messages.next(timeout=0.3)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            await bench.publish(numbered(1, 2))
            async with asyncio.timeout(60):
                while len(got) < 3:
                    with contextlib.suppress(TimeoutError):
                        got.append((await messages.next(timeout=0.3)).data)
        assert got == numbered(3)
        await nc.close()


async def read(messages: object, count: int) -> list[bytes]:
    return [(await messages.next(timeout=60)).data for _ in range(count)]  # type: ignore[attr-defined]


async def test_connection_lost_between_two_consumers_is_told(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stops ends JetStream first, so no pulls are left to tell that the connection is lost."""
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with JetStream(nc, timeout=60) as js:
            stream = await js.create_stream(StreamConfig(name=name))
            await js.publish(name, b"1")
            events: list[PullEvent] = []
            async with stream.ordered_consumer().messages(on_event=events.append) as messages:
                assert (await messages.next(timeout=60)).data == b"1"
                make = OrderedPlaces.make

                async def make_too_late(places: OrderedPlaces, sequence: int) -> Consumer:
                    monkeypatch.setattr(OrderedPlaces, "make", make)
                    server.kill()
                    await until(lambda: not nc.is_connected)
                    raise TransportError("as if the connection was lost during the request")

                monkeypatch.setattr(OrderedPlaces, "make", make_too_late)
                async for consumer in stream.consumer_names():
                    await stream.delete_consumer(consumer)
                waiting = asyncio.create_task(messages.next(timeout=240))
                await until(lambda: Disconnected() in events)
                server.start()
                await until(lambda: Reconnected() in events)
                await js.publish(name, b"2")
                assert (await waiting).data == b"2"
            told = [event for event in events if isinstance(event, Disconnected | Reconnected)]
            assert told == [Disconnected(), Reconnected()]
        await nc.close()
