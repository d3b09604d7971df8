"""Partitions led by a gateway: when they keep it from being ready."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from liftenvelope.gateway._leader.bindings import GRACE, Bindings


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


A, B, C = ("a", 0), ("a", 1), ("c", 0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bindings(clock: Clock) -> Bindings:
    """Bindings of two partitions, both bound after the start."""
    found = Bindings(clock)
    for key in (A, B):
        found.expect(key)
        found.note(key, True)
    found.passed()
    assert found.fault() == ""
    return found


def test_start_waits_for_every_partition(clock: Clock) -> None:
    bindings = Bindings(clock)
    assert bindings.fault() == "the partitions to lead are not known yet"
    bindings.expect(A)
    bindings.expect(B)
    assert bindings.fault() == "2 of 2 partitions send no acks: 'a' 0 and 1 more"
    bindings.note(A, True)
    bindings.note(B, False)
    bindings.passed()
    assert bindings.fault() == "1 of 2 partitions send no acks: 'a' 1"
    assert (bindings.led, bindings.bound) == (2, 1)
    bindings.note(B, True)
    assert bindings.fault() == ""


def test_start_without_partitions(clock: Clock) -> None:
    bindings = Bindings(clock)
    bindings.passed()
    assert bindings.fault() == ""


def test_partition_without_consumer_counts_after_the_grace(clock: Clock, bindings: Bindings) -> None:
    bindings.note(A, False)
    clock.now += GRACE - 1
    bindings.note(A, False)  # another failure does not start it again
    bindings.note(B, False)
    assert bindings.fault() == ""
    clock.now += 1
    assert bindings.fault() == "1 of 2 partitions send no acks: 'a' 0"
    bindings.note(A, True)
    assert bindings.fault() == ""


def test_new_partition_counts_from_its_first_failure(clock: Clock, bindings: Bindings) -> None:
    bindings.expect(C)
    clock.now += 1_000
    assert bindings.fault() == ""
    assert (bindings.led, bindings.bound) == (3, 2)
    bindings.note(C, False)
    assert bindings.fault() == ""
    clock.now += GRACE
    assert bindings.fault() == "1 of 3 partitions send no acks: 'c' 0"


def test_lost_connection_waits_for_every_partition(clock: Clock, bindings: Bindings) -> None:
    bindings.disturb()
    bindings.note(A, False)
    bindings.note(B, False)
    bindings.restored()
    bindings.note(A, True)
    assert bindings.fault() == "1 of 2 partitions send no acks: 'a' 1"
    bindings.drop(B)
    assert bindings.fault() == ""


def test_lost_connection_without_partitions(clock: Clock) -> None:
    bindings = Bindings(clock)
    bindings.passed()
    bindings.disturb()
    assert bindings.fault()
    bindings.restored()
    assert bindings.fault() == ""


def test_unwanted_partitions_are_forgotten(clock: Clock, bindings: Bindings) -> None:
    bindings.expect(C)
    bindings.note(A, False)
    bindings.drop_unwanted({"c"}, set())
    assert (bindings.led, bindings.bound) == (2, 1)
    bindings.drop_unwanted(None, {B})
    assert (bindings.led, bindings.bound) == (1, 1)


class AnyOrder(RuleBasedStateMachine):
    """Against a model that knows the state of each partition."""

    keys = st.sampled_from([A, B, C])

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.bindings = Bindings(self.clock)
        self.bindings.passed()
        self.model: dict[tuple[str, int], bool] = {}

    @rule(key=keys)
    def expect(self, key: tuple[str, int]) -> None:
        self.bindings.expect(key)
        self.model.setdefault(key, False)

    @rule(key=keys, is_bound=st.booleans())
    def note(self, key: tuple[str, int], is_bound: bool) -> None:
        self.bindings.note(key, is_bound)
        self.model[key] = is_bound

    @rule(key=keys)
    def drop(self, key: tuple[str, int]) -> None:
        self.bindings.drop(key)
        self.model.pop(key, None)

    @rule()
    def disturb(self) -> None:
        self.bindings.disturb()
        self.bindings.restored()

    @rule(seconds=st.sampled_from([1.0, GRACE]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def counts_agree(self) -> None:
        assert self.bindings.led == len(self.model)
        assert self.bindings.bound == sum(self.model.values())
        if all(self.model.values()):
            assert self.bindings.fault() == ""


AnyOrder.TestCase.settings = settings(max_examples=200, deadline=None)
TestAnyOrder = AnyOrder.TestCase
