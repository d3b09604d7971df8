"""Base of the observable metrics: figures of objects that live, read by the exporter's thread."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from opentelemetry.metrics import CallbackOptions, Observation

from liftenvelope.otel import _conventions as names

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider

__all__ = ["Watched"]


class Watched(ABC):
    """Objects of the process, as long as they live, and the sums of a figure of them, by their kinds.

    The exporter's thread reads while other threads work. An SDK keeps the first callback of an instrument,
    so one object serves all calls of ``instrument``.

    Attributes:
        metric, unit, description: Definition of the metric.
        attribute: Name of the attribute with the kind of the objects.
        is_counter: True if the figure only grows.
        provider: Provider whose exporters get the figures.
        is_on: True while the process is instrumented.
    """

    metric: ClassVar[str]
    unit: ClassVar[str]
    description: ClassVar[str]
    attribute: ClassVar[str]
    is_counter: ClassVar[bool] = False

    def __init__(self) -> None:
        self.provider: MeterProvider | None = None
        self.is_on = False
        self._owners: WeakSet[Any] = WeakSet()
        self._lock = threading.Lock()

    def watch(self, owner: Any) -> None:
        """Include an object."""
        if owner not in self._owners:
            with self._lock:
                self._owners.add(owner)

    def register(self, meter: Meter, provider: MeterProvider | None) -> None:
        """Create the metric. It has no figures before :meth:`switch_on`."""
        create = (
            meter.create_observable_counter if self.is_counter else meter.create_observable_up_down_counter
        )
        create(self.metric, [partial(self._observe, provider)], unit=self.unit, description=self.description)

    def switch_on(self, provider: MeterProvider | None) -> None:
        """Give the figures to the exporters of a provider, and to no other."""
        self.provider, self.is_on = provider, True

    def _observe(self, provider: MeterProvider | None, _: CallbackOptions) -> Iterable[Observation]:
        if not (self.is_on and provider is self.provider):
            return ()
        with self._lock:
            owners = list(self._owners)
        return [
            Observation(count, {names.SYSTEM: names.NATS, self.attribute: kind})
            for kind, count in self._sums(owners).items()
        ]

    def _sums(self, owners: list[Any]) -> Mapping[str, int]:
        """Return the sums of the figures of these objects, by kind."""
        sums: Counter[str] = Counter()
        for owner in owners:
            sums[self._kind_of(owner)] += self._figure_of(owner)
        return sums

    @abstractmethod
    def _kind_of(self, owner: Any) -> str:
        """Return the kind of an object."""

    @abstractmethod
    def _figure_of(self, owner: Any) -> int:
        """Return the present figure of an object."""
