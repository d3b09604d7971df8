"""Names in the ``Host`` header of HTTP requests, to refuse DNS rebinding.

A page of another site can have its own name resolved to this machine and then read the answers of a server
here as its own (DNS rebinding). It can't use an IP address or ``localhost`` for that.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["host_of", "is_fixed_host", "name_of_host"]


def host_of(request: web.Request) -> str:
    """Return the header ``Host``; ``localhost`` without the header, which browsers always send.

    ``request.host`` of aiohttp before 3.14 would then ask a DNS server for the name of this machine, and
    block the event loop.
    """
    return request.headers.get("Host", "localhost")


def name_of_host(host: str) -> str:
    """Return the name or the IP address of ``host:port``, in lower case.

    Example:
        >>> name_of_host("Example.org:8040"), name_of_host("[::1]:8040"), name_of_host("localhost")
        ('example.org', '::1', 'localhost')
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return name.strip("[]").lower()


def is_fixed_host(host: str) -> bool:
    """Return True if no DNS server decides where ``host:port`` is: for an IP address or ``localhost``.

    Example:
        >>> is_fixed_host("127.0.0.1:8040"), is_fixed_host("example.org:8040")
        (True, False)
    """
    name = name_of_host(host)
    try:
        ip_address(name)
    except ValueError:
        return name == "localhost"
    return True
