"""Queue of messages in blocks, with the counts that pulls are controlled by."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from liftenvelope._native import frames
from liftenvelope.jetstream.message import Block, Message

__all__ = ["BlockQueue"]


class BlockQueue:
    """Queue of blocks: as :class:`frames.MessageQueue`, of which it has the counts.

    Args:
        threshold: Messages, owed and buffered together, below which ``on_low`` is called.
        on_low: Called after messages were taken, if ``owed + buffered`` is below the threshold.

    Attributes:
        owed: Messages requested from the server and not yet received.
        buffered: Messages in the queue.
        size: Bytes in the queue.
        arrived: Bytes that were ever added.
    """

    def __init__(self, threshold: int, on_low: Callable[[], None]) -> None:
        self.owed = self.buffered = self.size = self.arrived = 0
        self._threshold = threshold
        self._on_low = on_low
        self._blocks: deque[Block] = deque()

    def __len__(self) -> int:
        return self.buffered

    def extend(self, messages: list[Message]) -> None:
        """Append messages that were not received in a block."""
        self.add(frames.MessageBlock(messages))

    def add(self, block: Block) -> None:
        """Append a block."""
        count, size = len(block), block.size
        self.owed -= count
        self.buffered += count
        self.size += size
        self.arrived += size
        self._blocks.append(block)

    def clear(self) -> None:
        """Drop all messages."""
        self._blocks.clear()
        self.buffered = self.size = 0

    def take(self, limit: int) -> list[Block]:
        """Remove and return the first messages, at most ``limit``. ``on_low`` is called at most once."""
        taken: list[Block] = []
        while limit > 0 and self._blocks:
            block = self._blocks.popleft()
            if len(block) > limit:
                self._blocks.appendleft(block.part(limit, len(block)))
                block = block.part(0, limit)
            taken.append(block)
            limit -= len(block)
            self.buffered -= len(block)
            self.size -= block.size
        if taken and self.owed + self.buffered < self._threshold:
            self._on_low()
        return taken
