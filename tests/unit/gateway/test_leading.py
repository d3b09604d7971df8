"""Leader work for many partitions."""

from __future__ import annotations

import asyncio

from liftenvelope.gateway._leader.leading import _AT_ONCE, _each


async def test_work_for_many_partitions_takes_few_tasks() -> None:
    before, most, done = len(asyncio.all_tasks()), 0, []

    async def work(number: int) -> None:
        nonlocal most
        most = max(most, len(asyncio.all_tasks()))
        await asyncio.sleep(0)
        done.append(number)

    await _each(work, range(1_000))
    assert sorted(done) == list(range(1_000))
    assert most == before + _AT_ONCE
