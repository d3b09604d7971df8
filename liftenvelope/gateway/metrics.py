"""Collector of a gateway's metrics for prometheus_client; it needs the extra ``http``.

Register a collector with the registry that your program exposes. Use one registry for each gateway, or the
names of the metrics occur twice. Read the registry in the thread of the gateway's event loop, for example in
a handler of aiohttp::

    registry = CollectorRegistry()
    registry.register(GatewayCollector(gateway))

    async def metrics(request):
        await gateway.refresh_metrics()
        return web.Response(body=generate_latest(registry), content_type="text/plain")
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from liftenvelope._checks import require
from liftenvelope.gateway._families import Metric
from liftenvelope.gateway._gateway import Gateway

require("prometheus_client", "http")

from prometheus_client import metrics_core as core  # noqa: E402 - after require(), which names the extra

__all__ = ["GatewayCollector", "exposed"]


class GatewayCollector:
    """Reads the metrics of a gateway whenever a registry of prometheus_client is read.

    Args:
        gateway: The gateway, started or not.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[core.Metric]:
        """Yield all metrics with their present values."""
        return map(exposed, self._gateway.metrics())


def _text(bound: float) -> str:
    return str(bound) if math.isfinite(bound) else "+Inf"


def exposed(metric: Metric) -> core.Metric:
    """Return a metric as prometheus_client has it."""
    if metric.kind == "histogram":
        histogram = core.HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, total, buckets in metric.samples:
            counts = [(_text(bound), float(count)) for bound, count in buckets]
            histogram.add_metric(labels, counts, total)
        return histogram
    if metric.kind == "counter":
        counter = core.CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value, _ in metric.samples:
            counter.add_metric(labels, value)
        return counter
    gauge = core.GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value, _ in metric.samples:
        gauge.add_metric(labels, value)
    return gauge
