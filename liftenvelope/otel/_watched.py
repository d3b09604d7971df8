"""Base of the observable metrics: figures of objects that live, read by the exporter's thread."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, Observation

from liftenvelope.otel import _conventions as names

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider

__all__ = ["Sums", "Watched"]


class Watched(ABC):
    """Objects of the process, as long as they live, and what an observable metric says about them.

    The exporter's thread reads while other threads work. An SDK keeps the first callback of an instrument,
    so one object serves all calls of ``instrument``.

    Attributes:
        metric, unit, description: Definition of the metric.
        create: Method of a meter that creates the metric.
        provider: Provider whose exporters get the figures.
        is_on: True while the process is instrumented.
    """

    metric: ClassVar[str]
    unit: ClassVar[str]
    description: ClassVar[str]
    create: ClassVar[str] = "create_observable_up_down_counter"

    def __init__(self) -> None:
        self.provider: MeterProvider | None = None
        self.is_on = False
        #: Kinds of the objects.
        self._owners: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def watch(self, owner: Any, kind: str) -> None:
        """Include an object, as one of a kind."""
        if owner not in self._owners:
            with self._lock:
                self._owners[owner] = kind

    def register(self, meter: Meter, provider: MeterProvider | None) -> None:
        """Create the metric. It has no figures before :meth:`switch_on`."""
        create = getattr(meter, self.create)
        create(self.metric, [partial(self._observe, provider)], unit=self.unit, description=self.description)

    def switch_on(self, provider: MeterProvider | None) -> None:
        """Give the figures to the exporters of a provider, and to no other."""
        self.provider, self.is_on = provider, True

    def _observe(self, provider: MeterProvider | None, _: CallbackOptions) -> Iterable[Observation]:
        if not (self.is_on and provider is self.provider):
            return ()
        with self._lock:
            owners = list(self._owners.items())
        return list(self._observations(owners))

    @abstractmethod
    def _observations(self, owners: list[tuple[Any, str]]) -> Iterable[Observation]:
        """Yield what to say about these objects, each with its kind."""


class Sums(Watched):
    """Objects, and the sums of a figure of them, by their kinds.

    Attributes:
        attribute: Name of the attribute with the kind of the objects.
    """

    attribute: ClassVar[str]

    def _observations(self, owners: list[tuple[Any, str]]) -> Iterable[Observation]:
        for kind, count in self._sums(owners).items():
            yield Observation(count, {names.SYSTEM: names.NATS, self.attribute: kind})

    def _sums(self, owners: list[tuple[Any, str]]) -> Mapping[str, int]:
        """Return the sums of the figures of these objects, by kind."""
        sums: Counter[str] = Counter()
        for owner, kind in owners:
            sums[kind] += self._figure_of(owner)
        return sums

    @abstractmethod
    def _figure_of(self, owner: Any) -> int:
        """Return the present figure of an object."""
