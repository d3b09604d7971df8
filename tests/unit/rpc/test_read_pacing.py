"""Reads before which a pause saves processor time."""

from __future__ import annotations

import pytest

from liftenvelope.rpc._read_pacing import ReadPacer


@pytest.mark.parametrize(
    ("reads", "is_due"),
    [
        ([], False),
        ([(100, 0.0)], False),
        ([(100, 0.0), (100, 0.0005)], True),
        ([(100, 0.0), (100, 0.05)], False),
        ([(100, 0.0), (200_000, 0.0005)], False),
        ([(200_000, 0.0), (100, 0.0005)], True),
        ([(100, 0.0), (100, 0.0005), (100, 0.1)], False),
        ([(100, 0.0), (100, 0.0005), (200_000, 0.001)], False),
    ],
    ids=["none", "first", "close", "far apart", "large", "small after large", "silence", "large again"],
)
def test_pause_is_due_after_small_reads_close_together(reads: list[tuple[int, float]], is_due: bool) -> None:
    pacer = ReadPacer()
    for size, now in reads:
        pacer.received(size, now)
    assert pacer.is_due is is_due
