"""Reader of one assigned partition, from its assignment to its revocation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from liftenvelope._backoff import Backoff
from liftenvelope.client._events import CursorAheadOfStream, GroupPartitionFenced
from liftenvelope.client._reading.ahead import SecondLook
from liftenvelope.errors import (
    CallTimeoutError,
    FencedError,
    LiftEnvelopeError,
    NoCursorError,
    NoSuchPartitionError,
    NoSuchStreamError,
    NotLeaderError,
    OffsetOutOfRangeError,
    PartitionPausedError,
    ReadonlyPartitionError,
    StreamDeletedError,
    TransportError,
)

if TYPE_CHECKING:
    from liftenvelope.client._consuming.member import ConsumerMember
    from liftenvelope.client._consuming.membership import StreamPartition
    from liftenvelope.client._parts import ClientParts
    from liftenvelope.client.metadata import PartitionInfo
    from liftenvelope.envelope import Message

__all__ = ["ConsumerReader"]

#: Maximum number of messages to take from a subscription at once.
_BATCH: Final = 500
#: Seconds between attempts to read a paused or read-only partition, which can become readable again.
_LOOK_AGAIN: Final = 1.0
#: Seconds to wait for partition metadata. Short, because a paused partition has no leader to answer.
_INFO_TIMEOUT: Final = 3.0


class ConsumerReader:
    """Reads one partition, from one assignment to its revocation.

    A background task subscribes and offers one batch at a time; the consumer takes messages from the batch.
    ``_next_read`` is the offset at which a new subscription starts: it is past the batch on offer.
    ``position`` is the offset of the next message to return: ``first <= position <= _next_read``.

    Args:
        parts: Parts of the client, which make the calls.
        member: Group member that reads.
        key: Stream and partition.
        cursor_id: Id of the group's cursor.
        auto_offset: Start position if there is no cursor.
        resume: True to resume the partition if it is paused.
        on_ready: Called when messages are available.
        on_start: Called with the offset before the first message to read, None if there is none.

    Attributes:
        position: Offset of the next message to return, None if not known yet.
        first: Offset at which reading started, or the target of the last seek.
        moves: Number of changes of ``position`` by a seek, or by a stream that starts over.
        rewound: True if the next checkpoint may move the cursor back, because the user has called seek.
        is_live: True while returned messages may still be counted as processed.
    """

    def __init__(
        self,
        parts: ClientParts,
        member: ConsumerMember,
        key: StreamPartition,
        *,
        cursor_id: str,
        auto_offset: str,
        resume: bool,
        on_ready: Callable[[ConsumerReader], None],
        on_start: Callable[[ConsumerReader, int | None], None],
    ) -> None:
        self.key = key
        self.position: int | None = None
        self.first: int | None = None
        self.moves = 0
        self.rewound = False
        self.is_live = True
        self._parts = parts
        self._member = member
        self._cursor_id = cursor_id
        self._auto_offset = auto_offset
        self._resume = resume
        self._on_ready = on_ready
        self._on_start = on_start
        self._paused = False
        self._stopped = False
        #: Messages on offer in reverse order: the next one is last.
        self._messages: list[Message] = []
        self._taken = asyncio.Event()
        self._next_read: int | None = None
        #: Creation time of the stream that was read last; 0 before the first read.
        self._created_ns = 0
        self._refusals = 0
        self._task: asyncio.Task[None] | None = None
        self._on_done: Callable[[asyncio.Task[None]], object] = lambda _: None

    def start(self, on_done: Callable[[asyncio.Task[None]], object]) -> None:
        """Start the read task. ``on_done`` is called when it ends: by an error, a seek or :meth:`stop`."""
        self._on_done = on_done
        if not self._stopped:
            self._begin()

    def seek(self, offset: int) -> None:
        """Continue at another offset; drop the messages read ahead."""
        self._messages.clear()
        self.position = self.first = self._next_read = offset
        self.moves += 1
        self.rewound = True
        if self._task is not None:
            self._begin()

    def stop(self) -> None:
        """Drop the messages on offer and cancel the read task."""
        self._stopped = True
        self._messages.clear()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop, and wait until the read task has ended."""
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task])

    @property
    def waiting(self) -> int:
        """Number of messages that were read and not handed out."""
        return len(self._messages)

    @property
    def paused(self) -> bool:
        """True while the partition returns no messages at the user's request."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        if self._messages and not paused:
            self._on_ready(self)

    def take(self) -> Message | None:
        """Return the next message; None if none is available now."""
        if not self._messages or self._paused:
            return None
        message = self._messages.pop()
        self.position = message.offset + 1
        if not self._messages:
            self._taken.set()
        return message

    def take_many(self, limit: int) -> list[Message]:
        """Return the next messages, at most ``limit``."""
        if not self._messages or self._paused:
            return []
        taken = self._messages[-limit:][::-1]
        del self._messages[-limit:]
        self.position = taken[-1].offset + 1
        if not self._messages:
            self._taken.set()
        return taken

    def is_at(self, moves: int) -> bool:
        """Return True if messages that were taken with this value of ``moves`` still belong here."""
        return not self._stopped and self.moves == moves

    def give_back(self, messages: list[Message], moves: int) -> None:
        """Put back messages that were taken but not returned to the user, the latest ones first.

        Offsets cannot tell if the messages still belong here: a compacted stream has gaps.

        Args:
            messages: Result of one :meth:`take_many`.
            moves: Value of ``moves`` at that time.
        """
        if not self.is_at(moves):
            return
        self._messages += messages[::-1]
        self.position = messages[0].offset
        self._on_ready(self)

    def has_handed_out(self, offset: int) -> bool:
        """Return True if an offset was returned since the assignment, or since the last seek."""
        return self.first is not None and self.position is not None and self.first <= offset < self.position

    def _begin(self) -> None:
        earlier = self._task
        if earlier is not None:
            earlier.cancel()
        self._task = asyncio.create_task(self._run(earlier))
        self._task.add_done_callback(self._on_done)

    async def _run(self, earlier: asyncio.Task[None] | None) -> None:
        # A server loses track of the fenced member if a new subscription starts before the old one has ended.
        if earlier is not None:
            await asyncio.wait([earlier])
        backoff = Backoff()
        while True:
            begun = self._next_read
            try:
                await self._read()
            except (ReadonlyPartitionError, PartitionPausedError):
                await asyncio.sleep(_LOOK_AGAIN)
                continue
            except FencedError:
                await self._refused()
            except (StreamDeletedError, NoSuchStreamError, NoSuchPartitionError, OffsetOutOfRangeError):
                # The group will revoke the partition, or a new stream with that name exists: start over.
                self._forget()
                self._member.hurry()
            except (TransportError, CallTimeoutError, NotLeaderError):
                # The subscription has issued an event. Retry for as long as the partition is assigned.
                self._member.hurry()
            if self._next_read != begun:
                backoff.reset()
            await asyncio.sleep(backoff.next())

    async def _read(self) -> None:
        """Subscribe and offer batches until the subscription ends."""
        await self._settle_start()
        assert self._next_read is not None
        stream, partition = self.key
        subscription = self._parts.subscriptions.subscribe_for_group(
            stream, partition, self._next_read, self._member.identity(self.key), resume=self._resume
        )
        async with subscription:
            self._refusals = 0
            async for batch in subscription.batches(_BATCH, max_wait=0):
                await self._offer(batch)

    async def _offer(self, batch: list[Message]) -> None:
        """Offer a batch to the consumer, and wait until all of it is taken."""
        self._next_read = batch[-1].offset + 1
        self._messages = batch[::-1] + self._messages
        self._taken.clear()
        self._on_ready(self)
        await self._taken.wait()

    async def _refused(self) -> None:
        """Check the assignment after a fenced subscription; notify if the partition is still assigned.

        One refusal is normal while a group changes, so the event starts with the second refusal in a row. If
        the partition is no longer assigned, the member's change revokes it soon.
        """
        self._refusals += 1
        try:
            mine = await self._member.confirm(self._parts.context.deadline(None))
        except LiftEnvelopeError:
            return  # the member's own task keeps asking
        if self.key in mine and self._refusals > 1:
            stream, partition = self.key
            member = self._member
            event = GroupPartitionFenced(
                member.group, member.consumer_id, stream, partition, member.state.epoch, self._refusals - 1
            )
            self._parts.context.options.notify(event)

    def _forget(self) -> None:
        self._messages.clear()
        self.position = self.first = self._next_read = None
        self.moves += 1
        self._on_start(self, None)

    # Start offset

    async def _settle_start(self) -> None:
        """Find the start of the next subscription, unless it continues the one before on the same stream.

        A stream that was deleted and created again has other messages at the same offsets, so neither the
        offset reached nor the group's cursor counts for it.
        """
        context = self._parts.context
        found = await context.cluster.stream(self.key[0], context.deadline(None), refresh=True)
        is_another = 0 < self._created_ns < found.created_ns
        if is_another and self._next_read is not None:
            self._forget()
        if self._next_read is None:
            start = await self._find_start(is_another=is_another)
            self._next_read = self.position = self.first = start
        self._created_ns = max(self._created_ns, found.created_ns)

    async def _find_start(self, *, is_another: bool) -> int:
        stored = await self._parts.cursors.fetch_cursor(self._cursor_id, *self.key)
        if stored is None:
            self._check_auto("it has no cursor")
        try:
            info = await self._fetch_info()
            info = await SecondLook().newest(info, stored, self._fetch_info)
        except NotLeaderError:
            # The partition may be paused. A cursor or "earliest" gives the start without its metadata.
            if is_another or (stored is None and self._auto_offset != "earliest"):
                raise
            return self._started(stored)
        if stored is not None and (is_another or stored > info.newest_offset):
            await self._drop_cursor(stored, info)
            stored = None
        if stored is None and self._auto_offset != "earliest":
            stored = await self._keep_start(info)
        return self._started(stored)

    async def _fetch_info(self) -> PartitionInfo:
        return await self._parts.streams.fetch_partition_metadata(*self.key, timeout=_INFO_TIMEOUT)

    def _check_auto(self, why: str) -> None:
        if self._auto_offset == "error":
            stream, partition = self.key
            raise NoCursorError(f"{stream}[{partition}]: {why} for group {self._member.group!r}")

    def _started(self, last: int | None) -> int:
        self._on_start(self, last)
        return 0 if last is None else last + 1

    async def _drop_cursor(self, stored: int, info: PartitionInfo) -> None:
        """Delete a cursor that belongs to an earlier stream of this name: it would block every checkpoint."""
        event = CursorAheadOfStream(*self.key, self._cursor_id, stored, info.newest_offset, self._auto_offset)
        self._parts.context.options.notify(event)
        is_ahead = stored > info.newest_offset
        why = f"beyond the newest offset {info.newest_offset}" if is_ahead else "of an earlier stream"
        self._check_auto(f"its cursor {stored} is {why}")
        await self._parts.cursors.reset_cursor(self._cursor_id, *self.key)

    async def _keep_start(self, info: PartitionInfo) -> int | None:
        """Store the resolved "new" or "latest" offset, so that the next owner does not resolve it anew."""
        last = info.newest_offset if self._auto_offset == "new" else info.newest_offset - 1
        if last < 0:
            return None
        deadline = self._parts.context.deadline(None)
        return await self._parts.cursors.advance((self._cursor_id, *self.key), last, deadline)
