"""Outbox of an ack inbox: sends envelopes in order, a limited number of them without an ack."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from liftenvelope.errors import TransportError
from liftenvelope.nats._ack_future import AckFuture
from liftenvelope.nats.link import Link
from liftenvelope.nats.subjects import CommandHeads, framed

__all__ = ["EnvelopeOutbox"]


class EnvelopeOutbox:
    """Sends envelopes, and counts those without an ack: the places taken.

    Invariant: envelopes are sent in the order of the calls. While one waits for a place, or for room in the
    connection's buffer, all later ones wait behind it.

    Args:
        link: The connection.
        limit: Number of places.
        fail: Called with the future of a queued envelope that can't be sent, and the error.

    Attributes:
        outstanding: Number of places taken.
    """

    def __init__(self, link: Link, limit: int, fail: Callable[[AckFuture, TransportError], None]) -> None:
        self._link = link
        self._limit = limit
        self._fail = fail
        self.outstanding = 0
        self._heads = CommandHeads()
        self._queue: deque[tuple[AckFuture, str, bytes]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._freed = asyncio.Event()
        # Waiters wake when outstanding <= _wake_at, the largest bound any of them needs; -1: no waiters.
        self._wake_at = -1

    def head_of(self, subject: str) -> bytes:
        """Return the start of the command that publishes on a subject.

        Raises:
            UsageError: The subject cannot be published on.
        """
        return self._heads.of(subject)

    def send(self, future: AckFuture, head: bytes, payload: bytes) -> None:
        """Buffer an envelope for the connection, or queue it.

        Raises:
            TransportError: The connection is closed or draining.
        """
        is_full = self._queue or self.outstanding >= self._limit
        if is_full or not self._write(future, framed(head, payload), len(payload)):
            self._add(future, payload)

    def _write(self, future: AckFuture, frame: bytes, size: int) -> bool:
        """Buffer an envelope; return False if there is no room, or if the link is not direct."""
        if not self._link.offer(frame, size):
            if not self._link.direct or not self._link.fits(len(frame)):
                return False
            self._link.write(frame, 1, size)  # the connection is down, and buffers
        self._claim(future)
        return True

    def _add(self, future: AckFuture, payload: bytes) -> None:
        self._link.check_open()
        while self._queue and self._queue[0][0].done():  # timed out while the connection is down
            self._queue.popleft()
        self._queue.append((future, str(future.subject), payload))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send_queued())

    async def _send_queued(self) -> None:
        """Send the queued envelopes in order, as places become free."""
        while self._queue:
            future, subject, payload = self._queue[0]
            if future.done():
                self._queue.popleft()
            elif self.outstanding >= self._limit:
                await self.until_freed(self._limit - 1)
            else:
                await self._send_one(future, subject, payload)
        self.wake()

    async def _send_one(self, future: AckFuture, subject: str, payload: bytes) -> None:
        frame = framed(self._heads.of(subject), payload)
        try:
            await self._link.room(len(frame), float("inf"))
            if future.done():
                return
            if not self._write(future, frame, len(payload)):
                self._claim(future)
                await self._link.publish(subject, payload)
        except TransportError as error:
            self._fail(future, error)
        if self._queue and self._queue[0][0] is future:
            self._queue.popleft()

    def close(self) -> None:
        """Drop the envelopes that wait."""
        if self._sender is not None and self._sender is not asyncio.current_task():
            self._sender.cancel()
        self._queue.clear()

    # Places

    def _claim(self, future: AckFuture) -> None:
        future.sent = future._counted = True
        self.outstanding += 1

    @property
    def free(self) -> int:
        """Number of envelopes that can be sent now without waiting."""
        return 0 if self._queue else self._limit - self.outstanding

    def release(self, places: int) -> None:
        """Free places."""
        self.outstanding -= places
        if self.outstanding <= self._wake_at:
            self.wake()

    async def until_freed(self, outstanding: int) -> None:
        """Wait until a publish ends and at most ``outstanding`` remain, or until :meth:`wake`."""
        self._wake_at = max(self._wake_at, outstanding)
        self._freed.clear()
        await self._freed.wait()

    def wake(self) -> None:
        """Wake all that wait."""
        self._wake_at = -1
        self._freed.set()
