"""The lease of a gateway: when it may lead, and when others may have led in between."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.gateway._cluster.lease import Lease
from liftenvelope.group.clock import time_since_boot

TTL = 3.0


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def leased() -> tuple[Lease, Clock]:
    """A lease that is valid, by a beat of revision 10."""
    clock = Clock()
    lease = Lease(TTL, clock=clock)
    assert not lease.stored(10, began=clock.now)
    assert lease.read_back(10)
    assert lease.is_valid
    return lease, clock


def test_lease_needs_beat_to_be_stored_and_read_back() -> None:
    clock = Clock()
    lease = Lease(TTL, clock=clock)
    assert not lease.is_valid
    lease.stored(1, began=clock.now)
    assert not lease.is_valid
    lease.read_back(1)
    assert lease.is_valid


def test_lease_counts_from_begin_of_write() -> None:
    clock = Clock()
    lease = Lease(TTL, clock=clock)
    began, clock.now = clock.now, clock.now + 2.5
    lease.read_back(1)
    lease.stored(1, began=began)
    assert lease.is_valid
    clock.now += 0.5
    assert not lease.is_valid


def test_renewal_in_time_does_not_interrupt() -> None:
    lease, clock = leased()
    clock.now += 1.0
    assert not lease.stored(12, began=clock.now)
    assert not lease.read_back(12)
    clock.now += 2.5
    assert lease.is_valid


def test_renewal_after_end_interrupts_if_others_wrote() -> None:
    lease, clock = leased()
    clock.now += TTL
    lease.stored(12, began=clock.now)
    assert lease.read_back(12)
    assert lease.is_valid


def test_renewal_after_end_does_not_interrupt_if_nobody_wrote() -> None:
    lease, clock = leased()
    clock.now += 100 * TTL
    lease.stored(11, began=clock.now, continuous=True)
    assert not lease.read_back(11)
    assert lease.is_valid


def test_beat_from_before_the_end_that_is_read_after_it_interrupts() -> None:
    lease, clock = leased()
    clock.now += 1.0
    lease.stored(12, began=clock.now)
    clock.now += 2.5  # the first beat is too old by now, the second one is not
    assert not lease.is_valid
    assert lease.read_back(12)
    assert lease.is_valid


def test_ended_lease_is_not_extended_by_older_beats() -> None:
    lease, clock = leased()
    lease.stored(12, began=clock.now)
    lease.end()
    assert not lease.read_back(12)
    assert not lease.is_valid


def test_clock_runs_while_process_sleeps() -> None:
    before = time_since_boot()
    time.sleep(0.01)
    assert time_since_boot() > before


@given(
    st.lists(
        st.tuples(st.sampled_from(["store", "read", "wait"]), st.floats(0, 2 * TTL), st.booleans()),
        max_size=50,
    )
)
def test_lease_is_never_valid_longer_than_ttl_after_a_beat_read_back(
    steps: list[tuple[str, float, bool]],
) -> None:
    clock = Clock()
    lease = Lease(TTL, clock=clock)
    revision, begins, read = 0, dict[int, float](), 0
    for step, seconds, continuous in steps:
        if step == "wait":
            clock.now += seconds
        elif step == "store":
            revision += 1
            begins[revision] = clock.now
            clock.now += seconds / 10
            lease.stored(revision, began=begins[revision], continuous=continuous)
        else:
            read = revision
            lease.read_back(read)
        newest = max((began for number, began in begins.items() if number <= read), default=float("-inf"))
        assert lease.is_valid == (clock.now < newest + TTL)


def test_refusal_for_want_of_room_extends_a_valid_lease_only() -> None:
    lease, clock = leased()
    clock.now += 2.0
    lease.refused(began=clock.now)
    clock.now += 2.5
    assert lease.is_valid
    clock.now += 0.5
    assert not lease.is_valid
    lease.refused(began=clock.now)
    assert not lease.is_valid
