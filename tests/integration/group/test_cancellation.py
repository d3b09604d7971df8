"""Members that are cancelled wherever they wait, or closed while partitions move: nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import Any

import pytest

from liftenvelope.group import GroupConsumer, StaleGenerationError, TopicPartition, UnknownMemberError
from liftenvelope.group._controller.host import GroupHost

from .play import LONG, PATIENCE, Play, eventually, publishing, watching

#: A session that is soon over, and still not because the server hangs: who has lost it begins anew.
SHORT = 4.0


class CancelledAt:
    """Runs a coroutine, and cancels the task that it runs in when it waits for the n-th time."""

    def __init__(self, place: int, work: Coroutine[Any, Any, None]) -> None:
        self.place, self.work = place, work
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, None]:
        step: Any = lambda: self.work.send(None)  # noqa: E731
        while True:
            try:
                waited = step()
            except StopIteration:
                return
            self.waits += 1
            if self.waits == self.place:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield waited
            except BaseException as exc:  # noqa: BLE001 - whatever it is, it is the coroutine's
                step = lambda error=exc: self.work.throw(error)  # noqa: E731
            else:
                step = lambda: self.work.send(None)  # noqa: E731


async def run_cancelled(place: int, work: Coroutine[Any, Any, None]) -> bool:
    """Return True if the work was cancelled before its end."""
    running = CancelledAt(place, work)

    async def run() -> None:
        await running

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return running.waits >= place


async def read_some(play: Play, consumer: GroupConsumer) -> None:
    """Join, read one by one and in lists, commit in both ways, and leave.

    The machine may hang for a whole session. The member has then lost its partitions, and ends.
    """
    async with consumer:
        with suppress(StaleGenerationError, UnknownMemberError):
            async with asyncio.timeout(PATIENCE):
                message = await anext(consumer)
                play.log.add(consumer.consumer_id, message)
                await consumer.commit(message)
                async for batch in consumer.batches(3, 0.01):
                    for one in batch:
                        play.log.add(consumer.consumer_id, one)
                    await consumer.commit()
                    break
                play.log.add(consumer.consumer_id, await anext(consumer))


def left(before: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """Return the tasks that the members have left running.

    The coordinator, in the same loop, may take over a group of another test at any time.
    """
    now = asyncio.all_tasks() - before - {asyncio.current_task()}
    return [task for task in now if GroupHost._work.__qualname__ not in repr(task.get_coro())]


async def test_cancelled_wherever_it_waits(play: Play) -> None:
    """One member stays, and another one comes again and again, to be cancelled one wait later each time."""
    await play.publish(1)
    await play.client.create_group(play.name, session_timeout=LONG)
    await play.offsets()  # so that the coordinator has the group at hand
    before = asyncio.all_tasks()
    async with play.member("stays") as stays, watching(play):
        async with publishing(play):
            place = 0
            was_cancelled = True
            while was_cancelled:
                place += 1
                name = f"goes-{place}"

                def told(partitions: list[TopicPartition], name: str = name) -> None:
                    play.log.assigned(name, partitions)

                # One that is cancelled while it leaves is found out by its silence.
                consumer = play.consumer(name, on_assigned=told, session_timeout=SHORT)
                was_cancelled = await run_cancelled(place, read_some(play, consumer))
        assert place > 5, "there are more places than that to be cancelled at"
        await eventually(lambda: len(stays.assignment) == play.partitions)
        await play.all_read()
    await eventually(lambda: not left(before))
    play.log.check()


async def test_close_that_is_cancelled_commits_no_message_in_hand(play: Play) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def on_revoked(_: list[TopicPartition]) -> None:
        begun.set()
        await go_on.wait()

    await play.publish(8)
    options: dict[str, Any] = {"session_timeout": 5.0, "auto_commit_interval": PATIENCE}
    a = await play.consumer("a", on_revoked=on_revoked, **options).open()
    async with asyncio.timeout(PATIENCE):
        last = [await anext(a) for _ in range(8)][-1]
    b = play.consumer("b", **options)
    opening = asyncio.create_task(b.open())
    await asyncio.wait_for(begun.wait(), PATIENCE)
    closing = asyncio.create_task(a.close())
    await eventually(lambda: a._closing)
    closing.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await opening
    # The first offsets are committed or not: close() was cancelled, and the group expels the silent member.
    assert (await play.offsets())[TopicPartition(last.topic, last.partition)] <= last.offset
    async with asyncio.timeout(PATIENCE):
        while (await anext(b)).offset != last.offset:
            pass
    await b.close()


async def test_closed_while_partitions_move(play: Play) -> None:
    """A running ``on_revoked`` is not interrupted, and processed messages are committed."""
    begun, go_on, told = asyncio.Event(), asyncio.Event(), []

    async def on_revoked(partitions: list[TopicPartition]) -> None:
        begun.set()
        await go_on.wait()
        told.append(partitions)

    await play.publish(8)
    a = await play.consumer("a", on_revoked=on_revoked, auto_commit_interval=PATIENCE).open()
    async with asyncio.timeout(PATIENCE):
        for _ in range(8):
            await anext(a)
    waiting = asyncio.create_task(anext(a, None))  # so that the last one is processed, too
    b = play.consumer("b")
    opening = asyncio.create_task(b.open())
    await asyncio.wait_for(begun.wait(), PATIENCE)
    closing = asyncio.create_task(a.close())
    await eventually(lambda: a._closing)
    assert not told
    go_on.set()
    await closing
    await opening
    assert [len(partitions) for partitions in told] == [4]
    assert await waiting is None
    assert sorted((await play.offsets()).values()) == [5, 6, 7, 8]
    await eventually(lambda: len(b.assignment) == 4)
    await b.close()


async def test_closed_by_its_own_callback(play: Play) -> None:
    closed = asyncio.Event()

    async def on_revoked(_: list[TopicPartition]) -> None:
        await a.close()
        closed.set()

    a = await play.consumer("a", on_revoked=on_revoked).open()
    async with play.consumer("b") as b:
        await asyncio.wait_for(closed.wait(), PATIENCE)
        await eventually(lambda: len(b.assignment) == 4)
    assert [one async for one in a] == []


async def test_everybody_comes_and_goes_at_once(play: Play) -> None:
    """Closing and opening overlap in every way; at the end somebody has everything, and reads it."""

    async def come_and_go(number: int) -> None:
        for turn in range(3):
            consumer = play.consumer(f"{number}-{turn}", session_timeout=LONG)
            opening = asyncio.create_task(consumer.open())
            for _ in range(number * 7 + turn):
                await asyncio.sleep(0)
            await consumer.close()
            await asyncio.wait([opening])
            opening.cancelled() or opening.exception()

    await play.publish(20)
    await asyncio.wait_for(asyncio.gather(*(come_and_go(number) for number in range(6))), PATIENCE)
    async with play.member("last") as last:
        await eventually(lambda: len(last.assignment) == 4)
        await play.all_read()
    play.log.check()
