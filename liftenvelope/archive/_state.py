"""State of the pipelines of an archive daemon, for its health and its metrics. No I/O."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["PipelineState", "readiness"]


@dataclass(slots=True)
class PipelineState:
    """Progress of one pipeline.

    Attributes:
        name: Name of the pipeline.
        is_running: True while a run is working.
        runs: Runs that ended well.
        failures: Runs that failed.
        failures_in_a_row: Failed runs since the last one that ended well.
        rows: Rows written by runs that wrote all, also if the upkeep of the table then failed.
        nbytes: Bytes of files written by them.
        dead_letters: Bad messages written to the stream of dead letters, also by runs that failed.
        pending: Offsets that the current run has still to read; 0 between runs.
        succeeded_at: Time of the last run that ended well, in seconds since 1970; 0 for none.
        error: Text of the last error; empty after a run that ended well.
        maintained_at: Monotonic time of the last upkeep in seconds; minus infinity for none.
    """

    name: str
    is_running: bool = False
    runs: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    rows: int = 0
    nbytes: int = 0
    dead_letters: int = 0
    pending: int = 0
    succeeded_at: float = 0.0
    error: str = ""
    maintained_at: float = -math.inf
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def begun(self) -> None:
        """Record the beginning of a run."""
        self.is_running = True

    def wrote_dead_letters(self, count: int) -> None:
        """Count dead letters. The threads of a run call this."""
        with self._lock:
            self.dead_letters += count

    def wrote(self, rows: int, nbytes: int) -> None:
        """Record what a run has written: all that it had to read."""
        self.pending = 0
        self.rows += rows
        self.nbytes += nbytes

    def succeeded(self, now: float) -> None:
        """Record a run that ended well."""
        self.is_running, self.pending, self.error = False, 0, ""
        self.runs += 1
        self.failures_in_a_row = 0
        self.succeeded_at = now

    def failed(self, error: str) -> None:
        """Record a run that failed."""
        self.is_running, self.pending, self.error = False, 0, error
        self.failures += 1
        self.failures_in_a_row += 1


def readiness(states: Iterable[PipelineState]) -> tuple[bool, str]:
    """Return whether the last run of every pipeline ended well, and a line for each that failed."""
    lines = [
        f"pipeline {one.name}: {one.failures_in_a_row} failed in a row: {one.error}\n"
        for one in states
        if one.failures_in_a_row
    ]
    return not lines, "".join(lines) or "ready\n"
