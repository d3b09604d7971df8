"""An SDK in memory: what the instrumentation recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from liftenvelope import otel


class _Open(SpanProcessor):
    """Counts the spans that have started and not ended."""

    def __init__(self) -> None:
        self.count = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.count += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.count -= 1


class Recording:
    """Instruments the process, with providers of its own."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self._open = _Open()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracers.add_span_processor(self._open)
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    def __enter__(self) -> Self:
        otel.instrument(tracer_provider=self.tracers, meter_provider=self.meters, **self._options)
        return self

    def __exit__(self, *_: object) -> None:
        otel.uninstrument()
        self.tracers.shutdown()
        self.meters.shutdown()

    @property
    def tracer(self) -> Tracer:
        """A tracer for spans of the application."""
        return self.tracers.get_tracer("application")

    @property
    def open(self) -> int:
        """Number of spans that have not ended."""
        return self._open.count

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """Return the spans that have ended and whose names begin with a text."""
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(name)]

    def one(self, name: str) -> ReadableSpan:
        """Return the only span whose name begins with a text."""
        found = self.spans(name)
        assert len(found) == 1, [span.name for span in self.spans()]
        return found[0]

    def clear(self) -> None:
        """Forget the spans that have ended."""
        self._exporter.clear()

    def points(self, metric: str) -> list[tuple[Mapping[str, Any], Any]]:
        """Return the attributes and the value of each series of a metric: its sum, or its count of values."""
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        return [
            (dict(point.attributes or {}), point.count if hasattr(point, "count") else point.value)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]

    def total(self, metric: str, **attributes: str) -> float:
        """Return the sum of a metric over the series with these attributes; ``_`` stands for a dot."""
        wanted = {name.replace("_", "."): value for name, value in attributes.items()}
        found = self.points(metric)
        return float(sum(value for each, value in found if wanted.items() <= dict(each).items()))
