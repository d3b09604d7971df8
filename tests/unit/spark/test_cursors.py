"""Positions of a query for other tools, in a store that is FAKE: it fails when a test wants it to."""

from __future__ import annotations

import pytest

from liftenvelope.errors import CallTimeoutError
from liftenvelope.spark._cursors import QueryCursors
from liftenvelope.spark._options import source_options

Part = tuple[str, int]


class FailingStore:
    """A store of positions that fails for some partitions.

    Attributes:
        failing: Partitions for which it fails.
        calls: Number of the partition of each call.
        kept: Last position stored, by number of the partition.
    """

    def __init__(self) -> None:
        self.failing: set[int] = set()
        self.calls: list[int] = []
        self.kept: dict[int, int] = {}

    def store(self, part: Part, offset: int, timeout: float | None) -> None:
        self.calls.append(part[1])
        if part[1] in self.failing:
            raise CallTimeoutError("no answer came in time")
        self.kept[part[1]] = offset

    def close(self) -> None:
        pass


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


@pytest.fixture
def cursors(store: FailingStore) -> QueryCursors:
    given = {"servers": "127.0.0.1:1", "subscribe": "s", "commitCursor": "billing"}
    found = QueryCursors(source_options("liftbridge", given, streaming=True))
    found._store = store
    return found


def offsets(batch: int) -> dict[Part, int]:
    return {("s", number): batch * 10 for number in range(5)}


def test_failed_store_ends_the_call_and_the_next_one_begins_with_the_others(
    store: FailingStore, cursors: QueryCursors
) -> None:
    cursors.show(offsets(1))
    assert store.kept == dict.fromkeys(range(5), 10)
    store.failing, store.calls = {1, 3}, []
    with pytest.warns(RuntimeWarning, match=r"position in s\[1\] was not stored"):
        cursors.show(offsets(2))
    assert store.calls == [0, 1]
    store.calls = []
    with pytest.warns(RuntimeWarning, match=r"position in s\[3\] was not stored"):
        cursors.show(offsets(3))
    assert store.calls == [0, 2, 3]
    store.calls = []
    with pytest.warns(RuntimeWarning, match=r"position in s\[1\] was not stored"):
        cursors.show(offsets(4))
    assert store.calls == [0, 2, 4, 1]  # of those that failed, the one that has waited longest
    store.failing, store.calls = set(), []
    cursors.show(offsets(5))
    assert store.calls == [0, 2, 4, 3, 1]
    assert store.kept == dict.fromkeys(range(5), 50)


def test_positions_that_did_not_move_are_not_stored_again(store: FailingStore, cursors: QueryCursors) -> None:
    cursors.show(offsets(1))
    cursors.show({**offsets(1), ("s", 2): 11})
    assert store.calls == [0, 1, 2, 3, 4, 2]
