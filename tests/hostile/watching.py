"""Watches a process: its memory, descriptors and log; and the bystander's acks."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

__all__ = ["Bystander", "Watch", "descriptors", "resident_mib", "until"]

_ROOT: Final = Path(__file__).resolve().parents[2]
_SAMPLING: Final = 0.05
#: Seconds to wait for an event on a busy machine.
PATIENCE: Final = 120.0


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def descriptors(pid: int) -> int:
    """Return the number of open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


class Watch:
    """Samples the memory of a process in a thread, for the time of a ``with`` block.

    Attributes:
        peak: The most that was seen, in MiB.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self.before = self.peak = resident_mib(pid)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def growth(self) -> float:
        """Growth of the resident memory since the block began, at its peak, in MiB."""
        return self.peak - self.before

    def _sample(self) -> None:
        while not self._over.wait(_SAMPLING):
            try:
                self.peak = max(self.peak, resident_mib(self._pid))
            except (FileNotFoundError, IndexError):  # the process has ended, which the verdict says
                return


@dataclass(frozen=True)
class _Publish:
    ended: float
    took: float
    error: str


class Bystander:
    """The bystander's process, and what it has printed.

    Args:
        address: Where the victim listens.
        tls: Files of an authority and of a client's certificate, None for plain TCP.
        pause: Seconds between an ack and the next message.
    """

    def __init__(self, address: str, tls: tuple[str, str] | None, pause: float) -> None:
        arguments = json.dumps({"address": address, "stream": "bystander", "tls": tls, "pause": pause})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.bystander", arguments],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._seen: list[_Publish] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, count: int) -> None:
        """Wait until it has published ``count`` more messages, or failed to.

        Raises:
            TimeoutError: That took too long.
        """
        with self._changed:
            goal = len(self._seen) + count
            done = self._changed.wait_for(
                lambda: len(self._seen) >= goal or self._process.poll() is not None, PATIENCE
            )
        if not done or self._process.poll() is not None:
            raise TimeoutError("the bystander was not served")

    def wait_until(self, moment: float) -> None:
        """Wait until a publish has ended after a moment of :func:`time.monotonic`."""
        while time.monotonic() < moment:
            self.wait_for(1)

    def p50(self, start: float, stop: float) -> float:
        """Return the median latency of publishes that ended in a span of time, in milliseconds."""
        return statistics.median([each.took for each in self._of(start, stop)] or [stop - start]) * 1e3

    def errors(self, start: float, stop: float) -> list[str]:
        """Return what failed in a span of time."""
        return [each.error for each in self._of(start, stop) if each.error]

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)

    def _of(self, start: float, stop: float) -> list[_Publish]:
        with self._changed:
            return [each for each in self._seen if start <= each.ended <= stop]

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._changed:
                    self._seen.append(_Publish(*json.loads(line)))
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


def until(condition: object) -> bool:
    """Poll until a condition holds; return whether it did in time."""
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_SAMPLING)
    return True
