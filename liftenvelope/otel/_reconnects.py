"""Observable metric of reconnects, over all NATS connections and Liftbridge clients in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

from nats.aio.client import Client as NatsClient
from opentelemetry.metrics import Observation

from liftenvelope.otel import _conventions as names
from liftenvelope.otel._watched import Watched

__all__ = ["Reconnects"]


class Reconnects(Watched):
    """NATS connections and Liftbridge clients, and how often they have reconnected since they are watched.

    The objects count by themselves. The differences between two readings are added up, so that the sum does
    not fall when an object is gone.
    """

    metric = "liftenvelope.client.reconnects"
    unit = "{reconnect}"
    description = "Connections that were made in place of a lost one."
    is_counter = True

    def __init__(self) -> None:
        super().__init__()
        self._read: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._sums: Counter[str] = Counter()

    def watch(self, owner: Any) -> None:
        """Include an object. What it counted before does not count."""
        if owner not in self._owners:
            with self._lock:
                self._read[owner] = _count_of(owner)
                self._owners.add(owner)

    def _figures(self, owners: list[Any]) -> Iterator[Observation]:
        with self._lock:
            for owner in owners:
                now = _count_of(owner)
                self._sums[_kind_of(owner)] += now - self._read.get(owner, now)
                self._read[owner] = now
            sums = dict(self._sums)
        for kind, count in sums.items():
            yield Observation(count, {names.SYSTEM: names.NATS, "liftenvelope.connection": kind})


def _kind_of(owner: Any) -> str:
    return "nats" if isinstance(owner, NatsClient) else "liftbridge"


def _count_of(owner: Any) -> int:
    return int(owner.stats["reconnects"] if isinstance(owner, NatsClient) else owner.reconnects)


#: The connections of this process.
reconnects: Final = Reconnects()
