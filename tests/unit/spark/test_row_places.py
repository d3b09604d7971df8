"""Rows are stored once while other attempts and other publishers write at the same time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.spark._row_places import NO_OFFSET, PROBE, RowMark, RowPlaces
from liftenvelope.spark.errors import BatchChangedError, OptionError

ME = ("query", 3, 1)


def mark(row: int, *, batch: int = 3, task: int = 1, query: str = "query", checksum: int = 7) -> RowMark:
    return RowMark(query, batch, task, row, checksum)


def places() -> RowPlaces:
    return RowPlaces(*ME, "s[0]")


class TestMarks:
    @given(st.builds(RowMark, st.text(), *[st.integers(0, 2**40)] * 3, st.integers(0, 2**32 - 1)))
    def test_there_and_back(self, found: RowMark) -> None:
        assert RowMark.parse(str(found)) == found

    @pytest.mark.parametrize("text", ["", "q", "q:1:2:3", "q:1:2:3:xyz", "q:a:2:3:00000000"])
    def test_none(self, text: str) -> None:
        assert RowMark.parse(text) is None


class TestMissing:
    def test_rows_that_this_attempt_or_an_earlier_one_stored_are_not_missing(self) -> None:
        found = places()
        found.checked = True
        assert list(found.missing(0, [7] * 3)) == [0, 1, 2]
        found.stored(0, 0)
        found.stored(1, 1)
        assert [list(found.missing(first, [7] * 2)) for first in range(4)] == [[], [2], [2, 3], [3, 4]]
        found.learn([(2, mark(2))], 3)
        assert list(found.missing(1, [7] * 3)) == [3]

    def test_another_row_with_the_same_number(self) -> None:
        found = places()
        found.learn([(0, mark(0)), (1, mark(1, checksum=8))], 2)
        with pytest.raises(BatchChangedError, match="row 1 of the batch differs"):
            found.missing(0, [7, 7])


class TestPlans:
    def test_a_partition_that_does_not_check(self) -> None:
        with pytest.raises(OptionError, match=r"s\[0\] does not check expected offsets"):
            places().learn([(0, mark(PROBE, batch=1))], 1)
        places().learn([(0, mark(PROBE, query="other"))], 1)

    def test_a_partition_that_this_query_has_not_written_to_is_checked(self) -> None:
        found = places()
        found.learn([(5, mark(0, query="other"))], 10)
        assert found.plan([0, 1, 2]) == [(0, NO_OFFSET)]
        found.checked = True
        assert found.plan([0, 1, 2]) == [(0, 10)]
        found.stored(0, 10)
        assert found.plan([1, 2]) == [(1, 11), (2, 12)]
        found.stored(1, 11)
        found.stored(2, 12)
        assert found.plan([]) == []
        assert found.plan([3]) == [(3, 13)]

    def test_after_what_is_there(self) -> None:
        found = places()
        found.learn([(8, mark(4, batch=2)), (9, mark(0, task=0)), (10, mark(0)), (11, mark(1))], 12)
        assert [found.is_stored(row, 7) for row in range(3)] == [True, True, False]
        assert found.plan([2, 3]) == [(2, 12), (3, 13)]
        found.check_rows(2)
        with pytest.raises(BatchChangedError, match="an earlier run stored 2 rows, but the batch has 1"):
            found.check_rows(1)

    @pytest.mark.parametrize("there", [[(10, 0), (12, 1)], [(10, 0), (11, 1)], [(10, 0), (12, 2)]])
    def test_one_by_one_where_others_write(self, there: list[tuple[int, int]]) -> None:
        found = places()
        found.learn([(offset, mark(row)) for offset, row in there], 13)
        missing = [row for row in range(5) if not found.is_stored(row, 7)]
        assert found.plan(missing) == [(missing[0], 13)]

    def test_what_does_not_show(self) -> None:
        found = places()
        assert found.plan_unseen([0, 1], 20) == []
        found.learn([(10, mark(0)), (11, mark(1))], 12)
        assert found.plan_unseen([2, 3, 4], 13) == [(3, 13)]
        assert found.plan_unseen([2, 3, 4], 20) == []

    def test_other_rows_than_before(self) -> None:
        found = places()
        found.learn([(0, mark(0))], 1)
        with pytest.raises(BatchChangedError, match="sort within partitions"):
            found.is_stored(0, 8)

    def test_a_beginning_that_is_gone(self) -> None:
        with pytest.raises(
            BatchChangedError, match="row 4 of the batch is stored, but its first row is gone"
        ):
            places().learn([(7, mark(4))], 8)


@dataclass
class Log:
    """A partition that checks expected offsets. A model: a real one can't be made to interleave at will."""

    stored: list[RowMark | None] = field(default_factory=list)

    def publish(self, found: RowMark, expected: int) -> bool:
        if expected != len(self.stored):
            return False
        self.stored.append(found)
        return True


class Attempt:
    """One run of a task, which stores rows in portions as OnceWriter does."""

    def __init__(self, log: Log, rows: int, portion: int) -> None:
        self.log, self.places = log, places()
        self.places.checked = True
        self.portions = [list(range(i, min(i + portion, rows))) for i in range(0, rows, portion)]
        self.on_its_way: list[tuple[int, int]] = []
        self.failed = self.planned = False
        self.learn()

    def learn(self) -> None:
        known = self.places.end
        found = [(i, one) for i, one in enumerate(self.log.stored) if i >= known and one is not None]
        self.places.learn(found, len(self.log.stored))

    @property
    def is_done(self) -> bool:
        return not self.portions

    def step(self, choice: int) -> None:
        """Plan, or have one message arrive or get lost, or look again."""
        if self.is_done:
            return
        if self.on_its_way:
            row, expected = self.on_its_way.pop(choice // 4 % len(self.on_its_way))
            arrives = choice % 4 > 0
            if not arrives or not self.log.publish(mark(row), expected):
                self.failed = True
            return
        if self.planned:
            self.settle()
        missing = self.places.missing(self.portions[0][0], [7] * len(self.portions[0]))
        if missing:
            self.sent = self.places.plan(missing)
            self.on_its_way, self.planned = list(self.sent), True
        else:
            self.portions.pop(0)

    def settle(self) -> None:
        if self.failed:
            self.learn()
        else:
            for row, offset in self.sent:
                self.places.stored(row, offset)
        self.failed = self.planned = False


@given(
    st.integers(1, 7),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 63)), max_size=120),
)
def test_every_row_is_stored_once(rows: int, portion: int, choices: list[tuple[int, int]]) -> None:
    """Attempts come late, go on after they were given up, lose and reorder messages; strangers write."""
    log = Log()
    attempts = [Attempt(log, rows, portion)]
    for actor, choice in choices:
        if actor == 9:
            log.stored.append(None)
        elif actor == 8 and len(attempts) < 4:
            attempts.append(Attempt(log, rows, portion))
        else:
            attempts[actor % len(attempts)].step(choice)
    last = Attempt(log, rows, portion)
    for _ in range(40 * rows):
        last.step(1)
    assert last.is_done
    # What others still have on its way comes after all.
    for attempt in attempts:
        for _ in range(2 * rows):
            attempt.step(1)
    found = Counter(one.row for one in log.stored if one is not None)
    assert found == dict.fromkeys(range(rows), 1)
