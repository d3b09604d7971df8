"""Requests about consumers that servers leave without an answer: of older versions, or about what is gone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from liftenvelope.errors import (
    CallTimeoutError,
    ConsumerNotFoundError,
    StreamNotFoundError,
    UnsupportedByServerError,
)
from liftenvelope.jetstream import JetStream
from liftenvelope.jetstream._consumer import Consumer
from tests.handled import handled

from .pulling import Bench


async def test_reset_of_a_consumer_that_is_gone_is_not_found(bench: Bench) -> None:
    consumer = await bench.consumer()
    await consumer.delete()
    with pytest.raises(ConsumerNotFoundError):
        await consumer.reset()


async def test_reset_of_a_consumer_whose_stream_is_gone_is_not_found(bench: Bench) -> None:
    consumer = await bench.consumer()
    await bench.delete()
    with pytest.raises(StreamNotFoundError):
        await consumer.reset()
    await bench.create()  # for the fixture to delete


class _OldServer:
    """FAKE of an older nats-server under its own API prefix: it answers INFO alone, with its version.

    The tests have one version of nats-server. 2.10.26 and 2.12.8 were seen to answer like this.
    """

    def __init__(self, nc: Client, name: str) -> None:
        self._nc = nc
        self.prefix = f"{name}-old"
        self.metadata: dict[str, str] = {}

    async def serve(self) -> None:
        await self._nc.subscribe(f"{self.prefix}.CONSUMER.INFO.>", cb=self._answer)
        for verb in ("PAUSE", "RESET"):
            await self._nc.subscribe(f"{self.prefix}.CONSUMER.{verb}.>", cb=self._be_silent)
        await handled(self._nc)

    async def _answer(self, msg: Msg) -> None:
        real = await self._nc.request(msg.subject.replace(self.prefix, "$JS.API", 1), timeout=20)
        answer = json.loads(real.data)
        answer["config"]["metadata"] = self.metadata
        await msg.respond(json.dumps(answer).encode())

    async def _be_silent(self, msg: Msg) -> None:
        """Answer nothing."""


@pytest.fixture
async def old_server(js_nc: Client, name: str) -> _OldServer:
    server = _OldServer(js_nc, name)
    await server.serve()
    return server


@pytest.fixture
async def old_consumer(bench: Bench, old_server: _OldServer) -> AsyncIterator[Consumer]:
    await bench.consumer("worker")
    async with JetStream(bench.nc, api_prefix=old_server.prefix, timeout=60) as js:
        yield await js.consumer(bench.name, "worker")


@pytest.mark.parametrize(
    ("change", "metadata", "text"),
    [
        (lambda consumer: consumer.pause(60), {}, "PAUSE .* 2.11 or later, got one before 2.11"),
        (lambda consumer: consumer.resume(), {}, "PAUSE .* 2.11 or later, got one before 2.11"),
        (lambda consumer: consumer.reset(), {}, "RESET .* 2.14 or later, got one before 2.11"),
        (lambda consumer: consumer.reset(3), {"_nats.ver": "2.12.8"}, "RESET .* 2.14 or later, got 2.12.8"),
    ],
)
async def test_needed_version_is_named_if_an_older_server_does_not_answer(
    old_server: _OldServer,
    old_consumer: Consumer,
    change: Callable[[Consumer], Awaitable[Any]],
    metadata: dict[str, str],
    text: str,
) -> None:
    old_server.metadata = metadata
    with pytest.raises(UnsupportedByServerError, match=text):
        await change(old_consumer)


@pytest.mark.parametrize("version", ["2.14.0", "3.1.0-beta.1", "main"])
async def test_version_is_not_blamed_if_the_server_is_new_enough_or_has_another_count(
    old_server: _OldServer, old_consumer: Consumer, version: str
) -> None:
    old_server.metadata = {"_nats.ver": version}
    with pytest.raises(CallTimeoutError):
        await old_consumer.reset(timeout=1)
