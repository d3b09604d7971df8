"""Spans and context of publishes, on real servers."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest
from nats.aio.client import Client
from opentelemetry import baggage, context, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from liftenvelope import otel
from liftenvelope.envelope import unmarshal_message
from liftenvelope.errors import (
    AckTimeoutError,
    NoJetStreamError,
    TransportError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.jetstream import Headers, JetStream, StreamConfig
from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.testing import LiftbridgeCluster
from tests.integration.conftest import connect, until

from .recording import Recording


def traceparent(span: Any) -> str:
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


async def stored(js: JetStream, name: str, sequence: int = 1) -> Any:
    return await (await js.stream(name)).get_message(sequence)


async def test_jetstream_publish_makes_a_span_with_the_attributes_of_the_conventions(
    js_nc: Client, recording: Recording, name: str
) -> None:
    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        ack = await js.publish(name, b"hello")
        await until(recording.spans)
        span = recording.one("publish")
        assert span.name == f"publish {name}"
        assert span.kind is SpanKind.PRODUCER
        assert span.status.status_code is StatusCode.UNSET
        url: Any = js_nc.connected_url
        assert dict(span.attributes or {}) == {
            "messaging.system": "nats",
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": name,
            "messaging.message.body.size": 5,
            "server.address": url.hostname,
            "server.port": url.port,
            "liftenvelope.stream": name,
            "liftenvelope.offset": ack.sequence,
        }
        message = await stored(js, name)
        assert dict(message.headers) == {"traceparent": traceparent(span)}


async def test_publish_is_a_child_of_the_current_span(js_nc: Client, recording: Recording, name: str) -> None:
    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        with recording.tracer.start_as_current_span("request") as request:
            await js.publish(name, b"hello")
        await until(lambda: recording.spans("publish"))
        parent = recording.one("publish").parent
        assert parent is not None
        assert parent.span_id == request.get_span_context().span_id


async def test_headers_of_the_user_are_not_changed(js_nc: Client, recording: Recording, name: str) -> None:
    headers: dict[str, str | list[str]] = {"shop": "7", "tag": ["a", "b"]}
    repeated = Headers([("tag", "a"), ("tag", "b")])
    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        await js.publish(name, b"1", headers=headers)
        await js.publish(name, b"2", headers=repeated)
        assert headers == {"shop": "7", "tag": ["a", "b"]}
        assert repeated.pairs == (("tag", "a"), ("tag", "b"))
        for sequence in (1, 2):
            found = (await stored(js, name, sequence)).headers
            assert found.get_all("tag") == ("a", "b")
            assert found["traceparent"].startswith("00-")


@pytest.mark.parametrize("field", ["traceparent", "Traceparent"])
async def test_traceparent_of_the_user_stays_and_is_linked(
    js_nc: Client, recording: Recording, name: str, field: str
) -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        await js.publish(name, b"1", headers={field: given})
        assert dict((await stored(js, name)).headers) == {field: given}
    [link] = recording.one("publish").links
    assert f"{link.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"


async def test_baggage_travels_with_a_message(js_nc: Client, recording: Recording, name: str) -> None:
    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        token = context.attach(baggage.set_baggage("tenant", "blue, green; ü=%0d%0a"))
        try:
            await js.publish(name, b"1")
        finally:
            context.detach(token)
        headers = (await stored(js, name)).headers
    found = W3CBaggagePropagator().extract({"baggage": headers["baggage"]})
    assert baggage.get_baggage("tenant", found) == "blue, green; ü=%0d%0a"


async def test_publish_without_a_stream_ends_its_span_with_the_error(
    js_nc: Client, recording: Recording, name: str
) -> None:
    async with JetStream(js_nc) as js:
        with pytest.raises(NoJetStreamError):
            await js.publish(f"nobody.{name}", b"lost", retry_attempts=0)
    span = recording.one("publish")
    assert (span.attributes or {})["error.type"] == "NoJetStreamError"
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]
    assert recording.total("messaging.client.sent.messages", error_type="NoJetStreamError") == 1
    assert recording.open == 0


async def test_invalid_publish_ends_its_span_and_is_not_counted_as_sent(
    js_nc: Client, recording: Recording, name: str
) -> None:
    async with JetStream(js_nc) as js:
        with pytest.raises(UsageError, match="subject must"):
            await js.publish(f"{name} a", b"")
        with pytest.raises(UsageError):
            await js.publish(name, b"", headers={"a b": "c"})
        with pytest.raises(UsageTypeError):  # the same as without instrumentation
            await js.publish(name, b"", headers=["a"])  # type: ignore[arg-type]
    types = [(span.attributes or {})["error.type"] for span in recording.spans()]
    assert types == ["UsageError", "UsageError", "UsageTypeError"]
    assert recording.open == 0
    assert recording.points("messaging.client.sent.messages") == []


async def test_largest_message_is_published_without_the_context(
    js_nc: Client, recording: Recording, name: str
) -> None:
    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        ack = await js.publish(name, b"x" * js_nc.max_payload)
        assert ack.sequence == 1
        assert not (await stored(js, name)).headers
    assert recording.one("publish").status.status_code is StatusCode.UNSET


async def test_cancelled_publishes_end_their_spans(js_nc: Client, recording: Recording, name: str) -> None:
    await js_nc.subscribe(name)  # takes the message and never acks it
    async with JetStream(js_nc) as js, AckInbox(js_nc) as inbox:
        future = await js.publish_async(name, b"")
        future.cancel()
        ack = inbox.publish_nowait(name, b"")
        ack.cancel()
        task = asyncio.create_task(inbox.publish(name, b""))
        await until(lambda: recording.open == 1)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: recording.open == 0)
    assert [(span.attributes or {})["error.type"] for span in recording.spans()] == ["CancelledError"] * 3


async def test_publishes_at_once_have_their_own_traces(
    js_nc: Client, recording: Recording, name: str
) -> None:
    async def request(js: JetStream, number: int) -> None:
        with recording.tracer.start_as_current_span(f"request {number}"):
            await asyncio.sleep(0)
            await asyncio.gather(*(js.publish(name, b"%d" % number) for _ in range(3)))

    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        await asyncio.gather(*(request(js, number) for number in range(20)))
        await until(lambda: len(recording.spans("publish")) == 60)
        traces = {span.context.trace_id: span.name for span in recording.spans("request") if span.context}
        assert len(traces) == 20
        for sequence in range(1, 61):
            message = await stored(js, name, sequence)
            trace_id = int(message.headers["traceparent"].split("-")[1], 16)
            assert traces[trace_id] == f"request {int(message.data)}"


async def test_ack_inbox_puts_the_context_into_the_envelope(
    lb_nc: Client, liftbridge_server: LiftbridgeCluster, recording: Recording, name: str
) -> None:
    liftbridge_server.create_stream(name)
    seen = await lb_nc.subscribe(name)
    headers = {"unit": b"C"}
    async with AckInbox(lb_nc) as inbox:
        ack = await inbox.publish(name, b"21.5", headers=headers)
        publisher = EnvelopePublisher(lb_nc, name, inbox=inbox)
        await publisher.publish(b"22", headers=headers)
        await EnvelopePublisher(lb_nc, name).publish(b"23")
    await until(lambda: len(recording.spans()) == 3)
    assert headers == {"unit": b"C"}
    for span in recording.spans():
        message = unmarshal_message((await seen.next_msg(timeout=60)).data)
        assert message.headers["traceparent"] == traceparent(span).encode()
    first = recording.spans()[0].attributes or {}
    assert (first["liftenvelope.stream"], first["liftenvelope.offset"]) == (name, ack.offset)


async def test_missing_ack_ends_the_span_with_a_timeout(nc: Client, recording: Recording, name: str) -> None:
    async with AckInbox(nc) as inbox:
        with pytest.raises(AckTimeoutError):
            await inbox.publish(name, b"lost", timeout=0.01)
        await until(recording.spans)
    assert (recording.one("publish").attributes or {})["error.type"] == "AckTimeoutError"


async def test_failed_future_that_nobody_awaits_is_still_reported(
    nc: Client, recording: Recording, name: str
) -> None:
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, found: reported.append(found))
    try:
        async with AckInbox(nc) as inbox:
            future = inbox.publish_nowait(name, b"lost", timeout=0.01)
            await until(recording.spans)
            del future
            await until(lambda: reported)
    finally:
        loop.set_exception_handler(before)
    assert isinstance(reported[0]["exception"], AckTimeoutError)


async def test_later_instrument_replaces_the_providers(
    js_nc: Client, recording: Recording, name: str
) -> None:
    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        await js.publish(name)
        with Recording() as second:
            await js.publish(name)
            await until(second.spans)
            await asyncio.sleep(0)
        assert len(recording.spans()) == len(second.spans()) == 1
        await js.publish(name)
        assert not (await stored(js, name, 3)).headers
    assert len(recording.spans()) == len(second.spans()) == 1


async def test_spans_in_flight_end_after_uninstrument(nc: Client, recording: Recording, name: str) -> None:
    async with AckInbox(nc) as inbox:
        future = inbox.publish_nowait(name, b"")
        otel.uninstrument()
        assert recording.open == 1
        future.cancel()
        await until(lambda: recording.open == 0)


async def test_many_publishes_leave_no_span_open_and_little_memory(js_nc: Client, name: str) -> None:
    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",)))
        with Recording(max_destinations=10) as recording:

            async def publish(count: int) -> None:
                futures = [await js.publish_async(f"{name}.{number}", b"x") for number in range(count)]
                await asyncio.gather(*futures)
                await until(lambda: recording.open == 0)
                recording.clear()
                gc.collect()

            tracemalloc.start()
            await publish(2_000)
            before = tracemalloc.get_traced_memory()[0]
            await publish(2_000)
            grown = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            assert grown < 200_000
            labels = {
                found.get("messaging.destination.name", found.get("messaging.destination.template"))
                for found, _ in recording.points("messaging.client.sent.messages")
            }
    assert len(labels) == 11
    assert "{other}" in labels


async def test_without_an_sdk_nothing_is_added_to_messages(js_nc: Client, name: str) -> None:
    otel.instrument(tracer_provider=trace.NoOpTracerProvider())
    try:
        async with JetStream(js_nc) as js:
            await js.create_stream(StreamConfig(name=name, subjects=(name,)))
            await js.publish(name, b"1")
            assert not (await stored(js, name)).headers
    finally:
        otel.uninstrument()


async def test_nothing_is_recorded_while_instrumentation_is_suppressed(
    js_nc: Client, recording: Recording, name: str
) -> None:
    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        with suppress_instrumentation():
            await js.publish(name, b"1")
        await js.publish(name, b"2")
        await until(recording.spans)
        assert [bool((await stored(js, name, sequence)).headers) for sequence in (1, 2)] == [False, True]
    assert len(recording.spans()) == 1


async def test_same_providers_record_again_after_uninstrument(
    js_nc: Client, recording: Recording, name: str
) -> None:
    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        for number in range(1, 4):
            otel.instrument(tracer_provider=recording.tracers, meter_provider=recording.meters)
            await js.publish(name)
            await until(lambda number=number: len(recording.spans()) == number)  # type: ignore[misc]
            assert recording.total("messaging.client.sent.messages") == number
            otel.uninstrument()
            await js.publish(name)


async def test_outstanding_publishes_are_observed(js_nc: Client, recording: Recording, name: str) -> None:
    metric = "liftenvelope.publish.outstanding"
    await js_nc.subscribe(name)  # takes the messages and never acks them
    async with JetStream(js_nc) as js, AckInbox(js_nc) as inbox:
        waiting = [await js.publish_async(name) for _ in range(3)]
        acks = [inbox.publish_nowait(name, b"") for _ in range(2)]
        values = {found["liftenvelope.publisher"]: value for found, value in recording.points(metric)}
        assert values == {"jetstream": 3, "ack_inbox": 2}
        with Recording() as second:
            assert recording.points(metric) == []
            assert len(second.points(metric)) == 2
        assert second.points(metric) == []
        for future in (*waiting, *acks):
            future.cancel()


async def test_outstanding_publishes_of_subclasses_are_those_of_their_base(
    js_nc: Client, recording: Recording, name: str
) -> None:
    class OwnJetStream(JetStream):
        pass

    class OwnInbox(AckInbox):
        pass

    await js_nc.subscribe(name)  # takes the messages and never acks them
    async with OwnJetStream(js_nc) as js, OwnInbox(js_nc) as inbox:
        waiting = (await js.publish_async(name), inbox.publish_nowait(name, b""))
        points = recording.points("liftenvelope.publish.outstanding")
        values = {found["liftenvelope.publisher"]: value for found, value in points}
        assert values == {"jetstream": 1, "ack_inbox": 1}
        for future in waiting:
            future.cancel()


async def test_key_value_buckets_are_not_recorded(js_nc: Client, recording: Recording, name: str) -> None:
    async with JetStream(js_nc) as js:
        await js.create_stream(StreamConfig(name=f"KV_{name}", subjects=(f"$KV.{name}.>",)))
        await js.publish(f"$KV.{name}.key", b"1")
        assert not (await stored(js, f"KV_{name}")).headers
    assert recording.spans() == []


async def test_own_propagator_is_used(js_nc: Client, name: str) -> None:
    with Recording(propagator=TraceContextTextMapPropagator()):
        async with JetStream(js_nc) as js:
            await js.create_stream(StreamConfig(name=name, subjects=(name,)))
            token = context.attach(baggage.set_baggage("tenant", "blue"))
            try:
                await js.publish(name, b"1")
            finally:
                context.detach(token)
            assert set((await stored(js, name)).headers) == {"traceparent"}


async def test_spans_end_when_the_connection_is_closed(
    jetstream_server: Any, recording: Recording, name: str
) -> None:
    nc = await connect(jetstream_server.url)
    js = JetStream(nc)
    await nc.subscribe(name)  # takes the message and never acks it
    future = await js.publish_async(name, b"")
    await nc.close()
    with pytest.raises(TransportError):
        await future
    with pytest.raises(TransportError):
        await js.publish(name, b"")
    await until(lambda: recording.open == 0)
    assert [(span.attributes or {})["error.type"] for span in recording.spans()] == ["TransportError"] * 2
    assert recording.total("messaging.client.sent.messages") == 1
