"""Messages of a group's partitions on their way to the user: the readable twin of ``_fasthandout``.

A :class:`PartitionBuffer` holds the messages of one partition. A :class:`HandOut` hands out those of all
partitions in turn. Neither waits for anything: the reader of a partition fills its buffer, and the consumer
decides how long messages may be handed out without its help.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, Self, TypeVar, final

from liftenvelope._native.delivered import Step
from liftenvelope.errors import UsageTypeError

__all__ = ["HandOut", "Ownership", "PartitionBuffer"]

_M = TypeVar("_M", bound=tuple[Any, ...])

#: Places of handed out messages to keep before they are deleted.
_KEPT: Final = 256
_NO_LIMIT: Final = 2**63 - 1


class Ownership:
    """Base of a member's session: the part that decides on each message.

    Attributes:
        generation: Generation of the partitions that the member has; 0 (default) for none.
        owned_until: Time until which they are certainly this member's. Default 0.0.
    """

    def __init__(self, generation: int = 0, owned_until: float = 0.0) -> None:
        self.generation = generation
        self.owned_until = owned_until


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
        if self._first >= _KEPT and self._first >= len(self._messages) - self._first:
            del self._offsets[: self._first]
            del self._messages[: self._first]
            self._next -= self._first
            self._first = 0
        self._offsets += offsets
        self._messages += messages
        self.size += sum(map(_size_of, messages))

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
            self.last = self._messages[self._next - 1] if self._next > self._first else None
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
        taken = self._offsets[batch], self._messages[batch]
        self._tell_room()
        return taken

    def _advance(self, limit: int) -> list[Any]:
        """Make up to ``limit`` messages the batch handed out last; return what that frees."""
        start = self.position
        freed = [*self._free_last(), self.last]
        self._start = start
        self._next += min(limit, self.waiting)
        self.last = self._messages[self._next - 1]
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
        contents = map(_content, messages)
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


def _size_of(one: Any) -> int:
    """Return the size of a message in bytes."""
    if isinstance(one, tuple):
        return (one[3] if len(one) > 3 else 0) or len(one[1])
    return getattr(one, "_size", 0) or len(one.data)


def _content(one: Any) -> tuple[Any, Any]:
    """Return the payload and the message object of the source."""
    return (one[1], one[2]) if isinstance(one, tuple) else (one.data, one)


@final
class HandOut(Generic[_M]):
    """Hands out the messages of partitions in turn; an asynchronous iterator over them.

    Awaiting ``anext()`` of it returns a message without a coroutine if the time is before ``until`` and
    before ``owned_until`` of the session, and if a buffer of the session's generation can give one. In all
    other cases it awaits ``wait()``. The checks and the taking are one step without an await.

    Args:
        session: Session of the member.
        clock: Returns the time.
        wait: Returns the coroutine that waits for the next message.

    Attributes:
        clock: Returns the time.
        until: Time until which messages are handed out without ``wait``. 0.0 if the owner must look first: it
            sets the time when it has looked, and resets it when something happens.
        turns: Buffers that may have messages, in order.
    """

    __slots__ = ("_in_hand", "_session", "_wait", "clock", "turns", "until")

    def __init__(
        self, session: Ownership, clock: Callable[[], float], wait: Callable[[], Coroutine[Any, Any, _M]]
    ) -> None:
        self._session = session
        self._wait = wait
        self.clock = clock
        self.until = 0.0
        self.turns: deque[PartitionBuffer[_M]] = deque()
        #: Buffers with messages handed out last. The next request marks them as processed.
        self._in_hand: list[PartitionBuffer[_M]] = []

    def add(self, buffer: PartitionBuffer[_M]) -> None:
        """Give a buffer a turn, unless it has one."""
        if not buffer._is_queued:
            buffer._is_queued = True
            self.turns.append(buffer)

    def clear(self) -> None:
        """Take the turns of all buffers away."""
        while self.turns:
            self._drop()

    def _drop(self) -> PartitionBuffer[_M]:
        buffer = self.turns.popleft()
        buffer._is_queued = False
        return buffer

    def gives(self) -> bool:
        """Take the turns of buffers away that can give nothing; return True if the first one left can."""
        # A new generation may have begun before the task that acts on assignments has run.
        generation = self._session.generation
        while self.turns:
            first = self.turns[0]
            if first.generation == generation and first.can_give:
                return True
            self._drop()
        return False

    def settle(self) -> None:
        """Mark the messages handed out last as processed."""
        for buffer in self._in_hand:
            buffer.settle()
        self._in_hand.clear()

    def peek(self, limit: int, max_bytes: int) -> list[tuple[PartitionBuffer[_M], list[int], list[Any]]]:
        """Return the buffers whose turn it is, with offsets and messages that :meth:`take_parts` can take.

        Args:
            limit: Most messages.
            max_bytes: Most bytes of their payloads. The first message may be larger.
        """
        found: list[tuple[PartitionBuffer[_M], list[int], list[Any]]] = []
        generation, size = self._session.generation, 0
        for buffer in tuple(self.turns):
            if limit <= 0 or size > max_bytes:
                break
            if buffer.generation != generation or not buffer.can_give:
                continue
            begin = end = buffer._next
            while end < len(buffer._messages) and end - begin < limit:
                size += len(_content(buffer._messages[end])[0])
                if size > max_bytes and (found or end > begin):
                    break
                end += 1
            if end > begin:
                found.append((buffer, buffer._offsets[begin:end], buffer._messages[begin:end]))
                limit -= end - begin
        return found

    def has_parts(self, parts: list[tuple[PartitionBuffer[_M], list[int]]]) -> bool:
        """Return True if messages that :meth:`peek` has returned can still be taken.

        Args:
            parts: Different buffers, each with the offsets of its next messages.
        """
        generation = self._session.generation
        return all(
            buffer.generation == generation
            and buffer.can_give
            and bool(offsets)
            and buffer._offsets[buffer._next : buffer._next + len(offsets)] == offsets
            for buffer, offsets in parts
        )

    def take_parts(self, parts: list[tuple[PartitionBuffer[_M], list[int]]]) -> bool:
        """Take these messages, if all can still be taken.

        Args:
            parts: As for :meth:`has_parts`.

        Returns:
            True if done. False if a buffer can't give them any more; then nothing has changed.
        """
        if not self.has_parts(parts):
            return False
        _freed = [buffer._advance(len(offsets)) for buffer, offsets in parts]
        for buffer, _ in parts:
            if buffer._is_queued:
                self.turns.remove(buffer)
                buffer._is_queued = False
            self._in_hand.append(buffer)
            if buffer.can_give:
                self.add(buffer)
        for buffer, _ in parts:
            buffer._tell_room()
        return True

    def take_messages(self, limit: int) -> list[_M]:
        """Take up to ``limit`` messages as the user gets them, in order within each partition."""
        found: list[_M] = []
        # Each partition at most once; the next call starts with the others.
        for _ in range(len(self.turns)):
            if len(found) >= limit or not self.gives():
                break
            buffer = self._drop()
            found += buffer.take_messages(limit - len(found))
            self._in_hand.append(buffer)
            if buffer.can_give:
                self.add(buffer)
        return found

    def take_one(self) -> _M:
        """Take the next message.

        Raises:
            IndexError: No message can be taken.
        """
        found = self.take_messages(1)
        if not found:
            raise IndexError("no message is there")
        return found[0]

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Step[_M]:
        return Step(self._steps)

    def _steps(self) -> Generator[Any, None, _M]:
        return self._ready() if self._gives_at_once() else self._wait().__await__()

    def _gives_at_once(self) -> bool:
        now = self.clock()
        if now >= self.until or now >= self._session.owned_until:
            return False
        self.settle()
        return self.gives()

    def _ready(self) -> Generator[Any, None, _M]:
        yield from ()  # yields nothing: __await__ needs a generator, whose return value is the message
        return self.take_one()
