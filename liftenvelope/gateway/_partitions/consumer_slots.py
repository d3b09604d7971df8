"""Limits how fast the readers of a connection begin to replace their consumers.

When a connection is back, or a server was lost, thousands of readers must replace their consumers. If all
asked at once, nats-server would need longer than the timeout of a request for most of them. It executes
requests whose timeout has passed as well, so readers that ask again would keep it from catching up.

A partition without a leader does not answer at all. Therefore a reader gives up its slot after a quarter of a
second, and goes on without one. So 16 readers ask at a time while each is done within a quarter of a second.
If nats-server is slower, more ask: 64 further ones begin per second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["ConsumerSlots", "consumer_slots_of"]

#: Number of slots, and the longest time in seconds that one is kept.
_SLOTS: Final = 16
_LONGEST: Final = 0.25


class ConsumerSlots:
    """The slots of one connection, given in the order of waiting."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_SLOTS)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Wait for a slot, and keep it during the block, but not for too long."""
        await self._free.acquire()
        with ExitStack() as slot:
            slot.callback(self._free.release)
            # Closing twice releases once.
            slot.callback(asyncio.get_running_loop().call_later(_LONGEST, slot.close).cancel)
            yield


_slots: WeakKeyDictionary[Client, ConsumerSlots] = WeakKeyDictionary()


def consumer_slots_of(nc: Client) -> ConsumerSlots:
    """Return the shared :class:`ConsumerSlots` of a connection."""
    return _slots.setdefault(nc, ConsumerSlots())
