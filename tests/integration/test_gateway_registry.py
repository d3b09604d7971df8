"""The gateway's records of streams: of two that make the same one at the same time, one does."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from liftenvelope.gateway.records import StreamRecord
from liftenvelope.gateway.registry import StreamRegistry
from liftenvelope.jetstream.context import JetStream
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import NatsServer

from .conftest import connect


@pytest.fixture
async def js(jetstream_server: NatsServer) -> AsyncIterator[JetStream]:
    """JetStream."""
    client = await connect(jetstream_server.url)
    async with JetStream(client) as context:
        yield context
    await client.close()


async def registry(js: JetStream) -> StreamRegistry:
    made = StreamRegistry(js, lambda *_: None)
    await made.start()
    return made


def record(name: str, maker: str) -> StreamRecord:
    return StreamRecord(name=name, subject=name, id=maker, maker=maker)


async def test_one_that_another_gateway_has_made_unheard_of(js: JetStream, name: str) -> None:
    here, there = await registry(js), await registry(js)
    await here.close()  # it hears of nothing from now on
    await there.create(record(name, "there"))
    with pytest.raises(RpcError) as refused:
        await here.create(record(name, "here"))
    assert refused.value.code == StatusCode.ALREADY_EXISTS
    found = await here.find(name)
    assert found.maker == "there"
    await there.remove(name)
    await there.close()


async def test_one_that_another_gateway_has_removed_unheard_of(js: JetStream, name: str) -> None:
    here, there = await registry(js), await registry(js)
    await here.close()
    for _ in range(2):
        await there.create(record(name, "there"))
        # It thinks of one that is gone, then of one that was never there.
        with pytest.raises(RpcError):
            await here.create(record(name, "here"))
        await there.remove(name)
    await here.create(record(name, "here"))
    assert (await there.find(name)).maker == "here"
    await there.remove(name)
    await there.close()


async def test_one_that_came_and_went_unheard_of(js: JetStream, name: str) -> None:
    here, there = await registry(js), await registry(js)
    await here.close()
    await there.create(record(name, "there"))
    await there.remove(name)
    await here.create(record(name, "here"))
    assert (await here.find(name)).maker == "here"
    await there.remove(name)
    await there.close()
