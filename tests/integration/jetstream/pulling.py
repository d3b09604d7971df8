"""Shared parts of the tests of pulling: a stream, a consumer, and a view of the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from nats.aio.client import Client

from liftenvelope.errors import CallTimeoutError, NoJetStreamError, TransportError
from liftenvelope.jetstream import JetStream, Stream
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream._pulling.feed import PullFeed
from liftenvelope.jetstream.api import Api
from liftenvelope.jetstream.consuming import Messages
from liftenvelope.jetstream.infos import ConsumerInfo
from liftenvelope.testing import NatsServer
from tests.handled import handled


class Bench:
    """A stream of its own, with the subjects ``<name>.>``, and consumers of it."""

    def __init__(self, nc: Client, name: str) -> None:
        self.nc = nc
        self.name = name
        self.api = Api(nc, timeout=20)

    async def create(self, **config: Any) -> Bench:
        body = {"name": self.name, "subjects": [f"{self.name}.>"], "storage": "file", **config}
        await self.api.request(f"STREAM.CREATE.{self.name}", body)
        return self

    async def delete(self) -> None:
        await self.api.request(f"STREAM.DELETE.{self.name}")

    async def consumer(self, name: str = "worker", **config: Any) -> Consumer:
        config = {"durable_name": name, "ack_policy": "explicit", **config}
        body = {"stream_name": self.name, "config": config}
        answer = await self.api.request(f"CONSUMER.CREATE.{self.name}.{name}", body)
        return Consumer(self.api, ConsumerInfo.from_json(answer))

    async def publish(
        self, payloads: Sequence[bytes], subject: str = "a", headers: dict[str, str] | None = None
    ) -> None:
        """Store messages, and wait until they are."""
        for payload in payloads[:-1]:
            await self.nc.publish(f"{self.name}.{subject}", payload, headers=headers)
        await self.nc.request(f"{self.name}.{subject}", payloads[-1], timeout=20, headers=headers)


async def consumers_of(bench: Bench) -> list[str]:
    names = (await bench.api.request(f"CONSUMER.NAMES.{bench.name}"))["consumers"]
    return list(names or [])


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def feed_of(messages: Messages) -> PullFeed:
    """Return the feed of an iteration, to inspect its counts."""
    feed = messages._feed
    assert isinstance(feed, PullFeed)
    return feed


async def read_all(messages: Messages, got: list[bytes]) -> None:
    """Read until the end, whatever it is."""
    async for message in messages:
        got.append(message.data)  # noqa: PERF401  # what came before an error counts


async def until_pulled(consumer: Consumer, waiting: int = 1) -> None:
    """Poll until so many pulls wait at the server."""
    async with asyncio.timeout(60):
        while (await consumer.info()).num_waiting < waiting:
            await asyncio.sleep(0.01)


async def until_no_pulls(consumer: Consumer) -> None:
    """Poll until no pull waits at the server."""
    async with asyncio.timeout(60):
        while (await consumer.info()).num_waiting:
            await asyncio.sleep(0.01)


async def until_acked(consumer: Consumer) -> None:
    """Poll until the server has noted down all acks, which it does beside answering requests."""
    async with asyncio.timeout(60):
        while (await consumer.info()).num_ack_pending:
            await asyncio.sleep(0.01)


class Wire:
    """Messages that one connection publishes, as another one receives them."""

    def __init__(self, nc: Client, subject: str) -> None:
        self.nc = nc
        self.subject = subject
        self.payloads: list[bytes] = []
        self.replies: list[str] = []

    def pulls(self) -> list[dict[str, Any]]:
        """The pulls, read."""
        return [json.loads(payload) for payload in self.payloads]

    async def __aenter__(self) -> Wire:
        async def see(msg: Any) -> None:
            self.payloads.append(msg.data)
            self.replies.append(msg.reply)

        self.sub = await self.nc.subscribe(self.subject, cb=see)
        await handled(self.nc)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.sub.unsubscribe()


async def stream_of(bench: Bench) -> Stream:
    """The stream, by the public class."""
    return await JetStream(bench.nc, timeout=20).stream(bench.name)


async def restart(server: NatsServer, how: str) -> None:
    await asyncio.to_thread(getattr(server, how))
    await asyncio.to_thread(server.start)


async def publish_patiently(bench: Bench, payloads: list[bytes]) -> None:
    """Store messages while JetStream comes back."""
    async with asyncio.timeout(60):
        while True:
            try:
                await bench.api.request(f"STREAM.INFO.{bench.name}", timeout=2)
                break
            except (TransportError, CallTimeoutError, NoJetStreamError):
                await asyncio.sleep(0.02)
    await bench.publish(payloads)
