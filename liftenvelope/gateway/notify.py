"""Tells systemd the state of the service: the protocol of ``sd_notify``, for units with ``Type=notify``."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

__all__ = ["VARIABLES", "feeding_watchdog", "notify", "notify_reloading"]

_log: Final = logging.getLogger("liftenvelope.gateway")
_VARIABLE: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_WATCHED: Final = "WATCHDOG_PID"
_ALIVE: Final = "WATCHDOG=1"
#: Messages that may wait for room in the socket, and seconds until they are sent again.
_MOST: Final = 32
_AGAIN: Final = 0.1
#: Environment variables that are for the main process of the service alone.
VARIABLES: Final = (_VARIABLE, _WATCHDOG, _WATCHED)


class _Waiting:
    """States that found the socket full, in their order; sent again until they fit."""

    def __init__(self) -> None:
        self._states: deque[tuple[str, bytes]] = deque(maxlen=_MOST)
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._states)

    def add(self, path: str, message: bytes) -> None:
        """Keep a message, in place of the oldest one if there are too many."""
        self._states.append((path, message))
        self._later()

    def _later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_AGAIN, self._send)

    def _send(self) -> None:
        self._timer = None
        try:
            while self._states:
                _send(*self._states[0])
                self._states.popleft()
        except BlockingIOError:
            self._later()
        except OSError as exc:
            self._states.clear()
            _log.error("could not tell systemd the last states: %s: %s", _VARIABLE, exc)


_waiting: Final = _Waiting()


def notify(*states: str) -> None:
    """Send assignments such as ``READY=1`` to the socket in NOTIFY_SOCKET. Without the variable, do nothing.

    If the socket is full, because systemd is slow, the states are sent again until they fit. A socket that
    can't be reached is logged: systemd then ends the service when its start times out.
    """
    address = os.environ.get(_VARIABLE)
    if not address:
        return
    # A name in Linux's abstract namespace begins with a zero byte, which a variable can't hold.
    path = f"\0{address[1:]}" if address.startswith("@") else address
    message = "\n".join(states).encode()
    try:
        if _waiting:
            raise BlockingIOError  # states keep their order
        _send(path, message)
    except BlockingIOError:
        if states[0] != _ALIVE:  # the next one follows soon
            _waiting.add(path, message)
    except OSError as exc:
        _log.error("could not tell systemd %s: %s: %s", states[0], _VARIABLE, exc)


def _send(path: str, message: bytes) -> None:
    """Send a message.

    Raises:
        BlockingIOError: The socket is full.
        OSError: It can't be reached.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
        sending.setblocking(False)
        sending.sendto(message, path)


def notify_reloading() -> None:
    """Tell systemd that the service reloads its files. ``READY=1`` ends that state."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


@asynccontextmanager
async def feeding_watchdog() -> AsyncIterator[None]:
    """Tell systemd's watchdog that the event loop turns, while the block runs.

    Without ``WatchdogSec`` in the unit, do nothing. A message is sent each half of that time.
    """
    pause = _watchdog_seconds() / 2
    if not pause:
        yield
        return
    feeding = asyncio.create_task(_feed(pause), name="systemd's watchdog")
    try:
        yield
    finally:
        feeding.cancel()
        await asyncio.wait([feeding])


async def _feed(pause: float) -> None:
    while True:
        notify(_ALIVE)
        await asyncio.sleep(pause)


def _watchdog_seconds() -> float:
    """Return the seconds after which systemd ends a silent service; 0 for never."""
    try:
        if int(os.environ.get(_WATCHED) or os.getpid()) != os.getpid():
            return 0.0
        return int(os.environ.get(_WATCHDOG) or 0) / 1e6
    except ValueError:
        return 0.0
