"""What a compaction deletes, and what it remembers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.gateway.compaction import CompactionPlan


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
    """What there is a newer one of."""
    return {n for n, key in enumerate(keys, 1) if key and key in keys[n:]}


def test_only_the_newest_of_a_key_stays() -> None:
    assert deleted([b"a", b"b", b"a", b"a", b"b"], CompactionPlan()) == ([1, 3, 2], 402)


def test_messages_without_a_key_stay() -> None:
    assert deleted([b"", b"a", b"", b"a", b""], CompactionPlan())[0] == [2]


def test_nothing_is_done_twice() -> None:
    plan = CompactionPlan()
    assert deleted([b"a", b"a"], plan)[0] == [1]
    assert deleted([b"a"], plan)[0] == []


KEYS = st.lists(st.binary(max_size=3) | st.sampled_from([b"a", b"b", b"c"]), max_size=60)


@given(KEYS, st.integers(1, 2_000), st.binary(min_size=16, max_size=16))
def test_any_memory_is_enough(keys: list[bytes], max_memory: int, salt: bytes) -> None:
    gone, most = deleted(keys, CompactionPlan(max_memory, salt=salt))
    assert len(gone) == len(set(gone))
    assert set(gone) == obsolete(keys)
    assert most <= max(max_memory, 203)


def test_memory_is_bounded_with_many_keys() -> None:
    keys = [b"key-%d" % (number % 3_000) for number in range(6_000)]
    gone, most = deleted(keys, CompactionPlan(100_000))
    assert sorted(gone) == list(range(1, 3_001))
    assert most <= 100_000


def test_one_key_larger_than_the_memory_is_remembered() -> None:
    assert deleted([b"k" * 5_000, b"a", b"k" * 5_000], CompactionPlan(1_000))[0] == [1]
