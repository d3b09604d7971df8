"""Places for messages that wait for JetStream's ack, shared fairly among the connections of clients.

A message may wait for a minute, and any client can publish messages that get no ack, for example on a subject
that nothing records. So no connection may take all places.

The invariant: a connection takes a place only if it has fewer places than are free. One connection alone gets
half of the places, two get a third each, and so on: a new connection finds about as much room as the
greediest ones have. Messages of a connection get their places in the order of their waiting. Each place that
becomes free is offered first to the connection that had it, then to the one that has waited for longest since
its last offer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

__all__ = ["PublishPlaces"]

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

    Attributes:
        free: Number of free places.
    """

    def __init__(self, most: int) -> None:
        self.free = most
        # An entry lives as long as the connection has places or waits for one.
        self._shares: dict[Hashable, _Share] = {}
        # Connections with waiting messages; the one that comes first gets the next offer.
        self._queue: dict[Hashable, None] = {}

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
        if not share.waiting and share.held < self.free:
            share.held += 1
            self.free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting.append(place)
        self._queue.setdefault(connection)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # given before the cancellation arrived
                self._give_back(connection)
            raise

    def _give_back(self, connection: Hashable) -> None:
        self._shares[connection].held -= 1
        self.free += 1
        self._offer(connection)
        if self._queue:
            self._offer(next(iter(self._queue)))

    def _offer(self, connection: Hashable) -> None:
        """Give a connection the places that it may have; it then waits behind the others."""
        share = self._shares[connection]
        while share.waiting and (share.waiting[0].done() or share.held < self.free):
            place = share.waiting.popleft()
            if not place.done():
                place.set_result(None)
                share.held += 1
                self.free -= 1
        self._queue.pop(connection, None)
        if share.waiting:
            self._queue[connection] = None
        elif not share.held:
            del self._shares[connection]
