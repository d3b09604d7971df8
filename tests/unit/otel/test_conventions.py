"""Our names beside those of the package that OpenTelemetry generates from its conventions."""

from __future__ import annotations

from opentelemetry.propagate import get_global_textmap
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.semconv.schemas import Schemas

from liftenvelope.otel import _conventions
from liftenvelope.otel._destinations import Destinations, default_template
from liftenvelope.otel._propagation import Propagation
from liftenvelope.otel._telemetry import Telemetry, TelemetryOptions, _Instruments

#: Metrics that the conventions have replaced by others.
DEPRECATED = {
    "messaging.client.published.messages",
    "messaging.process.messages",
    "messaging.publish.duration",
    "messaging.publish.messages",
    "messaging.receive.duration",
    "messaging.receive.messages",
}


def names_in(module: object) -> set[str]:
    return {value for value in vars(module).values() if isinstance(value, str)}


def test_attributes_are_those_of_the_conventions() -> None:
    ours = {name for name in names_in(_conventions) if name.startswith(("messaging.", "server.", "error."))}
    assert "messaging.destination.name" in ours
    assert ours <= names_in(messaging_attributes) | names_in(server_attributes) | names_in(error_attributes)


def test_operation_types_are_those_of_the_conventions() -> None:
    known = {kind.value for kind in messaging_attributes.MessagingOperationTypeValues}
    ours = {found.type for found in vars(_conventions).values() if isinstance(found, _conventions.Operation)}
    assert ours == {"send", "receive", "process", "settle"}
    assert ours <= known - {"publish", "deliver"}  # these two are deprecated


def test_schema_is_one_that_was_published() -> None:
    """The oldest package that is supported knows only schemas before ours."""
    known = {version_of(found.value) for found in Schemas}
    ours = version_of(_conventions.SCHEMA_URL)
    assert ours in known or ours > max(known)


def version_of(schema: str) -> tuple[int, ...]:
    base, _, version = schema.rpartition("/")
    assert base == "https://opentelemetry.io/schemas"
    return tuple(int(part) for part in version.split("."))


def test_metrics_are_those_of_the_conventions_and_say_their_schema() -> None:
    reader = InMemoryMetricReader()
    instruments = _Instruments(MeterProvider([reader], shutdown_on_exit=False))
    for histogram in (instruments.duration, instruments.process):
        histogram.record(1.0)
    for counter in (instruments.sent, instruments.consumed, instruments.redelivered):
        counter.add(1)
    instruments.lag.set(1)
    data = reader.get_metrics_data()
    assert data is not None
    [scope] = data.resource_metrics[0].scope_metrics
    assert scope.schema_url == _conventions.SCHEMA_URL
    ours = {metric.name for metric in scope.metrics}
    current = names_in(messaging_metrics) - DEPRECATED
    assert {name for name in ours if name.startswith("messaging.")} <= current
    assert "messaging.client.consumed.messages" in ours
    assert ours - current == {
        "liftenvelope.client.redelivered.messages",
        "liftenvelope.consumer.lag",
    }


def test_spans_say_their_schema() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    options = TelemetryOptions(
        tracer_provider=provider,
        meter_provider=None,
        destinations=Destinations(default_template, 1),
        propagation=Propagation(get_global_textmap()),
        receive_spans=True,
        settle_spans=False,
        process_parent=True,
        max_links=1,
    )
    telemetry = Telemetry(options)
    telemetry.start(telemetry.scene(_conventions.PUBLISH, "orders"), {}).end()
    [span] = exporter.get_finished_spans()
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.schema_url == _conventions.SCHEMA_URL
