"""Divides the turns of an event loop among the connections of a server.

A turn that handled everything that a hundred clients sent would delay all other work: acks of publishes,
messages for readers, other clients. So the connections share a time budget per turn. A connection handles its
frames in pieces of at most that budget, and waits in one of three queues:

- ``light``: it has received bytes, and was not served since. Served until the budget is used up, in the order
  of the time used in the last two periods, least first, and of arrival. Otherwise a client with one message
  would wait behind one read of each client that sends as fast as it can.
- ``heavy``: it had more frames than its last piece. Served after the light ones, one piece per turn. If the
  light ones used up the budget, the next turn begins with a heavy one, so neither queue starves.
- ``useless``: it had more frames than its last piece, which was of no use: resets, or control frames. Of all
  these, one piece is served per ``_PAUSE``. So a flood leaves the loop and the processors mostly idle.

A message is answered after several turns, so the length of a turn counts as well. While a connection that has
used little meets a queue of connections that have used much, the queues get a third of the budget. That is
not the default: with short turns, 20 connections that send without pause cost a third more time per byte.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from heapq import heappop, heappush
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["PieceOutcome", "Turns"]

#: Seconds that the frames of all connections may take in one turn of the event loop. A publish takes about
#: five turns, so its latency grows by five times this value.
_TURN: Final = 0.0003
#: Seconds for the queues in a short turn, and seconds for which turns stay short after their cause.
_SHORT_TURN: Final = 0.0001
_STAY_SHORT: Final = 0.01
#: Seconds of a period. The time used counts in the same period and the next, so a connection that has used
#: more than all others waits behind them for at most two periods.
_PERIOD: Final = 0.05
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
    """Connection that is served.

    Attributes:
        used: Number of the last period in which the connection was served, and the seconds that it used in
            the period before and in that one. Set by :class:`Turns`; at first ``(0, 0.0, 0.0)``.
    """

    used: tuple[int, float, float]

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
        #: Heap of the light connections: seconds used, number of the arrival, connection.
        self._light: list[tuple[float, int, _TurnTaker]] = []
        self._arrivals = count()
        self._heavy: deque[_TurnTaker] = deque()
        self._useless: deque[_TurnTaker] = deque()
        self._cancelling: deque[asyncio.Task[None]] = deque()
        #: Start of the last piece; until when turns are short; start and number of the period.
        self._now = self._short_until = self._period_began = clock()
        self._period = 0
        self._spent = 0.0
        self._heavy_first = False
        self._is_due = self._is_pausing = False

    def arrived(self, worker: _TurnTaker) -> None:
        """Serve a connection that has received bytes: now, or in a later turn if the budget is used up."""
        used, least = sum(self._used(worker)), self._light[0][0] if self._light else 0.0
        if 2 * used < least:
            self._short_until = self._now + _STAY_SHORT
        if self._spent >= _TURN or (self._light and used >= least):
            heappush(self._light, (used, next(self._arrivals), worker))
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
            budget = _SHORT_TURN if self._now < self._short_until else _TURN
            while self._spent < budget and self._light:
                self._serve(heappop(self._light)[2])
            if self._spent < budget and not served:
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
        began = self._now = self._clock()
        if began - self._period_began >= _PERIOD:
            self._start_period()
        outcome = worker.work(lambda: self._clock() - began >= _TURN)
        took = self._clock() - began
        self._spent += took
        before, now = self._used(worker)
        # The rest of a longer piece was mostly spent waiting for a processor.
        worker.used = (self._period, before, now + min(took, _TURN))
        if outcome is PieceOutcome.USEFUL:
            self._heavy.append(worker)
        elif outcome is PieceOutcome.USELESS:
            self._useless.append(worker)
            self._pause()

    def _used(self, worker: _TurnTaker) -> tuple[float, float]:
        """Return the seconds that a connection has used in the last period and in the current one."""
        period, before, now = worker.used
        if period == self._period:
            return before, now
        return (now if period == self._period - 1 else 0.0), 0.0

    def _start_period(self) -> None:
        """Start a period: sort the connections that wait by what they have used since the last one began."""
        self._period += 1
        self._period_began = self._now
        self._light = sorted((sum(self._used(worker)), number, worker) for _, number, worker in self._light)

    def _cancel_some(self) -> None:
        for _ in range(min(_CANCELS, len(self._cancelling))):
            self._cancelling.popleft().cancel()
