"""With a policy, a stream records only subjects that its creator may read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from liftenvelope._pb import api_pb2
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import NatsServer
from tests.integration.gateway.policed_gateway import PolicedGateway, policed_gateway

METHODS = [method.name for method in api_pb2.DESCRIPTOR.services_by_name["API"].methods]
NAMES = ("mine", "other", "a.b", "orders.eu", "wide")
POLICY = "\n".join(
    ["p, app, *, FetchMetadata", "p, app, orders.*.eu, RecordSubject", "p, app, own.>, RecordSubject"]
    + [f"p, app, {name}, {method}" for name in NAMES for method in ("CreateStream", "DeleteStream")]
)


@pytest.fixture
async def policed(own_nats: NatsServer, tmp_path: Path) -> AsyncIterator[PolicedGateway]:
    async with policed_gateway(tmp_path, own_nats.url, POLICY) as running:
        yield running


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("mine", "secret"),
        ("mine", "orders"),
        ("mine", "orders.*.*"),
        ("mine", "orders.>"),
        ("mine", "orders.1.eu.>"),
        ("mine", "orders.1.us"),
        ("mine", "own"),
        ("mine", "*.>"),
        ("mine", ">"),
        ("mine", "_INBOX.>"),
        ("mine", "_lift.activity"),
        ("mine", "mine.1"),
        ("mine", "other"),
        ("mine", ""),
    ],
)
async def test_stream_on_a_subject_without_permission_is_denied(
    policed: PolicedGateway, name: str, subject: str
) -> None:
    app = await policed.caller("app")
    with pytest.raises(RpcError, match="not authorized to create streams on subject") as info:
        await app.call("CreateStream", api_pb2.CreateStreamRequest(name=name, subject=subject))
    assert info.value.code == StatusCode.PERMISSION_DENIED
    found = api_pb2.FetchMetadataResponse.FromString(
        await app.call("FetchMetadata", api_pb2.FetchMetadataRequest())
    )
    assert name not in {stream.name for stream in found.streamMetadata}


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("mine", "mine"),
        ("mine", "orders.1.eu"),
        ("mine", "orders.*.eu"),
        ("wide", "own.a"),
        ("wide", "own.*.b"),
        ("wide", "own.>"),
        ("a.b", "a.b"),
    ],
)
async def test_stream_on_a_subject_with_permission_is_created(
    policed: PolicedGateway, name: str, subject: str
) -> None:
    client = await policed.client("app")
    await client.create_stream(subject, name, partitions=1 if subject.endswith(">") else 2)
    metadata = await client.fetch_metadata(streams=[name])
    assert metadata.streams[name].subject == subject
    # The subject is free for the next case.
    await client.delete_stream(name)


async def test_permission_for_a_subject_is_none_for_its_name(policed: PolicedGateway) -> None:
    app = await policed.caller("app")
    with pytest.raises(RpcError, match=r"not authorized to call CreateStream on resource own\.a") as info:
        await app.call("CreateStream", api_pb2.CreateStreamRequest(name="own.a", subject="own.a"))
    assert info.value.code == StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("method", METHODS)
async def test_malformed_request_under_a_policy_is_refused_as_unreadable(
    policed: PolicedGateway, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = await policed.caller("app")
    with pytest.raises(RpcError, match="can't be read") as info:
        async for _ in app.channel.server_stream(f"/proto.API/{method}", b"\xff\xff\xff", timeout=60):
            pass
    assert info.value.code == StatusCode.INTERNAL
    assert "Traceback" not in caplog.text
