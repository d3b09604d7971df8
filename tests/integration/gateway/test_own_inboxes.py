"""Inboxes of a gateway that have a prefix of their own: clients can neither read them nor send there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from google.protobuf.message import Message

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client import Client
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.gateway import Gateway, Limits
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import NatsServer
from tests.conformance.actions import fill, read
from tests.integration.conftest import connect


@pytest.fixture
async def gateway(own_nats: NatsServer) -> AsyncIterator[Gateway]:
    """A gateway with two connections, and so with inboxes under two prefixes."""
    nc = await connect(own_nats.url, inbox_prefix="gwbox")
    read_nc = await connect(own_nats.url, inbox_prefix="team.reads")
    limits = Limits(allowed_ack_inboxes=(">",))
    async with Gateway(nc, read_nc=read_nc, id="first", broker_ttl=60.0, limits=limits) as serving:
        yield serving
    await nc.close()
    await read_nc.close()


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[Client]:
    async with liftenvelope.connect([gateway.address]) as client:
        yield client


@pytest.mark.parametrize(
    "subject", ["gwbox.>", "gwbox.*.*", "gwbox.*", "gwbox", "team.reads.>", "team.*.*", "team.>"]
)
async def test_stream_may_not_record_inboxes_of_the_gateway(client: Client, name: str, subject: str) -> None:
    with pytest.raises(
        LiftEnvelopeError, match=r"matches internal subjects .*gwbox\.\.\., team\.reads\.\.\."
    ):
        await client.create_stream(subject, name)


async def test_partitions_may_not_record_inboxes_of_the_gateway(client: Client, name: str) -> None:
    await client.create_stream("team", name, partitions=2)
    with pytest.raises(LiftEnvelopeError, match="matches internal subjects"):
        await client.create_stream("team.reads", f"{name}-2", partitions=2)
    await client.delete_stream(name)


async def refusal(gateway: Gateway, method: str, request: Message) -> str:
    """Call a method, which the gateway must refuse; return its words."""
    async with await Channel.connect(gateway.address) as channel:
        with pytest.raises(RpcError) as caught:
            await channel.unary(f"/proto.API/{method}", request.SerializeToString(), timeout=60)
    assert caught.value.code == StatusCode.INVALID_ARGUMENT
    return caught.value.description


@pytest.mark.parametrize("inbox", ["gwbox.a", "team.reads.a"])
async def test_client_may_not_send_to_inboxes_of_the_gateway(
    gateway: Gateway, client: Client, name: str, inbox: str
) -> None:
    await client.create_stream(name, name)
    to_inbox = api_pb2.PublishToSubjectRequest(subject=inbox, value=b"x")
    assert "is internal" in await refusal(gateway, "PublishToSubject", to_inbox)
    for method, request in (
        ("PublishToSubject", api_pb2.PublishToSubjectRequest(subject=name, ackInbox=inbox)),
        ("Publish", api_pb2.PublishRequest(stream=name, ackInbox=inbox)),
    ):
        assert "ackInbox must not be an inbox of the gateway" in await refusal(gateway, method, request)
    assert await fill(client, name, 1) == [0]


async def test_gateway_with_an_inbox_prefix_serves_copies_cursors_and_readers(
    client: Client, name: str
) -> None:
    copy = f"{name}-copy"
    await client.create_stream(name, name)
    await client.create_stream(name, copy)
    assert await fill(client, copy, [b"a", b"b"]) == [0, 1]
    assert [message.value for message in await read(client, name, start="earliest", stop="latest")] == [
        b"a",
        b"b",
    ]
    await client.set_cursor("r", name, 0, 1)
    assert await client.fetch_cursor("r", name, 0) == 1
