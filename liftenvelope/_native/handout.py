"""Messages of a group's partitions on their way to the user: the readable twin of ``_fasthandout``.

A :class:`PartitionBuffer` holds the messages of one partition. A :class:`HandOut` hands out those of all
partitions in turn. Neither waits for anything: the reader of a partition fills its buffer, and the consumer
decides how long messages may be handed out without its help.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Self, TypeVar, final

from liftenvelope._native.delivered import Step
from liftenvelope._native.partition_buffer import PartitionBuffer, as_blocks, content_of

__all__ = ["HandOut", "Ownership", "PartitionBuffer"]

_M = TypeVar("_M", bound=tuple[Any, ...])


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

    def peek(self, limit: int, max_bytes: int) -> list[tuple[PartitionBuffer[_M], bytes, list[Any]]]:
        """Return the buffers whose turn it is, with offsets and messages that :meth:`take_parts` can take.

        Args:
            limit: Most messages.
            max_bytes: Most bytes of their payloads. The first message may be larger.

        Returns:
            Buffers; their offsets as 64-bit numbers; their messages as they came, those of blocks as blocks.
        """
        found: list[tuple[PartitionBuffer[_M], bytes, list[Any]]] = []
        generation, size = self._session.generation, 0
        for buffer in tuple(self.turns):
            if limit <= 0 or size > max_bytes:
                break
            if buffer.generation != generation or not buffer.can_give:
                continue
            begin = end = buffer._next
            while end < len(buffer._messages) and end - begin < limit:
                size += len(content_of(buffer._messages[end])[0])
                if size > max_bytes and (found or end > begin):
                    break
                end += 1
            if end > begin:
                offsets = struct.pack(f"={end - begin}q", *buffer._offsets[begin:end])
                found.append((buffer, offsets, as_blocks(buffer._messages[begin:end])))
                limit -= end - begin
        return found

    def has_parts(self, parts: list[tuple[PartitionBuffer[_M], bytes]]) -> bool:
        """Return True if messages that :meth:`peek` has returned can still be taken.

        Args:
            parts: Different buffers, each with the offsets of its next messages as 64-bit numbers.
        """
        generation = self._session.generation
        return all(
            buffer.generation == generation
            and buffer.can_give
            and bool(offsets)
            and buffer._offsets[buffer._next : buffer._next + len(offsets) // 8]
            == list(struct.unpack(f"={len(offsets) // 8}q", offsets))
            for buffer, offsets in parts
        )

    def take_parts(self, parts: list[tuple[PartitionBuffer[_M], bytes]]) -> bool:
        """Take these messages, if all can still be taken.

        Args:
            parts: As for :meth:`has_parts`.

        Returns:
            True if done. False if a buffer can't give them any more; then nothing has changed.
        """
        if not self.has_parts(parts):
            return False
        _freed = [buffer._advance(len(offsets) // 8) for buffer, offsets in parts]
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
