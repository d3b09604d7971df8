"""Finds tests that take an order of events for granted: ``make late``, or pytest with ``-p tests.late``.

Each connection and pipe of an event loop delivers nothing for up to ``LATE`` seconds (default 0.4), then all
for up to as long, and so on. Two connections so disagree about what happened first, as on a busy machine or a
slow network. A test fails then if it takes for granted that the work of a background task is over. Tests with
the mark ``punctual`` are about what lies in a socket: for them nothing is late.

The run prints its seed. With that in ``LATE_SEED``, the moments are nearly the same again.
"""

from __future__ import annotations

import os
import random
import selectors
import socket
import stat
import time
from typing import Any, Final

import pytest

_LONGEST: Final = float(os.environ.get("LATE", "0.4"))
#: The processes of pytest-xdist get it with the environment.
_SEED: Final = os.environ.setdefault("LATE_SEED", str(random.randrange(10**6)))
#: Seconds between two looks at connections that wait.
_LOOK: Final = 0.003
_random: Final = random.Random(_SEED)
_sleep: Final = time.sleep  # some tests put another one in its place


class LateSelector(selectors.DefaultSelector):
    """Reports that a connection can be read later than it can.

    Attributes:
        is_late: Whether it does so now.
    """

    is_late = False

    def __init__(self) -> None:
        super().__init__()
        # Those that are never late: the pipe by which threads wake the loop, which registers it first, and
        # listeners. A loop takes what waits at these before anything that it is told later.
        self._punctual = set[int]()
        # For each descriptor whether it waits, and until when.
        self._phases: dict[int, tuple[bool, float]] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Register a descriptor."""
        key = super().register(fileobj, events, data)
        if not self._punctual or _listens(key.fd):
            self._punctual.add(key.fd)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Unregister a descriptor: the next one of its number is another."""
        key = super().unregister(fileobj)
        self._phases.pop(key.fd, None)
        self._punctual.discard(key.fd)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready, without what can be read and has to wait."""
        ready = super().select(timeout)
        now = time.monotonic()
        passed = []
        for key, mask in ready:
            waits = mask & selectors.EVENT_READ and self._waits(key.fd, now)
            if left := mask & ~selectors.EVENT_READ if waits else mask:
                passed.append((key, left))
        if ready and not passed and timeout != 0:
            _sleep(_LOOK if timeout is None else max(0.0, min(_LOOK, timeout)))
        return passed

    def _waits(self, fd: int, now: float) -> bool:
        if fd in self._punctual or not self.is_late:
            return False
        waits, until = self._phases.get(fd, (_random.random() < 0.5, now))
        if now >= until:
            waits, until = not waits, now + _random.uniform(0, _LONGEST)
            self._phases[fd] = waits, until
        return waits


def _listens(fd: int) -> bool:
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return False
    with socket.socket(fileno=os.dup(fd)) as one:
        return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def pytest_configure() -> None:
    selectors.DefaultSelector = LateSelector  # type: ignore[misc]


def pytest_report_header() -> str:
    return f"connections deliver up to {_LONGEST} s late, with LATE_SEED={_SEED}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _random.seed(f"{_SEED} {item.nodeid}")
    LateSelector.is_late = item.get_closest_marker("punctual") is None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    # Or the loop would close before it has read that its connections have ended.
    LateSelector.is_late = False
