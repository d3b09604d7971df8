"""Who filters the subjects of a read, and which gaps of a filtered read are losses."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.bulk._jetstream.filter_choice import Content, server_pays
from liftenvelope.bulk._jetstream.filter_gaps import FilterGaps


def content(share: float, subjects: int, *, size: int = 100) -> Content:
    matching = int(1_000_000 * share)
    counts = {f"s.{number}": matching // subjects for number in range(subjects)}
    return Content(1_000_000, 1_000_000 * size, counts)


@pytest.mark.parametrize(
    ("filters", "share", "subjects", "pays"),
    [
        (1, 0.01, 1, True),
        (1, 0.35, 1, True),
        (1, 0.45, 1, False),
        (1, 0.03, 1_000, True),
        (1, 0.05, 1_000, False),
        (2, 0.05, 2, True),
        (2, 0.1, 2, False),
        (10, 0.01, 10, True),
        (10, 0.05, 10, False),
        (2, 0.01, 400, False),
    ],
)
def test_server_filters_few_messages_of_few_subjects(
    filters: int, share: float, subjects: int, pays: bool
) -> None:
    assert server_pays(filters, content(share, subjects)) is pays


@pytest.mark.parametrize(("share", "pays"), [(0.01, True), (0.1, True), (0.5, True), (0.8, False)])
@pytest.mark.parametrize(("filters", "subjects"), [(1, 1), (1, 5_000), (2, 2), (10, 10), (50, 5_000)])
def test_server_filters_most_reads_of_a_stream_in_memory(
    filters: int, subjects: int, share: float, pays: bool
) -> None:
    assert server_pays(filters, content(share, subjects)._replace(in_memory=True)) is pays


@given(st.integers(1, 100), st.integers(1, 1_000), st.integers(0, 10**6), st.booleans())
def test_server_never_gets_a_filter_that_matches_everything(
    filters: int, subjects: int, size: int, in_memory: bool
) -> None:
    whole = 1_000_000 // subjects * subjects
    assert not server_pays(
        filters, content(1.0, subjects, size=size)._replace(messages=whole, in_memory=in_memory)
    )


def test_server_gets_a_filter_that_matches_nothing_of_something() -> None:
    assert server_pays(3, Content(10, 1_000, {}))
    assert not server_pays(3, Content(0, 0, {}))


def test_gap_below_the_oldest_is_no_loss_if_all_matching_messages_came() -> None:
    # Offsets 3, 40 and 41 match. Retention has reached 20.
    gaps = FilterGaps(0)
    gaps.begin(3, 100, 0.0)
    assert gaps.pass_over([(0, 3), (4, 40)], 41, 20, 0.0) is None
    assert (gaps.suspect, gaps.to_count()) == (4, (41, 100))
    assert not gaps.is_complete(0)
    assert gaps.has_lost(20)
    assert gaps.is_complete(1)
    assert gaps.suspect is None
    assert gaps.pass_over([(42, 100)], 100, 20, 0.0) is None
    assert gaps.suspect is None


def test_missing_messages_are_not_lost_before_the_read_has_passed_the_oldest() -> None:
    # Offsets 1 to 9 match, and retention has taken them after they were sent.
    gaps = FilterGaps(0)
    gaps.begin(9, 100, 0.0)
    assert gaps.pass_over([(0, 1)], 5, 50, 0.0) is None
    assert not gaps.is_complete(0)
    assert not gaps.has_lost(60)
    assert not gaps.is_due(59)
    assert gaps.is_due(60)
    assert gaps.pass_over([(10, 70)], 71, 70, 0.0) is None
    assert gaps.is_complete(0)
    assert not gaps.is_due(100)


@given(st.data())
def test_loss_is_found_exactly_when_a_matching_message_is_gone(data: st.DataObject) -> None:
    """A read of 60 offsets, of which some match; retention jumps ahead of the read once.

    Some messages that retention takes are on their way, and come nevertheless.
    """
    matching = sorted(data.draw(st.sets(st.integers(0, 59), max_size=20)))
    oldest = data.draw(st.integers(0, 60))
    sent = data.draw(st.integers(0, len(matching)))
    came = matching[:sent] + [offset for offset in matching[sent:] if offset >= oldest]
    ends = sorted({*data.draw(st.sets(st.sampled_from(came or [0]))), 59})
    gaps, edges = FilterGaps(0), [-1, *came, 60]
    gaps.begin(len(matching), 60, 0.0)
    all_gaps = [(a + 1, b) for a, b in pairwise(edges) if a + 1 < b]
    lost, begin = False, 0
    for end in ends:  # pieces are handed out
        reached = end + 1
        passed = [gap for gap in all_gaps if begin < gap[1] <= reached]
        assert gaps.pass_over(passed, reached, oldest, 0.0) is None
        begin = reached
        if gaps.suspect is not None:
            left = sum(offset >= max(reached, oldest) for offset in matching)
            lost = lost or (not gaps.is_complete(left) and gaps.has_lost(oldest))
    assert lost == (came != matching)


def test_lost_messages_count_once() -> None:
    # Offsets 0, 50 and 90 match. Retention takes the first one, and later the second one.
    gaps = FilterGaps(0)
    gaps.begin(3, 100, 0.0)
    assert gaps.pass_over([(0, 20)], 20, 20, 0.0) is None
    assert not gaps.is_complete(2)
    assert gaps.has_lost(20)
    gaps.write_off()
    assert gaps.suspect is None
    assert gaps.pass_over([(20, 40)], 40, 30, 0.0) is None
    assert gaps.is_complete(2)
    assert gaps.pass_over([(40, 80)], 80, 80, 0.0) is None
    assert not gaps.is_complete(1)
    assert gaps.has_lost(80)


def test_later_gap_is_no_loss_if_the_oldest_message_was_there_when_the_read_was_up_to_date() -> None:
    gaps = FilterGaps(0)
    gaps.begin(0, 10, 100.0)
    gaps.passed(91, 7.0)
    gaps.current_at = 105.0
    gaps.passed(200, 7.0)
    gaps.current_at = 110.0
    assert gaps.pass_over([(0, 30), (31, 70), (71, 90)], 80, 72, 100.5) == 71
    assert (gaps.suspect, gaps.to_count()) == (0, None)
    assert gaps.is_complete(0)
    assert gaps.pass_over([(71, 90)], 90, 72, 99.5) is None
    assert gaps.pass_over([(71, 90), (92, 190)], 190, 150, 104.0) == 71
    assert gaps.pass_over([(92, 190)], 190, 150, 106.0) == 92
    assert gaps.pass_over([(201, 210)], 210, 205, 109.0) is None


@pytest.mark.parametrize(
    ("oldest", "oldest_at", "lost"), [(20, 99.0, None), (20, 101.0, 10), (10, 101.0, None)]
)
def test_gap_that_begins_in_the_backlog_may_have_had_later_messages(
    oldest: int, oldest_at: float, lost: int | None
) -> None:
    gaps = FilterGaps(0)
    gaps.begin(0, 10, 100.0)
    assert gaps.pass_over([(0, 30)], 31, oldest, oldest_at) == lost
    assert gaps.suspect == 0
    assert gaps.is_complete(0)


def test_retention_after_a_look_at_the_oldest_message_is_no_loss() -> None:
    gaps = FilterGaps(0)
    gaps.begin(0, 10, 100.0)
    gaps.passed(15, math.inf)
    assert gaps.unsure_since == math.inf
    gaps.current_at = 101.0
    gaps.passed(40, 7.0)
    gaps.current_at = 102.0
    gaps.passed(60, 8.0)
    assert gaps.unsure_since == 7.0
    gaps.looked(30, 101.5)
    assert gaps.unsure_since == math.inf
    gaps.passed(80, 7.0)
    assert gaps.unsure_since == 7.0, "a look proves nothing about later gaps"
    # When the look was taken, only messages below 30 were gone.
    assert gaps.pass_over([(15, 39)], 40, 90, 110.0) == 15
    assert gaps.pass_over([(40, 59)], 60, 90, 110.0) is None
    assert gaps.pass_over([(60, 79)], 80, 90, 110.0) == 60


def test_read_lacks_nothing_later_if_the_oldest_message_is_old_or_was_not_passed() -> None:
    gaps = FilterGaps(0)
    gaps.begin(0, 10, 100.0)
    assert not gaps.may_lack(5, 10, 101.0), "the backlog is counted"
    assert not gaps.may_lack(15, 15, 101.0)
    assert gaps.may_lack(5, 11, 101.0)
    assert not gaps.may_lack(5, 11, 99.0)
    gaps.was_current(102.0)
    gaps.was_current(101.0)
    assert not gaps.may_lack(5, 11, 101.5)


def test_times_that_a_read_notes_are_bounded() -> None:
    gaps = FilterGaps(0)
    gaps.begin(0, 0, 0.0)
    for offset in range(100_000):
        gaps.current_at = offset / 100_000
        gaps.passed(offset, 7.0)
    assert len(gaps._passed) == len(gaps._passed_at) <= 20
    gaps.pass_over([], 99_999, 0, 0.0)
    assert not gaps._passed
