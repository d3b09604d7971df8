"""Accepts the connections of a server, with a limit on their number and on the time of a TLS handshake.

asyncio's own server has no connection limit, and logs a hundred tracebacks a second when the process runs out
of descriptors. Here a connection above the limit is closed as soon as it is accepted, before a TLS handshake
allocates 300 KiB for it, unless another one makes room. Each kind of failure is logged at most once a minute.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Final

from liftenvelope._logs.throttle import Throttle
from liftenvelope.errors import TransportError
from liftenvelope.rpc.address import Address
from liftenvelope.rpc.places import client_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection

    from liftenvelope.rpc.places import Occupant

__all__ = ["Listener"]

_log: Final = logging.getLogger("liftenvelope.rpc")
_TLS_SHUTDOWN_TIMEOUT: Final = 1.0
#: Seconds before accept() is retried after a failure, such as a process out of descriptors.
_PAUSE: Final = 0.5


class _Handshake:
    """Handshake in progress.

    Args:
        all_: The handshakes in progress, with their tasks.
        address: Address of the connection, as from ``client_of``.
        now: Current time of the event loop.
    """

    is_idle, standing = True, 0

    def __init__(self, all_: dict[_Handshake, asyncio.Task[None]], address: str, now: float) -> None:
        self._all = all_
        self.client = self.address = address
        self.active_at = now

    def give_up(self) -> None:
        """End the handshake, and close the connection."""
        self._all.pop(self).cancel()


class Listener:
    """Listens on an address and creates a protocol for each connection.

    Args:
        new_protocol: Creates the protocol of a new connection.
        tls: TLS context, None for plain TCP.
        admits: Takes the address of a new connection and the handshakes in progress. It may close others, and
            returns False if the new connection is to be closed.
        handshake_timeout: Seconds for a TLS handshake.
    """

    def __init__(
        self,
        new_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None,
        admits: Callable[[str, Collection[Occupant]], bool],
        handshake_timeout: float,
    ) -> None:
        self._new_protocol = new_protocol
        self._tls = tls
        self._admits = admits
        self._handshake_timeout = handshake_timeout
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._opening: dict[_Handshake, asyncio.Task[None]] = {}
        self._throttle = Throttle()

    @property
    def address(self) -> str:
        """Listening address, as ``host:port``; that of the first socket if there are several."""
        host, port, *_ = self._sockets[0].getsockname()
        return str(Address(host, port))

    def replace_tls(self, tls: ssl.SSLContext) -> None:
        """Use another TLS context for connections accepted from now on."""
        self._tls = tls

    async def start(self, host: str, port: int) -> None:
        """Start to listen.

        Raises:
            TransportError: Binding or listening failed.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, *_, place in dict.fromkeys(found):
                listening = socket.create_server(place, family=family, backlog=128)
                self._sockets.append(listening)
                listening.setblocking(False)
                # Accepted sockets inherit it. asyncio does not set it for them: create_server() leaves their
                # protocol open. Without it the end of each answer waits 40 ms for the client's TCP to ack the
                # first part.
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as exc:
            self.close()
            reason = exc.strerror or str(exc)
            if not isinstance(exc, socket.gaierror) and exc.errno is not None:
                reason = os.strerror(exc.errno)  # without the address, which the text already has
            text = f"can't listen on {host}:{port}: {reason[:1].lower()}{reason[1:]}"
            raise TransportError(text) from exc
        self._accepting = [
            asyncio.create_task(self._accept(listening), name="accept connections")
            for listening in self._sockets
        ]

    def close(self) -> None:
        """Stop accepting. Open connections stay open; handshakes in progress are cancelled."""
        for task in (*self._accepting, *self._opening.values()):
            task.cancel()
        for listening in self._sockets:
            listening.close()

    async def wait_closed(self) -> None:
        """Wait until the tasks cancelled by :meth:`close` have ended."""
        await asyncio.gather(*self._accepting, *self._opening.values(), return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # sock_accept() does not yield while connections wait. Those accepted before must get on, or a
            # burst of silent ones would take the place of a client that has not yet been heard.
            await asyncio.sleep(0)
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError as exc:
                self._warn("accept", "no connection can be accepted: %s", exc)
                await asyncio.sleep(_PAUSE)
                continue
            address = client_of(peer)
            if not self._admits(address, self._opening):
                accepted.close()
                continue
            opening = _Handshake(self._opening, address, loop.time())
            task = asyncio.create_task(self._open(accepted), name="open a connection")
            self._opening[opening] = task
            task.add_done_callback(partial(self._opened, opening, accepted))

    def _opened(self, opening: _Handshake, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._opening.pop(opening, None)
        if task.cancelled():  # perhaps before it began
            accepted.close()

    async def _open(self, accepted: socket.socket) -> None:
        is_tls = self._tls is not None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._new_protocol,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_timeout if is_tls else None,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_TIMEOUT if is_tls else None,
            )
        except OSError:
            # The client disconnected or failed the TLS handshake; asyncio has closed the transport.
            accepted.close()

    def _warn(self, kind: str, text: str, *args: object) -> None:
        if self._throttle.admits(kind, asyncio.get_running_loop().time()):
            _log.warning(text, *args)
