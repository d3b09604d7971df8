"""Clients of brokers that are SCRIPTED and hostile: errors have a type, and nothing grows without a bound."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from typing import Any

import pyarrow as pa
import pytest

from liftenvelope import bulk
from liftenvelope._deadlines import Deadline
from liftenvelope._pb import api_pb2
from liftenvelope.bulk import Access
from liftenvelope.bulk.listing import open_lister
from liftenvelope.client._reading import subscription as subscription_module
from liftenvelope.client.client import Client
from liftenvelope.errors import (
    InternalError,
    LiftEnvelopeError,
    ServerProtocolError,
    SubscriptionLostError,
    TransportError,
    UsageError,
)
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.server import ServerCall
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.unit.scripted_broker import HANDSHAKE, ScriptedBroker, answers, client_of, message, read, scripted

pytestmark = pytest.mark.usefixtures("loop_errors")

UNAVAILABLE = RpcError(StatusCode.UNAVAILABLE, "go away")
CLEANED = RpcError(StatusCode.UNKNOWN, "segment has been closed")

#: What a method is answered by. None of these is the protobuf message that belongs there.
JUNK = {
    "no tag": b"\xff\xff\xff",
    "cut": b"\x0a\x7fabc",
    "wrong wire type": b"\x0f\x01",
    "no UTF-8": b"\x12\x04\x0a\x02\xff\xfe",
    "endless varint": b"\x08" + b"\xff" * 12,
    "group without end": b"\x0b" * 200,
    "deep": b"\x12\x7f" * 60,
}


async def join(client: Client) -> None:
    async with client.consumer("group", ["foo"]):
        pass


#: The method whose answer is junk, and a call that makes use of it.
CALLS: dict[str, tuple[str, Callable[[Client], Awaitable[object]]]] = {
    "metadata": ("FetchMetadata", lambda client: client.fetch_metadata()),
    "leader": ("FetchMetadata", lambda client: client.publish("foo", b"x")),
    "partition": ("FetchPartitionMetadata", lambda client: client.fetch_partition_metadata("foo", 0)),
    "publish": ("Publish", lambda client: client.publish("foo", b"x")),
    "publish with an ack inbox": ("Publish", lambda client: client.publish("foo", b"x", ack_inbox="acks")),
    "publish many": ("PublishAsync", lambda client: client.publish_many("foo", [b"x"] * 3)),
    "cursor": ("FetchCursor", lambda client: client.fetch_cursor("me", "foo", 0)),
    "subscribe": ("FetchMetadata", lambda client: read(client, start="earliest", stop="latest")),
    "group": ("JoinConsumerGroup", join),
}


def streams(address: str, access: Access) -> list[str]:
    with closing(open_lister(address, access)) as lister:
        return lister.streams()


def handler(data: bytes) -> Callable[[ServerCall, bytes], Awaitable[bytes]]:
    async def answer(call: ServerCall, request: bytes) -> bytes:
        return data

    return answer


async def raised(call: Awaitable[object]) -> LiftEnvelopeError | None:
    """The error that a call ends with, unless it is one of ours that stands for a bug."""
    try:
        await call
    except InternalError:
        raise
    except LiftEnvelopeError as exc:
        return exc
    return None


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK.keys())
@pytest.mark.parametrize("name", CALLS)
async def test_answers_that_are_no_protobuf(name: str, junk: bytes) -> None:
    method, call = CALLS[name]
    async with scripted() as (broker,):
        broker.log(0, 1)
        broker.log(stream="__cursors")
        async with client_of([broker], timeout=2.0, ack_wait=2.0) as client:
            broker.always(method, handler(junk))
            broker.always("FetchConsumerGroupAssignments", handler(junk))
            broker.always("ReportConsumerGroupCoordinator", handler(b""))
            error = await raised(call(client))
    # Other messages have no text where this has none.
    if method == "FetchMetadata" or junk != JUNK["no UTF-8"]:
        assert error is not None


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK.keys())
@pytest.mark.parametrize("method", ["FetchMetadata", "FetchPartitionMetadata", "Subscribe"])
async def test_bulk_on_answers_that_are_no_protobuf(method: str, junk: bytes) -> None:
    access = Access(timeout=2, reconnect_wait=0)
    table = pa.table({"value": [b"x"]})
    async with scripted() as (broker,):
        broker.log(0, 1)
        broker.always(method, handler(junk))
        calls: list[Callable[[], object]] = [
            lambda: bulk.read(broker.address, "foo", access=access).read_all(),
            lambda: bulk.write(broker.address, "foo", table, access=access),
            lambda: streams(broker.address, access),
        ]
        for call in calls:
            await raised(asyncio.to_thread(call))


async def test_metadata_that_is_no_protobuf_raises_the_documented_error() -> None:
    async with scripted() as (broker,), client_of([broker]) as client:
        broker.always("FetchMetadata", handler(b"\xff"))
        with pytest.raises(ServerProtocolError, match="the server's answer is no FetchMetadataResponse"):
            await client.fetch_metadata()


@pytest.mark.parametrize("junk", [junk for name, junk in JUNK.items() if name != "no UTF-8"])
@pytest.mark.parametrize("method", ["Publish", "PublishToSubject"])
async def test_publish_with_an_unreadable_answer_may_be_stored(method: str, junk: bytes) -> None:
    async with scripted() as (broker,), client_of([broker], ack_wait=30.0) as client:
        broker.log(0)
        broker.always(method, handler(junk))
        publish = client.publish if method == "Publish" else client.publish_to_subject
        with pytest.raises(ServerProtocolError, match="the message may be stored") as info:
            await publish("foo", b"x", ack_inbox="acks")
        assert (info.value.published, info.value.sent) == (1, True)


# Limits


def metadata(brokers: int, partitions: int) -> api_pb2.FetchMetadataResponse:
    answer = api_pb2.FetchMetadataResponse()
    for number in range(brokers):
        answer.brokers.add(id=f"b{number}", host="127.0.0.1", port=1 + number % 60_000)
    stream = answer.streamMetadata.add(name="foo", subject="foo")
    for number in range(partitions):
        stream.partitions[number].id = number
    return answer


@pytest.mark.parametrize(("brokers", "partitions"), [(3, 4), (4, 4), (3, 5)])
async def test_metadata_limits(brokers: int, partitions: int) -> None:
    async with scripted() as (broker,), client_of([broker], max_brokers=3, max_partitions=4) as client:
        broker.always("FetchMetadata", metadata(brokers, partitions))
        if (brokers, partitions) == (3, 4):
            found = await client.fetch_metadata()
            assert (len(found.brokers), len(found.streams["foo"].partitions)) == (3, 4)
        else:
            name = "max_brokers=3" if brokers > 3 else "max_partitions=4"
            with pytest.raises(ServerProtocolError, match=f"at most {name}"):
                await client.fetch_metadata()


@pytest.mark.parametrize(("brokers", "partitions"), [(3, 4), (4, 4), (3, 5)])
async def test_metadata_limits_of_bulk(brokers: int, partitions: int) -> None:
    access = Access(max_brokers=3, max_partitions=4)
    async with scripted() as (broker,):
        broker.always("FetchMetadata", metadata(brokers, partitions))
        listing = asyncio.to_thread(streams, broker.address, access)
        if (brokers, partitions) == (3, 4):
            assert await listing == ["foo"]
        else:
            with pytest.raises(ServerProtocolError, match="must name at most"):
                await listing


async def test_brokers_of_ever_new_names_are_forgotten() -> None:
    numbers = itertools.count()

    async def answer(call: ServerCall, request: bytes) -> bytes:
        found = api_pb2.FetchMetadataResponse()
        found.brokers.add(id=f"b{next(numbers)}", host="127.0.0.1", port=9292)
        return found.SerializeToString()

    async with scripted() as (broker,):
        broker.always("FetchMetadata", answer)
        async with client_of(
            [broker], max_brokers=3, address_map={"127.0.0.1:9292": broker.address}
        ) as client:
            for _ in range(10):
                await client.fetch_metadata()
            assert len(client._context.cluster._brokers) <= 3


async def test_timeout_holds_with_1_000_brokers_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = metadata(1_000, 0)
    answer.streamMetadata[0].partitions[0].leader = "nobody knows"
    # The first answer names the brokers. The second one lacks a leader, so all others are asked for it.
    left = [answer.SerializeToString()] * 2
    timeouts: list[float] = []

    async def call_once(method: str, request: bytes, address: str, timeout: float, *_: Any) -> bytes:
        if left:
            return left.pop()
        timeouts.append(timeout)
        await asyncio.sleep(min(timeout, 0.01))  # 10 s for all of them
        raise RpcError(StatusCode.DEADLINE_EXCEEDED, "no answer")

    async with scripted() as (broker,), client_of([broker], timeout=0.5, ack_wait=0.5) as client:
        monkeypatch.setattr(client._context.cluster, "call_once", call_once)
        for _ in range(2):
            found = await client.fetch_metadata()
            assert (len(found.brokers), found.missing_brokers()) == (1_000, {"nobody knows"})
        # Without a look at the clock each of the rest is tried for the least time after the end. At most one
        # call begins so late, if the deadline passes between the look and the call.
        least = Deadline(0.0).left
        assert timeouts.count(least) <= 1
        assert await raised(client.publish("foo", b"x")) is not None


@pytest.mark.parametrize(
    "host",
    ["", "a..b", "a" * 64, "a\0b", "\n", "\N{PILE OF POO}" * 70, "x" * 100_000, "a:b:c"],
    ids=["empty", "empty label", "long label", "NUL", "line end", "long in IDNA", "long", "colons"],
)
async def test_broker_at_no_address(host: str) -> None:
    answer = metadata(0, 1)
    answer.brokers.add(id="b0", host=host, port=9292)
    answer.streamMetadata[0].partitions[0].leader = "b0"
    async with scripted() as (broker,):
        broker.log(0)
        async with client_of([broker], timeout=1.0, ack_wait=1.0) as client:
            broker.always("FetchMetadata", answer)
            error = await raised(client.publish("foo", b"x"))
        assert isinstance(error, LiftEnvelopeError)
        assert not isinstance(error, UsageError)
        access = Access(timeout=0.5, reconnect_wait=0)
        error = await raised(asyncio.to_thread(lambda: bulk.read(broker.address, "foo", access=access)))
        assert isinstance(error, LiftEnvelopeError)
        assert not isinstance(error, UsageError)


async def test_unary_call_ends_at_the_second_answer() -> None:
    sent = 0

    async def endless(call: ServerCall, request: bytes) -> None:
        nonlocal sent
        while True:
            await call.send([bytes(100_000)])
            sent += 1

    async with scripted() as (broker,):
        broker.always("FetchMetadata", endless)
        async with await Channel.connect(broker.address) as channel:
            with pytest.raises(RpcError, match="did not send exactly one message"):
                await channel.unary("/proto.API/FetchMetadata", b"", timeout=60)
    assert sent < 1_000


# Subscriptions that end at once


class Ending:
    """A broker that accepts every subscription and ends it at once, now and then after a message."""

    def __init__(self, broker: ScriptedBroker, error: RpcError | None) -> None:
        self.broker = broker
        self.error = error
        broker.log(0)
        broker.always("Subscribe", answers(HANDSHAKE, error=error))

    @property
    def attempts(self) -> int:
        return self.broker.calls["Subscribe"]


@pytest.mark.parametrize("error", [UNAVAILABLE, CLEANED, None], ids=["unavailable", "cleaned", "OK"])
async def test_subscription_that_ends_at_once_is_given_up(
    monkeypatch: pytest.MonkeyPatch, error: RpcError | None
) -> None:
    # Each loss shares the deadline of the first, however long a loaded machine stops the process.
    monkeypatch.setattr(subscription_module, "_STOOD", 1e9)
    async with scripted() as (broker,):
        ending = Ending(broker, error)
        async with client_of([broker], resubscribe_wait=1.0, on_event=lambda event: None) as client:
            with pytest.raises(SubscriptionLostError, match="not regained in 1 s"):
                await read(client, start=0)
        # 28 per second before the pauses grew: 0.05, 0.1, 0.2 .. s with jitter.
        assert ending.attempts <= 12


async def test_message_resets_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "_STOOD", 1e9)
    async with scripted() as (broker,):
        broker.log(*range(20))
        for offset in range(20):
            broker.next("Subscribe", answers(HANDSHAKE, message(offset), error=UNAVAILABLE))
        # Without the messages, the pauses of so many losses take longer than this.
        async with client_of([broker], resubscribe_wait=5.0, on_event=lambda event: None) as client:
            assert await read(client, start=0, stop=19) == list(range(20))


async def test_subscription_that_stood_for_a_while_gets_all_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    class NotedDeadline(Deadline):
        def __init__(self, timeout: float) -> None:
            waits.append(timeout)
            super().__init__(timeout)

    monkeypatch.setattr(subscription_module, "_STOOD", 0.0)
    monkeypatch.setattr(subscription_module, "Deadline", NotedDeadline)
    async with scripted() as (broker,):
        broker.log(*range(3))
        for _ in range(20):
            broker.next("Subscribe", answers(HANDSHAKE, error=UNAVAILABLE))
        async with client_of([broker], resubscribe_wait=123.0, on_event=lambda event: None) as client:
            assert await read(client, start=0, stop=2) == [0, 1, 2]
    assert waits.count(123.0) == 20


@pytest.mark.parametrize("error", [UNAVAILABLE, CLEANED, None], ids=["unavailable", "cleaned", "OK"])
async def test_bulk_read_that_ends_at_once_is_given_up(error: RpcError | None) -> None:
    access = Access(reconnect_wait=1.0, timeout=30.0)
    async with scripted() as (broker,):
        broker.log(*range(10, 15))
        broker.next("Subscribe", broker._subscribe)  # looks up where the log begins
        broker.always("Subscribe", answers(HANDSHAKE, error=error))

        def read_all() -> None:
            bulk.read(broker.address, "foo", start=10, stop=15, access=access).read_all()

        with pytest.raises(bulk.ReadLostError, match="not regained in 1 s"):
            await asyncio.to_thread(read_all)
        assert broker.calls["Subscribe"] <= 1 + 12


@pytest.mark.parametrize("limit", [300, 10_000])
async def test_response_headers_are_limited(limit: int) -> None:
    refusal = RpcError(StatusCode.INVALID_ARGUMENT, "x" * 500)
    async with scripted() as (broker,), client_of([broker], max_header_bytes=limit, ack_wait=30.0) as client:
        broker.log(0)
        broker.log(stream="__cursors")
        broker.next("SetCursor", refusal)
        broker.next("Publish", refusal)
        cursor = await raised(client.set_cursor("me", "foo", 0, 1))
        publish = await raised(client.publish("foo", b"x", ack_inbox="acks"))
    assert broker.calls["Publish"] == 1
    if limit == 300:
        # The headers end the connection, so a call that may be repeated is made again over a new one.
        assert (cursor, broker.calls["SetCursor"]) == (None, 2)
        assert isinstance(publish, TransportError)
    else:
        for error in (cursor, publish):
            assert isinstance(error, RpcError)
            assert error.code == StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("excess", [0, 1])
async def test_messages_are_limited(excess: int) -> None:
    """The largest message of the limit's size is read, one of a byte more ends the call."""
    size = len(message(0, value=bytes(5_000)))
    async with scripted() as (broker,):
        broker.log(0)
        broker.always("Subscribe", answers(HANDSHAKE, message(0, value=bytes(5_000)), stay=True))
        async with client_of([broker], max_message_bytes=size - excess) as client:
            if not excess:
                async with client.subscribe("foo", start=0) as messages:
                    found = await messages.next()
                assert found is not None
                assert len(found.value or b"") == 5_000
            else:
                with pytest.raises(RpcError) as caught:
                    await read(client, start=0)
                assert caught.value.code == StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("excess", [0, 1])
async def test_messages_are_limited_in_bulk(excess: int) -> None:
    async with scripted() as (broker,):
        (payload,) = broker.log(0, size=5_000).payloads(0, 0)
        access = Access(max_message_bytes=len(payload) - excess, reconnect_wait=1.0)

        def read_all() -> int:
            return int(bulk.read(broker.address, "foo", start=0, stop=1, access=access).read_all().num_rows)

        if not excess:
            assert await asyncio.to_thread(read_all) == 1
        else:
            with pytest.raises(RpcError, match="max_message_bytes") as caught:
                await asyncio.to_thread(read_all)
            assert caught.value.code == StatusCode.RESOURCE_EXHAUSTED


async def test_little_is_received_at_a_time_while_nothing_is_for_a_call() -> None:
    """256 KiB of empty frames take half a second, in which no time-out would be noticed."""
    settings, unknown = bytes.fromhex("000000040000000000"), bytes.fromhex("000000ff0000000000")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings + unknown)
        with suppress(ConnectionResetError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with await Channel.connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as channel:
        async with asyncio.timeout(60):
            while len(channel._link.get_buffer(-1)) > 16 * 1024:
                await asyncio.sleep(0)
    server.close()
    await server.wait_closed()
