"""Observable metric of messages that were received and not handed to the application yet."""

from __future__ import annotations

from typing import Any, Final

from liftenvelope.otel._watched import Sums

__all__ = ["Buffered"]


class Buffered(Sums):
    """Iterations, consumptions, subscriptions and members of groups, and what they have buffered."""

    metric = "liftenvelope.consumer.buffered"
    unit = "{message}"
    description = "Messages that were received and not handed to the application yet."
    attribute = "liftenvelope.reader"

    def _figure_of(self, owner: Any) -> int:
        return int(owner.buffered)


#: The readers of this process.
buffered: Final = Buffered()
