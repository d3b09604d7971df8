"""Locks for changes of streams: which changes exclude each other, and in which order they begin."""

from __future__ import annotations

import asyncio

import pytest

from liftenvelope.gateway._cluster.change_locks import ChangeLocks


class Change:
    """A change that holds its locks until it is told to end."""

    def __init__(self, locks: ChangeLocks, name: str, *subjects: str) -> None:
        self.has_begun = False
        self._end = asyncio.Event()
        self.task = asyncio.create_task(self._run(locks, name, subjects))

    async def _run(self, locks: ChangeLocks, name: str, subjects: tuple[str, ...]) -> None:
        async with locks.held(name, *subjects):
            self.has_begun = True
            await self._end.wait()

    async def end(self) -> None:
        self._end.set()
        await self.task
        await settled()


async def settled() -> None:
    """Let all tasks run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("one", "orders"), ("two", "orders")),
        (("one", "orders"), ("two", "orders.1")),
        (("one", "orders.1.a"), ("two", "orders")),
        (("one", "orders.*"), ("two", "orders.eu")),
        (("one", "orders.eu"), ("two", "orders.>")),
        (("one", "*.eu"), ("two", "orders.eu")),
        (("one", "orders"), ("two", ">")),
        (("one", "a.b.c.d.e"), ("two", "a.b.c.d.f")),
        (("one", "a"), ("one", "b")),
        (("one", "a"), ("two", "b", "a")),
    ],
)
async def test_changes_of_one_stream_or_of_overlapping_subjects_exclude_each_other(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    locks = ChangeLocks()
    for before, after in ((first, second), (second, first)):
        one, two = Change(locks, *before), Change(locks, *after)
        await settled()
        assert (one.has_begun, two.has_begun) == (True, False)
        await one.end()
        assert two.has_begun
        await two.end()


async def test_changes_of_other_subjects_run_side_by_side() -> None:
    locks = ChangeLocks()
    subjects = ("orders", "orders-eu", "a.b", "a.c", "b.*", "c.>")
    changes = [Change(locks, f"stream {subject}", subject) for subject in subjects]
    await settled()
    assert all(change.has_begun for change in changes)
    for change in changes:
        await change.end()
    assert (locks._latest, locks._below) == ({}, {})


async def test_change_waits_for_all_earlier_ones_that_it_excludes_and_for_no_later_one() -> None:
    locks = ChangeLocks()
    narrow = [Change(locks, f"n{number}", f"a.{number}") for number in range(3)]
    wide, later = Change(locks, "wide", "a.>"), Change(locks, "later", "a.0")
    await settled()
    for change in narrow:
        assert not wide.has_begun
        await change.end()
    assert (wide.has_begun, later.has_begun) == (True, False)
    await wide.end()
    assert later.has_begun
    await later.end()


async def test_cancelled_change_lets_no_later_one_overtake_an_earlier_one() -> None:
    locks = ChangeLocks()
    first, cancelled, last = (Change(locks, "one", "a") for _ in range(3))
    await settled()
    cancelled.task.cancel()
    await settled()
    assert cancelled.task.cancelled()
    assert (first.has_begun, last.has_begun) == (True, False)
    await first.end()
    assert last.has_begun
    await last.end()
    assert not locks._latest


async def test_changes_in_progress_are_bounded_and_waiting_ones_take_no_place() -> None:
    locks = ChangeLocks(2)
    one, waiting, two, three = (Change(locks, name, name) for name in ("one", "one", "two", "three"))
    await settled()
    assert [change.has_begun for change in (one, waiting, two, three)] == [True, False, True, False]
    await two.end()
    assert three.has_begun
    await one.end()
    assert waiting.has_begun
    await waiting.end()
    await three.end()
