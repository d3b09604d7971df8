"""Rounds in turn, A B A B: whatever slows the machine down for a while slows all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from timeit import Timer
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.report import Report, Row

#: One round: does the work and returns what it took per operation, in seconds.
Round = Callable[[], float]
_ROUND_SECONDS = 0.1


@dataclass(frozen=True)
class Peer:
    """What ours is compared with.

    Attributes:
        name: What it is.
        run: A round of it.
        target: How many times as fast ours is to be; None where the figure is for information.
        limit: What limits ours, for when the target is missed.
    """

    name: str
    run: Round
    target: float | None = None
    limit: str = ""


class Comparison:
    """Runs ours and its peers in turn and reports the medians.

    Attributes:
        quick: Whether this run is only to show that everything works: one small round of each.
    """

    def __init__(self, benchmark: BenchmarkFixture, report: Report) -> None:
        self._benchmark = benchmark
        self._report = report
        self.quick = bool(benchmark.disabled)

    def __call__(self, what: str, ours: Round, *peers: Peer, rate: bool = False, rounds: int = 9) -> None:
        """Compare.

        Args:
            what: What is measured.
            ours: A round of ours.
            peers: What it is compared with.
            rate: Whether to show operations per second instead of time per operation.
            rounds: How many rounds, after one to warm up.
        """
        taken: list[float] = []
        others: list[list[float]] = [[] for _ in peers]

        def run_peers() -> None:
            for peer, times in zip(peers, others, strict=True):
                times.append(peer.run())

        # Once as a whole before anything counts: imports, caches, connections, the servers' files.
        measure: Any = self._benchmark.pedantic
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
        """How much to do in a round: ``quick`` where the figure does not matter."""
        return quick if self.quick else full

    def timed(self, statement: str, names: dict[str, Any], *, per: int = 1) -> Round:
        """A round that repeats a statement; not a function, whose call would cost as much as the codec.

        Args:
            statement: What to time.
            names: What it sees.
            per: How many operations it does.
        """
        timer = Timer(statement, globals=names)
        number = 0

        def run() -> float:
            nonlocal number
            if not number:
                number = 1 if self.quick else _number(timer)
            return timer.timeit(number) / number / per

        return run


def _number(timer: Timer) -> int:
    number, took = timer.autorange()  # of at least 0.2 s
    return max(1, int(number * _ROUND_SECONDS / took))
