"""The messages of a group's partitions on their way to the user, by operations on several buffers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.fuzz.target import Chunks, Exact, Target, option

__all__ = ["TARGETS", "Handed"]

PARTITIONS = 3


class Handed(NamedTuple):
    """A message as the user gets it."""

    topic: str
    partition: int
    offset: int
    data: bytes
    message: Any
    generation: int


class Stored(NamedTuple):
    """A message of a source."""

    offset: int
    data: bytes
    message: Any
    size: int


class Member:
    """A member with some partitions, whose clock stands still."""

    def __init__(self, twin: Any, options: bytes) -> None:
        self.twin, self.session = twin, twin.Ownership(1, 10.0)
        self.roomy = 0
        self.hand = twin.HandOut(self.session, lambda: 1.0, self.wait)
        start = None if option(options, 0, 2) else 0
        self.buffers = [
            twin.PartitionBuffer(("t", number), 1, start, 1 + option(options, 1, 9), Handed, self.room)
            for number in range(PARTITIONS)
        ]
        #: Offset of the next message of each partition.
        self.next = [0] * PARTITIONS
        self.mode = option(options, 2, 3)

    def room(self) -> None:
        self.roomy += 1
        if self.mode == 1:
            self.buffers[0].seek(self.roomy)
        elif self.mode == 2:
            self.extend(1, 2)

    async def wait(self) -> str:
        return "waited"

    def fill(self, place: int, count: int) -> None:
        self.extend(place, count)
        if self.buffers[place].can_give:
            self.hand.add(self.buffers[place])

    def extend(self, place: int, count: int) -> None:
        """Add messages with gaps between their offsets, in both of their forms."""
        start = self.next[place]
        offsets = [start + 2 * number for number in range(count)]
        self.next[place] = start + 2 * count
        messages = [
            SimpleNamespace(data=b"x", _size=offset % 8)
            if offset % 4
            else Stored(offset, b"y", "source", offset % 3)
            for offset in offsets
        ]
        self.buffers[place].extend(offsets, messages)

    def extend_blocks(self, place: int, count: int) -> None:
        """Add messages of a consumer, in blocks of at most three."""
        start, delivered = self.next[place], self.twin.Delivered
        self.next[place] = start + 2 * count
        messages = [
            delivered("s", f"$JS.ACK.S.C.1.{start + 2 * number + 1}.1.1.0", b"z" * (number % 3), None, None)
            for number in range(count)
        ]
        blocks = [self.twin.MessageBlock(messages[at : at + 3]) for at in range(0, count, 3)]
        self.buffers[place].extend_blocks(blocks)


def handed_out(twin: Any, chunks: Chunks, _exact: Exact) -> Any:
    """Each chunk is an operation and its numbers."""
    member = Member(twin, chunks[0] if chunks else b"")
    log = list[Any]()
    for chunk in chunks[1:]:
        place, number = option(chunk, 1, PARTITIONS), option(chunk, 2)
        try:
            log.append(operate(member, option(chunk, 0, 17), place, number))
        except IndexError as exc:
            log.append(type(exc))
        log.append([(one.position, one.waiting, one.size, one.room, one.can_give) for one in member.buffers])
    return log, member.roomy, [buffer.processed() for buffer in member.buffers]


def operate(member: Member, operation: int, place: int, number: int) -> Any:
    hand, buffer = member.hand, member.buffers[place]
    if operation == 0:
        member.fill(place, number)
    elif operation == 1:
        return [taken(hand) for _ in range(1 + number)]
    elif operation == 2:
        return [[shown(one) for one in hand.take_messages(number)], hand.gives()]
    elif operation == 3:
        parts = hand.peek(number, number // 2)
        taken_from = [(one, offsets) for one, offsets, _ in parts]
        shown_parts = [(one.key, offsets, list(map(shown_item, items))) for one, offsets, items in parts]
        return (
            shown_parts,
            hand.has_parts(taken_from),
            hand.take_parts(taken_from),
            hand.take_parts(taken_from),
        )
    elif operation == 4:
        hand.settle()
    elif operation == 5:
        hand.until = float(number % 3)
    elif operation == 6:
        hand.clear()
    elif operation == 7:
        member.session.generation += 1
    elif operation == 8:
        return shown(hand.take_one())
    else:
        return operate_buffer(member, operation, place, number)
    hand.add(buffer)
    return None


def operate_buffer(member: Member, operation: int, place: int, number: int) -> Any:
    buffer = member.buffers[place]
    if operation == 9:
        buffer.seek(number)
        member.next[place] = number
    elif operation == 10:
        return buffer.go_on(member.session.generation, number), buffer.generation
    elif operation == 11:
        buffer.is_paused, buffer.is_held = bool(number & 1), bool(number & 2)
        buffer.max_bytes = number
    elif operation == 12:
        buffer.clear()
        member.next[place] = buffer.position or 0
    elif operation == 13:
        return buffer.processed()
    elif operation == 14:
        buffer.settle_until(number)
    elif operation == 16:
        member.extend_blocks(place, number % 8)
        member.hand.add(buffer)
    else:
        buffer.wants_room = True
    return None


def shown(message: Any) -> Any:
    return message if message == "waited" else (*message[:4], message[5], message[4] == "source")


def shown_item(item: Any) -> Any:
    return item.sequences if hasattr(item, "sequences") else None


def taken(hand: Any) -> Any:
    """Take a message as ``async for`` does, without an event loop: nothing here waits."""
    steps = anext(hand).__await__()
    try:
        next(steps) if not hasattr(steps, "send") else steps.send(None)
    except StopIteration as stop:
        return shown(stop.value)
    raise AssertionError("it waits")


def seeds() -> Iterator[Chunks]:
    operations = [
        bytes(numbers)
        for numbers in (
            (0, 0, 5), (0, 1, 255), (5, 0, 2), (1, 0, 9), (15, 1, 0), (2, 0, 7), (14, 1, 4), (7, 0, 0),
            (10, 1, 6), (10, 0, 0), (1, 0, 255), (4, 0, 0), (13, 1, 0), (0, 1, 255), (3, 0, 64), (11, 2, 1),
            (9, 1, 40), (12, 0, 0), (8, 0, 0), (11, 2, 0), (8, 2, 0), (6, 0, 0), (8, 0, 0),
            (16, 0, 7), (3, 0, 9), (16, 1, 5), (1, 0, 3), (2, 0, 2),
        )
    ]  # fmt: skip
    for mode in range(3):
        for first in range(2):
            yield [bytes((first, 3, mode)), *operations[:11]]
            yield [bytes((first, 3, mode)), operations[2], *operations[9:]]


TARGETS = (Target("handout", "_fasthandout", handed_out, seeds, share=10),)
