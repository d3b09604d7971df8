"""A client pings a silent server."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.errors import UsageError
from liftenvelope.rpc._keepalive import Keepalive


def test_ping_after_silence_while_calls_are_open() -> None:
    keep = Keepalive(30.0, 0.0)
    keep.heard(5.0, of_calls=True)
    assert keep.wait(5.0) == 30.0
    assert not keep.due(34.9, open_calls=True)
    assert not keep.due(35.0, open_calls=False)
    assert keep.due(35.0, open_calls=True)
    assert not keep.due(36.0, open_calls=True)


def test_server_that_does_not_answer_is_dead() -> None:
    keep = Keepalive(30.0, 0.0, timeout=20.0)
    assert keep.due(30.0, open_calls=True)
    assert keep.wait(30.0) == 20.0
    assert not keep.is_dead(49.9)
    assert keep.is_dead(50.0)
    keep.heard(49.0, of_calls=False)
    assert not keep.is_dead(50.0)
    assert keep.is_dead(69.0)


def test_second_ping_waits_for_messages_or_five_minutes() -> None:
    keep = Keepalive(30.0, 0.0)
    assert keep.due(30.0, open_calls=True)
    keep.heard(31.0, of_calls=True)  # perhaps sent before the ping came
    keep.answered()
    assert not keep.due(300.0, open_calls=True)
    assert keep.due(331.0, open_calls=True)
    keep.answered()
    keep.heard(332.0, of_calls=True)
    assert keep.due(362.0, open_calls=True)


def test_never() -> None:
    keep = Keepalive(None, 0.0)
    assert keep.wait(1e9) is None
    assert not keep.due(1e9, open_calls=True)


@pytest.mark.parametrize("interval", [0, -1, math.nan])
def test_interval_that_makes_no_sense(interval: float) -> None:
    with pytest.raises(UsageError, match="keepalive"):
        Keepalive(interval, 0.0)


@given(
    st.floats(0.1, 400),
    st.lists(st.tuples(st.floats(0, 200), st.sampled_from(["data", "look", "look"])), max_size=200),
)
def test_go_server_never_counts_a_strike(interval: float, steps: list[tuple[float, str]]) -> None:
    # grpc-go's rule, with everything arriving at once.
    keep, now = Keepalive(interval, 0.0), 0.0
    last_ping, free = -math.inf, False
    for pause, what in steps:
        now += pause
        if what == "data":
            keep.heard(now, of_calls=True)
            free = True
        elif keep.due(now, open_calls=True):
            assert free or now - last_ping >= 300
            last_ping, free = now, False
            keep.heard(now, of_calls=False)
            keep.answered()
