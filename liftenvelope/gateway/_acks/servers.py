"""Detects the loss of a NATS server that holds ack consumers.

An ack consumer has one replica, on one of the servers that store the partition. If that server is lost, no
message tells the reader so: the consumer is as silent as an idle one, and heartbeats are rare. Therefore
CONSUMER.INFO is requested every 5 seconds for one consumer on each server. If two requests in a row get no
answer, all readers with a consumer on that server create new consumers elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

from liftenvelope.consumers.tasks import background

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["AckServers", "ack_servers_of"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Seconds between two checks of a server, and unanswered requests per check after which the server is lost.
_INTERVAL: Final = 5.0
_QUESTIONS: Final = 2


class _CheckedReader(Protocol):
    async def is_reachable(self) -> bool:
        """Return True if the server that holds the consumer answers."""

    def server_lost(self) -> None:
        """Replace the consumer, because its server is lost."""


class AckServers:
    """Checks the servers that hold the ack consumers of one connection."""

    def __init__(self) -> None:
        self._readers: dict[str, dict[_CheckedReader, None]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, server: str, reader: _CheckedReader) -> None:
        """Check the server that holds a reader's consumer from now on."""
        self._readers.setdefault(server, {})[reader] = None
        if self._task is None:
            self._task = background(self._run(), name="servers of ack consumers", log=_log)

    def remove(self, reader: _CheckedReader) -> None:
        """Stop checking servers for a reader."""
        for server in [server for server, readers in self._readers.items() if reader in readers]:
            del self._readers[server][reader]
            if not self._readers[server]:
                del self._readers[server]
        if not self._readers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            await asyncio.gather(*(self._look(server) for server in list(self._readers)))

    async def _look(self, server: str) -> None:
        for _ in range(_QUESTIONS):
            reader = next(iter(self._readers.get(server, ())), None)
            if reader is None or await reader.is_reachable():
                return
        for reader in list(self._readers.get(server, ())):
            reader.server_lost()


_servers: WeakKeyDictionary[Client, AckServers] = WeakKeyDictionary()


def ack_servers_of(nc: Client) -> AckServers:
    """Return the shared :class:`AckServers` of a connection."""
    return _servers.setdefault(nc, AckServers())
