"""Connects a standalone gateway to NATS: within a time limit at first, then again without one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from liftenvelope._checks import about
from liftenvelope._logs.throttle import Throttle
from liftenvelope._secrets import without_secrets
from liftenvelope.errors import TransportError, UsageError
from liftenvelope.nats.closing import close_connection
from liftenvelope.nats.logins import is_refused_login, refused_login, with_login_of
from liftenvelope.nats.program_client import MalformedMessageError, NoTlsError

# After liftenvelope.nats, which imports it without aiohttp.
# isort: split
import nats.errors
from nats.aio.client import Client

__all__ = ["check_urls", "connection_to"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Seconds between attempts to reconnect.
_RECONNECT_PAUSE: Final = 0.2
#: Time limit for the first connection to NATS, in seconds.
_PATIENCE: Final = 10.0
#: Texts of the errors about what NATS refuses.
_REFUSALS: Final = ("permissions violation", "maximum subscriptions exceeded")
#: Most errors of a kind that are logged in a minute: clients may cause many.
_MOST_ERRORS: Final = 5
#: Seconds between two cancellations of a first connection that takes too long.
_AGAIN: Final = 0.1
#: Schemes that nats-py knows. It takes any other one for the host of a server, and tries to find that host.
_SCHEMES: Final = ("nats", "tls", "ws", "wss")


def check_urls(urls: str) -> None:
    """Check the schemes and ports of URLs of NATS servers, separated by commas.

    Raises:
        UsageError: nats-py does not know a scheme, or a port is invalid.
    """
    for url in map(str.strip, urls.split(",")):
        scheme, mark, _ = url.partition("://")
        if mark and scheme not in _SCHEMES:
            text = "nats_url must be host:port or begin with nats://, tls://, ws:// or wss://"
            raise about(UsageError(f"{text}, got {without_secrets(url)!r}"), "nats_url")
        try:
            urlsplit(url if mark else f"nats://{url}").port  # noqa: B018 - it is parsed when it is read
        except ValueError:
            # Some versions of nats-py repeat it in their errors. It may be a password with a slash.
            text = "nats_url must have a port from 0 to 65535, and a login with %2F for /"
            raise about(UsageError(f"{text}, got {without_secrets(url)!r}"), "nats_url") from None


@asynccontextmanager
async def connection_to(
    nc: Client, url: str | None, options: dict[str, Any], which: str, effect: str
) -> AsyncIterator[None]:
    """Connect to NATS, and close the connection at the end of the block.

    Args:
        nc: The connection, not made yet.
        url: URLs of the servers, separated by commas.
        options: Further arguments of ``nats.connect``.
        which: Name of the connection in the log.
        effect: What its loss means, for the log.

    Raises:
        TransportError: No server can be reached, or none accepts the login.
    """
    await _connect(nc, url, options, which, effect)
    try:
        yield
    finally:
        await close_connection(nc)


class _FirstConnection:
    """Callbacks of a nats-py connection that is being made: they end the wait if no server takes the login.

    After the start, they log that the connection is lost or back, what NATS refuses of the gateway, and which
    messages it can't process: calls whose publish is refused also fail, but a refused subscription only gets
    no messages. Errors that end the connection are logged with its loss.

    Args:
        nc: The connection.
        which: Its name in the log.
        effect: What its loss means, for the log.

    Attributes:
        connected: Set once the connection is made.
        refused: Done once every known server has refused the login or lacks TLS, one after the other.
        lacks_tls: True if the last error was that a server lacks TLS.
        last: Text of the last error, to append to a sentence. Empty if there was none.
    """

    def __init__(self, nc: Client, which: str, effect: str) -> None:
        self._nc = nc
        self._which = which
        self._effect = effect
        self._refusals = 0
        self._throttle = Throttle(_MOST_ERRORS)
        self.lacks_tls = False
        self.connected = asyncio.Event()
        self.refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last = ""

    async def make(self, urls: list[str], options: dict[str, Any]) -> None:
        """Connect, and return once the connection is made."""
        await self._nc.connect(urls, error_cb=self.note, allow_reconnect=True, **options)
        # nats-py also returns if the server closes the connection instead of answering the first PING: so
        # looks a refused login if the server's error is lost. nats-py then reconnects in the background.
        if not self._nc.is_connected:
            await self.connected.wait()
        self.connected.set()

    async def note(self, exc: Exception) -> None:
        """Keep the text of an error; end the wait if every server refuses the login."""
        if self.refused.done():
            return  # an error of the close that follows
        text = str(exc)
        self.last = f": {without_secrets(text)}"
        if self.connected.is_set():
            self._tell(exc)
            return
        # nats-py tries one server after the other, and never stops.
        self.lacks_tls = isinstance(exc, NoTlsError)
        is_refusal = self.lacks_tls or is_refused_login(text)
        self._refusals = self._refusals + 1 if is_refusal else 0
        if is_refusal and self._refusals >= len(self._nc.servers):
            self.refused.set_result(None)
            # Hold nats-py here: cancelled while it closes a transport, it would leave the transport open.
            await asyncio.get_running_loop().create_future()

    def _tell(self, exc: Exception) -> None:
        said = without_secrets(str(exc).removeprefix("nats: "))
        kind = next((kind for kind in _REFUSALS if kind in said.lower()), "")
        text, traceback = "NATS refuses the gateway: %s", None
        if isinstance(exc, MalformedMessageError | nats.errors.SlowConsumerError):
            kind, text = type(exc).__name__, "lost a message from NATS: %s"
        elif not isinstance(exc, OSError | nats.errors.Error):
            kind, text, traceback = type(exc).__name__, "failed to process a message from NATS: %s", exc
        if kind and self._throttle.admits(kind, asyncio.get_running_loop().time()):
            _log.warning(text, said, exc_info=traceback, extra={"connection": self._which})

    async def lost(self) -> None:
        """Log that the connection is lost."""
        if self.connected.is_set() and not self._nc.is_closed:
            text = "%s to NATS is lost: %s until it is back%s"
            _log.warning(text, self._which, self._effect, self.last, extra={"connection": self._which})

    async def back(self) -> None:
        """Log that the connection is back."""
        if self.connected.is_set():
            _log.warning("%s to NATS is back", self._which, extra={"connection": self._which})
        self.connected.set()


async def _connect(nc: Client, url: str | None, options: dict[str, Any], which: str, effect: str) -> None:
    assert url is not None
    shown = without_secrets(url)
    first, urls = _FirstConnection(nc, which, effect), url.split(",")
    # Reconnect without limit: a gateway outlives restarts of its NATS server.
    options = {
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": _RECONNECT_PAUSE,
        "disconnected_cb": first.lost,
        "reconnected_cb": first.back,
        **options,
    }
    making = asyncio.create_task(first.make(urls, with_login_of(urls, options)))
    try:
        await asyncio.wait({making, first.refused}, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if making.done():
            await making
            return
    except (nats.errors.Error, OSError) as exc:
        text = f"no connection to the NATS server {shown}: {without_secrets(str(exc))}"
        raise TransportError(text) from exc
    finally:
        if not (making.done() and first.connected.is_set()):  # nats-py may be reconnecting in the background
            try:
                await _end(making)
            finally:
                await close_connection(nc)
    if first.refused.done() and not first.lacks_tls:
        raise TransportError(refused_login(f"the NATS server {shown}"))
    why = first.last if first.refused.done() else f" within {_PATIENCE} s{first.last}"
    raise TransportError(f"no connection to the NATS server {shown}{why}")


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it ends.

    One cancellation is not enough: before Python 3.12, ``asyncio.wait_for`` drops one that comes together
    with the end of what it waits for, and nats-py then tries the next server.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN)
    if not task.cancelled():
        task.exception()
