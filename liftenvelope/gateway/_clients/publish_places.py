"""Places for messages that wait for JetStream's ack, shared fairly among the connections of clients.

A message may wait for a minute, and any client can publish messages that get no ack, for example on a subject
that nothing records. So no connection may take all places.

A connection takes a place if it has fewer places than are free, not counting a reserve. One connection alone
gets about half of the places, and one that comes next half of the rest. The reserve is for connections that
have no place: each of them gets one as long as any is free. So a new connection can publish, however many
places the earlier ones have taken, as long as the reserve has a place for each connection.

The invariant: after each step, no waiting connection may take a place. A release therefore concerns only the
connection that had the place, which gets the first offer, and those that have one place less than the new
bound. Among these, the one that has waited for longest since its last offer comes first. Messages of a
connection get their places in the order of their waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

__all__ = ["PublishPlaces"]

#: Largest part of the places that is kept for connections that have none: one in so many.
_RESERVE: Final = 10
_F = TypeVar("_F", bound=asyncio.Future[Any])


@dataclass(slots=True)
class _Share:
    """Places of one connection.

    Attributes:
        held: Places that it has.
        waiting: Futures of the messages that wait, completed when they have a place.
    """

    held: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class PublishPlaces:
    """Bounds the messages without an ack, of each connection and in all.

    Args:
        most: Number of places.
        connections: Most connections at once. The reserve is as large, and at most a tenth of the places.

    Attributes:
        free: Number of free places.
    """

    def __init__(self, most: int, connections: int) -> None:
        self.free = most
        self._reserve = min(connections, most // _RESERVE)
        # An entry lives as long as the connection has places or waits for one.
        self._shares: dict[Hashable, _Share] = {}
        # Connections with waiting messages, by the number of their places, in the order of their offers.
        self._queues: dict[int, dict[Hashable, None]] = {}

    async def send(self, connection: Hashable, publish: Callable[[], Awaitable[_F]]) -> _F:
        """Wait for a place, then publish a message that keeps the place until it has its ack.

        Args:
            connection: Connection of the client.
            publish: Sends the message; returns the future of its ack.
        """
        await self._take(connection)
        try:
            future = await publish()
        except BaseException:
            self._give_back(connection)
            raise
        future.add_done_callback(lambda _: self._give_back(connection))
        return future

    @asynccontextmanager
    async def taken(self, connection: Hashable) -> AsyncIterator[None]:
        """Wait for a place and keep it during the block."""
        await self._take(connection)
        try:
            yield
        finally:
            self._give_back(connection)

    async def _take(self, connection: Hashable) -> None:
        share = self._shares.setdefault(connection, _Share())
        if not share.waiting and share.held < self._bound:
            share.held += 1
            self.free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting.append(place)
        self._queues.setdefault(share.held, {}).setdefault(connection)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # given before the cancellation arrived
                self._give_back(connection)
            elif connection in self._shares:
                self._offer(connection)
            raise

    @property
    def _bound(self) -> int:
        """A connection with fewer places than this may take one more."""
        return max(self.free - self._reserve, min(self.free, 1))

    def _give_back(self, connection: Hashable) -> None:
        share = self._shares[connection]
        self._unqueue(connection, share)
        share.held -= 1
        self.free += 1
        if not self._offer(connection):
            while (queue := self._queues.get(self._bound - 1)) and not self._offer(next(iter(queue))):
                pass

    def _offer(self, connection: Hashable) -> bool:
        """Give a connection a place if it may have one; return whether it has taken one.

        It then waits behind the others that have as many.
        """
        share, free = self._shares[connection], self.free
        self._unqueue(connection, share)
        while share.waiting and (share.waiting[0].done() or share.held < self._bound):
            place = share.waiting.popleft()
            if not place.done():
                place.set_result(None)
                share.held += 1
                self.free -= 1
        if share.waiting:
            self._queues.setdefault(share.held, {})[connection] = None
        elif not share.held:
            del self._shares[connection]
        return self.free < free

    def _unqueue(self, connection: Hashable, share: _Share) -> None:
        queue = self._queues.get(share.held, {})
        queue.pop(connection, None)
        if not queue:
            self._queues.pop(share.held, None)
