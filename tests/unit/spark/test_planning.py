"""Offsets of a batch of a Spark query, and contents of a checkpoint, without Spark."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.spark._offsets import EARLIEST, LATEST, Offsets, Part, PartitionPlace, Places, Position
from liftenvelope.spark._planning import (
    Extents,
    Planner,
    Span,
    Trigger,
    begin_at,
    check_named,
    divide,
    end_at,
    spans_between,
)
from liftenvelope.spark.errors import CheckpointError, DataLossError, OptionError

A, B = ("s", 0), ("s", 1)
ALL = Trigger()


def extents(**ends: int) -> dict[Part, Extents]:
    """Return the extents of partitions ``a`` and ``b``, which begin at 0."""
    return {{"a": A, "b": B}[name]: Extents(0, end, end) for name, end in ends.items()}


def at(**offsets: int) -> Position:
    found = {{"a": A, "b": B}[name]: offset for name, offset in offsets.items()}
    return Position(found, found)


PARTS = st.tuples(st.text(max_size=5), st.integers(0, 20))
OFFSETS = st.dictionaries(PARTS, st.integers(0, 2**63 - 1), max_size=6)


class TestPositions:
    @given(OFFSETS, OFFSETS)
    def test_round_trip(self, offsets: Offsets, begun: Offsets) -> None:
        position = Position(offsets, begun, {stream: 2**63 - 1 for stream, _ in offsets})
        assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position

    @given(OFFSETS)
    def test_equal_ones_are_equal_text(self, offsets: Offsets) -> None:
        backwards = dict(reversed(offsets.items()))
        texts = {json.dumps(Position(one, one).to_json()) for one in (offsets, backwards)}
        assert len(texts) == 1

    @pytest.mark.parametrize(
        "found",
        [
            None,
            [],
            {},
            {"v": 2, "offsets": {}, "from": {}},
            {"v": 1, "offsets": {}},
            {"v": 1, "offsets": [], "from": {}},
            {"v": 1, "offsets": {"s": {"x": 1}}, "from": {}},
            {"v": 1, "offsets": {"s": {"0": -1}}, "from": {}},
            {"v": 1, "offsets": {"s": {"0": 1.5}}, "from": {}},
            {"v": 1, "offsets": {"s": 1}, "from": {}},
            {"v": 1, "offsets": {}, "from": {}, "created": {"s": "x"}},
            {"v": 1, "offsets": {}, "from": {}, "created": {"s": "-1"}},
            {"v": 1, "offsets": {}, "from": {}, "created": []},
        ],
    )
    def test_what_is_none(self, found: Any) -> None:
        with pytest.raises(CheckpointError, match="the checkpoint"):
            Position.from_json(found)


class TestPlaces:
    def test_words(self) -> None:
        found = Extents(5, 9, 12)
        for place, offset in (
            (PartitionPlace(EARLIEST), 5),
            (PartitionPlace(LATEST), 9),
            (PartitionPlace(2), 2),
            (PartitionPlace(50), 50),
        ):
            assert begin_at(Places(place, {}), A, found, None) == offset
        for place, offset in ((PartitionPlace(LATEST), 9), (PartitionPlace(7), 7), (PartitionPlace(50), 9)):
            assert end_at(Places(place, {}), A, found, None) == offset

    def test_moments(self) -> None:
        places = Places(PartitionPlace(None, 1), {})
        assert begin_at(places, A, Extents(5, 9, 9), 7) == 7
        assert begin_at(places, A, Extents(5, 9, 9), 2) == 5
        assert end_at(places, A, Extents(5, 9, 9), 7) == 7

    def test_every_partition_must_be_named(self) -> None:
        places = Places(None, {A: PartitionPlace(1)})
        assert begin_at(places, A, Extents(0, 5, 5), None) == 1
        with pytest.raises(OptionError, match=r"no offset is given for s\[1\]"):
            begin_at(places, B, Extents(0, 5, 5), None)
        check_named(places, [A, B])
        with pytest.raises(OptionError, match=r"s\[0\], which is not read"):
            check_named(places, [B])


class TestRanges:
    def test_empty_ones_are_left_out(self) -> None:
        assert spans_between({A: 3, B: 4}, {A: 3, B: 9, ("t", 0): 2}, {"s": 7}) == [
            Span("s", 1, 4, 9, 7),
            Span("t", 0, 0, 2),
        ]

    @given(
        st.dictionaries(PARTS, st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=5),
        st.none() | st.integers(1, 60),
        st.integers(50_000, 2_000_000),
    )
    def test_parts_are_the_whole(
        self, ranges: dict[Part, tuple[int, int]], least: int | None, most: int
    ) -> None:
        spans = spans_between(
            {part: start for part, (start, _) in ranges.items()},
            {part: start + length for part, (start, length) in ranges.items()},
            {"s": 7},
        )
        parts = divide(spans, least, most)
        total = sum(span.stop - span.start for span in spans)
        assert all(0 < part.stop - part.start <= most for part in parts)
        assert len(parts) >= min(least or 0, total)
        joined: list[Span] = []
        for part in parts:
            last = joined[-1] if joined else None
            if last and (last.stream, last.partition, last.stop) == (part.stream, part.partition, part.start):
                joined[-1] = replace(part, start=last.start)
            else:
                joined.append(part)
        assert joined == spans
        assert divide(spans, least, most) == parts

    def test_the_longest_ranges_get_most_parts(self) -> None:
        spans = [Span("s", 0, 0, 90), Span("s", 1, 0, 10)]
        assert [(part.partition, part.stop - part.start) for part in divide(spans, 10, 1000)] == [
            *[(0, 10)] * 9,
            (1, 10),
        ]


def planner(*, fails: bool = True) -> Planner:
    return Planner(lambda _: True, fail_on_data_loss=fails)


class TestBatches:
    def test_nothing_new_is_the_same_position(self) -> None:
        start = Position({A: 5}, {A: 2})
        assert planner().next(start, extents(a=5), ALL, 0.0) is start

    def test_the_range_says_where_it_began(self) -> None:
        first = planner().next(at(a=5), extents(a=9), ALL, 0.0)
        assert first == Position({A: 9}, {A: 5})
        assert planner().next(first, extents(a=12), ALL, 0.0) == Position({A: 12}, {A: 9})

    def test_after_a_crash_in_the_first_batch_nothing_is_skipped(self) -> None:
        end = planner().next(at(a=100), extents(a=107), ALL, 0.0)
        # Asked again after the crash, "latest" is later than where the batch began, even where it ended.
        for late in (103, 107, 500):
            again = Position.from_json(end.to_json())
            assert spans_between(again.begun, again.offsets, again.created) == [Span("s", 0, 100, 107)]
            assert at(a=late).to_json() != end.to_json()

    def test_limits_are_shared(self) -> None:
        found = planner().next(at(a=0, b=0), extents(a=900, b=100), Trigger(most=100), 0.0)
        assert found.offsets == {A: 90, B: 10}

    def test_a_small_partition_is_not_starved(self) -> None:
        position, went = at(a=0, b=0), planner()
        for _ in range(20):
            position = went.next(position, extents(a=1_000_000, b=1), Trigger(most=2), 0.0)
        assert position.offsets[A] + position.offsets[B] == 40

    @given(
        st.dictionaries(
            PARTS, st.tuples(st.integers(0, 10**5), st.integers(0, 10**5)), min_size=1, max_size=5
        ),
        st.integers(1, 10**5),
    )
    def test_a_limit_is_kept_and_everything_is_read_in_the_end(
        self, ranges: dict[Part, tuple[int, int]], most: int
    ) -> None:
        begin = {part: start for part, (start, _) in ranges.items()}
        there = {part: Extents(0, start + more, start + more) for part, (start, more) in ranges.items()}
        total = sum(more for _, more in ranges.values())
        position, went, sizes = Position(begin, begin), planner(), []
        for _ in range(min(math.ceil(total / most), 50)):
            after = went.next(position, there, Trigger(most=most), 0.0)
            assert after.begun == position.offsets
            sizes.append(sum(after.offsets[part] - position.offsets[part] for part in ranges))
            position = after
        assert all(size == most for size in sizes[:-1])
        if len(sizes) < 50:
            assert sum(sizes) == total
            assert went.next(position, there, Trigger(most=most), 0.0) is position

    def test_a_minimum_is_waited_for(self) -> None:
        went, trigger = planner(), Trigger(least=10, delay=60.0)
        first = went.next(at(a=0), extents(a=1), trigger, 1000.0)
        assert first.offsets == {A: 1}  # nobody has waited yet: as Spark's Kafka source does it
        assert went.next(first, extents(a=5), trigger, 1030.0) is first
        assert went.next(first, extents(a=11), trigger, 1031.0).offsets == {A: 11}
        assert went.next(first, extents(a=5), trigger, 1090.0) is first
        assert went.next(first, extents(a=5), trigger, 1091.0).offsets == {A: 5}

    def test_available_now_ends_where_it_was_told(self) -> None:
        went = planner()
        went.stop_at(extents(a=10))
        first = went.next(at(a=0), extents(a=50, b=7), Trigger(most=8, least=100, delay=60), 0.0)
        assert first.offsets == {A: 8, B: 0}
        last = went.next(first, extents(a=60, b=9), Trigger(most=8, least=100, delay=60), 0.0)
        assert last.offsets == {A: 10, B: 0}
        assert went.next(last, extents(a=70, b=9), ALL, 0.0) is last

    def test_new_partitions_are_read_from_their_beginning(self) -> None:
        found = planner().next(at(a=5), {A: Extents(0, 5, 5), B: Extents(3, 8, 8)}, ALL, 0.0)
        assert found == Position({A: 5, B: 8}, {A: 5, B: 3})
        empty = at(a=5)
        assert planner().next(empty, extents(a=5, b=0), ALL, 0.0) is empty

    def test_a_partition_that_shows_less_for_a_while_is_no_loss(self) -> None:
        start = at(a=9)
        assert planner().next(start, {A: Extents(0, 0, 9)}, ALL, 0.0) is start
        assert planner().next(start, {A: Extents(0, 0, 12)}, ALL, 0.0) is start
        assert planner().next(start, {A: Extents(0, 12, 12)}, ALL, 0.0).offsets == {A: 12}


class TestLoss:
    def test_loss_fails_the_batch(self) -> None:
        with pytest.raises(DataLossError, match=r"s\[1\] does not exist any more; the query was at offset 7"):
            planner().next(at(a=5, b=7), extents(a=6), ALL, 0.0)
        with pytest.raises(DataLossError, match=r"s\[0\] ends at offset 3.*failOnDataLoss=false"):
            planner().next(at(a=5), extents(a=3), ALL, 0.0)

    def test_loss_is_reported_and_passed_over(self) -> None:
        went = planner(fails=False)
        found = went.next(at(a=5, b=7), {A: Extents(1, 3, 3)}, ALL, 0.0)
        assert found == Position({A: 3}, {A: 1})
        assert len(went.losses) == 2
        assert went.next(found, {A: Extents(1, 3, 3)}, ALL, 0.0) is found
        assert len(went.losses) == 2

    def test_deleted_offsets_take_nothing_of_the_limit(self) -> None:
        went, there = planner(fails=False), {A: Extents(900, 920, 920)}
        found = went.next(at(a=5), there, Trigger(most=10), 0.0)
        assert found == Position({A: 910}, {A: 900})
        assert went.deleted == [Span(*A, 5, 900)]
        assert went.next(found, there, Trigger(most=10), 0.0) == Position({A: 920}, {A: 910})
        assert planner().next(at(a=5), there, Trigger(most=10), 0.0) == Position({A: 15}, {A: 5})

    @pytest.mark.parametrize("end", [4, 5, 9])
    def test_stream_that_was_created_again_is_loss_whatever_its_length(self, end: int) -> None:
        start = Position({A: 5, B: 0}, {A: 5, B: 0}, {"s": 1_000})
        there = {A: Extents(0, end, end, 2_000), B: Extents(0, 0, 0, 2_000)}
        with pytest.raises(DataLossError, match=r"s\[0\] was deleted and created again; .* was at offset 5"):
            planner().next(start, there, ALL, 0.0)
        went = planner(fails=False)
        found = went.next(start, there, ALL, 0.0)
        assert found == Position({A: end, B: 0}, {A: 0, B: 0}, {"s": 2_000})
        assert len(went.losses) == 2
        assert went.next(found, there, ALL, 0.0) is found
        assert len(went.losses) == 2

    def test_creation_time_is_learned_with_the_next_batch(self) -> None:
        there = {A: Extents(0, 7, 7, 1_000)}
        assert planner().next(at(a=7), there, ALL, 0.0) == at(a=7)
        found = planner().next(at(a=5), there, ALL, 0.0)
        assert found == Position({A: 7}, {A: 5}, {"s": 1_000})
        assert planner().next(found, {A: Extents(0, 8, 8)}, ALL, 0.0).created == {"s": 1_000}

    def test_creation_times_of_deleted_streams_are_forgotten(self) -> None:
        start = Position({A: 5, ("t", 0): 3}, {}, {"s": 1_000, "t": 2_000})
        found = planner(fails=False).next(start, {A: Extents(0, 5, 5, 1_000)}, ALL, 0.0)
        assert found == Position({A: 5}, {A: 5}, {"s": 1_000})
