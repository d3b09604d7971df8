"""Spans, metrics and trace context for OpenTelemetry. See docs/observability.md.

:func:`instrument` switches them on for the process, :func:`uninstrument` off. :func:`process` makes the span
of processing a message. The package needs ``opentelemetry-api`` alone; without an SDK nothing is recorded.
"""

# Imported first: without OpenTelemetry, its error says which extra to install.
from liftenvelope.otel import _api as _api
from liftenvelope.otel._instrumenting import (
    LiftEnvelopeInstrumentor,
    instrument,
    is_instrumented,
    uninstrument,
)
from liftenvelope.otel._processing import process

__all__ = ["LiftEnvelopeInstrumentor", "instrument", "is_instrumented", "process", "uninstrument"]
