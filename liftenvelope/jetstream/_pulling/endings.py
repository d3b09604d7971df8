"""Ends a consumption: waits for messages already pulled and releases the pin.

A server (nats-server up to 2.15) has no request to cancel a pull. Its consumer picks a waiting pull for a
message, counts the message as delivered, and lets another goroutine find the subscription. If the
subscription is gone by then, the message is lost under ack policy NONE. Under the other policies the server
redelivers the message at once or after ``ack_wait``. A drain therefore keeps its subscription until one of
these conditions holds:

- Every pull has been filled or has expired. This condition is exact, and applies while messages keep coming.
- The consumer has nothing to deliver and has sent nothing for :data:`QUIET` seconds. A message published
  within about 50 microseconds of the unsubscription can still be lost. The longer the silence, the lower the
  risk. A server that stood still for that long may answer before it reads what was published meanwhile. Two
  answers must therefore show it, the second to a request sent after the first: in that round trip the server
  reads its other sockets too. Time in which this process stood still proves no silence: messages may wait in
  the socket. The quiet period therefore starts anew after each pause of the event loop.
- The consumer has delivered nothing to anyone for :data:`STALLED` seconds although messages are pending: it
  is paused or waits for acks. Two answers of the server must show that, because a server that stood still
  sends nothing either.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

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
#: Seconds between two answers with the same delivery sequence after which a consumer with pending messages
#: counts as stalled.
STALLED: Final = 1.0
#: Seconds between two checks of the feed.
_LOOK: Final = 0.005
#: Delay of a check in seconds after which the event loop counts as blocked.
_LATE: Final = 0.1
#: Seconds between two requests for the consumer's info.
_ASK: Final = 0.1
#: Answers in a row that must show an empty consumer.
_EMPTY: Final = 2


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
    quiet_since, due, asked_at, ask_at = feed.last_activity, loop.time() + _LOOK, 0.0, 0.0
    evidence = _Evidence()
    asking: asyncio.Task[_Position | None] | None = None
    try:
        while feed.can_receive and feed.owed > 0 and (now := loop.time()) < deadline:
            if now - due > _LATE:
                quiet_since = now
            quiet_since = max(quiet_since, feed.last_activity)
            if asking is None and now - quiet_since >= QUIET and now >= ask_at:
                asking, asked_at = loop.create_task(_position(source, deadline - now)), now
            elif asking is not None and asking.done():
                # The connection is ordered: messages sent before this answer were read before the answer.
                was_quiet = quiet_since + QUIET <= asked_at
                if evidence.shows_the_end(asking.result() if was_quiet else None, asked_at, now):
                    return
                asking, ask_at = None, now if evidence.empty else now + _ASK
            due = now + _LOOK
            await asyncio.sleep(_LOOK)
    finally:
        if asking is not None:
            asking.cancel()


class _Position(NamedTuple):
    """Position of a consumer.

    Attributes:
        pending: Number of messages not yet delivered.
        delivered: Number of deliveries, to any reader.
    """

    pending: int
    delivered: int


class _Evidence:
    """Judges from a consumer's positions whether it will deliver anything.

    Attributes:
        empty: Number of answers in a row that had no message to deliver and the same number of deliveries.
    """

    def __init__(self) -> None:
        self.empty = 0
        self._delivered = -1
        # Event loop time when that number of deliveries was first reported.
        self._since = 0.0

    def shows_the_end(self, position: _Position | None, asked_at: float, now: float) -> bool:
        """Return whether the consumer is empty or stalled.

        Args:
            position: Position in the server's answer; None if there was none, or if it proves nothing.
            asked_at: Event loop time of the request.
            now: Event loop time of the answer.
        """
        if position is None:
            self.empty = 0
            return False
        if position.delivered != self._delivered:
            self._delivered, self._since, self.empty = position.delivered, now, 0
        self.empty = 0 if position.pending else self.empty + 1
        return self.empty == _EMPTY or asked_at - self._since >= STALLED


async def _position(source: Informed, timeout: float) -> _Position | None:
    """Request the consumer's position: nothing pending if it is gone, None if the request fails."""
    try:
        info = await source.info(timeout=timeout)
    except (ConsumerNotFoundError, StreamNotFoundError):
        return _Position(pending=0, delivered=0)
    except (JetStreamError, CallTimeoutError, TransportError):
        return None
    return _Position(pending=info.num_pending, delivered=info.delivered.consumer_seq)


def holds_pin(info: ConsumerInfo, group: str, pin_id: str) -> bool:
    """Return true if the group is pinned to the client with this pin id."""
    return any(state.group == group and state.pinned_client_id == pin_id for state in info.priority_groups)
