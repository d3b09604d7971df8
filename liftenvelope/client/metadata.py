"""What a cluster says of itself, as values that don't change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType

from liftenvelope._pb import api_pb2
from liftenvelope.client.failures import decode
from liftenvelope.errors import NoSuchStreamError, ServerProtocolError
from liftenvelope.rpc.address import Address
from liftenvelope.rpc.status import StatusCode

__all__ = ["BrokerInfo", "EventTimes", "GroupInfo", "Metadata", "PartitionInfo", "StreamInfo"]


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A server of the cluster.

    Attributes:
        id: Its id.
        host: Where clients reach it, as it says itself.
        port: Likewise.
        partition_count: How many partitions it holds a replica of.
        leader_count: How many partitions it leads.
    """

    id: str
    host: str
    port: int
    partition_count: int = 0
    leader_count: int = 0

    @property
    def address(self) -> str:
        """``host:port``, with brackets around an IPv6 host."""
        return str(Address(self.host, self.port))


@dataclass(frozen=True, slots=True)
class EventTimes:
    """When something happened to a partition, in ns since 1970; 0 for never since the server started.

    Attributes:
        first_ns: For the first time.
        latest_ns: For the last time.
    """

    first_ns: int = 0
    latest_ns: int = 0


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition of a stream.

    Offsets, flags and times are those of the broker that answered: right only from
    :meth:`Client.fetch_partition_metadata`, which asks the leader.

    Attributes:
        id: Its number, from 0.
        leader: Id of the broker that leads it; empty while there is none.
        replicas: Ids of the brokers that hold it.
        isr: Ids of those that are in sync.
        high_watermark: Offset of the last message that subscribers may see, -1 for none.
        newest_offset: Offset of the last message in the log, -1 for none.
        paused: Whether it is paused. Servers up to 26.01 at least never clear it again.
        readonly: Whether it takes no messages.
        messages_received: When it got messages.
        pause_times: When it was paused or woken.
        readonly_times: When it was made read-only or writable.
    """

    id: int
    leader: str = ""
    replicas: tuple[str, ...] = ()
    isr: tuple[str, ...] = ()
    high_watermark: int = -1
    newest_offset: int = -1
    paused: bool = False
    readonly: bool = False
    messages_received: EventTimes = EventTimes()
    pause_times: EventTimes = EventTimes()
    readonly_times: EventTimes = EventTimes()


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream.

    Attributes:
        name: Its name.
        subject: The NATS subject that it records: partition i > 0 records ``subject.i``.
        partitions: Its partitions by number, in order.
        created_ns: When it was created, in ns since 1970.
    """

    name: str
    subject: str = ""
    partitions: Mapping[int, PartitionInfo] = field(default_factory=dict)
    created_ns: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "partitions", MappingProxyType(dict(self.partitions)))

    def __reduce__(self) -> tuple[type[StreamInfo], tuple[object, ...]]:
        # A mapping that does not change can't be pickled; one is made of a dict again.
        return StreamInfo, (self.name, self.subject, dict(self.partitions), self.created_ns)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group.

    Attributes:
        id: Its name.
        coordinator: Id of the broker that deals out its partitions.
        epoch: Its generation.
    """

    id: str
    coordinator: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the cluster said when it was asked last.

    Attributes:
        brokers: Its servers by id.
        streams: The streams that were asked for and exist, by name.
        groups: The groups that were asked for and exist, by name.
        last_updated: When the answer came, by the clock of this machine.
    """

    brokers: Mapping[str, BrokerInfo]
    streams: Mapping[str, StreamInfo]
    groups: Mapping[str, GroupInfo]
    last_updated: datetime

    def __post_init__(self) -> None:
        for name in ("brokers", "streams", "groups"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[type[Metadata], tuple[object, ...]]:
        return Metadata, (dict(self.brokers), dict(self.streams), dict(self.groups), self.last_updated)

    @property
    def addresses(self) -> tuple[str, ...]:
        """``host:port`` of each broker."""
        return tuple(broker.address for broker in self.brokers.values())

    def get_stream(self, name: str) -> StreamInfo | None:
        """The stream of that name, None where there is none or it was not asked for."""
        return self.streams.get(name)

    def partition_count(self, name: str) -> int:
        """How many partitions a stream has.

        Raises:
            NoSuchStreamError: There is none of that name here.
        """
        stream = self.streams.get(name)
        if stream is None:
            raise NoSuchStreamError(StatusCode.NOT_FOUND, f"there is no stream {name!r}")
        return len(stream.partitions)

    def missing_brokers(self) -> set[str]:
        """Ids of leaders and coordinators whose address is not known."""
        leaders = {p.leader for stream in self.streams.values() for p in stream.partitions.values()}
        coordinators = {group.coordinator for group in self.groups.values()}
        return (leaders | coordinators) - self.brokers.keys() - {""}


def _times(times: api_pb2.PartitionEventTimestamps) -> EventTimes:
    return EventTimes(times.firstTimestamp, times.latestTimestamp)


def partition_info(found: api_pb2.PartitionMetadata) -> PartitionInfo:
    """Return a partition as the API describes it."""
    return PartitionInfo(
        id=found.id,
        leader=found.leader,
        replicas=tuple(found.replicas),
        isr=tuple(found.isr),
        high_watermark=found.highWatermark,
        newest_offset=found.newestOffset,
        paused=found.paused,
        readonly=found.readonly,
        messages_received=_times(found.messagesReceivedTimestamps),
        pause_times=_times(found.pauseTimestamps),
        readonly_times=_times(found.readonlyTimestamps),
    )


def _stream(found: api_pb2.StreamMetadata) -> StreamInfo:
    partitions = {number: partition_info(found.partitions[number]) for number in sorted(found.partitions)}
    return StreamInfo(found.name, found.subject, partitions, found.creationTimestamp)


def make_metadata(
    brokers: Iterable[BrokerInfo], streams: Iterable[StreamInfo], groups: Iterable[GroupInfo]
) -> Metadata:
    """Return metadata with these entries, timed now."""
    return Metadata(
        {broker.id: broker for broker in brokers},
        {stream.name: stream for stream in streams},
        {group.id: group for group in groups},
        datetime.now(UTC),
    )


def read_metadata(answer: api_pb2.FetchMetadataResponse) -> Metadata:
    """Return an answer of the API without what it says does not exist."""
    return make_metadata(
        (BrokerInfo(b.id, b.host, b.port, b.partitionCount, b.leaderCount) for b in answer.brokers),
        (_stream(stream) for stream in answer.streamMetadata if not stream.error),
        (GroupInfo(g.groupId, g.coordinator, g.epoch) for g in answer.groupMetadata if not g.error),
    )


def decode_metadata(data: bytes, max_brokers: int, max_partitions: int) -> Metadata:
    """Return what an answer of a server says, if it is not larger than the client's options allow.

    Args:
        data: The answer.
        max_brokers: Brokers that it may name.
        max_partitions: Partitions that it may describe, over all streams. Streams without partitions and
            groups count as one each.

    Raises:
        ServerProtocolError: It is no answer, or exceeds a limit.
    """
    answer = decode(api_pb2.FetchMetadataResponse, data, "metadata")
    partitions = sum(max(1, len(stream.partitions)) for stream in answer.streamMetadata)
    partitions += len(answer.groupMetadata)
    counts = (
        ("brokers", len(answer.brokers), max_brokers),
        ("partitions", partitions, max_partitions),
    )
    for name, count, most in counts:
        if count > most:
            text = f"metadata: the server must name at most max_{name}={most} {name}, got {count}"
            raise ServerProtocolError(text)
    return read_metadata(answer)


def merged(first: Metadata, second: Metadata) -> Metadata:
    """Return what two brokers say together; of what both speak of, the second one's word."""
    return make_metadata(
        {**first.brokers, **second.brokers}.values(),
        {**first.streams, **second.streams}.values(),
        {**first.groups, **second.groups}.values(),
    )
