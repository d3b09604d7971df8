"""Subject filters beside a naive matcher."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.bulk._engine.subject_mask import SubjectMask
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.jetstream.subject_filter import SubjectFilter, parse_subjects

WORDS = ["a", "b", "$JS", "ü", "a*", "日本", "x>y", "A+|", "longer"]
tokens = st.sampled_from(WORDS)
subjects = st.lists(tokens, min_size=1, max_size=4).map(".".join)


@st.composite
def filters(draw: st.DrawFn) -> str:
    found = draw(st.lists(st.sampled_from(["*", "*", *WORDS[:5]]), min_size=1, max_size=4))
    return ".".join([*found[:-1], ">"] if draw(st.booleans()) else found)


def naive(pattern: str, subject: str) -> bool:
    """NATS's rule, token by token."""
    wanted, given_ = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(given_) >= len(wanted) and all(
            want in ("*", word) for want, word in zip(wanted[:-1], given_, strict=False)
        )
    return len(wanted) == len(given_) and all(
        want in ("*", word) for want, word in zip(wanted, given_, strict=True)
    )


@given(st.lists(filters(), min_size=1, max_size=6), st.lists(subjects, min_size=1, max_size=20))
def test_filter_matches_what_a_naive_matcher_matches(patterns: list[str], words: list[str]) -> None:
    found = SubjectFilter(patterns)
    expected = [any(naive(pattern, word) for pattern in patterns) for word in words]
    assert [found.covers(word) for word in words] == expected
    assert SubjectMask(found).matching(pa.array(words, pa.string())).to_pylist() == expected


@given(st.lists(filters(), min_size=1, max_size=6))
def test_normalised_filters_do_not_cover_each_other_and_lose_nothing(patterns: list[str]) -> None:
    found = SubjectFilter(patterns)
    assert set(found.filters) <= set(patterns)
    assert SubjectFilter(found.filters) == found
    for one, other in product(found.filters, repeat=2):
        assert one == other or not SubjectFilter([one]).covers(other)
    assert all(found.covers(pattern) for pattern in patterns)


@given(filters(), filters())
def test_filter_covers_another_only_if_it_matches_all_its_subjects(wide: str, narrow: str) -> None:
    """Replace the wildcards by words that no filter names: only a wildcard of the wide one matches these."""
    samples = [
        ".".join({"*": "new", ">": tail}.get(token, token) for token in narrow.split("."))
        for tail in ("new", "new.new")
    ]
    assert SubjectFilter([wide]).covers(narrow) == all(naive(wide, sample) for sample in samples)


@given(
    st.lists(filters(), min_size=1, max_size=4),
    st.lists(filters(), min_size=1, max_size=4),
    st.lists(subjects, min_size=1, max_size=10),
)
def test_intersection_matches_what_both_filters_match(
    one: list[str], two: list[str], words: list[str]
) -> None:
    left, right = SubjectFilter(one), SubjectFilter(two)
    both = left.intersection(right)
    assert [both.covers(word) for word in words] == [
        left.covers(word) and right.covers(word) for word in words
    ]
    assert left.intersection(left) == left


def test_many_wildcards_match_without_a_regular_expression() -> None:
    patterns = [f"orders.{number}.*" for number in range(500)]
    found, words = SubjectFilter(patterns), pa.array(["orders.7.x", "orders.500.x", "orders.7"])
    assert found.filters == tuple(sorted(patterns))
    assert SubjectMask(found).matching(words).to_pylist() == [True, False, False]


def test_deep_and_long_subjects_match() -> None:
    deep = ".".join("a" * 1_700)
    assert parse_subjects([deep, deep.replace("a", "*")]) == SubjectFilter([deep.replace("a", "*")])
    assert SubjectFilter([deep.replace("a", "*")]).covers(deep)
    assert not SubjectFilter([deep]).covers(deep + ".a")


@pytest.mark.parametrize(
    ("given_", "error", "text"),
    [
        ("", UsageError, "subject must not be empty|empty token"),
        ("a..b", UsageError, "must not have an empty token, got 'a..b'"),
        ("a.", UsageError, "empty token"),
        (">.a", UsageError, "'>' at its end only"),
        ("a b", UsageError, "white space"),
        ("a\r\nPUB x 0", UsageError, "white space"),
        ("\ud800", UsageError, "surrogate"),
        ([], UsageError, "at least one subject, or be None"),
        (["a", 1], UsageTypeError, "subject must be str"),
        (b"a", UsageTypeError, "subject must be str"),
        (7, UsageTypeError, "subjects must be a subject or several, got 7"),
        ("a" * 4_000, UsageError, "at most 3500 bytes"),
        ([f"a.{number}" for number in range(100_001)], UsageError, "at most 100,000 subjects"),
    ],
    ids=range(13),
)
def test_wrong_subjects_are_refused(given_: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        parse_subjects(given_)
    assert type(caught.value) is error
    assert re.search(text, str(caught.value))


def test_no_subjects_is_no_filter() -> None:
    assert parse_subjects(None) is None
