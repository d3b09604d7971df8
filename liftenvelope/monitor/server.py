"""HTTP of the live page: files, server-sent events, messages on request, and changes if they are allowed.

Readers get the newest state. A reader that takes its time misses states in between, and has no queue.

**Changes.** A request for a change must come from a page of this process. It carries the key of the process,
which ``api/about`` tells and a page of another site can't read, in a header that such a page can't send. The
guard refuses requests of other sites before that. Each change and each refusal by the servers is a log line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from aiohttp import web

from liftenvelope._checks import as_count
from liftenvelope._secrets import without_secrets
from liftenvelope.errors import InternalError, LiftEnvelopeError, UsageError
from liftenvelope.group.calls import DEFAULT_PREFIX
from liftenvelope.monitor._collector import Collector
from liftenvelope.monitor._guard import Guard, MonitorAccess, body_of, same
from liftenvelope.monitor._limits import MonitorLimits
from liftenvelope.monitor._open_pages import OpenPages
from liftenvelope.monitor._reading import JetStreamMessages, LiftbridgeMessages, MessageQuery, MessageSource
from liftenvelope.monitor._views import View, messages_json
from liftenvelope.monitor.changes import Changes, JetStreamChanges, LiftbridgeChanges, change_from_json
from liftenvelope.monitor.jetstream import JetStreamSampler
from liftenvelope.monitor.liftbridge import LiftbridgeSampler
from liftenvelope.rpc.address import Address
from liftenvelope.rpc.http_connections import HttpConnections
from liftenvelope.rpc.listening import Listener

if TYPE_CHECKING:
    from liftenvelope.client import Client
    from liftenvelope.jetstream import JetStream

__all__ = [
    "JetStreamMessages",
    "LiftbridgeMessages",
    "MonitorAccess",
    "MonitorLink",
    "MonitorPages",
    "MonitorServer",
    "serving_monitor",
    "taking_samples",
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
_PAGES: Final = {
    "streams": 0,
    "readers": 0,
    "stream": 1,
    "consumer": 2,
    "group": 1,
    "gateways": 0,
    "gateway": 1,
}
#: Readers, connections, reads of messages at once, and messages of a read.
_MAX_READERS: Final = 32
_MAX_CONNECTIONS: Final = 128
#: Bytes and seconds of a connection. A search of messages may take as long as the servers' time-outs.
_CONNECTION_BYTES: Final = 128 * 1024
_CONNECTION_TIMEOUT: Final = 60.0
_MAX_READS: Final = 4
_MAX_MESSAGES: Final = 50
#: Changes under way, and the header of their key.
_MAX_CHANGES: Final = 4
_KEY: Final = "X-Liftenvelope-Key"
#: Seconds without a state after which a comment shows that the connection lives; to take a state; to close.
_QUIET: Final = 10.0
_STUCK: Final = 30.0
_ENDING: Final = 1.0
#: Seconds until the sampling begins again after a defect.
_PAUSE: Final = 10.0
#: Bytes of a request: a form with a token at most.
_REQUEST: Final = 4 * 1024


class MonitorPages:
    """The pages of a collector, as an application of aiohttp.

    Args:
        collector: Takes the samples; it must run.
        link: The present connection to the servers.
        access: Who may see the pages.
        where: Addresses of the servers, without a login.
        payloads: Show payloads, keys and headers.
        changes: Allow changes on the servers.
        max_readers: Pages that may be open at once.
        path: Path below which the application is served; empty for the root.

    Attributes:
        app: The application.
    """

    def __init__(
        self,
        collector: Collector,
        *,
        link: MonitorLink,
        access: MonitorAccess,
        where: str,
        payloads: bool = True,
        changes: bool = False,
        max_readers: int = _MAX_READERS,
        path: str = "",
    ) -> None:
        self._collector = collector
        self._link = link
        self._where = where
        self._payloads = payloads
        self._key = secrets.token_urlsafe(32) if changes else ""
        self._max_readers = as_count("max_readers", max_readers)
        self._open_pages = OpenPages(self._max_readers)
        self._reads = asyncio.Semaphore(_MAX_READS)
        self._changing = asyncio.Semaphore(_MAX_CHANGES)
        self._closing = asyncio.Event()
        self._guard = Guard(access, path)
        self.app = web.Application(middlewares=[self._guard.middleware], client_max_size=_REQUEST)
        self.app.router.add_get("/", self._index)
        self.app.router.add_get("/login", self._login)
        self.app.router.add_post("/login", self._guard.log_in)
        self.app.router.add_get("/static/{name}", self._file)
        self.app.router.add_get("/api/about", self._about)
        self.app.router.add_get("/api/events", self._events)
        self.app.router.add_get("/api/messages", self._messages)
        self.app.router.add_post("/api/changes", self._change)
        self.app.on_response_prepare.append(self._guard.add_headers)
        self.app.on_shutdown.append(self._end)

    async def _end(self, _: web.Application) -> None:
        """End the streams of events."""
        self._closing.set()

    # Files

    async def _index(self, _: web.Request) -> web.Response:
        return _page("index.html")

    async def _login(self, _: web.Request) -> web.Response:
        return _page("login.html")

    async def _file(self, request: web.Request) -> web.Response:
        return _page(request.match_info["name"])

    async def _about(self, _: web.Request) -> web.Response:
        found = {"where": self._where, "payloads": self._payloads, "key": self._key}
        return web.json_response(found)

    # Events

    async def _events(self, request: web.Request) -> web.StreamResponse:
        page, names = request.query.get("page", ""), request.query.getall("name", [])
        if len(names) != _PAGES.get(page, -1):
            return web.Response(status=400, text="page must be one of the pages, with its names\n")
        client = self._guard.client(request)
        transport = request.transport
        if transport is None:
            raise web.HTTPServiceUnavailable  # the client has gone
        if not self._open_pages.admits(client):
            text = f"{self._max_readers} pages are open already: close one\n"
            return web.Response(status=503, text=text, headers={"Retry-After": "5"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        async with self._open_pages.hold(client, transport):
            await response.prepare(request)
            await self._send(response, View(page, names))
        return response

    async def _send(self, response: web.StreamResponse, view: View) -> None:
        version = 0
        with self._collector.focus(*view.names):
            while not self._closing.is_set():
                try:
                    async with asyncio.timeout(_QUIET):
                        version = await self._collector.next(version)
                    text = f"data: {json.dumps(view.update(self._collector.history))}\n\n"
                except TimeoutError:
                    text = ": alive\n\n"
                async with asyncio.timeout(_STUCK):
                    await response.write(text.encode())

    # Messages

    async def _messages(self, request: web.Request) -> web.Response:
        try:
            query = _query(request)
        except UsageError as exc:
            return _failed(400, str(exc))
        source = self._link.messages
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

    # Changes

    async def _change(self, request: web.Request) -> web.Response:
        if not self._key:
            return _failed(403, "changes are not allowed: start the monitor with --allow-changes")
        if not same(request.headers.get(_KEY, ""), self._key):
            return _failed(403, "the page is of an earlier start of the monitor: load it again")
        changes = self._link.changes
        if changes is None:
            return _failed(503, "there is no connection to the servers")
        body = await body_of(request)  # before a place is taken: its sender may take its time
        if self._changing.locked():
            return _failed(503, "too many changes are under way; try again")
        async with self._changing:
            return await self._make(request, body, changes)

    async def _make(self, request: web.Request, body: bytes, changes: Changes) -> web.Response:
        try:
            change = change_from_json(json.loads(body))
        except UsageError as exc:
            return _failed(400, str(exc))
        except (ValueError, RecursionError):
            return _failed(400, "a change must be a JSON object")
        who = self._guard.user_of(request)
        try:
            done = await changes.make(change)
        except LiftEnvelopeError as exc:
            reason = without_secrets(exc)
            _log.warning("%s could not %s: %s", who, change, reason, extra={"user": who})
            return _failed(400 if isinstance(exc, UsageError) else 502, reason)
        _log.info("%s changed the servers: %s: %s", who, change, done, extra={"user": who})
        return web.json_response({"done": done})


class MonitorLink:
    """The present connection to the servers, for what pages ask for.

    Args:
        limits: Limits of the samples.
        group_prefix: Prefix of the coordinators of groups over NATS.

    Attributes:
        messages: Reads messages; None while there is no connection.
        changes: Makes changes; None while there is no connection.
    """

    def __init__(self, limits: MonitorLimits | None = None, *, group_prefix: str = DEFAULT_PREFIX) -> None:
        self._limits = limits
        self._group_prefix = group_prefix
        self.messages: MessageSource | None = None
        self.changes: Changes | None = None

    @contextmanager
    def to_jetstream(self, js: JetStream) -> Iterator[JetStreamSampler]:
        """Use JetStream while the block runs, and yield a sampler on it."""
        with self._to(JetStreamMessages(js), JetStreamChanges(js)):
            yield JetStreamSampler(js, self._limits, group_prefix=self._group_prefix)

    @contextmanager
    def to_liftbridge(self, client: Client) -> Iterator[LiftbridgeSampler]:
        """Use a client of Liftbridge while the block runs, and yield a sampler on it."""
        with self._to(LiftbridgeMessages(client), LiftbridgeChanges(client)):
            yield LiftbridgeSampler(client, self._limits)

    @contextmanager
    def _to(self, messages: MessageSource, changes: Changes) -> Iterator[None]:
        self.messages, self.changes = messages, changes
        try:
            yield
        finally:
            self.messages = self.changes = None


class MonitorServer:
    """Serves pages at an address of their own.

    Args:
        pages: The pages.
    """

    def __init__(self, pages: MonitorPages) -> None:
        logger = _log.getChild("requests")
        logger.setLevel(logging.CRITICAL)  # any peer could fill the log with malformed requests
        self._runner = web.AppRunner(pages.app, access_log=None, logger=logger, shutdown_timeout=_ENDING)
        self._connections = HttpConnections(
            self._protocol, most=_MAX_CONNECTIONS, max_bytes=_CONNECTION_BYTES, timeout=_CONNECTION_TIMEOUT
        )
        pages.app.on_response_prepare.append(self._connections.close_afterwards)
        self._listener = Listener(
            self._connections.new, tls=None, admits=lambda *_: True, handshake_timeout=_STUCK
        )

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
        self._listener.close()
        await self._listener.wait_closed()
        await self._runner.cleanup()
        self._connections.abort()

    def _protocol(self) -> asyncio.Protocol:
        assert self._runner.server is not None
        return self._runner.server()


@asynccontextmanager
async def taking_samples(collector: Collector, *, isolated: bool = False) -> AsyncIterator[None]:
    """Take samples while the block runs.

    Args:
        collector: The collector.
        isolated: What to do about a defect of the collector. False, the default: it ends the block. True: it
            is logged and shown as a fault, and the sampling begins again after a pause.
    """
    work = _sample_on(collector) if isolated else collector.run()
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work, name="take samples")
            yield
            task.cancel()
    except ExceptionGroup as failed:  # callers expect the error of the block
        raise failed.exceptions[0] from None


async def _sample_on(collector: Collector) -> None:
    while True:
        try:
            await collector.run()
        except Exception as exc:  # noqa: BLE001 - a defect, here or in a library, must not end the gateway
            text = f"unexpected {type(exc).__name__}: {without_secrets(exc)}"
            _log.error("sampling failed, and begins again in %s s: %s", _PAUSE, text, exc_info=exc)
            await collector.failed(InternalError(text))
        await asyncio.sleep(_PAUSE)


@asynccontextmanager
async def serving_monitor(collector: Collector, pages: MonitorPages, address: Address) -> AsyncIterator[str]:
    """Take samples and serve the pages while the block runs; yield the address, as ``host:port``.

    Raises:
        TransportError: Binding or listening failed.
    """
    server = MonitorServer(pages)
    try:
        found = await server.start(address)
        async with taking_samples(collector):
            yield found
    finally:
        await server.close()


def _page(name: str) -> web.Response:
    kind = _TYPES.get(name.rpartition(".")[2])
    found = {path.name: path for path in (files("liftenvelope.monitor") / "page").iterdir()}
    if kind is None or name not in found:  # no path is made of a name that a peer chose
        return web.Response(status=404, text="there is no such file\n")
    return web.Response(body=found[name].read_bytes(), content_type=kind, charset="utf-8")


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
