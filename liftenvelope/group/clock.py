"""Clock of leases, which keeps running while the machine is suspended."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

__all__ = ["time_since_boot"]

# CLOCK_MONOTONIC, and with it the event loop's time, stops on Linux while the machine is suspended.
_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


#: Returns the seconds since boot, including time spent suspended.
time_since_boot: Final[Callable[[], float]] = (
    time.monotonic if _CLOCK is None else partial(time.clock_gettime, _CLOCK)
)
