"""Messages whose subject no stream records for the moment, as while a stream has no leader in JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client import Client
from liftenvelope.client._brokers import cluster
from liftenvelope.client.retries import RETRIES, Fate, Retry
from liftenvelope.errors import AckTimeoutError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._cluster.records import StreamRecord
from liftenvelope.gateway._core import Core
from liftenvelope.gateway._publishing import service, unrecorded
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import PUBLISH_AGAIN, RpcError, StatusCode
from liftenvelope.testing import NatsServer
from tests.integration.conftest import until

UNKNOWN = api_pb2.PublishAsyncError.UNKNOWN


@pytest.fixture
def nats_url(own_nats: NatsServer) -> str:
    return own_nats.url


@pytest.fixture
async def gateway(
    nc: NatsClient, name: str, no_repairs: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Gateway]:
    """A gateway with a stream whose subject JetStream does not record."""
    for module in (service, unrecorded):
        monkeypatch.setattr(module, "TRY_PAUSE", 0.001)
    async with Gateway(nc) as gateway:
        async with liftenvelope.connect([gateway.address]) as client:
            await client.create_stream(name, name)
            await client.publish(name, b"0")
        core, record = found(gateway, name)
        await core.storage.detach(record, 0)
        yield gateway


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[Client]:
    async with liftenvelope.connect([gateway.address]) as client:
        yield client


def found(gateway: Gateway, name: str) -> tuple[Core, StreamRecord]:
    assert gateway._running is not None
    core = gateway._running.core
    record = core.registry.known(name)
    assert record is not None
    return core, record


async def test_publish_is_unavailable_and_not_stored(gateway: Gateway, name: str) -> None:
    request = api_pb2.PublishRequest(stream=name, value=b"x").SerializeToString()
    async with await Channel.connect(gateway.address) as channel:
        with pytest.raises(RpcError, match=PUBLISH_AGAIN) as refused:
            await channel.unary("/proto.API/Publish", request, timeout=120)
    assert refused.value.code == StatusCode.UNAVAILABLE


async def test_publish_async_reports_that_the_message_is_not_stored(gateway: Gateway, name: str) -> None:
    request = api_pb2.PublishRequest(stream=name, value=b"x").SerializeToString()
    async with await Channel.connect(gateway.address) as channel:
        call = channel.bidi("/proto.API/PublishAsync")
        await call.send([request])
        answer = api_pb2.PublishResponse.FromString(await anext(call))
        call.cancel()
    assert answer.asyncError.code == UNKNOWN
    assert answer.asyncError.message.startswith(PUBLISH_AGAIN)


async def test_client_learns_from_publish_async_that_publishing_again_is_safe(
    client: Client, name: str
) -> None:
    with pytest.raises(AckTimeoutError, match=PUBLISH_AGAIN) as refused:
        await (await client.publish_async(name, b"x"))
    assert not refused.value.sent


class _Once(Retry):
    def allows(self, fate: Fate, failed: int) -> bool:
        return False


async def test_client_learns_from_publish_that_publishing_again_is_safe(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message with an ack inbox takes a call of its own."""
    # Otherwise the last attempt may get no answer in its time, and its outcome is unknown.
    monkeypatch.setattr(cluster, "RETRIES", {**RETRIES, "Publish": _Once()})
    with pytest.raises(AckTimeoutError, match=PUBLISH_AGAIN) as refused:
        await client.publish(name, b"x", ack_inbox=f"_INBOX.{name}", timeout=120)
    assert not refused.value.sent


async def test_client_publishes_again_until_the_subject_is_recorded(
    gateway: Gateway, client: Client, name: str
) -> None:
    core, record = found(gateway, name)
    publishing = asyncio.ensure_future(client.publish(name, b"1", ack_inbox=f"_INBOX.{name}", timeout=120))
    counts = core.publishes["Publish"]
    await until(lambda: sum(counts.failures.values()) > 0)
    await core.storage.attach(record, 0)
    ack = await publishing
    assert ack is not None
    assert ack.offset == 1
