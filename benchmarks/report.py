"""The table of results, and the machine and versions that they are of."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Final

_PACKAGES = ("nats-py", "protobuf", "pyarrow", "Cython")
#: Fewer times say nothing of how they vary.
_FEW_TIMES: Final = 100
_HEAD = ("what", "ours", "peer", "peer's", "times as fast", "of single rounds", "target", "met")


@dataclass(frozen=True)
class Row:
    """One comparison; times are seconds per operation, medians of the rounds.

    Attributes:
        what, rate: What was measured, and whether it is shown per second.
        ours, theirs: The times.
        peer: Whose the other one is.
        worst, best: The ratio of the worst and the best pair of rounds.
        target: The ratio that is wanted, None where there is none.
        limit: What limits ours, for when the target is missed.
    """

    what: str
    ours: float
    peer: str
    theirs: float
    worst: float
    best: float
    rate: bool
    target: float | None
    limit: str

    @property
    def ratio(self) -> float:
        """Speed of ours as a multiple of the peer's."""
        return self.theirs / self.ours

    @property
    def shown_ratio(self) -> str:
        """The ratio with three digits, or with as many as tell it from a missed target."""
        missed = None if self.met or self.target is None else f"{self.target:.3g}"
        return next(text for digits in range(3, 18) if (text := f"{self.ratio:.{digits}g}") != missed)

    @property
    def met(self) -> bool:
        """True if the target is met, or there is none."""
        return self.target is None or self.ratio >= self.target

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        wanted = (
            ("-", "") if self.target is None else (f"≥ {self.target:.3g}", "yes" if self.met else "**no**")
        )
        spread = f"{self.worst:.3g} - {self.best:.3g}"
        return (
            self.what,
            self._shown(self.ours),
            self.peer,
            self._shown(self.theirs),
            self.shown_ratio,
            spread,
            *wanted,
        )

    def line(self) -> str:
        """Return the row in one line, for a terminal."""
        what, ours, peer, theirs, ratio, spread, *_ = self.cells()
        return f"{what}: {ours}, {peer} {theirs}: {ratio} times as fast ({spread})"

    def _shown(self, seconds: float) -> str:
        if self.rate:
            return f"{1 / seconds:,.0f}/s"
        for scale, name in ((1e9, "ns"), (1e6, "µs")):
            if seconds * scale < 10_000:
                return (
                    f"{seconds * scale:.3g} {name}"
                    if seconds * scale < 1000
                    else f"{seconds * scale:,.0f} {name}"
                )
        return f"{seconds * 1e3:,.0f} ms"


@dataclass(frozen=True)
class Bound:
    """A figure that is to stay below a bound.

    Attributes:
        what: What was measured.
        found, most: The figure, and how large it may be.
        unit: Of both.
        limit: What keeps it above, for when it is.
    """

    what: str
    found: float
    most: float
    unit: str
    limit: str = ""

    @property
    def met(self) -> bool:
        """True if the figure is below its bound."""
        return self.found < self.most

    def line(self) -> str:
        """Return the line of the page."""
        verdict = "yes" if self.met else f"**no** {self.limit}".rstrip()
        return (
            f"- {self.what}: {self.found:,.3g} {self.unit}, to be < {self.most:,.3g} {self.unit}: {verdict}"
        )


@dataclass
class Report:
    """Everything that a run found.

    Attributes:
        rows: The comparisons in the order in which they were made.
        bounds: Figures that have no peer.
        versions: Names and versions of servers and peers, as they tell them themselves.
        absent: Peers that were not measured, and the reasons.
        command: What writes the page.
        load: Load of the machine when the run began.
        same_work: Times of a loop of the same work, one before each round.
    """

    rows: list[Row] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    command: str = "`make bench` (`python -m benchmarks`)"
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    same_work: list[float] = field(default_factory=list)

    def table(self) -> str:
        """The results in columns."""
        cells = [_HEAD, *(row.cells() for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [_line(row, widths) for row in cells]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        return "\n".join(lines)

    def missed(self) -> list[Row]:
        """The rows that do not meet their targets."""
        return [row for row in self.rows if not row.met]

    def markdown(self) -> str:
        """The page of results."""
        missed = [
            f"- **{row.what}, beside {row.peer}**: {row.shown_ratio}, not {row.target:.3g}. {row.limit}"
            for row in self.missed()
        ]
        return "\n".join(
            [
                "# Results",
                "",
                f"Written by {self.command}. Ours and its peers ran in turn, round by",
                "round, after one round that does not count; figures are medians of the rounds. The ratio is",
                "how many times as fast ours is, then its range over single pairs of rounds. Rows without a",
                "target are for information. Garbage collections of a round do not visit what pytest held",
                "before (`gc.freeze`): programs of peers have no such objects.",
                "",
                self.table(),
                "",
                *([*(bound.line() for bound in self.bounds), ""] if self.bounds else []),
                *(["## Missed", "", *missed, ""] if missed else self._all_met()),
                "## Machine",
                "",
                *(f"- {line}" for line in self.machine()),
                "",
            ]
        )

    def _all_met(self) -> list[str]:
        return ["All targets are met.", ""] if all(bound.met for bound in self.bounds) else []

    def machine(self) -> list[str]:
        """Return the machine and the versions of the measurement."""
        packages = {"Python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
        cores = os.cpu_count() or 1
        note = ": other work ran beside or just before, so times may be long and rounds vary"
        busy = note if self.load > cores / 2 else ""
        return [
            f"{_processor()}, {cores} cores; load when the run began {self.load:.2f}{busy}",
            *self._unsteadiness(),
            ", ".join(f"{name} {number}" for name, number in packages.items()),
            ", ".join(f"{name} {number}" for name, number in self.versions.items()),
            *(f"{name} was not measured: {reason}" for name, reason in self.absent.items()),
        ]

    def _unsteadiness(self) -> list[str]:
        """Say how much the machine itself varied."""
        if len(self.same_work) < _FEW_TIMES:
            return []
        middle = median(self.same_work)
        low, *_, high = (part / middle for part in quantiles(self.same_work, n=20))
        rounds, most = len(self.same_work), max(self.same_work) / middle
        return [
            f"A loop of the same work, timed before each of {rounds:,} rounds, took {low:.2f} to {high:.2f} "
            f"of its median in nine rounds of ten, and {most:.2f} at most: so much the machine itself varied"
        ]


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.split(":", 1) for line in reversed(lines) if ":" in line)
    fields = {name.strip(): text.strip() for name, text in pairs}
    names = ("model name", "cpu family", "model", "stepping")
    model, *numbers = (fields.get(name, "?") for name in names)
    return f"{model} (family {numbers[0]}, model {numbers[1]}, stepping {numbers[2]})"
