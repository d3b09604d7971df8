"""The gateway: a server of the Liftbridge API that keeps every stream in JetStream."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import ssl
from typing import TYPE_CHECKING, Any, Self

from liftenvelope.errors import (
    CallTimeoutError,
    JetStreamError,
    NoJetStreamError,
    StreamNotFoundError,
    UsageError,
)
from liftenvelope.gateway.activity import ActivityLog
from liftenvelope.gateway.agreement import Agreement
from liftenvelope.gateway.authorization import Authorization
from liftenvelope.gateway.brokers import Broker, Brokers
from liftenvelope.gateway.copies import CopyAcks
from liftenvelope.gateway.core import Core, Options
from liftenvelope.gateway.cursors import CursorService
from liftenvelope.gateway.drops import DropWatch, LogFile, account_of, follow
from liftenvelope.gateway.groups import GroupFace
from liftenvelope.gateway.leading import Leading
from liftenvelope.gateway.reads import OpenReads
from liftenvelope.gateway.registry import StreamRegistry
from liftenvelope.gateway.reserved import ACTIVITY, CURSORS, ensure_stream
from liftenvelope.gateway.service import handlers
from liftenvelope.gateway.storage import Storage
from liftenvelope.gateway.streams import StreamService
from liftenvelope.group.errors import GroupUnavailableError
from liftenvelope.jetstream._names import check_domain
from liftenvelope.jetstream.context import JetStream
from liftenvelope.nats.acceleration import accelerate
from liftenvelope.rpc.address import parse_address
from liftenvelope.rpc.framing import DEFAULT_MAX_MESSAGE
from liftenvelope.rpc.server import Server

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftenvelope.gateway.records import StreamRecord
    from liftenvelope.nats.acceleration import Acceleration

__all__ = ["Gateway"]

#: How many messages may be without JetStream's ack at a time, over all clients.
_OUTSTANDING = 100_000
#: How long a gateway tries to start where JetStream is not ready for it, and between two tries, in seconds.
_PATIENCE = 30.0
#: Bytes of a request beside the message in it.
_REQUEST_ROOM = 1 << 20
_PAUSE = 0.25
#: JetStream's code and number for "not now".
_UNAVAILABLE = 503
_NOT_NOW = 10008


class Gateway:
    """Serves the Liftbridge API on a connection to a NATS server with JetStream.

    Several gateways on one NATS server, or cluster, are the brokers of one Liftbridge cluster: each serves
    all streams, and each leads some of the partitions. All that they know is in JetStream.

    Args:
        nc: A connected nats-py client. It stays yours: it is never closed. While the gateway runs it is
            accelerated (:func:`liftenvelope.nats.accelerate`).
        host: Where to listen. Default: loopback only.
        port: Likewise; 0, the default, for any that is free.
        advertise: ``host:port`` that clients are told to connect to. Default: where it listens.
        id: Its id among the brokers. Default: a new one.
        tls: How to speak TLS with clients; None, the default, for plain TCP. A context that asks clients for
            certificates makes it mutual.
        broker_ttl: After how many seconds of silence the others take a gateway for dead. Default 3.
        ack_timeout: How many seconds JetStream is given for an ack where the client sets no deadline.
            Default 5.
        replicas: How many NATS servers keep the gateways' own records. Default 1.
        domain: The JetStream domain that keeps the streams, such as that of the hub where ``nc`` is connected
            to a leaf node. Default: the one of the server that ``nc`` is connected to.
        encrypted: Whether the NATS server encrypts what it stores. If not, the default, streams with
            ``encryption`` are refused.
        max_message_bytes: Size of the largest envelope (value, key and headers) that a client may publish by
            gRPC, in bytes. The NATS server's ``max_payload`` is a limit as well. Default: 1 MiB, as in
            Liftbridge.
        nats_log: The log file of the NATS server, to be followed: the gateway warns of messages that
            JetStream has dropped (:mod:`liftenvelope.gateway.drops`). Default: none.
        policy_file: Which clients, by the names in their certificates, may do what: see
            :mod:`liftenvelope.gateway.authorization`. Needs ``tls`` that requires certificates. Default:
            everybody may do everything.
        consumer_timeout: After how many seconds of silence a member of a consumer group is dead. Default 15.
        coordinator_timeout: After how many seconds of a group coordinator's silence clients are to report it.
            Default 15.

    Raises:
        UsageError: An argument makes no sense.

    Example::

        async with Gateway(nc, port=9292) as gateway:
            print("serving on", gateway.address)
            await asyncio.Event().wait()
    """

    def __init__(
        self,
        nc: Client,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        id: str | None = None,  # noqa: A002 - the API's own word
        tls: ssl.SSLContext | None = None,
        broker_ttl: float = 3.0,
        ack_timeout: float = 5.0,
        replicas: int = 1,
        domain: str | None = None,
        encrypted: bool = False,
        max_message_bytes: int = 1 << 20,
        nats_log: str | os.PathLike[str] | None = None,
        policy_file: str | os.PathLike[str] | None = None,
        consumer_timeout: float = 15.0,
        coordinator_timeout: float = 15.0,
    ) -> None:
        if not 0 <= port <= 65_535:
            raise UsageError(f"port={port!r}: expected 0 to 65535")
        timeouts = {
            "broker_ttl": broker_ttl,
            "ack_timeout": ack_timeout,
            "consumer_timeout": consumer_timeout,
            "coordinator_timeout": coordinator_timeout,
        }
        for name, seconds in timeouts.items():
            if not (math.isfinite(seconds) and seconds > 0):
                raise UsageError(f"{name}={seconds!r}: expected a positive number of seconds")
        if not 1 <= replicas <= 5:
            raise UsageError(f"replicas={replicas!r}: expected 1 to 5")
        if max_message_bytes < 1:
            raise UsageError(f"max_message_bytes must be at least 1, got {max_message_bytes!r}")
        if domain is not None:
            check_domain(domain)
        self._nc = nc
        self._listen = (host, port)
        self._advertise = None if advertise is None else parse_address(advertise)
        self._tls = tls
        self._options = Options(
            id=id or f"gateway-{secrets.token_hex(4)}",
            broker_ttl=broker_ttl,
            ack_timeout=ack_timeout,
            replicas=replicas,
            domain=domain,
            encrypted=encrypted,
            max_message=max_message_bytes,
        )
        self._authorization: Authorization | None = None
        if policy_file is not None:
            if tls is None or tls.verify_mode is not ssl.CERT_REQUIRED:
                text = "expected a tls that requires clients to show certificates"
                raise UsageError(f"policy_file={os.fspath(policy_file)!r}: {text}")
            self._authorization = Authorization(policy_file)
        self._nats_log = None if nats_log is None else os.fspath(nats_log)
        if self._nats_log is not None:
            LogFile(self._nats_log).close()
        self._drops: DropWatch | None = None
        self._following: asyncio.Task[None] | None = None
        self._group_timeouts = (consumer_timeout, coordinator_timeout)
        self._groups: GroupFace | None = None
        self._reads = OpenReads()
        self._server: Server | None = None
        self._core: Core | None = None
        self._js: JetStream | None = None
        self._activity: ActivityLog | None = None
        self._leading: Leading | None = None
        self._streams: StreamService | None = None
        self._acceleration: Acceleration | None = None

    @property
    def id(self) -> str:
        """Its id among the brokers."""
        return self._options.id

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        if self._server is None:
            raise UsageError("the gateway is not started")
        return self._server.address

    async def start(self) -> Self:
        """Begin to serve; return when clients can be served.

        Raises:
            NoJetStreamError: The NATS server has no JetStream.
            TransportError: It can't listen there, or the connection is closed.
            UsageError: It is started already.
        """
        if self._server is not None:
            raise UsageError("the gateway is started already")
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while True:
            self._acceleration = accelerate(self._nc)
            try:
                await self._start()
            except BaseException as exc:
                await self.close()
                if not _passes(exc) or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                return self

    async def _start(self) -> None:
        js = self._js = JetStream(
            self._nc,
            domain=self._options.domain,
            timeout=self._options.ack_timeout,
            max_outstanding=_OUTSTANDING,
        )
        await js.account_info()
        replicas = self._options.replicas
        registry = StreamRegistry(js, self._on_stream, replicas=replicas)
        brokers = Brokers(
            js, self.id, ttl=self._options.broker_ttl, on_change=self._on_brokers, replicas=replicas
        )
        core = self._core = Core(
            nc=self._nc,
            js=js,
            options=self._options,
            registry=registry,
            brokers=brokers,
            agreement=Agreement(js, registry, brokers),
            storage=Storage(js),
            copies=CopyAcks(self._nc),
        )
        await core.registry.start()
        await core.brokers.start()
        await core.agreement.start()
        streams = self._streams = StreamService(core)
        cursors = CursorService(js, replicas=replicas)
        await self._start_own_streams(core, streams, cursors)
        consumer, coordinator = self._group_timeouts
        groups = self._groups = GroupFace(
            core, self._activity, consumer_timeout=consumer, coordinator_timeout=coordinator
        )
        await groups.start()
        table = handlers(core, streams, self._reads, cursors, groups)
        if self._authorization is not None:
            table = self._authorization.protect(table)
            await self._authorization.start()
        largest = self._options.max_message + _REQUEST_ROOM
        server = Server(table, max_message=max(DEFAULT_MAX_MESSAGE, largest))
        host, port = self._listen
        address = self._advertise or parse_address(await server.start(host, port, tls=self._tls))
        self._server = server
        await core.brokers.join(Broker(self.id, address.host, address.port))
        self._leading = Leading(core, streams, self._reads)
        await self._leading.start()
        await self._watch_drops(core)

    async def _watch_drops(self, core: Core) -> None:
        if self._nats_log is None:
            self._drops = DropWatch(core)
            return
        watch = self._drops = DropWatch(core, account=await account_of(core))
        task = asyncio.create_task(follow(LogFile(self._nats_log), watch), name="log of nats-server")
        self._following = task

    def read_server_log(self, line: str) -> None:
        """Take a line of the NATS server's log, for those who have it otherwise than as a file.

        Args:
            line: The line. Where it says that JetStream has dropped messages of a stream, there is a warning.
        """
        if self._drops is not None:
            self._drops.feed(line)

    async def _start_own_streams(self, core: Core, streams: StreamService, cursors: CursorService) -> None:
        """Make the streams that clients expect of a cluster, and what is kept in them."""
        about: Any = {"maker": self.id, "replicas": self._options.replicas}
        if self._options.cursors:
            await ensure_stream(CURSORS, core.registry, streams.make, **about)
            await cursors.start()
        if self._options.activity:
            record = await ensure_stream(ACTIVITY, core.registry, streams.make, **about)
            core.activity = self._activity = ActivityLog(
                core.js, record, gateway=self.id, clear=core.registry.clear_event
            )
            await self._activity.start()

    async def close(self, *, grace: float = 0.0) -> None:
        """Stop serving. What is stored stays, and the connection to NATS stays open. Closing twice is fine.

        Args:
            grace: Seconds for the calls that are open; what is not done then is cancelled.
        """
        core, self._core = self._core, None
        server, self._server = self._server, None
        js, self._js = self._js, None
        leading, self._leading = self._leading, None
        streams, self._streams = self._streams, None
        following, self._following, self._drops = self._following, None, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        if self._authorization is not None:
            await self._authorization.close()
        if core is not None:
            await core.brokers.close()
        if leading is not None:
            await leading.close()
        if server is not None:
            await server.close(grace=grace)
        if streams is not None:
            await streams.close()
        groups, self._groups = self._groups, None
        if groups is not None:
            await groups.close()
        activity, self._activity = self._activity, None
        if activity is not None:
            await activity.close()
        if core is not None:
            await core.agreement.close()
            await core.registry.close()
            await core.copies.close()
        if js is not None:
            await js.close()
        if self._acceleration is not None:
            self._acceleration.restore()
            self._acceleration = None

    def _on_stream(self, before: StreamRecord | None, after: StreamRecord | None) -> None:
        self._reads.stream_changed(before, after)
        if self._groups is not None:
            self._groups.stream_changed(before, after)
        known = before if after is None else after
        if self._leading is not None and known is not None:
            self._leading.look(known.name)

    def _on_brokers(self) -> None:
        if self._core is not None:
            self._reads.leaders_changed(self._core.brokers.leads)
        if self._leading is not None:
            self._leading.look(gateways=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


def _passes(error: BaseException) -> bool:
    """Whether an error goes away by itself: a JetStream cluster elects the leaders of what is new."""
    if isinstance(error, NoJetStreamError):
        return error.err_code == _NOT_NOW
    if isinstance(error, JetStreamError):
        # What a gateway needs it makes; but a new leader may not know yet of what was made a moment ago.
        return error.code == _UNAVAILABLE or isinstance(error, StreamNotFoundError)
    return isinstance(error, CallTimeoutError | GroupUnavailableError)
