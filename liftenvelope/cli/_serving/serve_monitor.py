"""The monitor's pages inside ``liftenvelope serve --http``: settings, and their connection to the gateway.

The pages are a client of the gateway like any other, so a policy file holds for them too. They are served by
the process that has the HTTP server: the gateway's own, or the supervisor's with several workers.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from liftenvelope._checks import require
from liftenvelope.errors import UsageError
from liftenvelope.rpc.tls_files import client_context

if TYPE_CHECKING:
    from liftenvelope.cli._serving.configuration import Configuration
    from liftenvelope.gateway.http_endpoint import Pages
    from liftenvelope.gateway.serving import Serving
    from liftenvelope.monitor import Sampler
    from liftenvelope.monitor.server import MonitorAccess, MonitorLink

__all__ = ["MONITOR_PATH", "ServeMonitor", "monitor_settings"]

#: Path below which the pages are served.
MONITOR_PATH: Final = "/monitor"
_TIMEOUT: Final = 10.0
#: Bytes of a file with a token.
_LARGEST: Final = 4_096


@dataclass(frozen=True, kw_only=True)
class ServeMonitor:
    """Pages of the monitor beside a gateway.

    Attributes:
        access: Who may see them.
        payloads: Show payloads, keys and headers.
        changes: Allow changes.
        interval: Seconds between two samples.
        max_pages: Pages that may be open at once.
        tls: PEM files to connect to the gateway: authority, certificate, key; None for plain TCP.
        pinned: The first of these files is the gateway's own certificate.
        advertise: Address that clients are told; None for the listening address.
    """

    access: MonitorAccess
    payloads: bool
    changes: bool
    interval: float = 2.0
    max_pages: int = 32
    tls: tuple[str, str | None, str | None] | None = field(default=None, repr=False)
    pinned: bool = True
    advertise: str | None = None

    @asynccontextmanager
    async def serving(
        self, started: asyncio.Future[Sequence[str]], http: asyncio.Future[str]
    ) -> AsyncIterator[Pages]:
        """Take samples while the block runs, and yield the pages for the HTTP server.

        Args:
            started: Completed with the addresses of the gateways when they serve clients.
            http: Completed with the address of the HTTP server, whose metrics are shown.
        """
        from liftenvelope.monitor import Collector
        from liftenvelope.monitor.server import MonitorLink, MonitorPages, taking_samples

        link = MonitorLink()
        collector = Collector(
            lambda: self._sampler(link, started, http), kind="liftbridge", interval=self.interval
        )
        pages = MonitorPages(
            collector,
            link=link,
            access=self.access,
            where="this gateway",
            payloads=self.payloads,
            changes=self.changes,
            max_readers=self.max_pages,
            path=MONITOR_PATH,
        )
        async with taking_samples(collector, isolated=True):  # the gateway goes on in any case
            yield {MONITOR_PATH: pages.app}

    @asynccontextmanager
    async def _sampler(
        self, link: MonitorLink, started: asyncio.Future[Sequence[str]], http: asyncio.Future[str]
    ) -> AsyncIterator[Sampler]:
        from liftenvelope.client import connect
        from liftenvelope.monitor.gateways import with_gateways

        addresses = [self.advertise] if self.advertise else list(await asyncio.shield(started))
        async with connect(addresses, tls=self.tls_context(), timeout=_TIMEOUT) as client:
            metrics = f"http://{await asyncio.shield(http)}/metrics"
            with link.to_liftbridge(client) as own:
                async with with_gateways(own, [metrics]) as sampler:
                    yield sampler

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for the next connection, with the present files.

        Raises:
            UsageError: A file can't be read, or the files do not belong together.
        """
        if self.tls is None:
            return None
        ca, cert, key = self.tls
        try:
            context = client_context(ca, cert, key)
        except OSError as exc:  # ssl.SSLError is an OSError
            text = "--monitor-tls-ca, --monitor-tls-cert and --monitor-tls-key must be PEM files"
            raise UsageError(f"{text} that belong together, got {ca!r}, {cert!r} and {key!r}: {exc}") from exc
        if self.pinned:
            # The certificate itself is trusted, whatever name it has and whoever has signed it.
            context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
            context.check_hostname = False
        return context


def monitor_settings(configuration: Configuration, serving: Serving) -> ServeMonitor | None:
    """Return the settings of the pages, checked; None if they are not wanted.

    Raises:
        MissingExtraError: The package aiohttp is not installed.
        UsageError: A setting is invalid, or contradicts another one.
    """
    given: Mapping[str, object] = {
        name: configuration[name] for name in ("monitor_token_file", "monitor_user_header", "monitor_hosts",
        "monitor_tls_ca", "monitor_tls_cert", "monitor_tls_key", "monitor_allow_changes")
    }  # fmt: skip
    if not configuration["monitor"]:
        for name, value in given.items():
            if value:
                raise UsageError(f"{configuration.where(name)} needs --monitor")
        return None
    if serving.http is None:
        raise UsageError(f"{configuration.where('monitor')} needs --http: the address to serve the pages on")
    require("aiohttp", "http")
    found = ServeMonitor(
        access=_access(configuration, serving.http),
        payloads=configuration["monitor_payloads"],
        changes=configuration["monitor_allow_changes"],
        interval=configuration["monitor_interval"],
        max_pages=configuration["monitor_max_pages"],
        tls=_tls(configuration, serving),
        pinned=configuration["monitor_tls_ca"] is None,
        advertise=serving.gateway.get("advertise"),
    )
    found.tls_context()
    return found


def _access(configuration: Configuration, http: str) -> MonitorAccess:
    from liftenvelope.gateway.http_endpoint import http_address
    from liftenvelope.monitor.server import MonitorAccess

    hosts = configuration["monitor_hosts"] or ""
    access = MonitorAccess(
        token=_token(configuration),
        user_header=configuration["monitor_user_header"] or "",
        hosts=tuple(name.strip() for name in hosts.split(",") if name.strip()),
    )
    try:
        access.check(http_address(http).host)
    except UsageError as exc:
        text = str(exc).partition(": set --token")[0]
        raise UsageError(f"{text}: set --monitor-token-file or --monitor-user-header") from exc
    return access


def _token(configuration: Configuration) -> str:
    path = configuration["monitor_token_file"]
    if path is None:
        return ""
    where = configuration.where("monitor_token_file")
    try:
        with Path(path).open("rb") as file:
            token = file.read(_LARGEST).decode().strip()
    except (OSError, ValueError) as exc:  # a file that is not UTF-8 is a ValueError
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise UsageError(f"{where} must be a file that can be read, got {path!r}: {reason}") from exc
    if not token:
        raise UsageError(f"{where} must hold a token, {path!r} is empty")
    return token


def _tls(configuration: Configuration, serving: Serving) -> tuple[str, str | None, str | None] | None:
    ca, cert, key = (configuration[f"monitor_tls_{part}"] for part in ("ca", "cert", "key"))
    if (cert is None) != (key is None):
        raise UsageError("--monitor-tls-cert and --monitor-tls-key belong together: give both or neither")
    if serving.tls_cert is None:
        if ca or cert:
            text = "--monitor-tls-ca and --monitor-tls-cert need --tls-cert"
            raise UsageError(f"{text}: the gateway has no TLS")
        return None
    if serving.tls_client_ca is not None and cert is None:
        text = "--monitor needs --monitor-tls-cert and --monitor-tls-key"
        raise UsageError(f"{text}: --tls-client-ca makes clients show a certificate")
    return ca or serving.tls_cert, cert, key
