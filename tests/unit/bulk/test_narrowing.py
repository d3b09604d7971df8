"""Narrowings of queries, beside the rows that meet all conditions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.bulk.narrowing import Condition, Narrowing

SUBJECTS = ["a", "a.b", "a.b.c", "a.c", "b", "b.a", "ab.c", "a.*", "ü.x"]
MINUTE = 60 * 10**9

numbers = st.one_of(st.integers(-2, 12), st.sampled_from([2**63, 5.0, True, None, "5"]))
texts = st.sampled_from([*SUBJECTS, "a.", "a.b.", "", "b.>", "*", "a..", "\ufffd", 7])
times = st.integers(0, 20).map(lambda minutes: minutes * MINUTE)
comparisons = st.sampled_from(["=", "<", "<=", ">", ">="])
conditions = st.one_of(
    st.tuples(st.sampled_from(["offset", "partition"]), comparisons, numbers),
    st.tuples(st.sampled_from(["offset", "partition"]), st.just("in"), st.lists(numbers, max_size=4)),
    st.tuples(st.just("timestamp"), comparisons, times),
    st.tuples(st.just("subject"), st.sampled_from(["=", "prefix"]), texts),
    st.tuples(st.just("subject"), st.just("in"), st.lists(texts, max_size=3)),
    st.tuples(st.just("value"), st.just("="), numbers),
)
rows = st.fixed_dictionaries(
    {
        "offset": st.integers(0, 10),
        "partition": st.integers(0, 3),
        "timestamp": times,
        "subject": st.sampled_from(SUBJECTS),
        "value": st.just(5),
    }
)


def meets(row: dict[str, Any], condition: Condition) -> bool:
    column, operator, value = condition
    found = row[column]
    if operator == "in":
        return any(type(one) is type(found) and one == found for one in value)
    if operator == "prefix":
        return isinstance(value, str) and str(found).startswith(value)
    if isinstance(value, str) != isinstance(found, str) or value is None:
        return False
    return bool(
        {"=": found == value, "<": found < value, "<=": found <= value, ">": found > value}.get(
            operator, found >= value
        )
    )


def keeps(narrowing: Narrowing, row: dict[str, Any]) -> bool:
    """Whether a read of the narrowing returns a row, if the times of messages are in order."""
    begin, end = narrowing.begin_ns, narrowing.end_ns
    return (
        not narrowing.is_empty
        and narrowing.start <= row["offset"] < narrowing.stop
        and narrowing.wants_partition(row["partition"])
        and (begin is None or row["timestamp"] >= begin)
        and (end is None or row["timestamp"] < end)
        and (narrowing.subjects is None or narrowing.subjects.covers(row["subject"]))
    )


@given(st.lists(conditions, max_size=4), st.lists(rows, min_size=1, max_size=8))
def test_narrowing_keeps_all_rows_that_meet_the_conditions_and_no_other_if_exact(
    wanted: list[Condition], stored: list[dict[str, Any]]
) -> None:
    narrowing, exact = Narrowing(), list[Condition]()
    for condition in wanted:
        narrowing, is_exact = narrowing.narrowed(condition)
        exact += [condition] if is_exact else []
    for row in stored:
        if all(meets(row, condition) for condition in wanted):
            assert keeps(narrowing, row)
        if keeps(narrowing, row):
            assert all(meets(row, condition) for condition in exact)


@pytest.mark.parametrize(
    "condition",
    [
        ("offset", ">=", 5),
        ("offset", "in", [3, 4, 5]),
        ("partition", "<", 2),
        ("partition", "in", [0, 2]),
        ("subject", "=", "orders.new"),
        ("subject", "in", ("orders.new", "orders.old")),
        ("subject", "prefix", "orders."),
    ],
)
def test_exact_conditions_are_known(condition: Condition) -> None:
    assert Narrowing().narrowed(condition)[1]


@pytest.mark.parametrize(
    "condition",
    [
        ("offset", "in", [3, 5]),
        ("timestamp", ">", 10**18),
        ("subject", "prefix", "orders"),
        ("subject", "=", "orders.*"),
        ("subject", "=", ""),
        ("subject", "in", []),
        ("value", "=", b"x"),
    ],
)
def test_other_conditions_are_left_to_the_engine(condition: Condition) -> None:
    assert not Narrowing().narrowed(condition)[1]


def test_times_narrow_with_a_margin_for_clocks() -> None:
    narrowing = Narrowing().all_of([("timestamp", ">=", 10 * MINUTE), ("timestamp", "<", 20 * MINUTE)])
    assert (narrowing.begin_ns, narrowing.end_ns) == (9 * MINUTE, 21 * MINUTE)


def test_contradictions_are_empty() -> None:
    both: list[Condition] = [("subject", "=", "a"), ("subject", "prefix", "b.")]
    assert Narrowing().all_of(both).is_empty
    assert Narrowing().all_of([("offset", ">", 5), ("offset", "<", 6)]).is_empty
    assert Narrowing().all_of([("partition", "=", 1), ("partition", ">", 1)]).is_empty
    assert Narrowing().all_of([("partition", "in", [1]), ("partition", "in", [2])]).is_empty
