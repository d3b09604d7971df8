"""Quota on the bytes of requests that a client may have pending at a gateway.

A request is pending from the time it is read until it is answered. A published message is pending until
JetStream has acked it, even if the client asked for no ack.

Room is needed in two budgets: that of the client, then that of all clients. Invariant: ``_Budget.held`` is
the sum of the sizes of all :class:`Held` of that budget, and of the requests that wait for the second one.
Calls of PublishAsync that wait for room get it in the order of their waiting. While one waits for room in a
budget, no other call of PublishAsync gets room there, or small requests could starve a large one. Requests
that can't wait would be refused meanwhile, of every client. In the budget of all clients they may therefore
overtake the first one that waits, with as many bytes in all as the budget has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Held", "PendingBytes", "Shortage"]


class Shortage(NamedTuple):
    """Budget that had no room for a request.

    Attributes:
        is_of_all: True for the budget of all clients.
        used: Bytes pending in it.
        is_waiting: True if the room is kept for a call of PublishAsync that waits.
    """

    is_of_all: bool
    used: int
    is_waiting: bool


@dataclass(slots=True, weakref_slot=True)
class _Budget:
    """Usage of one client, or of all clients.

    Attributes:
        most: Most bytes that may be pending.
        held: Bytes pending.
        overtaken: Bytes of requests that got room before the first one that waits.
        waiting: Sizes of the requests that wait for room, with futures that are completed when they have it.
    """

    most: int
    held: int = 0
    overtaken: int = 0
    waiting: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)

    def has_room(self, size: int) -> bool:
        """Return whether a request of this size fits. A request larger than ``most`` fits alone."""
        return not self.held or self.held + size <= self.most

    def take(self, size: int) -> bool:
        """Take bytes if there is room and no request waits; return whether they were taken."""
        if self.waiting or not self.has_room(size):
            return False
        self.held += size
        return True

    def overtake(self, size: int) -> bool:
        """Take bytes as :meth:`take` does, also before a request that waits, but not for ever."""
        if not self.waiting:
            return self.take(size)
        if not self.has_room(size) or self.overtaken + size > self.most:
            return False
        self.held += size
        self.overtaken += size
        return True

    async def wait(self, size: int) -> None:
        """Take bytes; wait until there is room."""
        if self.take(size):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            # The room may have been given before the cancellation arrived.
            self.give_back(size if future.done() and not future.cancelled() else 0)
            raise

    def give_back(self, size: int) -> None:
        """Give bytes back, and give the room to the requests that wait."""
        self.held -= size
        while self.waiting and (self.waiting[0][1].done() or self.has_room(self.waiting[0][0])):
            wanted, future = self.waiting.popleft()
            self.overtaken = 0
            if not future.done():
                self.held += wanted
                future.set_result(None)


class Held:
    """Pending bytes of one request, or of one call of PublishAsync. Leaving ``with`` gives them back.

    Args:
        client: Usage of the client.
        everyone: Usage of all clients.
        size: Bytes that were taken.

    Attributes:
        size: Bytes that are held.
    """

    def __init__(self, client: _Budget, everyone: _Budget, size: int = 0) -> None:
        self._client = client
        self._everyone = everyone
        self._kept = False
        self.size = size

    def add_now(self, size: int) -> bool:
        """Hold more bytes if there is room and nobody waits for it; return whether they are held."""
        if not self._client.take(size):
            return False
        if not self._everyone.take(size):
            self._client.give_back(size)
            return False
        self.size += size
        return True

    def add_or_refuse(self, size: int) -> Shortage | None:
        """Hold the bytes of a request that can't wait; return the budget without room for them, if any."""
        if not self._client.take(size):
            return Shortage(False, self._client.held, self._client.has_room(size))
        if not self._everyone.overtake(size):
            self._client.give_back(size)
            return Shortage(True, self._everyone.held, self._everyone.has_room(size))
        self.size += size
        return None

    async def add(self, size: int) -> None:
        """Hold more bytes; wait until there is room."""
        await self._client.wait(size)
        try:
            await self._everyone.wait(size)
        except asyncio.CancelledError:
            self._client.give_back(size)
            raise
        self.size += size

    def shrink(self, size: int) -> None:
        """Give back all but ``size`` bytes."""
        excess, self.size = self.size - size, size
        self._client.give_back(excess)
        self._everyone.give_back(excess)

    def split(self, size: int) -> Held:
        """Move bytes to a new object."""
        self.size -= size
        return Held(self._client, self._everyone, size)

    def keep_until(self, future: asyncio.Future[Any]) -> None:
        """Hold the bytes until a future is done, also after the ``with`` block."""
        self._kept = True
        future.add_done_callback(lambda _: self.shrink(0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._kept:
            self.shrink(0)


class PendingBytes:
    """Pending bytes of all clients.

    Args:
        most: Most bytes of one client.
        in_all: Most bytes of all clients.
    """

    def __init__(self, most: int, in_all: int) -> None:
        self._most = most
        self._everyone = _Budget(in_all)
        # An entry lives as long as the client holds or waits for bytes.
        self._clients: WeakValueDictionary[Hashable, _Budget] = WeakValueDictionary()

    def of(self, client: Hashable) -> Held:
        """Return an object that holds no bytes of a client yet."""
        found = self._clients.get(client)
        if found is None:
            found = self._clients[client] = _Budget(self._most)
        return Held(found, self._everyone)

    def __len__(self) -> int:
        """Number of clients that hold or wait for bytes."""
        return len(self._clients)

    @property
    def in_all(self) -> int:
        """Bytes that all clients have pending."""
        return self._everyone.held

    def used(self, client: Hashable) -> int:
        """Return the bytes that a client has pending."""
        found = self._clients.get(client)
        return 0 if found is None else found.held
