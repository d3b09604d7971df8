"""Feed of an ordered consumer that returns the messages in blocks, without an object for each."""

from __future__ import annotations

from functools import partial

from liftenvelope.jetstream._ordered.feed import OrderedFeed
from liftenvelope.jetstream._pulling.feed import PullFeed
from liftenvelope.jetstream.message import Block, Message

__all__ = ["OrderedBlocks"]


class OrderedBlocks(OrderedFeed):
    """Ordered feed that returns the messages in blocks or lists. ``buffer`` has the counts alone."""

    _in_blocks = True

    async def next_blocks(self, limit: int) -> list[Block]:
        """Wait for the next message; return it and the messages buffered behind it, in order.

        A cancelled call loses no message, because nothing is awaited after the first one.

        Args:
            limit: Maximum number of messages, at least 1.

        Raises: As for :meth:`next`.
        """
        return await self._take_next(partial(self._take_blocks, limit))

    async def next_many(self, limit: int) -> tuple[list[int], list[Message]]:
        """Return messages as :meth:`next_blocks`: their stream sequences, and the messages, in two lists."""
        blocks = await self.next_blocks(limit)
        sequences = [sequence for block in blocks for sequence in block.sequences]
        return sequences, [message for block in blocks for message in block.messages()]

    async def next(self) -> Message:
        """Wait for the next message in order and return it."""
        _, [message] = await self.next_many(1)
        return message

    def _take_blocks(self, limit: int, feed: PullFeed) -> tuple[list[Block] | None, str]:
        """Take buffered messages up to the first one that is out of order or malformed.

        That one ends the consumer or the feed. If messages come before it, the next call finds it so.
        """
        order = self.buffer
        expected, found = order.expected, list[Block]()
        for block in feed.blocks.take(limit):  # the owner, called if the queue is low, may end the consumer
            count = block.in_order(expected)
            if count:
                found.append(block if count == len(block) else block.part(0, count))
                expected += count
            if count < len(block):
                refused = block[count]
                break
        else:
            refused = None
        if self._feed is feed:
            order.expected = expected
        if found:
            order.sequence = found[-1].last_sequence
        if refused is None:
            return found, ""
        if not found:
            return None, self._gap_or_end(refused)
        self._refuse(refused)
        return found, ""
