"""Ordered consumers whose stream is deleted and created again: no message of the new one is skipped silently.

The readers learn of it once the new stream exists: until then their connection stands still.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import CallTimeoutError, TransportError
from liftenvelope.jetstream import DeliverPolicy, JetStream, Stream, StreamReplacedError
from liftenvelope.jetstream._consumer_requests import create_reader
from liftenvelope.jetstream._ordered import places as places_module
from liftenvelope.jetstream.api import Api
from liftenvelope.jetstream.infos import ConsumerInfo
from liftenvelope.nats import accelerate
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from tests.integration.conftest import connect

from .pulling import Bench, numbered, publish_patiently


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the age of a stream on a busy machine too."""
    monkeypatch.setattr(places_module, "_LOOK", 60.0)


@dataclass
class Reading:
    """A stream behind a proxy, and a connection of its own to change it."""

    proxy: FaultProxy
    bench: Bench
    stream: Stream

    async def recreate(self, messages: int) -> None:
        self.proxy.stall()
        await self.bench.delete()
        await self.bench.create()
        await self.bench.publish(numbered(messages))
        self.proxy.resume()


@pytest.fixture(params=["plain", "accelerated"])
async def reading(
    request: pytest.FixtureRequest, jetstream_server: NatsServer, name: str
) -> AsyncIterator[Reading]:
    direct = await connect(jetstream_server.url)
    bench = await Bench(direct, name).create()
    await bench.publish(numbered(3))
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        if request.param == "accelerated":
            assert accelerate(nc).active
        yield Reading(proxy, bench, await JetStream(nc).stream(name))
        await nc.close()
    await bench.delete()
    await direct.close()


#: The new stream ends before, at, or beyond the place that the reader has reached.
ENDS = pytest.mark.parametrize("messages", [1, 3, 10])


@ENDS
async def test_messages_end_when_the_stream_is_another_one(reading: Reading, messages: int) -> None:
    async with asyncio.timeout(60), reading.stream.ordered_consumer().messages() as iteration:
        assert [(await anext(iteration)).data for _ in range(3)] == numbered(3)
        await reading.recreate(messages)
        with pytest.raises(StreamReplacedError, match="was deleted and created again while it was read"):
            await anext(iteration)
        with pytest.raises(StreamReplacedError):
            await iteration.closed()
    async with asyncio.timeout(60):
        while [name async for name in reading.stream.consumer_names()]:
            await asyncio.sleep(0.01)


@ENDS
async def test_fetch_fails_when_the_stream_is_another_one(reading: Reading, messages: int) -> None:
    consumer = reading.stream.ordered_consumer()
    assert [message.data for message in await consumer.fetch(3, expires=60)] == numbered(3)
    await reading.recreate(messages)
    for _ in range(2):
        with pytest.raises(StreamReplacedError):
            await consumer.fetch(3, expires=60)
    assert len(await reading.stream.ordered_consumer().fetch(messages, expires=60)) == messages


async def test_reading_of_new_messages_fails_before_its_first_one(reading: Reading) -> None:
    consumer = reading.stream.ordered_consumer(deliver_policy=DeliverPolicy.NEW)
    async with asyncio.timeout(60), consumer.messages() as iteration:
        await reading.recreate(1)
        with pytest.raises(StreamReplacedError):
            await anext(iteration)


async def test_reading_without_a_message_begins_anew_in_the_new_stream(reading: Reading) -> None:
    await reading.bench.api.request(f"STREAM.PURGE.{reading.bench.name}")
    async with asyncio.timeout(60), reading.stream.ordered_consumer().messages() as iteration:
        await reading.recreate(2)
        assert [(await anext(iteration)).data for _ in range(2)] == numbered(2)


async def deleted_consumers(stream: Stream) -> None:
    for name in [name async for name in stream.consumer_names()]:
        await stream.delete_consumer(name)


@pytest.mark.parametrize("messages", [0, 2])
async def test_reading_ends_when_the_stream_has_lost_its_messages(
    tmp_path: Path, name: str, messages: int
) -> None:
    """The same stream, with the same time of creation, begins anew: as one in memory after a restart."""
    with run_nats_server(jetstream=True, config={"jetstream": {"store_dir": str(tmp_path)}}) as server:
        nc = await connect(server.url)
        bench = await Bench(nc, name).create()
        await bench.publish(numbered(3))
        stream = await JetStream(nc).stream(name)
        async with asyncio.timeout(60), stream.ordered_consumer().messages() as iteration:
            assert [(await anext(iteration)).data for _ in range(3)] == numbered(3)
            await asyncio.to_thread(server.stop)
            [folder] = tmp_path.glob(f"**/{name}/msgs")
            for path in folder.iterdir():
                path.unlink()
            await asyncio.to_thread(server.start)
            if messages:
                await publish_patiently(bench, numbered(messages))
            with pytest.raises(StreamReplacedError, match=r"has lost messages that were read: .* before 3"):
                await anext(iteration)
        assert (await stream.info()).created == stream.cached_info.created
        await nc.close()


@pytest.mark.parametrize("hours", [-1, 1])
async def test_clocks_of_two_servers_do_not_matter(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """FAKE, NOT REAL: the server that creates consumers has another clock than the one with the stream."""
    put = create_reader

    async def put_elsewhere(*args: Any, **options: Any) -> ConsumerInfo:
        info = await put(*args, **options)
        assert info.created is not None
        return replace(info, created=info.created + timedelta(hours=hours))

    monkeypatch.setattr(places_module, "create_reader", put_elsewhere)
    async with asyncio.timeout(60), reading.stream.ordered_consumer().messages() as iteration:
        assert [(await anext(iteration)).data for _ in range(3)] == numbered(3)
        await deleted_consumers(reading.stream)
        await reading.bench.publish(numbered(1, 3))
        assert (await anext(iteration)).data == b"3"
        await reading.recreate(10)
        with pytest.raises(StreamReplacedError):
            await anext(iteration)


@pytest.mark.parametrize("begun", [False, True], ids=["before the first message", "after a message"])
async def test_question_for_the_age_of_a_stream_is_repeated(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """FAKE, NOT REAL: the first questions are lost."""
    request_as = Api.request_as
    lost: list[Exception] = [CallTimeoutError("no answer")]
    if begun:
        lost.append(TransportError("lost"))

    async def ask(api: Api, parse: Any, subject: str, *args: Any, **options: Any) -> Any:
        if lost and subject.startswith("STREAM.INFO."):
            raise lost.pop()
        return await request_as(api, parse, subject, *args, **options)

    if not begun:
        monkeypatch.setattr(Api, "request_as", ask)
    async with asyncio.timeout(60), reading.stream.ordered_consumer().messages() as iteration:
        assert [(await anext(iteration)).data for _ in range(3)] == numbered(3)
        monkeypatch.setattr(Api, "request_as", ask)
        if not begun:  # the next consumer notes what the first one could not
            await deleted_consumers(reading.stream)
            await reading.bench.publish(numbered(1, 3))
            assert (await anext(iteration)).data == b"3"
        await reading.recreate(10)
        with pytest.raises(StreamReplacedError):
            await anext(iteration)
    assert not lost


async def test_reading_goes_on_without_permission_to_ask_for_the_stream(name: str) -> None:
    permissions = {"publish": {"deny": [f"$JS.API.STREAM.INFO.{name}"]}}
    users = [
        {"user": "all", "password": "x"},
        {"user": "ann", "password": "x", "permissions": permissions},
    ]
    with run_nats_server(jetstream=True, config={"authorization": {"users": users}}) as server:
        every: Client = await connect(server.url.replace("://", "://all:x@"))
        bench = await Bench(every, name).create()
        await bench.publish(numbered(3))
        stream = await JetStream(every).stream(name)
        reader = await connect(server.url.replace("://", "://ann:x@"))
        consumer = Stream(JetStream(reader).api, stream.cached_info).ordered_consumer()
        async with asyncio.timeout(60), consumer.messages(max_messages=1, idle_heartbeat=0.5) as messages:
            got = [(await anext(messages)).data]
            await deleted_consumers(stream)
            got += [(await anext(messages)).data for _ in range(2)]
        assert got == numbered(3)
        await reader.close()
        await every.close()
