"""HTTP server of a command: health, metrics and further pages. It is loaded only if there is an address.

:func:`serving_http` serves any :class:`Monitored`: a gateway, several workers, or another program.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from liftenvelope._checks import about, as_full_text, require
from liftenvelope.errors import UsageError
from liftenvelope.gateway._program.monitored import NO_PAGES, Monitored, Pages
from liftenvelope.rpc.address import Address, parse_address

if TYPE_CHECKING:
    from liftenvelope.gateway._gateway import Gateway

__all__ = ["NO_PAGES", "Monitored", "Pages", "check_http", "http_address", "monitor_of", "serving_http"]


def http_address(http: str) -> Address:
    """Parse ``host:port``, where port 0 stands for any free port.

    Raises:
        UsageError: The address is malformed.
    """
    text = as_full_text("http", http)
    try:
        return parse_address(text, any_port=True)
    except UsageError as exc:
        raise about(UsageError(f"http: {exc}"), "http") from exc


def check_http(http: str | None) -> None:
    """Check that HTTP can be served on this address. None stands for no HTTP.

    Raises:
        MissingExtraError: The extra ``http`` is not installed.
        UsageError: The address is malformed.
    """
    if http is not None:
        http_address(http)
        for module in ("aiohttp", "prometheus_client"):
            require(module, "http")


def monitor_of(gateway: Gateway) -> Monitored:
    """Return the health and the metrics of a gateway, for :func:`serving_http`."""
    from liftenvelope.gateway._program.http import GatewayMonitor

    return GatewayMonitor(gateway)


@asynccontextmanager
async def serving_http(
    monitor: Callable[[], Monitored],
    http: str | None,
    on_http: Callable[[str], None],
    pages: Pages = NO_PAGES,
) -> AsyncIterator[None]:
    """Serve health and metrics by HTTP while the block runs.

    Args:
        monitor: Returns what tells the health and the metrics. Called only if there is an HTTP server.
        http: Address to listen on; None for no HTTP.
        on_http: Called with the address when the server listens.
        pages: Applications to serve below further paths. They protect themselves.

    Raises:
        TransportError: Binding or listening failed.
    """
    if http is None:
        yield
        return
    from liftenvelope.gateway._program.http import HttpServer

    server = HttpServer(monitor(), pages)
    try:
        on_http(await server.start(*http_address(http)))
        yield
    finally:
        await server.close()
