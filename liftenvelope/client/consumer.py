"""Consumer: a member of a consumer group, which shares the partitions of streams among its members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from liftenvelope._checks import MAX_INT64, as_count, as_seconds
from liftenvelope._deadlines import Deadline
from liftenvelope.client.checkpointer import CheckpointWriter
from liftenvelope.client.consumer_member import GroupMember
from liftenvelope.client.consumer_partitions import ConsumerPartitions
from liftenvelope.client.core import check_partition, check_stream
from liftenvelope.client.events import GroupLeaveFailed
from liftenvelope.errors import LiftEnvelopeError, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from liftenvelope.client.consumer_reader import PartitionReader
    from liftenvelope.envelope import Message

__all__ = ["Consumer"]


class Consumer(ConsumerPartitions):
    """A member of a consumer group. Made by :meth:`Client.consumer`; used with ``async with``.

    Iteration returns the messages of all partitions assigned to this member, in order within each partition.
    A message counts as processed when the next one is requested, or when it is passed to :meth:`commit`.
    Processed offsets are committed periodically, and the partition's next owner continues there.

    Delivery is at least once: after a crash, messages since the last checkpoint are redelivered. A few are
    redelivered when partitions move. For one task at a time.

    Example:
        >>> async with client.consumer("billing", ["orders"]) as consumer:  # doctest: +SKIP
        ...     async for message in consumer:
        ...         ...
    """

    # State

    @property
    def group(self) -> str:
        """Name of the group."""
        return self._options.group

    @property
    def consumer_id(self) -> str:
        """Id of this member."""
        return self._consumer_id

    @property
    def epoch(self) -> int:
        """Group epoch last seen by this member. The epoch changes when members join or leave."""
        return self._running().state.epoch

    @property
    def assignment(self) -> frozenset[tuple[str, int]]:
        """Streams and partitions that this member reads now."""
        return frozenset(self._readers)

    def position(self, stream: str, partition: int) -> int | None:
        """Return a lower bound of the next message's offset; None if the start is not known yet.

        Raises:
            FencedError: The partition is not assigned to this member.
        """
        return self._reader(stream, partition).position

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
        lags: dict[tuple[str, int], int] = {}
        for key, reader in list(self._readers.items()):
            info = await self._client.fetch_partition_metadata(*key, timeout=timeout)
            last = self._checkpoints.last(key)
            if last is None:
                last = await self._before(reader, timeout)
            lags[key] = max(info.newest_offset - last, 0)
        return lags

    # Lifecycle

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is None:
            await self.close()
            return
        try:
            await self.close()
        except LiftEnvelopeError as failure:
            # The block's own error, such as a cancellation, must not be replaced.
            exc.add_note(f"group {self.group!r}: the last checkpoint could not be stored: {failure}")

    async def open(self) -> Self:
        """Join the group and start to read the assigned partitions; ``async with`` does it.

        Raises:
            NoSuchStreamError: A stream does not exist.
            CallTimeoutError: The group could not be joined within the client's ``timeout``.
            TransportError: No broker could be reached.
        """
        if self._member is not None:
            raise UsageError("the consumer was opened before: make a new one")
        deadline = self._client._deadline(None)
        self._member = GroupMember(self._client, self.group, self._consumer_id, self._options.streams)
        self._writer = CheckpointWriter(
            self._checkpoints, self._store, self._report, deadline.timeout, self._allowed
        )
        self._client._open.add(self)
        try:
            await self._member.settle(deadline)
            self._spawn(self._member.keep())
            self._writer.start(self._task_done)
            while not self._member.changes.empty():
                await self._apply(self._member.changes.get_nowait())
            self._spawn(self._act())
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Stop reading, call ``on_revoked``, store the processed offsets, and leave the group.

        The last message returned counts as processed only if it was committed. ``close`` takes at most the
        client's ``timeout``, plus the time of ``on_revoked``. Closing twice has no effect.

        Raises:
            LiftEnvelopeError: The processed offsets could not be stored. The consumer is closed anyway.
        """
        if self._closing:
            if self._closer is not asyncio.current_task():  # on_revoked may call close()
                await self._gone.wait()
            return
        self._closing, self._closer = True, asyncio.current_task()
        self._wake.set()
        try:
            await self._finish()
        finally:
            self._client._open.discard(self)
            try:
                await self._end_tasks()
            finally:
                self._gone.set()

    async def _finish(self) -> None:
        member, writer = self._member, self._writer
        if member is None or writer is None:
            return
        deadline = Deadline(self._client._options.timeout)
        try:
            # The first task keeps sending heartbeats until the member has left.
            await _cancel(self._tasks[1:])
            await self._give_up(tuple(self._readers), deadline.timeout / 2)
            if self._checkpoints.pending():
                await writer.flush(timeout=deadline.timeout / 2)
        finally:
            if member.has_joined:
                try:
                    await member.leave(deadline)
                except LiftEnvelopeError as exc:
                    event = GroupLeaveFailed(self.group, self._consumer_id, exc)
                    self._client._options.notify(event)

    async def _end_tasks(self) -> None:
        readers = [*self._readers.values(), *self._leaving.values()]
        self._readers.clear()
        # A cancellation can end any wait below, so every reader is told to stop first.
        for reader in readers:
            reader.stop()
        try:
            for reader in readers:
                await reader.close()
        finally:
            try:
                await _cancel(self._tasks)
            finally:
                if self._writer is not None:
                    await self._writer.stop()

    # Messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        self._settle()
        while True:
            self._check()
            while self._ready:
                reader = self._ready[0]
                message = reader.take()
                if message is not None:
                    self._in_hand.append((reader, message.offset))
                    return message
                self._ready.popleft()
            if self._closing:
                raise StopAsyncIteration
            await self._wait()

    async def batches(self, max_messages: int = 1000, max_wait: float = 0.1) -> AsyncIterator[list[Message]]:
        """Iterate over lists of messages. A list counts as processed when the next one is requested.

        Args:
            max_messages: Maximum number of messages in a list.
            max_wait: Seconds to wait for more messages after the first one of a list.

        Yields:
            Lists of at least one message from any assigned partition, in order within each partition.

        Raises:
            UsageError: An argument is invalid.
            LiftEnvelopeError: As iteration does.
        """
        as_count("max_messages", max_messages)
        as_seconds("max_wait", max_wait, zero=True)
        while True:
            self._settle()
            batch = await self._collect(max_messages, max_wait)
            if not batch:
                return
            yield batch

    async def _collect(self, limit: int, max_wait: float) -> list[Message]:
        """Return the next messages; empty only once the consumer is closing."""
        taken = self._take_ready(limit)
        while not taken:
            self._check()
            if self._closing:
                return []
            await self._wait()
            taken = self._take_ready(limit)
        try:
            await self._add(taken, limit, max_wait)
        except BaseException:
            for reader, messages in reversed(taken):
                reader.give_back(messages)
            raise
        # Only now: after a cancellation above, the messages must not count as processed.
        self._in_hand += [(reader, messages[-1].offset) for reader, messages in taken]
        return [message for _, messages in taken for message in messages]

    async def _add(
        self, taken: list[tuple[PartitionReader, list[Message]]], limit: int, max_wait: float
    ) -> None:
        """Add messages to ``taken`` until it has ``limit`` messages or ``max_wait`` seconds have passed."""
        count = sum(len(messages) for _, messages in taken)
        try:
            async with asyncio.timeout(max_wait):
                while count < limit and not self._closing and self._failure is None:
                    await self._wait()
                    more = self._take_ready(limit - count)
                    taken += more
                    count += sum(len(messages) for _, messages in more)
        except TimeoutError:
            return

    def _take_ready(self, limit: int) -> list[tuple[PartitionReader, list[Message]]]:
        found: list[tuple[PartitionReader, list[Message]]] = []
        while self._ready and limit > 0:
            reader = self._ready[0]
            messages = reader.take_many(limit)
            if messages:
                found.append((reader, messages))
                limit -= len(messages)
            else:
                self._ready.popleft()
        return found

    async def _wait(self) -> None:
        self._wake.clear()
        if self._ready or self._closing or self._failure is not None:
            return
        if self._is_waiting:
            raise UsageError("another task waits for the consumer's next message: read in one task at a time")
        self._is_waiting = True
        try:
            await self._wake.wait()
        finally:
            self._is_waiting = False

    def _settle(self) -> None:
        """Mark the messages returned so far as processed, except those of revoked partitions."""
        writer = self._writer
        if writer is None:
            raise UsageError("the consumer is not open: use it in a 'with' block")
        for reader, offset in self._in_hand:
            if reader.is_live and reader.has_handed_out(offset):
                writer.processed(reader.key, offset)
        self._in_hand.clear()

    def _check(self) -> None:
        if self._failure is not None and not self._closing:
            raise self._failure

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
            NotMemberError: The consumer expired after missed heartbeats, and is rejoining the group.
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
            raise self._not_ours(*key)
        writer.processed(key, message.offset)
        await writer.flush([key], limit)
        if any(offset <= message.offset for _, offset in self._checkpoints.pending([key])):
            raise self._not_ours(*key)

    def pause(self, stream: str, partition: int) -> None:
        """Stop returning messages of a partition until :meth:`resume`. The partition stays assigned.

        Raises:
            FencedError: The partition is not assigned to this member.
        """
        self._reader(stream, partition).paused = True

    def resume(self, stream: str, partition: int) -> None:
        """Return messages of a paused partition again.

        Raises:
            FencedError: The partition is not assigned to this member.
        """
        self._reader(stream, partition).paused = False

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
        reader = self._reader(stream, partition)
        self._checkpoints.forget(reader.key)
        self._in_hand = [held for held in self._in_hand if held[0] is not reader]
        reader.seek(offset)

    def _reader(self, stream: str, partition: int) -> PartitionReader:
        self._running()
        reader = self._readers.get((check_stream(stream), check_partition(partition)))
        if reader is None:
            raise self._not_ours(stream, partition)
        return reader


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end, except for the current task: callbacks may call close()."""
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
