"""Reading JetStream consumers and publishing, beside nats-py and nats.go on the same server and streams.

Both sides use consumers of the same configuration, and the clients' own default limits, which are the same:
500 messages asked for and buffered. What is acked counts as done when the server has read the acks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import nullcontext
from time import perf_counter
from typing import Any
from uuid import uuid4

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.client import JetStreamContext

from benchmarks.go_peers import GoPeers
from benchmarks.other_peers import OtherPeers
from benchmarks.programs import Programs
from benchmarks.report import Report
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope.jetstream import (
    AckPolicy,
    Consumer,
    ConsumerConfig,
    JetStream,
    Message,
    StorageType,
    StreamConfig,
)
from liftenvelope.nats import accelerate
from liftenvelope.testing import NatsServer, run_nats_server

VALUE = b"x" * 100
WINDOW = 4_000
#: How long a round may take; more than that means that something hangs.
PATIENCE = 120.0
#: What limits publish_async, by whether the connection is accelerated.
_PUBLISHING_LIMITS = {
    False: (
        "A message takes 5.0 us of CPU on a plain connection and 2.7 on an accelerated one: "
        "nats-py's parser takes the difference to read the ack. nats.go takes 3.7."
    ),
    True: (
        "One thread does all: of its 2.7 us of CPU for a message the coroutine, the future and the "
        "command take 1.2, the ack takes 0.3, and the garbage collector 0.5 to visit the futures "
        "that the caller keeps. async-nats takes 1.9 to 2.4, nats-server 3.6."
    ),
}
#: Of messages() and consume() on an accelerated connection.
_READ_LIMIT = (
    "nats-server takes most of the time: 2.0 us of CPU for a message beside 0.7 of ours. async-nats asks for "
    "500 messages while it waits for 250, so for 750 at most. Ours and nats.go ask for 250, so for 500 at "
    "most. Asked as by async-nats, nats-server takes 1.7 us, and our reads an eighth less time."
)
#: Of messages() on a plain connection. A send takes that long because it wakes the server, which runs first.
_PULLS_LIMIT = (
    "It takes no more processor time than its peer, 8.5 us for a message beside 8.6 to 9.2, most of it in "
    "nats-py's parser. With one pull for all the server runs ahead. Ours asks for 500 messages at most, and "
    "each send of a pull lasts 1.7 ms, in which the server has the processor."
)
#: Of messages() with an ack each, on an accelerated connection.
_ACK_EACH_LIMIT = (
    "nats-server is the limit: of 3.4 us for a message it takes 3.6 us of processor time, on both cores, and "
    "ours 2.2."
)
#: Of next().
_NEXT_LIMIT = (
    "One request at a time, so that the time of both sides adds up: of 68 us, nats-server takes some 32 us "
    "of processor time for either client, ours 43, nats-py 70. Half of nats-py's 94 us would leave ours 15."
)
#: How long the first message after a reconnect may take, in seconds.
RESUME = 0.5
#: Reads so many messages of a consumer.
Read = Callable[[Consumer, int], Awaitable[None]]


class Filled:
    """A stream with messages to be read, by as many consumers as there are rounds."""

    def __init__(self, server: NatsServer, report: Report) -> None:
        self.server = server
        self.report = report
        self.name = f"bench-{uuid4().hex[:8]}"
        self._holds = 0

    async def fill(self, nc: Client, count: int) -> None:
        """Have it hold at least so many messages."""
        async with JetStream(nc, timeout=PATIENCE) as js:
            await js.create_stream(_config(self.name))
            for _ in range(self._holds, count):
                await js.publish_async(self.name, VALUE)
            await js.publish_async_complete()
            self._holds = max(self._holds, count)
            stream = await js.stream(self.name)
            assert (await stream.info()).state.messages == self._holds


@pytest.fixture(scope="session")
def jetstream(report: Report) -> Iterator[NatsServer]:
    # Room for what nats-py is slow to read of one big pull.
    with run_nats_server(jetstream=True, config={"max_pending": 2**30, "write_deadline": "60s"}) as server:
        report.versions["nats-server"] = server.version
        yield server


@pytest.fixture(scope="session")
def filled(jetstream: NatsServer, report: Report) -> Filled:
    return Filled(jetstream, report)


@pytest.fixture
def nc(loop: asyncio.Runner, jetstream: NatsServer) -> Iterator[Client]:
    client = loop.run(nats.connect(jetstream.url))
    yield client
    loop.run(client.close())


def _config(name: str) -> StreamConfig:
    return StreamConfig(name=name, storage=StorageType.MEMORY)


def _round(loop: asyncio.Runner, make: Callable[[], Coroutine[Any, Any, float]]) -> Round:
    return lambda: loop.run(asyncio.wait_for(make(), PATIENCE))


async def _true_barrier(nc: Client) -> None:
    """The first PING of nats-py overtakes what it has buffered; the second does not."""
    await nc.flush()
    await nc.flush()


class Reading:
    """Rounds that read as many messages of the stream, each from a new consumer."""

    def __init__(
        self, loop: asyncio.Runner, nc: Client, filled: Filled, count: int, *, ack: bool = False
    ) -> None:
        self._loop = loop
        self._report = filled.report
        self._nc = nc
        self._filled = filled
        self._count = count
        self._ack = ack
        loop.run(filled.fill(nc, count))

    def by(self, read: Read, *, accelerated: bool = False) -> Round:
        """Ours, or anything else that can use the connection."""

        async def ours() -> float:
            consumer = await self._consumer()
            with accelerate(self._nc) if accelerated else nullcontext():
                began = perf_counter()
                await read(consumer, self._count)
                await _true_barrier(self._nc)
                taken = perf_counter() - began
            await self._end(consumer)
            return taken / self._count

        return _round(self._loop, ours)

    def by_program(self, programs: Programs, **switches: bool) -> Round:
        """A client that is a program. ``callback`` makes nats.go use ``Consume`` instead of ``Messages``."""
        flags = {"url": self._filled.server.url, "stream": self._filled.name, "size": len(VALUE)}

        def theirs() -> float:
            consumer = self._loop.run(self._consumer())
            switches["ack"] = self._ack
            found = programs.run("jetconsume", consumer=consumer.name, n=self._count, **flags, **switches)
            assert (found["read"], found["wrong"]) == (self._count, 0)
            self._loop.run(self._end(consumer))
            self._report.versions[programs.client] = found["client"]
            return 1 / float(found["messages_per_s"])

        return theirs

    async def _consumer(self) -> Consumer:
        policy = AckPolicy.EXPLICIT if self._ack else AckPolicy.NONE
        config = ConsumerConfig(
            name=f"c{uuid4().hex[:8]}", ack_policy=policy, mem_storage=True, inactive_threshold=2 * PATIENCE
        )
        return await JetStream(self._nc).create_consumer(self._filled.name, config)

    async def _end(self, consumer: Consumer) -> None:
        """All that was to be read has been sent, and if acks were, they have come."""
        async with asyncio.timeout(PATIENCE):
            while True:
                info = await consumer.info()
                reached = info.ack_floor if self._ack else info.delivered
                if reached.stream_seq >= self._count:
                    break
                await asyncio.sleep(0.01)
        await consumer.delete()


def _others(compare: Comparison, others: OtherPeers) -> list[Programs]:
    """Clients that take minutes to build or install: not in the quick run of the tests."""
    return [] if compare.quick else others.found


# The ways of reading


async def _messages(consumer: Consumer, count: int) -> None:
    async with consumer.messages() as messages:
        async for message in messages:
            count -= len(message.data) == len(VALUE)
            if not count:
                return


async def _messages_with_ack(consumer: Consumer, count: int) -> None:
    async with consumer.messages() as messages:
        async for message in messages:
            message.ack()
            count -= 1
            if not count:
                return


async def _consume(consumer: Consumer, count: int) -> None:
    all_here = asyncio.Event()

    def handle(message: Message) -> None:
        nonlocal count
        count -= len(message.data) == len(VALUE)
        if not count:
            all_here.set()

    async with await consumer.consume(handle):
        await all_here.wait()


async def _next(consumer: Consumer, count: int) -> None:
    for _ in range(count):
        message = await consumer.next()
        assert len(message.data) == len(VALUE)


async def _next_of_many(consumer: Consumer, count: int) -> None:
    for _ in range(count):
        (await consumer.next(prefetch=100)).ack()


async def _one_big_pull(consumer: Consumer, count: int) -> None:
    """The messages of a consumer in a plain subscription of nats-py."""
    nc, left, all_here = consumer.api.nc, count, asyncio.Event()

    async def take(msg: Msg) -> None:
        nonlocal left
        left -= len(msg.data) == len(VALUE)
        if not left:
            all_here.set()

    inbox = nc.new_inbox()
    sub = await nc.subscribe(inbox, cb=take, pending_msgs_limit=0, pending_bytes_limit=0)
    pull = json.dumps({"batch": count, "expires": int(PATIENCE * 1e9)}).encode()
    await nc.publish(consumer.pull_subject, pull, reply=inbox)
    await all_here.wait()
    await sub.unsubscribe()


async def _fetch_and_ack(consumer: Consumer, count: int) -> None:
    sub = await _pull_subscription(consumer)
    while count:
        for message in await sub.fetch(min(count, 1_000)):
            await message.ack()
            count -= 1
    await sub.unsubscribe()


async def _fetch_one(consumer: Consumer, count: int) -> None:
    sub = await _pull_subscription(consumer)
    for _ in range(count):
        [message] = await sub.fetch(1)
        assert len(message.data) == len(VALUE)
    await sub.unsubscribe()


async def _fetch_one_and_ack(consumer: Consumer, count: int) -> None:
    sub = await _pull_subscription(consumer)
    for _ in range(count):
        [message] = await sub.fetch(1)
        await message.ack()
    await sub.unsubscribe()


async def _pull_subscription(consumer: Consumer) -> JetStreamContext.PullSubscription:
    js = consumer.api.nc.jetstream()
    return await js.pull_subscribe_bind(consumer=consumer.name, stream=consumer.stream_name)


# Reading


def test_messages(compare: Comparison, loop: asyncio.Runner, nc: Client, filled: Filled) -> None:
    reading = Reading(loop, nc, filled, compare.amount(400_000, 1_200))
    compare(
        "messages(), 100 B, no ack",
        reading.by(_messages),
        Peer("nats-py cb=, one big pull", reading.by(_one_big_pull), 0.8, _PULLS_LIMIT),
        rate=True,
        rounds=7,
    )


@pytest.mark.parametrize("callback", [False, True], ids=["messages", "consume"])
def test_accelerated(
    compare: Comparison,
    loop: asyncio.Runner,
    nc: Client,
    filled: Filled,
    go: GoPeers,
    others: OtherPeers,
    callback: bool,
) -> None:
    reading = Reading(loop, nc, filled, compare.amount(400_000, 1_200))
    compare(
        f"{'consume(handler)' if callback else 'messages()'}, 100 B, no ack, accelerated",
        reading.by(_consume if callback else _messages, accelerated=True),
        Peer(
            f"nats.go {'Consume' if callback else 'Messages'}", reading.by_program(go, callback=callback), 1
        ),
        *(Peer(peer.client, reading.by_program(peer), 1.1, _READ_LIMIT) for peer in _others(compare, others)),
        rate=True,
        rounds=7,
    )


def test_ack_each(compare: Comparison, loop: asyncio.Runner, nc: Client, filled: Filled) -> None:
    reading = Reading(loop, nc, filled, compare.amount(100_000, 1_200), ack=True)
    compare(
        "messages(), 100 B, ack each",
        reading.by(_messages_with_ack),
        Peer("nats-py fetch(1000), ack each", reading.by(_fetch_and_ack), 4),
        rate=True,
        rounds=5,
    )


def test_ack_each_accelerated(
    compare: Comparison, loop: asyncio.Runner, nc: Client, filled: Filled, go: GoPeers, others: OtherPeers
) -> None:
    reading = Reading(loop, nc, filled, compare.amount(200_000, 1_200), ack=True)
    compare(
        "messages(), 100 B, ack each, accelerated",
        reading.by(_messages_with_ack, accelerated=True),
        Peer("nats.go Messages, ack each", reading.by_program(go), 1),
        *(
            Peer(f"{peer.client}, ack each", reading.by_program(peer), 1, _ACK_EACH_LIMIT)
            for peer in _others(compare, others)
        ),
        rate=True,
        rounds=7,
    )


def test_next(compare: Comparison, loop: asyncio.Runner, nc: Client, filled: Filled) -> None:
    reading = Reading(loop, nc, filled, compare.amount(5_000, 50))
    compare(
        "next(), 100 B, one by one",
        reading.by(_next),
        Peer("nats-py fetch(1)", reading.by(_fetch_one), 2, _NEXT_LIMIT),
        rate=True,
        rounds=7,
    )


def test_next_with_prefetch(compare: Comparison, loop: asyncio.Runner, nc: Client, filled: Filled) -> None:
    reading = Reading(loop, nc, filled, compare.amount(5_000, 50), ack=True)
    compare(
        "next(prefetch=100), 100 B, ack each",
        reading.by(_next_of_many),
        Peer("nats-py fetch(1), ack each", reading.by(_fetch_one_and_ack), 2),
        rate=True,
        rounds=7,
    )


# Publishing


@pytest.mark.parametrize("accelerated", [False, True], ids=["plain", "accelerated"])
def test_publish_async(
    compare: Comparison,
    loop: asyncio.Runner,
    nc: Client,
    jetstream: NatsServer,
    go: GoPeers,
    others: OtherPeers,
    report: Report,
    accelerated: bool,
) -> None:
    count, limit = compare.amount(100_000, 500), _PUBLISHING_LIMITS[accelerated]

    async def ours(name: str) -> float:
        async with JetStream(nc, max_outstanding=WINDOW, timeout=PATIENCE) as js:
            with accelerate(nc) if accelerated else nullcontext():
                began = perf_counter()
                futures = [await js.publish_async(name, VALUE) for _ in range(count)]
                await js.publish_async_complete()
                taken = perf_counter() - began
        assert [future.result().sequence for future in futures] == list(range(1, count + 1))
        return taken

    async def by_nats_py(name: str) -> float:
        js = nc.jetstream(publish_async_max_pending=WINDOW)
        began = perf_counter()
        futures = [await js.publish_async(name, VALUE) for _ in range(count)]
        await js.publish_async_completed()
        taken = perf_counter() - began
        assert [future.result().seq for future in futures] == list(range(1, count + 1))
        return taken

    def by_program(programs: Programs) -> Round:
        async def publish(name: str) -> float:
            flags = {"url": jetstream.url, "subject": name, "size": len(VALUE), "n": count, "window": WINDOW}
            found = await asyncio.to_thread(programs.run, "jetpublish", **flags)
            assert (found["acked"], found["last"]) == (count, count)
            report.versions[programs.client] = found["client"]
            return float(found["seconds"])

        return _publishing(loop, nc, publish, count)

    compare(
        f"publish_async, 100 B, {WINDOW:,} outstanding{', accelerated' if accelerated else ''}",
        _publishing(loop, nc, ours, count),
        Peer("nats-py publish_async", _publishing(loop, nc, by_nats_py, count), 3, limit),
        Peer("nats.go PublishAsync", by_program(go), 1 if accelerated else 0.9, limit),
        *(
            Peer(peer.client, by_program(peer), 1 if accelerated else None, limit)
            for peer in _others(compare, others)
        ),
        rate=True,
        rounds=7,
    )


def _publishing(
    loop: asyncio.Runner, nc: Client, publish: Callable[[str], Awaitable[float]], count: int
) -> Round:
    """Rounds that publish to a stream of their own, which must then hold so many messages."""

    async def one() -> float:
        async with JetStream(nc, timeout=PATIENCE) as js:
            stream = await js.create_stream(_config(f"bench-{uuid4().hex[:8]}"))
            taken = await publish(stream.cached_info.config.name)
            assert (await stream.info()).state.messages == count
            await js.delete_stream(stream.cached_info.config.name)
        return taken / count

    return _round(loop, one)


# A server that is restarted


class Restart:
    """A server of its own, and a connection that tells when it is there again."""

    def __init__(self, server: NatsServer, how: str) -> None:
        self.server = server
        self.how = how
        self.reconnected = 0.0

    async def connect(self) -> Client:
        async def note() -> None:
            self.reconnected = perf_counter()

        async def no_noise(_: Exception) -> None:
            """Ignore errors: the loss of the connection is intended."""

        return await nats.connect(
            self.server.url,
            reconnected_cb=note,
            error_cb=no_noise,
            reconnect_time_wait=0.05,
            max_reconnect_attempts=-1,
        )

    async def resume(self, nc: Client) -> float:
        """Seconds from the reconnect to the first message that comes after it."""
        async with JetStream(nc, timeout=PATIENCE) as js:
            stream = await js.create_stream(StreamConfig(name=f"bench-{uuid4().hex[:8]}"))
            for _ in range(2_000):
                await js.publish_async(stream.cached_info.config.name, VALUE)
            await js.publish_async_complete()
            consumer = await stream.create_consumer(ConsumerConfig(durable_name="reader"))
            async with consumer.messages() as messages:
                (await messages.next()).ack()
                await self._lose(nc)
                while messages.buffered:
                    await messages.next()
                self.reconnected = 0.0
                await asyncio.to_thread(self.server.start)
                await messages.next()
                came = perf_counter()
            # The stream stays: its folder goes after the answer only, and may take the next one along.
            async with asyncio.timeout(PATIENCE):
                while not self.reconnected:  # nats-py is connected a moment before it says so
                    await asyncio.sleep(0.001)
        return max(came - self.reconnected, 1e-4)

    async def _lose(self, nc: Client) -> None:
        await asyncio.to_thread(getattr(self.server, self.how))
        async with asyncio.timeout(PATIENCE):
            while nc.is_connected:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_resume(compare: Comparison, loop: asyncio.Runner, how: str) -> None:
    with run_nats_server(jetstream=True) as server:
        restart = Restart(server, how)
        nc = loop.run(restart.connect())
        compare(
            f"first message after a reconnect, server {'stopped' if how == 'stop' else 'killed'}",
            _round(loop, lambda: restart.resume(nc)),
            Peer("0.5 s, as asked", lambda: RESUME, 1),
            rounds=7,
        )
        loop.run(nc.close())
