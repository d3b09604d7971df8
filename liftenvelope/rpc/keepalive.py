"""When to ask a silent server for a sign of life, so that it does not mind being asked. No clock in here."""

from __future__ import annotations

from typing import Final

from liftenvelope.errors import UsageError

__all__ = ["PING_TIMEOUT", "Keepalive"]

#: Seconds that a server has for its answer, as in grpc-go.
PING_TIMEOUT: Final = 20.0
# grpc-go's server (internal/transport/http2_server.go, handlePing) and gRPC's C core count a strike for a
# ping that comes less than 5 minutes after the one before (keepalive.EnforcementPolicy.MinTime;
# min_ping_interval_without_data), or within 2 hours of it with no call open (PermitWithoutStream), and end
# the connection with GOAWAY "too_many_pings" at the third. When they send headers or data, strikes are
# forgotten and the next ping is free. So one is sent only while calls are open, and if it is free or 5
# minutes have passed.
_PATIENCE: Final = 300.0
# A little more, since pings may travel at different speeds.
_MARGIN: Final = 1.0


class Keepalive:
    """The times of pings on one connection.

    Args:
        interval: Seconds of silence before a ping is sent, None for never.
        now: The time, on a clock that only goes forward.
        timeout: Seconds for the answer.
    """

    def __init__(self, interval: float | None, now: float, timeout: float = PING_TIMEOUT) -> None:
        if interval is not None and not interval > 0:
            raise UsageError(f"keepalive={interval!r}: expected a positive number of seconds, or None")
        self._interval = interval
        self._timeout = timeout
        self._heard = now
        self._pinged = now - _PATIENCE - _MARGIN
        self._awaited = False
        self._free = False

    def heard(self, now: float, *, of_calls: bool) -> None:
        """Note that something came. ``of_calls``: headers or messages, so that the next ping is free."""
        self._heard = now
        # What came before the answer to a ping may have been sent before the ping arrived, and used up by it.
        self._free |= of_calls and not self._awaited

    def answered(self) -> None:
        """Note that the ping was answered."""
        self._awaited = False

    def due(self, now: float, *, open_calls: bool) -> bool:
        """Whether a ping must be sent now. If so, it counts as sent."""
        if self._interval is None or self._awaited or not open_calls:
            return False
        if now < self._heard + self._interval:
            return False
        if not self._free and now < self._pinged + _PATIENCE + _MARGIN:
            return False
        self._pinged, self._awaited, self._free = now, True, False
        return True

    def is_dead(self, now: float) -> bool:
        """Whether a ping was not answered in time, and nothing else came since either."""
        return self._awaited and now >= max(self._pinged, self._heard) + self._timeout

    def wait(self, now: float) -> float | None:
        """Seconds after which to look again, None for never."""
        if self._interval is None:
            return None
        if self._awaited:
            return max(0.0, max(self._pinged, self._heard) + self._timeout - now)
        left = self._heard + self._interval - now
        # Without an open call, or a free ping, there is nothing to do when that has passed.
        return left if left > 0 else self._interval
