"""Cluster metadata as immutable values: brokers, streams, partitions and consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType

from liftenvelope._pb import api_pb2
from liftenvelope._showing import html_fields, html_table, short
from liftenvelope.client.failures import decode, no_such_stream
from liftenvelope.errors import ServerProtocolError
from liftenvelope.rpc.address import Address

__all__ = ["BrokerInfo", "EventTimes", "GroupInfo", "Metadata", "PartitionInfo", "StreamInfo"]


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker of the cluster.

    Attributes:
        id: Id of the broker.
        host: Host that the broker advertises to clients.
        port: Port that the broker advertises to clients.
        partition_count: Number of partitions that the broker holds a replica of.
        leader_count: Number of partitions that the broker leads.
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
    """First and last time of an event of a partition, in ns since 1970; 0 for never since the server started.

    Attributes:
        first_ns: Time of the first event.
        latest_ns: Time of the last event.
    """

    first_ns: int = 0
    latest_ns: int = 0


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition of a stream.

    Offsets, flags and times are those of the broker that answered. Only
    :meth:`Client.fetch_partition_metadata` asks the leader, whose values are reliable.

    Attributes:
        id: Number of the partition, from 0.
        leader: Id of the broker that leads the partition; empty if it has no leader.
        replicas: Ids of the brokers that hold a replica.
        isr: Ids of the replicas that are in sync.
        high_watermark: Offset of the last message that subscribers may see, -1 for none.
        newest_offset: Offset of the last message in the log, -1 for none.
        paused: Whether the partition is paused. Servers up to 26.01 at least never clear this flag again.
        readonly: Whether the partition refuses messages.
        messages_received: Times at which the partition received messages.
        pause_times: Times at which the partition was paused or woken.
        readonly_times: Times at which the partition was made read-only or writable.
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


_COLUMNS = ("partition", "leader", "in sync", "high watermark", "newest offset", "paused", "readonly")


def _cells(found: PartitionInfo) -> tuple[object, ...]:
    marks = found.high_watermark, found.newest_offset
    return (found.id, found.leader, found.isr, *marks, found.paused, found.readonly)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream.

    Attributes:
        name: Name of the stream.
        subject: NATS subject that partition 0 records; partition i > 0 records ``subject.i``.
        partitions: Partitions by number, in ascending order.
        created_ns: Creation time in ns since 1970.
    """

    name: str
    subject: str = ""
    partitions: Mapping[int, PartitionInfo] = field(default_factory=dict)
    created_ns: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "partitions", MappingProxyType(dict(self.partitions)))

    def __reduce__(self) -> tuple[type[StreamInfo], tuple[object, ...]]:
        # A mappingproxy can't be pickled; __post_init__ makes one of the dict again.
        return StreamInfo, (self.name, self.subject, dict(self.partitions), self.created_ns)

    def __repr__(self) -> str:
        partitions = f"<{len(self.partitions)} partitions>"
        return f"StreamInfo(name={self.name!r}, subject={short(self.subject)!r}, partitions={partitions})"

    def _repr_html_(self) -> str:
        return html_table(
            f"{self.name} on {self.subject}",
            _COLUMNS,
            map(_cells, self.partitions.values()),
            len(self.partitions),
        )


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group.

    Attributes:
        id: Name of the group.
        coordinator: Id of the broker that assigns partitions to the members.
        epoch: Epoch of the group.
    """

    id: str
    coordinator: str
    epoch: int

    def _repr_html_(self) -> str:
        return html_fields(self)


@dataclass(frozen=True, slots=True)
class Metadata:
    """Metadata from the cluster's last answer.

    Attributes:
        brokers: Brokers by id.
        streams: Requested streams that exist, by name.
        groups: Requested groups that exist, by name.
        last_updated: Time of the answer, by the clock of this machine.
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

    def __repr__(self) -> str:
        sizes = f"{len(self.brokers)} brokers, {len(self.streams)} streams, {len(self.groups)} groups"
        return f"Metadata({sizes}, last_updated={self.last_updated!r})"

    def _repr_html_(self) -> str:
        rows = ((stream.name, stream.subject, len(stream.partitions)) for stream in self.streams.values())
        return html_table("Streams", ("stream", "subject", "partitions"), rows, len(self.streams))

    @property
    def addresses(self) -> tuple[str, ...]:
        """``host:port`` of each broker."""
        return tuple(broker.address for broker in self.brokers.values())

    def get_stream(self, name: str) -> StreamInfo | None:
        """Return the stream with a name; None if it does not exist or was not requested."""
        return self.streams.get(name)

    def partition_count(self, name: str) -> int:
        """Return the number of partitions of a stream.

        Raises:
            NoSuchStreamError: No stream has the name, or the stream was not requested.
        """
        stream = self.streams.get(name)
        if stream is None:
            raise no_such_stream(name)
        return len(stream.partitions)

    def missing_brokers(self) -> set[str]:
        """Return the ids of leaders and coordinators whose address is not known."""
        leaders = {p.leader for stream in self.streams.values() for p in stream.partitions.values()}
        coordinators = {group.coordinator for group in self.groups.values()}
        return (leaders | coordinators) - self.brokers.keys() - {""}


def _times(times: api_pb2.PartitionEventTimestamps) -> EventTimes:
    return EventTimes(times.firstTimestamp, times.latestTimestamp)


def partition_info(found: api_pb2.PartitionMetadata) -> PartitionInfo:
    """Return the :class:`PartitionInfo` for a partition of the API."""
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
    """Return the metadata in an answer of the API, without streams and groups that do not exist."""
    return make_metadata(
        (BrokerInfo(b.id, b.host, b.port, b.partitionCount, b.leaderCount) for b in answer.brokers),
        (_stream(stream) for stream in answer.streamMetadata if not stream.error),
        (GroupInfo(g.groupId, g.coordinator, g.epoch) for g in answer.groupMetadata if not g.error),
    )


def decode_metadata(data: bytes, max_brokers: int, max_partitions: int) -> Metadata:
    """Decode a server's answer, within the limits of the client's options.

    Args:
        data: The encoded answer.
        max_brokers: Maximum brokers in the answer.
        max_partitions: Maximum partitions in the answer, over all streams. Streams without partitions and
            groups count as one each.

    Raises:
        ServerProtocolError: The data can't be decoded, or exceeds a limit.
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


def creation_time(data: bytes, stream: str) -> int | None:
    """Return the creation time of a stream in an encoded answer, in ns since 1970; None without the stream.

    Values of all partitions, as :func:`decode_metadata` makes them, take 60 times as long.

    Raises:
        ServerProtocolError: The data can't be decoded.
    """
    answer = decode(api_pb2.FetchMetadataResponse, data, "metadata")
    found = (one for one in answer.streamMetadata if one.name == stream and not one.error)
    return next((one.creationTimestamp for one in found), None)


def merged(first: Metadata, second: Metadata) -> Metadata:
    """Merge the metadata of two brokers; entries of the second one replace those of the first."""
    return make_metadata(
        {**first.brokers, **second.brokers}.values(),
        {**first.streams, **second.streams}.values(),
        {**first.groups, **second.groups}.values(),
    )
