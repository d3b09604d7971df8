"""Deadline of one operation."""

from __future__ import annotations

import time

import pytest

from liftenvelope._deadlines import Deadline


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still until a test moves it."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_deadline_passes_at_its_timeout(clock: list[float]) -> None:
    deadline = Deadline(2.5)
    assert (deadline.timeout, deadline.left, deadline.is_over) == (2.5, 2.5, False)
    clock[0] += 2.25
    assert (deadline.left, deadline.is_over) == (0.25, False)
    clock[0] += 0.25
    assert (deadline.left, deadline.is_over) == (0.001, True)
    clock[0] += 9.0
    assert (deadline.timeout, deadline.left, deadline.is_over) == (2.5, 0.001, True)


def test_pause_before_an_attempt_ends_at_the_deadline(clock: list[float]) -> None:
    deadline = Deadline(10.0)
    assert deadline.pause_before(0) == 0.0
    assert 0.025 <= deadline.pause_before(1) <= 0.05
    assert 0.5 <= deadline.pause_before(1_000_000) <= 1.0
    clock[0] += 9.75
    assert deadline.pause_before(1_000_000) == 0.25
    clock[0] += 1.0
    assert deadline.pause_before(1_000_000) == 0.001
