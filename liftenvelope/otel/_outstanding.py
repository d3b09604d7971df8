"""Observable metric of publishes without an ack: ack inboxes, JetStream contexts and Liftbridge clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from opentelemetry.metrics import Observation

from liftenvelope.jetstream import JetStream
from liftenvelope.nats import AckInbox
from liftenvelope.otel import _conventions as names
from liftenvelope.otel._watched import Watched

__all__ = ["Outstanding"]

_KINDS: Final = {AckInbox: "ack_inbox", JetStream: "jetstream"}
#: Clients of Liftbridge, whose extra may be missing.
_LIFTBRIDGE: Final = "liftbridge"


class Outstanding(Watched):
    """Objects that publish, and what they have outstanding."""

    metric = "liftenvelope.publish.outstanding"
    unit = "{message}"
    description = "Messages that were published and have no ack yet."

    def _figures(self, owners: list[Any]) -> Iterator[Observation]:
        sums: Counter[str] = Counter()
        for owner in owners:
            kind = next((name for kind, name in _KINDS.items() if isinstance(owner, kind)), _LIFTBRIDGE)
            sums[kind] += _outstanding_of(owner)
        for name, count in sums.items():
            yield Observation(count, {names.SYSTEM: names.NATS, "liftenvelope.publisher": name})


def _outstanding_of(owner: Any) -> int:
    return int(owner.outstanding if isinstance(owner, AckInbox) else owner.publish_async_pending)


#: The publishers of this process.
outstanding: Final = Outstanding()
