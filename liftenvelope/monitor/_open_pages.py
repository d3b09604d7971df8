"""Places of the pages that are open: each holds one stream of events.

When no place is free, the client that holds the most gives its oldest one up, if the newcomer holds at least
two fewer (``liftenvelope/rpc/places.py``). So one client can't keep the others out. A page whose browser
takes nothing is closed, which frees its place and its buffers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from liftenvelope.rpc.places import place_to_free

__all__ = ["OpenPages"]

#: Bytes that the kernel holds for a page. By default it holds megabytes before a stalled page shows.
_SEND_BUFFER: Final = 64 * 1024


class OpenPages:
    """Gives out the places of pages.

    Args:
        most: Pages that may be open at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[_OpenPage] = set()

    def admits(self, client: str) -> bool:
        """Return whether a client may open one more page; close one of another client if that makes room."""
        if len(self._open) < self._most:
            return True
        if (page := place_to_free(self._open, client)) is None:
            return False
        self._open.discard(page)
        page.give_up()
        return True

    @asynccontextmanager
    async def hold(self, client: str, transport: asyncio.Transport) -> AsyncIterator[None]:
        """Hold a place while the block runs. The block ends early if the place is given up.

        The connection is closed at once if the block ends early, or raises ``TimeoutError``.
        """
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(None) as scope:
                page = _OpenPage(client, scope, transport)
                self._open.add(page)
                try:
                    yield
                except TimeoutError:
                    transport.abort()
                finally:
                    self._open.discard(page)


class _OpenPage:
    """A page that is open, as an occupant of a place.

    Args:
        client: Client that opened it.
        scope: Time limit of its stream.
        transport: Its connection.
    """

    is_idle = False
    standing = 2

    def __init__(self, client: str, scope: asyncio.Timeout, transport: asyncio.Transport) -> None:
        self.client = self.address = client
        self.active_at = asyncio.get_running_loop().time()
        self._scope = scope
        self._transport = transport

    def give_up(self) -> None:
        """Close the page at once."""
        self._transport.abort()
        self._scope.reschedule(0)
