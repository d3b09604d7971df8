"""Limits on the HTTP connections that aiohttp serves: their number, bytes and time.

aiohttp limits neither the number of connections nor the time that a client takes to send its request.
Therefore each connection goes through :class:`HttpConnections`: it carries one request, of a limited size,
and ends after a limited time whatever its client does. When too many are open, the address that holds most of
them loses its oldest one, so that one address can't close the connections of the others. A new one may be a
probe, and the oldest ones are those of clients that send nothing.

A stream of events has no time limit. It counts among the connections and can be closed as well: browsers open
it again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, cast

from liftenvelope.rpc.places import client_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

__all__ = ["HttpConnections"]

_EVENTS: Final = "text/event-stream"


class HttpConnections:
    """Open connections of an HTTP server, each with limits.

    Args:
        new_protocol: Creates aiohttp's protocol for a new connection.
        most: Connections open at once. A further one closes the oldest of the address that has most.
        max_bytes: Bytes of a request. A larger one closes the connection.
        timeout: Seconds from the start of a connection to its end.
    """

    def __init__(
        self, new_protocol: Callable[[], asyncio.Protocol], *, most: int, max_bytes: int, timeout: float
    ) -> None:
        self._new_protocol = new_protocol
        self._most = most
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._open: dict[_HttpConnection, None] = {}

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    def new(self) -> asyncio.Protocol:
        """Return the protocol of a new connection, and close another one if there are too many."""
        while len(self._open) >= self._most:
            self._to_close().abort()
        inner = self._new_protocol()
        return _HttpConnection(self._open, inner, max_bytes=self._max_bytes, timeout=self._timeout)

    def _to_close(self) -> _HttpConnection:
        held = Counter(connection.address for connection in self._open)
        most = max(held.values())
        return next(connection for connection in self._open if held[connection.address] == most)

    async def close_afterwards(self, request: web.Request, response: web.StreamResponse) -> None:
        """End the connection with its response. A signal handler of ``on_response_prepare``."""
        response.force_close()
        response.headers["Connection"] = "close"
        response.headers["Server"] = "liftenvelope"
        if response.content_type == _EVENTS:
            for connection in self._open:
                if connection.carries(request):
                    connection.keep()

    def abort(self) -> None:
        """Close all connections without sending the rest."""
        for connection in list(self._open):
            connection.abort()


class _HttpConnection(asyncio.Protocol):
    """Passes a connection to aiohttp, with limits on its bytes and its time.

    Args:
        connections: All open connections, the oldest first.
        inner: aiohttp's protocol.
        max_bytes: Most bytes to receive.
        timeout: Seconds until the connection is closed.

    Attributes:
        address: Address of the client, of IPv6 its network; empty until the connection is handed over.
    """

    def __init__(
        self,
        connections: dict[_HttpConnection, None],
        inner: asyncio.Protocol,
        *,
        max_bytes: int,
        timeout: float,
    ) -> None:
        self._connections = connections
        self._inner = inner
        self.address = ""
        self._left = max_bytes
        self._transport: asyncio.Transport | None = None
        self._timer = asyncio.get_running_loop().call_later(timeout, self.abort)
        # From the start: the limit holds also for connections that are not handed over yet.
        connections[self] = None

    def carries(self, request: web.Request) -> bool:
        """Return True if the request came by this connection."""
        return self._transport is not None and request.transport is self._transport

    def keep(self) -> None:
        """Let the connection last for as long as the server sends events."""
        self._timer.cancel()

    def abort(self) -> None:
        """Close the connection without sending the rest."""
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _forget(self) -> None:
        self._timer.cancel()
        self._connections.pop(self, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the new connection to aiohttp."""
        # Not isinstance: the transports of uvloop have the methods, but not the base class.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self.address = client_of(transport.get_extra_info("peername"))
        self._inner.connection_made(transport)
        if self not in self._connections:  # closed meanwhile, to make room
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Pass received bytes to aiohttp, up to the limit."""
        self._left -= len(data)
        if self._left < 0:
            self.abort()
        else:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Tell aiohttp that the client sends nothing more."""
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._forget()
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Tell aiohttp that the client does not take the response."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Tell aiohttp that the client takes the response again."""
        self._inner.resume_writing()
