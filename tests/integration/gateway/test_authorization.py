"""Authorisation by certificate name: what a policy file allows, and nothing else, through a gateway."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from h2 import events
from h2.settings import SettingCodes
from nats.aio.client import Client as NatsClient

import liftenvelope
from liftenvelope._pb import api_pb2
from liftenvelope.client import Client
from liftenvelope.errors import PermissionDeniedError, UsageError
from liftenvelope.gateway import Gateway
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import NatsServer
from tests.integration.certificates import client_tls, server_tls
from tests.integration.conftest import connect
from tests.integration.gateway.raw_http2 import RawClient

EVERYTHING = """
p, app, *, FetchMetadata
p, app, allowed, CreateStream
p, app, allowed, DeleteStream
p, app, allowed, PauseStream
p, app, allowed, SetStreamReadonly
p, app, allowed, Subscribe
p, app, allowed, Publish
p, app, allowed, PublishToSubject
p, app, allowed, FetchPartitionMetadata
p, app, allowed, SetCursor
p, app, allowed, FetchCursor
"""


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def nats_nc(own_nats: NatsServer) -> NatsClient:
    return await connect(own_nats.url)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.csv"
    path.write_text(EVERYTHING)
    return path


@pytest.fixture
async def gateway(nats_nc: NatsClient, ca: trustme.CA, policy: Path) -> AsyncIterator[Gateway]:
    async with Gateway(nats_nc, tls=server_tls(ca), policy_file=policy) as serving:
        yield serving


@pytest.fixture
async def app(gateway: Gateway, ca: trustme.CA) -> AsyncIterator[Client]:
    async with liftenvelope.connect([gateway.address], tls=client_tls(ca, "app")) as client:
        yield client


async def test_what_is_allowed_works(app: Client) -> None:
    await app.create_stream("allowed", "allowed")
    await app.publish("allowed", b"one")
    await app.publish_to_subject("allowed", b"two")
    assert (await app.publish_many("allowed", [b"three"])).acked == 1
    async with app.subscribe("allowed", start="earliest", stop="latest") as messages:
        assert [message.value async for message in messages] == [b"one", b"two", b"three"]
    await app.fetch_partition_metadata("allowed", 0)
    await app.set_cursor("r", "allowed", 0, 1)
    assert await app.fetch_cursor("r", "allowed", 0) == 1
    await app.pause_stream("allowed")
    await app.set_stream_readonly("allowed")
    await app.delete_stream("allowed")


OTHER: dict[str, Any] = {
    "CreateStream": api_pb2.CreateStreamRequest(name="other", subject="other"),
    "DeleteStream": api_pb2.DeleteStreamRequest(name="other"),
    "PauseStream": api_pb2.PauseStreamRequest(name="other"),
    "SetStreamReadonly": api_pb2.SetStreamReadonlyRequest(name="other", readonly=True),
    "Subscribe": api_pb2.SubscribeRequest(stream="other"),
    "FetchPartitionMetadata": api_pb2.FetchPartitionMetadataRequest(stream="other"),
    "Publish": api_pb2.PublishRequest(stream="other", value=b"v"),
    "PublishToSubject": api_pb2.PublishToSubjectRequest(subject="other", value=b"v"),
    "SetCursor": api_pb2.SetCursorRequest(stream="other", cursorId="r", offset=1),
    "FetchCursor": api_pb2.FetchCursorRequest(stream="other", cursorId="r"),
}


@pytest.mark.parametrize("method", OTHER)
async def test_what_is_not_allowed_is_denied_and_not_done(
    app: Client, gateway: Gateway, ca: trustme.CA, method: str
) -> None:
    async with await Channel.connect(gateway.address, tls=client_tls(ca, "app")) as channel:
        with pytest.raises(RpcError, match=f"not authorized to call {method} on resource other") as info:
            await channel.unary(f"/proto.API/{method}", OTHER[method].SerializeToString(), timeout=60)
    assert info.value.code == StatusCode.PERMISSION_DENIED
    assert "other" not in (await app.fetch_metadata()).streams


async def test_the_client_says_it_in_its_own_words(app: Client) -> None:
    with pytest.raises(PermissionDeniedError, match="not authorized"):
        await app.create_stream("other", "other")


async def test_publish_async_denies_message_by_message(app: Client, gateway: Gateway, ca: trustme.CA) -> None:
    await app.create_stream("allowed", "allowed")
    requests = [
        api_pb2.PublishRequest(stream=stream, value=b"v", correlationId=ident, expectedOffset=-1)
        for stream, ident in (("secret", "a"), ("allowed", "b"), ("secret", "c"), ("allowed", "d"))
    ]
    responses: dict[str, api_pb2.PublishResponse] = {}
    async with await Channel.connect(gateway.address, tls=client_tls(ca, "app")) as channel:
        call = channel.bidi("/proto.API/PublishAsync")
        await call.send([request.SerializeToString() for request in requests])
        async with asyncio.timeout(60):
            async for raw in call:
                response = api_pb2.PublishResponse.FromString(raw)
                responses[response.correlationId or response.ack.correlationId] = response
                if len(responses) == 4:
                    break
        call.cancel()
    codes = {ident: response.asyncError.code for ident, response in responses.items()}
    no = api_pb2.PublishAsyncError.PERMISSION_DENIED
    assert {ident: code for ident, code in codes.items() if code} == {"a": no, "c": no}
    assert [responses[ident].ack.offset for ident in ("b", "d")] == [0, 1]
    await app.delete_stream("allowed")


def raw_answers(client: RawClient) -> list[api_pb2.PublishResponse]:
    """Answers of the only call, as far as they have come whole."""
    data = b"".join(event.data for event in client.of(events.DataReceived))
    answers, at = [], 0
    while len(data) >= (end := at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")) > at + 5:
        answers.append(api_pb2.PublishResponse.FromString(data[at + 5 : end]))
        at = end
    return answers


async def test_denied_publishes_are_read_no_faster_than_their_answers(
    gateway: Gateway, ca: trustme.CA
) -> None:
    tls = client_tls(ca, "app")
    tls.set_alpn_protocols(["h2"])
    denied = api_pb2.PublishRequest(stream="s" * 2_000).SerializeToString()
    piece = (b"\0" + len(denied).to_bytes(4, "big") + denied) * 5
    async with RawClient(gateway.address, tls) as client:
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        client.send()
        await client.until(lambda client: client.of(events.RemoteSettingsChanged))
        call, sent, idle_pings = client.start("/proto.API/PublishAsync"), 0, 0
        # Twenty answers to pings without new credit: the gateway reads no more. It reads 1 MiB ahead.
        while sent < 4 << 20 and idle_pings < 20:
            idle_pings += 1
            while sent < 4 << 20 and client.h2.local_flow_control_window(call) >= len(piece):
                client.h2.send_data(call, piece)
                sent, idle_pings = sent + len(piece), 0
            assert await client.ping()
        assert sent < 2 << 20
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1})
        client.h2.increment_flow_control_window(2**31 - 1 - 65_535)
        client.send()
        await client.until(lambda client: len(raw_answers(client)) >= sent // len(piece) * 5)
        errors = [answer.asyncError for answer in raw_answers(client)]
    assert len(errors) == sent // len(piece) * 5
    assert {error.code for error in errors} == {api_pb2.PublishAsyncError.PERMISSION_DENIED}
    assert {(len(error.message), error.message[-4:]) for error in errors} == {(1_024, "s...")}


@pytest.mark.parametrize("name", ["nobody", None])
async def test_other_names_and_none(gateway: Gateway, ca: trustme.CA, name: str | None) -> None:
    async with await Channel.connect(gateway.address, tls=client_tls(ca, name)) as channel:
        for method, request in (
            ("FetchMetadata", api_pb2.FetchMetadataRequest()),
            ("CreateStream", api_pb2.CreateStreamRequest(name="allowed", subject="allowed")),
            ("Publish", api_pb2.PublishRequest(stream="allowed", value=b"v")),
        ):
            with pytest.raises(RpcError) as info:
                await channel.unary(f"/proto.API/{method}", request.SerializeToString(), timeout=60)
            assert info.value.code == StatusCode.PERMISSION_DENIED
        # Whoever looks after the server may ask whether it is well.
        assert await channel.unary("/grpc.health.v1.Health/Check", b"", timeout=60)


async def test_the_file_is_read_again_and_a_broken_one_is_not_taken(
    app: Client, policy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy.write_text("nonsense\n")
    async with asyncio.timeout(60):
        while "keeping the previous policy" not in caplog.text:
            await asyncio.sleep(0.05)
    await app.fetch_metadata()
    policy.write_text("p, somebody, else, Publish\n")
    async with asyncio.timeout(60):
        while True:
            try:
                await app.fetch_metadata()
            except PermissionDeniedError:
                break
            await asyncio.sleep(0.05)


async def test_a_policy_needs_names(nats_nc: NatsClient, policy: Path, ca: trustme.CA) -> None:
    with pytest.raises(UsageError, match="certificates"):
        Gateway(nats_nc, policy_file=policy)
    careless = server_tls(ca)
    careless.verify_mode = ssl.CERT_OPTIONAL
    with pytest.raises(UsageError, match="certificates"):
        Gateway(nats_nc, tls=careless, policy_file=policy)
