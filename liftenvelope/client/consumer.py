"""Consumers: several programs that share the partitions of streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from liftenvelope.client.checkpointer import CheckpointWriter
from liftenvelope.client.cluster import Deadline
from liftenvelope.client.consumer_member import GroupMember
from liftenvelope.client.consumer_partitions import ConsumerPartitions
from liftenvelope.client.core import check_partition, check_stream
from liftenvelope.client.events import GroupLeaveFailed
from liftenvelope.client.options import check_count, check_seconds
from liftenvelope.errors import LiftEnvelopeError, UsageError, UsageTypeError

if TYPE_CHECKING:
    from types import TracebackType

    from liftenvelope.client.consumer_reader import PartitionReader
    from liftenvelope.envelope import Message

__all__ = ["Consumer"]


class Consumer(ConsumerPartitions):
    """A member of a consumer group. Made by :meth:`Client.consumer`; used with ``async with``.

    Iterating gives the messages of every partition that the group has given to this member: those of one
    partition in order. A message counts as processed when the next one is asked for, or when it is passed
    to :meth:`commit`; what is processed is stored now and then, so that whoever gets the partition next goes
    on there. Each message is delivered at least once: those since the last checkpoint come again after a
    crash, and a few when partitions move. For one task at a time.

    Example:
        >>> async with client.consumer("billing", ["orders"]) as consumer:  # doctest: +SKIP
        ...     async for message in consumer:
        ...         ...
    """

    # What it is

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
        """The group's generation, as far as this member knows. It changes when members come and go."""
        return self._running().state.epoch

    @property
    def assignment(self) -> frozenset[tuple[str, int]]:
        """The streams and partitions that this member reads now."""
        return frozenset(self._readers)

    def position(self, stream: str, partition: int) -> int | None:
        """Return the offset that is handed out next, or a later one; None where it is not known yet.

        Raises:
            FencedError: The partition is not this member's.
        """
        return self._reader(stream, partition).position

    async def lag(self, *, timeout: float | None = None) -> dict[tuple[str, int], int]:
        """Return how far each partition of this member is ahead of it.

        Args:
            timeout: Seconds for each call; default: the client's.

        Returns:
            By stream and partition, the newest offset less that of the last processed message.

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

    # Its life

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
            # The block's own error goes on, and must not be replaced: a cancellation, for one.
            exc.add_note(f"group {self.group!r}: the last checkpoint could not be stored: {failure}")

    async def open(self) -> Self:
        """Join the group, and begin to read what it assigns; ``async with`` does it.

        Raises:
            NoSuchStreamError: A stream does not exist.
            CallTimeoutError: The group could not be joined in the client's ``timeout``.
            TransportError: No broker could be reached.
        """
        if self._member is not None:
            raise UsageError("a consumer can be opened only once")
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
        """Stop reading, call ``on_revoked``, store what was processed, and leave the group.

        The message that was handed out last counts as processed only if it was committed. Closing twice is
        fine. It takes no longer than the client's ``timeout``, besides the time of ``on_revoked``.

        Raises:
            LiftEnvelopeError: What was processed could not be stored. It is closed all the same.
        """
        if self._closing:
            if self._closer is not asyncio.current_task():  # as it is where on_revoked closes it as well
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
            # The first task goes on telling the group that this member lives.
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
        # A cancellation can end any of the waits: by then each must have been told to end.
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
        """Iterate over lists of messages. A list counts as processed when the next one is asked for.

        Args:
            max_messages: How many a list has at most.
            max_wait: Seconds after the first message of a list that it waits for more.

        Yields:
            Lists of at least one message, of any of the partitions; those of one in order.

        Raises:
            UsageError: An argument makes no sense.
            LiftEnvelopeError: What iterating would raise.
        """
        check_count("max_messages", max_messages)
        check_seconds("max_wait", max_wait, zero=True)
        while True:
            self._settle()
            batch = await self._collect(max_messages, max_wait)
            if not batch:
                return
            yield batch

    async def _collect(self, limit: int, max_wait: float) -> list[Message]:
        """Return the messages that come next, none only after the end."""
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
        # Only now: what nobody got must not count as processed.
        self._in_hand += [(reader, messages[-1].offset) for reader, messages in taken]
        return [message for _, messages in taken for message in messages]

    async def _add(
        self, taken: list[tuple[PartitionReader, list[Message]]], limit: int, max_wait: float
    ) -> None:
        """Take more messages for a while."""
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
            raise UsageError("another task waits for the consumer's next message: one may at a time")
        self._is_waiting = True
        try:
            await self._wake.wait()
        finally:
            self._is_waiting = False

    def _settle(self) -> None:
        """Count as processed what was handed out."""
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

    # What the user does about partitions

    async def commit(self, message: Message | None = None, *, timeout: float | None = None) -> None:
        """Store now what was processed.

        Args:
            message: It and all before it in its partition are processed, and that partition is stored. None:
                everything that was handed out is processed, and all partitions are stored.
            timeout: Seconds for all of it; default: the client's.

        Raises:
            FencedError: The message's partition is another member's by now, who gets the message again.
            NotMemberError: The consumer was silent for too long, and is joining again.
            LiftEnvelopeError: It could not be stored, as :meth:`Client.set_cursor` says.
        """
        limit = None if timeout is None else check_seconds("timeout", timeout)
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
        """Hand out no messages of a partition for the time being. It stays this member's.

        Raises:
            FencedError: The partition is not this member's.
        """
        self._reader(stream, partition).paused = True

    def resume(self, stream: str, partition: int) -> None:
        """Hand out messages of a partition again.

        Raises:
            FencedError: The partition is not this member's.
        """
        self._reader(stream, partition).paused = False

    def seek(self, stream: str, partition: int, offset: int) -> None:
        """Go on with a partition at another offset, also at a lower one.

        The group's cursor follows with the next checkpoint after a message from there.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
            offset: Of the message that is handed out next; if there is none yet, of the next one after it.

        Raises:
            FencedError: The partition is not this member's.
            UsageError: The offset is negative.
        """
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise UsageTypeError(f"offset must be an int, not {offset!r}")
        if not 0 <= offset < 2**63:
            raise UsageError(f"offset={offset!r}: expected 0 or more, below 2**63")
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
    """Cancel tasks and wait for their end; but not for the task that this runs in, such as a callback's."""
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
