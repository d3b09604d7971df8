"""Switch the instrumentation on and off."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final

from opentelemetry import propagate
from opentelemetry.metrics import MeterProvider
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import TracerProvider

from liftenvelope._checks import as_count, as_flag, require
from liftenvelope.errors import MissingExtraError, UsageTypeError
from liftenvelope.otel._batches import patch_batches
from liftenvelope.otel._buffered import buffered
from liftenvelope.otel._bulk import observe_bulk, unobserve_bulk
from liftenvelope.otel._client import patch_client
from liftenvelope.otel._destinations import Destinations, default_template
from liftenvelope.otel._member_lag import member_lag
from liftenvelope.otel._outstanding import outstanding
from liftenvelope.otel._patches import Patches
from liftenvelope.otel._propagation import Propagation
from liftenvelope.otel._publishing import patch_jetstream, patch_nats
from liftenvelope.otel._readers import patch_groups, patch_subscriptions
from liftenvelope.otel._receiving import patch_jetstream_receiving
from liftenvelope.otel._reconnects import reconnects
from liftenvelope.otel._telemetry import Telemetry, TelemetryOptions, active

__all__ = ["LiftEnvelopeInstrumentor", "instrument", "is_instrumented", "uninstrument"]

#: What is patched. A part whose extra is not installed is left out: no code can use it.
_PARTS: Final[tuple[Callable[[Patches, Telemetry], None], ...]] = (
    patch_nats,
    patch_batches,
    patch_jetstream,
    patch_jetstream_receiving,
    patch_client,
    patch_subscriptions,
    patch_groups,
)


#: Observable metrics.
_FIGURES: Final = (buffered, member_lag, outstanding, reconnects)

#: Methods that are replaced now.
_patches: Final = Patches()


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    propagator: TextMapPropagator | None = None,
    destination_template: Callable[[str], str | None] = default_template,
    max_destinations: int = 256,
    receive_spans: bool = True,
    settle_spans: bool = False,
    process_parent: bool = True,
    max_links: int = 128,
    bulk: bool = False,
) -> None:
    """Record spans and metrics of publishing, receiving and processing, in the whole process.

    Objects that exist already are instrumented as well. A further call replaces the options.

    Args:
        tracer_provider: Makes the spans. Default: the global provider.
        meter_provider: Makes the metrics. Default: the global provider.
        propagator: Writes and reads the context in headers of messages. Default: the global propagators.
        destination_template: Returns the name of a subject or stream in span names and metrics, such as
            ``orders.{id}``; None for the subject itself. Called about once for each subject; must not
            raise. Default: replaces the unique tokens of inboxes.
        max_destinations: Maximum number of different names in span names and metrics. Further ones are
            ``{other}``. Default 256.
        receive_spans: False for no spans of received messages. Spans of processing stay. Default true.
        settle_spans: True for spans of ``ack``, ``nak`` and ``term`` in JetStream. Default false.
        process_parent: True (default) to make the span of processing one message a child of the span that
            published it, in the same trace. False to make it a child of the current span; the span that
            published the message is linked in both cases.
        bulk: True to record ``bulk.read`` and ``bulk.write`` too, with one span each. This imports pyarrow.
            Default false.
        max_links: Maximum number of links in the span of a batch. Default 128, the limit of the SDK.

    Raises:
        UsageError: An option is invalid. The instrumentation stays as it was.
        MissingExtraError: ``bulk`` is true, and its extra is not installed.

    Example::

        liftenvelope.otel.instrument()
    """
    _check_kind("tracer_provider", tracer_provider, TracerProvider)
    _check_kind("meter_provider", meter_provider, MeterProvider)
    _check_kind("propagator", propagator, TextMapPropagator)
    as_flag("bulk", bulk)
    options = TelemetryOptions(
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
        destinations=Destinations(destination_template, max_destinations),
        propagation=Propagation(propagate.get_global_textmap() if propagator is None else propagator),
        receive_spans=as_flag("receive_spans", receive_spans),
        settle_spans=as_flag("settle_spans", settle_spans),
        process_parent=as_flag("process_parent", process_parent),
        max_links=as_count("max_links", max_links, 0),
    )
    if bulk:
        require("pyarrow", "bulk")
    telemetry = Telemetry(options)
    uninstrument()
    for part in _PARTS:
        with suppress(MissingExtraError):
            part(_patches, telemetry)
    active.telemetry = telemetry
    for figures in _FIGURES:
        figures.switch_on(meter_provider)
    if bulk:
        observe_bulk(telemetry)


def _check_kind(name: str, given: object, kind: type) -> None:
    if given is not None and not isinstance(given, kind):
        raise UsageTypeError(f"{name} must be a {kind.__name__} or None, got {type(given).__name__}")


def uninstrument() -> None:
    """Stop recording, and put back every method that :func:`instrument` replaced. Idempotent.

    Spans of operations in flight end as usual.
    """
    if active.telemetry is not None:
        active.telemetry.is_on = False
        active.telemetry = None
    for figures in _FIGURES:
        figures.is_on = False
    _patches.restore()
    unobserve_bulk()


def is_instrumented() -> bool:
    """Return True between :func:`instrument` and :func:`uninstrument`."""
    return active.telemetry is not None


class LiftEnvelopeInstrumentor:
    """Instrumentor for the command ``opentelemetry-instrument``, which finds it by its entry point.

    It has the methods of ``BaseInstrumentor`` in ``opentelemetry-instrumentation``, and does not need that
    package.
    """

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """True if the process is instrumented."""
        return is_instrumented()

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages to instrument: none but the one that this module belongs to."""
        return ()

    def instrument(
        self, *, skip_dep_check: bool = False, raise_exception_on_conflict: bool = False, **options: Any
    ) -> None:
        """Call :func:`instrument`. The first two options are those of ``BaseInstrumentor``, and unused."""
        del skip_dep_check, raise_exception_on_conflict
        instrument(**options)

    def uninstrument(self, **_: Any) -> None:
        """Call :func:`uninstrument`."""
        uninstrument()
