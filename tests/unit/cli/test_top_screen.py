"""Screen of ``liftenvelope top``, on terminals of any size."""

from __future__ import annotations

import pytest
from rich.console import Console

from liftenvelope.cli._top_screen import screen
from liftenvelope.monitor import History, PartitionSample, Snapshot, StreamSample


@pytest.mark.parametrize("width", [40, 60, 120])
def test_number_of_rows_that_are_left_out_is_not_cut(width: int) -> None:
    parts = [PartitionSample(number=0, at=1.0, end=1_234_567)]
    streams = {name: StreamSample(name=name, partitions=parts) for name in (f"s{n}" for n in range(2_000))}
    history = History()
    history.add(Snapshot(at=1.0, kind="jetstream", streams=streams))
    console = Console(width=width, height=24)
    with console.capture() as captured:
        console.print(screen(history, (), "localhost", "name", 24, width))
    shown = captured.get().splitlines()
    assert [line.strip() for line in shown if "more" in line] == ["1,985 more"]
    assert max(map(len, shown)) <= width
