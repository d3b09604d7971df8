"""A partition that one gateway pauses while clients of another publish is resumed, and goes on recording."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.errors import StreamNotFoundError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._cluster import agreement
from liftenvelope.gateway._core import Core
from liftenvelope.gateway._streams import repairing
from liftenvelope.gateway._streams.handing_over import with_sources
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import NOT_RECORDED
from liftenvelope.testing import run_nats_server
from tests.integration.conftest import connect, until

UNKNOWN = api_pb2.PublishAsyncError.UNKNOWN
READONLY = api_pb2.PublishAsyncError.READONLY


@pytest.fixture
async def gateways(name: str, request: pytest.FixtureRequest) -> AsyncIterator[list[Gateway]]:
    """Two gateways that know each other, and a stream. A parameter is what NATS refuses the first one."""
    denied = {"publish": {"deny": [getattr(request, "param", "none")]}}
    users = [
        {"user": "one", "password": "s3cret", "permissions": denied},
        {"user": "two", "password": "s3cret"},
    ]
    with run_nats_server(jetstream=True, config={"authorization": {"users": users}}) as server:
        connections = [await connect(server.url, user=user, password="s3cret") for user in ("one", "two")]
        # A TTL that nobody waits for, whatever hangs.
        made = [Gateway(nc, broker_ttl=60.0) for nc in connections]
        for gateway in made:
            await gateway.start()
        await until(lambda: all(len(core_of(gateway).brokers.alive) == 2 for gateway in made))
        async with liftenvelope.connect([made[0].address]) as client:
            await client.create_stream(name, name)
        yield made
        for gateway, nc in zip(made, connections, strict=True):
            await gateway.close()
            await nc.close()


def core_of(gateway: Gateway) -> Core:
    assert gateway._running is not None
    return gateway._running.core


async def publish(gateway: Gateway, name: str) -> int:
    """Publish by a call of its own; return the offset."""
    request = api_pb2.PublishRequest(stream=name, value=b"x").SerializeToString()
    async with await Channel.connect(gateway.address) as channel:
        answer = await channel.unary("/proto.API/Publish", request, timeout=120)
    return api_pb2.PublishResponse.FromString(answer).ack.offset


async def pause(gateway: Gateway, name: str) -> None:
    request = api_pb2.PauseStreamRequest(name=name).SerializeToString()
    async with await Channel.connect(gateway.address) as channel:
        await channel.unary("/proto.API/PauseStream", request, timeout=120)


async def set_readonly(gateway: Gateway, name: str, readonly: bool) -> None:
    request = api_pb2.SetStreamReadonlyRequest(name=name, readonly=readonly).SerializeToString()
    async with await Channel.connect(gateway.address) as channel:
        await channel.unary("/proto.API/SetStreamReadonly", request, timeout=120)


@pytest.fixture
async def paused_unheard_of(
    gateways: list[Gateway], name: str, no_repairs: None, monkeypatch: pytest.MonkeyPatch
) -> Gateway:
    """The first gateway, after the second one has paused the stream without its knowing."""
    here, there = gateways
    monkeypatch.setattr(agreement, "_PATIENCE", 0.1)
    assert await publish(here, name) == 0
    await core_of(here).registry.close()
    await pause(there, name)
    record = core_of(here).registry.known(name)
    assert record is not None
    assert not record.partitions[0].paused
    return here


async def test_publish_resumes_a_partition_whose_pause_the_gateway_has_not_heard_of(
    paused_unheard_of: Gateway, name: str
) -> None:
    assert await publish(paused_unheard_of, name) == 1


async def test_publish_async_resumes_such_a_partition_for_the_next_message(
    paused_unheard_of: Gateway, name: str
) -> None:
    request = api_pb2.PublishRequest(stream=name, value=b"x").SerializeToString()
    async with await Channel.connect(paused_unheard_of.address) as channel:
        call = channel.bidi("/proto.API/PublishAsync")
        answers = []
        for _ in range(2):
            await call.send([request])
            answers.append(api_pb2.PublishResponse.FromString(await anext(call)))
        call.cancel()
    refused, stored = answers
    assert (refused.asyncError.code, refused.asyncError.message) == (UNKNOWN, NOT_RECORDED)
    assert (stored.HasField("asyncError"), stored.ack.offset) == (False, 1)


@pytest.mark.parametrize("is_again_writable", [False, True])
async def test_publish_async_answers_readonly_before_the_record_of_another_gateway_says_so(
    gateways: list[Gateway],
    name: str,
    is_again_writable: bool,
    no_repairs: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, there = gateways
    detached, is_read_twice = asyncio.Event(), asyncio.Event()
    change, refresh = core_of(there).registry.change, core_of(here).registry.refresh
    reads: list[str] = []

    async def held_change(*arguments: Any) -> Any:
        detached.set()
        await is_read_twice.wait()
        return await change(*arguments)

    async def noted_refresh(*arguments: Any) -> Any:
        reads.append(name)
        if len(reads) == 2:
            is_read_twice.set()
            await setting
            if is_again_writable:
                await set_readonly(there, name, False)
        return await refresh(*arguments)

    monkeypatch.setattr(core_of(there).registry, "change", held_change)
    monkeypatch.setattr(core_of(here).registry, "refresh", noted_refresh)
    request = api_pb2.PublishRequest(stream=name, value=b"x").SerializeToString()
    async with await Channel.connect(here.address) as channel, asyncio.timeout(120):
        call = channel.bidi("/proto.API/PublishAsync")
        await call.send([request])
        assert not api_pb2.PublishResponse.FromString(await anext(call)).HasField("asyncError")
        setting = asyncio.create_task(set_readonly(there, name, True))
        await detached.wait()
        await call.send([request])
        answer = api_pb2.PublishResponse.FromString(await anext(call))
        call.cancel()
    assert (answer.asyncError.code, answer.asyncError.message) == (READONLY, "readonly partition")


@pytest.mark.parametrize("gateways", ["$JS.API.STREAM.UPDATE.*"], indirect=True)
async def test_message_whose_partition_can_not_be_resumed_is_answered(
    paused_unheard_of: Gateway, name: str
) -> None:
    async with await Channel.connect(paused_unheard_of.address) as channel, asyncio.timeout(120):
        call = channel.bidi("/proto.API/PublishAsync")
        await call.send([api_pb2.PublishRequest(stream=name, value=b"x").SerializeToString()])
        answer = api_pb2.PublishResponse.FromString(await anext(call))
        call.cancel()
    assert "permissions violation" in answer.asyncError.message


class HeldPause:
    """A pause whose gateway has changed the record, and does not yet stop recording.

    Args:
        core: Parts of that gateway.
    """

    def __init__(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        detach = core.storage.detach

        async def held(*arguments: Any) -> None:
            self.begun.set()
            await self.go.wait()
            await detach(*arguments)

        monkeypatch.setattr(core.storage, "detach", held)


async def test_partition_is_resumed_after_its_pause_and_not_during_it(
    gateways: list[Gateway], name: str, no_repairs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairing, "OVERTAKEN", 10_000.0)  # a pause may take as long as the test wants
    here, there = gateways
    held, storage = HeldPause(core_of(there), monkeypatch), core_of(here).storage
    is_detached, attach = storage.is_detached, storage.attach
    was_detached: list[bool] = []

    async def looked(*arguments: Any) -> bool:
        found = await is_detached(*arguments)
        held.go.set()
        return found

    async def noted(*arguments: Any) -> Any:
        was_detached.append(await is_detached(*arguments))
        held.go.set()
        return await attach(*arguments)

    monkeypatch.setattr(storage, "is_detached", looked)
    monkeypatch.setattr(storage, "attach", noted)
    pausing = asyncio.create_task(pause(there, name))
    await held.begun.wait()
    await until(lambda: is_paused(here, name))
    assert await publish(here, name) == 0
    await pausing
    assert was_detached == [True]
    assert await publish(there, name) == 1


async def test_partition_whose_pause_ends_after_it_was_resumed_is_repaired(
    gateways: list[Gateway], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairing, "OVERTAKEN", 0.05)  # the resumption does not wait for long
    here, there = gateways
    held = HeldPause(core_of(there), monkeypatch)
    pausing = asyncio.create_task(pause(there, name))
    await held.begun.wait()
    await until(lambda: is_paused(here, name))
    assert await publish(here, name) == 0
    held.go.set()
    await pausing
    assert await publish(here, name) == 1


def is_paused(gateway: Gateway, name: str) -> bool:
    record = core_of(gateway).registry.known(name)
    return record is not None and record.partitions[0].paused


async def test_gateway_that_stood_still_in_a_deletion_leaves_the_stream_that_was_made_anew(
    gateways: list[Gateway], name: str, no_repairs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked: the time that it stands still."""
    here, there = gateways
    brokers, storage = core_of(here).brokers, core_of(here).storage
    asked, go = asyncio.Event(), asyncio.Event()
    id_of = storage.id_of

    async def stand_still(stream: str) -> str | None:
        found = await id_of(stream)
        if not asked.is_set():
            asked.set()
            await go.wait()
        return found

    monkeypatch.setattr(storage, "id_of", stand_still)
    assert await publish(here, name) == 0
    deleting = asyncio.create_task(delete(here, name))
    await asked.wait()
    assert there._running is not None
    alive = [core_of(there).options.id]
    await there._running.leading._streams.unfinished.finish_work(alive, of_the_dead=True)
    async with liftenvelope.connect([there.address]) as client:
        await client.create_stream(name, name)
    assert await publish(there, name) == 0
    brokers._lease.end()
    go.set()
    await deleting
    assert await publish(there, name) == 1


async def delete(gateway: Gateway, name: str) -> None:
    request = api_pb2.DeleteStreamRequest(name=name).SerializeToString()
    async with await Channel.connect(gateway.address) as channel:
        await channel.unary("/proto.API/DeleteStream", request, timeout=120)


async def test_gateway_that_stood_still_in_a_pause_leaves_the_partition_that_was_resumed(
    gateways: list[Gateway], name: str, no_repairs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked: the time that it stands still."""
    monkeypatch.setattr(repairing, "OVERTAKEN", 0.05)  # the resumption does not wait for long
    here, there = gateways
    js = core_of(here).storage._js
    look, asked, go = js.stream, asyncio.Event(), asyncio.Event()

    async def stand_still(*arguments: Any) -> Any:
        found = await look(*arguments)
        if not asked.is_set():
            asked.set()
            await go.wait()
        return found

    monkeypatch.setattr(js, "stream", stand_still)
    pausing = asyncio.create_task(pause(here, name))
    await asked.wait()
    await until(lambda: is_paused(there, name))
    assert await publish(there, name) == 0
    core_of(here).brokers._lease.end()
    go.set()
    await pausing
    record = core_of(there).registry.known(name)
    assert record is not None
    assert not await core_of(there).storage.is_detached(record, 0)


@pytest.mark.parametrize("change", ["attach", "detach"])
async def test_change_of_a_stream_leaves_a_later_stream_of_its_name(
    gateways: list[Gateway], name: str, change: str
) -> None:
    core = core_of(gateways[0])
    before = core.registry.known(name)
    assert before is not None
    async with liftenvelope.connect([gateways[1].address]) as client:
        await client.delete_stream(name)
        await client.create_stream(f"{name}.new", name)
    with pytest.raises(StreamNotFoundError):
        await getattr(core.storage, change)(before, 0)
    await core.registry.change(name, partial(with_sources, before, {0: "no-such-source"}))
    assert await publish(gateways[1], name) == 0
