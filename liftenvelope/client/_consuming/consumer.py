"""Consumer: a member of a consumer group, which shares the partitions of streams among its members.

The lifecycle and the tasks are those of every consumer: see :mod:`liftenvelope.consumers.shell`. This module
adds Liftbridge's protocol: each change assigns or revokes some partitions, and offsets are stored as cursors.
After a revocation the member may still store its last offsets, but only if no larger offset is stored. The
callback ``on_revoked`` runs between the two: readers have stopped, and processed messages still count.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Self

from liftenvelope._checks import MAX_INT64, as_count, as_seconds
from liftenvelope._deadlines import Deadline
from liftenvelope.client._consuming.checkpointer import CheckpointWriter
from liftenvelope.client._consuming.checkpoints import Checkpoints
from liftenvelope.client._consuming.member import ConsumerMember
from liftenvelope.client._consuming.membership import StreamPartition
from liftenvelope.client._consuming.reader import ConsumerReader
from liftenvelope.client._events import CheckpointFailed, GroupLeaveFailed
from liftenvelope.client.core import check_partition, check_stream
from liftenvelope.consumers.shell import TURN, ConsumerShell, stop
from liftenvelope.consumers.tasks import cancel
from liftenvelope.errors import FencedError, LiftEnvelopeError, TransportError

if TYPE_CHECKING:
    from liftenvelope.client._consuming.membership import Change
    from liftenvelope.client._consuming.options import ConsumerOptions
    from liftenvelope.client._parts import ClientParts
    from liftenvelope.envelope import Message

__all__ = ["Consumer"]


class _Chunk(NamedTuple):
    """Messages that a reader gave at once, and its ``moves`` at that time."""

    reader: ConsumerReader
    messages: list[Message]
    moves: int


class Consumer(ConsumerShell[StreamPartition, ConsumerMember, ConsumerReader, "Message"]):
    """A member of a consumer group. Made by :meth:`Client.consumer`; used with ``async with``.

    Iteration returns the messages of all partitions assigned to this member, in order within each partition.
    A message counts as processed when the next one is requested, or when it is passed to :meth:`commit`.
    Processed offsets are committed periodically, and the partition's next owner continues there.

    Delivery is at least once: messages since the last checkpoint are redelivered after a crash, and when a
    partition moves to a member that joins. For one task at a time.

    Example:
        >>> async with client.consumer("billing", ["orders"]) as consumer:  # doctest: +SKIP
        ...     async for message in consumer:
        ...         ...
    """

    def __init__(self, parts: ClientParts, options: ConsumerOptions) -> None:
        super().__init__(options)
        self._parts = parts
        self._options = options
        self._writer: CheckpointWriter[StreamPartition] | None = None
        self._checkpoints = Checkpoints[StreamPartition](None, options.auto_commit_interval)
        #: Readers that may have messages.
        self._ready: deque[ConsumerReader] = deque()
        #: Messages handed out last: reader and last offset. The next request marks them as processed.
        self._in_hand: list[tuple[ConsumerReader, int]] = []
        #: Time of the last turn of other tasks.
        self._turned_at = monotonic()

    # State

    @property
    def epoch(self) -> int:
        """Group epoch last seen by this member. The epoch changes when members join or leave."""
        return self._running().state.epoch

    def position(self, stream: str, partition: int) -> int | None:
        """Return a lower bound of the next message's offset; None if the start is not known yet.

        Raises:
            FencedError: The partition is not assigned to this member.
        """
        return self._reader(_key(stream, partition)).position

    async def lag(self, *, timeout: float | None = None) -> dict[tuple[str, int], int]:
        """Return the lag of each assigned partition in offsets.

        Args:
            timeout: Seconds for each call. Default: the client's ``timeout``.

        Returns:
            Newest offset minus the last processed offset, by stream and partition.

        Raises:
            CallTimeoutError: No answer came in time.
            TransportError: No broker could be reached.
        """
        readers = dict(self._readers)
        asking = [asyncio.ensure_future(self._lag_of(reader, timeout)) for reader in readers.values()]
        try:
            return dict(zip(readers, await asyncio.gather(*asking), strict=True))
        finally:
            await cancel(asking)

    async def _lag_of(self, reader: ConsumerReader, timeout: float | None) -> int:
        info = await self._parts.streams.fetch_partition_metadata(*reader.key, timeout=timeout)
        last = self._checkpoints.last(reader.key)
        if last is None:
            last = await self._before(reader, timeout)
        return max(info.newest_offset - last, 0)

    async def _before(self, reader: ConsumerReader, timeout: float | None) -> int:
        """Return the offset before the first one to read: from the reader's start, or from the cursor."""
        if reader.first is not None:
            return reader.first - 1
        stored = await self._parts.cursors.fetch_cursor(self._options.cursor_id, *reader.key, timeout=timeout)
        return -1 if stored is None else stored

    # Lifecycle

    async def open(self) -> Self:
        """Join the group and start reading the assigned partitions; ``async with`` does it.

        Raises:
            NoSuchStreamError: A stream does not exist.
            CallTimeoutError: The group could not be joined within the client's ``timeout``.
            TransportError: No broker could be reached, or the consumer was closed meanwhile.
        """
        streams = self._options.streams
        await self._open(ConsumerMember(self._parts.context, self.group, self.consumer_id, streams))
        return self

    async def _join(self, member: ConsumerMember) -> None:
        deadline = self._parts.context.deadline(None)
        self._writer = CheckpointWriter(
            self._checkpoints, self._store, self._report, deadline.timeout, self._allowed
        )
        self._parts.context.open_resources.add(self)
        try:
            await member.settle(deadline)
        finally:
            if self._closing:  # close() may have left the group before the join was carried out
                await self._leave(member, deadline)
        self._check_not_closed()
        self._spawn(member.keep())
        self._writer.start(self._task_done)
        while not member.changes.empty():
            await self._apply(member.changes.get_nowait())
        self._check_not_closed()  # on_assigned may call close()
        self._spawn(self._act(member))

    def _check_not_closed(self) -> None:
        if self._closing:
            raise TransportError("the consumer was closed while it was opened")

    async def _give_all_back(self) -> None:
        member = self._running()
        if self._writer is None:
            return
        # Half of the time each, so that slow cursors do not keep the member from leaving.
        timeout = self._parts.context.options.timeout
        try:
            # The first task keeps sending heartbeats: the offsets are stored only for a member.
            await cancel(self._tasks[1:])
            if (unstored := await self._give_up(None, timeout / 2)) is not None:
                raise unstored
        finally:
            # A heartbeat that finds the member gone before the leave is answered would join again.
            await cancel(self._tasks[:1])
            await self._leave(member, Deadline(timeout / 2))

    async def _leave(self, member: ConsumerMember, deadline: Deadline) -> None:
        if not member.has_joined:
            return
        try:
            await member.leave(deadline)
        except LiftEnvelopeError as exc:
            self._parts.context.options.notify(GroupLeaveFailed(self.group, self.consumer_id, exc))

    async def _end(self) -> None:
        self._parts.context.open_resources.discard(self)
        try:
            await super()._end()
        finally:
            if self._writer is not None:
                await self._writer.stop()

    # Messages

    def __aiter__(self) -> Self:
        return self

    def _has_messages(self, reader: ConsumerReader) -> None:
        if reader not in self._ready:
            self._ready.append(reader)
        self._wake.set()

    def _settle(self) -> None:
        """Mark the messages handed out last as processed."""
        for reader, offset in self._in_hand:
            self._processed(reader, offset)
        self._in_hand.clear()

    async def _give_turn(self) -> None:
        """Let other tasks run: a caller that never awaits must not starve heartbeats."""
        await self._until_woken(0.0)
        self._turned_at = monotonic()

    async def __anext__(self) -> Message:
        self._settle()
        if monotonic() - self._turned_at > TURN:
            await self._give_turn()
        while True:
            while self._ready and self._failure is None:
                reader = self._ready[0]
                message = reader.take()
                if message is not None:
                    self._in_hand.append((reader, message.offset))
                    return message
                self._ready.popleft()
            self._check()
            if self._closing:
                raise StopAsyncIteration
            await self._until_woken()

    async def _next(self, limit: int, max_wait: float) -> list[Message]:
        self._settle()
        if monotonic() - self._turned_at > TURN:
            await self._give_turn()
        while taken := await self._collect(limit, max_wait):
            # Without messages of a place that a seek has left, or of a partition that has gone, meanwhile.
            if given := [chunk for chunk in taken if chunk.reader.is_at(chunk.moves)]:
                # Only now: after a cancellation above, the messages must not count as processed.
                self._in_hand += [(chunk.reader, chunk.messages[-1].offset) for chunk in given]
                return [message for chunk in given for message in chunk.messages]
        return []

    def _take_back(self, item: Message | list[Message]) -> None:
        """Keep what was handed out last for the next read: the caller was interrupted before it came."""
        messages = item if isinstance(item, list) else [item]
        # Not of partitions that a commit, a seek or a revocation has taken out of the hand meanwhile.
        for reader in dict(self._in_hand):
            own = [message for message in messages if (message.stream, message.partition) == reader.key]
            reader.give_back(own, reader.moves)
        self._in_hand.clear()

    async def _collect(self, limit: int, max_wait: float) -> list[_Chunk]:
        """Wait for messages, and for more of them; return nothing once the consumer is closing."""
        taken = self._take_ready(limit)
        while not taken:
            self._check()
            if self._closing:
                return []
            await self._until_woken()
            taken = self._take_ready(limit)
        try:
            await self._add(taken, limit, max_wait)
        except BaseException:
            for chunk in reversed(taken):
                chunk.reader.give_back(chunk.messages, chunk.moves)
            raise
        return taken

    async def _add(self, taken: list[_Chunk], limit: int, max_wait: float) -> None:
        """Add messages to ``taken`` until it has ``limit`` messages or ``max_wait`` seconds have passed."""
        count = sum(len(chunk.messages) for chunk in taken)
        try:
            async with asyncio.timeout(max_wait):
                while count < limit and not self._closing and self._failure is None:
                    await self._until_woken()
                    more = self._take_ready(limit - count)
                    taken += more
                    count += sum(len(chunk.messages) for chunk in more)
        except TimeoutError:
            return

    def _take_ready(self, limit: int) -> list[_Chunk]:
        found: list[_Chunk] = []
        while self._ready and limit > 0:
            reader = self._ready[0]
            messages = reader.take_many(limit)
            if messages:
                found.append(_Chunk(reader, messages, reader.moves))
                limit -= len(messages)
            else:
                self._ready.popleft()
        return found

    # Partition control

    async def commit(self, message: Message | None = None, *, timeout: float | None = None) -> None:
        """Store the processed offsets now.

        Args:
            message: Mark this message and all earlier ones of its partition as processed, and store that
                partition's offset. None: mark every returned message as processed, and store all partitions.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            FencedError: The message's partition belongs to another member now. That member gets the message
                again.
            NotMemberError: The consumer expired after missed heartbeats, and is rejoining the group. Go on
                reading: messages that were not committed are delivered again.
            LiftEnvelopeError: An offset could not be stored, as for :meth:`Client.set_cursor`.
        """
        limit = None if timeout is None else as_seconds("timeout", timeout)
        self._running()
        writer = self._writer
        assert writer is not None
        if message is None:
            self._settle()
            await writer.flush(timeout=limit)
            return
        key = message.stream, message.partition
        reader = self._readers.get(key) or self._leaving.get(key)
        if reader is None or not reader.has_handed_out(message.offset):
            raise self._not_assigned(key)
        writer.processed(key, message.offset)
        await writer.flush([key], limit)
        if any(offset <= message.offset for _, offset in self._checkpoints.pending([key])):
            raise self._not_assigned(key)

    def pause(self, stream: str, partition: int) -> None:
        """Stop returning messages of a partition until :meth:`resume`. The partition stays assigned.

        Raises:
            FencedError: The partition is not assigned to this member.
        """
        self._reader(_key(stream, partition)).paused = True

    def resume(self, stream: str, partition: int) -> None:
        """Return messages of a paused partition again.

        Raises:
            FencedError: The partition is not assigned to this member.
        """
        self._reader(_key(stream, partition)).paused = False

    def seek(self, stream: str, partition: int, offset: int) -> None:
        """Continue a partition at another offset, forward or backward.

        The group's cursor moves with the first checkpoint after a message from the new position.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
            offset: Offset of the next message to return. If there is no such message, the next later one is
                returned.

        Raises:
            FencedError: The partition is not assigned to this member.
            UsageError: The offset is negative, or 2**63 or larger.
        """
        offset = as_count("offset", offset, 0, MAX_INT64)
        key = _key(stream, partition)
        self._seek(key, offset)
        self._in_hand = [held for held in self._in_hand if held[0].key != key]

    # Assignment

    async def _act(self, member: ConsumerMember) -> None:
        while not self._closing:
            await self._apply(await member.changes.get())

    async def _apply(self, change: Change) -> None:
        if change.revoked:
            unstored = await self._give_up(change.revoked, self._parts.context.options.timeout)
            if unstored is not None:
                for key, offset in self._checkpoints.pending(change.revoked):
                    self._report(key, offset, unstored)
            # Skipped if the task is cancelled above: then close() stores what is left.
            for key in change.revoked:
                self._leaving.pop(key, None)
                self._forget(key)
        if change.assigned and not self._closing:
            readers = {key: self._make_reader(key) for key in change.assigned}
            self._readers.update(readers)
            await self._begin(readers)

    async def _give_up(
        self, keys: Collection[StreamPartition] | None, timeout: float
    ) -> LiftEnvelopeError | None:
        """Stop the readers of partitions, call ``on_revoked``, and store the processed offsets.

        Args:
            keys: The partitions; None for all, including those that an interrupted call has not stored.
            timeout: Seconds to store the offsets.

        Returns:
            The error if an offset could not be stored, otherwise None.

        Raises:
            Exception: Raised by ``on_revoked``. The offsets are stored nevertheless.
        """
        chosen = tuple(self._readers) if keys is None else keys
        readers = {key: self._readers.pop(key) for key in chosen if key in self._readers}
        self._leaving.update(readers)
        self._forgive(readers.values())
        await stop(readers.values())
        failure: Exception | None = None
        unstored: LiftEnvelopeError | None = None
        try:
            await self._tell(self._on_revoked, readers)
        except Exception as exc:  # noqa: BLE001 - the callback's own: raised once the offsets are stored
            failure = exc
        finally:
            for reader in readers.values():
                reader.is_live = False
        assert self._writer is not None
        try:
            await self._writer.flush(keys, timeout)
        except LiftEnvelopeError as exc:
            unstored = exc
        if failure is None:
            return unstored
        if unstored is not None:
            failure.add_note(f"group {self.group!r}: the processed offsets could not be stored: {unstored}")
        raise failure

    def _make_reader(self, key: StreamPartition) -> ConsumerReader:
        return ConsumerReader(
            self._parts,
            self._running(),
            key,
            cursor_id=self._options.cursor_id,
            auto_offset=self._options.auto_offset,
            resume=self._options.resume,
            on_ready=self._has_messages,
            on_start=self._has_started,
        )

    def _not_assigned(self, key: StreamPartition) -> FencedError:
        stream, partition = key
        return FencedError(f"{stream}[{partition}] is not assigned to consumer {self.consumer_id!r}")

    def _has_started(self, reader: ConsumerReader, last: int | None) -> None:
        self._forget(reader.key)
        if last is not None:
            self._checkpoints.stored(reader.key, last, asyncio.get_running_loop().time())

    # Checkpoints

    async def _allowed(
        self, chosen: list[tuple[StreamPartition, int]], deadline: Deadline
    ) -> list[tuple[StreamPartition, int]]:
        """Return the offsets that may be stored: partitions assigned in the current epoch, or just revoked.

        A revoked partition may have a new owner already. That is safe, because an offset is stored only if no
        larger one is: see :meth:`~liftenvelope.client._cursors.Cursors.advance`.
        """
        mine: frozenset[StreamPartition] = frozenset()
        if any(key not in self._leaving for key, _ in chosen):
            mine = await self._running().confirm(deadline)
        return [(key, offset) for key, offset in chosen if key in mine or key in self._leaving]

    async def _store(self, key: StreamPartition, offset: int, deadline: Deadline) -> int:
        reader = self._readers.get(key)
        name = (self._options.cursor_id, *key)
        if reader is None or not reader.rewound:
            return await self._parts.cursors.advance(name, offset, deadline)
        moves = reader.moves
        await self._parts.cursors.write(name, offset, deadline)
        reader.rewound = reader.moves != moves
        return offset

    def _report(self, key: StreamPartition, offset: int, error: LiftEnvelopeError) -> None:
        self._parts.context.options.notify(CheckpointFailed(self._options.cursor_id, *key, offset, error))

    def _processed(self, reader: ConsumerReader, offset: int) -> None:
        """Mark a message and all earlier ones of its partition as processed, unless the partition is gone."""
        writer = self._writer
        if writer is not None and reader.is_live and reader.has_handed_out(offset):
            writer.processed(reader.key, offset)

    def _forget(self, key: StreamPartition) -> None:
        self._checkpoints.forget(key)


def _key(stream: str, partition: int) -> StreamPartition:
    return check_stream(stream), check_partition(partition)
