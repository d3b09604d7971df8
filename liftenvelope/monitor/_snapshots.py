"""One sample of the servers as immutable values: streams, consumers, groups, and what could not be read.

Offsets are those of the gateway and of groups: for JetStream, the stream sequence minus 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from liftenvelope.monitor.groups import GroupPartition

__all__ = [
    "ConsumerSample",
    "GatewayFigures",
    "GatewaySample",
    "GroupSample",
    "PartitionSample",
    "PinSample",
    "SampleFault",
    "Snapshot",
    "StorageSample",
    "StreamSample",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSample:
    """A partition. A JetStream stream is shown as one partition.

    Attributes:
        number: Number of the partition.
        at: Time at which the offsets were read, in seconds since 1970.
        first: Offset of the oldest message; None if the servers do not tell.
        end: Offset of the next message; None if it could not be read.
        leader: Leader of the partition, empty while it has none; None if the servers have no leaders.
        replicas: Number of replicas.
        in_sync: Number of replicas that are in sync.
        paused: The partition is paused.
        readonly: The partition refuses messages.
    """

    number: int
    at: float
    first: int | None = None
    end: int | None = None
    leader: str | None = None
    replicas: int = 1
    in_sync: int = 1
    paused: bool = False
    readonly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSample:
    """A stream.

    Attributes:
        name: Name of the stream.
        subjects: Subjects that it records, at most :data:`~liftenvelope.monitor.MAX_SUBJECTS` of them.
        partitions: Partitions, by number.
        messages: Number of messages. Liftbridge does not tell: None.
        bytes: Bytes of storage. Liftbridge does not tell: None.
        consumers: Number of consumers. None for Liftbridge.
        newest: Time of the newest message, in seconds since 1970; None if there is none.
    """

    name: str
    subjects: Sequence[str] = ()
    partitions: Sequence[PartitionSample] = ()
    messages: int | None = None
    bytes: int | None = None
    consumers: int | None = None
    newest: float | None = None

    @property
    def end(self) -> int | None:
        """Sum of the partitions' ends: the number of messages that were ever recorded."""
        known = [one.end for one in self.partitions if one.end is not None]
        return sum(known) if known else None

    @property
    def at(self) -> float:
        """Time of the newest offset in the sample."""
        return max((one.at for one in self.partitions), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinSample:
    """Pinned client of a priority group.

    Attributes:
        group: Name of the priority group.
        client: Id of the pinned client; None if no client is pinned.
        since: Time when the client was pinned, in seconds since 1970.
    """

    group: str
    client: str | None = None
    since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSample:
    """A consumer of a JetStream stream.

    Attributes:
        stream: Name of the stream.
        name: Name of the consumer.
        at: Time at which the consumer was read, in seconds since 1970.
        delivered: Sequence of the last delivered message.
        ack_floor: Sequence up to which every message is acknowledged.
        unprocessed: Number of messages not yet delivered.
        ack_pending: Number of messages delivered and not yet acknowledged.
        redelivered: Number of those that were delivered more than once.
        waiting: Number of waiting pulls.
        is_push: The consumer pushes to a subject.
        paused: The consumer is paused.
        pins: Pinned client of each priority group.
    """

    stream: str
    name: str
    at: float
    delivered: int = 0
    ack_floor: int = 0
    unprocessed: int = 0
    ack_pending: int = 0
    redelivered: int = 0
    waiting: int = 0
    is_push: bool = False
    paused: bool = False
    pins: Sequence[PinSample] = ()

    @property
    def lag(self) -> int:
        """Number of messages that are not acknowledged."""
        return self.unprocessed + self.ack_pending


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSample:
    """A consumer group.

    Attributes:
        name: Name of the group.
        at: Time at which the positions were read, in seconds since 1970.
        state: State of the group.
        coordinator: Id of the coordinator.
        generation: Number of the assignment, which Liftbridge calls the epoch.
        members: Topics of each member, by the member's id.
        partitions: Positions of the group.
    """

    name: str
    at: float
    state: str
    coordinator: str | None = None
    generation: int | None = None
    members: Mapping[str, Sequence[str]] = field(default_factory=dict)
    partitions: Sequence[GroupPartition] = ()

    @property
    def lag(self) -> int | None:
        """Messages that the group has not processed, over the partitions where that is known."""
        known = [one.lag for one in self.partitions if one.lag is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFigures:
    """Metrics of one gateway.

    Attributes:
        at: Time at which they were read, in seconds since 1970.
        ready: The gateway is ready.
        unmet: Conditions of readiness that are not met, such as ``lease`` or ``nats``.
        led: Partitions that the gateway leads, those of internal streams included.
        bound: Number of those whose raw NATS publishers get acks.
        connections: Open connections of clients.
        calls: Open calls.
        pending_acks: Messages published by gRPC that wait for their acks.
        raw_ack_lag: Stored messages of the led partitions that were not read for their acks yet; None if
            JetStream did not answer.
        reads: Open subscriptions.
        buffered_bytes: Bytes received for subscriptions and not sent yet.
        publishes: Messages published by gRPC since the start.
        acks: Acks since the start, those to raw NATS publishers included.
    """

    at: float
    ready: bool = False
    unmet: Sequence[str] = ()
    led: int = 0
    bound: int = 0
    connections: int = 0
    calls: int = 0
    pending_acks: int = 0
    raw_ack_lag: int | None = None
    reads: int = 0
    buffered_bytes: int = 0
    publishes: int = 0
    acks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySample:
    """A gateway, or a broker of a Liftbridge cluster.

    Attributes:
        id: Id of the gateway.
        address: ``host:port`` for clients; None if only its metrics are known.
        status: Health, such as ``serving``; None if only its metrics are known.
        leaders: Partitions that it leads, those of internal streams left out; None if the metadata
            of the cluster was not read.
        figures: Its metrics; None if they are not read.
    """

    id: str
    address: str | None = None
    status: str | None = None
    leaders: int | None = None
    figures: GatewayFigures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSample:
    """Storage of a JetStream account.

    Attributes:
        disk: Bytes on disk.
        max_disk: Limit of these bytes; None for no limit.
        memory: Bytes of memory.
        max_memory: Limit of these bytes; None for no limit.
    """

    disk: int = 0
    max_disk: int | None = None
    memory: int = 0
    max_memory: int | None = None


@dataclass(frozen=True, slots=True)
class SampleFault:
    """Part of a sample that could not be read.

    Attributes:
        part: ``streams``, ``consumers``, ``groups``, ``gateways``, ``storage``, or ``connection``.
        text: The reason.
    """

    part: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State of the servers at one time. What could not be read is that of the sample before.

    Attributes:
        at: Time of the sample in seconds since 1970, on a clock that never goes back.
        kind: ``jetstream`` or ``liftbridge``.
        streams: Streams by name.
        consumers: Consumers by stream and name.
        groups: Groups by name.
        brokers: Health of each Liftbridge broker, by ``host:port``.
        gateways: Gateways and Liftbridge brokers by id.
        storage: Storage of the JetStream account; None if unknown.
        missing: JetStream streams of which no server answered: they have no leader, or it is cut off.
        left_out: Number of streams, consumers, groups, and partitions of groups beyond the limits, which are
            not in the sample. Kinds that are in it as a whole are left out or 0.
        faults: Parts that could not be read.
        took: Seconds that the sample took.
    """

    at: float
    kind: str
    streams: Mapping[str, StreamSample] = field(default_factory=dict)
    consumers: Mapping[tuple[str, str], ConsumerSample] = field(default_factory=dict)
    groups: Mapping[str, GroupSample] = field(default_factory=dict)
    brokers: Mapping[str, str] = field(default_factory=dict)
    gateways: Mapping[str, GatewaySample] = field(default_factory=dict)
    storage: StorageSample | None = None
    missing: Sequence[str] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    faults: Sequence[SampleFault] = ()
    took: float = 0.0
