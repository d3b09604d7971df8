"""Spans of fetches, iterations and handlers of JetStream consumers, on a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from liftenvelope import otel
from liftenvelope.envelope import new_message
from liftenvelope.errors import CallTimeoutError, ConsumerDeletedError, UsageError
from liftenvelope.jetstream import Consumer, ConsumerConfig, JetStream, Message, StreamConfig
from liftenvelope.jetstream.message import Recorder
from liftenvelope.nats import accelerate
from tests.integration.conftest import until

from .recording import Recording


async def filled(js: JetStream, name: str, count: int) -> Consumer:
    """A durable consumer of a stream with so many messages."""
    stream = await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",)))
    for number in range(count):
        await js.publish(f"{name}.new", b"%d" % number)
    return await stream.create_consumer(ConsumerConfig(durable_name="packing"))


def ids(span: ReadableSpan) -> tuple[int, int]:
    found = span.get_span_context()
    assert found is not None
    return found.trace_id, found.span_id


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


async def test_consume_processes_in_the_trace_of_the_publish(
    js_nc: Client, recording: Recording, name: str
) -> None:
    handled = asyncio.Event()

    async def handle(message: Message) -> None:
        with recording.tracer.start_as_current_span("work"):
            await asyncio.sleep(0)
        message.ack()
        handled.set()

    async with JetStream(js_nc) as js:
        consumer = await filled(js, name, 1)
        async with await consumer.consume(handle):
            await handled.wait()
    [published], [processed], [work] = map(recording.spans, ("publish", "process", "work"))
    assert processed.kind is SpanKind.CONSUMER
    assert processed.parent is not None
    assert (processed.parent.trace_id, processed.parent.span_id) == ids(published)
    assert links(processed) == [ids(published)]
    assert work.parent is not None
    assert (work.parent.trace_id, work.parent.span_id) == ids(processed)
    found = dict(processed.attributes or {})
    assert found["messaging.consumer.group.name"] == "packing"
    assert found["messaging.destination.name"] == f"{name}.new"
    assert found["messaging.operation.type"] == "process"
    assert recording.total("messaging.process.duration") == 1
    assert recording.total("messaging.client.consumed.messages") == 1


async def test_plain_handler_is_called_within_the_span(
    js_nc: Client, recording: Recording, name: str
) -> None:
    seen: list[trace.SpanContext] = []

    def handle(message: Message) -> None:
        seen.append(trace.get_current_span().get_span_context())
        message.ack()

    async with JetStream(js_nc) as js:
        consumer = await filled(js, name, 3)
        async with await consumer.consume(handle):
            await until(lambda: len(seen) == 3)
    assert [ids(span)[1] for span in recording.spans("process")] == [found.span_id for found in seen]
    assert recording.open == 0


async def test_failed_handler_is_recorded_and_ends_the_consumption(
    js_nc: Client, recording: Recording, name: str
) -> None:
    async def handle(message: Message) -> None:
        raise KeyError(message.subject)

    async with JetStream(js_nc) as js:
        consumer = await filled(js, name, 1)
        consumption = await consumer.consume(handle)
        with pytest.raises(KeyError):
            await consumption.closed()
    span = recording.one("process")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "KeyError"
    assert recording.total("messaging.process.duration", error_type="KeyError") == 1


async def test_fetch_links_the_spans_that_published_its_messages(
    js_nc: Client, recording: Recording, name: str
) -> None:
    async with JetStream(js_nc) as js:
        consumer = await filled(js, name, 5)
        assert len(await consumer.fetch(5, expires=60)) == 5
        assert await consumer.fetch_no_wait(5) == []
    span = recording.one("fetch")
    assert span.name == f"fetch {name}"
    assert span.kind is SpanKind.CLIENT
    assert (span.attributes or {})["messaging.batch.message_count"] == 5
    assert links(span) == [ids(published) for published in recording.spans("publish")]
    assert recording.total("messaging.client.consumed.messages") == 5
    assert recording.total("messaging.client.operation.duration", messaging_operation_name="fetch") == 2


async def test_links_of_a_batch_are_limited(js_nc: Client, name: str) -> None:
    with Recording(max_links=2) as recording:
        async with JetStream(js_nc) as js:
            consumer = await filled(js, name, 5)
            await consumer.fetch(5, expires=60)
        assert len(recording.one("fetch").links) == 2


@pytest.mark.parametrize("accelerated", [False, True])
async def test_iteration_records_each_message(
    js_nc: Client, recording: Recording, name: str, accelerated: bool
) -> None:
    if accelerated:
        accelerate(js_nc)
    async with JetStream(js_nc) as js:
        consumer = await filled(js, name, 4)
        async with consumer.messages() as messages:
            async for message in messages:
                message.ack()
                if message.data == b"2":
                    break
            assert (await messages.next(timeout=60)).data == b"3"
    spans = recording.spans("receive")
    assert [links(span) for span in spans] == [[ids(published)] for published in recording.spans("publish")]
    assert {(span.attributes or {})["messaging.consumer.group.name"] for span in spans} == {"packing"}
    assert recording.total("messaging.client.consumed.messages") == 4


async def test_next_records_its_message_and_a_timeout_makes_no_span(
    js_nc: Client, recording: Recording, name: str
) -> None:
    async with JetStream(js_nc) as js:
        consumer = await filled(js, name, 1)
        await consumer.next(timeout=60)
        with pytest.raises(CallTimeoutError):
            await consumer.next(timeout=0.01)
    assert len(recording.spans("receive")) == 1
    duration = "messaging.client.operation.duration"
    assert recording.total(duration, error_type="CallTimeoutError") == 1


async def test_failed_fetch_makes_a_span_with_the_error(
    js_nc: Client, recording: Recording, name: str
) -> None:
    async with JetStream(js_nc) as js:
        consumer = await filled(js, name, 0)
        task = asyncio.create_task(consumer.fetch(1, expires=60))
        await until(lambda: consumer.cached_info)
        while not (await consumer.info()).num_waiting:
            await asyncio.sleep(0.01)
        await js.delete_consumer(name, "packing")
        with pytest.raises(ConsumerDeletedError):
            await task
    span = recording.one("fetch")
    assert (span.attributes or {})["error.type"] == "ConsumerDeletedError"


async def test_ordered_consumer_is_recorded(js_nc: Client, recording: Recording, name: str) -> None:
    async with JetStream(js_nc) as js:
        await filled(js, name, 3)
        ordered = (await js.stream(name)).ordered_consumer()
        assert len(await ordered.fetch(2, expires=60)) == 2
        async with (await js.stream(name)).ordered_consumer().messages() as messages:
            await messages.next(timeout=60)
    assert len(recording.one("fetch").links) == 2
    received = recording.one("receive")
    assert received.name == f"receive {name}"
    assert "messaging.consumer.group.name" not in (received.attributes or {})


async def test_process_continues_the_trace_of_a_message(
    js_nc: Client, recording: Recording, name: str
) -> None:
    async with JetStream(js_nc) as js:
        token = context.attach(baggage.set_baggage("tenant", "blue"))
        try:
            consumer = await filled(js, name, 1)
        finally:
            context.detach(token)
        message = await consumer.next(timeout=60)
        with otel.process(message, group="packing") as span:
            span.set_attribute("order", 17)
            assert trace.get_current_span() is span
            assert baggage.get_baggage("tenant") == "blue"
        assert not trace.get_current_span().get_span_context().is_valid
    published, processed = recording.one("publish"), recording.one("process")
    assert ids(processed)[0] == ids(published)[0]
    assert (processed.attributes or {})["order"] == 17
    assert (processed.attributes or {})["messaging.consumer.group.name"] == "packing"


async def test_process_of_a_list_links_its_messages(js_nc: Client, recording: Recording, name: str) -> None:
    async with JetStream(js_nc) as js:
        consumer = await filled(js, name, 3)
        batch = await consumer.fetch(3, expires=60)
        with recording.tracer.start_as_current_span("job") as job, otel.process(batch):
            pass
        with pytest.raises(UsageError), otel.process([]):
            pass
    processed = recording.one("process")
    assert processed.parent is not None
    assert processed.parent.span_id == job.get_span_context().span_id
    assert links(processed) == [ids(span) for span in recording.spans("publish")]


async def test_process_is_a_child_of_the_current_span_on_request(js_nc: Client, name: str) -> None:
    with Recording(process_parent=False) as recording:
        async with JetStream(js_nc) as js:
            consumer = await filled(js, name, 1)
            message = await consumer.next(timeout=60)
            with recording.tracer.start_as_current_span("job") as job, otel.process(message):
                pass
        processed = recording.one("process")
        assert processed.parent is not None
        assert processed.parent.span_id == job.get_span_context().span_id
        assert links(processed) == [ids(recording.one("publish"))]


async def test_context_in_an_envelope_is_found(js_nc: Client, recording: Recording, name: str) -> None:
    given = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with JetStream(js_nc) as js:
        consumer = await filled(js, name, 0)
        await js_nc.publish(f"{name}.new", new_message(b"21.5", headers={"traceparent": given}))
        with otel.process(await consumer.next(timeout=60)):
            pass
    assert ids(recording.one("process"))[0] == 0x0AF7651916CD43DD8448EB211C80319C


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "00-zz-1-01"},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        {"traceparent": "x" * 10_000, "tracestate": "=,=,", "baggage": "%%%;;=,=" * 1_000},
        {"Traceparent": "ü", "baggage": "a=" + "b" * 20_000},
    ],
)
async def test_malformed_context_is_ignored(
    js_nc: Client, recording: Recording, name: str, headers: dict[str, Any]
) -> None:
    async with JetStream(js_nc) as js:
        consumer = await filled(js, name, 0)
        await js_nc.publish(f"{name}.new", b"", headers=headers)
        message = await consumer.next(timeout=60)
        with otel.process(message):
            pass
    assert recording.one("process").links == ()
    assert recording.one("receive").links == ()


async def test_acks_have_spans_on_request(js_nc: Client, name: str) -> None:
    with Recording(settle_spans=True) as recording:
        async with JetStream(js_nc) as js:
            consumer = await filled(js, name, 4)
            first, second, third, fourth = await consumer.fetch(4, expires=60)
            first.ack()
            second.nak(delay=60)
            third.term("broken")
            await fourth.ack_sync(timeout=60)
            with pytest.raises(UsageError):
                first.ack()
        settled = [span for span in recording.spans() if span.name.split()[0] in ("ack", "nak", "term")]
        assert [span.name.split()[0] for span in settled] == ["ack", "nak", "term", "ack", "ack"]
        assert links(settled[0]) == [ids(recording.spans("publish")[0])]
        assert (settled[4].attributes or {})["error.type"] == "UsageError"


async def test_receive_spans_can_be_left_out(js_nc: Client, name: str) -> None:
    with Recording(receive_spans=False) as recording:
        async with JetStream(js_nc) as js:
            consumer = await filled(js, name, 2)
            await consumer.next(timeout=60)
            await consumer.fetch(1, expires=60)
        assert len(recording.spans()) == 2
        assert recording.total("messaging.client.consumed.messages") == 2


async def test_redeliveries_and_lag_of_a_consumer(js_nc: Client, recording: Recording, name: str) -> None:
    metric = "liftenvelope.client.redelivered.messages"
    async with JetStream(js_nc) as js:
        consumer = await filled(js, name, 5)
        for message in await consumer.fetch(2):
            message.nak()
        assert recording.points(metric) == []
        attributes = {
            "messaging.system": "nats",
            "messaging.destination.name": name,
            "messaging.consumer.group.name": "packing",
        }
        assert recording.points("liftenvelope.consumer.lag") == [(attributes, 3)]
        again = 0
        while again < 2:
            for message in await consumer.fetch(1):
                again += message.metadata.num_delivered == 2
                message.ack()
        assert recording.total(metric, messaging_operation_name="fetch") == 2
        await js.publish(f"{name}.new")
        async with await consumer.consume(Message.ack):
            await until(lambda: recording.points("liftenvelope.consumer.lag") == [(attributes, 0)])


async def test_messages_made_by_the_application_have_no_lag(recording: Recording) -> None:
    with otel.process(Message("a", "reply", b"1", None, Recorder())):
        pass
    assert recording.points("liftenvelope.consumer.lag") == []


async def test_buffered_messages_are_observed(js_nc: Client, recording: Recording, name: str) -> None:
    metric = "liftenvelope.consumer.buffered"
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        began.set()
        await goes_on.wait()

    def counted() -> dict[str, int]:
        return {found["liftenvelope.reader"]: value for found, value in recording.points(metric)}

    async with JetStream(js_nc) as js:
        consumer = await filled(js, name, 5)
        async with consumer.messages() as messages:
            message = await messages.next()
            await until(lambda: counted() == {"jetstream": 4})
            assert messages.buffered == 4
            message.ack()
            messages.stop(nak=True)
        async with await consumer.consume(handle) as consumption:
            await began.wait()
            await until(lambda: consumption.buffered == 3)
            assert counted() == {"jetstream": 3}
            goes_on.set()
