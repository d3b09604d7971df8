"""Observable metric of publishes without an ack, over all ack inboxes and JetStream contexts."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from opentelemetry.metrics import CallbackOptions, Observation

from liftenvelope.jetstream import JetStream
from liftenvelope.nats import AckInbox
from liftenvelope.otel import _conventions as names

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider

__all__ = ["Outstanding"]

_KINDS: Final = {"ack_inbox": AckInbox, "jetstream": JetStream}


class Outstanding:
    """Objects that publish, as long as they live, and what they have outstanding.

    The exporter's thread reads while other threads publish. An SDK keeps the first callback of an instrument,
    so one object serves all calls of ``instrument``.

    Attributes:
        provider: Provider whose exporters get the figures.
        is_on: True while the process is instrumented.
    """

    def __init__(self) -> None:
        self.provider: MeterProvider | None = None
        self.is_on = False
        self._owners: WeakSet[AckInbox | JetStream] = WeakSet()
        self._lock = threading.Lock()

    def watch(self, owner: Any) -> None:
        """Include an object."""
        if owner not in self._owners:
            with self._lock:
                self._owners.add(owner)

    def register(self, meter: Meter, provider: MeterProvider | None) -> None:
        """Create the metric. It has no figures before :meth:`switch_on`."""
        meter.create_observable_up_down_counter(
            "liftenvelope.publish.outstanding",
            [partial(self._observe, provider)],
            unit="{message}",
            description="Messages that were published and have no ack yet.",
        )

    def switch_on(self, provider: MeterProvider | None) -> None:
        """Give the figures to the exporters of a provider, and to no other."""
        self.provider, self.is_on = provider, True

    def _observe(self, provider: MeterProvider | None, _: CallbackOptions) -> Iterable[Observation]:
        return self._figures() if self.is_on and provider is self.provider else ()

    def _figures(self) -> Iterator[Observation]:
        with self._lock:
            owners = list(self._owners)
        for name, kind in _KINDS.items():
            found = [owner for owner in owners if isinstance(owner, kind)]
            if found:
                yield Observation(
                    sum(map(_outstanding_of, found)),
                    {names.SYSTEM: names.NATS, "liftenvelope.publisher": name},
                )


def _outstanding_of(owner: AckInbox | JetStream) -> int:
    return owner.outstanding if isinstance(owner, AckInbox) else owner.publish_async_pending


#: The publishers of this process.
outstanding: Final = Outstanding()
