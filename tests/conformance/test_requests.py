"""Requests that liftenvelope's client refuses to send, or never makes: other clients of the API may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.message import Message

from liftenvelope._pb import api_pb2
from liftenvelope.client import Client
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.conformance.actions import PATIENCE, new_stream, read_offsets
from tests.conformance.conftest import Server

API = "/proto.API/"


@pytest.fixture
async def channel(server: Server) -> AsyncIterator[Channel]:
    async with await Channel.connect(server.addresses[0]) as channel:
        yield channel


async def refused(channel: Channel, method: str, request: Message) -> RpcError:
    with pytest.raises(RpcError) as failed:
        await channel.unary(API + method, request.SerializeToString(), timeout=PATIENCE)
    return failed.value


async def subscribed(channel: Channel, request: api_pb2.SubscribeRequest) -> tuple[list[int], RpcError]:
    """Read until the server ends the call; return the sizes of the responses, and the end."""
    call = channel.server_stream(API + "Subscribe", request.SerializeToString())
    sizes: list[int] = []

    async def read() -> None:
        while (received := await call.receive()) is not None:
            sizes.extend(map(len, received))

    with pytest.raises(RpcError) as ended:
        await asyncio.wait_for(read(), PATIENCE)
    return sizes, ended.value


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("DeleteStream", api_pb2.DeleteStreamRequest()),
        ("PauseStream", api_pb2.PauseStreamRequest()),
        ("SetStreamReadonly", api_pb2.SetStreamReadonlyRequest()),
        ("FetchPartitionMetadata", api_pb2.FetchPartitionMetadataRequest()),
    ],
)
async def test_stream_of_empty_name_does_not_exist(channel: Channel, method: str, request_: Message) -> None:
    assert (await refused(channel, method, request_)).code == StatusCode.NOT_FOUND


async def test_refused_subscription_of_a_group_does_not_end_the_one_that_runs(
    channel: Channel, client: Client, name: str
) -> None:
    await new_stream(client, name, 1)

    def member(epoch: int, **fields: Any) -> api_pb2.SubscribeRequest:
        consumer = api_pb2.Consumer(groupId=name, groupEpoch=epoch, consumerId="one")
        return api_pb2.SubscribeRequest(stream=name, consumer=consumer, **fields)

    raw = member(1, startPosition=api_pb2.EARLIEST).SerializeToString()
    async with channel.server_stream(API + "Subscribe", raw) as running, asyncio.timeout(PATIENCE):
        responses: list[bytes] = await running.receive() or []
        stop = {"stopPosition": api_pb2.STOP_OFFSET, "stopOffset": 0}
        _, end = await subscribed(channel, member(2, startPosition=api_pb2.NEW_ONLY, **stop))
        assert end.code == StatusCode.INVALID_ARGUMENT
        await client.publish(name, b"m1")
        while len(responses) < 3:
            found = await running.receive()
            assert found is not None
            responses += found
    assert [api_pb2.Message.FromString(one).value for one in responses[1:]] == [b"m0", b"m1"]


async def test_subscription_to_an_empty_name_finds_no_stream(channel: Channel) -> None:
    sizes, end = await subscribed(channel, api_pb2.SubscribeRequest())
    assert (sizes, end.code) == ([], StatusCode.NOT_FOUND)


async def test_publish_to_an_empty_name_is_refused(channel: Channel) -> None:
    request = api_pb2.PublishRequest(value=b"x", correlationId="1")
    assert (await refused(channel, "Publish", request)).code == StatusCode.INVALID_ARGUMENT
    call = channel.bidi(API + "PublishAsync")
    await call.send([request.SerializeToString()])
    answer = api_pb2.PublishResponse.FromString(await anext(call))
    assert answer.correlationId == "1"
    assert answer.asyncError.code == api_pb2.PublishAsyncError.NOT_FOUND
    call.cancel()


async def test_metadata_of_an_empty_name_says_that_there_is_none(channel: Channel) -> None:
    request = api_pb2.FetchMetadataRequest(streams=[""], groups=[""])
    raw = await channel.unary(API + "FetchMetadata", request.SerializeToString(), timeout=PATIENCE)
    answer = api_pb2.FetchMetadataResponse.FromString(raw)
    assert [one.error for one in answer.streamMetadata] == [api_pb2.StreamMetadata.UNKNOWN_STREAM]
    assert [one.error for one in answer.groupMetadata] == [api_pb2.ConsumerGroupMetadata.UNKNOWN_GROUP]


@pytest.mark.parametrize("values", [0, 3])
async def test_stop_before_a_start_past_the_end_is_refused(
    channel: Channel, client: Client, name: str, values: int
) -> None:
    await new_stream(client, name, values)
    for stop in (0, 2):
        request = api_pb2.SubscribeRequest(
            stream=name,
            startPosition=api_pb2.OFFSET,
            startOffset=5,
            stopPosition=api_pb2.STOP_OFFSET,
            stopOffset=stop,
        )
        sizes, end = await subscribed(channel, request)
        assert (sizes, end.code) == ([], StatusCode.INVALID_ARGUMENT)
        assert f"{stop} < 5" in end.description


async def test_subscription_to_an_empty_readonly_partition_is_confirmed_before_its_end(
    channel: Channel, client: Client, name: str
) -> None:
    await new_stream(client, name)
    await client.set_stream_readonly(name)
    for start in (api_pb2.NEW_ONLY, api_pb2.EARLIEST, api_pb2.LATEST):
        request = api_pb2.SubscribeRequest(stream=name, startPosition=start)
        sizes, end = await subscribed(channel, request)
        assert (sizes, end.code) == ([0], StatusCode.RESOURCE_EXHAUSTED)
        assert end.description == "End of readonly partition"


@pytest.mark.parametrize(
    ("values", "start"),
    [
        (0, {"startPosition": api_pb2.NEW_ONLY}),
        (0, {"startPosition": api_pb2.EARLIEST}),
        (0, {"startPosition": api_pb2.LATEST}),
        (0, {"startPosition": api_pb2.OFFSET, "startOffset": 0}),
        (3, {"startPosition": api_pb2.NEW_ONLY}),
        (3, {"startPosition": api_pb2.OFFSET, "startOffset": 3}),
        (3, {"startPosition": api_pb2.OFFSET, "startOffset": 100}),
    ],
)
async def test_subscription_to_the_end_of_a_paused_partition_is_confirmed_before_its_error(
    channel: Channel, client: Client, name: str, values: int, start: dict[str, Any]
) -> None:
    await new_stream(client, name, values)
    await client.pause_stream(name)
    sizes, end = await subscribed(channel, api_pb2.SubscribeRequest(stream=name, **start))
    assert (sizes, end.code) == ([0], StatusCode.FAILED_PRECONDITION)
    assert end.description == "commit log was closed"


@pytest.mark.parametrize(
    "start",
    [
        {"startPosition": api_pb2.EARLIEST},
        {"startPosition": api_pb2.LATEST},
        {"startPosition": api_pb2.OFFSET, "startOffset": 2},
        {"startPosition": api_pb2.TIMESTAMP, "startTimestamp": 1},
    ],
)
async def test_subscription_to_messages_of_a_paused_partition_is_refused(
    channel: Channel, client: Client, name: str, start: dict[str, Any]
) -> None:
    await new_stream(client, name, 3)
    await client.pause_stream(name)
    sizes, end = await subscribed(channel, api_pb2.SubscribeRequest(stream=name, **start))
    assert (sizes, end.code) == ([], StatusCode.INTERNAL)
    assert end.description.endswith("segment has been closed")


async def test_group_without_a_consumer_id_is_refused(channel: Channel, client: Client, name: str) -> None:
    await new_stream(client, name)
    request = api_pb2.SubscribeRequest(stream=name, consumer=api_pb2.Consumer(groupId="group"))
    sizes, end = await subscribed(channel, request)
    assert (sizes, end.code) == ([], StatusCode.INVALID_ARGUMENT)
    assert end.description == "Consumer id cannot be empty when group id is provided"


async def test_expected_offset_that_no_message_has_is_incorrect(
    channel: Channel, client: Client, name: str
) -> None:
    await new_stream(client, name, optimistic_concurrency=True)
    request = api_pb2.PublishRequest(stream=name, expectedOffset=-2)
    error = await refused(channel, "Publish", request)
    assert (error.code, error.description) == (StatusCode.UNKNOWN, "incorrect expected offset")
    call = channel.bidi(API + "PublishAsync")
    await call.send([request.SerializeToString()])
    answer = api_pb2.PublishResponse.FromString(await anext(call))
    assert answer.asyncError.code == api_pb2.PublishAsyncError.INCORRECT_OFFSET
    call.cancel()


async def test_publish_to_subject_expects_the_first_offset_of_a_stream_that_checks_offsets(
    channel: Channel, client: Client, name: str
) -> None:
    await new_stream(client, name, optimistic_concurrency=True)
    request = api_pb2.PublishToSubjectRequest(subject=name, value=b"x", correlationId="id")
    acks = []
    for _ in range(2):
        raw = await channel.unary(API + "PublishToSubject", request.SerializeToString(), timeout=PATIENCE)
        acks.append(api_pb2.PublishToSubjectResponse.FromString(raw).ack)
    errors = [api_pb2.Ack.OK, api_pb2.Ack.INCORRECT_OFFSET]
    assert [(ack.ackError, ack.msgSubject, ack.correlationId) for ack in acks] == [
        (error, name, "id") for error in errors
    ]
    assert await read_offsets(client, name, start="earliest", stop="latest") == [0]


async def test_metadata_has_the_times_of_events_that_have_not_occurred(
    channel: Channel, client: Client, name: str
) -> None:
    """Clients in some languages fail on a message field that is missing."""
    await new_stream(client, name)
    request = api_pb2.FetchMetadataRequest(streams=[name])
    raw = await channel.unary(API + "FetchMetadata", request.SerializeToString(), timeout=PATIENCE)
    partition = api_pb2.FetchMetadataResponse.FromString(raw).streamMetadata[0].partitions[0]
    for field in ("messagesReceivedTimestamps", "pauseTimestamps", "readonlyTimestamps"):
        assert partition.HasField(field)


async def test_ack_inboxes_of_publish_async_are_replaced(channel: Channel, client: Client, name: str) -> None:
    await new_stream(client, name)
    call = channel.bidi(API + "PublishAsync")
    for _ in range(2):  # the first message takes another way through the gateway than the second one
        request = api_pb2.PublishRequest(stream=name, ackInbox="_INBOX.mine")
        await call.send([request.SerializeToString()])
        answer = api_pb2.PublishResponse.FromString(await anext(call))
        assert answer.ack.stream == name
        assert answer.ack.ackInbox != "_INBOX.mine"
    call.cancel()
