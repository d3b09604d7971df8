"""Decides who may see the monitor, and what a browser may do with it.

**Names.** To refuse DNS rebinding, a request must name an IP address, ``localhost``, or a host that the
operator has allowed (``liftenvelope/rpc/http_hosts.py``).

**Login.** On loopback, none is needed unless a token is set. Elsewhere a token is required, as
``Authorization: Bearer`` or once in the login form, which sets a cookie for this process alone. Behind a
reverse proxy that logs users in, a header of the proxy can take its place.

**Content.** The policy allows scripts and styles of this server alone, none inline. So text of a publisher
that reached the page as HTML would still do nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from liftenvelope.errors import UsageError
from liftenvelope.rpc.address import is_loopback
from liftenvelope.rpc.http_hosts import host_of, is_fixed_host, name_of_host
from liftenvelope.rpc.places import client_of

__all__ = ["Guard", "MonitorAccess", "body_of", "same"]

_COOKIE: Final = "liftenvelope_monitor"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "liftenvelope",
}
_SHORTEST: Final = 16
#: Seconds that a wrong token costs, and logins that may be under way.
_PENALTY: Final = 0.5
_LOGINS: Final = 4
#: A token of RFC 9110, and what the host of a URL consists of.
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
#: Characters of the name of a user in the log.
_USER: Final = 200
#: Requests that need no login: the form and its style.
_OPEN: Final = frozenset({"/login", "/static/style.css", "/static/icon.svg"})


@dataclass(frozen=True, kw_only=True)
class MonitorAccess:
    """Access rule of the monitor.

    Attributes:
        token: Token that is required; empty for none.
        user_header: Header by which a reverse proxy names the user; empty for none.
        hosts: Host names, besides IP addresses and ``localhost``, by which the monitor may be called.
    """

    token: str = field(default="", repr=False)
    user_header: str = ""
    hosts: tuple[str, ...] = ()

    def check(self, host: str) -> None:
        """Check that an address may be listened on.

        Raises:
            UsageError: The token is short, the address is not loopback and nothing protects it, or a name is
                none that a request can have.
        """
        if self.user_header and not _HEADER_NAME.fullmatch(self.user_header):
            text = "user_header must be the name of an HTTP header, such as X-User"
            raise UsageError(f"{text}, got {self.user_header!r}")
        for name in self.hosts:
            if not _HOST_NAME.fullmatch(name):
                text = "hosts must be names such as monitor.example.org, without a port"
                raise UsageError(f"{text}, got {name!r}")
        if self.token and len(self.token) < _SHORTEST:
            raise UsageError(f"token must have at least {_SHORTEST} characters, got {len(self.token)}")
        if not (self.token or self.user_header or is_loopback(host)):
            text = "http must be a loopback address such as 127.0.0.1:8040 without a token"
            raise UsageError(f"{text}, got {host}: set --token or LIFTENVELOPE_MONITOR_TOKEN")


class Guard:
    """Middleware of the monitor.

    Args:
        access: Who may see it.
        path: Path of the application; empty for the root.
    """

    def __init__(self, access: MonitorAccess, path: str = "") -> None:
        self._access = access
        self._path = path
        self._hosts = frozenset(host.lower() for host in access.hosts)
        self._session = secrets.token_urlsafe(32)
        self._logins = asyncio.Semaphore(_LOGINS)

    @property
    def middleware(self) -> Middleware:
        """The function for :class:`aiohttp.web.Application`."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            refusal = self._refusal(request)
            return await handler(request) if refusal is None else refusal

        return guarded

    @staticmethod
    async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
        """Add the headers of every answer."""
        response.headers.update(_HEADERS)

    def _refusal(self, request: web.Request) -> web.Response | None:
        host = host_of(request)
        if not (is_fixed_host(host) or name_of_host(host) in self._hosts):
            return web.Response(status=421, text="this name is not allowed: start with --allow-host\n")
        path = request.path.removeprefix(self._path)
        is_api = path.startswith("/api/")
        is_foreign = request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")
        if (is_foreign and (is_api or request.method != "GET")) or (is_api and not self._is_of_page(request)):
            return web.Response(status=403, text="requests of other sites are refused\n")
        if path in _OPEN or self._is_known(request):
            return None
        if path == "/" and self._access.token:
            return _see("login")
        return web.Response(status=401, text="a token is required\n", headers={"WWW-Authenticate": "Bearer"})

    def _is_of_page(self, request: web.Request) -> bool:
        """Return False for an origin that is another site. Programs and old browsers send no origin.

        It is not asked of the login form, whose origin is ``null`` because of the referrer policy.
        """
        origin = request.headers.get("Origin")
        if origin is None:
            return True
        host = origin.partition("://")[2]
        # A proxy may pass on another name than the one that its clients see.
        return host.lower() == host_of(request).lower() or name_of_host(host) in self._hosts

    def user_of(self, request: web.Request) -> str:
        """Return who sent a request, for the log: the user that a proxy names, or else the address."""
        return self._named(request) or f"a user at {request.remote}"

    def client(self, request: web.Request) -> str:
        """Return whom a request counts for: the user that a proxy names, or else the address."""
        transport = request.transport
        peer = None if transport is None else transport.get_extra_info("peername")
        return self._named(request) or client_of(peer)

    def _named(self, request: web.Request) -> str:
        header = self._access.user_header
        return request.headers.get(header, "")[:_USER] if header else ""

    def _is_known(self, request: web.Request) -> bool:
        access = self._access
        if not (access.token or access.user_header):
            return True
        if access.user_header and request.headers.get(access.user_header):
            return True
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if access.token and scheme.lower() == "bearer" and same(token.strip(), access.token):
            return True
        return bool(access.token) and same(request.cookies.get(_COOKIE, ""), self._session)

    async def log_in(self, request: web.Request) -> web.Response:
        """Answer the login form: set the cookie if the token is right.

        Raises:
            web.HTTPException: The form is too large or can't be read.
        """
        # Before a place is taken: its sender may take its time.
        form = parse_qs((await body_of(request)).decode("utf-8", "replace"))
        if self._logins.locked():
            return web.Response(status=429, text="too many logins at once\n")
        async with self._logins:
            given = form.get("token", [""])[0]
            if self._access.token and same(given, self._access.token):
                answer = _see("./")
                answer.set_cookie(
                    _COOKIE, self._session, path=f"{self._path}/", httponly=True, samesite="Lax"
                )
                return answer
            await asyncio.sleep(_PENALTY)
            return _see("login?wrong")


async def body_of(request: web.Request) -> bytes:
    """Return the body of a request.

    aiohttp's own readers of forms and JSON fail for an unknown charset and the like, as errors of ours.

    Raises:
        web.HTTPException: The body is too large, or its transfer or compression is broken.
    """
    try:
        return await request.read()
    except (HttpProcessingError, web.RequestPayloadError):
        raise web.HTTPBadRequest(text="the body can't be read\n") from None


def _see(place: str) -> web.Response:
    return web.Response(status=303, headers={"Location": place})


def same(one: str, other: str) -> bool:
    """Compare two secrets in a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))
