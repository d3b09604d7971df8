"""Gaps of a read of one range, without a server."""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from liftenvelope.bulk import Access, RetentionError
from liftenvelope.bulk._engine import range_read
from liftenvelope.bulk._engine.crew import Outlet
from liftenvelope.bulk._engine.plan import BatchPlan
from liftenvelope.bulk._engine.range_read import RangeRead
from liftenvelope.bulk.ranges import Extent, Range
from liftenvelope.errors import OffsetOutOfRangeError


@dataclass
class _Source:
    oldest: int = 0
    asked: int = 0
    stream: str = "s"
    access: Access = field(default_factory=Access)

    def extent(self, partition: int) -> Extent:
        self.asked += 1
        return Extent(self.oldest, 1_000)

    def may_have_holes(self) -> bool:
        return False


class _Rows:
    rows = 0
    nbytes = 0
    next_offset = 0


class _Gappy(RangeRead):
    """Reads 100 batches, each of which has a gap."""

    _passing: ClassVar[tuple[type[Exception], ...]] = (ConnectionError,)

    def _read(self) -> None:
        for start in range(0, 1_000, 10):
            self._gaps.append((start, start + 5))
            self._hand_out(block=True)


def gappy(source: _Source, on_retention: str, stop: int = 1_000) -> _Gappy:
    plan = BatchPlan((), pa.schema([]), "none", 10, 10, None, on_retention)
    pieces: queue.Queue[Any] = queue.Queue()
    return _Gappy(source, Range(0, 0, stop), plan, Outlet(pieces, threading.Event()), _Rows(), "s")


def test_read_that_skips_asks_for_its_gaps_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(range_read, "GAPS_PAUSE", 60.0)
    source = _Source(oldest=1_000)
    with caplog.at_level(logging.WARNING, "liftenvelope.bulk"):
        gappy(source, "skip").run()
    assert source.asked == 2, "at the first gap, and at the end"
    assert [one.message for one in caplog.records] == [
        "s: retention took 5 messages from offset 0 on before they were read",
        "s: retention took 495 messages from offset 10 on before they were read",
    ]


@pytest.mark.parametrize(("stop", "taken"), [(-1, 1), (1_000, 0)])
def test_tail_without_a_row_goes_on_in_a_stream_that_was_created_again(stop: int, taken: int) -> None:
    tail = gappy(_Source(), "raise", -1)
    tail._check_same_log(0, 1)
    tail._check_same_log(5, 2)
    other = gappy(_Source(), "raise", stop)
    other._next = taken
    other._check_same_log(5, 1)
    with pytest.raises(OffsetOutOfRangeError, match=f"made anew while it was read, before offset {taken}"):
        other._check_same_log(5, 2)


def test_read_that_raises_asks_for_each_gap() -> None:
    source = _Source()
    gappy(source, "raise").run()
    assert source.asked == 100
    source.oldest = 1
    with pytest.raises(RetentionError):
        gappy(source, "raise").run()
