"""The times of a pull are valid for the server, for any floats that are given."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.errors import UsageError
from liftenvelope.jetstream._consumer_config import AckPolicy, ConsumerConfig, PriorityPolicy
from liftenvelope.jetstream._pulling.endings import DRAIN
from liftenvelope.jetstream._pulling.options import consume_plan, fetch_plan

#: What a fetch may be told, in seconds.
SPANS = st.floats(0.001, 1e6, allow_nan=False)


def pull_of(payload: bytes) -> dict[str, int]:
    pull: dict[str, int] = json.loads(payload)
    assert pull["expires"] > 0
    # Otherwise the server answers 400, "heartbeat value too large".
    assert 2 * pull.get("idle_heartbeat", 0) <= pull["expires"]
    return pull


@given(st.floats(1, 1e6), st.none() | st.floats(1, 100))
def test_heartbeats_of_consumptions(expires: float, priority_timeout: float | None) -> None:
    config, group = ConsumerConfig(), None
    if priority_timeout is not None:
        config = ConsumerConfig(
            priority_policy=PriorityPolicy.PINNED_CLIENT,
            priority_groups=("a",),
            priority_timeout=priority_timeout,
        )
        group = "a"
    pull_of(consume_plan(config, expires=expires, group=group).payload(1, None))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stop_after": 0}, "stop_after must be at least 1, got 0"),
        ({"stop_after": 2**63}, "stop_after must be at most"),
        (
            {"stop_after": 5, "max_bytes": 100},
            "stop_after must be None with max_bytes, got 5: use max_messages",
        ),
        ({"buffer_bytes": 0}, "buffer_bytes must be at least 1, got 0"),
        ({"buffer_bytes": 2_001}, "buffer_bytes must be at most 2000, the consumer's limit"),
        ({"buffer_bytes": 5, "max_bytes": 100}, "buffer_bytes must be None with max_bytes, got 5"),
        ({"buffer_bytes": 5, "threshold_bytes": 2}, "threshold_bytes must be None with max_messages, got 2"),
        ({"max_messages": 5, "max_bytes": 100}, "exclude each other.* or use buffer_bytes"),
        ({"max_messages": 2**63}, "max_messages must be at most"),
        ({"max_bytes": 2**63}, "max_bytes must be at most"),
    ],
)
def test_limits_that_are_refused(options: dict[str, int], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        consume_plan(ConsumerConfig(max_bytes=2_000), **options)  # type: ignore[arg-type]


@given(SPANS, st.none() | st.floats(0.5, 30), st.none() | SPANS, SPANS)
def test_heartbeats_of_fetches(
    expires: float, beat: float | None, max_expires: float | None, left: float
) -> None:
    if beat is not None and beat > expires / 2:
        beat = None
    plan = fetch_plan(
        ConsumerConfig(max_expires=max_expires),
        max_messages=1,
        max_bytes=None,
        expires=expires,
        idle_heartbeat=beat,
    )
    first = pull_of(plan.payload(1, None))
    assert first["expires"] <= math.ceil(min(expires, max_expires or math.inf) * 1e9 + 1)
    again = pull_of(plan.payload(1, None, left))
    assert again["expires"] <= first["expires"]


@pytest.mark.parametrize(
    ("expires", "max_expires", "beat"),
    [(9.9, None, None), (10, None, 5), (30, None, 5), (3600, None, 5), (30, 10, 5), (30, 9, None)],
)
def test_pull_of_a_fetch_has_heartbeats_from_10_seconds_on(
    expires: float, max_expires: float | None, beat: int | None
) -> None:
    config = ConsumerConfig(max_expires=max_expires)
    plan = fetch_plan(config, max_messages=1, max_bytes=None, expires=expires, idle_heartbeat=None)
    assert pull_of(plan.payload(1, None)).get("idle_heartbeat") == (beat and beat * 10**9)
    assert plan.limits.idle_heartbeat == (beat or 0)


def test_pulls_wait_for_at_most_64_bits_of_nanoseconds() -> None:
    plan = fetch_plan(ConsumerConfig(), max_messages=1, max_bytes=None, expires=1e15, idle_heartbeat=None)
    assert pull_of(plan.payload(1, None))["expires"] == 2**63 - 1
    plan = consume_plan(ConsumerConfig(), expires=1e15, idle_heartbeat=5)
    assert pull_of(plan.payload(1, None))["expires"] == 2**63 - 1


@pytest.mark.parametrize(
    ("ack_policy", "seconds"), [(AckPolicy.NONE, 4), (AckPolicy.ALL, 30), (AckPolicy.EXPLICIT, 30)]
)
def test_pulls_without_acks_expire_before_a_drain_gives_up(ack_policy: AckPolicy, seconds: int) -> None:
    config = ConsumerConfig(ack_policy=ack_policy)
    assert consume_plan(config).limits.expires == seconds
    assert consume_plan(config, expires=60).limits.expires == 60
    assert seconds < DRAIN or ack_policy is not AckPolicy.NONE


def test_a_fetch_may_be_longer_than_a_pull() -> None:
    config = ConsumerConfig(
        priority_policy=PriorityPolicy.PINNED_CLIENT, priority_groups=("a",), priority_timeout=5
    )
    plan = fetch_plan(config, max_messages=1, max_bytes=None, expires=30, idle_heartbeat=15, group="a")
    assert (plan.limits.expires, plan.limits.idle_heartbeat) == (2.5, 1.25)


def test_fetch_of_less_than_a_nanosecond_still_expires() -> None:
    """A pull that expires after 0 ns never expires."""
    plan = fetch_plan(ConsumerConfig(), max_messages=1, max_bytes=None, expires=1e-10, idle_heartbeat=None)
    assert plan.fields["expires"] == 1


def test_what_is_to_be_there_at_once_has_no_time() -> None:
    plan = fetch_plan(ConsumerConfig(), max_messages=1, max_bytes=None, expires=None, idle_heartbeat=None)
    assert json.loads(plan.payload(1, None, 3.0)) == {"no_wait": True, "batch": 1}


@pytest.mark.parametrize("beat", [0, -1, 0.4, 31, 5.1])
def test_heartbeats_that_are_refused(beat: float) -> None:
    with pytest.raises(UsageError, match="idle_heartbeat"):
        fetch_plan(ConsumerConfig(), max_messages=1, max_bytes=None, expires=10, idle_heartbeat=beat)
