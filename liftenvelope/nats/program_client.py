"""nats-py connections of this package's own programs, with mends of eleven of its defects.

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

nats-py reads the files of a login for each reconnect, and ends its attempts for good if one holds no seed, as
while it is being written. Without a JWT in the file of credentials it reads on for ever, and holds the event
loop.

A message that is not UTF-8, or whose headers are malformed, ends nats-py's reading, and it notices by its
pings alone: any client of the server may send one. Here the message is dropped. After a malformed line the
connection is made again.

A greeting, or an answer to a login, that is not one of nats-server ends nats-py's attempts for good. Here it
is an error of one attempt.

nats-py keeps each server that it was ever told of, and compares each new one with all of them. Here the
servers of the latest list are kept, and those that the program named.

nats-py takes the first line after its login for the answer. The server pings a connection that is two seconds
old. A program that stood still meanwhile read that ping: its connection stayed "connecting" and sent nothing.
Here the ping is answered, and the next line read.

nats-py reconnects once the last bytes to the lost server are sent. A frozen server never takes them. Here
they have ``_LAST_BYTES``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import nats.errors
from nats.aio.client import PING_PROTO, PONG_PROTO, Client
from nats.aio.transport import TcpTransport
from nats.protocol.parser import PERMISSIONS_ERR

from liftenvelope._secrets import without_secrets
from liftenvelope.errors import UsageError
from liftenvelope.nats.link import is_encrypted
from liftenvelope.nats.logins import read_credentials

__all__ = ["MalformedMessageError", "NoTlsError", "new_client"]


#: Errors after which nats-server keeps the connection, in lower case, as nats-py passes them on.
_KEPT: Final = (
    PERMISSIONS_ERR,
    "maximum subscriptions exceeded",
    "invalid subject",
    "invalid publish subject",
)
#: Errors of nats-py that malformed input causes. It goes on only after OSError and its own.
_MALFORMED: Final = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
#: Most servers of one list that are kept.
_MOST_SERVERS: Final = 256
#: Seconds for which the last bytes to a lost server may take before a reconnect.
_LAST_BYTES: Final = 1.0


class NoTlsError(nats.errors.Error):
    """The server does not use TLS. No login was sent."""

    def __str__(self) -> str:
        return "the server does not use TLS, which the URL or the options require"


class MalformedMessageError(nats.errors.Error):
    """A message was dropped that nats-py can't read. It goes to ``error_cb``."""


class _ProgramClient(Client):
    async def _process_connect_init(self) -> None:
        try:
            await self._log_in()
        except BaseException:
            transport = self._transport
            if isinstance(transport, TcpTransport) and transport._io_writer is not None:
                transport._io_writer.transport.abort()
                self._transport = None
            raise

    async def _log_in(self) -> None:
        transport: Any = self._transport
        transport.readline = partial(self._answer_of_login, transport, transport.readline)
        try:
            await super()._process_connect_init()
        except (OSError, nats.errors.Error):  # some are also one of the others
            raise
        except _MALFORMED as exc:  # its text may hold anything
            self._server_info = {}  # also read while there is no connection
            text = f"the server must greet and answer a login like nats-server: {type(exc).__name__}"
            raise nats.errors.Error(text) from exc
        finally:
            del transport.readline  # the method of its class comes back

    async def _answer_of_login(self, transport: Any, read_line: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the next line of the server that is no ping, and answer the pings before it."""
        while (line := await read_line()) == PING_PROTO:
            transport.write(PONG_PROTO)
            await transport.drain()
        return line

    def _connect_command(self) -> bytes:
        # After the handshake, and before the login: a server that refuses it ends the connection.
        transport = self._transport
        if is_encrypted(self) and isinstance(transport, TcpTransport) and transport._io_writer is not None:
            streams: Any = transport._io_writer.transport.get_protocol()
            if streams is None:  # its server refused our certificate, which TLS 1.3 tells after the handshake
                raise ConnectionResetError("the server ended the connection after the TLS handshake")
            streams._over_ssl = True
        is_by_file = bool(self._user_credentials or self._nkeys_seed)
        if is_by_file and self._reconnection_task is not None:
            return self._command_of_new_files()
        return super()._connect_command()

    def _command_of_new_files(self) -> bytes:
        """Return the CONNECT command of a reconnect; nats-py tries again after an error of its own."""
        import nkeys

        path = self._user_credentials
        try:
            if isinstance(path, str | Path):
                read_credentials(Path(path).read_text("utf-8", "replace"), without_secrets(str(path)))
            return super()._connect_command()
        except UsageError as exc:
            raise nats.errors.Error(str(exc)) from None
        except (nkeys.NkeysError, ValueError) as exc:  # its text may hold a part of the file
            shown = without_secrets(str(path or self._nkeys_seed))
            raise nats.errors.Error(f"no valid seed in {shown!r}: {type(exc).__name__}") from None

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        limit: object = info.get("max_payload")
        if type(limit) is int:
            self._max_payload = limit
        urls: object = info.get("connect_urls")
        if isinstance(urls, list):
            urls = urls[:_MOST_SERVERS]
            info = {**info, "connect_urls": urls}
        await super()._process_info(info, initial_connection)
        if isinstance(urls, list) and urls:
            self._server_pool = [
                server
                for server in self._server_pool
                if not server.discovered or server is self._current_server or server.uri.netloc in urls
            ]

    async def _attempt_reconnect(self) -> None:
        transport = self._transport
        if isinstance(transport, TcpTransport) and transport._io_writer is not None:
            asyncio.get_running_loop().call_later(_LAST_BYTES, _abort, transport._io_writer.transport)
        await super()._attempt_reconnect()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        try:
            await super()._process_msg(sid, subject, reply, data, headers)
        except (LookupError, UnicodeDecodeError) as exc:
            await self._error_cb(MalformedMessageError(f"malformed message: {type(exc).__name__}"))

    async def _read_loop(self) -> None:
        await super()._read_loop()
        task = asyncio.current_task()
        assert task is not None
        is_ended = bool(task.cancelling()) or self.is_closed or self.is_reconnecting
        if task is self._reading_task and not is_ended:
            error = nats.errors.ProtocolError("nats: the server has sent a malformed line")
            await self._error_cb(error)
            await self._process_op_err(error)

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


def _abort(transport: asyncio.WriteTransport) -> None:
    """End a transport that is closing."""
    with suppress(AttributeError):  # of Python 3.11, if the last bytes went out after close()
        transport.abort()


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
