"""Starts the parts of a gateway, in one order; they close in the reverse order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from liftenvelope._deadlines import Deadline
from liftenvelope.consumers.tasks import background, cancel
from liftenvelope.errors import (
    CallTimeoutError,
    JetStreamError,
    NoJetStreamError,
    StreamNotFoundError,
)
from liftenvelope.gateway._acks.copies import CopyAcks
from liftenvelope.gateway._calls.handlers import ENDLESS, handlers
from liftenvelope.gateway._calls.health import HealthService
from liftenvelope.gateway._calls.open_calls import OpenCalls
from liftenvelope.gateway._clients.publish_places import PublishPlaces
from liftenvelope.gateway._clients.quotas import Quotas
from liftenvelope.gateway._cluster.activity import ActivityLog
from liftenvelope.gateway._cluster.agreement import Agreement
from liftenvelope.gateway._cluster.brokers import Broker, LiveBrokers
from liftenvelope.gateway._cluster.registry import RecordListener, StreamRegistry
from liftenvelope.gateway._core import Core, GatewayOptions
from liftenvelope.gateway._leader.leading import Leading
from liftenvelope.gateway._lifecycle.refusals import Refusals
from liftenvelope.gateway._lifecycle.running import Running
from liftenvelope.gateway._monitoring.drops import DropWatch, LogFile, account_of, follow
from liftenvelope.gateway._monitoring.group_lag import group_lags
from liftenvelope.gateway._monitoring.lag import LagMeter, ack_lags
from liftenvelope.gateway._monitoring.readiness import ReadinessProbe
from liftenvelope.gateway._partitions.feed import budget_of
from liftenvelope.gateway._partitions.storage import Storage
from liftenvelope.gateway._protocol.subjects import AckInboxes, ClientSubjects
from liftenvelope.gateway._readers.cursors import CursorService
from liftenvelope.gateway._readers.groups import GroupFace
from liftenvelope.gateway._readers.reads import OpenReads
from liftenvelope.gateway._streams.reserved import ACTIVITY, CURSORS, ensure_stream, reserved_record
from liftenvelope.gateway._streams.service import StreamService
from liftenvelope.group.errors import GroupUnavailableError
from liftenvelope.jetstream.context import JetStream
from liftenvelope.nats.acceleration import accelerate
from liftenvelope.nats.replies import inbox_prefix_of
from liftenvelope.rpc.address import Address, parse_address
from liftenvelope.rpc.server import Server
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    import ssl

    from nats.aio.client import Client

    from liftenvelope.gateway._clients.authorization import Authorization
    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.rpc.server import Handler

__all__ = ["Setup", "start_gateway"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Seconds to retry the start while JetStream is not ready, and pause between two attempts.
_PATIENCE: Final = 30.0
_PAUSE: Final = 0.25
#: Interval of the checks for a refusal of the first request, in seconds.
_LOOK: Final = 0.05
#: JetStream's code and error code for "temporarily unavailable".
_UNAVAILABLE: Final = 503
_NOT_NOW: Final = 10008
#: The gateway's own messages in flight: heartbeats, records and events.
_OWN_PUBLISHES: Final = 1_000
#: Bytes of a request in addition to its message.
_REQUEST_ROOM: Final = 1 << 20

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Arguments of a gateway; see :class:`~liftenvelope.gateway.Gateway`."""

    nc: Client
    read_nc: Client
    options: GatewayOptions
    host: str
    port: int
    advertise: Address | None
    tls: ssl.SSLContext | None
    authorization: Authorization | None
    nats_log: str | None
    group_timeouts: tuple[float, float]
    readiness: ReadinessProbe


async def start_gateway(setup: Setup) -> Running:
    """Start all parts of a gateway. If the start fails or is cancelled, close those already started.

    If JetStream answers but is not ready yet, as in a cluster that has just formed, the start is retried
    for up to 30 seconds.

    Args:
        setup: Arguments of the gateway.

    Raises:
        NoJetStreamError: The NATS server has no JetStream.
        PermissionDeniedError: The NATS user lacks a permission that the gateway needs.
        TransportError: The gateway can't listen on the address, or the connection is closed.
    """
    deadline = Deadline(_PATIENCE)
    refusals = Refusals(setup.nc)
    for nc, refused in ((setup.read_nc, Refusals(setup.read_nc)), (setup.nc, refusals)):
        asking = partial(_ask_jetstream, nc, setup.options, refused)
        await _retried(asking, deadline, refused, is_answered=False)
    return await _retried(partial(_start_once, setup), deadline, refusals, is_answered=True)


async def _retried(
    step: Callable[[], Awaitable[_Result]], deadline: Deadline, refusals: Refusals, *, is_answered: bool
) -> _Result:
    """Run a step of the start again after temporary errors, until the deadline.

    A request that NATS refuses gets no answer. So a time-out is not temporary if a refusal was reported.
    """
    while True:
        try:
            return await step()
        except Exception as exc:
            if refusals.found and isinstance(exc, CallTimeoutError | GroupUnavailableError):
                raise refusals.error() from exc
            if deadline.is_over or not _is_temporary(exc, is_answered=is_answered):
                raise
        await asyncio.sleep(_PAUSE)


def _is_temporary(error: Exception, *, is_answered: bool) -> bool:
    """Return True if an error may pass: a JetStream cluster may still be electing leaders.

    Args:
        error: The error.
        is_answered: True if JetStream has answered before. A missing answer then means that a stream or
            consumer has no leader yet.
    """
    if isinstance(error, RpcError):
        # A new leader may not know the bucket of the streams' records yet.
        return is_answered and error.code == StatusCode.UNAVAILABLE
    if isinstance(error, NoJetStreamError):
        return is_answered or error.err_code == _NOT_NOW
    if isinstance(error, JetStreamError):
        # The gateway creates the streams that it needs, but a new leader may not know a stream created just
        # now.
        return error.code == _UNAVAILABLE or isinstance(error, StreamNotFoundError)
    return isinstance(error, CallTimeoutError | GroupUnavailableError)


async def _ask_jetstream(nc: Client, options: GatewayOptions, refusals: Refusals) -> None:
    """Send the first request. Do not wait for its time-out if NATS refuses it, or its inbox."""
    async with JetStream(nc, domain=options.domain, timeout=options.ack_timeout) as js:
        asking = asyncio.create_task(js.account_info(), name="ask JetStream")
        try:
            while not (await asyncio.wait([asking], timeout=_LOOK))[0]:
                if refusals.concern(f"{js.api.prefix}.INFO", nc.new_inbox()):
                    raise refusals.error()
            await asking
        finally:
            asking.cancel()
            await asyncio.wait([asking])


async def _start_once(setup: Setup) -> Running:
    async with AsyncExitStack() as stack:
        return await _Start(setup, stack).run()


class _Startable(Protocol):
    """Part of a gateway that is started and closed."""

    async def start(self) -> None:
        """Start the part."""

    async def close(self) -> None:
        """Close the part, started or not."""


class _Changes:
    """Passes changes of streams and gateways on to the parts that listen to them.

    The registry and the brokers report changes from their own start on. Parts that start later add their
    listeners then.

    Args:
        reads: The open subscriptions, to end those that changes affect.
    """

    def __init__(self, reads: OpenReads) -> None:
        self._reads = reads
        self.stream_listeners: list[RecordListener] = [reads.stream_changed]
        self.broker_listeners: list[Callable[[], None]] = []

    def stream_changed(self, before: StreamRecord | None, after: StreamRecord | None) -> None:
        for listener in self.stream_listeners:
            listener(before, after)

    def brokers_changed(self) -> None:
        for listener in self.broker_listeners:
            listener()

    def interrupted(self) -> None:
        text = "the gateway had lost its lease: another broker may have led the partition"
        self._reads.end_led(RpcError(StatusCode.UNAVAILABLE, text))


class _Start:
    """One attempt to start a gateway.

    A part is put on the stack before it starts. So the stack closes whatever a start that fails or is
    cancelled has begun, and it closes the parts in the reverse order of their start.

    Args:
        setup: Arguments of the gateway.
        stack: Closes the started parts. :meth:`run` moves them to its result.
    """

    def __init__(self, setup: Setup, stack: AsyncExitStack) -> None:
        self._setup = setup
        self._stack = stack
        self._reads = OpenReads()
        self._calls = OpenCalls()
        self._changes = _Changes(self._reads)

    async def run(self) -> Running:
        """Start all parts."""
        setup, stack = self._setup, self._stack
        for nc in {setup.nc, setup.read_nc}:
            stack.callback(accelerate(nc).restore)
        core = await self._start_core()
        streams = StreamService(core)
        cursors = await self._start_reserved_streams(core, streams)
        groups = await self._start_groups(core)
        stack.push_async_callback(streams.close)
        leading = Leading(core, streams, self._reads)
        setup.readiness.watch(core, leading)
        health = HealthService(setup.readiness.is_ready, core.draining)
        table = handlers(core, streams, self._reads, cursors, groups, health)
        server, listening = await self._listen(table)
        await self._lead(core, leading, setup.advertise or parse_address(listening))
        drops = await self._watch_drops(core)
        return Running(
            address=listening,
            core=core,
            leading=leading,
            server=server,
            reads=self._reads,
            calls=self._calls,
            groups=groups,
            drops=drops,
            ack_lag=LagMeter(core, partial(ack_lags, core, leading)),
            group_lag=LagMeter(core, partial(group_lags, core, groups, cursors)),
            parts=stack.pop_all(),
        )

    async def _start_part(self, part: _Startable) -> None:
        self._stack.push_async_callback(part.close)
        await part.start()

    async def _start_core(self) -> Core:
        nc, options = self._setup.nc, self._setup.options
        limits, replicas = options.limits, options.replicas
        most = limits.max_pending_publishes_in_all
        js, read_js = self._jetstream(nc), self._jetstream(self._setup.read_nc)
        call_js, raw_js = (self._jetstream(nc, most) for _ in range(2))
        for budget in map(budget_of, {nc, self._setup.read_nc}):  # all readers of a connection share one
            budget.total, budget.inactivity = limits.max_pull_bytes, limits.consumer_inactivity
        own = {inbox_prefix_of(one) for one in (nc, self._setup.read_nc)}
        inboxes = AckInboxes(limits.allowed_ack_inboxes, own)
        copies = CopyAcks(call_js)
        self._stack.push_async_callback(copies.close)
        registry = StreamRegistry(js, self._changes.stream_changed, replicas=replicas)
        brokers = LiveBrokers(
            js,
            options.id,
            ttl=options.broker_ttl,
            on_change=self._changes.brokers_changed,
            on_interrupted=self._changes.interrupted,
            connections=(nc, self._setup.read_nc),
            replicas=replicas,
        )
        self._changes.broker_listeners.append(lambda: self._reads.leaders_changed(brokers.is_leader))
        agreement = Agreement(js, registry, brokers, inboxes.replies)
        for part in (registry, brokers, agreement):
            await self._start_part(part)
        return Core(
            nc=nc,
            js=js,
            call_js=call_js,
            raw_js=raw_js,
            read_js=read_js,
            options=options,
            registry=registry,
            brokers=brokers,
            agreement=agreement,
            storage=Storage(js, lambda: brokers.has_lease),
            copies=copies,
            subjects=ClientSubjects(own),
            # Acks of copying partitions go to inboxes of the gateways.
            ack_inboxes=inboxes,
            quotas=Quotas(limits),
            places=PublishPlaces(most, limits.max_connections),
            activity=ActivityLog(
                js,
                reserved_record(ACTIVITY, options.id, replicas),
                gateway=options.id,
                clear=registry.clear_event,
            ),
        )

    def _jetstream(self, nc: Client, max_outstanding: int = _OWN_PUBLISHES) -> JetStream:
        options = self._setup.options
        js = JetStream(
            nc, domain=options.domain, timeout=options.ack_timeout, max_outstanding=max_outstanding
        )
        self._stack.push_async_callback(js.close)
        return js

    async def _start_reserved_streams(self, core: Core, streams: StreamService) -> CursorService:
        """Create the reserved streams; start the cursor service and the activity log that use them."""
        options = core.options
        for name in (CURSORS, ACTIVITY):
            await ensure_stream(name, core.registry, streams, maker=options.id, replicas=options.replicas)
        cursors = await CursorService.open(
            core.call_js, options.limits, core.quotas, replicas=options.replicas
        )
        await self._start_part(core.activity)
        return cursors

    async def _start_groups(self, core: Core) -> GroupFace:
        consumer, coordinator = self._setup.group_timeouts
        authorization = self._setup.authorization
        groups = GroupFace(
            core,
            consumer_timeout=consumer,
            coordinator_timeout=coordinator,
            check=None if authorization is None else authorization.check,
        )
        self._changes.stream_listeners.append(groups.stream_changed)
        await self._start_part(groups)
        return groups

    async def _listen(self, table: dict[str, Handler]) -> tuple[Server, str]:
        setup = self._setup
        if setup.authorization is not None:
            table = setup.authorization.protect(table, setup.options.limits)
            await self._start_part(setup.authorization)
        table = self._calls.counting(table, ENDLESS)
        limits = setup.options.limits
        largest = max(limits.max_request_bytes, limits.max_message_bytes + _REQUEST_ROOM)
        server = Server(table, limits=replace(limits, max_request_bytes=largest))
        self._stack.push_async_callback(server.close)
        return server, await server.start(setup.host, setup.port, tls=setup.tls)

    async def _lead(self, core: Core, leading: Leading, address: Address) -> None:
        """Join the live gateways, and lead partitions."""
        self._changes.stream_listeners.append(leading.stream_changed)
        self._changes.broker_listeners.append(partial(leading.look, gateways=True))
        self._stack.push_async_callback(leading.close)
        # Without a lease, no leader work begins any more while its parts are closed.
        self._stack.push_async_callback(core.brokers.leave)
        await core.brokers.join(Broker(core.options.id, address.host, address.port))
        await leading.start()

    async def _watch_drops(self, core: Core) -> DropWatch:
        """Watch for messages that JetStream dropped, in the configured log file or in lines passed in."""
        path = self._setup.nats_log
        if path is None:
            return DropWatch(core)
        watch = DropWatch(core, account=await account_of(core))
        file = LogFile(path)
        self._stack.callback(file.close)
        following = background(follow(file, watch), name="log of nats-server", log=_log)
        self._stack.push_async_callback(cancel, [following])
        return watch
