"""Serves the Liftbridge API on JetStream, so that Liftbridge clients need only a NATS server."""

from __future__ import annotations

from liftenvelope.gateway._families import Metric, MetricSample
from liftenvelope.gateway._gateway import Gateway
from liftenvelope.gateway._monitoring.readiness import Readiness
from liftenvelope.gateway.limits import Limits

__all__ = ["Gateway", "Limits", "Metric", "MetricSample", "Readiness"]
