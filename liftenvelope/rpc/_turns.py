"""Divides the turns of an event loop among the connections of a server.

A turn that handled everything that a hundred clients sent would delay all other work: acks of publishes,
messages for readers, other clients. So the connections share a time budget per turn. A connection handles its
frames in pieces of at most that budget, and waits in one of three queues:

- ``light``: it has received bytes, and was not served since. All of them are served, until the budget is used
  up.
- ``heavy``: it had more frames than its last piece. Served after the light ones, one piece per turn. If the
  light ones used up the budget, the next turn begins with a heavy one, so neither queue starves.
- ``useless``: it had more frames than its last piece, which was of no use: resets, or control frames. Of all
  these, one piece is served per ``_PAUSE``. So a flood leaves the loop and the processors mostly idle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["PieceOutcome", "Turns"]

#: Seconds that the frames of all connections may take in one turn of the event loop. A publish takes about
#: three turns, so its latency grows by three times this value.
_TURN: Final = 0.0003
#: Seconds between two pieces of useless frames.
_PAUSE: Final = 0.001
#: Calls cancelled per turn. Each takes about 35 us.
_CANCELS: Final = 8


class PieceOutcome(Enum):
    """Outcome of a piece of work."""

    DONE = "all frames are handled"
    USEFUL = "frames are left, and those handled were of use"
    USELESS = "frames are left, and those handled were of no use"


class _TurnTaker(Protocol):
    def work(self, is_over: Callable[[], bool]) -> PieceOutcome:
        """Handle frames until there are no more, or ``is_over`` returns True after a frame."""
        ...


class Turns:
    """Serves connections that have received bytes. Not thread-safe.

    Args:
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._light: deque[_TurnTaker] = deque()
        self._heavy: deque[_TurnTaker] = deque()
        self._useless: deque[_TurnTaker] = deque()
        self._cancelling: deque[asyncio.Task[None]] = deque()
        self._spent = 0.0
        self._heavy_first = False
        self._is_due = self._is_pausing = False

    def arrived(self, worker: _TurnTaker) -> None:
        """Serve a connection that has received bytes: now, or in a later turn if the budget is used up."""
        if self._light or self._spent >= _TURN:
            self._light.append(worker)
        else:
            self._serve(worker)
        self._go_on()

    def cancel(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Cancel the tasks of ended calls, a few per turn: a client may end a thousand with one frame."""
        self._cancelling.extend(tasks)
        self._cancel_some()
        self._go_on()

    def cancel_all(self) -> list[asyncio.Task[None]]:
        """Cancel the tasks that :meth:`cancel` has left to later turns; return them."""
        tasks = list(self._cancelling)
        self._cancelling.clear()
        for task in tasks:
            task.cancel()
        return tasks

    def _go_on(self) -> None:
        """Schedule the next turn. It is also needed to end this one."""
        if not self._is_due and (self._spent or self._light or self._heavy or self._cancelling):
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due, self._spent = False, 0.0
        try:
            self._cancel_some()
            served = self._heavy_first and self._serve_next(self._heavy)
            while self._spent < _TURN and self._serve_next(self._light):
                pass
            if self._spent < _TURN and not served:
                served = self._serve_next(self._heavy)
            self._heavy_first = not served
        finally:
            self._go_on()

    def _useless_turn(self) -> None:
        self._is_pausing = False
        try:
            self._serve_next(self._useless)
        finally:
            self._pause()
            self._go_on()

    def _pause(self) -> None:
        if self._useless and not self._is_pausing:
            self._is_pausing = True
            asyncio.get_running_loop().call_later(_PAUSE, self._useless_turn)

    def _serve_next(self, queue: deque[_TurnTaker]) -> bool:
        """Serve the first connection of a queue; return False if the queue is empty."""
        if not queue:
            return False
        self._serve(queue.popleft())
        return True

    def _serve(self, worker: _TurnTaker) -> None:
        began = self._clock()
        outcome = worker.work(lambda: self._clock() - began >= _TURN)
        self._spent += self._clock() - began
        if outcome is PieceOutcome.USEFUL:
            self._heavy.append(worker)
        elif outcome is PieceOutcome.USELESS:
            self._useless.append(worker)
            self._pause()

    def _cancel_some(self) -> None:
        for _ in range(min(_CANCELS, len(self._cancelling))):
            self._cancelling.popleft().cancel()
