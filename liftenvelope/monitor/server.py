"""HTTP server of the live page: files, server-sent events, and messages on request.

Readers get the newest state. A reader that takes its time misses states in between, and has no queue.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from importlib.resources import files
from typing import Final

from aiohttp import web

from liftenvelope._checks import as_count
from liftenvelope._secrets import without_secrets
from liftenvelope.errors import LiftEnvelopeError, UsageError
from liftenvelope.monitor._collector import Collector
from liftenvelope.monitor._guard import Guard, MonitorAccess
from liftenvelope.monitor._reading import JetStreamMessages, LiftbridgeMessages, MessageQuery, MessageSource
from liftenvelope.monitor._views import View, messages_json
from liftenvelope.rpc.address import Address
from liftenvelope.rpc.listening import Listener

__all__ = [
    "JetStreamMessages",
    "LiftbridgeMessages",
    "MonitorAccess",
    "MonitorServer",
    "serving_monitor",
]

_log: Final = logging.getLogger("liftenvelope.monitor")
_TYPES: Final = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain",
}
#: Pages that are kept up to date, and the number of names in the address of each.
_PAGES: Final = {"streams": 0, "readers": 0, "stream": 1, "consumer": 2, "group": 1}
#: Readers, connections, reads of messages at once, and messages of a read.
_MAX_READERS: Final = 32
_MAX_CONNECTIONS: Final = 128
_MAX_READS: Final = 4
_MAX_MESSAGES: Final = 50
#: Seconds without a state after which a comment shows that the connection lives; to take a state; to close.
_QUIET: Final = 10.0
_STUCK: Final = 30.0
_ENDING: Final = 1.0
#: Bytes of a request: a form with a token at most.
_REQUEST: Final = 4 * 1024


class MonitorServer:
    """Serves the pages of a collector.

    Args:
        collector: Takes the samples; it must run.
        source: Returns the current reader of messages; None while there is no connection.
        access: Who may see the pages.
        where: Addresses of the servers, without a login.
        payloads: Show payloads, keys and headers.
        max_readers: Pages that may be open at once.
    """

    def __init__(
        self,
        collector: Collector,
        *,
        source: MessageSourceHolder,
        access: MonitorAccess,
        where: str,
        payloads: bool = True,
        max_readers: int = _MAX_READERS,
    ) -> None:
        self._collector = collector
        self._source = source
        self._where = where
        self._payloads = payloads
        self._max_readers = as_count("max_readers", max_readers)
        self._readers = 0
        self._reads = asyncio.Semaphore(_MAX_READS)
        self._closing = asyncio.Event()
        guard = Guard(access)
        app = web.Application(middlewares=[guard.middleware], client_max_size=_REQUEST)
        app.router.add_get("/", self._index)
        app.router.add_get("/login", self._login)
        app.router.add_post("/login", guard.log_in)
        app.router.add_get("/static/{name}", self._file)
        app.router.add_get("/api/about", self._about)
        app.router.add_get("/api/events", self._events)
        app.router.add_get("/api/messages", self._messages)
        app.on_response_prepare.append(guard.add_headers)
        logger = _log.getChild("requests")
        logger.setLevel(logging.CRITICAL)  # any peer could fill the log with malformed requests
        self._runner = web.AppRunner(app, access_log=None, logger=logger, shutdown_timeout=_ENDING)
        self._listener = Listener(self._protocol, tls=None, is_full=self._is_full, handshake_timeout=_STUCK)

    async def start(self, address: Address) -> str:
        """Start to listen; return the address, as ``host:port``.

        Raises:
            TransportError: Binding or listening failed.
        """
        await self._runner.setup()
        await self._listener.start(*address)
        return self._listener.address

    async def close(self) -> None:
        """Stop listening and end the pages that are open."""
        self._closing.set()
        self._listener.close()
        await self._listener.wait_closed()
        await self._runner.cleanup()

    def _protocol(self) -> asyncio.Protocol:
        assert self._runner.server is not None
        return self._runner.server()

    def _is_full(self, opening: int) -> bool:
        assert self._runner.server is not None
        return len(self._runner.server.connections) + opening >= _MAX_CONNECTIONS

    # Files

    async def _index(self, _: web.Request) -> web.Response:
        return _page("index.html")

    async def _login(self, _: web.Request) -> web.Response:
        return _page("login.html")

    async def _file(self, request: web.Request) -> web.Response:
        return _page(request.match_info["name"])

    async def _about(self, _: web.Request) -> web.Response:
        return web.json_response({"where": self._where, "payloads": self._payloads})

    # Events

    async def _events(self, request: web.Request) -> web.StreamResponse:
        page, names = request.query.get("page", ""), request.query.getall("name", [])
        if len(names) != _PAGES.get(page, -1):
            return web.Response(status=400, text="page must be one of the pages, with its names\n")
        if self._readers >= self._max_readers:
            text = f"{self._max_readers} pages are open already: close one\n"
            return web.Response(status=503, text=text, headers={"Retry-After": "5"})
        self._readers += 1
        try:
            return await self._send(request, View(page, names))
        finally:
            self._readers -= 1

    async def _send(self, request: web.Request, view: View) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        version = 0
        with self._collector.focus(*view.names), suppress(ConnectionError, TimeoutError):
            while not self._closing.is_set():
                try:
                    async with asyncio.timeout(_QUIET):
                        version = await self._collector.next(version)
                    text = f"data: {json.dumps(view.update(self._collector.history))}\n\n"
                except TimeoutError:
                    text = ": alive\n\n"
                async with asyncio.timeout(_STUCK):
                    await response.write(text.encode())
        return response

    # Messages

    async def _messages(self, request: web.Request) -> web.Response:
        try:
            query = _query(request)
        except UsageError as exc:
            return _failed(400, str(exc))
        source = self._source.current
        if source is None:
            return _failed(503, "there is no connection to the servers")
        if self._reads.locked():
            return _failed(503, "too many searches are under way; try again")
        async with self._reads:
            try:
                page = await source.read(query)
            except LiftEnvelopeError as exc:
                return _failed(502, without_secrets(exc))
        return web.json_response(messages_json(page, payloads=self._payloads))


class MessageSourceHolder:
    """Reader of messages on the current connection.

    Attributes:
        current: The reader; None while there is no connection.
    """

    def __init__(self) -> None:
        self.current: MessageSource | None = None


@asynccontextmanager
async def serving_monitor(
    collector: Collector, server: MonitorServer, address: Address
) -> AsyncIterator[str]:
    """Take samples and serve the pages while the block runs; yield the address, as ``host:port``.

    Raises:
        TransportError: Binding or listening failed.
    """
    task: asyncio.Task[None] | None = None
    try:
        found = await server.start(address)
        task = asyncio.create_task(collector.run(), name="take samples")
        yield found
    finally:
        await server.close()
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


def _page(name: str) -> web.Response:
    kind = _TYPES.get(name.rpartition(".")[2])
    path = files("liftenvelope.monitor") / "page" / name
    if kind is None or "/" in name or "\\" in name or not path.is_file():
        return web.Response(status=404, text="there is no such file\n")
    return web.Response(body=path.read_bytes(), content_type=kind, charset="utf-8")


def _failed(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


def _query(request: web.Request) -> MessageQuery:
    given = request.query
    key = given.get("key")
    return MessageQuery(
        stream=given.get("stream", ""),
        partition=_number("partition", given.get("partition", "0")),
        start=_start(given.get("start", "")),
        key=key.encode("utf-8", "replace") if key else None,
        limit=min(max(_number("limit", given.get("limit", "20")), 1), _MAX_MESSAGES),
    )


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise UsageError(f"{name} must be a number, got {text[:40]!r}")
    return int(text)


def _start(text: str) -> int | datetime | None:
    """Return the start of a search: an offset, a time in UTC unless it has a time zone, or the last messages.

    Raises:
        UsageError: The text is none of these.
    """
    if not text:
        return None
    if text.isascii() and text.isdecimal():
        return _number("start", text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        expected = "an offset, or a time such as 2026-01-31T12:00"
        raise UsageError(f"start must be {expected}, got {text[:40]!r}") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
