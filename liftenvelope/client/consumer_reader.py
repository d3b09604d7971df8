"""The messages of one partition that a consumer group has given to this member, for as long as it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from liftenvelope.client.events import CursorAheadOfStream, GroupPartitionFenced
from liftenvelope.client.retries import pause_before
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
    from liftenvelope.client.consumer_member import GroupMember
    from liftenvelope.client.membership import StreamPartition
    from liftenvelope.client.metadata import PartitionInfo
    from liftenvelope.client.subscribing import SubscribeMixin
    from liftenvelope.envelope import Message

__all__ = ["PartitionReader"]

#: Messages that are taken over from a subscription at a time.
_BATCH: Final = 500
# A paused or read-only partition can be opened again: it is looked at so many seconds apart.
_LOOK_AGAIN: Final = 1.0
# A paused partition has no leader to ask, so the answer is not waited for very long.
_INFO_TIMEOUT: Final = 3.0


class PartitionReader:
    """Reads one partition, from one assignment to its revocation.

    Args:
        client: Makes the calls.
        member: The member that it reads for.
        key: Stream and partition.
        cursor_id: Id of the group's cursor.
        auto_offset: Where to begin without a cursor.
        resume: Whether to wake the partition if it is paused.
        on_ready: Told when there are messages.
        on_start: Told the offset of the last message before the first.

    Attributes:
        position: The offset that is handed out next, None where that is not known yet.
        first: The offset that it began at.
        seeks: How often the user has sent it elsewhere.
        rewound: Whether the next checkpoint may go back, since the user has.
        is_live: Whether what was handed out may still be counted as processed.
    """

    def __init__(
        self,
        client: SubscribeMixin,
        member: GroupMember,
        key: StreamPartition,
        *,
        cursor_id: str,
        auto_offset: str,
        resume: bool,
        on_ready: Callable[[PartitionReader], None],
        on_start: Callable[[PartitionReader, int | None], None],
    ) -> None:
        self.key = key
        self.position: int | None = None
        self.first: int | None = None
        self.seeks = 0
        self.rewound = False
        self.is_live = True
        self._client = client
        self._member = member
        self._cursor_id = cursor_id
        self._auto_offset = auto_offset
        self._resume = resume
        self._on_ready = on_ready
        self._on_start = on_start
        self._paused = False
        self._stopped = False
        #: Messages to be handed out, the next one last.
        self._messages: list[Message] = []
        self._taken = asyncio.Event()
        self._next_read: int | None = None
        self._refusals = 0
        self._task: asyncio.Task[None] | None = None
        self._on_done: Callable[[asyncio.Task[None]], object] = lambda _: None

    def start(self, on_done: Callable[[asyncio.Task[None]], object]) -> None:
        """Begin to read; tell of the end, which comes only by an error or when told to."""
        self._on_done = on_done
        if not self._stopped:
            self._begin()

    def seek(self, offset: int) -> None:
        """Go on at another offset. What was read ahead is dropped."""
        self._messages.clear()
        self.position = self.first = self._next_read = offset
        self.seeks += 1
        self.rewound = True
        if self._task is not None:
            self._begin()

    def stop(self) -> None:
        """Hand out no more, and end reading."""
        self._stopped = True
        self._messages.clear()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """End reading, and wait for the end."""
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task])

    @property
    def paused(self) -> bool:
        """Whether nothing is handed out for the time being."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        if self._messages and not paused:
            self._on_ready(self)

    def take(self) -> Message | None:
        """Return the next message; None where there is none for now."""
        if not self._messages or self._paused:
            return None
        message = self._messages.pop()
        self.position = message.offset + 1
        if not self._messages:
            self._taken.set()
        return message

    def take_many(self, limit: int) -> list[Message]:
        """Return up to so many of the next messages."""
        if not self._messages or self._paused:
            return []
        taken = self._messages[-limit:][::-1]
        del self._messages[-limit:]
        self.position = taken[-1].offset + 1
        if not self._messages:
            self._taken.set()
        return taken

    def give_back(self, messages: list[Message]) -> None:
        """Take back what was taken and reached nobody."""
        if self._stopped or self.position != messages[-1].offset + 1:
            return  # taken away, or sent elsewhere, in the meantime
        self._messages += messages[::-1]
        self.position = messages[0].offset
        self._on_ready(self)

    def has_handed_out(self, offset: int) -> bool:
        """Whether a message was handed out since the partition was assigned, or since the last seek."""
        return self.first is not None and self.position is not None and self.first <= offset < self.position

    def _begin(self) -> None:
        earlier = self._task
        if earlier is not None:
            earlier.cancel()
        self._task = asyncio.create_task(self._run(earlier))
        self._task.add_done_callback(self._on_done)

    async def _run(self, earlier: asyncio.Task[None] | None) -> None:
        # A server forgets whom it fences if it hears of a new subscription before the old one's end.
        if earlier is not None:
            await asyncio.wait([earlier])
        attempt = 0
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
                # The group will take the partition away; or there is a new stream of that name.
                self._forget()
                self._member.hurry()
            except (TransportError, CallTimeoutError, NotLeaderError):
                # It has been told as an event; here it is tried for as long as the partition is ours.
                self._member.hurry()
            attempt = 0 if self._next_read != begun else attempt + 1
            await asyncio.sleep(pause_before(attempt + 1))

    async def _read(self) -> None:
        """Read until that ends."""
        if self._next_read is None:
            self._next_read = self.position = self.first = await self._find_start()
        stream, partition = self.key
        subscription = self._client._subscribe_for_group(
            stream, partition, self._next_read, self._member.identity(self.key), resume=self._resume
        )
        async with subscription:
            self._refusals = 0
            async for batch in subscription.batches(_BATCH, max_wait=0):
                await self._offer(batch)

    async def _offer(self, batch: list[Message]) -> None:
        """Have a batch handed out, and wait until it was."""
        self._next_read = batch[-1].offset + 1
        self._messages = batch[::-1] + self._messages
        self._taken.clear()
        self._on_ready(self)
        await self._taken.wait()

    async def _refused(self) -> None:
        """Find out whether the partition still is ours; if not, it will be taken away presently."""
        self._refusals += 1
        try:
            mine = await self._member.confirm(self._client._deadline(None))
        except LiftEnvelopeError:
            return  # the member's own task goes on finding out
        if self.key in mine and self._refusals > 1:
            stream, partition = self.key
            member = self._member
            event = GroupPartitionFenced(
                member.group, member.consumer_id, stream, partition, member.state.epoch, self._refusals - 1
            )
            self._client._options.notify(event)

    def _forget(self) -> None:
        self._messages.clear()
        self.position = self.first = self._next_read = None
        self._on_start(self, None)

    # Where it begins

    async def _find_start(self) -> int:
        stored = await self._client.fetch_cursor(self._cursor_id, *self.key)
        if stored is None:
            self._check_auto("it has no cursor")
        try:
            info = await self._client.fetch_partition_metadata(*self.key, timeout=_INFO_TIMEOUT)
        except NotLeaderError:
            # Paused, perhaps: what can be said without asking it is said.
            if stored is None and self._auto_offset != "earliest":
                raise
            return self._started(stored)
        if stored is not None and stored > info.newest_offset:
            await self._drop_cursor(stored, info)
            stored = None
        if stored is None and self._auto_offset != "earliest":
            stored = await self._keep_start(info)
        return self._started(stored)

    def _check_auto(self, why: str) -> None:
        if self._auto_offset == "error":
            stream, partition = self.key
            raise NoCursorError(f"{stream}[{partition}]: {why} for group {self._member.group!r}")

    def _started(self, last: int | None) -> int:
        self._on_start(self, last)
        return 0 if last is None else last + 1

    async def _drop_cursor(self, stored: int, info: PartitionInfo) -> None:
        """Take a cursor away that is of an earlier stream: it would be in the way of every checkpoint."""
        event = CursorAheadOfStream(*self.key, self._cursor_id, stored, info.newest_offset, self._auto_offset)
        self._client._options.notify(event)
        self._check_auto(f"its cursor {stored} is beyond the newest offset {info.newest_offset}")
        await self._client.reset_cursor(self._cursor_id, *self.key)

    async def _keep_start(self, info: PartitionInfo) -> int | None:
        """Store where "new" or "latest" is now, lest the next member take what comes later for it."""
        last = info.newest_offset if self._auto_offset == "new" else info.newest_offset - 1
        if last < 0:
            return None
        deadline = self._client._deadline(None)
        return await self._client._raise_cursor((self._cursor_id, *self.key), last, deadline)
