"""Hands out a group consumer's messages: one at a time, in lists, or as Arrow record batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, Self

from liftenvelope._checks import as_count, as_seconds
from liftenvelope.errors import UsageError
from liftenvelope.group.clock import time_since_boot
from liftenvelope.group.consumer_partitions import ConsumerPartitions
from liftenvelope.group.reader import GroupMessage, PartitionReader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ConsumerReading"]

#: Seconds between checks of a member that has messages but may have lost its partitions.
_LOOK: Final = 0.05
#: Seconds for which messages are handed out in a row before other tasks get a turn.
_TURN: Final = 0.05


class ConsumerReading(ConsumerPartitions):
    """Part of a consumer that the user iterates over."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GroupMessage:
        if (message := self._at_once()) is not None:
            return message
        messages = await self._next(1, 0.0)
        if not messages:
            raise StopAsyncIteration
        return messages[0]

    def _at_once(self) -> GroupMessage | None:
        """Return the next message if it needs no waiting and no other work, as is usual; otherwise None."""
        member = self._member
        if member is None or self._is_awaited or self._closing or self._failure is not None:
            return None
        now = time_since_boot()
        if now - self._turned_at > _TURN or not member.session.owns(now):
            return None
        self._settle_in_hand()
        generation = member.session.generation
        while self._ready:
            reader = self._ready.popleft()
            if _gives(reader, generation):
                message = reader.take_one()
                if reader.can_give:
                    self._ready.append(reader)  # at the end, so that other partitions come first
                self._in_hand.append((reader, message.offset))
                return message
        return None

    async def batches(
        self, max_messages: int = 1000, max_wait: float = 0.1
    ) -> AsyncIterator[list[GroupMessage]]:
        """Iterate over lists of messages; ``commit(messages)`` commits one of them.

        A list counts as processed when the next one is asked for.

        Args:
            max_messages: Most messages of a list. A list has at most ``prefetch`` messages of one partition.
            max_wait: Seconds to wait for more after the first message of a list.

        Yields:
            Lists of at least one message of any partitions, in order within a partition.

        Raises:
            UsageError: An argument is malformed, or another task waits for messages.
            LiftEnvelopeError: Any error that iterating would raise.
        """
        as_count("max_messages", max_messages)
        as_seconds("max_wait", max_wait, zero=True)
        while messages := await self._next(max_messages, max_wait):
            yield messages

    async def arrow_batches(
        self, max_rows: int = 65_536, *, max_wait: float = 1.0
    ) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over Arrow record batches of messages. Needs the ``[arrow]`` extra.

        A batch counts as processed when the next one is asked for, or with ``commit()``.

        Args:
            max_rows: Most rows of a batch. A batch has at most ``prefetch`` rows of one partition; for large
                batches, raise ``prefetch`` too.
            max_wait: Seconds to wait for more after the first message of a batch.

        Yields:
            Batches of at least one row, with the columns of :data:`liftenvelope.group.rows.SCHEMA`.

        Raises:
            UsageError: An argument is malformed, or another task waits for messages.
            MissingExtraError: pyarrow is not installed.
            LiftEnvelopeError: Any error that iterating would raise.
        """
        as_count("max_rows", max_rows)
        as_seconds("max_wait", max_wait, zero=True)
        from liftenvelope.group.rows import message_rows

        async for messages in self.batches(max_rows, max_wait):
            yield message_rows(messages)

    async def _next(self, limit: int, max_wait: float) -> list[GroupMessage]:
        """Return the next messages; an empty list only after the end.

        Messages are taken from a reader in the same step, without an await, as the check that the member
        still owns the partition. So no message is handed out after the ownership ended, and a cancelled call
        loses none.
        """
        member = self._running()
        if self._is_awaited:
            # Each of two tasks would mark as processed the messages that the other one still works on.
            raise UsageError("another task waits for the next message; iterate in one task at a time")
        self._settle_in_hand()
        if time_since_boot() - self._turned_at > _TURN:
            # A caller that never awaits must not starve heartbeats.
            await self._until_woken(0.0)
        until: float | None = None
        while True:
            if self._failure is not None and not self._closing:
                raise self._failure
            if self._closing:
                return []
            if member.owns and self._drop_what_is_over():
                now = time_since_boot()
                until = now + max_wait if until is None else until
                if now >= until or self._has_enough(limit):
                    return self._take(limit)
            await self._until_woken(self._patience(until))

    def _patience(self, until: float | None) -> float | None:
        """Return the seconds to wait for messages, for more of them, or to own the partitions again."""
        if not self._ready:
            return None
        if until is None or not self._running().owns:
            return _LOOK
        return max(until - time_since_boot(), 0.0)

    async def _until_woken(self, timeout: float | None) -> None:
        self._wake.clear()
        if self._failure is not None or self._closing:
            return
        self._is_awaited = True
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            pass
        finally:
            self._is_awaited = False
        self._turned_at = time_since_boot()

    def _drop_what_is_over(self) -> bool:
        """Drop readers that have nothing to give; return True if any is left."""
        generation = self._running().session.generation
        # Generations may have changed before the task that acts on assignments has run.
        while self._ready and not _gives(self._ready[0], generation):
            self._ready.popleft()
        return bool(self._ready)

    def _has_enough(self, limit: int) -> bool:
        """Return True if waiting adds nothing: the list is full, or a partition's buffer is."""
        return limit == 1 or (
            any(reader.is_full for reader in self._ready)
            or sum(reader.waiting for reader in self._ready) >= limit
        )

    def _take(self, limit: int) -> list[GroupMessage]:
        generation = self._running().session.generation
        taken: list[GroupMessage] = []
        # Each partition at most once; the next call starts with the others.
        for _ in range(len(self._ready)):
            reader = self._ready.popleft()
            if not _gives(reader, generation):
                continue
            messages = reader.take(limit - len(taken))
            self._in_hand.append((reader, messages[-1].offset))
            taken += messages
            if reader.can_give:
                self._ready.append(reader)
            if len(taken) >= limit:
                break
        return taken


def _gives(reader: PartitionReader, generation: int) -> bool:
    return reader.generation == generation and reader.can_give
