"""Shared parts of a gateway's services: connection, stream records, brokers, storage and options."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from liftenvelope.gateway._clients.counts import PublishCounts
from liftenvelope.gateway._cluster.change_locks import ChangeLocks
from liftenvelope.gateway._partitions.storage_faults import StorageFaults
from liftenvelope.gateway._protocol.names import PARTITION_PREFIX, partition_stream
from liftenvelope.gateway.limits import Limits
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftenvelope.gateway._acks.copies import CopyAcks
    from liftenvelope.gateway._clients.publish_places import PublishPlaces
    from liftenvelope.gateway._clients.quotas import Quotas
    from liftenvelope.gateway._cluster.activity import ActivityLog
    from liftenvelope.gateway._cluster.agreement import Agreement
    from liftenvelope.gateway._cluster.brokers import LiveBrokers
    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._cluster.registry import StreamRegistry
    from liftenvelope.gateway._partitions.storage import Storage
    from liftenvelope.gateway._protocol.subjects import AckInboxes, ClientSubjects
    from liftenvelope.jetstream.context import JetStream

__all__ = ["Core", "GatewayOptions"]

_PUBLISH_METHODS: Final = ("Publish", "PublishAsync", "PublishToSubject")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Options of a gateway. See :class:`~liftenvelope.gateway.Gateway` for their meaning."""

    id: str
    limits: Limits = field(default_factory=Limits)
    broker_ttl: float = 3.0
    ack_timeout: float = 5.0
    encrypted: bool = False
    replicas: int = 1
    domain: str | None = None


@dataclass(slots=True)
class Core:
    """Parts that a gateway's services share.

    Attributes:
        nc: Connection to NATS.
        js: JetStream on that connection, for the gateway's own records and requests. The three contexts bound
            their messages in flight apart: clients whose messages get no ack must not stop the heartbeats.
        call_js: JetStream on that connection, for what clients store by gRPC.
        raw_js: JetStream on that connection, for messages that clients publish on NATS.
        read_js: JetStream on the connection that subscriptions read from, which may be the same.
        options: Options of the gateway.
        registry: Records of all streams.
        brokers: Live gateways and leaders of partitions.
        agreement: Confirms with the other gateways that they have seen a change.
        storage: JetStream streams of the partitions.
        copies: Publishes for partitions that copy from another stream.
        subjects: Subjects that clients may record and publish to.
        ack_inboxes: Allowed ack inboxes of clients.
        quotas: Usage per client.
        places: Places for messages of gRPC clients that wait for their acks one by one.
        activity: Publishes events to the activity stream.
        changing: Locks held while this gateway creates, changes or deletes a stream.
        faults: Reasons why JetStream stores nothing, by partition.
        publishes: Counts of the publish methods, by name.
        draining: Set when the gateway refuses new calls and finishes the open ones.
    """

    nc: Client
    js: JetStream
    call_js: JetStream
    raw_js: JetStream
    read_js: JetStream
    options: GatewayOptions
    registry: StreamRegistry
    brokers: LiveBrokers
    agreement: Agreement
    storage: Storage
    copies: CopyAcks
    subjects: ClientSubjects
    ack_inboxes: AckInboxes
    quotas: Quotas
    places: PublishPlaces
    activity: ActivityLog
    changing: ChangeLocks = field(default_factory=ChangeLocks)
    faults: StorageFaults = field(default_factory=StorageFaults)
    publishes: dict[str, PublishCounts] = field(
        default_factory=lambda: {method: PublishCounts() for method in _PUBLISH_METHODS}
    )
    draining: asyncio.Event = field(default_factory=asyncio.Event)

    async def partition(self, name: str, partition: int, since: float | None = None) -> StreamRecord:
        """Return the record of a stream after checking that the partition exists.

        Args:
            name: Name of the stream.
            partition: Number of the partition.
            since: As for :meth:`StreamRegistry.find`.

        Raises:
            RpcError: NOT_FOUND: the stream or the partition does not exist.
        """
        record = await self.registry.find(name, since)
        if not record.has_partition(partition):
            raise RpcError(StatusCode.NOT_FOUND, "No such partition")
        return record

    def check_leader(self, name: str, partition: int) -> None:
        """Check that this gateway leads a partition.

        Raises:
            RpcError: FAILED_PRECONDITION: this gateway does not lead it, or has no valid lease.
        """
        if not self.brokers.leads(name, partition):
            raise RpcError(StatusCode.FAILED_PRECONDITION, "Server not partition leader")

    def partition_of(self, jetstream_stream: str) -> tuple[StreamRecord, int] | None:
        """Return the record and number of the partition in a JetStream stream; None if it holds none."""
        head, _, digits = jetstream_stream.rpartition("_")
        if not (digits.isascii() and digits.isdigit()):
            return None
        record, number = self.registry.keyed(head.removeprefix(PARTITION_PREFIX)), int(digits)
        if record is None or partition_stream(record.name, number) != jetstream_stream:
            return None
        return record, number
