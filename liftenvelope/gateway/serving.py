"""Runs a gateway as a standalone program, with a connection to NATS or with an embedded nats-server."""

from __future__ import annotations

import asyncio
import ctypes
import gc
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
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client

from liftenvelope._checks import about
from liftenvelope._secrets import without_secrets
from liftenvelope.errors import TransportError, UsageError
from liftenvelope.gateway._gateway import Gateway
from liftenvelope.gateway.embedded import EmbeddedNats
from liftenvelope.nats.closing import close_connection
from liftenvelope.nats.subjects import check_inbox_prefix

__all__ = ["Serving", "data_folder", "running_gateway", "serve"]

_log: Final = logging.getLogger("liftenvelope.gateway")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_TLS: Final = ("tls_cert", "tls_key", "tls_client_ca")
_RECONNECT_PAUSE: Final = 0.2
#: Time limit for the first connection to NATS, in seconds.
_PATIENCE: Final = 10.0
#: Parts of nats-server's errors that refuse a login, and the advice in ours.
_REFUSALS: Final = ("authorization violation", "authentication expired", "authentication revoked")
#: Parameter of mallopt() for the size of blocks that glibc maps on their own, and that size in bytes.
_MMAP_THRESHOLD: Final = -3
_LARGE_BLOCK: Final = 1 << 20
_LOGIN: Final = "check the user and password, the token or the credentials file"


def data_folder() -> Path:
    """Return the default data folder: ``liftenvelope`` in the system's folder for the user's data.

    That folder is ``~/Library/Application Support`` on macOS, ``%LOCALAPPDATA%`` on Windows and
    ``$XDG_DATA_HOME`` or ``~/.local/share`` elsewhere.
    """
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "liftenvelope"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "liftenvelope"
    return Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "liftenvelope"


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Settings of a standalone gateway, checked when they are created.

    Attributes:
        nats_url: URL of a running NATS server with JetStream, or URLs of a cluster's servers separated by
            commas. None (the default) starts an embedded nats-server.
        data_dir: Folder in which the embedded server stores its streams. Required without ``nats_url``, not
            allowed with it.
        nats_host, nats_port: Host and port on which the embedded server listens. Default 127.0.0.1 and -1,
            which picks a free port.
        nats_login: Whether clients of the embedded server must log in. Default False. A policy file requires
            logins as well, because raw NATS messages would bypass the policy.
        nats_debug: Whether the embedded server writes debug messages to its log. Default False.
        connect: Further arguments of ``nats.connect``, such as ``user_credentials`` and ``inbox_prefix``.
        tls_cert, tls_key: PEM files of the server certificate and its key. Default None: no TLS.
        tls_client_ca: PEM file of the authority that signs client certificates. If given, clients must
            present a certificate. Default None.
        gateway: Arguments of :class:`Gateway`.
        drain: Seconds to finish the open calls when the gateway stops. Default 10.

    Raises:
        UsageError: The settings contradict each other, a value is invalid, or a file can't be read.
    """

    # Hidden in repr: it may contain a password.
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
            given = "neither" if self.nats_url is None else "both"
            raise UsageError(f"exactly one of nats_url and data_dir must be given, got {given}")
        if (self.tls_cert is None) != (self.tls_key is None):
            text = "tls_cert and tls_key belong together: give both or neither"
            raise about(UsageError(text), "tls_cert", "tls_key")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise about(UsageError("tls_client_ca needs tls_cert and tls_key: give them too"), *_TLS)
        if not (math.isfinite(self.drain) and self.drain >= 0):
            raise about(UsageError(f"drain must be at least 0 seconds, got {self.drain!r}"), "drain")
        if (credentials := self.connect.get("user_credentials")) is not None:
            _check_readable("user_credentials", credentials)
        if (prefix := self.connect.get("inbox_prefix")) is not None:
            check_inbox_prefix(prefix)
        for name in _TLS:
            _check_readable(name, getattr(self, name))
        # Lets the gateway check its arguments before anything is started or connected.
        self.new_gateway(Client(), None)

    def new_gateway(self, nc: Client, read_nc: Client | None) -> Gateway:
        """Return a gateway that is not started yet.

        Args:
            nc: Connection to NATS; it may be connected later.
            read_nc: Second connection, for subscriptions; None to use ``nc``.

        Raises:
            UsageError: A setting of the gateway is invalid, or a file can't be read.
        """
        return Gateway(nc, read_nc=read_nc, tls=self.tls(), **self.gateway)

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context of the server; None for plain TCP.

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
            raise about(UsageError(f"{text}: {exc}"), *_TLS) from exc
        return context


def _check_readable(name: str, path: object) -> None:
    """Check that a file can be read now. nats-py reads credentials only when a server asks for them.

    Raises:
        UsageError: The file can't be read.
    """
    if not isinstance(path, str | os.PathLike):
        return
    try:
        Path(path).read_bytes()
    except OSError as exc:
        text = f"{name} must be a file that can be read, got {os.fspath(path)!r}: {exc.strerror}"
        # The path may be a seed given instead of a file. The OSError contains it too, so it is not chained.
        raise about(UsageError(without_secrets(text)), name) from None


@asynccontextmanager
async def running_gateway(serving: Serving) -> AsyncIterator[tuple[Gateway, EmbeddedNats | None]]:
    """Run a gateway, and an embedded nats-server if configured, while the block runs.

    Args:
        serving: Settings of the gateway.

    Yields:
        The gateway, and the embedded nats-server or None.

    Raises:
        TransportError: NATS can't be reached or started, or the gateway can't listen.
        UsageError: A setting is invalid.
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
        url = serving.nats_url if own is None else own.url
        options = serving.connect if own is None else {**serving.connect, **own.login}
        async with (
            _connection(url, options, "the connection", "no calls are served") as nc,
            _connection(url, options, "the second connection", "subscriptions wait") as read_nc,
            serving.new_gateway(nc, read_nc) as gateway,
        ):
            if own is not None:
                own.on_line = gateway.read_server_log
            yield gateway, own
            await gateway.close(grace=serving.drain)
    finally:
        if own is not None:
            await own.stop()


@asynccontextmanager
async def _connection(
    url: str | None, options: dict[str, Any], which: str, effect: str
) -> AsyncIterator[Client]:
    nc = await _connect(url, options, which, effect)
    try:
        yield nc
    finally:
        await close_connection(nc)


class _FirstConnection:
    """Callbacks of a nats-py connection that is being made: they end the wait if no server accepts the login.

    After the start, they log that the connection is lost or back. Errors then surface in the calls that they
    affect.

    Args:
        nc: The connection.
        which: Its name in the log.
        effect: What its loss means, for the log.

    Attributes:
        connected: Set once the connection is made.
        is_refused: True once every known server has refused the login, one after the other.
        last: Text of the last error, to append to a sentence. Empty if there was none.
        patience: Limits the wait for the connection.
    """

    def __init__(self, nc: Client, which: str, effect: str) -> None:
        self._nc = nc
        self._which = which
        self._effect = effect
        self._refusals = 0
        self.is_refused = False
        self.connected = asyncio.Event()
        self.last = ""
        self.patience = asyncio.timeout(_PATIENCE)

    async def note(self, exc: Exception) -> None:
        """Keep the text of an error; end the wait if every server refuses the login."""
        if self.is_refused:
            return  # an error of the close that follows
        text = str(exc)
        self.last = f": {without_secrets(text)}"
        if self.connected.is_set():
            return
        # nats-py tries one server after the other, and never stops.
        is_refusal = any(refusal in text.lower() for refusal in _REFUSALS)
        self._refusals = self._refusals + 1 if is_refusal else 0
        self.is_refused = is_refusal and self._refusals >= len(self._nc.servers)
        if self.is_refused:
            loop = asyncio.get_running_loop()
            if not self.patience.expired():
                self.patience.reschedule(loop.time())
            # Hold nats-py here: cancelled while it closes a transport, it would leave the transport open.
            await loop.create_future()

    async def lost(self) -> None:
        """Log that the connection is lost."""
        if self.connected.is_set() and not self._nc.is_closed:
            _log.warning("%s to NATS is lost: %s until it is back%s", self._which, self._effect, self.last)

    async def back(self) -> None:
        """Log that the connection is back."""
        if self.connected.is_set():
            _log.warning("%s to NATS is back", self._which)
        self.connected.set()


async def _connect(url: str | None, options: dict[str, Any], which: str, effect: str) -> Client:
    assert url is not None
    nc, shown = Client(), without_secrets(url)
    if not all(map(_has_port, url.split(","))):
        raise TransportError(f"no connection to the NATS server {shown}: its port must be from 0 to 65535")
    first = _FirstConnection(nc, which, effect)
    # Reconnect without limit: a gateway outlives restarts of its NATS server.
    options = {
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": _RECONNECT_PAUSE,
        "disconnected_cb": first.lost,
        "reconnected_cb": first.back,
        **options,
    }
    try:
        async with first.patience:
            await nc.connect(url.split(","), error_cb=first.note, allow_reconnect=True, **options)
            # nats-py also returns if the server closes the connection instead of answering the first PING: so
            # looks a refused login if the server's error is lost. nats-py then reconnects in the background.
            if not nc.is_connected:
                await first.connected.wait()
            first.connected.set()
    except TimeoutError as exc:
        await close_connection(nc)
        why = f"{first.last}: {_LOGIN}" if first.is_refused else f" within {_PATIENCE} s{first.last}"
        raise TransportError(f"no connection to the NATS server {shown}{why}") from exc
    except (nats.errors.Error, OSError) as exc:
        text = f"no connection to the NATS server {shown}: {without_secrets(str(exc))}"
        raise TransportError(text) from exc
    except BaseException:  # such as a cancellation: nats-py may be reconnecting in the background
        await close_connection(nc)
        raise
    return nc


def _has_port(url: str) -> bool:
    """Return whether the port of a URL is a port or absent.

    Some versions of nats-py repeat anything else in their errors, where it may be a password.
    """
    try:
        urlsplit(url if "://" in url else f"nats://{url}").port  # noqa: B018 - it is parsed when it is read
    except ValueError:
        return False
    return True


async def serve(serving: Serving, on_ready: Callable[[Gateway, str], None]) -> None:
    """Serve until SIGINT or SIGTERM, then drain. A second signal has its default effect on the program.

    Args:
        serving: Settings of the gateway.
        on_ready: Called when clients can be served, with the gateway and the URL of its NATS server without
            user and password.

    Raises:
        TransportError: NATS can't be reached or started, the embedded nats-server has ended, or the gateway
            can't listen.
        UsageError: A setting is invalid.
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
    map_large_blocks()
    try:
        async with running_gateway(serving) as (gateway, own):
            # A full garbage collection would look at 40,000 objects of modules, and serve nobody for 20 ms.
            gc.collect()
            gc.freeze()
            on_ready(gateway, without_secrets(serving.nats_url or (own.url if own is not None else "")))
            await _wait(stop, own)
    finally:
        gc.unfreeze()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def map_large_blocks() -> None:
    """Make glibc's malloc return every freed block of 1 MiB or more to the system; elsewhere do nothing.

    By default glibc raises that size to the largest block freed so far, and keeps smaller ones. Incomplete
    messages of 4 MB then left holes: 256 MiB of unread requests took 700 MiB, and their end freed nothing.
    """
    with suppress(
        AttributeError, OSError, TypeError
    ):  # musl and macOS have no mallopt(), Windows no such library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Return False for asyncio's log record about writes to a closed TLS connection.

    While the gateway does not read from a TLS connection, it can't see that the client has left, and asyncio
    logs every write. A client that requests a lot and leaves would fill the log.
    """
    return record.msg != "SSL connection is closed"


async def _wait(stop: asyncio.Event, own: EmbeddedNats | None) -> None:
    waiting = [asyncio.ensure_future(stop.wait())]
    if own is not None:
        waiting.append(asyncio.ensure_future(own.wait()))  # type: ignore[arg-type]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            raise TransportError(
                f"nats-server has ended with status {waiting[1].result()}: see its log above"
            )
    finally:
        for future in waiting:
            future.cancel()
