"""Deadlines of acks and answers, with time for data that arrived while the event loop was blocked."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["LATE", "TURNS", "ExpiryTimer", "catch_up", "wait_until"]

#: Timer delay in seconds after which the event loop counts as blocked, and loop turns granted then to read
#: data that arrived in the meantime.
LATE: Final = 0.1
TURNS: Final = 10
#: Seconds between these turns, in which the server answers what was sent only when the block ended.
_PAUSE: Final = 0.02
#: Seconds for all of these turns.
_GRACE: Final = TURNS * _PAUSE
#: Maximum number of turns while data arrives. One turn reads up to 256 KiB, so these are the acks of more
#: messages than may be in flight, and a flood of other data delays no timeout for more than two seconds.
_MOST_TURNS: Final = 100


async def wait_until(answer: asyncio.Future[Any], due: float) -> None:
    """Wait for an answer until ``due``, in event loop time, or a moment longer if the loop was blocked.

    The answer may be in the socket by then, or its request may not even be sent.
    """
    loop = asyncio.get_running_loop()
    await asyncio.wait({answer}, timeout=max(due - loop.time(), 0.0))
    if loop.time() - due > LATE:
        await asyncio.wait({answer}, timeout=_GRACE)


async def catch_up(due: float) -> None:
    """Let the loop send and read for a moment if it was blocked at ``due``, in event loop time."""
    if asyncio.get_running_loop().time() - due > LATE:
        await asyncio.sleep(_GRACE)


class ExpiryTimer:
    """Calls a function when the earliest deadline of a table has passed.

    While the event loop is blocked, messages wait to be sent, and acks wait in the socket. If a timer is
    late, the loop therefore sends and reads for up to two seconds before any entry expires, and ends when
    nothing arrives for 0.2 s. Otherwise a message would time out although the server had no time to answer.

    Args:
        nc: The connection that receives the acks.
        next_expiry: Returns the time of the earliest deadline, None if there is none.
        expire: Ends the entries whose deadlines have passed, given the current time.

    Attributes:
        at: Event loop time that the timer is set for; infinite if it is not set.
    """

    def __init__(
        self, nc: Client, next_expiry: Callable[[], float | None], expire: Callable[[float], None]
    ) -> None:
        self._nc: Any = nc
        self._next_expiry = next_expiry
        self._expire = expire
        self._handle: asyncio.TimerHandle | None = None
        self.at = math.inf

    def rearm(self) -> None:
        """Set the timer for the earliest deadline. Call this when a deadline before :attr:`at` is added."""
        self.stop()
        if (when := self._next_expiry()) is not None:
            self.at = when
            self._handle = asyncio.get_running_loop().call_at(when, self._ring, TURNS, _MOST_TURNS, -1)

    def stop(self) -> None:
        """Cancel the timer, if it is set."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self.at = None, math.inf

    def _ring(self, idle_turns: int, turns: int, received: int) -> None:
        """Expire entries, unless the timer is late and turns are left to read data."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now - self.at > LATE and idle_turns and turns:
            before, received = received, int(self._nc.stats["in_msgs"])
            idle_turns = idle_turns - 1 if received == before else TURNS
            self._handle = loop.call_at(now + _PAUSE, self._ring, idle_turns, turns - 1, received)
            return
        self._expire(now)
        self.rearm()
