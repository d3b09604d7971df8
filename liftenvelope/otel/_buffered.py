"""Observable metric of messages that were received and not handed to the application yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from opentelemetry.metrics import Observation

from liftenvelope.jetstream import Consumption, Messages
from liftenvelope.otel import _conventions as names
from liftenvelope.otel._watched import Watched

__all__ = ["Buffered"]


class Buffered(Watched):
    """Iterations, consumptions and subscriptions, and what they have buffered."""

    metric = "liftenvelope.consumer.buffered"
    unit = "{message}"
    description = "Messages that were received and not handed to the application yet."

    def _figures(self, owners: list[Any]) -> Iterator[Observation]:
        sums: Counter[str] = Counter()
        for owner in owners:
            sums["jetstream" if isinstance(owner, Messages | Consumption) else "liftbridge"] += owner.buffered
        for name, count in sums.items():
            yield Observation(count, {names.SYSTEM: names.NATS, "liftenvelope.reader": name})


#: The readers of this process.
buffered: Final = Buffered()
