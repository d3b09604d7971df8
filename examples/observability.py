"""Trace a message from its publisher through JetStream to the code that processes it.

The spans are printed. In earnest, an exporter sends them to a collector; see docs/observability.md.
"""

import asyncio

import nats
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from liftenvelope import otel
from liftenvelope.jetstream import ConsumerConfig, JetStream, Message, StreamConfig
from liftenvelope.testing import run_nats_server


def depth(span: ReadableSpan, spans: dict[int, ReadableSpan]) -> int:
    parent = None if span.parent is None else spans.get(span.parent.span_id)
    return 0 if parent is None else 1 + depth(parent, spans)


async def main(url: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("shop")
    otel.instrument(tracer_provider=provider)

    handled = asyncio.Event()

    async def pack(message: Message) -> None:
        # consume() has started the span "process ORDERS.new". This span is its child.
        with tracer.start_as_current_span("pack"):
            await asyncio.sleep(0.01)
        message.ack()
        handled.set()

    nc = await nats.connect(url)
    async with JetStream(nc) as js:
        stream = await js.create_stream(StreamConfig(name="ORDERS", subjects=("ORDERS.*",)))
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="packing"))
        with tracer.start_as_current_span("checkout"):
            await js.publish("ORDERS.new", b"two apples")
        async with await consumer.consume(pack):
            await handled.wait()
    await nc.close()
    otel.uninstrument()

    spans = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context}
    for span in sorted(spans.values(), key=lambda span: span.start_time or 0):
        print("  " * depth(span, spans) + span.name)


if __name__ == "__main__":
    with run_nats_server(jetstream=True) as server:
        asyncio.run(main(server.url))
