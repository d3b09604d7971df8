"""A change of the policy ends the open calls of clients that lost their permission, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from liftenvelope._pb import api_pb2
from liftenvelope.errors import PermissionDeniedError
from liftenvelope.rpc.aio import Call
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import NatsServer
from tests.integration.gateway.policed_gateway import Caller, PolicedGateway, policed_gateway

STREAM = "orders"
READ = f"p, reader, {STREAM}, Subscribe"
WRITE = f"p, writer, {STREAM}, Publish"
KEPT = f"""
p, keeper, {STREAM}, CreateStream
p, keeper, {STREAM}, Subscribe
p, keeper, {STREAM}, Publish
p, reader, *, FetchMetadata
p, reader, {STREAM}, FetchPartitionMetadata
"""
PATIENCE = 60.0


@pytest.fixture
async def policed(own_nats: NatsServer, tmp_path: Path) -> AsyncIterator[PolicedGateway]:
    async with policed_gateway(tmp_path, own_nats.url, "\n".join((KEPT, READ, WRITE))) as running:
        keeper = await running.caller("keeper")
        try:
            await keeper.call("CreateStream", api_pb2.CreateStreamRequest(name=STREAM, subject=STREAM))
        except RpcError as exc:
            assert exc.code == StatusCode.ALREADY_EXISTS  # noqa: PT017 - the stream of the test before
        yield running


async def reading(caller: Caller) -> Call:
    """Return a read that has begun, at what comes next."""
    request = api_pb2.SubscribeRequest(stream=STREAM, startPosition=api_pb2.NEW_ONLY)
    call = caller.channel.server_stream("/proto.API/Subscribe", request.SerializeToString())
    assert await call.receive() == [b""]
    return call


async def publish_async(call: Call, ident: str, stream: str = STREAM) -> api_pb2.PublishResponse:
    """Send a message on an open PublishAsync; return its answer."""
    request = api_pb2.PublishRequest(stream=stream, value=b"v", correlationId=ident, expectedOffset=-1)
    await call.send([request.SerializeToString()])
    async with asyncio.timeout(PATIENCE):
        received = await call.receive()
    assert received is not None
    (raw,) = received
    return api_pb2.PublishResponse.FromString(raw)


async def drained(call: Call) -> None:
    """Read to the end of a call."""
    while await call.receive() is not None:
        pass


async def end_of(call: Call) -> RpcError:
    """Return the status that a call ends with."""
    with pytest.raises(RpcError) as info:
        await asyncio.wait_for(drained(call), PATIENCE)
    return info.value


async def read_again_and_again(policed: PolicedGateway) -> RpcError:
    """Begin one read after the other until one is refused; return its status."""
    while True:
        caller = await policed.caller("reader")
        try:
            await reading(caller)
        except RpcError as exc:
            return exc
        await caller.channel.close()


async def test_revoked_read_ends_and_others_go_on(policed: PolicedGateway) -> None:
    revoked = await reading(await policed.caller("reader"))
    keeper = await policed.caller("keeper")
    kept = await reading(keeper)
    policed.set_policy("\n".join((KEPT, WRITE)))
    error = await end_of(revoked)
    assert error.code == StatusCode.PERMISSION_DENIED
    assert f"not authorized to call Subscribe on resource {STREAM}" in error.description
    await keeper.call("Publish", api_pb2.PublishRequest(stream=STREAM, value=b"after"))
    async with asyncio.timeout(PATIENCE):
        received = await kept.receive()
    assert received is not None
    assert [api_pb2.Message.FromString(raw).value for raw in received] == [b"after"]


async def test_revoked_read_ends_while_its_client_takes_nothing(policed: PolicedGateway) -> None:
    keeper = await policed.caller("keeper")
    revoked = await reading(await policed.caller("reader"))
    for _ in range(40):  # more than the windows of the call and its connection
        await keeper.call("Publish", api_pb2.PublishRequest(stream=STREAM, value=bytes(500_000)))
    policed.set_policy(KEPT)
    keeps_reading = asyncio.create_task(read_again_and_again(policed))
    error = await asyncio.wait_for(keeps_reading, PATIENCE)
    assert error.code == StatusCode.PERMISSION_DENIED
    assert (await end_of(revoked)).code == StatusCode.PERMISSION_DENIED


async def test_revoked_publishing_ends_and_others_go_on(policed: PolicedGateway) -> None:
    revoked = (await policed.caller("writer")).channel.bidi("/proto.API/PublishAsync")
    kept = (await policed.caller("keeper")).channel.bidi("/proto.API/PublishAsync")
    for call in (revoked, kept):
        assert (await publish_async(call, "before")).ack.stream == STREAM
    policed.set_policy("\n".join((KEPT, READ)))
    error = await end_of(revoked)
    assert error.code == StatusCode.PERMISSION_DENIED
    assert "not authorized to call Publish on any resource" in error.description
    assert (await publish_async(kept, "after")).ack.correlationId == "after"
    kept.cancel()


async def test_publishing_goes_on_to_the_streams_that_are_left(policed: PolicedGateway) -> None:
    call = (await policed.caller("writer")).channel.bidi("/proto.API/PublishAsync")
    assert not (await publish_async(call, "before")).asyncError.code
    policed.set_policy("\n".join((KEPT, "p, writer, elsewhere, Publish")))
    code = 0
    async with asyncio.timeout(PATIENCE):
        while not code:
            code = (await publish_async(call, "denied")).asyncError.code
    assert code == api_pb2.PublishAsyncError.PERMISSION_DENIED
    found = await publish_async(call, "allowed", "elsewhere")
    assert found.asyncError.code == api_pb2.PublishAsyncError.NOT_FOUND
    call.cancel()


async def test_client_raises_permission_denied_when_its_read_is_revoked(policed: PolicedGateway) -> None:
    client = await policed.client("reader")
    async with client.subscribe(STREAM) as messages:
        policed.set_policy("\n".join((KEPT, WRITE)))
        with pytest.raises(PermissionDeniedError, match="not authorized to call Subscribe"):
            await asyncio.wait_for(anext(messages), PATIENCE)
