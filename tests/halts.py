"""Finds tests that take the pace of other processes for granted: ``make halts``, or with ``-p tests.halts``.

One in eight processes of the run is stopped at any time, chosen at random and for up to ``HALTS`` seconds
(default 1), as are those that get no processor on a busy machine. The processes are those of pytest-xdist,
and all servers and programs that the tests start. A test fails then if one of them must be faster than
another one, or if it has less time than that. The run prints its seed; ``HALTS_SEED`` repeats the choices,
if not their moments.

Only on Linux, whose ``/proc`` shows the environment of a process.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

_LONGEST: Final = float(os.environ.get("HALTS", "1"))
_SEED: Final = os.environ.setdefault("HALTS_SEED", str(random.randrange(10**6)))
#: In the environment of all processes that descend from pytest; its value is the number of pytest's process.
_MARK: Final = "HALTS_OF"
#: Of so many processes, one is stopped.
_ONE_IN: Final = 8
#: Seconds between two stops, and between two searches for processes.
_PAUSE, _SEARCH = 0.1, 0.5
_PROC: Final = Path("/proc")


def pytest_report_header() -> str:
    return f"processes stand still for up to {_LONGEST} s, with HALTS_SEED={_SEED}"


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    mark = str(os.getpid())
    halting = subprocess.Popen([sys.executable, "-m", "tests.halts", mark], stdin=subprocess.PIPE)
    os.environ[_MARK] = mark

    def end() -> None:
        halting.communicate()

    config.add_cleanup(end)


class Halts:
    """Stops processes and lets them go on.

    Args:
        mark: What their environment has.
        seed: Seed of the choices.
    """

    def __init__(self, mark: str, seed: str) -> None:
        self._entry = f"{_MARK}={mark}".encode()
        self._chance = random.Random(seed)
        # Whether a process is of the run, by its number and its start: numbers are used again.
        self._known: dict[tuple[int, str], bool] = {}
        self._halted: list[tuple[float, int]] = []

    def find(self) -> list[int]:
        """Return the processes of the run that are not stopped, by a test or here."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir(_PROC))) if self._runs(pid)]

    def _runs(self, pid: int) -> bool:
        try:
            state, start = _state_of(pid)
            key = (pid, start)
            if key not in self._known and (environment := (_PROC / str(pid) / "environ").read_bytes()):
                self._known[key] = self._entry in environment.split(b"\0")
        except OSError:  # it has ended
            return False
        return self._known.get(key, False) and state not in "TZ"

    def halt_one(self, pids: list[int]) -> None:
        """Stop one of these processes, unless enough are stopped."""
        if not pids or len(self._halted) >= max(1, len(pids) // _ONE_IN):
            return
        pid = self._chance.choice(pids)
        if self._runs(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                until = time.monotonic() + self._chance.uniform(0, _LONGEST)
                heapq.heappush(self._halted, (until, pid))

    def let_go_on(self, now: float = float("inf")) -> None:
        """Let those go on whose time is over."""
        while self._halted and self._halted[0][0] <= now:
            with contextlib.suppress(ProcessLookupError):
                os.kill(heapq.heappop(self._halted)[1], signal.SIGCONT)


def _state_of(pid: int) -> tuple[str, str]:
    """Return the state of a process and its start, in ticks since the start of the machine."""
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


def main(mark: str) -> None:
    """Halt processes until the end of the standard input."""
    halts, pids, searched = Halts(mark, _SEED), list[int](), float("-inf")
    while not select.select([sys.stdin], [], [], _PAUSE)[0]:
        now = time.monotonic()
        halts.let_go_on(now)
        if now - searched >= _SEARCH:
            pids, searched = halts.find(), now
        halts.halt_one(pids)
    halts.let_go_on()


if __name__ == "__main__":
    main(*sys.argv[1:])
