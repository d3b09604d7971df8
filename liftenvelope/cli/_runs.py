"""Saved runs of ``liftenvelope bench``, and their comparison. The files are JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from liftenvelope.errors import UsageError

__all__ = ["compared", "read_run", "write_run"]

#: Marks files of this command, so that no other file is taken for a run.
_FORMAT: Final = "liftenvelope bench 1"
_LARGEST: Final = 1024 * 1024


def write_run(path: str, parameters: Mapping[str, object], values: Mapping[str, float]) -> None:
    """Write a run.

    Args:
        path: File, which is overwritten.
        parameters: Settings that a comparable run must share.
        values: Measured values by name.
    """
    run = {"format": _FORMAT, "parameters": dict(parameters), "values": dict(values)}
    Path(path).write_text(json.dumps(run, indent=1) + "\n", "utf-8")


def read_run(path: str, parameters: Mapping[str, object]) -> dict[str, float]:
    """Return the values of a saved run.

    Args:
        path: File of :func:`write_run`.
        parameters: Settings of the run to compare with.

    Raises:
        UsageError: The file is not one of :func:`write_run`, or its run had other parameters.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(_LARGEST)
    try:
        run: Any = json.loads(text)
        if run["format"] != _FORMAT:
            raise ValueError
        saved: dict[str, object] = dict(run["parameters"])
        values = {str(name): float(value) for name, value in run["values"].items()}
        if not all(map(math.isfinite, values.values())):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UsageError(f"--compare must be a file that --save has written, got {path}") from None
    different = [
        f"{name} {saved.get(name)!r:.40} instead of {value!r:.40}"
        for name, value in parameters.items()
        if saved.get(name) != value
    ]
    if different:
        raise UsageError(f"--compare must be a run with the same parameters, got {', '.join(different)}")
    return values


def compared(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Return the changes of values in percent, without those that one run lacks or that were 0.

    Example:
        >>> compared({"p50": 1.5, "p99": 4.0, "max": 1.0}, {"p50": 1.0, "p99": 8.0})
        {'p50': 50.0, 'p99': -50.0}
    """
    return {name: (value / before[name] - 1) * 100 for name, value in now.items() if before.get(name)}
