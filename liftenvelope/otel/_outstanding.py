"""Observable metric of publishes without an ack, over all ack inboxes and JetStream contexts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from opentelemetry.metrics import Observation

from liftenvelope.jetstream import JetStream
from liftenvelope.nats import AckInbox
from liftenvelope.otel import _conventions as names
from liftenvelope.otel._watched import Watched

__all__ = ["Outstanding"]

_KINDS: Final = {"ack_inbox": AckInbox, "jetstream": JetStream}


class Outstanding(Watched):
    """Objects that publish, and what they have outstanding."""

    metric = "liftenvelope.publish.outstanding"
    unit = "{message}"
    description = "Messages that were published and have no ack yet."

    def _figures(self, owners: list[Any]) -> Iterator[Observation]:
        for name, kind in _KINDS.items():
            found = [owner for owner in owners if isinstance(owner, kind)]
            if found:
                yield Observation(
                    sum(_outstanding_of(owner) for owner in found),
                    {names.SYSTEM: names.NATS, "liftenvelope.publisher": name},
                )


def _outstanding_of(owner: Any) -> int:
    return int(owner.outstanding if isinstance(owner, AckInbox) else owner.publish_async_pending)


#: The publishers of this process.
outstanding: Final = Outstanding()
