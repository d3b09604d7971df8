"""Checks that OpenTelemetry is installed. Without it, the error says which extra to install."""

from liftenvelope._checks import require

require("opentelemetry.trace", "otel")
