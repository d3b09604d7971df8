"""A progress bar for reads and writes, in terminals and in notebooks, without further packages."""

from __future__ import annotations

import sys
import time
import uuid
from html import escape
from typing import Final, Protocol, Self, TextIO

from liftenvelope.bulk.ranges import Progress

__all__ = ["ProgressBar"]

#: Seconds between two drawings.
_PAUSE: Final = 0.1
#: Cells of the bar in a terminal.
_WIDTH: Final = 30
#: Style of the bar in a notebook.
_ROW: Final = (
    "display: flex; flex-wrap: wrap; align-items: center; gap: 0 0.7em; font-variant-numeric: tabular-nums"
)


class _View(Protocol):
    def draw(self, label: str, part: float | None, numbers: str) -> None: ...

    def end(self) -> None: ...


class ProgressBar:
    """Draws the progress of a read or write: pass it as the argument ``progress``.

    In a terminal the bar is a line on standard error; in a Jupyter notebook it is below the cell. Elsewhere,
    such as in a log file, nothing is drawn. Use one bar for one read or write.

    Args:
        label: Text in front of the bar, such as the name of the stream.
        file: Terminal to draw on. Default: standard error.

    Example:
        >>> with bulk.ProgressBar("ORDERS") as bar:  # doctest: +SKIP
        ...     table = bulk.read("nats://localhost:4222", "ORDERS", progress=bar).read_all()
    """

    def __init__(self, label: str = "", *, file: TextIO | None = None) -> None:
        self._label = label
        self._view = _find_view(sys.stderr if file is None else file)
        self._started = time.monotonic()
        self._drawn = 0.0
        self._last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        """Draw a progress, at most ten times a second."""
        self._last = progress
        if (now := time.monotonic()) - self._drawn >= _PAUSE:
            self._drawn = now
            self._draw(progress)

    def close(self) -> None:
        """Draw the last progress, and end the line."""
        if self._view is not None and self._last is not None:
            self._draw(self._last)
            self._view.end()
        self._view = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw(self, progress: Progress) -> None:
        if self._view is not None:
            seconds = time.monotonic() - self._started
            self._view.draw(self._label, _part(progress), _numbers(progress, seconds))


def _part(progress: Progress) -> float | None:
    """Return the part that is done, from 0 to 1; None if the end is not known."""
    if progress.total is None:
        return None
    return min(progress.done / progress.total, 1.0) if progress.total else 1.0


def _numbers(progress: Progress, seconds: float) -> str:
    pace = 1 / seconds if seconds > 0 else 0.0
    numbers = [f"{progress.bytes / 1e6:,.1f} MB"]
    if progress.rows:
        numbers = [f"{progress.rows:,} rows", *numbers, f"{progress.rows * pace:,.0f} rows/s"]
    elif progress.bytes:  # of a backup
        numbers += [f"{progress.bytes / 1e6 * pace:,.1f} MB/s"]
    return ", ".join(numbers)


def _text(label: str, part: float | None, numbers: str) -> str:
    return " ".join([*filter(None, [label]), *([] if part is None else [f"{part:4.0%}"]), numbers])


class _Terminal:
    """A line that is drawn over again."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def draw(self, label: str, part: float | None, numbers: str) -> None:
        full = 0 if part is None else round(part * _WIDTH)
        bar = "" if part is None else f" [{'#' * full}{'.' * (_WIDTH - full)}]"
        self._file.write(f"\r{_text(label, part, numbers)}{bar}\x1b[K")
        self._file.flush()

    def end(self) -> None:
        self._file.write("\n")
        self._file.flush()


class _Display(Protocol):
    """The part of IPython that sends output to the notebook."""

    def publish(self, data: dict[str, str], *, transient: dict[str, str], update: bool = False) -> None: ...


class _Notebook:
    """An output of the cell that is replaced by each drawing."""

    def __init__(self, display: _Display) -> None:
        self._display = display
        self._id = uuid.uuid4().hex
        self._is_shown = False
        self._endless: tuple[str, str] | None = None

    def draw(self, label: str, part: float | None, numbers: str) -> None:
        self._endless = None if part is not None else (label, numbers)
        value = "" if part is None else f' value="{part:.3f}"'
        self._publish(f'<progress{value} style="width: 14em"></progress>', label, part, numbers)

    def end(self) -> None:
        """Leave the last drawing, without a bar that has no end: it would move for ever."""
        if self._endless is not None:
            label, numbers = self._endless
            self._publish("", label, None, numbers)

    def _publish(self, bar: str, label: str, part: float | None, numbers: str) -> None:
        percent = "" if part is None else f"{part:.0%}"
        # The label may wrap in a narrow window; digits of one width keep the rest from moving.
        cells = [
            f"<span>{escape(label)}</span>" if label else "",
            bar,
            f'<span style="min-width: 2.5em; text-align: right">{percent}</span>' if percent else "",
            f"<span>{numbers}</span>",
        ]
        html = f'<div style="{_ROW}">{"".join(cells)}</div>'
        shown = {"text/html": html, "text/plain": _text(label, part, numbers)}
        self._display.publish(shown, transient={"display_id": self._id}, update=self._is_shown)
        self._is_shown = True


def _find_view(file: TextIO) -> _View | None:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None and getattr(shell, "kernel", None) is not None:
        return _Notebook(shell.display_pub)
    return _Terminal(file) if file.isatty() else None
