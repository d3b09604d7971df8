"""Keepalive ping schedule that stays within servers' ping limits. The caller provides the clock."""

from __future__ import annotations

from typing import Final

from liftenvelope._checks import as_seconds

__all__ = ["PING_TIMEOUT", "Keepalive"]

#: Seconds to wait for the answer to a ping, as in grpc-go.
PING_TIMEOUT: Final = 20.0
# grpc-go's server (internal/transport/http2_server.go, handlePing) and gRPC's C core count a strike for a
# ping less than 5 minutes after the previous one (keepalive.EnforcementPolicy.MinTime;
# min_ping_interval_without_data), or within 2 hours of it with no call open (PermitWithoutStream). At the
# third strike they end the connection with GOAWAY "too_many_pings". Sending headers or data resets a server's
# strikes and makes the next ping free. So pings are sent only while calls are open, and only if the ping is
# free or 5 minutes have passed.
_PATIENCE: Final = 300.0
# Added because the delay of the network varies between pings.
_MARGIN: Final = 1.0


class Keepalive:
    """Ping schedule of one connection.

    Args:
        interval: Seconds of silence before a ping is sent, None for no pings.
        now: Current time of a monotonic clock, in seconds.
        timeout: Seconds to wait for the answer.
    """

    def __init__(self, interval: float | None, now: float, timeout: float = PING_TIMEOUT) -> None:
        self._interval = None if interval is None else as_seconds("keepalive", interval)
        self._timeout = timeout
        self._heard = now
        self._pinged = now - _PATIENCE - _MARGIN
        self._awaited = False
        self._free = False

    def heard(self, now: float, *, of_calls: bool) -> None:
        """Record received data. ``of_calls``: it held headers or messages, so that the next ping is free."""
        self._heard = now
        # Data received before the answer to a ping may have been sent before the ping arrived. The server
        # then reset its strikes before that ping, so the data does not make another ping free.
        self._free |= of_calls and not self._awaited

    def answered(self) -> None:
        """Record the answer to a ping."""
        self._awaited = False

    def due(self, now: float, *, open_calls: bool) -> bool:
        """Return True if a ping must be sent now. The ping then counts as sent."""
        if self._interval is None or self._awaited or not open_calls:
            return False
        if now < self._heard + self._interval:
            return False
        if not self._free and now < self._pinged + _PATIENCE + _MARGIN:
            return False
        self._pinged, self._awaited, self._free = now, True, False
        return True

    def is_dead(self, now: float) -> bool:
        """Return True if a ping timed out and no other data arrived within the timeout."""
        return self._awaited and now >= max(self._pinged, self._heard) + self._timeout

    def wait(self, now: float) -> float | None:
        """Return the seconds until the next check, None for never."""
        if self._interval is None:
            return None
        if self._awaited:
            return max(0.0, max(self._pinged, self._heard) + self._timeout - now)
        left = self._heard + self._interval - now
        # The interval has passed, but no call is open or no ping is free: check again after another interval.
        return left if left > 0 else self._interval
