"""Spans and metrics of operations on messages: the one place that talks to tracers and meters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import context as context_api
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, Status, StatusCode

from liftenvelope._version import __version__
from liftenvelope.errors import (
    AckTimeoutError,
    EnvelopeError,
    PermissionDeniedError,
    TransportError,
    UsageError,
)
from liftenvelope.jetstream import Message as JetStreamMessage
from liftenvelope.jetstream import MessageMetadata
from liftenvelope.jetstream.message import deliveries_of
from liftenvelope.otel import _conventions as names
from liftenvelope.otel._buffered import buffered
from liftenvelope.otel._conventions import Operation
from liftenvelope.otel._destinations import Destinations
from liftenvelope.otel._member_lag import member_lag
from liftenvelope.otel._outstanding import outstanding
from liftenvelope.otel._propagation import Propagation
from liftenvelope.otel._reconnects import reconnects

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["Scene", "Started", "Telemetry", "TelemetryOptions", "active", "internal"]

_SCOPE: Final = "liftenvelope"
#: Set in the contexts of this package's own tasks, whose operations are not the user's.
_INTERNAL: Final = context_api.create_key("liftenvelope-internal")
_SUPPRESSED: Final = context_api._SUPPRESS_INSTRUMENTATION_KEY
#: Combinations of operation, destination, group and server to remember.
_SCENES: Final = 1_024
_Attributes = Mapping[str, str | int]


@dataclass(frozen=True, kw_only=True)
class TelemetryOptions:
    """TelemetryOptions of :func:`liftenvelope.otel.instrument`, checked."""

    tracer_provider: TracerProvider | None
    meter_provider: MeterProvider | None
    destinations: Destinations
    propagation: Propagation
    receive_spans: bool
    settle_spans: bool
    process_parent: bool
    max_links: int


class Scene(NamedTuple):
    """Shared part of all operations of one kind on one destination.

    Attributes:
        operation: The operation.
        span_name: Name of the span.
        attributes: Attributes of the span.
        metrics: Attributes of the metrics, of which there are few different ones.
    """

    operation: Operation
    span_name: str
    attributes: dict[str, str | int]
    metrics: dict[str, str | int]


class Started:
    """An operation that has started: its span and its clock. It ends exactly once.

    Attributes:
        span: The span.
        scene: The scene.
        context: The context with the span.
        is_over: True if the operation has ended.
    """

    __slots__ = ("_began", "_telemetry", "context", "is_over", "scene", "span")

    def __init__(self, telemetry: Telemetry, scene: Scene, span: Span, context: Context) -> None:
        self._telemetry = telemetry
        self.scene = scene
        self.span = span
        self.context = context
        self._began = time.perf_counter()
        self.is_over = False

    def end(self, error: BaseException | None = None, *, count: int = 1) -> None:
        """End the operation; nothing happens if it has ended before.

        Args:
            error: Error that the operation ended with.
            count: Number of messages that were sent or processed.
        """
        if self.is_over:
            return
        self.is_over = True
        if error is not None:
            record_error(self.span, error)
        self.span.end()
        took = time.perf_counter() - self._began
        self._telemetry.measure(self.scene, took, error, count)


class Telemetry:
    """Starts and ends spans, and records metrics.

    Args:
        options: TelemetryOptions of the user.

    Attributes:
        options: TelemetryOptions of the user.
        is_on: True until the instrumentation is taken back. Wrappers that somebody else has wrapped stay.
    """

    def __init__(self, options: TelemetryOptions) -> None:
        self.options = options
        self.is_on = True
        self._tracer = trace.get_tracer(_SCOPE, __version__, options.tracer_provider, names.SCHEMA_URL)
        self._instruments = _Instruments(options.meter_provider)
        self._scenes: dict[tuple[Operation, str, str, _Server], Scene] = {}

    @property
    def applies(self) -> bool:
        """True if an operation that starts now is the user's and not suppressed."""
        if not self.is_on:
            return False
        current = context_api.get_current()
        return not (current and (_INTERNAL in current or current.get(_SUPPRESSED)))

    def scene(self, operation: Operation, destination: str, *, group: str = "", nc: Any = None) -> Scene:
        """Return the scene of an operation.

        Args:
            operation: The operation.
            destination: Name of the destination; empty if it is not known.
            group: Name of the consumer group, or of the durable consumer.
            nc: The nats-py connection.
        """
        if nc is not None:
            reconnects.watch(nc, "nats")
        server = _server_of(None if nc is None else nc.connected_url)
        key = (operation, destination, group, server)
        found = self._scenes.get(key)
        if found is None:
            if len(self._scenes) >= _SCENES:
                self._scenes.clear()
            found = self._scenes[key] = self._new_scene(*key)
        return found

    def _new_scene(self, operation: Operation, destination: str, group: str, server: _Server) -> Scene:
        found = self.options.destinations.find(destination)
        shared: dict[str, str | int] = {
            names.SYSTEM: names.NATS,
            names.OPERATION_NAME: operation.name,
            names.OPERATION_TYPE: operation.type,
            **server.attributes(),
        }
        if group:
            shared[names.GROUP] = group
        if not destination:
            return Scene(operation, operation.name, shared, shared)
        span: dict[str, str | int] = {**shared, names.DESTINATION: found.name}
        metrics = {**shared, names.DESTINATION: found.name}
        if found.template is not None:
            span[names.TEMPLATE] = found.template
            del metrics[names.DESTINATION]
            metrics[names.TEMPLATE] = found.template
        return Scene(operation, f"{operation.name} {found.label}", span, metrics)

    def start(
        self,
        scene: Scene,
        more: _Attributes,
        *,
        parent: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Started:
        """Start an operation.

        Args:
            scene: The scene.
            more: Further attributes of the span.
            parent: Context of the parent. Default: the current context.
            links: Links of the span.
        """
        context = context_api.get_current() if parent is None else parent
        span = self._tracer.start_span(
            scene.span_name,
            context,
            kind=scene.operation.kind,
            attributes={**scene.attributes, **more},
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        )
        return Started(self, scene, span, trace.set_span_in_context(span, context))

    def received(self, scene: Scene, messages: Sequence[Any], began_ns: int, **more: str | int) -> None:
        """Record messages that were handed to the application: a span that has ended, and the counter.

        The span is made when its messages, and so its links, are known. Samplers see the links then.
        """
        self._instruments.consumed.add(len(messages), scene.metrics)
        self.note_deliveries(scene, messages)
        if not self.options.receive_spans:
            return
        if len(messages) != 1 or scene.operation is names.FETCH:
            more[names.BATCH_COUNT] = len(messages)
        self._tracer.start_span(
            scene.span_name,
            kind=scene.operation.kind,
            attributes={**scene.attributes, **more},
            links=self.options.propagation.links(messages, self.options.max_links),
            start_time=began_ns,
        ).end()

    @contextmanager
    def receiving(self, scene: Scene) -> Iterator[Callable[[Sequence[Any]], None]]:
        """Record a receive: the block calls the yielded function with the messages that came, or raises.

        A receive that ends without messages has no span: a loop that polls would fill the backend with them.
        """
        began, began_ns = time.perf_counter(), time.time_ns()

        def received(messages: Sequence[Any]) -> None:
            if messages:
                self.received(scene, messages, began_ns)

        failure: BaseException | None = None
        try:
            with internal():  # an ordered consumer fetches by consumers that it creates
                yield received
        except BaseException as exc:
            failure = exc
            if self.options.receive_spans and not isinstance(exc, TimeoutError):
                span = self._tracer.start_span(
                    scene.span_name,
                    kind=scene.operation.kind,
                    attributes=scene.attributes,
                    start_time=began_ns,
                )
                record_error(span, exc)
                span.end()
            raise
        finally:
            self.measure(scene, time.perf_counter() - began, failure, 0)

    @contextmanager
    def settling(self, operation: Operation, message: Any) -> Iterator[None]:
        """Record the block, which acknowledges a message."""
        scene = self.scene(operation, message.subject)
        started = self.start(scene, {}, links=self.options.propagation.links([message], 1))
        try:
            yield
        except BaseException as exc:
            started.end(exc)
            raise
        started.end()

    def measure(self, scene: Scene, took: float, error: BaseException | None, count: int) -> None:
        """Record the metrics of an operation that has ended."""
        attributes = scene.metrics if error is None else {**scene.metrics, names.ERROR_TYPE: type_of(error)}
        if scene.operation.type == names.PROCESS.type:
            self._instruments.process.record(took, attributes)
            return
        self._instruments.duration.record(took, attributes)
        if count and scene.operation.type == names.PUBLISH.type and _was_sent(error):
            self._instruments.sent.add(count, attributes)

    def count_sent(self, scene: Scene, outcomes: Mapping[str | None, int]) -> None:
        """Count the messages of a batch by their outcome: the type of their error, or None."""
        for kind, count in outcomes.items():
            attributes = scene.metrics if kind is None else {**scene.metrics, names.ERROR_TYPE: kind}
            self._instruments.sent.add(count, attributes)

    def received_rows(self, scene: Scene, rows: int) -> None:
        """Record messages that were handed out as rows of Arrow. Their headers are not read for links."""
        self._instruments.consumed.add(rows, scene.metrics)
        if self.options.receive_spans:
            attributes = {**scene.attributes, names.BATCH_COUNT: rows}
            self._tracer.start_span(scene.span_name, kind=scene.operation.kind, attributes=attributes).end()

    def count_consumed(self, scene: Scene, count: int = 1) -> None:
        """Count messages that were handed to the application without a span."""
        self._instruments.consumed.add(count, scene.metrics)

    def note_deliveries(self, scene: Scene, messages: Sequence[Any]) -> None:
        """Count redelivered messages, and note what their consumer has left to deliver."""
        if not isinstance(messages[-1], JetStreamMessage):
            return  # only consumers of JetStream tell
        try:
            again = sum(deliveries_of(message.reply) > 1 for message in messages)
            last = MessageMetadata.from_reply(messages[-1].reply)
        except UsageError:
            return  # made by the application
        if again:
            self._instruments.redelivered.add(again, scene.metrics)
        # By the stream, because a handler's destination is the subject of its message.
        stream = self.options.destinations.find(last.stream)
        attributes = {names.SYSTEM: names.NATS, names.DESTINATION: stream.label}
        if group := scene.metrics.get(names.GROUP):
            attributes[names.GROUP] = str(group)
        self._instruments.lag.set(last.num_pending, attributes)


@dataclass(slots=True)
class Active:
    """The instrumentation of this process.

    Attributes:
        telemetry: Telemetry of the last :func:`instrument`; None without one.
    """

    telemetry: Telemetry | None = None


#: The instrumentation of this process.
active: Final = Active()


class _Instruments:
    """Metrics of the conventions."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter(_SCOPE, __version__, provider, names.SCHEMA_URL)
        for figures in (buffered, member_lag, outstanding, reconnects):
            figures.register(meter, provider)
        self.duration = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=names.BUCKETS,
        )
        self.process = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of processing operation.",
            explicit_bucket_boundaries_advisory=names.BUCKETS,
        )
        self.sent = meter.create_counter(
            "messaging.client.sent.messages",
            unit="{message}",
            description="Number of messages producer attempted to send to the broker.",
        )
        self.consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            unit="{message}",
            description="Number of messages that were delivered to the application.",
        )
        self.redelivered = meter.create_counter(
            "liftenvelope.client.redelivered.messages",
            unit="{message}",
            description="Messages handed to the application that were delivered before.",
        )
        self.lag = meter.create_gauge(
            "liftenvelope.consumer.lag",
            unit="{message}",
            description="Messages that the consumer had left to deliver after the last one received.",
        )


class _Server(NamedTuple):
    """Address of a server; empty if it is not known."""

    host: str = ""
    port: int = 0

    def attributes(self) -> dict[str, str | int]:
        found: dict[str, str | int] = {}
        if self.host:
            found[names.SERVER_ADDRESS] = self.host
        if self.port:
            found[names.SERVER_PORT] = self.port
        return found


@lru_cache(256)
def _server_of(url: Any) -> _Server:
    """Return the address in a parsed URL, without its user and password; None for no connection."""
    return _Server() if url is None else _Server(url.hostname or "", url.port or 0)


@contextmanager
def internal() -> Iterator[None]:
    """Record nothing in the block, nor in the tasks that are made in it."""
    token = context_api.attach(context_api.set_value(_INTERNAL, True))
    try:
        yield
    finally:
        context_api.detach(token)


def type_of(error: BaseException) -> str:
    """Return the ``error.type`` of an error: the name of its class."""
    return type(error).__qualname__


def record_error(span: Span, error: BaseException) -> None:
    """Record an error in a span, as event, status and attribute."""
    if not span.is_recording():
        return
    span.set_attribute(names.ERROR_TYPE, type_of(error))
    span.set_status(Status(StatusCode.ERROR, str(error)))
    if isinstance(error, Exception):
        span.record_exception(error)


def _was_sent(error: BaseException | None) -> bool:
    """Return False if an error says that the message never left: such messages are not counted as sent.

    Refusals are answers to messages that were sent.
    """
    if isinstance(error, UsageError | EnvelopeError):
        return False
    if isinstance(error, TransportError | AckTimeoutError | PermissionDeniedError):
        return error.sent
    return True
