"""The metrics of a gateway, as data that no monitoring library defines.

:data:`FAMILIES` is the list of all metrics. docs/operating.md has a row for each of them. Most are read from
counts that the parts of the gateway keep anyway, so metrics that nobody reads cost next to nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from liftenvelope._checks import is_encodable
from liftenvelope._version import __version__
from liftenvelope.gateway._monitoring.readiness import CONDITIONS
from liftenvelope.gateway._partitions.feed import budget_of

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftenvelope.gateway._clients.counts import PublishCounts
    from liftenvelope.gateway._lifecycle.running import Running
    from liftenvelope.gateway._monitoring.readiness import Readiness
    from liftenvelope.gateway.limits import Limits

__all__ = ["FAMILIES", "PREFIX", "Metric", "MetricFamily", "MetricSample", "MetricSource", "read_metrics"]

#: Beginning of all names.
PREFIX: Final = "liftenvelope_gateway_"
#: Limits whose use is a metric.
_LIMITS: Final = ("max_connections", "max_calls", "max_unread_bytes", "max_unsent_bytes", "max_metric_labels")


class MetricSample(NamedTuple):
    """Value of a metric for one set of labels.

    Attributes:
        labels: Values of the labels, in the order of the metric's labels.
        value: The value; of a histogram, the sum of its observations.
        buckets: Of a histogram, the upper bounds with the number of observations up to each. The last bound
            is infinite.
    """

    labels: tuple[str, ...]
    value: float
    buckets: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its present values.

    Attributes:
        name: Name, with the unit and, for a counter, ``_total`` at its end.
        kind: ``counter``, ``gauge`` or ``histogram``.
        help: Meaning, in a sentence.
        labels: Names of the labels.
        samples: Values. Empty if there is none now.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    samples: list[MetricSample]


class MetricSource(NamedTuple):
    """The parts of a gateway that metrics are read from. ``running`` is None unless the gateway runs."""

    id: str
    limits: Limits
    readiness: Readiness
    connections: dict[str, Client]
    running: Running | None


_Samples = Iterable[MetricSample]


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """Definition of a metric: see :class:`Metric`. Exactly one of both functions is given.

    Attributes:
        name: Name without the prefix.
        kind, help, labels: See :class:`Metric`.
        run: Reads the values of a gateway that runs.
        any: Reads the values at any time.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    run: Callable[[Running], _Samples] | None = None
    any: Callable[[MetricSource], _Samples] | None = None

    def read(self, source: MetricSource) -> Metric:
        """Return the metric with its present values."""
        samples: _Samples = ()
        if self.any is not None:
            samples = self.any(source)
        elif self.run is not None and source.running is not None:
            samples = self.run(source.running)
        return Metric(PREFIX + self.name, self.kind, self.help, self.labels, list(samples))


def read_metrics(source: MetricSource) -> list[Metric]:
    """Return all metrics with their present values."""
    return [family.read(source) for family in FAMILIES]


def _gauge(name: str, help: str, value: Callable[[Running], float]) -> MetricFamily:  # noqa: A002 - its name
    return MetricFamily(name, "gauge", help, run=lambda running: [MetricSample((), value(running))])


def _counter(name: str, help: str, value: Callable[[Running], float]) -> MetricFamily:  # noqa: A002
    return MetricFamily(name, "counter", help, run=lambda running: [MetricSample((), value(running))])


def _of_nats(name: str, kind: str, help: str, value: Callable[[Client], float]) -> MetricFamily:  # noqa: A002
    def read(source: MetricSource) -> Iterator[MetricSample]:
        for connection, nc in source.connections.items():
            yield MetricSample((connection,), value(nc))

    return MetricFamily(f"nats_{name}", kind, help, ("connection",), any=read)


def _of_publishes(
    name: str,
    kind: str,
    help: str,  # noqa: A002
    value: Callable[[PublishCounts], float],
) -> MetricFamily:
    def read(running: Running) -> Iterator[MetricSample]:
        for method, counts in running.core.publishes.items():
            yield MetricSample((method,), value(counts))

    return MetricFamily(name, kind, help, ("method",), run=read)


def _ack_lag(running: Running) -> _Samples:
    streams = running.ack_lag.newest
    if streams is not None:
        yield MetricSample((), sum(one.messages for one in streams.values()))


def _build_info(source: MetricSource) -> _Samples:
    yield MetricSample((__version__, platform.python_version(), source.id), 1)


def _ready(source: MetricSource) -> _Samples:
    yield MetricSample((), source.readiness.is_ready)


def _unmet(source: MetricSource) -> _Samples:
    return [MetricSample((name,), name in source.readiness.reasons) for name in CONDITIONS]


def _limits(source: MetricSource) -> _Samples:
    return [MetricSample((name,), getattr(source.limits, name)) for name in _LIMITS]


def _open_calls(running: Running) -> _Samples:
    return [MetricSample((method,), calls.open) for method, calls in running.calls.methods.items()]


def _ended_calls(running: Running) -> _Samples:
    for method, calls in running.calls.methods.items():
        for status, count in calls.ended.items():
            yield MetricSample((method, status), count)


def _publish_failures(running: Running) -> _Samples:
    for method, counts in running.core.publishes.items():
        for reason, count in counts.failures.items():
            yield MetricSample((method, reason), count)


def _ack_latency(running: Running) -> _Samples:
    for method, counts in running.core.publishes.items():
        yield MetricSample((method,), counts.latency.total, tuple(counts.latency.buckets()))


def _held_bytes(running: Running) -> int:
    return sum(budget_of(nc).held for nc in {running.core.nc, running.core.read_js.api.nc})


def _named(running: Running, names: Iterable[str]) -> Iterator[str]:
    """Limit names that clients choose to as many as may be labels, the first ones."""
    most = running.core.options.limits.max_metric_labels
    return islice((name for name in names if is_encodable(name)), most)


def _stream_lags(running: Running) -> _Samples:
    streams = running.ack_lag.newest or {}
    return [MetricSample((name,), streams[name].messages) for name in _named(running, streams)]


def _stream_acks(running: Running) -> _Samples:
    streams = running.ack_lag.newest or {}
    return [MetricSample((name,), streams[name].acks_sent) for name in _named(running, streams)]


def _generations(running: Running) -> _Samples:
    groups = {state.name: state for state in running.groups.hosted}
    return [MetricSample((name,), groups[name].generation) for name in _named(running, groups)]


def _members(running: Running) -> _Samples:
    groups = {state.name: state for state in running.groups.hosted}
    return [MetricSample((name,), len(groups[name].members)) for name in _named(running, groups)]


def _group_lags(running: Running) -> _Samples:
    for one in running.group_lag.newest or ():
        yield MetricSample((one.group, one.stream, str(one.partition)), one.messages)


def _is_connected(nc: Client) -> float:
    return nc.is_connected


FAMILIES: Final[tuple[MetricFamily, ...]] = (
    MetricFamily("build_info", "gauge", "Always 1.", ("version", "python", "id"), any=_build_info),
    MetricFamily("ready", "gauge", "1 if the gateway is ready, as /readyz answers.", any=_ready),
    MetricFamily(
        "unmet_condition", "gauge", "1 if the gateway is not ready because of it.", ("condition",), any=_unmet
    ),
    _gauge("brokers", "Live gateways, this one included.", lambda running: len(running.core.brokers.alive)),
    _gauge("streams", "Streams, of all gateways.", lambda running: running.core.registry.streams),
    _gauge("partitions", "Partitions, of all gateways.", lambda running: running.core.registry.partitions),
    _gauge("partitions_led", "Partitions led here.", lambda running: running.leading.bindings.led),
    _gauge(
        "partitions_bound",
        "Partitions led here whose raw NATS publishers get acks.",
        lambda running: running.leading.bindings.bound,
    ),
    MetricFamily("limit", "gauge", "Configured limit.", ("limit",), any=_limits),
    _gauge("connections", "Open connections of clients.", lambda running: len(running.server.links)),
    _counter(
        "refused_connections_total",
        "Connections closed, new ones or others, because of max_connections or too few file descriptors.",
        lambda running: running.server.places.refused,
    ),
    MetricFamily("open_calls", "gauge", "Open calls.", ("method",), run=_open_calls),
    MetricFamily(
        "calls_total", "counter", "Ended calls, by gRPC status.", ("method", "code"), run=_ended_calls
    ),
    _counter(
        "refused_calls_total",
        "Calls refused because of max_calls or max_calls_per_client.",
        lambda running: running.server.refused_calls,
    ),
    _gauge(
        "unread_request_bytes",
        "Bytes of requests that no call has read yet.",
        lambda running: running.server.unread_bytes,
    ),
    _gauge(
        "unsent_answer_bytes",
        "Bytes of answers, but for those of subscriptions, that clients have not taken yet.",
        lambda running: running.server.unsent_bytes,
    ),
    _of_publishes("publishes_total", "counter", "Messages received.", lambda counts: counts.messages),
    _of_publishes("publish_bytes_total", "counter", "Bytes of their requests.", lambda counts: counts.bytes),
    _of_publishes("publish_acks_total", "counter", "Messages acked.", lambda counts: counts.acked),
    MetricFamily(
        "publish_failures_total",
        "counter",
        "Messages refused, or without an ack in time.",
        ("method", "reason"),
        run=_publish_failures,
    ),
    _of_publishes("pending_acks", "gauge", "Messages waiting for their acks.", lambda counts: counts.pending),
    MetricFamily(
        "ack_latency_seconds",
        "histogram",
        "Seconds from a publish by gRPC to its ack.",
        ("method",),
        run=_ack_latency,
    ),
    _counter(
        "raw_acks_total",
        "Acks sent to raw NATS publishers.",
        lambda running: running.leading.bindings.acks_sent,
    ),
    MetricFamily(
        "raw_ack_lag_messages",
        "gauge",
        "Messages stored in the partitions led here that were not read for their acks yet.",
        run=_ack_lag,
    ),
    MetricFamily(
        "stream_raw_ack_lag_messages", "gauge", "The same, by stream.", ("stream",), run=_stream_lags
    ),
    MetricFamily(
        "stream_raw_acks_total",
        "counter",
        "Acks sent to raw NATS publishers since the partitions are led here.",
        ("stream",),
        run=_stream_acks,
    ),
    _gauge("open_reads", "Open subscriptions.", lambda running: running.reads.open),
    _gauge("read_buffered_bytes", "Bytes received for subscriptions and not sent yet.", _held_bytes),
    _counter("read_bytes_total", "Bytes sent to subscribers.", lambda running: running.reads.sent_bytes),
    _counter(
        "compactions_total",
        "Compactions that have read messages.",
        lambda running: running.leading.compaction.runs,
    ),
    _counter(
        "compaction_failures_total",
        "Compactions that have failed.",
        lambda running: running.leading.compaction.failures,
    ),
    _counter(
        "compaction_deleted_messages_total",
        "Messages deleted by compaction.",
        lambda running: running.leading.compaction.deleted,
    ),
    _counter(
        "drop_warnings_total",
        "Warnings of nats-server that JetStream has dropped messages.",
        lambda running: running.drops.warned,
    ),
    _counter(
        "storage_faults_total",
        "Messages that JetStream could not store, as far as the gateway was told.",
        lambda running: running.core.faults.count,
    ),
    _gauge(
        "groups",
        "Consumer groups coordinated here.",
        lambda running: sum(1 for _ in running.groups.hosted),
    ),
    _gauge(
        "members",
        "Members of these groups.",
        lambda running: sum(len(state.members) for state in running.groups.hosted),
    ),
    MetricFamily("group_generation", "gauge", "Epoch of a group.", ("group",), run=_generations),
    MetricFamily("group_members", "gauge", "Members of a group.", ("group",), run=_members),
    MetricFamily(
        "group_lag_messages",
        "gauge",
        "Messages of a partition after the committed position of a group.",
        ("group", "stream", "partition"),
        run=_group_lags,
    ),
    _of_nats("connected", "gauge", "1 if the connection is established.", _is_connected),
    _of_nats("reconnects_total", "counter", "Reconnects.", lambda nc: nc.stats["reconnects"]),
    _of_nats("received_messages_total", "counter", "Messages received.", lambda nc: nc.stats["in_msgs"]),
    _of_nats("received_bytes_total", "counter", "Bytes received.", lambda nc: nc.stats["in_bytes"]),
    _of_nats("sent_messages_total", "counter", "Messages sent.", lambda nc: nc.stats["out_msgs"]),
    _of_nats("sent_bytes_total", "counter", "Bytes sent.", lambda nc: nc.stats["out_bytes"]),
    _of_nats(
        "pending_bytes", "gauge", "Bytes not written to the socket yet.", lambda nc: nc.pending_data_size
    ),
)
