"""A gateway as a program of its own, with its connection to NATS, or with a nats-server of its own."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import nats.errors
from nats.aio.client import Client

from liftenvelope._secrets import without_secrets
from liftenvelope.errors import TransportError, UsageError
from liftenvelope.gateway.embedded import EmbeddedNats
from liftenvelope.gateway.gateway import Gateway
from liftenvelope.nats._subjects import check_inbox_prefix

__all__ = ["Serving", "data_folder", "running_gateway", "serve"]

_log: Final = logging.getLogger("liftenvelope.gateway")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_RECONNECT_PAUSE: Final = 0.2
#: How long NATS may take to be there at the start, in seconds.
_PATIENCE: Final = 10.0


def data_folder() -> Path:
    """Where programs keep data for their user on this system, with our own folder in it."""
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "liftenvelope"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "liftenvelope"
    return Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "liftenvelope"


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What to serve, and on what.

    Attributes:
        nats_url: A running NATS server with JetStream, or several of a cluster with commas between; None for
            one of our own.
        data_dir: Where that one keeps its streams; needed if there is no ``nats_url``.
        nats_host, nats_port: Where that one listens; port -1 for any that is free.
        nats_login: Whether clients of that one must log in. Default: only with a policy, which raw messages
            would get around.
        nats_debug: Whether that one logs for debugging, too.
        connect: More arguments of ``nats.connect``, such as ``user_credentials`` and ``inbox_prefix``.
        tls_cert, tls_key: PEM files of the certificate and key to serve TLS with.
        tls_client_ca: PEM file of the authority whose certificates clients must show.
        gateway: The arguments of :class:`Gateway`.
        drain: Seconds to finish what is under way when the gateway stops. Default 10.

    Raises:
        UsageError: Something of this makes no sense, or a file can't be read.
    """

    # Not shown: there may be a password in it.
    nats_url: str | None = field(default=None, repr=False)
    data_dir: str | None = None
    nats_host: str = "127.0.0.1"
    nats_port: int = -1
    nats_login: bool = False
    nats_debug: bool = False
    connect: dict[str, Any] = field(default_factory=dict, repr=False)
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    gateway: dict[str, Any] = field(default_factory=dict)
    drain: float = 10.0

    def __post_init__(self) -> None:
        if (self.nats_url is None) == (self.data_dir is None):
            raise UsageError("either a NATS server or a folder for one of our own, not both and not neither")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("tls_cert and tls_key belong together: give both or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise UsageError("tls_client_ca needs tls_cert and tls_key")
        if not (math.isfinite(self.drain) and self.drain >= 0):
            raise UsageError(f"drain must be a number of seconds from 0, got {self.drain!r}")
        if (credentials := self.connect.get("user_credentials")) is not None:
            _check_readable("user_credentials", credentials)
        if (prefix := self.connect.get("inbox_prefix")) is not None:
            check_inbox_prefix(prefix)
        for name in ("tls_cert", "tls_key", "tls_client_ca"):
            _check_readable(name, getattr(self, name))
        # Checks what concerns it, before anything is started or connected to.
        self.new_gateway(Client())

    def new_gateway(self, nc: Client) -> Gateway:
        """Return the gateway, not yet started, on a connection that may yet have to be made.

        Raises:
            UsageError: Something of this makes no sense, or a file can't be read.
        """
        return Gateway(nc, tls=self.tls(), **self.gateway)

    def tls(self) -> ssl.SSLContext | None:
        """How to speak TLS, None for plain TCP.

        Raises:
            UsageError: A file can't be read.
        """
        if self.tls_cert is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
            if self.tls_client_ca is not None:
                context.load_verify_locations(self.tls_client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as exc:
            files = ", ".join(
                repr(name) for name in (self.tls_cert, self.tls_key, self.tls_client_ca) if name
            )
            text = f"tls_cert, tls_key and tls_client_ca must be PEM files that belong together, got {files}"
            raise UsageError(f"{text}: {exc}") from exc
        return context


def _check_readable(name: str, path: object) -> None:
    """Check that a file can be read. nats-py reads credentials only for a server that asks for them."""
    if not isinstance(path, str | os.PathLike):
        return
    try:
        Path(path).read_bytes()
    except OSError as exc:
        text = f"{name} must be a file that can be read, got {os.fspath(path)!r}: {exc.strerror}"
        # A seed may have been given in place of its file, and the error of the system has the path as well.
        raise UsageError(without_secrets(text)) from None


@asynccontextmanager
async def running_gateway(serving: Serving) -> AsyncIterator[tuple[Gateway, EmbeddedNats | None]]:
    """Run a gateway, and its nats-server, as long as the block lasts.

    Raises:
        TransportError: NATS can't be reached or started, or the gateway can't listen.
        UsageError: Something of this makes no sense.
    """
    own = None
    if serving.data_dir is not None:
        folder = Path(serving.data_dir)
        config = {"debug": True} if serving.nats_debug else {}
        own = EmbeddedNats(
            folder,
            host=serving.nats_host,
            port=serving.nats_port,
            open_to_publishers=not serving.nats_login and serving.gateway.get("policy_file") is None,
            config=config,
        )
        await own.start()
    try:
        if own is None:
            nc = await _connect(serving.nats_url, serving.connect)
        else:
            nc = await _connect(own.url, {**serving.connect, **own.login})
        try:
            async with serving.new_gateway(nc) as gateway:
                if own is not None:
                    own.on_line = gateway.read_server_log
                yield gateway, own
                await gateway.close(grace=serving.drain)
        finally:
            # nats-py sends what is left, also on a connection that is lost. On a closed transport, asyncio
            # raises TypeError in releases from Python 3.12 on (python/cpython issue 136234).
            with suppress(OSError, TypeError):
                await nc.close()
    finally:
        if own is not None:
            await own.stop()


async def _connect(url: str | None, options: dict[str, Any]) -> Client:
    assert url is not None
    nc, last, shown = Client(), "", without_secrets(url)

    async def note(exc: Exception) -> None:
        """What goes wrong later shows in the calls that it goes wrong for."""
        nonlocal last
        last = f": {without_secrets(str(exc))}"

    async def lost() -> None:
        if not nc.is_closed:
            _log.warning("the connection to NATS is lost: nothing is served until it is back%s", last)

    async def back() -> None:
        _log.warning("the connection to NATS is back")

    # For ever: a gateway outlives its NATS server's restarts.
    options = {
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": _RECONNECT_PAUSE,
        "disconnected_cb": lost,
        "reconnected_cb": back,
        **options,
    }
    try:
        async with asyncio.timeout(_PATIENCE):
            await nc.connect(url.split(","), error_cb=note, allow_reconnect=True, **options)
    except TimeoutError as exc:
        await nc.close()
        raise TransportError(f"no connection to the NATS server {shown} within {_PATIENCE} s{last}") from exc
    except (nats.errors.Error, OSError) as exc:
        text = f"no connection to the NATS server {shown}: {without_secrets(str(exc))}"
        raise TransportError(text) from exc
    return nc


async def serve(serving: Serving, on_ready: Callable[[Gateway, str], None]) -> None:
    """Serve until SIGINT or SIGTERM, then drain. A second signal ends the program as it would any other.

    Args:
        serving: What, and on what.
        on_ready: Called when clients can be served, with the gateway and the URL of its NATS server, without
            user and password.

    Raises:
        TransportError: NATS can't be reached or started or has ended, or the gateway can't listen.
        UsageError: Something of this makes no sense.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, end)
    logging.getLogger("asyncio").addFilter(_is_worth_a_line)
    try:
        async with running_gateway(serving) as (gateway, own):
            on_ready(gateway, without_secrets(serving.nats_url or (own.url if own is not None else "")))
            await _wait(stop, own)
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether to log a record of asyncio's.

    TLS hides the end of a client from us while we read no more from it, and logs each write until then. A
    client that asks much and leaves would fill the log.
    """
    return record.msg != "SSL connection is closed"


async def _wait(stop: asyncio.Event, own: EmbeddedNats | None) -> None:
    waiting = [asyncio.ensure_future(stop.wait())]
    if own is not None:
        waiting.append(asyncio.ensure_future(own.wait()))  # type: ignore[arg-type]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            raise TransportError(f"nats-server has ended, with status {waiting[1].result()}")
    finally:
        for future in waiting:
            future.cancel()
