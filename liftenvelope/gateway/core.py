"""What the services of a gateway share: the connection, the records, and how the gateway is set up."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from liftenvelope.gateway.limits import Limits
from liftenvelope.gateway.names import PARTITION_PREFIX, partition_stream
from liftenvelope.gateway.storage_faults import StorageFaults
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftenvelope.gateway.activity import ActivityLog
    from liftenvelope.gateway.agreement import Agreement
    from liftenvelope.gateway.brokers import Brokers
    from liftenvelope.gateway.copies import CopyAcks
    from liftenvelope.gateway.quotas import Quotas
    from liftenvelope.gateway.records import StreamRecord
    from liftenvelope.gateway.registry import StreamRegistry
    from liftenvelope.gateway.storage import Storage
    from liftenvelope.gateway.subjects import AckInboxes
    from liftenvelope.jetstream.context import JetStream

__all__ = ["Core", "Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a gateway is set up. See :class:`~liftenvelope.gateway.Gateway`."""

    id: str
    limits: Limits = field(default_factory=Limits)
    broker_ttl: float = 3.0
    ack_timeout: float = 5.0
    encrypted: bool = False
    replicas: int = 1
    domain: str | None = None
    cursors: bool = True
    activity: bool = True


@dataclass(slots=True)
class Core:
    """The parts of a gateway.

    Attributes:
        nc: The connection to NATS.
        js: JetStream on it.
        options: How the gateway is set up.
        registry: Which streams there are.
        brokers: Which gateways there are.
        agreement: What those know of the streams.
        storage: The partitions.
        copies: Publishes for partitions that copy from another stream.
        ack_inboxes: Where acks may go on behalf of clients.
        quotas: How much each client has.
        activity: Who is told of what is done; None for nobody.
        changing: Held while a stream is made, changed or removed here.
        faults: Why JetStream stores nothing.
        draining: Set when the gateway takes no more calls and finishes those that it has.
    """

    nc: Client
    js: JetStream
    options: Options
    registry: StreamRegistry
    brokers: Brokers
    agreement: Agreement
    storage: Storage
    copies: CopyAcks
    ack_inboxes: AckInboxes
    quotas: Quotas
    activity: ActivityLog | None = None
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    faults: StorageFaults = field(default_factory=StorageFaults)
    draining: asyncio.Event = field(default_factory=asyncio.Event)

    async def partition(self, name: str, partition: int) -> StreamRecord:
        """The stream of that name, once it is sure that it has that partition.

        Raises:
            RpcError: NOT_FOUND: there is no such stream or partition.
        """
        record = await self.registry.find(name)
        if not record.has_partition(partition):
            raise RpcError(StatusCode.NOT_FOUND, "No such partition")
        return record

    def check_leader(self, name: str, partition: int) -> None:
        """Make sure that this gateway leads a partition.

        Raises:
            RpcError: FAILED_PRECONDITION: another one does.
        """
        if not self.brokers.leads(name, partition):
            raise RpcError(StatusCode.FAILED_PRECONDITION, "Server not partition leader")

    def partition_of(self, jetstream_stream: str) -> tuple[StreamRecord, int] | None:
        """The partition that a JetStream stream holds, None if it holds none."""
        head, _, digits = jetstream_stream.rpartition("_")
        if not (digits.isascii() and digits.isdigit()):
            return None
        record, number = self.registry.keyed(head.removeprefix(PARTITION_PREFIX)), int(digits)
        if record is None or partition_stream(record.name, number) != jetstream_stream:
            return None
        return record, number
