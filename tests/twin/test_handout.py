"""Messages of a group's partitions on their way to the user: both twins against a model, and alike."""

from __future__ import annotations

import asyncio
import gc
import math
import struct
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._native import _fastframes, _fasthandout
from liftenvelope.errors import UsageTypeError
from liftenvelope.group.clock import time_since_boot
from tests.fuzz.targets.handout import TARGETS, Handed
from tests.twin import readable
from tests.twin.awaiting import check_default_is_for_the_end_and_not_for_a_wait, check_next_item_can_be_a_task

TWINS = pytest.mark.parametrize("twin", [readable.handout, _fasthandout], ids=["python", "cython"])


class Member:
    """A member of a group, with a clock that stands still."""

    def __init__(self, twin: ModuleType, partitions: int = 1, limit: int = 1000) -> None:
        self.session = twin.Ownership(1, 10.0)
        self.now, self.waits, self.roomy = 1.0, 0, 0
        self.hand = twin.HandOut(self.session, lambda: self.now, self.wait)
        self.hand.until = 5.0
        self.buffers = [
            twin.PartitionBuffer(("t", number), 1, 0, limit, Handed, self.room)
            for number in range(partitions)
        ]

    def room(self) -> None:
        self.roomy += 1

    async def wait(self) -> Any:
        self.waits += 1
        return "waited"

    def fill(self, offsets: list[int], partition: int = 0) -> None:
        self.buffers[partition].extend(list(offsets), [(offset, b"x", None) for offset in offsets])
        self.hand.add(self.buffers[partition])


def packed(*offsets: int) -> bytes:
    return struct.pack(f"={len(offsets)}q", *offsets)


def peeked(hand: Any, limit: int, max_bytes: int) -> list[list[int]]:
    """The offsets of each part of the messages that come next."""
    return [list(memoryview(offsets).cast("q")) for _, offsets, _ in hand.peek(limit, max_bytes)]


@TWINS
def test_message_has_the_payload_and_the_object_of_its_source(twin: ModuleType) -> None:
    member = Member(twin)
    whole = SimpleNamespace(data=b"tea")
    member.buffers[0].extend([7, 9], [whole, (9, b"milk", "jug")])
    member.hand.add(member.buffers[0])
    first, second = member.hand.take_one(), member.hand.take_one()
    assert (type(first), first) == (Handed, Handed("t", 0, 7, b"tea", whole, 1))
    assert second == Handed("t", 0, 9, b"milk", "jug", 1)
    assert hash(second) == hash(tuple(second))
    with pytest.raises(IndexError, match="no message is there"):
        member.hand.take_one()


@TWINS
async def test_messages_that_are_there_need_no_wait(twin: ModuleType) -> None:
    member = Member(twin)
    member.fill([0, 1, 2])
    read: list[Any] = []
    async for message in member.hand:
        read.append(message)
        if message == "waited":
            break
    assert [message.offset for message in read[:3]] == [0, 1, 2]
    assert member.waits == 1
    member.fill([3, 4])
    assert (await asyncio.wait_for(anext(member.hand), 60)).offset == 3
    with pytest.raises(StopIteration) as caught:  # the way of whoever traces, and of send()
        next(anext(member.hand).__await__())
    assert caught.value.value.offset == 4


@TWINS
async def test_default_is_for_the_end_and_not_for_a_wait(twin: ModuleType) -> None:
    session = twin.Ownership(1, 10.0)
    await check_default_is_for_the_end_and_not_for_a_wait(
        lambda wait: twin.HandOut(session, lambda: 1.0, wait)
    )


@TWINS
async def test_next_item_can_be_a_task(twin: ModuleType) -> None:
    def filled(wait: Callable[[], Awaitable[str]]) -> Any:
        member = Member(twin)
        member.hand = twin.HandOut(member.session, lambda: 1.0, wait)
        member.hand.until = 5.0
        member.fill([0, 1])
        return member.hand

    await check_next_item_can_be_a_task(filled, [0, 1], lambda message: message.offset)


@TWINS
@pytest.mark.parametrize("reason", ["until", "owned", "generation", "paused", "held"])
async def test_message_is_handed_out_at_once_only_while_all_allows_it(twin: ModuleType, reason: str) -> None:
    member = Member(twin)
    member.fill([0, 1])
    buffer = member.buffers[0]
    assert (await anext(member.hand)).offset == 0
    if reason == "until":
        member.now = member.hand.until
    elif reason == "owned":
        member.session.owned_until = member.now
    elif reason == "generation":
        member.session.generation = 2
    elif reason == "paused":
        buffer.is_paused = True
    else:
        buffer.is_held = True
    assert await anext(member.hand) == "waited"
    assert buffer.waiting == 1


@TWINS
@pytest.mark.parametrize(
    "clock", [time_since_boot, partial(time.clock_gettime, time.CLOCK_REALTIME), time.monotonic]
)
async def test_ownership_ends_by_the_clock_of_the_member(
    twin: ModuleType, clock: Callable[[], float]
) -> None:
    member = Member(twin)
    member.hand.clock, member.hand.until = clock, math.inf
    assert member.hand.clock is clock
    member.fill([0, 1, 2])
    member.session.owned_until = clock() + 60
    assert (await anext(member.hand)).offset == 0
    member.session.owned_until = clock()
    assert await anext(member.hand) == "waited"


@TWINS
async def test_error_of_the_clock_is_raised(twin: ModuleType) -> None:
    member = Member(twin)
    member.hand.clock = partial(time.clock_gettime, 10_000)
    member.fill([0])
    with pytest.raises(OSError, match="Invalid argument"):
        await anext(member.hand)


@TWINS
def test_partitions_take_turns(twin: ModuleType) -> None:
    member = Member(twin, partitions=3)
    for partition in range(3):
        member.fill([0, 1, 2], partition)
        member.fill([3], partition)  # has a turn already
    assert [member.hand.take_one().partition for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [(one.partition, one.offset) for one in member.hand.take_messages(3)] == [(1, 2), (1, 3), (2, 2)]
    first, _, last = member.buffers
    for _ in range(2):  # looking changes nothing
        assert member.hand.peek(10, 100) == [
            (first, packed(3), [(3, b"x", None)]),
            (last, packed(3), [(3, b"x", None)]),
        ]
    assert member.hand.take_parts([(first, packed(3)), (last, packed(3))])
    assert not member.hand.gives()


@TWINS
def test_peek_ends_at_the_bytes_but_for_a_first_message(twin: ModuleType) -> None:
    member = Member(twin, partitions=2)
    for partition, buffer in enumerate(member.buffers):
        buffer.extend([0, 1, 2], [(0, b"xxxx", None), (1, b"xx", None), (2, b"xx", None)])
        member.hand.add(member.buffers[partition])
    found = {most: peeked(member.hand, 5, most) for most in (0, 3, 4, 5, 6, 8, 11, 12)}
    assert found == {
        0: [[0]],
        3: [[0]],
        4: [[0]],
        5: [[0]],
        6: [[0, 1]],
        8: [[0, 1, 2]],
        11: [[0, 1, 2]],
        12: [[0, 1, 2], [0]],
    }
    assert peeked(member.hand, 5, 100) == [[0, 1, 2], [0, 1]]
    assert member.hand.peek(0, 100) == []


@TWINS
@pytest.mark.parametrize(
    "change", ["none", "generation", "paused", "held", "taken", "sought", "cleared", "replaced"]
)
def test_peeked_messages_are_taken_together_or_not_at_all(twin: ModuleType, change: str) -> None:
    member = Member(twin, partitions=3)
    for partition in range(3):
        member.fill([0, 1, 2], partition)
    one, two, _ = member.buffers
    if change == "generation":
        member.session.generation = 2
    elif change == "paused":
        two.is_paused = True
    elif change == "held":
        two.is_held = True
    elif change == "taken":
        two.take(1)
    elif change == "sought":
        two.seek(5)
    elif change == "cleared":
        two.clear()
    elif change == "replaced":  # a seek to the same offset, behind which messages were deleted
        two.seek(0)
        member.fill([0, 2, 3], 1)
    before = one.position, two.position
    parts = [(one, packed(0, 1)), (two, packed(0, 1))]
    assert member.hand.has_parts(parts) is (change == "none")
    assert member.hand.take_parts(parts) is (change == "none")
    if change != "none":
        assert (one.position, two.position) == before
        return
    assert (one.position, two.position) == (2, 2)
    assert not member.hand.take_parts([(one, packed(2, 3))])  # it has only one left
    assert not member.hand.has_parts([(one, b"")])
    assert [buffer.key[1] for buffer in member.hand.turns] == [2, 0, 1]
    member.hand.settle()
    assert (one.processed(), two.processed()) == (2, 2)


@TWINS
def test_reader_that_waits_for_room_is_told_once(twin: ModuleType) -> None:
    member = Member(twin, limit=3)
    buffer = member.buffers[0]
    member.fill([0, 1, 2, 3])
    assert buffer.room == 0
    member.hand.take_one()
    assert member.roomy == 0
    buffer.wants_room = True
    member.hand.take_one()
    member.hand.take_one()
    assert (member.roomy, buffer.wants_room, buffer.room) == (1, False, 2)
    buffer.wants_room = True
    assert len(buffer.take(5)[0]) == 1
    assert member.roomy == 2


@TWINS
def test_size_is_that_of_the_messages_read_ahead(twin: ModuleType) -> None:
    member = Member(twin)
    buffer, hand = member.buffers[0], member.hand
    kinds = [(0, b"xxx", None), (1, b"xx", None, 10), SimpleNamespace(data=b"x", _size=100)]
    kinds += [SimpleNamespace(data=b"x" * 1000), (4, b"", None, 0)]
    buffer.extend([0, 1, 2, 3, 4], kinds)
    hand.add(buffer)
    assert buffer.size == 1113
    hand.take_one()
    assert buffer.size == 1110
    assert hand.take_parts([(buffer, packed(1, 2))])
    assert buffer.size == 1000
    assert buffer.go_on(2, 2)  # the last one of these is handed out again
    assert buffer.size == 1100
    buffer.max_bytes = 1101
    assert buffer.room == 997
    buffer.max_bytes = 1100
    assert buffer.room == 0
    buffer.take(3)
    assert (buffer.size, buffer.room) == (0, 1000)
    buffer.extend([5], [(5, b"x", None)])
    buffer.clear()
    assert buffer.size == 0
    buffer.extend([6], [(6, b"x", None)])
    buffer.seek(0)
    assert buffer.size == 0


@TWINS
@pytest.mark.parametrize("kind", [readable.frames.Delivered, _fastframes.Delivered])
def test_message_of_a_consumer_counts_with_its_size(twin: ModuleType, kind: Any) -> None:
    member = Member(twin)
    buffer, hand = member.buffers[0], member.hand
    messages = [kind("s", "", b"tea", None, None) for _ in range(3)]
    messages[1]._size = 100
    buffer.extend([0, 1, 2], messages)
    hand.add(buffer)
    assert buffer.size == 106
    assert peeked(hand, 5, 6) == [[0, 1]]
    assert hand.take_one() == Handed("t", 0, 0, b"tea", messages[0], 1)
    assert buffer.size == 103
    hand.take_one()
    assert buffer.size == 3


def block_of(frames: ModuleType, sequences: list[int], size: int = 0) -> Any:
    """A block of messages of a consumer, the payload of each of which is its offset."""
    messages = [
        frames.Delivered("s", f"$JS.ACK.S.C.1.{sequence}.{sequence}.5.0", b"%d" % (sequence - 1), None, None)
        for sequence in sequences
    ]
    for message in messages:
        message._size = size
    return frames.MessageBlock(messages)


BLOCKS = pytest.mark.parametrize(
    ("twin", "frames"),
    [(readable.handout, readable.frames), (_fasthandout, _fastframes)],
    ids=["python", "cython"],
)


@BLOCKS
def test_messages_of_blocks_are_handed_out_with_their_offsets(twin: ModuleType, frames: ModuleType) -> None:
    member = Member(twin)
    buffer, hand = member.buffers[0], member.hand
    buffer.extend([0], [(0, b"other", "source")])
    buffer.extend_blocks([block_of(frames, [2, 5], size=10), block_of(frames, [6])])
    hand.add(buffer)
    assert (buffer.waiting, buffer.size) == (4, 5 + 20 + 1)
    assert hand.take_one()[:5] == ("t", 0, 0, b"other", "source")
    second = hand.take_one()
    assert second[:4] == ("t", 0, 1, b"1")
    assert (second.message.reply, buffer.last.reply) == ("$JS.ACK.S.C.1.2.2.5.0",) * 2
    assert (buffer.position, buffer.size) == (2, 11)
    assert [one[2:4] for one in hand.take_messages(5)] == [(4, b"4"), (5, b"5")]
    assert buffer.go_on(2, 5)
    assert (buffer.position, buffer.waiting, buffer.size, buffer.last.data) == (5, 1, 1, b"4")
    offsets, [message] = buffer.take(3)
    assert (offsets, message.data) == ([5], b"5")


@BLOCKS
def test_peek_returns_blocks_in_place_of_their_messages(twin: ModuleType, frames: ModuleType) -> None:
    member = Member(twin)
    buffer, hand = member.buffers[0], member.hand
    buffer.extend_blocks([block_of(frames, [1, 2, 3]), block_of(frames, [4])])
    buffer.extend([4], [(4, b"x", None)])
    buffer.extend_blocks([block_of(frames, [6, 7])])
    hand.add(buffer)
    hand.take_one()
    [(_, offsets, items)] = hand.peek(5, 100)
    assert offsets == packed(1, 2, 3, 4, 5)
    assert [type(one).__name__ for one in items] == ["MessageBlock", "MessageBlock", "tuple", "MessageBlock"]
    assert [one.sequences for one in items if not isinstance(one, tuple)] == [[2, 3], [4], [6]]
    assert hand.take_parts([(buffer, offsets)])
    assert buffer.position == 6


@TWINS
def test_offsets_reach_up_to_the_largest_number(twin: ModuleType) -> None:
    member = Member(twin)
    buffer, largest = member.buffers[0], 2**63 - 1
    member.fill([largest])
    assert member.hand.take_one().offset == largest
    assert buffer.position == 2**63
    member.hand.settle()
    assert buffer.processed() == 2**63
    assert buffer.go_on(2, 2**63)
    assert buffer.position == 2**63


@TWINS
def test_only_blocks_are_blocks(twin: ModuleType) -> None:
    with pytest.raises((TypeError, AttributeError)):
        Member(twin).buffers[0].extend_blocks([[]])


@TWINS
def test_code_of_the_user_that_empties_the_list_does_not_change_what_is_added(twin: ModuleType) -> None:
    class Changing:
        data = b"x"

        @property
        def _size(self) -> int:
            messages.clear()
            return 7

    member = Member(twin)
    messages: list[Any] = [Changing(), Changing()]
    member.buffers[0].extend([0, 1], messages)
    assert (messages, member.buffers[0].waiting, member.buffers[0].size) == ([], 2, 14)
    member.hand.add(member.buffers[0])
    assert len(member.hand.take_messages(5)) == 2


@TWINS
def test_last_message_is_known_until_it_is_to_be_handed_out_again(twin: ModuleType) -> None:
    member = Member(twin)
    buffer = member.buffers[0]
    member.fill([0, 1, 2, 3])
    assert buffer.last is None
    member.hand.take_messages(3)
    assert buffer.last == (2, b"x", None)
    assert buffer.go_on(2, 3)
    assert buffer.last == (2, b"x", None)
    buffer.take(1)
    assert buffer.go_on(3, 3)
    assert buffer.last is None
    buffer.take(1)
    buffer.seek(0)
    assert buffer.last is None


@TWINS
def test_message_is_processed_when_the_next_is_asked_for(twin: ModuleType) -> None:
    member = Member(twin, partitions=2)
    hand, (buffer, other) = member.hand, member.buffers
    member.fill([0, 5, 6])
    member.fill([0, 1], 1)
    assert len(hand.take_messages(4)) == 4
    assert (buffer.processed(), other.processed()) == (None, None)
    hand.settle()
    assert (buffer.processed(), other.processed()) == (7, 1)
    hand.settle()
    assert (buffer.processed(), other.processed()) == (None, None)


@TWINS
@pytest.mark.parametrize(("end", "processed"), [(5, 7), (6, 7), (7, None)])
def test_what_the_caller_commits_is_left_to_it(twin: ModuleType, end: int, processed: int | None) -> None:
    member = Member(twin)
    buffer = member.buffers[0]
    member.fill([5, 6])
    buffer.take(2)
    buffer.settle_until(end)
    buffer.settle()
    assert buffer.processed() == processed
    member.fill([8])
    buffer.take(1)
    buffer.settle()
    buffer.settle_until(end + 2)
    assert buffer.processed() == (9 if end < 7 else None)
    member.fill([10])
    buffer.take(1)
    buffer.forget()
    buffer.settle()
    assert buffer.processed() is None


@TWINS
def test_batch_in_hand_survives_a_reader_that_stops(twin: ModuleType) -> None:
    member = Member(twin)
    buffer = member.buffers[0]
    member.fill([0, 1, 2])
    member.hand.take_messages(2)
    buffer.clear()
    assert (buffer.position, buffer.waiting) == (2, 0)
    member.hand.settle()
    assert buffer.processed() == 2


@TWINS
def test_messages_are_freed_with_the_batch_after_theirs(twin: ModuleType) -> None:
    class Message:
        data = b"x"

    member = Member(twin)
    messages = [Message() for _ in range(3)]
    alive = [weakref.ref(message) for message in messages]
    member.buffers[0].extend([0, 1, 2], messages)
    member.hand.add(member.buffers[0])
    messages.clear()
    for number in range(3):
        assert member.hand.take_one().offset == number
        assert [one() is not None for one in alive] == [number <= place for place in range(3)]


@TWINS
def test_message_that_changes_the_buffer_when_it_is_freed(twin: ModuleType) -> None:
    class Message:
        data = b"x"

        def __del__(self) -> None:
            buffer.seek(50)

    for change in ("take", "take_messages", "go_on", "clear", "seek"):
        member = Member(twin)
        buffer = member.buffers[0]
        buffer.extend([0, 1, 2, 3], [Message() for _ in range(4)])
        buffer.take(2)
        if change == "go_on":
            assert buffer.go_on(2, 2)
        elif change == "clear":
            buffer.clear()
        else:
            getattr(buffer, change)(1)
        assert (buffer.position, buffer.waiting) == (50, 0)


@TWINS
def test_arguments_that_do_not_fit(twin: ModuleType) -> None:
    with pytest.raises(UsageTypeError, match="no subclass of tuple"):
        twin.PartitionBuffer(("t", 0), 1, 0, 1, dict, print)
    with pytest.raises(ValueError, match="1 offsets of 0 messages"):
        Member(twin).buffers[0].extend([1], [])


@TWINS
def test_hand_out_is_collected(twin: ModuleType) -> None:
    class Owner(Member):
        pass

    owner = Owner(twin)
    owner.fill([0, 1])
    owner.hand.take_one()
    alive = weakref.ref(owner)
    del owner
    gc.collect()
    assert alive() is None


@dataclass
class Model:
    """One partition as lists: all that is to be read, and how far it is."""

    offsets: list[int]
    position: int = 0
    last: list[int] = field(default_factory=list)
    last_from: int = 0

    def ahead(self, count: int) -> list[int]:
        return [offset for offset in self.offsets if offset >= self.position][:count]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 700)),
        st.tuples(st.just("take"), st.integers(0, 700)),
        st.tuples(st.just("one"), st.integers(1, 400)),
        st.tuples(st.just("go on"), st.integers(0, 2000)),
        st.tuples(st.just("back"), st.integers(0, 500)),
        st.tuples(st.just("seek"), st.integers(0, 2000)),
        st.tuples(st.just("clear"), st.none()),
    ),
    max_size=14,
)


@TWINS
@given(ACTIONS, st.integers(1, 3))
def test_buffer_skips_and_repeats_nothing(
    twin: ModuleType, actions: list[tuple[str, Any]], step: int
) -> None:
    model = Model(list(range(0, 9_000, step)))
    member = Member(twin)
    [buffer], hand = member.buffers, member.hand
    read = 0  # offset up to which the buffer has been filled
    for action, value in actions:
        if action == "read":
            new = [offset for offset in model.offsets if offset >= max(read, model.position)][:value]
            buffer.extend(new, [(offset, b"x", None) for offset in new])
            read = new[-1] + 1 if new else read
        elif action in ("take", "one"):
            hand.add(buffer)
            for _ in range(value if action == "one" else 1):
                expected = [one for one in model.ahead(1 if action == "one" else value) if one < read]
                assert [one.offset for one in hand.take_messages(1 if action == "one" else value)] == expected
                if expected:
                    model.last, model.last_from = expected, model.position
                    model.position = expected[-1] + 1
        elif action in ("go on", "back"):
            offset = value if action == "go on" else max(model.position - value, 0)
            can = offset == model.position or (
                bool(model.last) and model.last_from <= offset < model.position
            )
            assert buffer.go_on(member.session.generation + 1, offset) is can
            if can:
                member.session.generation += 1
                model.position, model.last = offset, []
        elif action == "seek":
            buffer.seek(value)
            model.position = read = value
            model.last = []
        else:
            buffer.clear()
            read = model.position
        assert buffer.position == model.position
        assert buffer.waiting == len([one for one in model.ahead(9_000) if one < read])


CHUNKS = st.lists(st.binary(max_size=3), max_size=40)


@given(st.binary(max_size=3), CHUNKS)
def test_twins_do_the_same_for_any_operations(options: bytes, chunks: list[bytes]) -> None:
    [target] = TARGETS
    target.check([options, *chunks])


def test_twins_do_the_same_for_the_seeds_of_the_campaign() -> None:
    [target] = TARGETS
    for chunks in target.seeds():
        target.check(list(chunks))
