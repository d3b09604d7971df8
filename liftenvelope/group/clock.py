"""The clock of leases: it runs on while the machine is suspended."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["time_since_boot"]

# CLOCK_MONOTONIC, and so the event loop's time, stands still on Linux while the machine is suspended.
_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def time_since_boot() -> float:
    """Return the seconds since boot, those included in which the machine was suspended."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
