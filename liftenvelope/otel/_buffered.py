"""Observable metric of messages that were received and not handed to the application yet."""

from __future__ import annotations

from typing import Any, Final

from liftenvelope.jetstream import Consumption, Messages
from liftenvelope.otel._watched import Watched

__all__ = ["Buffered"]


class Buffered(Watched):
    """Iterations, consumptions and subscriptions, and what they have buffered."""

    metric = "liftenvelope.consumer.buffered"
    unit = "{message}"
    description = "Messages that were received and not handed to the application yet."
    attribute = "liftenvelope.reader"

    def _kind_of(self, owner: Any) -> str:
        return "jetstream" if isinstance(owner, Messages | Consumption) else "liftbridge"

    def _figure_of(self, owner: Any) -> int:
        return int(owner.buffered)


#: The readers of this process.
buffered: Final = Buffered()
