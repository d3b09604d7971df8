"""How a group's consumer hands out messages: one by one, in lists, or as Arrow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, Self

from liftenvelope.errors import UsageError
from liftenvelope.group.clock import time_since_boot
from liftenvelope.group.consumer_options import check_batches
from liftenvelope.group.consumer_partitions import ConsumerPartitions
from liftenvelope.group.reader import GroupMessage, PartitionReader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ConsumerReading"]

#: How often a member with messages that may be another's looks whether they are its own, in seconds.
_LOOK: Final = 0.05
#: For how long messages are handed out in a row before other tasks get a turn, in seconds.
_TURN: Final = 0.05


class ConsumerReading(ConsumerPartitions):
    """The messages of a consumer: the part of it that the user iterates over."""

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
        """The next message, where there is one and nothing else to be seen to, as is so for most."""
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
                    self._ready.append(reader)  # the others come first
                self._in_hand.append((reader, message.offset))
                return message
        return None

    async def batches(
        self, max_messages: int = 1000, max_wait: float = 0.1
    ) -> AsyncIterator[list[GroupMessage]]:
        """Iterate over lists of messages; ``commit(messages)`` commits one of them.

        A list counts as processed when the next one is asked for.

        Args:
            max_messages: How many a list has at most. It never has more of one partition than the
                consumer's ``prefetch``.
            max_wait: Seconds after the first message of a list that it waits for more.

        Yields:
            Lists of at least one message, of any of the partitions; those of one in order.

        Raises:
            UsageError: An argument makes no sense, or another task waits for messages.
            LiftEnvelopeError: What iterating would raise.
        """
        check_batches("max_messages", max_messages, max_wait)
        while messages := await self._next(max_messages, max_wait):
            yield messages

    async def arrow_batches(
        self, max_rows: int = 65_536, *, max_wait: float = 1.0
    ) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over Arrow record batches of messages. Needs the ``[arrow]`` extra.

        A batch counts as processed when the next one is asked for, or with ``commit()``.

        Args:
            max_rows: How many rows a batch has at most. It never has more of one partition than the
                consumer's ``prefetch``: for large batches, make that larger as well.
            max_wait: Seconds after the first message of a batch that it waits for more.

        Yields:
            Batches of at least one row, with the columns of :data:`liftenvelope.group.rows.SCHEMA`.

        Raises:
            UsageError: An argument makes no sense, or another task waits for messages.
            MissingExtraError: pyarrow is not installed.
            LiftEnvelopeError: What iterating would raise.
        """
        check_batches("max_rows", max_rows, max_wait)
        from liftenvelope.group.rows import message_rows

        async for messages in self.batches(max_rows, max_wait):
            yield message_rows(messages)

    async def _next(self, limit: int, max_wait: float) -> list[GroupMessage]:
        """What comes next; nothing only at the end.

        Nothing is taken from a partition before it is handed out, in one step with the look at whether it is
        still this member's: so whoever is cancelled here has lost nothing.
        """
        member = self._running()
        if self._is_awaited:
            # Each of two would take for processed what the other one is still at.
            raise UsageError("another task waits for the next message: iterate in one task at a time")
        self._settle_in_hand()
        if time_since_boot() - self._turned_at > _TURN:
            # Who works on messages without ever waiting must not keep the heartbeats from being sent.
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
        """How long to wait for messages, or for more of them, or to hear that they are still ours."""
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
        """Forget readers that have nothing to give; return whether any is left."""
        generation = self._running().session.generation
        # One may have been lost, and another generation been got, with nobody having been told yet.
        while self._ready and not _gives(self._ready[0], generation):
            self._ready.popleft()
        return bool(self._ready)

    def _has_enough(self, limit: int) -> bool:
        """Whether waiting for more would be in vain: there are so many, or a partition has no room."""
        return limit == 1 or (
            any(reader.is_full for reader in self._ready)
            or sum(reader.waiting for reader in self._ready) >= limit
        )

    def _take(self, limit: int) -> list[GroupMessage]:
        generation = self._running().session.generation
        taken: list[GroupMessage] = []
        # Every partition once at most: the next time begins with the others.
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
