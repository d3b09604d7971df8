"""Observable metric of publishes without an ack: ack inboxes, JetStream contexts and Liftbridge clients."""

from __future__ import annotations

from typing import Any, Final

from liftenvelope.jetstream import JetStream
from liftenvelope.nats import AckInbox
from liftenvelope.otel._watched import Watched

__all__ = ["Outstanding"]


class Outstanding(Watched):
    """Objects that publish, and what they have outstanding."""

    metric = "liftenvelope.publish.outstanding"
    unit = "{message}"
    description = "Messages that were published and have no ack yet."
    attribute = "liftenvelope.publisher"

    def _kind_of(self, owner: Any) -> str:
        if isinstance(owner, AckInbox):
            return "ack_inbox"
        # Clients of Liftbridge are not named, since their extra may be missing.
        return "jetstream" if isinstance(owner, JetStream) else "liftbridge"

    def _figure_of(self, owner: Any) -> int:
        return int(owner.outstanding if isinstance(owner, AckInbox) else owner.publish_async_pending)


#: The publishers of this process.
outstanding: Final = Outstanding()
