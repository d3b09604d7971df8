"""End of a command by SIGTERM: its coroutine is cancelled, as asyncio does it for Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeVar

__all__ = ["run_until_terminated"]

_STATUS: Final = 128 + signal.SIGTERM
_T = TypeVar("_T")


def run_until_terminated(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine and return its result. SIGTERM cancels it, so that it closes its connections itself.

    An exception that the handler of the signal raised in the event loop would come out of the loop itself.
    Connections would then be closed when the loop no longer runs, and Python warn of them. So it is raised in
    the coroutine alone, which may wait for a terminal or a pipe, and otherwise only by a second SIGTERM: a
    coroutine may not end soon after it is cancelled.

    Raises:
        SystemExit: SIGTERM came, and the coroutine ended by that.
    """

    async def run() -> _T:
        with _cancelled_by_sigterm() as signals:
            try:
                return await work
            except asyncio.CancelledError:
                if signals:
                    sys.exit(_STATUS)
                raise
            except RuntimeError as exc:
                # The wait of a condition unlocks its lock meanwhile, which then complains of a second time.
                if signals and _is_after_exit(exc):
                    sys.exit(_STATUS)
                raise

    return asyncio.run(run())


def _is_after_exit(error: BaseException | None) -> bool:
    """Return True if an error came up while SystemExit was on its way."""
    while error is not None and not isinstance(error, SystemExit):
        error = error.__context__
    return error is not None


@contextmanager
def _cancelled_by_sigterm() -> Iterator[list[int]]:
    """Cancel the current task on SIGTERM, if the command handles that signal; yield the signals that came."""
    before, seen = signal.getsignal(signal.SIGTERM), list[int]()
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield seen
        return

    def cancel(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before)
        seen.append(number)
        if asyncio.current_task(loop) is task:
            before(number, frame)
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # wakes the loop

    signal.signal(signal.SIGTERM, cancel)
    try:
        yield seen
    finally:
        if signal.getsignal(signal.SIGTERM) is cancel:
            signal.signal(signal.SIGTERM, before)
