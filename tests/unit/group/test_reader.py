"""One partition in a member's hands, from generation to generation: nothing skipped, nothing out of order."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from liftenvelope.errors import (
    CallTimeoutError,
    LiftEnvelopeError,
    NoSuchPartitionError,
    NoSuchStreamError,
    OffsetOutOfRangeError,
    ResourcesExceededError,
    StreamDeletedError,
    StreamNotFoundError,
)
from liftenvelope.group import SourceMessage, TopicPartition, TopicSpec
from liftenvelope.group._member.reader import Outage, PartitionReader

KEY = TopicPartition("t", 0)


class Numbers:
    """A topic in memory, with gaps; every so often a feed breaks, or can't be opened."""

    spec = TopicSpec("t", 1)

    def __init__(self, offsets: list[int], breaks_after: int, *, lists: bool = False) -> None:
        self.offsets, self.breaks_after, self.lists = offsets, breaks_after, lists
        self.opened = self.asked = 0

    async def bounds(self, _: int) -> tuple[int, int]:
        return self.offsets[0], self.offsets[-1] + 1

    async def lag(self, _: int, offset: int) -> int:
        return len(self.offsets) - bisect_left(self.offsets, offset)

    async def open(self, _: int, offset: int) -> NumbersFeed:
        self.opened += 1
        return NumberListsFeed(self, offset) if self.lists else NumbersFeed(self, offset)


class NumbersFeed:
    def __init__(self, topic: Numbers, offset: int) -> None:
        self.topic, self.place, self.left = topic, bisect_left(topic.offsets, offset), topic.breaks_after

    async def next(self) -> SourceMessage:
        if not self.left:
            raise CallTimeoutError("it broke")
        if self.place == len(self.topic.offsets):
            await asyncio.Event().wait()
        self.place, self.left = self.place + 1, self.left - 1
        offset = self.topic.offsets[self.place - 1]
        return SourceMessage(offset, b"%d" % offset, None)

    async def close(self) -> None:
        pass


class NumberListsFeed(NumbersFeed):
    """A feed that returns lists."""

    async def next_many(self, limit: int) -> list[SourceMessage]:
        self.topic.asked += 1
        messages = [await self.next()]
        while len(messages) < limit and self.left and self.place < len(self.topic.offsets):
            messages.append(await self.next())
        return messages


async def kept(_: PartitionReader, __: int | None) -> None:
    """Commit the start of a partition: does nothing here."""


def reader_of(topic: Any, offset: int, generation: int = 1, limit: int = 4) -> PartitionReader:
    return PartitionReader(
        topic,
        KEY,
        generation,
        offset,
        auto_offset="earliest",
        limit=limit,
        patience=10.0,
        on_ready=lambda _: None,
        on_refused=lambda _, __: None,
        on_unreadable=lambda _, __: None,
        on_begin=kept,
    )


def done(task: asyncio.Task[None]) -> None:
    assert task.cancelled() or task.exception() is None


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


OFFSETS = st.lists(st.integers(0, 60), min_size=1, max_size=25, unique=True).map(sorted)
STEPS = st.lists(
    st.tuples(st.sampled_from(("take", "take", "back", "back", "seek", "elsewhere")), st.integers(0, 6)),
    min_size=4,
    max_size=25,
)


@example(list(range(15)), [("take", 2), ("seek", 1), ("elsewhere", 0), ("take", 3), ("take", 3)], True)
@example(list(range(15)), [("take", 2), ("take", 2), ("elsewhere", 0), ("take", 3), ("take", 3)], False)
@given(OFFSETS, STEPS, st.booleans())
def test_reader_resumes_at_the_offset_of_the_group(
    offsets: list[int], steps: list[tuple[str, int]], lists: bool
) -> None:
    asyncio.run(go_through(Numbers(offsets, 1_000, lists=lists), steps))


async def go_through(topic: Numbers, steps: list[tuple[str, int]]) -> None:
    offsets, place, generation = topic.offsets, 0, 1
    reader = reader_of(topic, 0)
    reader.start(done)
    last: list[int] = []
    for what, number in steps:
        await settle()
        if what == "take":
            taken = [message.offset for message in reader.buffer.take_messages(number + 1)]
            assert taken == [offset for offset in offsets if offset >= place][: len(taken)]
            assert taken or not [offset for offset in offsets if offset >= place]
            last, place = (taken, taken[-1] + 1) if taken else (last, place)
            assert reader.position == place
            continue
        if what == "seek":
            place, last = 10 * number, []
            reader.seek(place)
            continue
        if what == "elsewhere":
            place = 10 * number
        elif number and last:
            place = last[-number:][0]
        generation += 1
        reader = await dealt_out_anew(topic, reader, generation, place)
        last = []
    await reader.close()


async def dealt_out_anew(
    topic: Numbers, reader: PartitionReader, generation: int, offset: int
) -> PartitionReader:
    holds = reader.hold()
    await settle()
    assert reader.buffer.take(10) == ([], [])
    if not (holds and reader.go_on(generation, offset)):
        await reader.close()
        reader = reader_of(topic, offset, generation)
    assert reader.buffer.take(10) == ([], [])  # not before it is started
    reader.start(done)
    assert reader.buffer.generation == generation
    return reader


async def test_what_was_read_ahead_is_not_read_again() -> None:
    topic = Numbers(list(range(20)), 1_000)
    reader = reader_of(topic, 0)
    reader.start(done)
    await settle()
    assert reader.buffer.take(3)[0] == [0, 1, 2]
    assert reader.hold()
    assert reader.go_on(2, 1)  # the first of the three was processed
    reader.start(done)
    messages = reader.buffer.take_messages(2)
    assert [(message.offset, message.generation) for message in messages] == [(1, 2), (2, 2)]
    assert topic.opened == 1
    assert not (reader.hold() and reader.go_on(3, 0))  # somebody went back further
    await reader.close()


async def test_lists_fill_the_buffer_and_no_more() -> None:
    topic = Numbers(list(range(20)), 1_000, lists=True)
    reader = reader_of(topic, 0)
    reader.start(done)
    place = 0
    await settle()
    assert topic.asked == 1
    while place < 20:
        await settle()
        assert reader.buffer.waiting == min(4, 20 - place)
        taken = reader.buffer.take(3)[0]
        assert taken == list(range(place, place + len(taken)))
        place += len(taken)
    await reader.close()


async def test_partition_is_not_held_before_its_start_is_committed() -> None:
    never = asyncio.Event()

    async def keep(_: PartitionReader, __: int | None) -> None:
        await never.wait()

    reader = reader_of(Numbers([0], 1_000), -1)
    reader._on_begin = keep
    reader.start(done)
    await settle()
    assert reader.position == 0
    assert not reader.hold()
    await reader.close()


async def test_what_ends_it_while_it_is_held_is_for_whoever_has_the_partition() -> None:
    class Gone(Numbers):
        async def open(self, _: int, offset: int) -> NumbersFeed:
            if self.opened:
                raise StreamDeletedError(5, "it is gone")
            return await super().open(_, offset)

    failures: list[BaseException | None] = []
    reader = reader_of(Gone([0, 1], 1), 0)
    reader.start(lambda task: failures.append(None if task.cancelled() else task.exception()))
    await settle()
    assert reader.hold()
    assert reader._task is not None
    await asyncio.wait([reader._task])
    assert not reader.go_on(2, 0)
    assert failures == []


@pytest.mark.parametrize(
    "error",
    [
        StreamNotFoundError(404, "there is no stream", 10059),
        NoSuchStreamError(5, "stream not found"),
        NoSuchPartitionError(5, "partition not found"),  # the newest offset of a deleted stream of Liftbridge
        StreamDeletedError(5, "it is gone"),
    ],
)
async def test_stream_that_has_existed_may_be_missing_for_a_while(error: LiftEnvelopeError) -> None:
    opened = asyncio.Event()

    class Recreated(Numbers):
        async def open(self, _: int, offset: int) -> NumbersFeed:
            if not self.opened:
                self.opened += 1
                raise error
            opened.set()
            return await super().open(_, offset)

    reader = reader_of(Recreated([0, 1], 9), 0)
    reader.created_ns = 1
    reader.start(done)
    async with asyncio.timeout(60):
        await opened.wait()
    await reader.close()


REFUSED = ResourcesExceededError(8, "no more consumers")
BEHIND = OffsetOutOfRangeError("beyond the end", "t", 0, 9, 3)


@pytest.mark.parametrize(
    ("first", "between", "second"),
    [
        pytest.param(REFUSED, None, REFUSED, id="a time of reading"),
        pytest.param(REFUSED, CallTimeoutError("no answer"), REFUSED, id="a retriable error"),
        pytest.param(BEHIND, CallTimeoutError("no answer"), BEHIND, id="a retriable error behind the end"),
        pytest.param(REFUSED, BEHIND, REFUSED, id="another kind"),
    ],
)
async def test_time_limit_of_errors_in_a_row_begins_anew_after(
    monkeypatch: pytest.MonkeyPatch,
    first: LiftEnvelopeError,
    between: LiftEnvelopeError | None,
    second: LiftEnvelopeError,
) -> None:
    """An hour passes before each error, so one that continues a row is raised at once."""
    loop = asyncio.get_running_loop()
    real, shift = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + shift)
    outcomes = [first, between, second]

    class Failing(Numbers):
        async def open(self, _: int, offset: int) -> NumbersFeed:
            nonlocal shift
            shift += 3_600
            if outcomes and (error := outcomes.pop(0)) is not None:
                raise error
            return await super().open(_, offset)

    refusals: list[LiftEnvelopeError] = []
    topic = Failing([0], 0)  # its feeds break before the first message
    reader = reader_of(topic, 0)
    reader._on_refused = lambda _, error: refusals.append(error)
    reader.start(done)
    assert reader._task is not None
    while (outcomes or not topic.opened) and not reader._task.done():
        await asyncio.sleep(0)
    assert not reader._task.done()
    assert len(refusals) == [first, second].count(REFUSED)
    await reader.close()


@pytest.mark.parametrize(
    ("events", "told"),
    [
        pytest.param([("failed", 0), ("failed", 9)], [], id="nine seconds"),
        pytest.param([("failed", 5), ("failed", 9), ("failed", 15)], [15], id="ten seconds"),
        pytest.param([("failed", 0), ("failed", 10), ("failed", 99)], [10], id="once"),
        pytest.param([("failed", 0), ("message", 5), ("failed", 10)], [], id="a message between"),
        pytest.param(
            [("failed", 0), ("failed", 10), ("message", 11), ("failed", 12), ("failed", 22)],
            [10, 22],
            id="two outages",
        ),
        pytest.param([("failed", 0), ("opened", 1), ("failed", 11)], [11], id="a feed that soon fails"),
        pytest.param([("failed", 0), ("opened", 1), ("failed", 32)], [32], id="two missed heartbeats"),
        pytest.param([("failed", 0), ("opened", 1), ("failed", 36)], [], id="a feed of an empty partition"),
    ],
)
def test_outage_of_a_partition_is_told_after_ten_seconds(
    events: list[tuple[str, float]], told: list[float]
) -> None:
    outage = Outage(10.0)
    found: list[float] = []
    for what, now in events:
        if what == "message":
            outage.ends()
        elif what == "opened":
            outage.opened(now)
        elif outage.failed(now):
            found.append(now)
    assert found == told


async def test_creation_time_from_a_broker_that_is_behind_is_not_taken_over() -> None:
    class Dated(Numbers):
        def created_ns(self, _: int, /) -> int:
            return 100

        def is_restored(self, _: int, /) -> bool:
            return False

    reader = reader_of(Dated([0, 1], 1_000), 0)
    reader.created_ns = 200
    reader.start(done)
    await settle()
    assert (reader.buffer.waiting, reader.created_ns) == (2, 200)
    reader.seek(1)
    await settle()
    assert (reader.buffer.waiting, reader.created_ns) == (1, 100)
    await reader.close()
