"""Messages of one partition between its reader and the user: a part of the twin of ``_fasthandout``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar, final

from liftenvelope._native.blocks import MessageBlock
from liftenvelope.errors import UsageTypeError

__all__ = ["PartitionBuffer", "as_blocks", "content_of"]

_M = TypeVar("_M", bound=tuple[Any, ...])

#: Places of handed out messages to keep before they are deleted.
_KEPT: Final = 256
_NO_LIMIT: Final = 2**63 - 1


@final
class PartitionBuffer(Generic[_M]):
    """Messages of one partition: those read ahead, and the batch handed out last.

    Places of the lists, from left to right: handed out before, up to ``_first``; the batch handed out last,
    up to ``_next``; read ahead. The batch is kept because :meth:`go_on` may hand it out again. Places before
    it are None, so that a message is freed as early as possible.

    Invariant: every message of the partition from ``position`` on is read ahead, or still to be read.

    Args:
        key: Name of the topic, and number of the partition.
        generation: Generation of the group.
        position: Offset of the first message; None if it is not known yet.
        limit: Messages to read ahead.
        message_class: Class of the messages handed out: a tuple of topic, partition, offset, payload, message
            object of the source, and generation.
        on_room: Called after a message was taken, if ``wants_room`` is set, which it resets.

    Attributes:
        key: Name of the topic, and number of the partition.
        generation: Generation of the group.
        is_paused: The user wants no message of the partition.
        is_held: The partition was given back, and may be assigned to this member again.
        last: Message handed out last, as it came; None after a seek, or if it is handed out again.
        max_bytes: Size of the messages read ahead from which on there is no room. Default: no limit.
        size: Size of the messages read ahead, in bytes.
        wants_room: The reader waits until a message is taken.
    """

    __slots__ = (
        "_first",
        "_is_in_hand",
        "_is_queued",
        "_limit",
        "_message_class",
        "_messages",
        "_next",
        "_offsets",
        "_on_room",
        "_settled",
        "_start",
        "generation",
        "is_held",
        "is_paused",
        "key",
        "last",
        "max_bytes",
        "size",
        "wants_room",
    )

    def __init__(
        self,
        key: tuple[str, int],
        generation: int,
        position: int | None,
        limit: int,
        message_class: type[_M],
        on_room: Callable[[], object],
    ) -> None:
        if not issubclass(message_class, tuple):
            raise UsageTypeError(f"{message_class!r} is no subclass of tuple")
        self.key = key
        self.generation = generation
        self.is_paused = False
        self.is_held = False
        self.wants_room = False
        self.last: Any = None
        self.max_bytes = _NO_LIMIT
        self.size = 0
        self._limit = limit
        self._message_class = message_class
        self._on_room = on_room
        self._offsets: list[int] = []
        self._messages: list[Any] = []
        self._first = 0
        self._next = 0
        #: Position before the batch handed out last.
        self._start = position
        #: True while the batch handed out last is not settled.
        self._is_in_hand = False
        #: Offset of the last message that was settled and not yet returned by processed(); None for none.
        self._settled: int | None = None
        #: True while the buffer is in the turns of a HandOut.
        self._is_queued = False

    @property
    def position(self) -> int | None:
        """Offset of the next message to hand out, or a lower one; None if not known yet."""
        return self._offsets[self._next - 1] + 1 if self._next > self._first else self._start

    @property
    def waiting(self) -> int:
        """Number of messages that were read and not handed out."""
        return len(self._messages) - self._next

    @property
    def room(self) -> int:
        """Number of messages to read ahead now; 0 if a message must be handed out first."""
        waiting = self.waiting
        return 0 if waiting and self.size >= self.max_bytes else max(self._limit - waiting, 0)

    @property
    def can_give(self) -> bool:
        """True if a message can be taken."""
        return self.waiting > 0 and not self.is_paused and not self.is_held

    # Filling

    def extend(self, offsets: list[int], messages: list[Any]) -> None:
        """Add messages behind those read ahead.

        Args:
            offsets: Offsets in increasing order.
            messages: A message for each: a tuple of offset, payload, message object of the source, and
                optionally its size; or that object itself, which has the payload as ``data``, and optionally
                the size as ``_size``. A size of 0 stands for that of the payload.
        """
        if len(offsets) != len(messages):
            raise ValueError(f"{len(offsets)} offsets of {len(messages)} messages")
        added = list(messages)  # code of the user, which tells sizes, may change the list
        self._add(offsets, added, sum(map(_size_of, added)))

    def extend_blocks(self, blocks: list[MessageBlock[Any]]) -> None:
        """Add the messages of blocks behind those read ahead; their offsets are the sequences minus one."""
        for block in blocks:
            offsets = [sequence - 1 for sequence in block.sequences]
            self._add(offsets, [_BlockRow(block, i) for i in range(len(block))], block.size)

    def _add(self, offsets: list[int], messages: list[Any], size: int) -> None:
        if self._first >= _KEPT and self._first >= len(self._messages) - self._first:
            del self._offsets[: self._first]
            del self._messages[: self._first]
            self._next -= self._first
            self._first = 0
        self._offsets += offsets
        self._messages += messages
        self.size += size

    def clear(self) -> None:
        """Drop the messages read ahead. The batch handed out last stays."""
        self.size = 0
        del self._offsets[self._next :]
        del self._messages[self._next :]

    def seek(self, offset: int) -> None:
        """Continue at another offset: drop all messages, and whatever was handed out or processed."""
        self._start = offset
        self._first = self._next = self.size = 0
        self.forget()
        _freed = self.last, self._messages
        self._offsets, self._messages, self.last = [], [], None

    def go_on(self, generation: int, offset: int) -> bool:
        """Switch to a later generation of the group, in which the partition starts at ``offset``.

        A part of the batch handed out last is handed out again if the offset is inside it.

        Returns:
            True if done. False if the buffer does not cover the offset; then nothing has changed.
        """
        position, last = self.position, self.last
        if offset != position:
            start = self._start
            if position is None or start is None or not start <= offset < position:
                return False
            end, self._next = self._next, bisect_left(self._offsets, offset, self._first, self._next)
            self.size += sum(map(_size_of, self._messages[self._next : end]))
            self.last = _source(self._messages[self._next - 1]) if self._next > self._first else None
        _freed = last, self._free_last()
        self._start, self.generation, self.is_paused = offset, generation, False
        self.forget()
        return True

    def _free_last(self) -> list[Any]:
        """Forget the batch handed out last; return its messages.

        The caller keeps them until its end: to free a message may run code that calls the buffer again.
        """
        freed = self._messages[self._first : self._next]
        self._messages[self._first : self._next] = [None] * len(freed)
        self._first = self._next
        return freed

    # Taking

    def take(self, limit: int) -> tuple[list[int], list[Any]]:
        """Take up to ``limit`` messages; return their offsets and the messages as they came."""
        if not self.can_give or limit <= 0:
            return [], []
        _freed = self._advance(limit)
        batch = slice(self._first, self._next)
        taken = self._offsets[batch], [_source(one) for one in self._messages[batch]]
        self._tell_room()
        return taken

    def _advance(self, limit: int) -> list[Any]:
        """Make up to ``limit`` messages the batch handed out last; return what that frees."""
        start = self.position
        freed = [*self._free_last(), self.last]
        self._start = start
        self._next += min(limit, self.waiting)
        self.last = _source(self._messages[self._next - 1])
        self.size -= sum(map(_size_of, self._messages[self._first : self._next]))
        self._is_in_hand = True
        return freed

    def _tell_room(self) -> None:
        if self.wants_room:
            self.wants_room = False
            self._on_room()

    def take_messages(self, limit: int) -> list[_M]:
        """Take up to ``limit`` messages as the user gets them."""
        return self._wrapped(*self.take(limit))

    def _wrapped(self, offsets: list[int], messages: list[Any]) -> list[_M]:
        (topic, partition), generation = self.key, self.generation
        contents = map(content_of, messages)
        return [
            tuple.__new__(self._message_class, (topic, partition, offset, data, message, generation))
            for offset, (data, message) in zip(offsets, contents, strict=True)
        ]

    # What was processed

    def settle(self) -> None:
        """Mark the batch handed out last as processed."""
        if self._is_in_hand:
            self._is_in_hand = False
            self._settled = self._offsets[self._next - 1]

    def settle_until(self, end: int) -> None:
        """Leave to the caller what was handed out or processed before an offset."""
        if self._is_in_hand and self._offsets[self._next - 1] < end:
            self._is_in_hand = False
        if self._settled is not None and self._settled < end:
            self._settled = None

    def processed(self) -> int | None:
        """Return the offset behind the last processed message, once; None if there is nothing new."""
        settled, self._settled = self._settled, None
        return None if settled is None else settled + 1

    def forget(self) -> None:
        """Forget what was handed out or processed: it is not marked as processed any more."""
        self._is_in_hand, self._settled = False, None


class _BlockRow(NamedTuple):
    """A message of a block."""

    block: MessageBlock[Any]
    at: int


def _source(one: Any) -> Any:
    """Return a message as it came."""
    return one.block[one.at] if isinstance(one, _BlockRow) else one


def _size_of(one: Any) -> int:
    """Return the size of a message in bytes."""
    one = _source(one)
    if isinstance(one, tuple):
        return (one[3] if len(one) > 3 else 0) or len(one[1])
    return getattr(one, "_size", 0) or len(one.data)


def content_of(one: Any) -> tuple[Any, Any]:
    """Return the payload and the message object of the source."""
    one = _source(one)
    return (one[1], one[2]) if isinstance(one, tuple) else (one.data, one)


def as_blocks(messages: list[Any]) -> list[Any]:
    """Return messages as they came, with parts of blocks in place of rows in a row."""
    found: list[Any] = []
    for one in messages:
        if not isinstance(one, _BlockRow):
            found.append(one)
        elif found and isinstance(found[-1], _Span) and found[-1].goes_on_with(one):
            found[-1] = found[-1]._replace(end=one.at + 1)
        else:
            found.append(_Span(one.block, one.at, one.at + 1))
    return [one.block.part(one.begin, one.end) if isinstance(one, _Span) else one for one in found]


class _Span(NamedTuple):
    """Messages of a block in a row."""

    block: MessageBlock[Any]
    begin: int
    end: int

    def goes_on_with(self, row: _BlockRow) -> bool:
        """Return True if the next message of the block is this one."""
        return self.block is row.block and self.end == row.at
