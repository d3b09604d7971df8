"""The progress bar in terminals, notebooks and files, and the columns of readers in notebooks."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from liftenvelope import bulk


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Notebook:
    """IPython's shell in a kernel, as far as the bar uses it."""

    def __init__(self) -> None:
        self.kernel = object()
        self.display_pub = self
        self.published: list[tuple[str, str, bool]] = []
        self.display_formatter = SimpleNamespace(formatters={"text/html": self})
        self.shows: dict[type, Callable[[Any], str]] = {}

    def publish(self, data: dict[str, str], *, transient: dict[str, str], update: bool = False) -> None:
        self.published.append((transient["display_id"], data["text/html"], update))

    def for_type(self, kind: type, show: Callable[[Any], str]) -> None:
        self.shows[kind] = show


def test_bar_in_a_terminal_ends_at_the_last_progress() -> None:
    file = Terminal()
    with bulk.ProgressBar("orders", file=file) as bar:
        bar(bulk.Progress(10, 1_000_000, 20, 40))
        bar(bulk.Progress(20, 2_000_000, 30, 40))
        bar(bulk.Progress(25, 2_500_000, 40, 40))
    first, *_, last = file.getvalue().split("\r")[1:]
    assert first.startswith("orders  50% 10 rows, 1.0 MB")
    assert "[###############...............]" in first
    assert last.startswith("orders 100% 25 rows, 2.5 MB")
    assert last.endswith("[##############################]\x1b[K\n")


@pytest.mark.parametrize(("done", "total", "text"), [(0, 0, "100%"), (9, 4, "100%"), (7, None, "3 rows")])
def test_bar_of_an_empty_an_outgrown_and_an_endless_range(done: int, total: int | None, text: str) -> None:
    file = Terminal()
    with bulk.ProgressBar(file=file) as bar:
        bar(bulk.Progress(3, 30, done, total))
    assert text in file.getvalue()
    assert ("%" in file.getvalue()) == (total is not None)


def test_bar_draws_nothing_on_a_file_and_nothing_without_progress() -> None:
    file, terminal = io.StringIO(), Terminal()
    with bulk.ProgressBar(file=file) as bar:
        bar(bulk.Progress(3, 30, 1, 1))
    with bulk.ProgressBar(file=terminal):
        pass
    assert file.getvalue() == terminal.getvalue() == ""


def test_bar_in_a_notebook_is_one_output_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with bulk.ProgressBar("<orders>") as bar:
        bar(bulk.Progress(10, 10, 1, 4))
        bar(bulk.Progress(40, 40, 4, 4))
    (name, first, is_update), (same, last, is_last_update) = shell.published
    assert (name, is_update, is_last_update) == (same, False, True)
    bar_of_a_quarter = '<span>&lt;orders&gt;</span><progress value="0.250"'
    assert bar_of_a_quarter in first
    assert ">25%</span><span>10 rows" in first
    assert '<progress value="1.000"' in last


def test_bar_without_an_end_does_not_move_for_ever_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with bulk.ProgressBar("orders") as bar:
        bar(bulk.Progress(10, 10, 1, None))
        assert "<progress style" in shell.published[-1][1]
    assert "<progress" not in shell.published[-1][1]
    assert "<span>10 rows" in shell.published[-1][1]


def test_extension_shows_the_columns_of_a_reader_without_reading_it() -> None:
    shell = Notebook()
    bulk.load_ipython_extension(shell)
    schema = pa.schema([("key", pa.binary()), pa.field("<n>", pa.int64(), nullable=False)])
    batch = pa.record_batch([[b"k"], [1]], schema=schema)
    reader = pa.RecordBatchReader.from_batches(schema, [batch])
    shown = shell.shows[pa.RecordBatchReader](reader)
    assert re.findall(r"<td[^>]*>(.*?)</td>", shown)[3:] == ["&lt;n&gt;", "int64", "no"]
    assert reader.read_all().num_rows == 1


def test_backup_shows_bytes_without_rows() -> None:
    terminal = Terminal()
    with bulk.ProgressBar("orders", file=terminal) as bar:
        bar(bulk.Progress(rows=0, bytes=2_500_000, done=5, total=10))
    assert terminal.getvalue().rpartition("\r")[2].startswith("orders  50% 2.5 MB, ")
    assert " MB/s [" in terminal.getvalue()
    assert "rows" not in terminal.getvalue()
