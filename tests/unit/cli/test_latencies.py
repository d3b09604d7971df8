"""Percentiles and histograms of ``liftenvelope bench``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.cli._latencies import PERCENTILES, bars, buckets, percentile, shown_seconds

VALUES = st.lists(st.floats(0, 1e6), min_size=1).map(sorted)


def test_percentiles_by_nearest_rank() -> None:
    values = [float(number) for number in range(1, 1001)]
    assert [percentile(values, one) for one in PERCENTILES] == [500, 900, 990, 999, 1000]
    assert percentile([7.0], 50) == percentile([7.0], 99.9) == 7.0


@given(VALUES, st.floats(0.001, 100))
def test_percentile_is_a_value_that_enough_values_do_not_exceed(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100 - 1e-9


@given(VALUES)
def test_buckets_hold_every_value_once(values: list[float]) -> None:
    found = buckets(values)
    assert sum(count for _, count in found) == len(values)
    bounds = [bound for bound, _ in found]
    assert bounds == sorted(bounds)
    assert found[0][1] > 0
    assert found[-1][1] > 0
    assert values[-1] <= bounds[-1]


def test_bounds_are_1_2_and_5() -> None:
    assert buckets([0.0, 3e-6, 4e-5]) == [(1e-6, 1), (2e-6, 0), (5e-6, 1), (1e-5, 0), (2e-5, 0), (5e-5, 1)]
    assert buckets([]) == []


@given(st.lists(st.integers(0, 10**9)))
def test_bars_have_at_most_40_characters_and_show_every_count(counts: list[int]) -> None:
    drawn = bars(counts)
    assert all(len(bar) <= 40 for bar in drawn)
    assert [bool(bar) for bar in drawn] == [count > 0 for count in counts]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 us"), (1e-6, "1 us"), (0.000999, "999 us"), (0.001, "1 ms"), (0.9994, "999 ms"), (60, "60 s")],
)
def test_durations_have_a_unit(seconds: float, text: str) -> None:
    assert shown_seconds(seconds) == text
