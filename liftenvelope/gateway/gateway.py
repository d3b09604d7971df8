"""The gateway: a server of the Liftbridge API that keeps every stream in JetStream."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from liftenvelope.errors import (
    CallTimeoutError,
    JetStreamError,
    NoJetStreamError,
    StreamNotFoundError,
    UsageError,
)
from liftenvelope.gateway.authorization import Authorization
from liftenvelope.gateway.core import Options
from liftenvelope.gateway.drops import LogFile
from liftenvelope.gateway.limits import Limits
from liftenvelope.gateway.running import Running, Setup
from liftenvelope.group.errors import GroupUnavailableError
from liftenvelope.jetstream._names import check_domain
from liftenvelope.rpc.address import parse_address

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["Gateway"]

#: How long a gateway tries to start where JetStream is not ready for it, and between two tries, in seconds.
_PATIENCE = 30.0
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
        limits: Limits on clients: connections, memory, names, quotas, ack inboxes. Default: those of
            :class:`~liftenvelope.gateway.Limits`.
        max_message_bytes: The limit of the same name, in the place of the one in ``limits``.
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
        limits: Limits | None = None,
        max_message_bytes: int | None = None,
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
        limits = limits or Limits()
        if max_message_bytes is not None:
            limits = replace(limits, max_message_bytes=max_message_bytes)
        if domain is not None:
            check_domain(domain)
        options = Options(
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
            if tls is None or tls.verify_mode is not ssl.CERT_REQUIRED:
                text = "a tls context that requires clients to show certificates"
                raise UsageError(f"policy_file needs {text}, got {os.fspath(policy_file)!r} without one")
            authorization = Authorization(policy_file)
        log = None if nats_log is None else os.fspath(nats_log)
        if log is not None:
            LogFile(log).close()
        self._setup = Setup(
            nc=nc,
            options=options,
            host=host,
            port=port,
            advertise=None if advertise is None else parse_address(advertise),
            tls=tls,
            authorization=authorization,
            nats_log=log,
            group_timeouts=(consumer_timeout, coordinator_timeout),
        )
        self._running: Running | None = None

    @property
    def id(self) -> str:
        """Its id among the brokers."""
        return self._setup.options.id

    @property
    def limits(self) -> Limits:
        """Its limits on clients."""
        return self._setup.options.limits

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        if self._running is None or not self._running.address:
            raise UsageError("the gateway is not started")
        return self._running.address

    async def start(self) -> Self:
        """Begin to serve; return when clients can be served.

        Where JetStream answers and is not ready yet, as in a cluster that has just formed, it is tried again
        for up to 30 seconds.

        Raises:
            NoJetStreamError: The NATS server has no JetStream.
            TransportError: It can't listen there, or the connection is closed.
            UsageError: It is started already.
        """
        if self._running is not None:
            raise UsageError("the gateway is started already")
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while True:
            running = self._running = Running(self._setup)
            try:
                await running.start()
            except BaseException as exc:
                await self.close()
                late = asyncio.get_running_loop().time() > deadline
                if late or not _passes(exc, is_answered=running.is_answered):
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                return self

    def read_server_log(self, line: str) -> None:
        """Take a line of the NATS server's log, for those who have it otherwise than as a file.

        Args:
            line: The line. Where it says that JetStream has dropped messages of a stream, there is a warning.
        """
        if self._running is not None:
            self._running.read_server_log(line)

    async def close(self, *, grace: float = 0.0) -> None:
        """Stop serving. What is stored stays, and the connection to NATS stays open. Closing twice is fine.

        With a ``grace`` the gateway drains first: it refuses new calls, answers every publish that it has
        taken, sends the acks of all messages that are stored, lets the other gateways take over, and ends
        subscriptions with UNAVAILABLE, which clients take as a reason to go on elsewhere.

        Args:
            grace: Seconds for that. What is not done then is cancelled. Default: nothing is waited for.
        """
        running, self._running = self._running, None
        if running is None:
            return
        try:
            if grace:
                await running.drain(grace)
        finally:
            await running.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


def _passes(error: BaseException, *, is_answered: bool) -> bool:
    """Whether an error goes away by itself: a JetStream cluster elects the leaders of what is new.

    Args:
        error: The error.
        is_answered: Whether JetStream has answered before. Then nobody answers for what has no leader yet.
    """
    if isinstance(error, NoJetStreamError):
        return is_answered or error.err_code == _NOT_NOW
    if isinstance(error, JetStreamError):
        # What a gateway needs it makes; but a new leader may not know yet of what was made a moment ago.
        return error.code == _UNAVAILABLE or isinstance(error, StreamNotFoundError)
    return isinstance(error, CallTimeoutError | GroupUnavailableError)
