"""HTTP server of a command: ``/healthz``, ``/readyz``, ``/metrics``, and pages below further paths.

Each connection has the limits of :class:`HttpConnections`.

On a loopback address, a request must name an IP address or ``localhost``: pages in a browser of this machine
could else read the metrics (DNS rebinding). On other addresses, everybody who reaches the port can read them,
and Prometheus may call it by a name of a service.

Metrics are rendered in pieces between turns of the event loop, for all requests of half a second together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest

from liftenvelope.gateway._program.monitored import NO_PAGES, Monitored, Pages
from liftenvelope.gateway.metrics import GatewayCollector
from liftenvelope.rpc.address import is_loopback
from liftenvelope.rpc.http_connections import HttpConnections
from liftenvelope.rpc.http_hosts import host_of, is_fixed_host
from liftenvelope.rpc.listening import Listener

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Exposed

    from liftenvelope.gateway._gateway import Gateway
    from liftenvelope.gateway.limits import Limits

__all__ = ["GatewayMonitor", "HttpServer"]

_log: Final = logging.getLogger("liftenvelope.gateway.http")
#: Seconds to wait for the metrics that only JetStream knows.
_REFRESH: Final = 2.0
#: Seconds for which rendered metrics answer further requests.
_FRESH: Final = 0.5
#: Seconds for open requests when the server closes.
_ENDING: Final = 1.0
#: Seconds for a TLS handshake, which this server does not do.
_HANDSHAKE: Final = 10.0


class GatewayMonitor:
    """The health and the metrics of a gateway, started or not.

    Args:
        gateway: The gateway.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._collector = GatewayCollector(gateway)
        self._process = ProcessCollector(registry=None)

    @property
    def limits(self) -> Limits:
        """Limits on clients."""
        return self._gateway.limits

    def look(self) -> tuple[bool, str]:
        """Return whether the gateway is ready, and a line for each unmet condition."""
        readiness = self._gateway.readiness()
        if readiness.is_ready:
            return True, "ready\n"
        return False, "".join(f"{name}: {reason}\n" for name, reason in readiness.reasons.items())

    async def families(self) -> list[Exposed]:
        """Return the metrics of the gateway and of its process, all of one moment."""
        await self._gateway.refresh_metrics(timeout=_REFRESH)
        return [*self._collector.collect(), *self._process.collect()]


class HttpServer:
    """Serves health, metrics and pages.

    Args:
        source: Tells the health and the metrics; its limits apply.
        pages: Applications by their paths.
    """

    def __init__(self, source: Monitored, pages: Pages = NO_PAGES) -> None:
        self._source = source
        self._scrape = _Scrape(source)
        self._is_loopback = True
        app = web.Application(middlewares=[self._guard])
        self._own = frozenset({"/healthz", "/readyz", "/metrics"})
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        for path, page in pages.items():
            app.router.add_get(path, _slash_added)
            app.add_subapp(path, page)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_quiet_logger(),
            keepalive_timeout=0.0,
            lingering_time=0.0,
            shutdown_timeout=_ENDING,
        )
        limits = source.limits
        self._connections = HttpConnections(
            self._protocol,
            most=limits.max_http_connections,
            max_bytes=limits.max_http_request_bytes,
            timeout=limits.http_timeout,
        )
        app.on_response_prepare.append(self._connections.close_afterwards)
        self._listener = Listener(
            self._connections.new, tls=None, admits=lambda *_: True, handshake_timeout=_HANDSHAKE
        )

    async def start(self, host: str, port: int) -> str:
        """Start to listen; return the address, as ``host:port``.

        Args:
            host: Host name or IP address to listen on.
            port: Port to listen on; 0 for any free port.

        Raises:
            TransportError: Binding or listening failed.
        """
        self._is_loopback = is_loopback(host)
        await self._runner.setup()
        await self._listener.start(host, port)
        return self._listener.address

    async def close(self) -> None:
        """Stop listening and close all connections. Closing a server that did not start is fine."""
        self._listener.close()
        await self._listener.wait_closed()
        await self._runner.cleanup()
        self._connections.abort()
        await self._scrape.close()

    def _protocol(self) -> asyncio.Protocol:
        assert self._runner.server is not None
        return self._runner.server()

    @property
    def _guard(self) -> Middleware:
        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            # Further pages protect themselves.
            is_own = self._is_loopback and request.path in self._own
            if is_own and not is_fixed_host(host_of(request)):
                return web.Response(status=421, text="the host must be an IP address or localhost\n")
            return await handler(request)

        return guarded

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        is_ready, text = self._source.look()
        return web.Response(status=200 if is_ready else 503, text=text)

    async def _metrics(self, _: web.Request) -> web.Response:
        body = await self._scrape.result()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _slash_added(request: web.Request) -> web.Response:
    """Redirect to the path with a slash at its end, so that links of the page are below it."""
    return web.Response(status=308, headers={"Location": f"{request.path.rpartition('/')[2]}/"})


def _quiet_logger() -> logging.Logger:
    """Return a logger without the records of malformed requests: any peer could fill the log with them."""
    logger = _log.getChild("requests")
    logger.addFilter(_is_own_fault)
    return logger


def _is_own_fault(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


class _Scrape:
    """Renders metrics, once for all requests at about the same time."""

    def __init__(self, source: Monitored) -> None:
        self._source = source
        self._rendering: asyncio.Task[bytes] | None = None
        self._expires = 0.0

    async def result(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        now = asyncio.get_running_loop().time()
        if self._rendering is None or (self._rendering.done() and now >= self._expires):
            self._rendering = asyncio.create_task(self._render(), name="render metrics")
        return await asyncio.shield(self._rendering)

    async def close(self) -> None:
        """Cancel the rendering."""
        if self._rendering is not None:
            self._rendering.cancel()
            await asyncio.wait([self._rendering])

    async def _render(self) -> bytes:
        # One moment for all values. Rendering takes several times as long as reading.
        families = await self._source.families()
        self._expires = asyncio.get_running_loop().time() + _FRESH
        pieces = []
        for family in families:
            pieces.append(generate_latest(_Registry([family])))
            await asyncio.sleep(0)
        return b"".join(pieces)


class _Registry:
    """Metrics in the shape that prometheus_client renders."""

    def __init__(self, families: Iterable[Exposed]) -> None:
        self._families = families

    def collect(self) -> Iterator[Exposed]:
        """Yield the metrics."""
        return iter(self._families)
