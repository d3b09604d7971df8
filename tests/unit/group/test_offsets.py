"""Offset keys of a group: every offset survives, and a write repeats few others."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.group._controller.offsets import OffsetSlots
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.wire import encode_offsets

COMMITS = st.dictionaries(
    st.builds(TopicPartition, st.just("t"), st.integers(0, 5_000)), st.integers(0, 100), max_size=200
)


@given(steps=st.lists(COMMITS | st.none(), max_size=30))
def test_newest_offset_of_each_partition_is_in_the_newest_key_that_has_it(
    steps: list[dict[TopicPartition, int] | None],
) -> None:
    """None stands for a write of the record, which includes all offsets."""
    slots = OffsetSlots()
    keys: dict[int, tuple[int, dict[TopicPartition, int]]] = {}
    expected: dict[TopicPartition, int] = {}
    for revision, commits in enumerate(steps):
        if commits is None:
            slots.clear()
            keys.clear()
            expected.clear()
            continue
        number, content = slots.next(commits)
        slots.stored(number, content)
        keys[number] = revision, content
        expected |= commits
        found: dict[TopicPartition, int] = {}
        restored = OffsetSlots()
        for key, (_, one) in sorted(keys.items(), key=lambda item: item[1][0]):
            found |= one
            restored.stored(key, one)
        assert found == slots.offsets() == restored.offsets() == expected
        assert len(slots) == len(restored) == len(expected)
        for _, one in (restored.next({}), slots.next({})):
            assert one.items() <= expected.items()


def test_small_group_has_one_key() -> None:
    slots = OffsetSlots()
    for offset in range(100):
        commits = {TopicPartition("t", offset % 64): offset}
        number, content = slots.next(commits)
        assert number == 0
        slots.stored(number, content)


def test_commit_in_the_largest_group_repeats_a_64th_of_the_offsets_at_most() -> None:
    slots, random = OffsetSlots(), Random(7)
    for round_ in range(3_000):
        commits = {TopicPartition("orders", random.randrange(10_000)): 10**9 + round_ for _ in range(10)}
        number, content = slots.next(commits)
        slots.stored(number, content)
        assert len(content) <= 10 + 10_000 / 64
        assert len(encode_offsets(content)) < 3_000
    assert len(slots) > 9_000
