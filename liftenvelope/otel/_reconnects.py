"""Observable metric of reconnects, over all NATS connections and Liftbridge clients in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from nats.aio.client import Client as NatsClient

from liftenvelope.otel._watched import Sums

__all__ = ["Reconnects"]


class Reconnects(Sums):
    """NATS connections and Liftbridge clients, and how often they have reconnected since they are watched.

    The objects count by themselves. The differences between two readings are added up, so that the sum does
    not fall when an object is gone.
    """

    metric = "liftenvelope.client.reconnects"
    unit = "{reconnect}"
    description = "Connections that were made in place of a lost one."
    attribute = "liftenvelope.connection"
    create = "create_observable_counter"

    def __init__(self) -> None:
        super().__init__()
        self._read: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._totals: Counter[str] = Counter()

    def watch(self, owner: Any, kind: str) -> None:
        """Include an object. What it counted before does not count."""
        if owner not in self._owners:
            with self._lock:
                self._read[owner] = self._figure_of(owner)
                self._owners[owner] = kind

    def _sums(self, owners: list[tuple[Any, str]]) -> Mapping[str, int]:
        with self._lock:
            for owner, kind in owners:
                now = self._figure_of(owner)
                self._totals[kind] += now - self._read.get(owner, now)
                self._read[owner] = now
            return dict(self._totals)

    def _figure_of(self, owner: Any) -> int:
        return int(owner.stats["reconnects"] if isinstance(owner, NatsClient) else owner.reconnects)


#: The connections of this process.
reconnects: Final = Reconnects()
