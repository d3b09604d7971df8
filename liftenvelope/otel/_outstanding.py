"""Observable metric of publishes without an ack: ack inboxes, JetStream contexts and Liftbridge clients."""

from __future__ import annotations

from typing import Any, Final

from liftenvelope.nats import AckInbox
from liftenvelope.otel._watched import Sums

__all__ = ["Outstanding"]


class Outstanding(Sums):
    """Objects that publish, and what they have outstanding."""

    metric = "liftenvelope.publish.outstanding"
    unit = "{message}"
    description = "Messages that were published and have no ack yet."
    attribute = "liftenvelope.publisher"

    def _figure_of(self, owner: Any) -> int:
        return int(owner.outstanding if isinstance(owner, AckInbox) else owner.publish_async_pending)


#: The publishers of this process.
outstanding: Final = Outstanding()
