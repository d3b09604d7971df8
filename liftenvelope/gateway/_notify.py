"""Tells systemd the state of the service: the protocol of ``sd_notify``, for units with ``Type=notify``."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Final

__all__ = ["notify", "notify_reloading"]

_log: Final = logging.getLogger("liftenvelope.gateway")
_VARIABLE: Final = "NOTIFY_SOCKET"


def notify(*states: str) -> None:
    """Send assignments such as ``READY=1`` to the socket in NOTIFY_SOCKET. Without the variable, do nothing.

    A socket that can't be reached is logged: systemd then ends the service when its start times out.
    """
    address = os.environ.get(_VARIABLE)
    if not address:
        return
    # A name in Linux's abstract namespace begins with a zero byte, which a variable can't hold.
    path = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
            sending.setblocking(False)
            sending.sendto("\n".join(states).encode(), path)
    except OSError as exc:
        _log.error("could not tell systemd %s: %s: %s", states[0], _VARIABLE, exc)


def notify_reloading() -> None:
    """Tell systemd that the service reloads its files. ``READY=1`` ends that state."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
