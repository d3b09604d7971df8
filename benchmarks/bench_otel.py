"""Cost of telemetry: processor time of publishing and reading with it off, without an SDK, and with an SDK.

Off means that ``otel.instrument`` was called and taken back: the code is the same as if it never was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import nats
import pytest
from nats.aio.client import Client
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NoOpTracerProvider

from benchmarks import processor_time
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope import otel
from liftenvelope.jetstream import AckPolicy, ConsumerConfig, JetStream, StorageType, StreamConfig
from liftenvelope.nats import AckInbox
from liftenvelope.testing import NatsServer

VALUE = b"x" * 100
PATIENCE = 120.0
Mode = Callable[[], None]


class _Dropped(SpanExporter):
    """Takes spans and keeps none: the cost of sending them is that of the exporter."""

    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class _Providers:
    """Providers of an SDK, made once: they keep threads."""

    def __init__(self) -> None:
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(BatchSpanProcessor(_Dropped(), max_queue_size=2**16))
        self.meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)


@pytest.fixture
def providers() -> Iterator[_Providers]:
    found = _Providers()
    yield found
    found.tracers.shutdown()
    found.meters.shutdown()


@pytest.fixture
def nc(loop: asyncio.Runner, jetstream: NatsServer) -> Iterator[Client]:
    client = loop.run(nats.connect(jetstream.url))
    yield client
    loop.run(client.close())


def _off() -> None:
    otel.instrument()
    otel.uninstrument()


def _no_op() -> None:
    otel.instrument(tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider())


def _sdk(providers: _Providers) -> Mode:
    return lambda: otel.instrument(tracer_provider=providers.tracers, meter_provider=providers.meters)


@contextmanager
def _instrumented(mode: Mode) -> Iterator[None]:
    mode()
    try:
        yield
    finally:
        otel.uninstrument()


def _compare(compare: Comparison, what: str, run: Callable[[Mode], Round], providers: _Providers) -> None:
    compare(
        f"{what}, processor time, telemetry off",
        run(_off),
        Peer("never instrumented", run(lambda: None)),
        Peer("on, no SDK", run(_no_op)),
        Peer("on, SDK, spans and metrics", run(_sdk(providers))),
    )


def test_publish_nowait(compare: Comparison, loop: asyncio.Runner, nc: Client, providers: _Providers) -> None:
    count = compare.amount(10_000, 200)

    async def publish() -> float:
        # Nothing acks: what is timed is the call, and the end of the future.
        async with AckInbox(nc, max_outstanding=count) as inbox:
            before = processor_time.own()
            futures = [inbox.publish_nowait("bench.otel", VALUE, timeout=PATIENCE) for _ in range(count)]
            for future in futures:
                future.cancel()
            await asyncio.sleep(0)
            return (processor_time.own() - before) / count

    def run(mode: Mode) -> Round:
        def one() -> float:
            with _instrumented(mode):
                return loop.run(publish())

        return one

    _compare(compare, "AckInbox.publish_nowait and cancel, 100 B", run, providers)


def test_messages(compare: Comparison, loop: asyncio.Runner, nc: Client, providers: _Providers) -> None:
    count = compare.amount(10_000, 200)

    async def fill() -> None:
        async with JetStream(nc, timeout=PATIENCE) as js:
            await js.create_stream(StreamConfig(name="bench-otel", storage=StorageType.MEMORY))
            with _instrumented(_sdk(providers)):  # so that every message has a context to link
                await asyncio.gather(*[await js.publish_async("bench-otel", VALUE) for _ in range(count)])

    async def read() -> float:
        async with JetStream(nc, timeout=PATIENCE) as js:
            stream = await js.stream("bench-otel")
            config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True)
            consumer = await stream.create_consumer(config)
            number = 0
            async with consumer.messages(max_messages=4_000) as messages:
                before = processor_time.own()
                async for _ in messages:
                    number += 1
                    if number == count:
                        break
                taken = processor_time.own() - before
            await stream.delete_consumer(consumer.name)
            return taken / count

    loop.run(fill())

    def run(mode: Mode) -> Round:
        def one() -> float:
            with _instrumented(mode):
                return loop.run(asyncio.wait_for(read(), PATIENCE))

        return one

    _compare(compare, "JetStream messages(), 100 B", run, providers)
