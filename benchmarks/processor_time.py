"""Processor time of processes, user and system together."""

from __future__ import annotations

import os
import resource
from pathlib import Path

__all__ = ["of_process", "own"]


def own() -> float:
    """Return the processor time of this process so far, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def of_process(pid: int | None) -> float:
    """Return the processor time of another process, in seconds, in steps of mostly 10 ms. Needs /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
