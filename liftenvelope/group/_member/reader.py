"""Reads one assigned partition ahead into a buffer and hands the messages out in order."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

from liftenvelope._backoff import Backoff
from liftenvelope._native import handout
from liftenvelope.errors import (
    FencedError,
    LiftEnvelopeError,
    NoCursorError,
    NoSuchPartitionError,
    NoSuchStreamError,
    OffsetOutOfRangeError,
    ResourcesExceededError,
    StreamDeletedError,
    StreamNotFoundError,
)
from liftenvelope.group._sources import (
    FeedReconnectedError,
    PartitionFeed,
    Taken,
    TopicSource,
    continues,
    created_of,
    newest_of,
)
from liftenvelope.group._topics import JetStreamFeed, end_of, lag_of, lists_of, open_within, replaced
from liftenvelope.group.assignors import TopicPartition

__all__ = ["GroupMessage", "Outage", "PartitionReader"]

#: Errors that may go away by themselves, and the seconds for which they must last before they are raised. A
#: server that has just become the partition's leader may not know all of its messages yet. JetStream removes
#: the consumers of a killed member after five minutes; until then, the limit of consumers may be reached.
_CERTAIN: Final[tuple[tuple[type[LiftEnvelopeError], float], ...]] = (
    (OffsetOutOfRangeError, 3.0),
    (ResourcesExceededError, 330.0),
)
#: Errors of a stream that does not exist. A deployment may delete a stream and create it again, so a stream
#: that has existed may be missing for ``patience`` seconds. Otherwise the error would depend on when the
#: reader looks: this one, or that of a stream that was created again. Asked for the newest offset, Liftbridge
#: answers for a stream that it has not that the partition is missing.
_MISSING: Final = (StreamNotFoundError, NoSuchStreamError, NoSuchPartitionError, StreamDeletedError)
#: Seconds after which a feed without messages counts as one that works: its partition is empty. A feed whose
#: pulls are refused without an answer fails after two missed heartbeats, which take 30 to 31 s.
_WORKS: Final = 35.0


class GroupMessage(NamedTuple):
    """A message handed out to a member of a group.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        offset: Offset of the message.
        data: Payload.
        message: Message object of the topic's source. For a JetStream topic, a
            :class:`liftenvelope.jetstream.Message` that needs no ack.
        generation: Group generation in which the member got the message.
    """

    topic: str
    partition: int
    offset: int
    data: bytes
    message: Any
    generation: int


class Outage:
    """Time for which a partition can't be read.

    Args:
        patience: Seconds of failures after which the outage is told, once.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._opened_at = math.inf
        self.ends()

    def ends(self) -> None:
        """Record that a message came, or that the partition is read from another place."""
        self._began_at, self._is_told = math.inf, False

    def opened(self, now: float) -> None:
        """Record that a feed was opened, which may fail before its first message."""
        self._opened_at = now

    def failed(self, now: float) -> bool:
        """Record a failure; return True if the outage must be told."""
        if now - self._opened_at >= _WORKS:
            self.ends()
        self._began_at, self._opened_at = min(self._began_at, now), math.inf
        is_due = now - self._began_at >= self._patience and not self._is_told
        self._is_told |= is_due
        return is_due


class PartitionReader:
    """Reads one partition ahead into a buffer.

    The reader outlives generations. When the member gives its partitions back, :meth:`hold` keeps the buffer
    filled without handing anything out. :meth:`go_on` resumes with the next generation if its committed
    offset is one that the buffer, or the batch in the user's hands, still covers. Otherwise a new reader is
    needed.

    Args:
        source: Topic of the partition.
        key: Topic name and partition number.
        generation: Generation of the group.
        offset: Start offset; -1 if nothing was committed.
        created_ns: Creation time of the stream that the offset belongs to, in ns since 1970; 0 if not known.
        auto_offset: Start in that case: ``"earliest"``, ``"latest"``, ``"new"``, or ``"error"``.
        limit: Messages to read ahead.
        patience: Seconds of failures, without a message, after which ``on_unreadable`` is called. A deleted
            stream may be missing for as long before its error is raised.
        on_ready: Called when a message can be taken.
        on_refused: Called with the error when JetStream first refuses a consumer for lack of resources. The
            reader retries.
        on_unreadable: Called with the last error when all reading has failed for ``patience`` seconds. The
            reader retries.
        on_begin: Awaited with the start before anything is read. A start that is not None must be committed
            first, so that the next member starts there too, even if this one dies at once.

    Attributes:
        key: Topic name and partition number.
        created_ns: Creation time of the stream that the position belongs to; 0 if not known.
        buffer: Messages read ahead, and the batch handed out last.
        rewound: The user sought, so the next commit may lower the committed offset.
        seeks: Number of seeks.
        last_error: Last error that was retried; None if there was none.
        start_offset: Start offset until it is committed; None if an offset had been committed before.
    """

    def __init__(
        self,
        source: TopicSource,
        key: TopicPartition,
        generation: int,
        offset: int,
        *,
        created_ns: int = 0,
        auto_offset: str,
        limit: int,
        patience: float,
        on_ready: Callable[[PartitionReader], None],
        on_refused: Callable[[PartitionReader, LiftEnvelopeError], None],
        on_unreadable: Callable[[PartitionReader, LiftEnvelopeError], None],
        on_begin: Callable[[PartitionReader, int | None], Awaitable[None]],
    ) -> None:
        self.key = key
        self.created_ns = created_ns
        self._room = asyncio.Event()
        self.buffer = handout.PartitionBuffer(
            key, generation, offset if offset >= 0 else None, limit, GroupMessage, self._room.set
        )
        self.rewound = False
        self.seeks = 0
        self.last_error: LiftEnvelopeError | None = None
        self.start_offset: int | None = None
        self._source = source
        self._auto_offset = auto_offset
        self._on_ready = on_ready
        self._on_refused = on_refused
        self._on_unreadable = on_unreadable
        self._on_begin = on_begin
        #: True once the start is known and committed, so that messages go into the buffer.
        self._has_begun = False
        #: Class and time of the first of the errors in a row that may go away by themselves. Any other error
        #: begins a new row: a partition that was opened meanwhile is read until one comes.
        self._failing: tuple[type[LiftEnvelopeError], float] | None = None
        self._patience = patience
        self._outage = Outage(patience)
        #: The feed that is read, unless it has given messages that are not in the buffer yet.
        self._feed: PartitionFeed | None = None
        self._task: asyncio.Task[None] | None = None
        self._on_done: Callable[[asyncio.Task[None]], None] | None = None

    @property
    def paused(self) -> bool:
        """True if nothing is handed out until this is false."""
        return self.buffer.is_paused

    @paused.setter
    def paused(self, value: bool) -> None:
        self.buffer.is_paused = value
        self._tell()

    @property
    def waiting(self) -> int:
        """Number of messages that were read and not handed out."""
        return self.buffer.waiting

    def limit_bytes(self, max_bytes: int) -> None:
        """Read ahead no more once so many bytes wait."""
        self.buffer.max_bytes = max_bytes

    def _tell(self) -> None:
        if self.buffer.can_give:
            self._on_ready(self)

    @property
    def position(self) -> int | None:
        """Offset of the next message to hand out, or a lower one; None if not known yet."""
        return self.buffer.position

    @property
    def may_skip(self) -> bool:
        """True while the start may still come after a message that is published now."""
        is_relative = self._auto_offset in ("new", "latest")
        return is_relative and (self.position is None or self.start_offset is not None)

    def start(self, on_done: Callable[[asyncio.Task[None]], None]) -> None:
        """Start reading, or handing out what was buffered. ``on_done`` gets the finished reading task."""
        self._on_done = on_done
        self.buffer.is_held = False
        if self._task is None or self._task.done():
            self.buffer.clear()  # a reader that was kept is read again from its position
            self._begin_to_read()
        else:
            self._tell()

    def _begin_to_read(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._read())
        self._task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        if self._on_done is not None and not self.buffer.is_held and task is self._task:
            self._on_done(task)
        elif not task.cancelled():
            task.exception()  # retrieved and dropped: the partition's next reader meets the error itself

    # Generations

    def hold(self) -> bool:
        """Stop handing out, but keep buffering: the partition may be assigned to this member again.

        Returns:
            True if the reader keeps buffering; otherwise it must be closed.
        """
        self.buffer.is_held = True
        return self._has_begun and self._task is not None and not self._task.done()

    def go_on(self, generation: int, offset: int) -> bool:
        """Switch to the next generation, which starts at ``offset``.

        Returns:
            True if the reader can continue from there; otherwise it must be closed.
        """
        if self._task is None or self._task.done() or not self.buffer.go_on(generation, offset):
            return False
        self.rewound = False
        return True

    # Reading

    def seek(self, offset: int) -> None:
        """Continue at another offset."""
        self.buffer.seek(offset)
        self.rewound, self.start_offset = True, None
        self.created_ns = 0
        self.seeks += 1
        self._failing = None
        self._outage.ends()
        if self._task is not None:
            # The old task can't add messages any more: it is cancelled before it runs again.
            self._feed = None
            self._task.cancel()
            self._begin_to_read()

    def stop(self) -> None:
        """Drop the messages read ahead and cancel the reading."""
        self.buffer.clear()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop, and wait for the reading to end."""
        self.stop()
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait([self._task])

    async def begin(self) -> int:
        """Return the first offset to hand out; look it up once if nothing was committed.

        Raises:
            NoCursorError: Nothing was committed, and ``auto_offset`` is ``"error"``.
        """
        if (position := self.position) is None:
            if self._auto_offset == "error":
                topic, partition = self.key
                raise NoCursorError(
                    f"no offset was committed for {topic}[{partition}]; rewind the group first"
                )
            found = await self._find_start()
            position = self.position
            if position is None:  # unless another call or a seek has set it meanwhile
                position = self.start_offset = found
                self.created_ns = created_of(self._source, self.key.partition)
                self.buffer.seek(found)
        return position

    async def lag(self) -> int:
        """Return the number of messages that were not handed out yet.

        Raises:
            LiftEnvelopeError: The topic could not be read.
        """
        return await lag_of(self._source, self.key.partition, await self.begin(), self._unread)

    async def _unread(self, leader: str) -> int | None:
        feed = self._feed
        found = await feed.pending(leader) if isinstance(feed, JetStreamFeed) else None
        return None if found is None or feed is not self._feed else found + self.buffer.waiting

    async def _find_start(self) -> int:
        if self._auto_offset == "latest":
            return await newest_of(self._source, self.key.partition)
        if self._auto_offset == "new":
            return await end_of(self._source, self.key.partition)
        return (await self._source.bounds(self.key.partition))[0]

    async def _read(self) -> None:
        backoff = Backoff()
        read_from: int | None = None
        while True:
            try:
                if read_from is None:
                    read_from = await self._begin_for_good()
                feed = await open_within(self._source, self.key.partition, read_from, self.buffer)
                self._outage.opened(asyncio.get_running_loop().time())
                try:
                    async for offset in self._fill(feed, read_from):
                        read_from, self._failing = offset + 1, None
                        self._outage.ends()
                        backoff.reset()
                finally:
                    if self._feed is feed:
                        self._feed = None
                    await feed.close()
            except LiftEnvelopeError as exc:
                self._check_passing(exc)
                self.last_error = exc
                await asyncio.sleep(backoff.next())

    def _check_passing(self, error: LiftEnvelopeError) -> None:
        """Raise an error that does not go away by itself; return for one that a retry can cure."""
        now = asyncio.get_running_loop().time()
        if error.retriable or isinstance(error, FencedError):
            self._failing = None
            # A feed that ended with its connection did not fail: the member reads on, on the next connection.
            if not isinstance(error, FeedReconnectedError) and self._outage.failed(now):
                self._on_unreadable(self, error)
            return
        kind, seconds = self._limit_of(error)
        if self._failing is None or self._failing[0] is not kind:
            self._failing = kind, now
            if kind is ResourcesExceededError:
                self._on_refused(self, error)
        if now - self._failing[1] >= seconds:
            raise error

    def _limit_of(self, error: LiftEnvelopeError) -> tuple[type[LiftEnvelopeError], float]:
        """Return the kind of an error, and the seconds for which errors of this kind are retried."""
        existed_at = self.created_ns or created_of(self._source, self.key.partition)
        if existed_at and isinstance(error, _MISSING):
            return StreamNotFoundError, self._patience
        certain = ((kind, seconds) for kind, seconds in _CERTAIN if isinstance(error, kind))
        return next(certain, (type(error), 0.0))

    async def _begin_for_good(self) -> int:
        offset = await self.begin()
        await self._on_begin(self, self.start_offset)
        self.start_offset, self._has_begun = None, True
        return offset

    async def _check_stream(self, offset: int) -> None:
        """Check that messages from an offset on come from the stream that the offset belongs to.

        At offset 0 nothing of an earlier stream was read, and nothing of this one is skipped.

        Raises:
            OffsetOutOfRangeError: The stream was deleted and created again, and reaches beyond the position.
        """
        topic, partition = self.key
        if offset and not continues(self._source, partition, self.created_ns):
            _, end = await self._source.bounds(partition)
            raise replaced(topic, partition, self.position or 0, end - 1)
        # A broker that is behind may still tell the time of an earlier stream.
        self.created_ns = max(created_of(self._source, partition), self.created_ns)

    async def _fill(self, feed: PartitionFeed, offset: int) -> AsyncIterator[int]:
        """Put messages from an offset on into the buffer, and yield the last offset of each list."""
        next_many, buffer, is_known = lists_of(feed), self.buffer, False
        self._feed = feed
        while True:
            while not buffer.room:
                self._room.clear()
                buffer.wants_room = True
                await self._room.wait()
            taken = await next_many(buffer.room)
            if not is_known:
                self._feed = None
                await self._check_stream(offset)
                self._feed, is_known = feed, True
            if isinstance(taken, Taken):
                buffer.extend(*taken)
                last = taken.offsets[-1]
            else:
                buffer.extend_blocks(taken)
                last = taken[-1].last_sequence - 1
            self._tell()
            yield last
