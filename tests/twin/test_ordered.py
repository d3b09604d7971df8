"""Messages of an ordered consumer on their way to the user: both twins against a model, and alike."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._native import _fastframes
from tests.fuzz.targets.ordered import TARGET
from tests.twin import readable
from tests.twin.awaiting import check_default_is_for_the_end_and_not_for_a_wait

TWINS = pytest.mark.parametrize("frames", [readable.frames, _fastframes], ids=["python", "cython"])


class Reader:
    """An ordered queue over a queue with the deliveries of one consumer."""

    def __init__(self, frames: ModuleType, threshold: int = 0) -> None:
        self.frames, self.lows = frames, 0
        self.queue = frames.MessageQueue(threshold, False, self.low, self.wait)
        self.order = frames.OrderedQueue(self.wait)
        self.order.switch(self.queue)

    def low(self) -> None:
        self.lows += 1

    async def wait(self) -> Any:
        return "waited"

    def deliver(self, *deliveries: int) -> None:
        """Deliver messages, of which each has ten times its number as stream sequence."""
        self.queue.extend([self.message(f"$JS.ACK.S.C.1.{10 * one}.{one}.17.0") for one in deliveries])

    def message(self, reply: str) -> Any:
        return self.frames.Delivered("a", reply, reply.split(".")[-3].encode() if reply else b"", None, None)


def place(order: Any) -> tuple[bool, int, int]:
    return bool(order), order.expected, order.sequence


@TWINS
async def test_messages_in_order_are_handed_out_at_once(frames: ModuleType) -> None:
    reader = Reader(frames)
    reader.deliver(1, 2, 3)
    assert place(reader.order) == (True, 1, 0)
    got = [message.data if message != "waited" else message async for message in _until(reader.order)]
    assert got == [b"1", b"2", b"3", "waited"]
    assert place(reader.order) == (False, 4, 30)
    with pytest.raises(IndexError, match="no message is next"):
        reader.order.pop()


async def _until(order: Any) -> Any:
    async for message in order:
        yield message
        if message == "waited":
            return


@TWINS
@pytest.mark.parametrize(
    "reply", ["$JS.ACK.S.C.1.50.3.17.0", "$JS.ACK.x", "", f"$JS.ACK.S.C.1.{2**63}.2.17.0"]
)
async def test_message_out_of_order_stays_for_the_owner(frames: ModuleType, reply: str) -> None:
    reader = Reader(frames)
    reader.deliver(1)
    reader.queue.append(out := reader.message(reply))
    assert (await anext(reader.order)).data == b"1"
    assert await anext(reader.order) == "waited"
    with pytest.raises(IndexError, match="no message is next"):
        reader.order.pop()
    assert (place(reader.order), list(reader.queue)) == ((False, 2, 10), [out])


@TWINS
async def test_nothing_is_handed_out_while_another_task_waits(frames: ModuleType) -> None:
    reader = Reader(frames)
    reader.deliver(1)
    reader.order.is_held = True
    assert not reader.order
    assert await anext(reader.order) == "waited"
    reader.order.is_held = False
    assert (await anext(reader.order)).data == b"1"


@TWINS
async def test_next_message_can_be_a_task(frames: ModuleType) -> None:
    reader = Reader(frames)
    reader.deliver(1)
    cancelled = asyncio.create_task(anext(reader.order))
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert (await asyncio.create_task(anext(reader.order))).data == b"1"
    assert await asyncio.create_task(anext(reader.order)) == "waited"
    assert place(reader.order) == (False, 2, 10)


@TWINS
def test_next_queue_begins_with_its_first_delivery(frames: ModuleType) -> None:
    reader, other = Reader(frames), Reader(frames)
    reader.deliver(1, 2)
    reader.order.pop()
    reader.order.switch(None)
    assert place(reader.order) == (False, 1, 10)
    other.deliver(2)
    reader.order.switch(other.queue)
    assert place(reader.order) == (False, 1, 10)
    other.queue.clear()
    other.deliver(1)
    assert reader.order.pop().data == b"1"


@TWINS
def test_message_is_not_handed_out_if_the_owner_fails(frames: ModuleType) -> None:
    """The message is gone from the queue then, so the next one is out of order, and all is read again."""
    reader = Reader(frames)

    def fail() -> None:
        raise ZeroDivisionError

    queue = frames.MessageQueue(1, False, fail, reader.wait)
    reader.queue.extend([])
    queue.append(reader.message("$JS.ACK.S.C.1.10.1.17.0"))
    reader.order.switch(queue)
    with pytest.raises(ZeroDivisionError):
        reader.order.pop()
    queue.append(reader.message("$JS.ACK.S.C.1.20.2.17.0"))
    assert place(reader.order) == (False, 1, 0)


@TWINS
def test_owner_may_switch_when_the_queue_is_low(frames: ModuleType) -> None:
    reader = Reader(frames)

    def switch() -> None:
        reader.order.switch(reader.queue)

    queue = frames.MessageQueue(2, False, switch, reader.wait)
    queue.append(reader.message("$JS.ACK.S.C.1.10.1.17.0"))
    reader.order.switch(queue)
    assert reader.order.pop().data == b"1"
    reader.deliver(1)
    assert place(reader.order) == (True, 1, 10)


@TWINS
async def test_default_is_for_the_end_and_not_for_a_wait(frames: ModuleType) -> None:
    await check_default_is_for_the_end_and_not_for_a_wait(frames.OrderedQueue)

    async def end() -> None:
        raise StopAsyncIteration

    order = frames.OrderedQueue(end)
    assert await anext(order, "the end") == "the end"


@TWINS
def test_step_gives_the_message_to_whoever_traces(frames: ModuleType) -> None:
    reader = Reader(frames)
    reader.deliver(1)
    with pytest.raises(StopIteration) as caught:
        next(anext(reader.order).__await__())
    assert caught.value.value.data == b"1"


@TWINS
def test_cancelled_wait_loses_nothing(frames: ModuleType) -> None:
    reader = Reader(frames)
    steps = anext(reader.order).__await__()
    reader.deliver(1)
    steps.close()  # asked for while the queue was empty
    assert reader.order.pop().data == b"1"


@TWINS
def test_ordered_queue_is_collected(frames: ModuleType) -> None:
    owner = weakref.ref(Reader(frames))
    gc.collect()
    assert owner() is None


@given(
    st.binary(min_size=2, max_size=2),
    st.lists(
        st.one_of(st.binary(min_size=2, max_size=4), st.sampled_from(next(iter(TARGET.seeds())))), max_size=30
    ),
)
def test_twins_do_the_same(options: bytes, chunks: list[bytes]) -> None:
    TARGET.check([options, *chunks])


def test_twins_do_the_same_for_the_seeds_of_the_campaign() -> None:
    for chunks in TARGET.seeds():
        TARGET.check(list(chunks))
