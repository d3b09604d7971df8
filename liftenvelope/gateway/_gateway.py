"""The gateway: a server of the Liftbridge API that stores every stream in JetStream."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import ssl
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from liftenvelope._checks import about, is_encodable
from liftenvelope.errors import UsageError
from liftenvelope.gateway._clients.authorization import Authorization
from liftenvelope.gateway._core import GatewayOptions
from liftenvelope.gateway._families import Metric, MetricSource, read_metrics
from liftenvelope.gateway._lifecycle.running import Running
from liftenvelope.gateway._lifecycle.starting import Setup, start_gateway
from liftenvelope.gateway._monitoring.drops import LogFile
from liftenvelope.gateway._monitoring.readiness import (
    NOT_STARTED,
    RUNNING,
    STARTING,
    STOPPING,
    Readiness,
    ReadinessProbe,
)
from liftenvelope.gateway.limits import Limits
from liftenvelope.jetstream.names import check_domain
from liftenvelope.rpc.address import parse_address

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["Gateway"]

_log: Final = logging.getLogger("liftenvelope.gateway")


class Gateway:
    """Serves the Liftbridge API on a connection to a NATS server with JetStream.

    Several gateways on one NATS server or cluster are the brokers of one Liftbridge cluster. Each gateway
    serves all streams and leads some of the partitions. All their state is in JetStream.

    Args:
        nc: A connected nats-py client. The gateway never closes it. While the gateway runs, the client is
            accelerated (:func:`liftenvelope.nats.accelerate`).
        read_nc: Second client, of the same account, for the messages that subscriptions read. With it, acks
            of publishes do not wait behind messages for readers. It is accelerated and never closed, as
            ``nc``. While either is lost, the gateway sends no heartbeats. Default: ``nc``.
        host: Address to listen on. Default: loopback only.
        port: Port to listen on. Default 0: any free port.
        advertise: ``host:port`` that clients are told to connect to. Default: the listening address.
        id: Broker id. Default: a new random id.
        tls: TLS context for connections of clients. Default: plain TCP. If the context requires client
            certificates, TLS is mutual.
        broker_ttl: Seconds of silence after which the other gateways consider this one dead. Default 3.
        ack_timeout: Seconds to wait for an ack of JetStream if the client sets no deadline. Default 5.
        replicas: Number of replicas of the gateways' own records, 1 to 5. Default 1.
        domain: JetStream domain of the streams, for example the hub's domain if ``nc`` is connected to a leaf
            node. Default: the domain of the server that ``nc`` is connected to.
        encrypted: True if the NATS server encrypts its storage. If False, the default, streams with
            ``encryption`` are refused.
        limits: Limits on clients: connections, memory, names, quotas, ack inboxes. Default: those of
            :class:`~liftenvelope.gateway.Limits`.
        max_message_bytes: Overrides the limit of the same name in ``limits``.
        nats_log: Path of the NATS server's log file. The gateway follows the file and warns of messages that
            JetStream has dropped. Default: none.
        policy_file: Path of a file with the permissions of clients, by the names in their certificates. Needs
            ``tls`` that requires certificates. Default: all clients may do everything.
        consumer_timeout: Seconds of silence after which a member of a consumer group is dead. Default 15.
        coordinator_timeout: Seconds of silence after which clients report a group coordinator. Default 15.

    Raises:
        UsageError: An argument is invalid, or a file can't be read.

    Example::

        async with Gateway(nc, port=9292) as gateway:
            print("serving on", gateway.address)
            await asyncio.Event().wait()
    """

    def __init__(
        self,
        nc: Client,
        *,
        read_nc: Client | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        id: str | None = None,  # noqa: A002 - Liftbridge's own name for it
        tls: ssl.SSLContext | None = None,
        broker_ttl: float = 3.0,
        ack_timeout: float = 5.0,
        replicas: int = 1,
        domain: str | None = None,
        encrypted: bool = False,
        limits: Limits | None = None,
        max_message_bytes: int | None = None,
        nats_log: str | os.PathLike[str] | None = None,
        policy_file: str | os.PathLike[str] | None = None,
        consumer_timeout: float = 15.0,
        coordinator_timeout: float = 15.0,
    ) -> None:
        if nc.options.get("no_echo"):  # leaders publish to themselves, and acks go to clients on ``nc``
            raise about(UsageError("nc must get its own messages: connect it without no_echo=True"), "nc")
        if not 0 <= port <= 65_535:
            raise about(UsageError(f"port must be from 0 to 65535, got {port!r}"), "port")
        timeouts = {
            "broker_ttl": broker_ttl,
            "ack_timeout": ack_timeout,
            "consumer_timeout": consumer_timeout,
            "coordinator_timeout": coordinator_timeout,
        }
        for name, seconds in timeouts.items():
            if not (math.isfinite(seconds) and seconds > 0):
                raise about(UsageError(f"{name} must be a positive number of seconds, got {seconds!r}"), name)
        if not 1 <= replicas <= 5:
            raise about(UsageError(f"replicas must be from 1 to 5, got {replicas!r}"), "replicas")
        limits = limits or Limits()
        if max_message_bytes is not None:
            limits = replace(limits, max_message_bytes=max_message_bytes)
        if domain is not None:
            check_domain(domain)
        if id is not None and not is_encodable(id):
            text = f"id must not contain a lone surrogate, which UTF-8 cannot encode, got {id!r}"
            raise about(UsageError(text), "id")
        options = GatewayOptions(
            id=id or f"gateway-{secrets.token_hex(4)}",
            broker_ttl=broker_ttl,
            ack_timeout=ack_timeout,
            replicas=replicas,
            domain=domain,
            encrypted=encrypted,
            limits=limits,
        )
        authorization = None
        if policy_file is not None:
            _check_identifies(tls, policy_file)
            authorization = Authorization(policy_file)
        log = None if nats_log is None else os.fspath(nats_log)
        if log is not None:
            LogFile(log).close()
        self._setup = Setup(
            nc=nc,
            read_nc=nc if read_nc is None else read_nc,
            options=options,
            host=host,
            port=port,
            advertise=None if advertise is None else parse_address(advertise),
            tls=tls,
            authorization=authorization,
            nats_log=log,
            group_timeouts=(consumer_timeout, coordinator_timeout),
            readiness=ReadinessProbe(nc, nc if read_nc is None else read_nc),
        )
        # None while the gateway is not started.
        self._running: Running | None = None
        # Held while the gateway starts or stops.
        self._changing = asyncio.Lock()

    @property
    def id(self) -> str:
        """Broker id of this gateway."""
        return self._setup.options.id

    @property
    def limits(self) -> Limits:
        """Limits on clients."""
        return self._setup.options.limits

    @property
    def address(self) -> str:
        """Listening address, as ``host:port``.

        Raises:
            UsageError: The gateway is not started.
        """
        if self._running is None:
            raise UsageError("the gateway is not started: await start(), or use 'async with'")
        return self._running.address

    async def start(self) -> Self:
        """Start the gateway; return when it serves clients.

        If JetStream answers but is not ready yet, as in a cluster that has just formed, the start is retried
        for up to 30 seconds.

        Raises:
            NoJetStreamError: The NATS server has no JetStream.
            PermissionDeniedError: The NATS user lacks a permission that the gateway needs.
            TransportError: The gateway can't listen on the address, or the connection is closed.
            UsageError: The gateway is started already.
        """
        async with self._changing:
            if self._running is not None:
                raise UsageError("the gateway is started already: close it before the next start")
            setup = self._setup
            probe = setup.readiness
            probe.stage = STARTING
            try:
                self._running = await start_gateway(setup)
                # The certificates may have been reloaded during the start.
                if self._setup.tls is not None and self._setup.tls is not setup.tls:
                    self._running.server.replace_tls(self._setup.tls)
            finally:
                probe.stage = NOT_STARTED if self._running is None else RUNNING
            _log.info("gateway %s serves on %s", self.id, self._running.address, extra={"gateway": self.id})
        return self

    def readiness(self) -> Readiness:
        """Return whether the gateway can serve its clients now, with the reasons if it can't.

        It is ready if it is started and not draining, its connections to NATS are established, it has read
        the records of all streams, its lease is valid, and raw NATS publishers get acks on every partition
        that it leads. The gRPC health service gives the same answer. Asking is cheap and sends nothing.
        """
        return self._setup.readiness.look()

    def metrics(self) -> list[Metric]:
        """Return the metrics of the gateway, for any monitoring system; docs/operating.md lists them.

        :class:`liftenvelope.gateway.metrics.GatewayCollector` passes them on to prometheus_client. Call it in
        the thread of the gateway's event loop. It sends nothing, and takes some milliseconds if there are
        thousands of streams.
        """
        setup = self._setup
        connections = {"main": setup.nc, "read": setup.read_nc}
        if setup.nc is setup.read_nc:
            del connections["read"]
        source = MetricSource(self.id, self.limits, self.readiness(), connections, self._running)
        return read_metrics(source)

    async def refresh_metrics(self, *, timeout: float | None = None) -> None:
        """Ask JetStream for the metrics that only JetStream knows: the lags, once in 5 seconds.

        Before the first call, and while JetStream does not answer, :meth:`metrics` returns them without
        samples.

        Args:
            timeout: Seconds to wait for JetStream. Default: as long as other requests of the gateway do.
        """
        running = self._running
        if running is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await asyncio.gather(running.ack_lag.measure(), running.group_lag.measure())

    def read_server_log(self, line: str) -> None:
        """Process a line of the NATS server's log, for servers whose log is not a file.

        Args:
            line: The line. If it reports that JetStream has dropped messages of a stream, the gateway logs a
                warning.
        """
        if self._running is not None:
            self._running.drops.feed(line)

    def reload(self, *, tls: ssl.SSLContext | None = None, nats_tls: ssl.SSLContext | None = None) -> None:
        """Use other certificates for new connections, and read the policy file again. Open connections stay.

        If the policy file can't be read or parsed, an error is logged and the previous policy stays.

        Args:
            tls: TLS context for new connections of clients. Default: the present one.
            nats_tls: TLS context for the next connections to NATS, after one was lost. Default: the present
                one.

        Raises:
            UsageError: The gateway serves without TLS, or its policy needs a context that requires client
                certificates.
        """
        if tls is not None:
            if self._setup.tls is None:
                raise about(
                    UsageError("tls can't be added to a gateway that serves plain TCP: restart it"), "tls"
                )
            if self._setup.authorization is not None:
                _check_identifies(tls, self._setup.authorization.path)
            self._setup = replace(self._setup, tls=tls)
            if self._running is not None:
                self._running.server.replace_tls(tls)
        if nats_tls is not None:
            for nc in {self._setup.nc, self._setup.read_nc}:
                nc.options["tls"] = nats_tls
        if self._setup.authorization is not None:
            self._setup.authorization.reload()

    async def close(self, *, grace: float = 0.0) -> None:
        """Stop serving. Stored data and the connection to NATS stay. Closing twice is fine.

        While the gateway starts, this waits for the end of the start. To end a start early, cancel it.

        With a ``grace`` the gateway drains first. It refuses new calls, answers every publish that it has
        accepted, sends the acks of all stored messages and lets the other gateways take over. It ends
        subscriptions with UNAVAILABLE, so clients continue on another gateway.

        Args:
            grace: Seconds to drain. Whatever is unfinished then is cancelled. Default 0: no draining.
        """
        async with self._changing:
            running = self._running
            if running is None:
                return
            named = {"gateway": self.id}
            try:
                if grace:
                    _log.info("gateway %s drains, for at most %s s", self.id, grace, extra=named)
                    await running.drain(grace)
            finally:
                self._running, self._setup.readiness.stage = None, STOPPING
                try:
                    await running.close()
                    _log.info("gateway %s has stopped", self.id, extra=named)
                finally:
                    self._setup.readiness.stage = NOT_STARTED

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


def _check_identifies(tls: ssl.SSLContext | None, policy_file: str | os.PathLike[str]) -> None:
    """Check that a policy can tell clients apart by their certificates.

    Raises:
        UsageError: The TLS context does not require client certificates.
    """
    if tls is None or tls.verify_mode is not ssl.CERT_REQUIRED:
        text = "policy_file must come with a tls context that requires client certificates"
        raise about(UsageError(f"{text}, got {os.fspath(policy_file)!r} without one"), "policy_file")
