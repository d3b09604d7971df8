"""PublishAsync while NATS hangs, is lost and comes back: the end of every message is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.errors import AckTimeoutError
from liftenvelope.gateway import Gateway
from liftenvelope.jetstream import JetStream
from liftenvelope.rpc.aio import Call, Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import FaultProxy, run_nats_server
from tests.integration.conftest import connect, until

UNKNOWN = "may be stored"
#: Soon enough to wait for, and long enough for an ack on a machine that hangs meanwhile.
SOON = 8.0
IDS = [str(number) for number in range(100)]


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """A fault proxy between a NATS server of the test and the gateway."""
    with run_nats_server(jetstream=True) as server, FaultProxy(server.address) as proxy:
        yield proxy


@pytest.fixture
def nats_url(proxy: FaultProxy) -> str:
    return f"nats://{proxy.address}"


@asynccontextmanager
async def gateway_on(nc: NatsClient, name: str, ack_timeout: float) -> AsyncIterator[tuple[str, Channel]]:
    """A gateway with a stream: its address, and a connection to it."""
    async with asyncio.timeout(120), Gateway(nc, ack_timeout=ack_timeout) as gateway:
        async with liftenvelope.connect([gateway.address]) as client:
            await client.create_stream(name, name)
        async with await Channel.connect(gateway.address) as channel:
            yield gateway.address, channel


async def publish_first(channel: Channel, name: str, offset: int = 0) -> Call:
    """Begin a call with one message, so that those after it go the quick way."""
    call = channel.bidi("/proto.API/PublishAsync")
    await call.send(requests(name, ["first"]))
    assert (await take(call, 1))["first"].ack.offset == offset
    return call


def requests(name: str, ids: list[str]) -> list[bytes]:
    return [api_pb2.PublishRequest(stream=name, correlationId=id_).SerializeToString() for id_ in ids]


async def take(call: Call, count: int) -> dict[str, api_pb2.PublishResponse]:
    """The next so many responses, by correlation id."""
    found: dict[str, api_pb2.PublishResponse] = {}
    while len(found) < count:
        raw = await call.receive()
        assert raw is not None, f"it ended after {len(found)} of {count}"
        for response in map(api_pb2.PublishResponse.FromString, raw):
            found[response.correlationId] = response
    return found


async def all_stored(proxy: FaultProxy, name: str, count: int) -> None:
    """Wait until JetStream has so many messages, as seen past the proxy."""
    nc = await connect(f"nats://{proxy.target}")
    async with JetStream(nc) as js, asyncio.timeout(60):
        while (await (await js.stream(f"lift_{name}_0")).info()).state.last_seq < count:
            await asyncio.sleep(0.01)
    await nc.close()


async def told(call: Call) -> str:
    """Return the text of the error for one message, or for the whole call."""
    try:
        (response,) = (await take(call, 1)).values()
    except RpcError as exc:
        return exc.description if exc.code == StatusCode.UNAVAILABLE else ""
    return response.asyncError.message


async def test_acks_come_in_order(nc: NatsClient, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftenvelope.gateway._publishing.session._FIRST_ACK", 60.0)
    async with gateway_on(nc, name, ack_timeout=100.0) as (_, channel):
        call = channel.bidi("/proto.API/PublishAsync")
        await call.send(requests(name, IDS))
        found = await take(call, len(IDS))
        assert [(id_, response.ack.offset) for id_, response in found.items()] == [
            (id_, offset) for offset, id_ in enumerate(IDS)
        ]


async def test_acks_that_do_not_come(proxy: FaultProxy, nc: NatsClient, name: str) -> None:
    async with gateway_on(nc, name, ack_timeout=SOON) as (_, channel):
        call = await publish_first(channel, name)
        proxy.stall("to_client")
        await call.send(requests(name, IDS))
        found = await take(call, len(IDS))
        assert set(found) == set(IDS)
        errors = [response.asyncError for response in found.values()]
        assert {error.code for error in errors} == {api_pb2.PublishAsyncError.UNKNOWN}
        assert all(UNKNOWN in error.message for error in errors)
        proxy.resume()
        # The call goes on. What was said to be unknown has been stored here.
        await call.send(requests(name, ["last"]))
        assert (await take(call, 1))["last"].ack.offset == 1 + len(IDS)
        call.half_close()
        assert await call.receive() is None


async def test_a_connection_that_is_lost_with_messages_on_it(
    proxy: FaultProxy, nc: NatsClient, name: str
) -> None:
    async with gateway_on(nc, name, ack_timeout=100.0) as (_, channel):
        call = await publish_first(channel, name)
        proxy.stall("to_client")
        await call.send(requests(name, IDS))
        await all_stored(proxy, name, 1 + len(IDS))
        proxy.refuse()
        proxy.cut()
        with pytest.raises(RpcError, match=UNKNOWN) as info:
            await take(call, 1)
        assert info.value.code == StatusCode.UNAVAILABLE
        proxy.resume()
        proxy.accept()
        await until(lambda: nc.is_connected)
        await publish_first(channel, name, offset=1 + len(IDS))


async def test_what_is_published_while_it_is_lost(proxy: FaultProxy, nc: NatsClient, name: str) -> None:
    async with gateway_on(nc, name, ack_timeout=SOON) as (_, channel):
        call = await publish_first(channel, name)
        proxy.refuse()
        proxy.cut()
        await until(lambda: not nc.is_connected)
        await call.send(requests(name, ["lost"]))
        assert UNKNOWN in await told(call)
        other = channel.bidi("/proto.API/PublishAsync")
        await other.send(requests(name, ["late"]))
        assert UNKNOWN in (await take(other, 1))["late"].asyncError.message
        proxy.accept()
        await until(lambda: nc.is_connected)
        # What waited in the connection's buffer is stored when it is back, and what comes after it as well.
        await other.send(requests(name, ["back"]))
        assert (await take(other, 1))["back"].ack.offset == 3


async def test_our_client_does_not_say_that_it_is_not_stored(
    proxy: FaultProxy, nc: NatsClient, name: str
) -> None:
    async with gateway_on(nc, name, ack_timeout=SOON) as (address, _):
        async with liftenvelope.connect([address]) as client:
            await client.publish(name, b"first")
            proxy.stall("to_client")
            futures = [await client.publish_async(name, b"x", timeout=90) for _ in range(50)]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            proxy.resume()
        assert {type(outcome) for outcome in outcomes} == {AckTimeoutError}
        assert all(isinstance(outcome, AckTimeoutError) and outcome.sent for outcome in outcomes)
