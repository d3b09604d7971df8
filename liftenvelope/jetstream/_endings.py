"""Ends a consumption: waits for messages already pulled and releases the pin.

A server (nats-server up to 2.15) has no request to cancel a pull. Its consumer picks a waiting pull for a
message, counts the message as delivered, and lets another goroutine find the subscription. If the
subscription is gone by then, the message is lost under ack policy NONE. Under the other policies the server
redelivers the message at once or after ``ack_wait``. A drain therefore keeps its subscription until one of
these conditions holds:

- Every pull has been filled or has expired. This condition is exact, and applies while messages keep coming.
- The consumer has nothing to deliver and has sent nothing for :data:`QUIET` seconds. A message published
  within about 50 microseconds of the unsubscription can still be lost. The longer the silence, the lower the
  risk.
- Nothing has arrived for :data:`STALLED` seconds although messages are pending: the consumer is paused, waits
  for acks, or serves another reader.
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

#: Default drain timeout in seconds. Longer than a pull waits without acks.
DRAIN: Final = 5.0
#: Seconds without a message after which an empty consumer counts as idle.
QUIET: Final = 0.2
#: Seconds without a message after which a consumer with pending messages counts as stalled.
STALLED: Final = 1.0
#: Seconds between two checks of the feed.
_LOOK: Final = 0.005
#: Seconds between two requests for the consumer's info.
_ASK: Final = 0.1


class Informed(Protocol):
    """Consumer whose info can be requested."""

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Request the consumer's info from the server."""


class Owed(Protocol):
    """Consumption that sends no more pulls."""

    @property
    def can_receive(self) -> bool:
        """Return true while the server can still answer a pull: subscription and connection are up."""

    @property
    def owed(self) -> int:
        """Messages or bytes the server may still send."""

    @property
    def last_activity(self) -> float:
        """Event loop time of the last message, or of the start if none has arrived."""


async def until_nothing_is_owed(feed: Owed, source: Informed, deadline: float) -> None:
    """Wait until no more messages can arrive, or until the deadline in event loop time."""
    loop = asyncio.get_running_loop()
    ask_at = 0.0
    while feed.can_receive and feed.owed > 0 and (now := loop.time()) < deadline:
        if now - feed.last_activity >= QUIET and now >= ask_at:
            before = feed.last_activity
            stalled = now - before >= STALLED
            pending = await _pending(source, deadline - now)
            # The connection is ordered: messages sent before this answer were read before the answer.
            if feed.last_activity == before and (pending == 0 or stalled):
                return
            ask_at = loop.time() + _ASK
        await asyncio.sleep(_LOOK)


async def _pending(source: Informed, timeout: float) -> int | None:
    """Request the number of pending messages: 0 if the consumer is gone, None if the request fails."""
    try:
        return (await source.info(timeout=timeout)).num_pending
    except (ConsumerNotFoundError, StreamNotFoundError):
        return 0
    except (JetStreamError, CallTimeoutError, TransportError):
        return None


def holds_pin(info: ConsumerInfo, group: str, pin_id: str) -> bool:
    """Return true if the group is pinned to the client with this pin id."""
    return any(state.group == group and state.pinned_client_id == pin_id for state in info.priority_groups)
