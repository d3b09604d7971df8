"""Saved runs of ``liftenvelope bench``, and their comparison. The files are JSON."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from liftenvelope.cli._options.lists import with_options
from liftenvelope.cli._options.places import check_file, check_folder
from liftenvelope.cli._output.terminal import shown
from liftenvelope.errors import UsageError

__all__ = ["RunFiles", "SavedRun", "compared", "read_run", "run_options", "write_run"]

#: Marks files of this command, so that no other file is taken for a run. Those of 1 had no time.
_FORMAT: Final = "liftenvelope bench 2"
_LARGEST: Final = 1024 * 1024
#: Last runs that are kept.
_MOST_KEPT: Final = 100
_FILE: Final = click.Path(dir_okay=False)
#: Adds the options that save and compare runs.
run_options: Final = with_options(
    click.option("--save", type=_FILE, metavar="FILE", help="Write the measured values to FILE as JSON."),
    click.option(
        "--compare",
        type=_FILE,
        metavar="FILE",
        help="Show changes since the run in FILE, from --save.  [default: the last run of the same call]",
    ),
    click.option(
        "--no-history", is_flag=True, help="Neither compare with the last run nor keep this one for the next."
    ),
)


@dataclass(frozen=True, slots=True)
class SavedRun:
    """Values of a run that was saved.

    Attributes:
        at: Time of the run, as text of ISO 8601.
        values: Measured values by name.
    """

    at: str
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Files of the run to compare with, and of this one.

    Attributes:
        save: File to write this run to; None for none.
        compare: File of the run to compare with; None for the last one of the same call.
        no_history: True to leave out the last run, and not to keep this one.
    """

    save: str | None
    compare: str | None
    no_history: bool

    def check(self) -> None:
        """Check that the files of the options can be read and written.

        Raises:
            click.UsageError: They can't.
        """
        if self.compare is not None:
            check_file("--compare", self.compare)
        if self.save is not None:
            check_folder("--save", self.save)

    def before(self, parameters: Mapping[str, object], place: Mapping[str, object]) -> SavedRun | None:
        """Return the run to compare with; None if there is none.

        Args:
            parameters: Settings that a comparable run must share.
            place: Servers and target, which the last run must share too.

        Raises:
            UsageError: The file of the option is no run with these parameters.
        """
        if self.compare is not None:
            return read_run(self.compare, parameters)
        if self.no_history:
            return None
        parameters = {**parameters, **place}
        try:
            return read_run(str(_last_file(parameters)), parameters)
        except (UsageError, FileNotFoundError):  # the first run, or a file that was cut off
            return None
        except OSError as exc:
            _note(f"the last run can't be read: {exc}")
            return None

    def keep(
        self, parameters: Mapping[str, object], place: Mapping[str, object], values: Mapping[str, float]
    ) -> None:
        """Write this run, as the last one and to the file of the option.

        Args:
            parameters: As for :meth:`before`.
            place: As for :meth:`before`.
            values: Measured values by name.
        """
        if self.save is not None:
            write_run(self.save, parameters, values)
        if self.no_history:
            return
        parameters = {**parameters, **place}
        try:
            path = _last_file(parameters)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_run(str(path), parameters, values)
            _prune(path.parent)
        except (OSError, UsageError) as exc:  # such as a home directory that is read-only
            _note(f"this run is not kept for a comparison: {exc}")


def _note(text: str) -> None:
    click.echo(shown(f"Note: {text}; --no-history leaves it out"), err=True)


def _prune(folder: Path) -> None:
    """Delete the oldest runs: calls with servers or streams of their own are many."""
    with suppress(FileNotFoundError):  # another process deletes them, too
        runs = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        for file in runs[:-_MOST_KEPT]:
            file.unlink()


def _last_file(parameters: Mapping[str, object]) -> Path:
    """Return the file of the last run with these parameters.

    Raises:
        UsageError: The user has no home directory.
    """
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        folder = given if given.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as exc:  # such as a user id of a container that /etc/passwd does not list
        raise UsageError("the user has no home directory; set XDG_STATE_HOME") from exc
    name = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()[:32]
    return folder / "liftenvelope" / "bench" / f"{name}.json"


def write_run(path: str, parameters: Mapping[str, object], values: Mapping[str, float]) -> None:
    """Write a run, with the time.

    Args:
        path: File, which is overwritten.
        parameters: Settings that a comparable run must share.
        values: Measured values by name.
    """
    at = datetime.now(UTC).isoformat(timespec="seconds")
    run = {"format": _FORMAT, "at": at, "parameters": dict(parameters), "values": dict(values)}
    Path(path).write_text(json.dumps(run, indent=1) + "\n", "utf-8")


def read_run(path: str, parameters: Mapping[str, object]) -> SavedRun:
    """Return a saved run.

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
        at = datetime.fromisoformat(run["at"]).isoformat()
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
    return SavedRun(at, values)


def compared(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Return the changes of values in percent, without those that one run lacks or that were 0.

    Example:
        >>> compared({"p50": 1.5, "p99": 4.0, "max": 1.0}, {"p50": 1.0, "p99": 8.0})
        {'p50': 50.0, 'p99': -50.0}
    """
    return {name: (value / before[name] - 1) * 100 for name, value in now.items() if before.get(name)}
