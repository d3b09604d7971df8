"""Retry delays: bounds, growth and jitter of pauses, and the limit on the time without progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._backoff import Backoff, Patience, pause_before

ATTEMPTS = st.integers(1, 10**9)
BOUNDS = st.tuples(st.floats(0.001, 10), st.floats(0.001, 10)).map(sorted)


def test_first_attempt_has_no_pause() -> None:
    assert pause_before(0) == 0.0


@given(st.integers(1, 10_000))
def test_default_pauses_grow_from_50_ms_to_1_s(attempt: int) -> None:
    longest = min(1.0, 0.05 * 2 ** min(attempt - 1, 10))
    assert longest / 2 <= pause_before(attempt) <= longest


@given(ATTEMPTS, BOUNDS, st.floats(0, 1))
def test_jitter_only_shortens_pause(attempt: int, bounds: list[float], jitter: float) -> None:
    first, longest = bounds
    exact = pause_before(attempt, first=first, longest=longest, jitter=0.0)
    assert exact <= longest
    assert exact * (1 - jitter) <= pause_before(attempt, first=first, longest=longest, jitter=jitter) <= exact


@given(st.integers(1, 200), BOUNDS)
def test_exact_pauses_double_up_to_longest(attempt: int, bounds: list[float]) -> None:
    first, longest = bounds
    before, after = (
        pause_before(number, first=first, longest=longest, jitter=0.0) for number in (attempt, attempt + 1)
    )
    assert after == min(2 * before, longest)


@pytest.mark.parametrize("attempt", [1_100, 10**6, 10**30])
def test_huge_attempt_has_longest_pause(attempt: int) -> None:
    assert pause_before(attempt, first=0.001, longest=5.0, jitter=0.0) == 5.0


def test_longest_below_first_caps_first_pause() -> None:
    assert pause_before(1, first=1.0, longest=0.25, jitter=0.0) == 0.25


def test_jitter_makes_pauses_differ() -> None:
    assert len({pause_before(5) for _ in range(20)}) > 10


class TestBackoff:
    def test_pauses_grow_with_failures(self) -> None:
        backoff = Backoff(first=0.1, longest=0.5, jitter=0.0)
        assert [backoff.next() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
        assert backoff.failures == 5

    def test_reset_starts_with_first_pause(self) -> None:
        backoff = Backoff(first=0.1, longest=0.5, jitter=0.0)
        backoff.next()
        backoff.next()
        backoff.reset()
        assert backoff.failures == 0
        assert backoff.next() == 0.1

    def test_default_pause_has_jitter(self) -> None:
        assert len({Backoff().next() for _ in range(20)}) > 10


class TestPatience:
    def test_limit_counts_from_first_failure(self) -> None:
        patience = Patience(2.0)
        assert patience.failed(100.0) is not None
        assert patience.failed(101.9) is not None
        assert patience.failed(102.0) is None

    def test_limit_counts_from_given_time(self) -> None:
        patience = Patience(2.0, since=100.0)
        assert patience.failed(101.9) is not None
        assert patience.failed(102.0) is None

    def test_progress_restarts_limit(self) -> None:
        patience = Patience(2.0)
        patience.failed(100.0)
        patience.progressed(101.0)
        assert patience.failed(102.9) is not None
        assert patience.failed(103.0) is None

    def test_progress_restarts_pauses(self) -> None:
        patience = Patience(60.0, first=0.1, longest=10.0)
        for _ in range(8):
            patience.failed(0.0)
        patience.progressed(1.0)
        pause = patience.failed(1.0)
        assert pause is not None
        assert 0.05 <= pause <= 0.1

    @given(st.integers(1, 100))
    def test_pauses_stay_within_bounds(self, failures: int) -> None:
        patience = Patience(1.0, first=0.1, longest=3.0)
        for number in range(failures):
            pause = patience.failed(0.0)
            longest = min(3.0, 0.1 * 2**number)
            assert pause is not None
            assert longest / 2 <= pause <= longest

    def test_zero_limit_makes_first_failure_final(self) -> None:
        assert Patience(0.0).failed(5.0) is None
