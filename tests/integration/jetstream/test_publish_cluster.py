"""Three servers: the stream's leader is killed while it is published to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest
from nats.aio.client import Client

from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    TransportError,
)
from liftenvelope.jetstream import JetStream, PubAck, StoredMessage, Stream, StreamConfig
from liftenvelope.nats import accelerate
from liftenvelope.testing import NatsServer
from tests.integration.conftest import connect
from tests.integration.jetstream_cluster import three_servers

T = TypeVar("T")

#: An election may take many seconds on a busy machine.
PATIENCE = 90


@pytest.fixture
async def cluster() -> AsyncIterator[dict[str, NatsServer]]:
    """Three servers by their names."""
    with three_servers() as servers:
        yield servers


@pytest.fixture(params=["n1", "n2"], ids=["here", "elsewhere"])
async def home(request: pytest.FixtureRequest) -> str:
    """The server that leads the stream: that of the connection, or another one."""
    name: str = request.param
    return name


@pytest.fixture
async def nc(cluster: dict[str, NatsServer], home: str) -> AsyncIterator[Client]:
    """A connection to the first server; it tells of the others, for when it is gone."""
    client = await connect(cluster["n1"].url)
    if home == "n1":
        accelerate(client)
    yield client
    await client.close()


class Numbers:
    """Publishes numbers, each with an id, and notes how each of them ended."""

    def __init__(self, js: JetStream, subject: str) -> None:
        self.js = js
        self.subject = subject
        self.ended: dict[str, PubAck | LiftEnvelopeError] = {}
        self.futures: dict[str, asyncio.Future[PubAck]] = {}

    @property
    def acked(self) -> dict[str, PubAck]:
        return {name: end for name, end in self.ended.items() if isinstance(end, PubAck)}

    def acked_by_kind(self) -> Counter[str]:
        return Counter(name.split("-")[0] for name in self.acked)

    async def one_by_one(self, done: asyncio.Event) -> None:
        number = 0
        while not done.is_set():
            await self.publish(f"one-{number}")
            number += 1

    async def publish(self, name: str, timeout: float | None = None) -> None:
        payload = name.encode()
        try:
            self.ended[name] = await self.js.publish(self.subject, payload, timeout=timeout, message_id=name)
        except LiftEnvelopeError as exc:
            self.ended[name] = exc
            await asyncio.sleep(0.05)

    async def many_at_once(self, done: asyncio.Event) -> None:
        number = 0
        while not done.is_set():
            name = f"many-{number}"
            try:
                future = await self.js.publish_async(self.subject, name.encode(), message_id=name)
            except TransportError as exc:
                self.ended[name] = exc
            else:
                self.futures[name] = future
                future.add_done_callback(lambda future, name=name: self._note(name, future))  # type: ignore[misc]
            number += 1
            if number % 10 == 0:  # else there are tens of thousands while there is no leader
                await asyncio.sleep(0.02)
        await self.js.publish_async_complete()
        await asyncio.sleep(0)  # for the callbacks

    def _note(self, name: str, future: asyncio.Future[PubAck]) -> None:
        error = future.exception()
        assert error is None or isinstance(error, LiftEnvelopeError)
        self.ended[name] = error or future.result()


async def led_by(js: JetStream, stream: Stream, leader: str) -> None:
    """Have a server lead the stream."""
    name = stream.cached_info.config.name
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                cluster = (await stream.info(timeout=2)).cluster
                if cluster is not None and cluster.leader == leader:
                    return
                request = {"placement": {"preferred": leader}}
                await js.api.request(f"STREAM.LEADER.STEPDOWN.{name}", request, timeout=2)
            except (JetStreamError, CallTimeoutError):
                pass
            await asyncio.sleep(0.2)


async def stream_of_three(js: JetStream, name: str) -> Stream:
    """A stream on all three, as soon as they have found each other. It knows ids for an hour."""
    config = StreamConfig(name=name, num_replicas=3, duplicate_window=3600)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await js.create_stream(config, timeout=5)
            except (JetStreamError, CallTimeoutError):
                await asyncio.sleep(0.1)


async def contents(js: JetStream, name: str) -> dict[int, str]:
    """All messages of the stream by their sequences, as its leader has them.

    Not by a consumer: the servers may place one on the server that is gone, and then nobody answers.
    """
    stream = await patiently(lambda: js.stream(name, timeout=10))
    last = (await patiently(lambda: stream.info(timeout=10))).state.last_seq
    stored: dict[int, str] = {}
    for first in range(1, last + 1, 100):
        wanted = range(first, min(first + 100, last + 1))
        messages = await asyncio.gather(*(stored_at(stream, sequence) for sequence in wanted))
        stored |= {message.sequence: message.data.decode() for message in messages}
    return stored


async def stored_at(stream: Stream, sequence: int) -> StoredMessage:
    return await patiently(lambda: stream.get_message(sequence, direct=False, timeout=10))


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again while no leader answers."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await ask()
            except (NoJetStreamError, CallTimeoutError):
                await asyncio.sleep(0.1)


async def until_more_are_acked(numbers: Numbers) -> None:
    """A hundred more of either kind."""
    before = numbers.acked_by_kind()
    async with asyncio.timeout(PATIENCE):
        while any(numbers.acked_by_kind()[kind] < before[kind] + 100 for kind in ("one", "many")):
            await asyncio.sleep(0.05)


@pytest.mark.timeout(5 * PATIENCE)
async def test_the_leader_is_killed(nc: Client, cluster: dict[str, NatsServer], home: str, name: str) -> None:
    """Acked messages are stored, and unacked ones can be published again with their ids."""
    async with JetStream(nc, timeout=2, max_outstanding=200) as js:
        stream = await stream_of_three(js, name)
        await led_by(js, stream, home)
        numbers, done = Numbers(js, name), asyncio.Event()
        publishing = [asyncio.create_task(work(done)) for work in (numbers.one_by_one, numbers.many_at_once)]
        await until_more_are_acked(numbers)
        await asyncio.to_thread(cluster[home].kill)
        await until_more_are_acked(numbers)
        done.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*publishing)
        assert js.publish_async_pending == 0
        check(numbers, await contents(js, name))
        await publish_again(numbers)
        stored = await contents(js, name)
        check(numbers, stored)
        assert sorted(stored.values()) == sorted(numbers.ended)


def check(numbers: Numbers, stored: dict[int, str]) -> None:
    acked = numbers.acked
    assert {name: stored.get(ack.sequence) for name, ack in acked.items()} == {name: name for name in acked}
    failed = {name: end for name, end in numbers.ended.items() if isinstance(end, LiftEnvelopeError)}
    assert all(isinstance(end, AckTimeoutError | JetStreamError | TransportError) for end in failed.values())
    # Nobody took these: that nothing was stored is no guess.
    refused = {name for name, end in failed.items() if isinstance(end, NoJetStreamError) and not end.err_code}
    assert not refused & set(stored.values())


async def publish_again(numbers: Numbers) -> None:
    async with asyncio.timeout(PATIENCE):
        while missing := sorted(numbers.ended.keys() - numbers.acked.keys())[:100]:
            await asyncio.gather(*(numbers.publish(name, timeout=10) for name in missing))
