"""nats-py connections of this package's own programs, with mends of five of its defects.

nats-py begins with TLS only if the server asks for it, also for ``tls://`` URLs. To a server that does not
ask, or to one in between that claims so, it sends the login in plain text.

After a TLS handshake that failed, nats-py 2.16 closes the streams of before the handshake and waits for their
end, which nothing tells them any more. So ``connect`` never returns, and ``close`` neither.

nats-py makes its streams before the TLS handshake, so they take the connection for a plain one. At its end
asyncio then warns ``returning true from eof_received() has no effect when using ssl``, on standard error.

nats-py knows the server's ``max_payload`` alone. The limit of the account may be lower: the server sends it
after the login, and nats-py drops it. The server answers a message above it with an error, and disconnects.

nats-py closes a connection for good after any error of the server but a refused permission, such as that one
or an expired login. A connection without a limit on reconnects now reconnects, unless the server goes on with
it, as after a subscription too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.protocol.parser import PERMISSIONS_ERR

from liftenvelope.nats.link import is_encrypted

__all__ = ["NoTlsError", "new_client"]


#: Errors after which nats-server keeps the connection, in lower case, as nats-py passes them on.
_KEPT: Final = (
    PERMISSIONS_ERR,
    "maximum subscriptions exceeded",
    "invalid subject",
    "invalid publish subject",
)


class NoTlsError(nats.errors.Error):
    """The server does not use TLS. No login was sent."""

    def __str__(self) -> str:
        return "the server does not use TLS, which the URL or the options require"


class _ProgramClient(Client):
    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except BaseException:
            transport = self._transport
            if isinstance(transport, TcpTransport) and transport._io_writer is not None:
                transport._io_writer.transport.abort()
                self._transport = None
            raise

    def _connect_command(self) -> bytes:
        # After the handshake, and before the login: a server that refuses it ends the connection.
        transport = self._transport
        if is_encrypted(self) and isinstance(transport, TcpTransport) and transport._io_writer is not None:
            streams: Any = transport._io_writer.transport.get_protocol()
            streams._over_ssl = True
        return super()._connect_command()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        limit: object = info.get("max_payload")
        if type(limit) is int:
            self._max_payload = limit
        await super()._process_info(info, initial_connection)

    async def _process_err(self, err_msg: str) -> None:
        if self.options["max_reconnect_attempts"] >= 0:
            await super()._process_err(err_msg)
            return
        error = nats.errors.Error("nats: " + err_msg.strip("'"))
        is_kept = any(text in err_msg for text in _KEPT)
        if is_kept:
            self._err = error
        await self._error_cb(error)
        if not is_kept:
            await self._process_op_err(error)


class _TlsOnlyClient(_ProgramClient):
    def _connect_command(self) -> bytes:
        if not is_encrypted(self):  # called again for each reconnect
            raise NoTlsError
        return super()._connect_command()


def new_client(urls: Sequence[str], *, tls: bool = False) -> Client:
    """Return a client that is not connected yet. It fails with :class:`NoTlsError` where TLS is missing.

    Args:
        urls: URLs of the servers. One with ``tls://`` requires TLS of all of them.
        tls: True if TLS is required in any case, for example because certificates are given.
    """
    is_tls = tls or any(url.strip().startswith("tls://") for url in urls)
    return _TlsOnlyClient() if is_tls else _ProgramClient()
