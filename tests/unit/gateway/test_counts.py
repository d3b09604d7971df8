"""Counts of publishes: nothing is lost or counted twice, and latencies are those of the messages."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.errors import AckTimeoutError
from liftenvelope.gateway._clients.counts import (
    LatencyHistogram,
    PublishCounts,
    PublishTally,
    PublishTimes,
    reason_of,
)
from liftenvelope.rpc.status import RpcError, StatusCode


def counted(histogram: LatencyHistogram) -> int:
    return histogram.buckets()[-1][1]


def test_bucket_includes_its_bound() -> None:
    histogram = LatencyHistogram()
    for seconds in (0.001, 0.00101, 0.0, 99.0):
        histogram.observe(seconds)
    buckets = dict(histogram.buckets())
    assert (buckets[0.0005], buckets[0.001], buckets[0.0025], buckets[10.0]) == (1, 2, 3, 3)
    assert buckets[float("inf")] == 4
    assert histogram.total == pytest.approx(99.00201)


def test_acks_get_the_times_of_their_batches() -> None:
    times, histogram = PublishTimes(), LatencyHistogram()
    times.taken(10, 1.0)
    times.taken(20, 2.0)
    times.taken(30, 3.0)
    times.observe(histogram, 5, 24, 20, 4.0)  # 5 of the first batch, 10 of the second, 5 of the third
    assert histogram.total == pytest.approx(5 * 3.0 + 10 * 2.0 + 5 * 1.0)
    assert counted(histogram) == 20


def test_acks_of_several_partitions_count_once_each() -> None:
    times, histogram = PublishTimes(), LatencyHistogram()
    times.taken(10, 1.0)
    times.taken(20, 2.0)
    times.observe(histogram, 19, 0, 3, 4.0)  # out of order, and not all numbers between them
    assert counted(histogram) == 3


def test_forgotten_times_are_those_of_settled_messages() -> None:
    times, histogram = PublishTimes(), LatencyHistogram()
    times.taken(10, 1.0)
    times.taken(20, 2.0)
    times.forget(15)
    assert len(times) == 1
    times.observe(histogram, 15, 15, 1, 2.5)
    assert histogram.total == pytest.approx(0.5)


def test_times_are_bounded_and_never_too_late() -> None:
    times = PublishTimes()
    for number in range(1, 100_000):
        times.taken(number, number * 0.01)
        assert len(times) <= 256
    for number in range(0, 99_999, 997):
        histogram = LatencyHistogram()
        times.observe(histogram, number, number, 1, 1_000.0)
        assert histogram.total >= 1_000.0 - (number + 1) * 0.01 - 1e-6


def test_recent_times_stay_precise() -> None:
    times, histogram = PublishTimes(), LatencyHistogram()
    for number in range(1, 100_001):
        times.taken(number, number * 0.01)
    times.observe(histogram, 99_999, 99_999, 1, 1_000.0)
    assert histogram.total == pytest.approx(0.0, abs=0.05)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0, 0.1)), max_size=600),
    st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 60_000), st.integers(1, 100)), max_size=20),
)
def test_every_ack_is_observed_once(
    batches: list[tuple[int, float]], acks: list[tuple[int, int, int]]
) -> None:
    times, histogram = PublishTimes(), LatencyHistogram()
    ends = itertools.accumulate(count for count, _ in batches)
    moments = itertools.accumulate(pause for _, pause in batches)
    for end, now in zip(ends, moments, strict=True):
        times.taken(end, now)
    for first, last, count in acks:
        times.observe(histogram, first, last, count, 1_000.0)
    assert counted(histogram) == sum(count for _, _, count in acks)


def test_reasons() -> None:
    assert reason_of(RpcError(StatusCode.NOT_FOUND, "x")) == "not_found"
    assert reason_of(AckTimeoutError("x")) == "deadline_exceeded"
    assert reason_of(asyncio.CancelledError()) == "cancelled"
    assert reason_of(ValueError()) == "internal"


def test_unary_publish_is_settled_by_its_end() -> None:
    counts = PublishCounts()
    with counts.one(7):
        assert counts.pending == 1
    with pytest.raises(RpcError), counts.one(3):
        raise RpcError(StatusCode.NOT_FOUND, "x")
    with counts.one(1) as one:
        one.fail("invalid_argument")
    assert (counts.messages, counts.bytes, counts.acked, counts.pending) == (3, 11, 1, 0)
    assert counts.failures == {"not_found": 1, "invalid_argument": 1}
    assert counted(counts.latency) == 1


@pytest.mark.parametrize("end", ["result", "error", "cancel"])
async def test_unary_publish_without_an_ack_is_settled_by_jetstream(end: str) -> None:
    counts, future = PublishCounts(), asyncio.get_running_loop().create_future()
    with counts.one(1) as one:
        one.settle_with(future)
    assert counts.pending == 1
    if end == "result":
        future.set_result(None)
    elif end == "error":
        future.set_exception(AckTimeoutError("x"))
    else:
        future.cancel()
    await asyncio.sleep(0)
    assert counts.pending == 0
    assert counts.acked == (end == "result")
    assert (
        counts.failures
        == {
            "result": {},
            "error": {"deadline_exceeded": 1},
            "cancel": {"cancelled": 1},
        }[end]
    )


def test_call_that_ends_settles_its_messages() -> None:
    counts = PublishCounts()
    tally, other = PublishTally(counts), PublishTally(counts)
    tally.taken(10, 100)
    other.taken(1, 1)
    tally.times.taken(8, 1.0)
    tally.ack_numbered(0, 4, 5, 2.0)
    tally.ack(0.1)
    tally.fail("not_found")
    assert (tally.open, counts.pending) == (3, 4)
    tally.close("cancelled")
    tally.ack(0.1)
    tally.fail("x")
    tally.ack_numbered(5, 5, 1, 3.0)
    assert counts.pending == 1
    assert (counts.acked, counts.failures) == (6, {"not_found": 1, "cancelled": 3})
