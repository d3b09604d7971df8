"""One partition of a group's member: it is read ahead a little, and handed out in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from liftenvelope.errors import (
    ConnectionClosedError,
    FencedError,
    LiftEnvelopeError,
    NoCursorError,
    OffsetOutOfRangeError,
)
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.topics import PartitionFeed, SourceMessage, TopicSource, newest_of

__all__ = ["GroupMessage", "PartitionReader"]

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
#: For how long a partition must end before what the group has read until that is taken for true, in seconds.
_CERTAIN: Final = 3.0


@dataclass(frozen=True, slots=True)
class GroupMessage:
    """A message that a group's member was given.

    Attributes:
        topic: Its topic.
        partition: Its partition.
        offset: Its offset.
        data: Its payload.
        message: The message as its source has it: of a JetStream topic a
            :class:`liftenvelope.jetstream.Message`, which needs no ack.
        generation: The generation of the group that the member was given it in.
    """

    topic: str
    partition: int
    offset: int
    data: bytes
    message: Any
    generation: int


class PartitionReader:
    """Reads one partition.

    Args:
        source: Its topic.
        key: Its topic's name and its number.
        generation: The group's generation.
        offset: Where to begin, -1 if nothing was committed.
        auto_offset: Where to begin then: ``"earliest"``, ``"latest"``, ``"new"``, or ``"error"``.
        limit: How many messages are read ahead.
        on_ready: Called when there is something to take.
        keep_start: Commits where a partition begins of which nothing was committed. Awaited before anything
            is read: whoever comes next must begin there as well, even if this member dies at once.

    Attributes:
        key: Its topic's name and its number.
        generation: The group's generation.
        position: The offset that is handed out next, or a lower one; None where it is not known yet.
        paused: Whether nothing is to be handed out for the time being.
        rewound: Whether the user went back, so that a commit may do so as well.
    """

    def __init__(
        self,
        source: TopicSource,
        key: TopicPartition,
        generation: int,
        offset: int,
        *,
        auto_offset: str,
        limit: int,
        on_ready: Callable[[PartitionReader], None],
        keep_start: Callable[[PartitionReader, int], Awaitable[None]],
    ) -> None:
        self.key = key
        self.generation = generation
        self.position: int | None = offset if offset >= 0 else None
        self.rewound = False
        self._source = source
        self._auto_offset = auto_offset
        self._limit = limit
        self._on_ready = on_ready
        self._keep_start = keep_start
        #: Where it begins, until that is committed; None where something was committed before.
        self._start: int | None = None
        self._paused = False
        #: Whether it reads on for a generation that may come, and hands out nothing meanwhile.
        self._held = False
        #: Whether what it reads is put into the buffer, its beginning being known and committed.
        self._has_begun = False
        #: Since when the partition seems to end before what was read.
        self._beyond_since: float | None = None
        #: What was handed out last, and where it began.
        self._last: list[SourceMessage] = []
        self._last_from = 0
        self._buffer: deque[SourceMessage] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None
        self._on_done: Callable[[asyncio.Task[None]], None] | None = None

    @property
    def paused(self) -> bool:
        """Whether nothing is to be handed out for the time being."""
        return self._paused

    @paused.setter
    def paused(self, value: bool) -> None:
        self._paused = value
        if self.can_give:
            self._on_ready(self)

    @property
    def can_give(self) -> bool:
        """Whether there is something to take."""
        return bool(self._buffer) and not self._paused and not self._held

    def start(self, on_done: Callable[[asyncio.Task[None]], None]) -> None:
        """Begin to read, or to hand out what was read; what the reading ends with goes to ``on_done``."""
        self._on_done = on_done
        self._held = False
        if self._task is None or self._task.done():
            self._begin_to_read()
        elif self._buffer:
            self._on_ready(self)

    def _begin_to_read(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._read())
        self._task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        if self._on_done is not None and not self._held:
            self._on_done(task)
        elif not task.cancelled():
            task.exception()  # of a partition that may be another's: whoever has it finds out by itself

    # From one generation to the next

    def hold(self) -> bool:
        """Hand out nothing more, but read on a little: the partition may be this member's again.

        Returns:
            Whether it does; else it has to be closed.
        """
        self._held = True
        return self._has_begun and self._task is not None and not self._task.done()

    def go_on(self, generation: int, offset: int) -> bool:
        """Be ready for another generation, in which the partition begins at that offset.

        Returns:
            Whether the reader is there, or was there just before; else it has to be closed.
        """
        if self._task is None or self._task.done() or self.position is None:
            return False
        if offset != self.position:
            if not self._last or not self._last_from <= offset <= self.position:
                return False
            # What was in the user's hands is given again.
            self._buffer.extendleft(one for one in reversed(self._last) if one.offset >= offset)
        self.position, self.generation = offset, generation
        self.rewound, self._paused = False, False
        self._last = []
        return True

    # Messages

    @property
    def waiting(self) -> int:
        """How many messages were read and not handed out."""
        return len(self._buffer)

    @property
    def is_full(self) -> bool:
        """Whether no more is read before some of it is handed out."""
        return len(self._buffer) >= self._limit

    def take_one(self) -> GroupMessage:
        """The next message, which there has to be."""
        one = self._buffer.popleft()
        assert self.position is not None
        self._last, self._last_from = [one], self.position
        self.position = one.offset + 1
        self._room.set()
        return GroupMessage(*self.key, one.offset, one.data, one.message, self.generation)

    def take(self, limit: int) -> list[GroupMessage]:
        """Up to so many of the next messages."""
        taken: list[SourceMessage] = []
        while self.can_give and len(taken) < limit:
            taken.append(self._buffer.popleft())
        if taken:
            assert self.position is not None
            self._last, self._last_from = taken, self.position
            self.position = taken[-1].offset + 1
            self._room.set()
        return [GroupMessage(*self.key, one.offset, one.data, one.message, self.generation) for one in taken]

    def seek(self, offset: int) -> None:
        """Go on at another offset."""
        self.position, self.rewound, self._start = offset, True, None
        self._last = []
        self._buffer.clear()
        self._room.set()
        if self._task is not None:
            # Whatever the old one still gets goes nowhere: it is cancelled before it runs again.
            self._task.cancel()
            self._begin_to_read()

    def stop(self) -> None:
        """Hand out nothing more."""
        self._buffer.clear()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop, and wait for the end of the reading."""
        self.stop()
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait([self._task])

    async def begin(self) -> int:
        """The offset that is handed out first, asked for once where nothing was committed.

        Raises:
            NoCursorError: Nothing was committed, and ``auto_offset`` is ``"error"``.
        """
        if self.position is None:
            if self._auto_offset == "error":
                raise NoCursorError(f"nothing was committed for {self.key}: rewind the group first")
            found = await self._find_start()
            if self.position is None:  # nobody else has asked, or sought, meanwhile
                self.position = self._start = found
        return self.position

    async def _find_start(self) -> int:
        if self._auto_offset == "latest":
            return await newest_of(self._source, self.key.partition)
        oldest, end = await self._source.bounds(self.key.partition)
        return oldest if self._auto_offset == "earliest" else end

    async def _read(self) -> None:
        pause = _FIRST_PAUSE
        read_from: int | None = None
        while True:
            try:
                if read_from is None:
                    read_from = await self._begin_for_good()
                feed = await self._source.open(self.key.partition, read_from)
            except LiftEnvelopeError as exc:
                self._check_passing(exc)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            try:
                async for offset in self._fill(feed):
                    read_from, pause, self._beyond_since = offset + 1, _FIRST_PAUSE, None
            except LiftEnvelopeError as exc:
                self._check_passing(exc)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            finally:
                await feed.close()

    def _check_passing(self, error: LiftEnvelopeError) -> None:
        """Raise what does not go away by itself, as it does where a server comes back, or the member does."""
        if isinstance(error, OffsetOutOfRangeError):
            # A server that has only just become the partition's leader may not know all of it yet.
            now = asyncio.get_running_loop().time()
            self._beyond_since = now if self._beyond_since is None else self._beyond_since
            is_passing = now - self._beyond_since < _CERTAIN
        else:
            is_passing = error.retriable or isinstance(error, FencedError)
        if not is_passing or isinstance(error, ConnectionClosedError):
            raise error

    async def _begin_for_good(self) -> int:
        offset = await self.begin()
        if self._start is not None:
            await self._keep_start(self, self._start)
            self._start = None
        self._has_begun = True
        return offset

    async def _fill(self, feed: PartitionFeed) -> AsyncIterator[int]:
        """Put what comes into the buffer, and yield the offset of each."""
        while True:
            message = await feed.next()
            while len(self._buffer) >= self._limit:
                self._room.clear()
                await self._room.wait()
            self._buffer.append(message)
            if self.can_give:
                self._on_ready(self)
            yield message.offset
