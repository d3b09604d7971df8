"""Runs a gateway once: starts its parts, drains them and closes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.gateway.activity import ActivityLog
from liftenvelope.gateway.agreement import Agreement
from liftenvelope.gateway.brokers import Broker, Brokers
from liftenvelope.gateway.copies import CopyAcks
from liftenvelope.gateway.core import Core, Options
from liftenvelope.gateway.cursors import CursorService
from liftenvelope.gateway.drops import DropWatch, LogFile, account_of, follow
from liftenvelope.gateway.feed import budget_of
from liftenvelope.gateway.groups import GroupFace
from liftenvelope.gateway.health import HealthService
from liftenvelope.gateway.leading import Leading
from liftenvelope.gateway.open_calls import OpenCalls
from liftenvelope.gateway.quotas import Quotas
from liftenvelope.gateway.reads import OpenReads
from liftenvelope.gateway.registry import Listener, StreamRegistry
from liftenvelope.gateway.reserved import ACTIVITY, CURSORS, ensure_stream
from liftenvelope.gateway.service import handlers
from liftenvelope.gateway.storage import Storage
from liftenvelope.gateway.streams import StreamService
from liftenvelope.gateway.subjects import AckInboxes
from liftenvelope.jetstream.context import JetStream
from liftenvelope.nats._link import Link
from liftenvelope.nats.acceleration import accelerate
from liftenvelope.rpc.address import Address, parse_address
from liftenvelope.rpc.server import Server
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    import ssl

    from nats.aio.client import Client

    from liftenvelope.gateway.authorization import Authorization
    from liftenvelope.gateway.records import StreamRecord
    from liftenvelope.rpc.server import Handler

__all__ = ["Running", "Setup"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Bytes of a request in addition to its message.
_REQUEST_ROOM: Final = 1 << 20
#: Seconds that calls have to end after they were told to.
_ENDING: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Arguments of a gateway; see :class:`~liftenvelope.gateway.Gateway`."""

    nc: Client
    options: Options
    host: str
    port: int
    advertise: Address | None
    tls: ssl.SSLContext | None
    authorization: Authorization | None
    nats_log: str | None
    group_timeouts: tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts that :meth:`Running.drain` needs."""

    core: Core
    leading: Leading
    server: Server


class Running:
    """One run of a gateway.

    Parts are closed in the reverse order of their start. Changes of streams and gateways go to the listeners
    registered so far, because the registry and the brokers start before the parts that listen to them.

    Args:
        setup: Arguments of the gateway.

    Attributes:
        address: Address on which the gateway listens, as ``host:port``; empty before it listens.
        is_answered: Whether JetStream has answered, so NATS is reachable and has JetStream.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._stack = AsyncExitStack()
        self._reads = OpenReads()
        self._calls = OpenCalls()
        # Called with each change; parts add their listeners when they start.
        self._stream_listeners: list[Listener] = [self._reads.stream_changed]
        self._broker_listeners: list[Callable[[], None]] = []
        self._drops: DropWatch | None = None
        self._parts: _Parts | None = None
        self.address = ""
        self.is_answered = False

    async def start(self) -> None:
        """Start all parts. If a part fails, :meth:`close` stops those already started."""
        setup, stack = self._setup, self._stack
        stack.callback(accelerate(setup.nc).restore)
        core = await self._start_core()
        streams = StreamService(core)
        cursors = CursorService(core.js, core.options.limits, replicas=setup.options.replicas)
        activity = await self._start_own_streams(core, streams, cursors)
        groups = await self._start_groups(core, activity)
        stack.push_async_callback(streams.close)
        leading = Leading(core, streams, self._reads)
        health = HealthService(partial(_is_serving, core, leading), core.draining)
        table = handlers(core, streams, self._reads, cursors, groups, health, self._calls)
        server = await self._listen(table)
        address = setup.advertise or parse_address(self.address)
        self._stream_listeners.append(leading.stream_changed)
        self._broker_listeners.append(partial(leading.look, gateways=True))
        stack.push_async_callback(leading.close)
        stack.push_async_callback(core.brokers.leave)
        await core.brokers.join(Broker(core.options.id, address.host, address.port))
        await leading.start()
        await self._watch_drops(core)
        self._parts = _Parts(core, leading, server)

    async def _start_core(self) -> Core:
        nc, options, stack = self._setup.nc, self._setup.options, self._stack
        limits = options.limits
        js = JetStream(
            nc,
            domain=options.domain,
            timeout=options.ack_timeout,
            max_outstanding=limits.max_pending_publishes_in_all,
        )
        # All readers of the connection share this budget.
        budget_of(nc).total, budget_of(nc).inactivity = limits.max_pull_bytes, limits.consumer_inactivity
        stack.push_async_callback(js.close)
        await js.account_info()
        self.is_answered = True
        replicas = options.replicas
        registry = StreamRegistry(js, self._on_stream, replicas=replicas)
        brokers = Brokers(
            js,
            options.id,
            ttl=options.broker_ttl,
            on_change=self._on_brokers,
            on_interrupted=self._on_interrupted,
            replicas=replicas,
        )
        self._broker_listeners.append(lambda: self._reads.leaders_changed(brokers.is_leader))
        agreement, copies = Agreement(js, registry, brokers), CopyAcks(nc)
        for part in (copies, registry, brokers, agreement):
            stack.push_async_callback(part.close)
        await registry.start()
        await brokers.start()
        await agreement.start()
        return Core(
            nc=nc,
            js=js,
            options=options,
            registry=registry,
            brokers=brokers,
            agreement=agreement,
            storage=Storage(js),
            copies=copies,
            # Acks of copying partitions go to inboxes of the gateways.
            ack_inboxes=AckInboxes(limits.allowed_ack_inboxes, own=_inbox_prefix(nc)),
            quotas=Quotas(limits),
        )

    async def _start_own_streams(
        self, core: Core, streams: StreamService, cursors: CursorService
    ) -> ActivityLog | None:
        """Create the reserved streams; start the cursor service and the activity log that use them."""
        options = core.options
        about: Any = {"maker": options.id, "replicas": options.replicas}
        if options.cursors:
            await ensure_stream(CURSORS, core.registry, streams.make, **about)
            await cursors.start()
        if not options.activity:
            return None
        record = await ensure_stream(ACTIVITY, core.registry, streams.make, **about)
        activity = core.activity = ActivityLog(
            core.js, record, gateway=options.id, clear=core.registry.clear_event
        )
        self._stack.push_async_callback(activity.close)
        await activity.start()
        return activity

    async def _start_groups(self, core: Core, activity: ActivityLog | None) -> GroupFace:
        consumer, coordinator = self._setup.group_timeouts
        authorization = self._setup.authorization
        groups = GroupFace(
            core,
            activity,
            consumer_timeout=consumer,
            coordinator_timeout=coordinator,
            check=None if authorization is None else authorization.check,
        )
        self._stream_listeners.append(groups.stream_changed)
        self._stack.push_async_callback(groups.close)
        await groups.start()
        return groups

    async def _listen(self, table: dict[str, Handler]) -> Server:
        setup = self._setup
        if setup.authorization is not None:
            table = setup.authorization.protect(table, setup.options.limits)
            self._stack.push_async_callback(setup.authorization.close)
            await setup.authorization.start()
        limits = setup.options.limits
        largest = max(limits.max_request_bytes, limits.max_message_bytes + _REQUEST_ROOM)
        server = Server(table, limits=replace(limits, max_request_bytes=largest))
        self._stack.push_async_callback(server.close)
        self.address = await server.start(setup.host, setup.port, tls=setup.tls)
        return server

    async def _watch_drops(self, core: Core) -> None:
        """Watch for messages that JetStream dropped, in the configured log file or in lines passed in."""
        path = self._setup.nats_log
        if path is None:
            self._drops = DropWatch(core)
            return
        watch = self._drops = DropWatch(core, account=await account_of(core))
        following = asyncio.create_task(follow(LogFile(path), watch), name="log of nats-server")
        self._stack.push_async_callback(_stop, following)

    def read_server_log(self, line: str) -> None:
        """Process a log line of the NATS server; lines before the start are ignored."""
        if self._drops is not None:
            self._drops.feed(line)

    async def drain(self, seconds: float) -> None:
        """Finish the open calls, send the acks they are waiting for, and hand over to other gateways.

        Args:
            seconds: Time limit for the open calls and their acks.
        """
        if self._parts is None:
            return
        core, leading, server = self._parts.core, self._parts.leading, self._parts.server
        core.draining.set()
        server.refuse_calls()
        try:
            async with asyncio.timeout(seconds):
                await self._calls.finished()
                if core.nc.is_connected:
                    await leading.catch_up()
                    # The acks must be sent before an embedded nats-server stops.
                    await Link(core.nc).barrier(seconds)
        except TimeoutError:
            _log.warning("not all publishes had their acks within %s s of draining", seconds)
        except LiftEnvelopeError as exc:
            _log.warning("not all publishes had their acks when the gateway stopped: %s", exc)
        await core.brokers.leave()
        self._reads.end_all(RpcError(StatusCode.UNAVAILABLE, "the gateway is stopping"))
        await server.close(grace=_ENDING)

    async def close(self) -> None:
        """Stop all started parts in reverse order."""
        await self._stack.aclose()

    # Callbacks of the parts

    def _on_stream(self, before: StreamRecord | None, after: StreamRecord | None) -> None:
        for listener in self._stream_listeners:
            listener(before, after)

    def _on_brokers(self) -> None:
        for listener in self._broker_listeners:
            listener()

    def _on_interrupted(self) -> None:
        text = "the gateway had lost its lease: another broker may have led the partition"
        self._reads.end_led(RpcError(StatusCode.UNAVAILABLE, text))


def _inbox_prefix(nc: Client) -> str:
    """Return the prefix of a connection's inboxes, including the last dot."""
    return nc.new_inbox().rpartition(".")[0] + "."


def _is_serving(core: Core, leading: Leading) -> bool:
    return core.nc.is_connected and core.brokers.has_lease and leading.settled


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
