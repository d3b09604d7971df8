"""Interleaved rounds, A B A B: a slow phase of the machine slows all peers alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from statistics import median
from timeit import Timer
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.report import Report, Row

#: One round: does the work and returns the seconds per operation.
Round = Callable[[], float]
#: Runs ``for _ in turns:`` around the measured work. May return the last result, for a check.
Loop = Callable[[Iterable[None]], object]
_ROUND_SECONDS = 0.1


@dataclass(frozen=True)
class Peer:
    """A program or function to compare ours with.

    Attributes:
        name: Name of the peer in the table.
        run: One round of the peer.
        target: Required speed of ours, as a multiple of the peer's; None if the figure is for information.
        limit: Reason that limits ours, shown if the target is missed.
    """

    name: str
    run: Round
    target: float | None = None
    limit: str = ""


class Comparison:
    """Runs ours and its peers in turn and reports the medians.

    Attributes:
        quick: True if this run only shows that everything works, by one small round of each.
    """

    def __init__(self, benchmark: BenchmarkFixture, report: Report) -> None:
        self._benchmark = benchmark
        self._report = report
        self.quick = bool(benchmark.disabled)

    def __call__(self, what: str, ours: Round, *peers: Peer, rate: bool = False, rounds: int = 9) -> None:
        """Compare.

        Args:
            what: Name of the measurement.
            ours: One round of ours.
            peers: The peers to compare with.
            rate: True to show operations per second instead of time per operation.
            rounds: Number of rounds after one to warm up.
        """
        taken: list[float] = []
        others: list[list[float]] = [[] for _ in peers]

        def run_peers() -> None:
            self._report.same_work.append(_seconds(_count, 1))
            for peer, times in zip(peers, others, strict=True):
                times.append(peer.run())

        # Once as a whole before anything counts: imports, caches, connections, the servers' files.
        measure: Any = self._benchmark.pedantic
        with _harness_frozen():
            measure(lambda: taken.append(ours()), setup=run_peers, rounds=rounds, warmup_rounds=1)
        if self.quick:
            return
        for peer, times in zip(peers, others, strict=True):
            pairs = sorted(theirs / mine for mine, theirs in zip(taken[1:], times[1:], strict=True))
            row = Row(
                what=what,
                ours=median(taken[1:]),
                peer=peer.name,
                theirs=median(times[1:]),
                worst=pairs[0],
                best=pairs[-1],
                rate=rate,
                target=peer.target,
                limit=peer.limit,
            )
            self._report.rows.append(row)
            self._benchmark.extra_info[peer.name] = row.ratio

    def amount(self, full: int, quick: int) -> int:
        """Return the amount of work of a round: ``quick`` if the figure does not matter, else ``full``."""
        return quick if self.quick else full

    def timed(self, loop: Loop, *, per: int = 1) -> Round:
        """Return a round of 0.1 s that repeats a loop's work.

        The loop contains the work itself: a call of a function per turn would cost as much as the codec.

        Args:
            loop: Does the work once per turn.
            per: Number of operations per turn.
        """
        number = 0

        def run() -> float:
            nonlocal number
            if not number:
                number = 1 if self.quick else _number(loop)
            return _seconds(loop, number) / number / per

        return run


@contextmanager
def _harness_frozen() -> Iterator[None]:
    """Keep the garbage collector from visiting the objects that pytest and earlier benchmarks hold.

    Peers that are programs have no such objects. A message of ``publish_async`` took 3.7 us of CPU, of which
    full collections took 1.4 with these 114,000 objects, and take 0.2 without.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _count(_: Iterable[None]) -> None:
    """Do the same work each time, for some milliseconds: how its time varies is the machine's doing."""
    for _number in range(100_000):
        pass


def _seconds(loop: Loop, number: int) -> float:
    """Time a number of turns. Like ``timeit``: turns are not counted, and the garbage collector is off."""
    return Timer(lambda: loop(repeat(None, number))).timeit(1)


def _number(loop: Loop) -> int:
    """Return the number of turns that take about one round."""
    number = 1
    while (seconds := _seconds(loop, number)) < 2 * _ROUND_SECONDS:
        number *= 2
    return max(1, int(number * _ROUND_SECONDS / seconds))
