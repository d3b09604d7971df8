"""The server is killed, then stopped, under load, while each kind of reader reads: everything comes.

Defect 5, for all that can read. The publisher goes on all the time, with message ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    JetStreamError,
    NoJetStreamError,
    TransportError,
)
from liftenvelope.jetstream import JetStream, Message, Stream
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.nats import accelerate
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import connect, until

from .pulling import Bench, numbered, restart, stream_of, until_no_pulls

MESSAGES = 300


class Log:
    """Payloads that a reader has received."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def take(self, message: Message) -> None:
        self.seen.append(message.data)
        message.ack()

    async def take_slowly(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.take(message)


#: Reads until it is cancelled.
Reader = Callable[[Consumer, Stream, Log], Awaitable[None]]


def iterating(**options: Any) -> Reader:
    async def read(consumer: Consumer, stream: Stream, log: Log) -> None:
        async with consumer.messages(**options) as messages:
            async for message in messages:
                log.take(message)

    return read


def calling(slow: bool) -> Reader:
    async def read(consumer: Consumer, stream: Stream, log: Log) -> None:
        handler = log.take_slowly if slow else log.take
        async with await consumer.consume(handler, max_messages=20, auto_ack_progress=slow) as consumption:
            await consumption.closed()

    return read


def fetching(fetch: Callable[[Consumer], Awaitable[Any]]) -> Reader:
    """A loop that takes the documented errors of a server that goes and comes for what they are."""

    async def read(consumer: Consumer, stream: Stream, log: Log) -> None:
        while True:
            try:
                got = await fetch(consumer)
            except (NoJetStreamError, CallTimeoutError, TransportError):
                await asyncio.sleep(0.02)
                continue
            except JetStreamError as error:
                assert "Server Shutdown" in str(error)  # noqa: PT017  # the others go on
                continue
            for message in got if isinstance(got, list) else [got]:
                log.take(message)

    return read


async def ordered_iterating(consumer: Consumer, stream: Stream, log: Log) -> None:
    async with stream.ordered_consumer().messages(max_messages=20) as messages:
        async for message in messages:
            log.seen.append(message.data)


async def ordered_calling(consumer: Consumer, stream: Stream, log: Log) -> None:
    def handle(message: Message) -> None:
        log.seen.append(message.data)

    async with await stream.ordered_consumer().consume(handle, max_messages=20) as consumption:
        await consumption.closed()


READERS: dict[str, Reader] = {
    "messages": iterating(max_messages=20),
    "one_message": iterating(max_messages=1),
    "bytes": iterating(max_bytes=2_000),
    "check": iterating(max_messages=20, on_reconnect="check"),
    "short_pulls": iterating(max_messages=20, expires=1, idle_heartbeat=0.5),
    "consume": calling(slow=False),
    "consume_slowly": calling(slow=True),
    "fetch": fetching(lambda consumer: consumer.fetch(10, expires=1)),
    "fetch_bytes": fetching(lambda consumer: consumer.fetch_bytes(1_000, expires=1)),
    "fetch_no_wait": fetching(lambda consumer: consumer.fetch_no_wait(10)),
    "next": fetching(lambda consumer: consumer.next(timeout=1)),
    "prefetch": fetching(lambda consumer: consumer.next(timeout=1, prefetch=20)),
    "ordered_messages": ordered_iterating,
    "ordered_consume": ordered_calling,
    "pinned": iterating(max_messages=20, group="jobs"),
    "pinned_fetch": fetching(lambda consumer: consumer.fetch(10, expires=1, group="jobs")),
    "pinned_prefetch": fetching(lambda consumer: consumer.next(timeout=1, prefetch=20, group="jobs")),
    "overflow": iterating(max_messages=20, group="jobs", min_pending=1),
    "prioritized": iterating(max_messages=20, group="jobs", priority=3),
}
POLICIES = {
    "pinned": "pinned_client",
    "pinned_fetch": "pinned_client",
    "pinned_prefetch": "pinned_client",
    "overflow": "overflow",
    "prioritized": "prioritized",
}
#: Those that read from an accelerated connection.
ACCELERATED = {
    "messages",
    "bytes",
    "consume",
    "fetch",
    "next",
    "ordered_messages",
    "pinned_fetch",
    "pinned_prefetch",
    "overflow",
}


async def publish_all(nc: Any, bench: Bench) -> None:
    """Store all messages, each once, whatever happens to the server."""
    async with JetStream(nc) as js:
        for payload in numbered(MESSAGES):
            while True:
                try:
                    await js.publish(f"{bench.name}.a", payload, message_id=payload.decode(), timeout=1)
                    break
                except (JetStreamError, AckTimeoutError, TransportError):
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.001)  # the pace, so that there is load before, during and after


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    with run_nats_server(jetstream=True) as server:
        yield server


@pytest.mark.parametrize("kind", READERS)
async def test_under_load(server: NatsServer, name: str, kind: str) -> None:
    nc, publisher = await connect(server.url), await connect(server.url)
    if kind in ACCELERATED:
        assert accelerate(nc).active
    bench = await Bench(nc, name).create()
    config: dict[str, Any] = {"ack_wait": 500_000_000}
    if kind in POLICIES:
        config |= {"priority_policy": POLICIES[kind], "priority_groups": ["jobs"]}
    consumer = await bench.consumer(**config)
    subscriptions = len(nc._subs)
    log = Log()
    reading = asyncio.ensure_future(READERS[kind](consumer, await stream_of(bench), log))
    publishing = asyncio.ensure_future(publish_all(publisher, bench))
    for how, number in (("kill", 50), ("stop", 150), (None, MESSAGES)):
        async with asyncio.timeout(60):
            while len(set(log.seen)) < number and not reading.done():
                await asyncio.sleep(0.01)
        if how is not None:
            await restart(server, how)
    reading.cancel()
    await asyncio.wait({reading})
    assert reading.cancelled(), reading
    await asyncio.wait_for(publishing, 60)
    assert set(log.seen) == set(numbered(MESSAGES))
    if kind.startswith("ordered"):
        assert log.seen == numbered(MESSAGES)
    assert nc.stats["reconnects"] >= 2
    await until(lambda: len(nc._subs) <= subscriptions)
    await until_no_pulls(consumer)
    await nc.close()
    await publisher.close()
