"""Servers that do not know a request or a setting: FAKES of older ones, after what those were seen to do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from liftenvelope.errors import (
    CallTimeoutError,
    ConsumerNotFoundError,
    MessageNotFoundError,
    StreamNotFoundError,
    UnsupportedByServerError,
)
from liftenvelope.jetstream import ConsumerConfig, JetStream, PriorityPolicy, Stream, StreamConfig
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream.bucket import Bucket
from liftenvelope.jetstream.infos import StreamInfo
from liftenvelope.nats.link import Link
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
    """FAKE of an older nats-server, under an API prefix of its own in front of the real one.

    The tests have one version of nats-server. 2.10.26, 2.11.11 and 2.12.8 were seen to answer like this.

    Attributes:
        metadata: Metadata of every configuration in its answers.
        ignored: Fields of configurations that it ignores.
    """

    def __init__(self, nc: Client, name: str) -> None:
        self._nc = nc
        self.prefix = f"{name}-old"
        self.metadata: dict[str, str] = {}
        self.ignored: set[str] = set()

    async def serve(self) -> None:
        for path in ("STREAM.CREATE.>", "STREAM.INFO.>", "CONSUMER.CREATE.>", "CONSUMER.INFO.>"):
            await self._nc.subscribe(f"{self.prefix}.{path}", cb=self._answer)
        for path in ("CONSUMER.PAUSE.>", "CONSUMER.RESET.>"):
            await self._nc.subscribe(f"{self.prefix}.{path}", cb=self._be_silent)
        await self._nc.subscribe(f"{self.prefix}.DIRECT.GET.>", cb=self._answer_directly)
        await handled(self._nc)

    async def _answer(self, msg: Msg) -> None:
        request = json.loads(msg.data or b"{}")
        for config in (request, request.get("config", {})):
            for field in self.ignored & config.keys():
                del config[field]
        subject = msg.subject.replace(self.prefix, "$JS.API", 1)
        real = await self._nc.request(subject, json.dumps(request).encode(), timeout=20)
        answer = json.loads(real.data)
        if "config" in answer:
            answer["config"]["metadata"] = self.metadata
        await msg.respond(json.dumps(answer).encode())

    async def _answer_directly(self, msg: Msg) -> None:
        """Read one message: 2.10 does not know batches."""
        request = json.loads(msg.data)
        del request["batch"]
        subject = msg.subject.replace(self.prefix, "$JS.API", 1)
        real = await self._nc.request(subject, json.dumps(request).encode(), timeout=20)
        await self._nc.publish(msg.reply, real.data, headers=real.headers)

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


async def test_setting_of_a_stream_that_an_older_server_ignores_is_an_error(
    bench: Bench, old_server: _OldServer
) -> None:
    old_server.ignored = {"allow_atomic"}
    async with JetStream(bench.nc, api_prefix=old_server.prefix, timeout=60) as js:
        config = StreamConfig(name=f"{bench.name}-2", subjects=(f"{bench.name}2",), allow_atomic=True)
        with pytest.raises(
            UnsupportedByServerError, match=r"but allow_atomic, .* nats-server 2\.12 or later"
        ):
            await js.create_stream(config)
        stream = await js.create_stream(replace(config, allow_atomic=False))
    await JetStream(bench.nc).delete_stream(stream.name)


@pytest.mark.parametrize("made_by", ["create_consumer", "create_or_update_consumer"])
async def test_setting_of_a_consumer_that_an_older_server_ignores_is_an_error(
    bench: Bench, old_server: _OldServer, made_by: str
) -> None:
    old_server.ignored = {"priority_groups", "priority_policy"}
    config = ConsumerConfig(name="c", priority_policy=PriorityPolicy.OVERFLOW, priority_groups=("jobs",))
    async with JetStream(bench.nc, api_prefix=old_server.prefix, timeout=60) as js:
        with pytest.raises(
            UnsupportedByServerError, match=r"but priority_groups, .* nats-server 2\.11 or later"
        ):
            await getattr(js, made_by)(bench.name, config)


async def test_bucket_of_an_older_server_does_without_a_ttl_per_message(
    bench: Bench, old_server: _OldServer
) -> None:
    old_server.ignored = {"allow_msg_ttl"}
    async with JetStream(bench.nc, api_prefix=old_server.prefix, timeout=60) as js:
        bucket = Bucket(js, bench.name, marker_ttl=60)
        await bucket.create()
        handle = await bucket.handle()
    assert not handle.cached_info.config.allow_msg_ttl
    await JetStream(bench.nc).delete_stream(handle.name)


async def test_batch_is_named_if_an_older_server_takes_its_request_for_an_empty_one(
    js_nc: Client, old_server: _OldServer
) -> None:
    async def answer(msg: Msg) -> None:
        block = b"NATS/1.0 408 Empty Request\r\n\r\n"
        words = msg.reply.encode(), len(block), len(block), block
        Link(js_nc).write(b"HPUB %b %d %d\r\n%b\r\n" % words, 1, 0)

    await js_nc.subscribe(f"{old_server.prefix}.DIRECT.GET.>", cb=answer)
    async with JetStream(js_nc, api_prefix=old_server.prefix, timeout=60) as js:
        messages = Stream(js.api, StreamInfo.from_json({"config": {"name": "S"}, "state": {}}))
        with pytest.raises(UnsupportedByServerError, match=r"need nats-server 2\.11"):
            await anext(messages.get_last_messages(["a"]))


@pytest.mark.parametrize(
    ("metadata", "error"), [({}, UnsupportedByServerError), ({"_nats.ver": "2.11.0"}, MessageNotFoundError)]
)
async def test_batch_whose_first_message_is_deleted_names_the_version_it_needs(
    bench: Bench, old_server: _OldServer, metadata: dict[str, str], error: type[Exception]
) -> None:
    old_server.metadata = metadata
    await bench.publish([b"0", b"1"])
    async with JetStream(bench.nc) as js:
        await js.update_stream(
            StreamConfig(name=bench.name, subjects=(f"{bench.name}.>",), allow_direct=True)
        )
        await (await js.stream(bench.name)).delete_message(1)
    async with JetStream(bench.nc, api_prefix=old_server.prefix, timeout=60) as js:
        stream = await js.stream(bench.name)
        with pytest.raises(error):
            await anext(aiter(stream.get_messages(10)))
