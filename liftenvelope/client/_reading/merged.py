"""Merged subscription: several or all partitions of a stream as one reader."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Self

from liftenvelope.client._reading.message_reader import MessageReader, readable
from liftenvelope.errors import TransportError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from liftenvelope.client._reading.subscription import Subscription
    from liftenvelope.client.core import ClientContext
    from liftenvelope.envelope import Message

__all__ = ["MergedSubscription"]

#: Partitions that are opened at the same time. They share requests for metadata.
_AT_ONCE: Final = 16


class MergedSubscription(MessageReader):
    """Messages of several partitions. Made by :meth:`Client.subscribe` with ``partition="all"``.

    Works as a :class:`Subscription`, except for the order: messages of one partition come in the order of
    their offsets, those of different partitions in any order. A slow partition does not block the others.
    Iteration ends when all partitions have ended; the first error of a partition ends it too.
    """

    def __init__(
        self, context: ClientContext, stream: str, find: Callable[[], Awaitable[Sequence[Subscription]]]
    ) -> None:
        super().__init__()
        self._context = context
        self._stream = stream
        self._find = find
        self._parts: Sequence[Subscription] = ()
        self._pumps: set[asyncio.Task[None]] = set()
        # At most one list of payloads per partition: backpressure for the subscriptions.
        self._ready: deque[tuple[list[bytes], asyncio.Event]] = deque()
        # Offsets of the first messages that close() dropped.
        self._dropped: dict[tuple[str, int], int] = {}
        self._error: BaseException | None = None
        self._wake = asyncio.Event()
        self._opened = False

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._stream

    @property
    def positions(self) -> dict[tuple[str, int], int | None]:
        """Offset of the next message, or a later one, by stream and partition; None while it is unknown.

        Subscriptions that start at these offsets continue where this one is, also after the end of the
        ``with`` block.
        """
        return {(part.stream, part.partition): part.position for part in self._parts} | self._left()

    @property
    def buffered(self) -> int:
        """Number of messages received and not yet handed out."""
        ready = sum(len(payloads) for payloads, _ in tuple(self._ready))
        return super().buffered + ready + sum(part.buffered for part in self._parts)

    def _left(self) -> dict[tuple[str, int], int]:
        """Return the offsets of the first messages that were received and not handed out, or were dropped."""
        kept: dict[tuple[str, int], int] = {}
        for message in self._kept():
            kept.setdefault((self._stream, message.partition), message.offset)
        return self._dropped | kept

    def _kept(self) -> Iterator[Message]:
        yield from super()._kept()
        for payloads, _ in self._ready:
            yield from readable(payloads)

    async def open(self) -> Self:
        """Subscribe to every partition; ``async with`` does it.

        Raises:
            LiftEnvelopeError: Any error of :meth:`Subscription.open`.
        """
        if self._opened:
            raise UsageError(f"stream {self._stream!r}: the subscription was opened before, make a new one")
        self._opened = True
        self._context.open_resources.add(self)
        try:
            self._parts = await self._find()
            await _open(self._parts)
            if self.closed:
                raise TransportError(
                    f"stream {self._stream!r}: the subscription was closed while it was opened"
                )
        except BaseException:
            await self.close()
            raise
        self._pumps = {asyncio.create_task(self._pump(part)) for part in self._parts}
        for pump in self._pumps:
            pump.add_done_callback(self._pumped)
        return self

    async def close(self) -> None:
        """End the subscriptions and drop messages that were not handed out. Closing twice is fine."""
        self._context.open_resources.discard(self)
        pumps, self._pumps = self._pumps, set()
        for pump in pumps:
            pump.cancel()
        try:
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:  # also if close() is cancelled
            for part in self._parts:
                await part.close()
            self._dropped = self._left()
            self._ready.clear()
            await super().close()
            self._wake.set()

    async def _pump(self, part: Subscription) -> None:
        while (payloads := await part._take()) is not None:
            taken = asyncio.Event()
            self._ready.append((payloads, taken))
            self._wake.set()
            await taken.wait()
            part._pause = self._pause

    def _pumped(self, pump: asyncio.Task[None]) -> None:
        """Note that a partition has ended, and keep its error if it is the first one."""
        self._pumps.discard(pump)
        if not pump.cancelled():
            error = pump.exception()
            self._error = self._error or error
        self._wake.set()

    async def _next_payloads(self) -> list[bytes] | None:
        if not self._opened:
            raise UsageError(f"stream {self._stream!r}: open the subscription first, in a 'with' block")
        self._context.cluster.check_loop()
        while not self._ready:
            if self._error is not None:
                raise self._error
            if not self._pumps:
                return None
            self._wake.clear()
            await self._wake.wait()
        payloads, taken = self._ready.popleft()
        taken.set()
        return payloads


async def _open(parts: Sequence[Subscription]) -> None:
    """Open subscriptions, several at a time. The first error ends the attempts of the others."""
    left = iter(parts)

    async def some() -> None:
        for part in left:
            await part.open()

    tasks = [asyncio.create_task(some()) for _ in parts[:_AT_ONCE]]
    try:
        for first in asyncio.as_completed(tasks):
            await first
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
