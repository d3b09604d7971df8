"""Spans of the Liftbridge client, and traces from end to end through the gateway and groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nats.aio.client import Client
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

import liftenvelope
from liftenvelope import otel
from liftenvelope.client import OutgoingMessage
from liftenvelope.client.options import MAX_REQUEST
from liftenvelope.errors import MessageTooLargeError, NoSuchStreamError, UsageError
from liftenvelope.group import Coordinator, GroupConsumer, JetStreamTopic, LiftbridgeTopic, Topic
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.nats import AckInbox
from liftenvelope.nats.closing import close_connection
from liftenvelope.testing import FaultProxy, GatewayCluster, run_gateway, run_nats_server
from tests.integration.conftest import connect, until

from .recording import Recording


@pytest.fixture
async def client(gateway_server: GatewayCluster) -> AsyncIterator[liftenvelope.Client]:
    async with liftenvelope.connect(gateway_server.addresses) as found:
        yield found


@pytest.fixture
async def gw_nc(gateway_server: GatewayCluster) -> AsyncIterator[Client]:
    found = await connect(gateway_server.nats_url)
    yield found
    await close_connection(found)


def trace_of(span: ReadableSpan) -> int:
    found = span.get_span_context()
    assert found is not None
    return found.trace_id


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.trace_id for link in span.links]


async def test_client_publish_and_subscribe_are_recorded(
    client: liftenvelope.Client, recording: Recording, name: str
) -> None:
    await client.create_stream(name, name)
    headers = {"shop": b"7"}
    ack = await client.publish(name, b"one", headers=headers)
    assert ack is not None
    await (await client.publish_async(name, b"two"))
    await client.publish_to_subject(name, b"three")
    assert headers == {"shop": b"7"}
    await until(lambda: len(recording.spans("publish")) == 3)
    published = recording.spans("publish")
    found = dict(published[0].attributes or {})
    assert found["messaging.system"] == "nats"
    assert found["messaging.destination.name"] == name
    assert (found["liftenvelope.stream"], found["liftenvelope.offset"]) == (name, ack.offset)
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        async for message in messages:
            with otel.process(message):
                pass
    assert [linked(span) for span in recording.spans("receive")] == [[trace_of(span)] for span in published]
    assert [trace_of(span) for span in recording.spans("process")] == [trace_of(span) for span in published]
    assert recording.spans("process")[0].kind is SpanKind.CONSUMER
    assert recording.total("messaging.client.consumed.messages") == 3


async def test_lists_of_a_subscription_have_one_span_each(
    client: liftenvelope.Client, recording: Recording, name: str
) -> None:
    await client.create_stream(name, name)
    for _ in range(4):
        await client.publish(name, b"x")
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        async for batch in messages.batches(10, max_wait=60):
            assert len(batch) == 4
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        async for rows in messages.arrow_batches(10, max_wait=60):
            assert rows.num_rows == 4
    first, second = recording.spans("receive")
    assert linked(first) == [trace_of(span) for span in recording.spans("publish")]
    assert linked(second) == []
    assert {(span.attributes or {})["messaging.batch.message_count"] for span in (first, second)} == {4}


async def test_publish_many_has_one_span_for_all_messages(
    client: liftenvelope.Client, recording: Recording, name: str
) -> None:
    await client.create_stream(name, name)
    own = OutgoingMessage(value=b"c", headers={"shop": b"7"})
    with recording.tracer.start_as_current_span("job") as job:
        many = client.publish_many(name, [b"a", (b"k", b"b"), own])
        summary = await many
    assert summary.ok
    span = recording.one("publish")
    assert span.parent is not None
    assert span.parent.span_id == job.get_span_context().span_id
    assert (span.attributes or {})["messaging.batch.message_count"] == 3
    assert recording.total("messaging.client.sent.messages") == 3
    assert own.headers == {"shop": b"7"}
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        found = [message async for message in messages]
    assert [(one.value, one.key) for one in found] == [(b"a", b""), (b"b", b"k"), (b"c", b"")]
    assert found[2].headers["shop"] == b"7"
    assert {one.headers["traceparent"].split(b"-")[1] for one in found} == {b"%032x" % trace_of(span)}


async def test_message_of_the_largest_size_is_published_without_the_context(
    client: liftenvelope.Client, recording: Recording, name: str
) -> None:
    await client.create_stream(name, name)
    largest = await _largest(client, name)
    recording.clear()
    await client.publish(name, bytes(largest))
    await client.publish_to_subject(name, bytes(largest - 20))
    with pytest.raises(MessageTooLargeError):
        await client.publish(name, bytes(largest + 1))
    assert recording.open == 0
    kinds = [(span.attributes or {}).get("error.type") for span in recording.spans("publish")]
    assert kinds == [None, None, "MessageTooLargeError"]
    async with client.subscribe(name, start="latest", stop="latest") as messages:
        [message] = [message async for message in messages]
    assert (len(message.value), "traceparent" in message.headers) == (largest - 20, False)


async def _largest(client: liftenvelope.Client, stream: str) -> int:
    """Return the size of the largest value that a server takes, found without telemetry."""
    low, high = 0, 2 << 20
    with suppress_instrumentation():
        while low < high:
            middle = (low + high + 1) // 2
            try:
                await client.publish(stream, bytes(middle))
            except MessageTooLargeError:
                high = middle - 1
            else:
                low = middle
    return low


async def test_request_of_the_largest_size_is_published_without_the_context(
    recording: Recording, name: str
) -> None:
    limits = {"max_message_bytes": 5 << 20}
    with (
        run_nats_server(jetstream=True, max_payload=8 << 20) as server,
        run_gateway(nats_server=server, config={"limits": limits}) as gateway,
    ):
        async with liftenvelope.connect(gateway.addresses, max_message_bytes=5 << 20) as client:
            await client.create_stream(name, name)
            value = bytes(MAX_REQUEST - 60 - len(name))  # no room for a traceparent
            with suppress_instrumentation():
                await client.publish_many(name, [value])
            await client.publish_many(name, [value, b"small", (b"key", value[3:])])
            await (await client.publish_async(name, value))
            async with client.subscribe(name, start="earliest", stop="latest") as messages:
                found = ["traceparent" in message.headers async for message in messages]
    assert found == [False, False, True, False, False]


async def test_publish_many_of_an_async_iterable_and_its_acks(
    client: liftenvelope.Client, recording: Recording, name: str
) -> None:
    async def source() -> AsyncIterator[bytes]:
        for number in range(5):
            yield b"%d" % number

    await client.create_stream(name, name)
    acks = [ack async for ack in client.publish_many(name, source())]
    assert len(acks) == 5
    assert recording.one("publish").status.is_unset
    assert recording.total("messaging.client.sent.messages") == 5


async def test_failed_publish_many_ends_its_span(
    client: liftenvelope.Client, recording: Recording, name: str
) -> None:
    with pytest.raises(NoSuchStreamError):
        await client.publish_many(name, [b"a"])
    assert (recording.one("publish").attributes or {})["error.type"] == "NoSuchStreamError"
    await client.create_stream(name, name)
    recording.clear()

    def broken() -> Any:
        yield b"a"
        raise KeyError("b")

    with pytest.raises(KeyError):
        await client.publish_many(name, broken())
    assert (recording.one("publish").attributes or {})["error.type"] == "KeyError"
    recording.clear()
    with pytest.raises(UsageError):
        await client.publish_many(name, "text")  # type: ignore[arg-type]
    assert recording.open == 0


async def test_publish_many_that_is_left_early_ends_its_span(
    client: liftenvelope.Client, recording: Recording, name: str
) -> None:
    await client.create_stream(name, name)
    many = client.publish_many(name, [b"a"] * 100, max_in_flight=1)
    async for _ in many:
        break
    assert recording.open == 1
    await many.aclose()
    assert recording.open == 0
    task = asyncio.ensure_future(_all(client.publish_many(name, _endless())))
    await until(lambda: recording.open == 1)
    task.cancel()
    await asyncio.wait([task])
    assert recording.open == 0


async def _endless() -> AsyncIterator[bytes]:
    while True:
        yield b"a"
        await asyncio.sleep(0.001)


async def _all(many: Any) -> None:
    await many


async def test_failed_client_publishes_end_their_spans(
    client: liftenvelope.Client, recording: Recording, name: str
) -> None:
    with pytest.raises(NoSuchStreamError):
        await client.publish(name, b"")
    with pytest.raises(NoSuchStreamError):
        await client.publish_async(name, b"")
    assert [(span.attributes or {})["error.type"] for span in recording.spans()] == ["NoSuchStreamError"] * 2
    assert recording.open == 0


def test_blocking_client_is_recorded_in_the_trace_of_the_caller(
    gateway_server: GatewayCluster, recording: Recording, name: str
) -> None:
    with liftenvelope.connect_blocking(gateway_server.addresses) as client:
        client.create_stream(name, name)
        with recording.tracer.start_as_current_span("request") as request:
            client.publish(name, b"one")
        with client.subscribe(name, start="earliest", stop="latest") as messages:
            for message in messages:
                with otel.process(message):
                    pass
    traces = {trace_of(span) for span in (recording.one("publish"), recording.one("process"))}
    assert traces == {request.get_span_context().trace_id}
    assert linked(recording.one("receive")) == [request.get_span_context().trace_id]


async def test_trace_goes_from_an_envelope_through_the_gateway_to_a_subscription(
    gw_nc: Client, client: liftenvelope.Client, recording: Recording, name: str
) -> None:
    await client.create_stream(name, name)
    async with AckInbox(gw_nc, timeout=60) as inbox:
        with recording.tracer.start_as_current_span("request") as request:
            await inbox.publish(name, b"21.5", headers={"unit": b"C"})
    async with client.subscribe(name, start="earliest", stop="latest") as messages:
        async for message in messages:
            assert message.headers["unit"] == b"C"
            with otel.process(message):
                pass
    spans = [recording.one("publish"), recording.one("process")]
    assert {trace_of(span) for span in spans} == {request.get_span_context().trace_id}
    assert spans[1].parent is not None
    assert spans[1].parent.span_id == spans[0].get_span_context().span_id  # type: ignore[union-attr]


async def test_trace_goes_from_the_gateway_to_members_of_its_groups(
    gw_nc: Client, client: liftenvelope.Client, recording: Recording, name: str
) -> None:
    await client.create_stream(name, name)
    async with AckInbox(gw_nc, timeout=60) as inbox:
        await inbox.publish(name, b"21.5")
    async with client.consumer(f"g-{name}", [name], auto_offset="earliest") as consumer:
        message = await anext(consumer)
        with otel.process(message, group=consumer.group):
            pass
    published, received = recording.one("publish"), recording.one("receive")
    assert linked(received) == [trace_of(published)]
    assert trace_of(recording.one("process")) == trace_of(published)
    assert (received.attributes or {})["messaging.consumer.group.name"] == f"g-{name}"


async def test_trace_goes_through_a_group_over_nats(
    gw_nc: Client, client: liftenvelope.Client, recording: Recording, name: str
) -> None:
    await client.create_stream(name, name)
    async with JetStream(gw_nc) as js, Coordinator(gw_nc), AckInbox(gw_nc, timeout=60) as inbox:
        await js.create_stream(StreamConfig(name=f"J-{name}", subjects=(f"j.{name}",)))
        await js.publish(f"j.{name}", b"one")
        await inbox.publish(name, b"two")
        topics: list[Topic] = [
            JetStreamTopic.of_stream(f"J-{name}", [f"j.{name}"]),
            LiftbridgeTopic(client, name, 1),
        ]
        async with GroupConsumer(gw_nc, f"g-{name}", topics, auto_offset="earliest", timeout=60) as consumer:
            message = await anext(consumer)
            with otel.process(message, group=consumer.group):
                pass
            async for message in consumer:
                with otel.process(message, group=consumer.group):
                    break
        async with GroupConsumer(gw_nc, f"h-{name}", topics, auto_offset="earliest", timeout=60) as consumer:
            count = 0
            async for messages in consumer.batches(max_wait=1):
                count += len(messages)
                if count == 2:
                    break
    published = {trace_of(span) for span in recording.spans("publish")}
    assert len(recording.spans("publish")) == 2  # and none of the coordinator's own writes
    assert {trace_of(span) for span in recording.spans("process")} == published
    received = recording.spans("receive")
    assert len(received) == 4
    assert {trace for span in received for trace in linked(span)} == published
    assert {span.name for span in received} == {f"receive J-{name}", f"receive {name}"}


async def test_outstanding_publishes_of_a_client_are_observed(
    gateway_server: GatewayCluster, recording: Recording, name: str
) -> None:
    metric = "liftenvelope.publish.outstanding"
    address = gateway_server.addresses[0]
    with FaultProxy(address) as proxy:
        async with liftenvelope.connect(proxy.address, address_map={address: proxy.address}) as client:
            await client.create_stream(name, name)
            await (await client.publish_async(name, b"0"))
            assert recording.total(metric, liftenvelope_publisher="liftbridge") == 0
            proxy.stall()
            waiting = [await client.publish_async(name, b"1") for _ in range(3)]
            assert client.publish_async_pending == 3
            assert recording.total(metric, liftenvelope_publisher="liftbridge") == 3
            proxy.resume()
            await asyncio.gather(*waiting)
            assert recording.total(metric, liftenvelope_publisher="liftbridge") == 0


@pytest.mark.parametrize("partition", [0, "all"])
async def test_buffered_messages_of_a_subscription_are_observed(
    client: liftenvelope.Client, recording: Recording, name: str, partition: Any
) -> None:
    metric = "liftenvelope.consumer.buffered"
    await client.create_stream(name, name, partitions=2)
    for number in range(5):
        await client.publish(name, b"%d" % number, partition=0)
    async with client.subscribe(name, partition=partition, start="earliest") as messages:
        await anext(messages)
        await until(lambda: messages.buffered == 4)
        assert recording.total(metric, liftenvelope_reader="liftbridge") == 4
