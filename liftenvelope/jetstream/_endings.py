"""Two last steps of a consumption: wait for the messages that were pulled, and give the pin back.

A server (nats-server up to 2.15) can't be told to forget a pull. Its consumer picks a waiting pull for a
message, counts the message as delivered, and leaves it to another goroutine to find the subscription. If the
subscription has gone by then, the message is lost with the ack policy NONE; with the others it is delivered
again at once or after ``ack_wait``. So a drain keeps its subscription until no pull can be picked any more:

- Every pull has been filled or has expired. That is exact, and the rule while messages keep coming.
- Or the consumer has nothing to deliver, and has sent nothing for :data:`QUIET` seconds. A message that is
  published within some 50 microseconds of the unsubscription could still be lost. The longer nothing came,
  the less likely it is.
- Or nothing has come for :data:`STALLED` seconds though there is something to deliver: the consumer is
  paused, waits for acks, or serves another reader.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from liftenvelope.errors import (
    CallTimeoutError,
    ConsumerNotFoundError,
    JetStreamError,
    StreamNotFoundError,
    TransportError,
)

if TYPE_CHECKING:
    from liftenvelope.jetstream.infos import ConsumerInfo

__all__ = ["DRAIN", "Owed", "holds_pin", "until_nothing_is_owed"]

#: Seconds that a drain waits at most unless it is told otherwise. Longer than a pull without acks waits.
DRAIN: Final = 5.0
#: Seconds without a message after which an empty consumer counts as idle.
QUIET: Final = 0.2
#: Seconds without a message after which a consumer counts as stalled that has something to deliver.
STALLED: Final = 1.0
#: Seconds between two looks.
_LOOK: Final = 0.005
#: Seconds between two questions to the server.
_ASK: Final = 0.1


class Informed(Protocol):
    """Consumer that can be asked about."""

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Ask the server for its state."""


class Owed(Protocol):
    """Consumption that pulls nothing more."""

    @property
    def can_receive(self) -> bool:
        """Whether a pull may still be served: the subscription and the connection are there."""

    @property
    def owed(self) -> int:
        """Messages or bytes that the server may still send."""

    @property
    def last_activity(self) -> float:
        """When a message came last, or the consumption began, on the event loop's clock."""


async def until_nothing_is_owed(feed: Owed, source: Informed, deadline: float) -> None:
    """Wait until no message can arrive any more, or until the deadline on the event loop's clock."""
    loop = asyncio.get_running_loop()
    ask_at = 0.0
    while feed.can_receive and feed.owed > 0 and (now := loop.time()) < deadline:
        if now - feed.last_activity >= QUIET and now >= ask_at:
            before = feed.last_activity
            stalled = now - before >= STALLED
            pending = await _pending(source, deadline - now)
            # Everything that was sent before the answer has been read before it.
            if feed.last_activity == before and (pending == 0 or stalled):
                return
            ask_at = loop.time() + _ASK
        await asyncio.sleep(_LOOK)


async def _pending(source: Informed, timeout: float) -> int | None:
    """Ask how many messages are yet to be delivered: 0 if the consumer is gone, None if nobody can tell."""
    try:
        return (await source.info(timeout=timeout)).num_pending
    except (ConsumerNotFoundError, StreamNotFoundError):
        return 0
    except (JetStreamError, CallTimeoutError, TransportError):
        return None


def holds_pin(info: ConsumerInfo, group: str, pin_id: str) -> bool:
    """Return whether the pin of a group is the one of that id."""
    return any(state.group == group and state.pinned_client_id == pin_id for state in info.priority_groups)
