"""A compaction deletes obsolete messages and remembers the newest message of each key."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.gateway._leader.compaction import CompactionBudget
from liftenvelope.gateway._leader.compaction_plan import CompactionPlan

#: What a plan takes that can be split no more: one table with some keys.
ONE_TABLE: Final = 400 + 27 * 60


def deleted(keys: list[bytes], plan: CompactionPlan) -> tuple[list[int], int]:
    """All that the plan deletes of these messages, and the most that it remembered."""
    gone: list[int] = []
    there = dict(enumerate(keys, 1))
    most = 0
    again = True
    while again:
        for sequence, key in list(there.items()):
            if (older := plan.see(sequence, key)) is not None:
                gone.append(older)
                del there[older]
            most = max(most, plan.memory)
        again = plan.next_reading()
    return gone, most


def obsolete(keys: list[bytes]) -> set[int]:
    """Return the sequences of messages that a newer message with the same key replaces."""
    return {n for n, key in enumerate(keys, 1) if key and key in keys[n:]}


def test_only_the_newest_of_a_key_stays() -> None:
    assert deleted([b"a", b"b", b"a", b"a", b"b"], CompactionPlan())[0] == [1, 3, 2]


def test_messages_without_a_key_stay() -> None:
    assert deleted([b"", b"a", b"", b"a", b""], CompactionPlan())[0] == [2]


def test_whole_plan_goes_on_with_later_messages() -> None:
    plan = CompactionPlan()
    assert deleted([b"a", b"b", b"a"], plan)[0] == [1]
    assert plan.is_whole
    assert [plan.see(4, b"b"), plan.see(5, b"c"), plan.see(6, b"a")] == [2, None, 3]


def test_split_plan_forgets_everything_at_its_end() -> None:
    plan = CompactionPlan(ONE_TABLE)
    deleted([b"%d" % number for number in range(1_000)], plan)
    assert plan.is_whole
    assert plan.memory == 0
    assert plan.see(1, b"0") is None


def test_message_that_is_added_again_never_deletes_itself() -> None:
    plan = CompactionPlan()
    assert deleted([b"a", b"a", b"a"], plan)[0] == [1, 2]
    # An interrupted reading is repeated: the older ones are obsolete, the newest is not.
    assert [plan.see(1, b"a"), plan.see(2, b"a"), plan.see(3, b"a")] == [1, 2, None]


class HalfHash(CompactionPlan):
    """All keys have the same first half of the hash, as no two keys that anybody knows have."""

    def _hash(self, key: bytes) -> tuple[int, int]:
        return 7, super()._hash(key)[1]


@pytest.mark.parametrize("plan", [HalfHash(), HalfHash(salt=b"0" * 16)])
def test_keys_whose_hashes_collide_in_one_half_are_different_keys(plan: CompactionPlan) -> None:
    keys = [b"%d" % (number % 40) for number in range(200)]
    assert set(deleted(keys, plan)[0]) == obsolete(keys)


KEYS = st.lists(st.binary(max_size=3) | st.sampled_from([b"a", b"b", b"c"]), max_size=60)


@given(KEYS, st.integers(1, 20_000), st.binary(min_size=16, max_size=16))
def test_any_memory_is_enough(keys: list[bytes], max_memory: int, salt: bytes) -> None:
    gone, most = deleted(keys, CompactionPlan(max_memory, salt=salt))
    assert len(gone) == len(set(gone))
    assert set(gone) == obsolete(keys)
    assert most <= max(max_memory, ONE_TABLE)


@given(st.lists(KEYS, min_size=1, max_size=5))
def test_later_messages_give_the_same_as_all_at_once(parts: list[list[bytes]]) -> None:
    plan, sequence, gone = CompactionPlan(), 0, set[int]()
    for part in parts:
        for key in part:
            sequence += 1
            if (older := plan.see(sequence, key)) is not None:
                gone.add(older)
        assert not plan.next_reading()
    assert gone == obsolete([key for part in parts for key in part])


def test_memory_is_bounded_with_many_keys() -> None:
    keys = [b"key-%d" % (number % 30_000) for number in range(60_000)]
    gone, most = deleted(keys, CompactionPlan(300_000))
    assert sorted(gone) == list(range(1, 30_001))
    assert most <= 300_000


def test_budget_is_for_all_indexes_together() -> None:
    budget = CompactionBudget(100)
    assert budget.keep("a", 60)
    assert not budget.keep("b", 50)
    assert budget.keep("a", 40)
    assert budget.keep("b", 60)
    budget.release("a")
    assert budget.keep("c", 40)
    # Where there is no room for more, what was reserved before is free as well.
    assert not budget.keep("b", 61)
    assert budget.keep("d", 60)
