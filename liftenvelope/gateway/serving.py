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
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, Final, Self

from liftenvelope._checks import about, is_encodable, nearest
from liftenvelope._secrets import without_secrets
from liftenvelope.errors import TransportError, UsageError, UsageTypeError
from liftenvelope.gateway._gateway import Gateway
from liftenvelope.gateway._program.nats_access import check_login, check_readable, client_tls, server_tls
from liftenvelope.gateway._program.nats_connection import check_urls, connection_to
from liftenvelope.gateway.embedded import EmbeddedNats
from liftenvelope.gateway.http_endpoint import NO_PAGES, Pages, check_http, monitor_of, serving_http
from liftenvelope.gateway.limits import Limits
from liftenvelope.gateway.notify import feeding_watchdog, notify, notify_reloading
from liftenvelope.gateway.signals import stopped_by_signals
from liftenvelope.nats.program_client import new_client
from liftenvelope.nats.subjects import check_inbox_prefix
from liftenvelope.rpc.tls import check_server_name

# After liftenvelope.nats, which imports it without aiohttp.
# isort: split
from nats.aio.client import Client

__all__ = [
    "Serving",
    "data_folder",
    "embedded_nats",
    "has_ended",
    "reload",
    "running_gateway",
    "serve",
]

_log: Final = logging.getLogger("liftenvelope.gateway")
_TLS: Final = ("tls_cert", "tls_key", "tls_client_ca")
_NATS_TLS: Final = ("nats_tls_ca", "nats_tls_cert", "nats_tls_key")
#: Parameter of mallopt() for the size of blocks that glibc maps on their own, and that size in bytes.
_MMAP_THRESHOLD: Final = -3
_LARGE_BLOCK: Final = 1 << 20
#: Settings with checks of their types elsewhere.
_OWN_CHECKS: Final = ("connect", "gateway", "limits", "max_message_bytes")


def data_folder() -> Path:
    """Return the default data folder: ``liftenvelope`` in the system's folder for the user's data.

    That folder is ``~/Library/Application Support`` on macOS, ``%LOCALAPPDATA%`` on Windows and
    ``$XDG_DATA_HOME`` or ``~/.local/share`` elsewhere.

    Raises:
        UsageError: The folder is in the user's home directory, and the user has none.
    """
    given = os.environ.get({"darwin": "", "win32": "LOCALAPPDATA"}.get(sys.platform, "XDG_DATA_HOME"))
    try:
        return (Path(given) if given else _home_data()) / "liftenvelope"
    except RuntimeError as exc:  # such as a user id of a container that /etc/passwd does not list
        text = "data_dir must be given: the default is in the home directory, and this user has none"
        raise about(UsageError(text), "data_dir") from exc


def _home_data() -> Path:
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    return home / "AppData" / "Local" if sys.platform == "win32" else home / ".local" / "share"


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
        nats_tls_ca: PEM file of the authority of the certificates of ``nats_url``. Default None: those of the
            system.
        nats_tls_cert, nats_tls_key: PEM files of the client certificate for ``nats_url`` and of its key.
            Default None.
        nats_tls_server_name: Name that the certificates of ``nats_url`` must have. Default None: the host of
            the URL.
        connect: Further arguments of ``nats.connect``, such as ``user_credentials`` and ``inbox_prefix``.
        tls_cert, tls_key: PEM files of the server certificate and its key. Default None: no TLS.
        tls_client_ca: PEM file of the authority that signs client certificates. If given, clients must
            present a certificate. Default None.
        gateway: Arguments of :class:`Gateway`.
        drain: Seconds to finish the open calls when the gateway stops. Default 10.
        http: ``host:port`` on which to serve ``/healthz``, ``/readyz`` and ``/metrics`` by HTTP; port 0 takes
            a free port. It needs the extra ``http``. Default None: no HTTP.

    Raises:
        MissingExtraError: A setting needs a package that is not installed.
        UsageError: The settings contradict each other, a value is invalid, or a file can't be read.
    """

    # Hidden in repr: it may contain a password.
    nats_url: str | None = field(default=None, repr=False)
    data_dir: str | None = None
    nats_host: str = "127.0.0.1"
    nats_port: int = -1
    nats_login: bool = False
    nats_debug: bool = False
    nats_tls_ca: str | None = None
    nats_tls_cert: str | None = None
    nats_tls_key: str | None = None
    nats_tls_server_name: str | None = None
    connect: dict[str, Any] = field(default_factory=dict, repr=False)
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    gateway: dict[str, Any] = field(default_factory=dict)
    drain: float = 10.0
    http: str | None = None

    def __post_init__(self) -> None:
        if (self.nats_url is None) == (self.data_dir is None):
            given = "neither" if self.nats_url is None else "both"
            raise UsageError(f"exactly one of nats_url and data_dir must be given, got {given}")
        if self.nats_url is not None:
            check_urls(self.nats_url)
        if self.data_dir is not None and not (self.data_dir and is_encodable(self.data_dir)):
            # nats-server reads the path from a UTF-8 file. An empty path is the current folder, or a mistake.
            text = f"data_dir must be a path in UTF-8 and not empty, got {self.data_dir!r}"
            raise about(UsageError(text), "data_dir")
        if (self.tls_cert is None) != (self.tls_key is None):
            text = "tls_cert and tls_key belong together: give both or neither"
            raise about(UsageError(text), "tls_cert", "tls_key")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise about(UsageError("tls_client_ca needs tls_cert and tls_key: give them too"), *_TLS)
        if not (math.isfinite(self.drain) and self.drain >= 0):
            raise about(UsageError(f"drain must be at least 0 seconds, got {self.drain!r}"), "drain")
        self._check_nats_tls()
        check_login(self.connect)
        if (prefix := self.connect.get("inbox_prefix")) is not None:
            check_inbox_prefix(prefix)
        for name in (*_TLS, *_NATS_TLS):
            check_readable(name, getattr(self, name))
        self.nats_tls()
        check_http(self.http)
        # Lets the gateway check its arguments before anything is started or connected.
        self.new_gateway(Client(), None)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return the settings that a JSON object holds, where the limits are an object as well.

        Raises:
            UsageError: A setting is unknown or invalid.
        """
        given = _checked("the settings", values, _defaults(cls))
        _known("connect", given.get("connect", {}), signature(Client.connect).parameters.keys() - {"self"})
        gateway = dict(_checked("gateway", given.get("gateway", {}), _defaults(Gateway)))
        if (limits := gateway.get("limits")) is not None:
            gateway["limits"] = Limits(**_known("limits", limits, _defaults(Limits)))
        return cls(**{**given, "gateway": gateway})

    @property
    def needs_nats_login(self) -> bool:
        """True if clients of the embedded server must log in; False without one."""
        policy = self.gateway.get("policy_file")
        return self.data_dir is not None and (self.nats_login or policy is not None)

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
        return server_tls(self.tls_cert, self.tls_key, self.tls_client_ca)

    def nats_tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections to NATS; None to leave it to the server whether TLS is used.

        Raises:
            UsageError: A file can't be read.
        """
        if self.nats_tls_ca is None and self.nats_tls_cert is None:
            return None
        return client_tls(self.nats_tls_ca, self.nats_tls_cert, self.nats_tls_key)

    def _check_nats_tls(self) -> None:
        for name in (*_NATS_TLS, "nats_tls_server_name"):
            if self.nats_url is None and getattr(self, name) is not None:
                raise about(UsageError(f"{name} needs nats_url: the embedded server has no TLS"), name)
        if (self.nats_tls_cert is None) != (self.nats_tls_key is None):
            text = "nats_tls_cert and nats_tls_key belong together: give both or neither"
            raise about(UsageError(text), "nats_tls_cert", "nats_tls_key")
        if self.nats_tls_server_name is not None:
            check_server_name(self.nats_tls_server_name, "nats_tls_server_name")


def _defaults(kind: type) -> dict[str, object]:
    """Return the arguments of a class that JSON can hold, with their defaults."""
    found = {name: one.default for name, one in signature(kind).parameters.items()}
    return {name: default for name, default in found.items() if name not in ("nc", "read_nc", "tls")}


def _known(where: str, values: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return an object of JSON whose keys are all known.

    Raises:
        UsageError: A key is unknown.
        UsageTypeError: It is no object.
    """
    if not isinstance(values, dict):
        raise UsageTypeError(f"{where} must be a JSON object, got {type(values).__name__}")
    known = set(names)
    for name in values:
        if name not in known:
            raise UsageError(f"{name!r} is unknown in {where}: {nearest(name, known)}")
    return values


def _checked(where: str, values: Any, defaults: Mapping[str, object]) -> dict[str, Any]:
    """Return an object of JSON whose keys are known and whose values have the types of the defaults.

    Raises:
        UsageError: A key is unknown.
        UsageTypeError: It is no object, or a value has another type.
    """
    for name, value in _known(where, values, defaults).items():
        default = defaults[name]
        if value is default or name in _OWN_CHECKS:
            continue
        expected = str if default is None else type(default)
        types = (int, float) if expected is float else (expected,)
        if not isinstance(value, types) or (isinstance(value, bool) and expected is not bool):
            raise UsageTypeError(f"{name} must be {expected.__name__}, got {type(value).__name__}")
    return dict(values)


@asynccontextmanager
async def running_gateway(
    serving: Serving,
    on_http: Callable[[str], None] = lambda _: None,
    on_gateway: Callable[[Gateway], None] = lambda _: None,
    pages: Pages = NO_PAGES,
) -> AsyncIterator[tuple[Gateway, EmbeddedNats | None]]:
    """Run a gateway, and an embedded nats-server and an HTTP server if configured, while the block runs.

    The HTTP server starts first, so that it tells why the gateway is not ready, and ends last.

    Args:
        serving: Settings of the gateway.
        on_http: Called with the address of the HTTP server when it listens.
        on_gateway: Called with the gateway before anything is started.
        pages: Further pages of the HTTP server.

    Yields:
        The gateway, and the embedded nats-server or None.

    Raises:
        TransportError: NATS can't be reached or started, or the gateway can't listen.
        UsageError: A setting is invalid.
    """
    nats_tls = serving.nats_tls()
    urls = [] if serving.nats_url is None else serving.nats_url.split(",")
    nc, read_nc = (new_client(urls, tls=nats_tls is not None) for _ in range(2))
    gateway = serving.new_gateway(nc, read_nc)
    on_gateway(gateway)
    async with (
        serving_http(lambda: monitor_of(gateway), serving.http, on_http, pages),
        embedded_nats(serving) as own,
    ):
        url = serving.nats_url if own is None else own.url
        secure = {"tls": nats_tls, "tls_hostname": serving.nats_tls_server_name}
        options = {
            **serving.connect,
            **{name: value for name, value in secure.items() if value is not None},
            **(own.login if own is not None else {}),
        }
        async with (
            connection_to(nc, url, options, "the connection", "no calls are served"),
            connection_to(read_nc, url, options, "the second connection", "subscriptions wait"),
            gateway,
        ):
            if own is not None:
                own.on_line = gateway.read_server_log
            yield gateway, own
            await gateway.close(grace=serving.drain)


@asynccontextmanager
async def embedded_nats(serving: Serving) -> AsyncIterator[EmbeddedNats | None]:
    """Run the nats-server of the settings while the block runs.

    Args:
        serving: Settings of the gateway.

    Yields:
        The server; None if the settings name running servers.

    Raises:
        TransportError: The server can't be started.
        UsageError: There is no nats-server to start, or its folder can't be used.
    """
    if serving.data_dir is None:
        yield None
        return
    own = EmbeddedNats(
        Path(serving.data_dir),
        host=serving.nats_host,
        port=serving.nats_port,
        open_to_publishers=not serving.needs_nats_login,
        config={"debug": True} if serving.nats_debug else {},
    )
    await own.start()
    try:
        yield own
    finally:
        await own.stop()


async def serve(
    serving: Serving,
    on_ready: Callable[[Gateway, str], None],
    on_http: Callable[[str], None] = lambda _: None,
    on_gateway: Callable[[Gateway], None] = lambda _: None,
    pages: Pages = NO_PAGES,
) -> None:
    """Serve until SIGINT or SIGTERM, then drain. A second signal has its default effect on the program.

    SIGHUP reads the certificates and the policy file again: see :func:`reload`. During the start, that waits
    until the gateway is ready. If systemd started the program with ``Type=notify``, it is told when the
    gateway is ready, reloads and stops.

    Args:
        serving: Settings of the gateway.
        on_ready: Called when clients can be served, with the gateway and the URL of its NATS server without
            user and password.
        on_http: Called before that with the address of the HTTP server, when it listens.
        on_gateway: Called first, with the gateway that is not started yet.
        pages: Further pages of the HTTP server.

    Raises:
        TransportError: NATS can't be reached or started, the embedded nats-server has ended, or the gateway
            can't listen.
        UsageError: A setting is invalid.
    """
    loop = asyncio.get_running_loop()
    logging.getLogger("asyncio").addFilter(_is_worth_a_line)
    map_large_blocks()
    with stopped_by_signals() as stop:
        must_reload = asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, must_reload.set)
        try:
            async with (
                feeding_watchdog(),
                running_gateway(serving, on_http, on_gateway, pages) as (gateway, own),
            ):
                # A full collection would look at 40,000 objects of modules, and serve nobody for 20 ms.
                gc.collect()
                gc.freeze()
                on_ready(gateway, without_secrets(serving.nats_url or (own.url if own is not None else "")))
                loop.add_signal_handler(signal.SIGHUP, _reload_and_notify, serving, gateway)
                notify("READY=1", f"STATUS=serving on {gateway.address}")
                if must_reload.is_set():
                    _reload_and_notify(serving, gateway)
                await _wait(stop, own)
                loop.add_signal_handler(signal.SIGHUP, lambda: None)  # it must not end the drain
                notify("STOPPING=1", f"STATUS=draining, for at most {serving.drain} s")
        finally:
            gc.unfreeze()


def reload(serving: Serving, gateway: Gateway) -> None:
    """Read the certificates and the policy file again, for new connections; open ones stay.

    If the certificates can't be used, or the policy can't be parsed, one error is logged for them and the
    previous ones stay in use.

    Args:
        serving: Settings of the gateway, which name the files.
        gateway: The running gateway.
    """
    try:
        tls, nats_tls = serving.tls(), serving.nats_tls()
    except UsageError as exc:
        _log.error("keeping the previous certificates: %s", exc)
        gateway.reload()
    else:
        gateway.reload(tls=tls, nats_tls=nats_tls)
        if tls is not None or nats_tls is not None:
            _log.info("reloaded the certificates: new connections use them")


def _reload_and_notify(serving: Serving, gateway: Gateway) -> None:
    notify_reloading()
    reload(serving, gateway)
    notify("READY=1", f"STATUS=serving on {gateway.address}")


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
            raise has_ended(waiting[1].result())
    finally:
        for future in waiting:
            future.cancel()


def has_ended(status: int) -> TransportError:
    """Return the error for an embedded nats-server that has ended by itself, with its exit status."""
    return TransportError(f"nats-server has ended with status {status}: see its log above")
