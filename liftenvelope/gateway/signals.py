"""Signals that end a program."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["stopped_by_signals"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopped_by_signals() -> Iterator[asyncio.Event]:
    """Handle SIGINT and SIGTERM while the block runs; a second one has its default effect on the program.

    SIGHUP, which ends a program by default, is ignored until the block adds a handler. That one is removed
    after the block.

    Yields:
        An event that the first signal sets.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    try:
        yield stop
    finally:
        for number in (*_SIGNALS, signal.SIGHUP):
            loop.remove_signal_handler(number)
