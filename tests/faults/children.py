"""Processes of a path: writers, archivers, coordinators and members that faults kill and stop.

``python -m tests.faults.children write|archive`` with a JSON object as its argument is one of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from liftenvelope import bulk
from liftenvelope.bulk import Access
from liftenvelope.errors import LiftEnvelopeError
from tests.faults.messages import Messages

__all__ = ["FAILED", "Child", "make_table", "program"]

#: Exit status of a child whose call failed with an error of the package.
FAILED: Final = 3
_ROOT: Final = Path(__file__).resolve().parents[2]
_HEADERS: Final = pa.map_(pa.string(), pa.binary())
_ROWS: Final = 4_000


class Child:
    """A process that may be killed and started again. Its lines are collected by a thread.

    Args:
        command: Returns the command of the start with that number.
        on_line: Called in the thread with each complete line of its output.
    """

    def __init__(self, command: Callable[[int], list[str]], on_line: Callable[[bytes], None]) -> None:
        self._command = command
        self._on_line = on_line
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Its process id, None when it is not running."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        """True while the process exists."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, unless it is running."""
        with self._lock:
            if self.is_running:
                return
            command = self._command(self._starts)
            self._starts += 1
            process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
            self._process = process
            self._reader = threading.Thread(target=self._read, args=(process,), name="child", daemon=True)
            self._reader.start()

    def kill(self) -> None:
        """Kill it with SIGKILL, and take the last of its lines."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended and all of its lines are taken; return its exit status.

        Raises:
            subprocess.TimeoutExpired: It has not ended after ``timeout`` seconds.
        """
        assert self._process is not None
        assert self._reader is not None
        status = self._process.wait(timeout)
        self._reader.join()
        return status

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if line.endswith(b"\n"):  # the last line of one that is killed may be cut off
                    self._on_line(line[:-1])


def program(work: str, **options: Any) -> list[str]:
    """Return the command of a child of this file."""
    return [sys.executable, "-m", "tests.faults.children", work, json.dumps(options)]


def make_table(messages: Messages, indexes: Iterable[int], *, partitioned: bool) -> pa.Table:
    """Return messages as a table that can be written.

    Args:
        messages: The messages.
        indexes: Their indexes.
        partitioned: Whether it is for the Liftbridge API: with keys and partitions.
    """
    numbers = list(indexes)
    columns: dict[str, Any] = {
        "value": pa.array([messages.value(i) for i in numbers], pa.binary()),
        "headers": pa.array([list((messages.headers(i) or {}).items()) for i in numbers], _HEADERS),
    }
    if partitioned:
        columns["key"] = pa.array([messages.key(i) for i in numbers], pa.binary())
        columns["partition"] = pa.array([messages.partition(i) for i in numbers], pa.int32())
    return pa.table(columns)


def _tell(**told: Any) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _write(source: list[str], stream: str, seed: int, start: int, stop: int, access: dict[str, Any]) -> None:
    """Write rows with message ids: those that are stored already are not stored again."""
    table = make_table(Messages(seed, keyed=False), range(start, stop), partitioned=False)
    written = bulk.write(
        source,
        stream,
        table.to_reader(_ROWS),
        subject=f"{stream}.written",
        message_id=f"{seed}-{start}",
        progress=lambda seen: _tell(rows=seen.rows),
        access=Access(**access),
    )
    _tell(written=written.acked, duplicates=written.duplicates)


def _archive(source: list[str], stream: str, path: str, access: dict[str, Any]) -> None:
    """Go on with an archive."""
    done = bulk.to_parquet(source, stream, path, rotate_rows=5_000, batch_rows=1_000, access=Access(**access))
    _tell(archived=done.rows)


def main() -> int:
    """Do what the command line says."""
    works: dict[str, Callable[..., None]] = {"write": _write, "archive": _archive}
    work, options = sys.argv[1], json.loads(sys.argv[2])
    try:
        works[work](**options)
    except LiftEnvelopeError as exc:
        cause = "" if exc.__cause__ is None else type(exc.__cause__).__name__
        _tell(error=type(exc).__name__, text=str(exc), cause=cause)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
