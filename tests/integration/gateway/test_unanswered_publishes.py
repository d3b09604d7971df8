"""Messages of clients that JetStream does not ack: the places that they take, and for how long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.envelope import unmarshal_message
from liftenvelope.gateway import Gateway, Limits
from liftenvelope.gateway._publishing import intake
from liftenvelope.jetstream import JetStream
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import NatsServer
from tests.handled import handled
from tests.integration.conftest import connect, until

TO_SUBJECT = "/proto.API/PublishToSubject"
#: Messages that one connection may have pending: as many as it leaves free for others.
MOST = 3


@pytest.fixture
def nats_url(own_nats: NatsServer) -> str:
    return own_nats.url


@pytest.fixture
async def gateway(own_nats: NatsServer) -> AsyncIterator[Gateway]:
    nc = await connect(own_nats.url)
    limits = Limits(max_pending_publishes_in_all=2 * MOST - 1)
    # Messages that want no ack wait that long: for the whole of a test.
    async with Gateway(nc, limits=limits, ack_timeout=10_000.0) as serving:
        yield serving
    await nc.close()


async def take_silently(nc: NatsClient, subject: str) -> list[bytes]:
    """Subscribe to a subject that no stream records, so that nothing answers a publish there."""
    taken: list[bytes] = []

    async def note(msg: object) -> None:
        taken.append(unmarshal_message(msg.data).value)  # type: ignore[attr-defined]

    await nc.subscribe(subject, cb=note)
    await handled(nc)
    return taken


def to_subject(subject: str, value: bytes, policy: api_pb2.AckPolicy = api_pb2.NONE) -> bytes:
    return api_pb2.PublishToSubjectRequest(subject=subject, value=value, ackPolicy=policy).SerializeToString()


async def beats(js: JetStream) -> int:
    """Return the number of heartbeats that the gateways have stored."""
    return (await js.stream("KV_lift_brokers")).cached_info.state.last_seq


async def test_gateway_keeps_working_while_messages_of_a_client_get_no_ack(
    gateway: Gateway, nc: NatsClient, name: str
) -> None:
    taken = await take_silently(nc, f"{name}.silent")
    async with (
        JetStream(nc) as js,
        await Channel.connect(gateway.address) as channel,
        liftenvelope.connect([gateway.address], timeout=240) as client,
    ):
        await client.create_stream(f"{name}.checked", f"{name}-checked", optimistic_concurrency=True)
        for number in range(MOST):
            await channel.unary(TO_SUBJECT, to_subject(f"{name}.silent", b"%d" % number), timeout=3_600)
        await until(lambda: len(taken) == MOST)
        above = asyncio.create_task(
            channel.unary(TO_SUBJECT, to_subject(f"{name}.silent", b"above"), timeout=3_600)
        )
        before = await beats(js)
        async with asyncio.timeout(240):
            while await beats(js) < before + 2:
                await asyncio.sleep(0.05)
        await client.create_stream(name, name)
        stored = await nc.request(f"{name}.checked", b"on NATS", timeout=240)
        assert json.loads(stored.data)["seq"] == 1
        assert not above.done()
        assert b"above" not in taken
        above.cancel()


async def test_message_to_a_subject_waits_for_its_ack_no_longer_than_a_minute(
    nc: NatsClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "_LONGEST_ACK", 1.0)
    await take_silently(nc, name)
    request = to_subject(name, b"x", api_pb2.LEADER)
    async with Gateway(nc, ack_timeout=1.0) as gateway, await Channel.connect(gateway.address) as channel:
        with pytest.raises(RpcError) as failed:
            await channel.unary(TO_SUBJECT, request, timeout=3_600)
    assert failed.value.code == StatusCode.DEADLINE_EXCEEDED


async def test_message_that_wants_no_ack_keeps_its_place_no_longer_than_the_ack_timeout(
    nc: NatsClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client may be gone, and come again on another connection."""
    monkeypatch.setattr(intake, "_LONGEST_ACK", 10_000.0)
    taken = await take_silently(nc, name)
    limits = Limits(max_pending_publishes_in_all=1)
    async with Gateway(nc, ack_timeout=1.0, limits=limits) as gateway:
        for number in range(3):
            async with await Channel.connect(gateway.address) as channel:
                await channel.unary(TO_SUBJECT, to_subject(name, b"%d" % number), timeout=3_600)
        await until(lambda: len(taken) == 3)


async def test_messages_without_an_ack_of_one_connection_leave_room_for_those_of_another(
    gateway: Gateway, nc: NatsClient, name: str
) -> None:
    taken = await take_silently(nc, f"{name}.silent")
    async with (
        await Channel.connect(gateway.address) as channel,
        liftenvelope.connect([gateway.address], timeout=240) as other,
    ):
        await other.create_stream(name, name)
        silent = [
            asyncio.create_task(
                channel.unary(TO_SUBJECT, to_subject(f"{name}.silent", b"%d" % number), timeout=3_600)
            )
            for number in range(3 * MOST)
        ]
        await until(lambda: len(taken) == MOST)
        ack = await other.publish(name, b"acked")
        assert ack is not None
        assert ack.offset == 0
        await other.set_cursor("reader", name, 0, 17)
        await handled(nc)
        assert len(taken) == MOST
        for task in silent:
            task.cancel()
        await asyncio.wait(silent)


async def test_messages_for_a_copy_wait_while_too_many_have_no_ack(
    gateway: Gateway, nc: NatsClient, name: str
) -> None:
    taken: list[bytes] = []

    async def note(msg: Msg) -> None:
        taken.append(unmarshal_message(msg.data).value)

    assert gateway._running is not None
    async with (
        liftenvelope.connect([gateway.address], timeout=240) as client,
        await Channel.connect(gateway.address) as channel,
    ):
        for stream in (name, f"{name}-copy"):
            await client.create_stream(name, stream)
        leading = gateway._running.leading
        await until(lambda: f"{name}-copy" in {stream for stream, _, _ in leading.readers()})
        [reader] = [reader for stream, _, reader in leading.readers() if stream == f"{name}-copy"]
        await reader.close()  # it would send the acks
        await nc.subscribe(name, cb=note)
        await handled(nc)
        publishing = []
        for number in range(MOST + 1):
            request = api_pb2.PublishRequest(
                stream=f"{name}-copy", value=b"%d" % number, ackPolicy=api_pb2.LEADER
            ).SerializeToString()
            publishing.append(
                asyncio.create_task(channel.unary("/proto.API/Publish", request, timeout=3_600))
            )
        await until(lambda: len(taken) == MOST)
        await client.publish(name, b"of another connection")
        await until(lambda: len(taken) > MOST)
        assert taken == [*(b"%d" % number for number in range(MOST)), b"of another connection"]
        for task in publishing:
            task.cancel()
        await asyncio.wait(publishing)
