"""Records of the server's info replies: consumers, streams and the account.

All times are in UTC; durations are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from liftenvelope.jetstream._consumer_config import ConsumerConfig
from liftenvelope.jetstream._records import Moment, Record, Seconds
from liftenvelope.jetstream.stream_config import ExternalStream, StreamConfig, SubjectTransform

__all__ = [
    "AccountInfo",
    "AccountLimits",
    "AccountTier",
    "ApiErrorInfo",
    "ApiStats",
    "ClusterInfo",
    "ConsumerInfo",
    "LostData",
    "PauseInfo",
    "PeerInfo",
    "PriorityGroupState",
    "SequenceInfo",
    "SourceInfo",
    "StreamAlternate",
    "StreamInfo",
    "StreamState",
]


@dataclass(frozen=True, kw_only=True)
class ApiErrorInfo(Record):
    """Error inside a reply.

    Attributes:
        code: Status code, as in HTTP.
        err_code: JetStream error code.
        description: Text of the error.
    """

    code: int = 0
    err_code: int = 0
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class PeerInfo(Record):
    """Server that holds a replica of a stream or a consumer.

    Attributes:
        name: Name of the server.
        current: True if the replica is up to date.
        observer: True if the server is an observer, which does not vote.
        offline: True if the server is considered down.
        active: Seconds since the last contact.
        lag: Number of operations that the replica is behind.
        peer: Id of the server in the Raft group.
    """

    name: str = ""
    current: bool = False
    observer: bool = False
    offline: bool = False
    active: Seconds = 0.0
    lag: int = 0
    peer: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterInfo(Record):
    """Location of a stream or a consumer in a cluster.

    Attributes:
        name: Name of the cluster.
        raft_group: Name of the Raft group.
        leader: Name of the leader; empty while there is none.
        leader_since: Start of the leadership.
        system_account: True if the Raft traffic runs in the system account.
        traffic_account: Account that carries the Raft traffic.
        replicas: The other servers.
    """

    name: str = ""
    raft_group: str = ""
    leader: str = ""
    leader_since: Moment | None = None
    system_account: bool = False
    traffic_account: str = ""
    replicas: tuple[PeerInfo, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SequenceInfo(Record):
    """Position of a consumer.

    Attributes:
        consumer_seq: Sequence of the delivery.
        stream_seq: Sequence of the message in the stream.
        last_active: Time of the last change.
    """

    consumer_seq: int = 0
    stream_seq: int = 0
    last_active: Moment | None = None


@dataclass(frozen=True, kw_only=True)
class PriorityGroupState(Record):
    """State of a priority group (ADR-42).

    Attributes:
        group: Name of the group.
        pinned_client_id: Id of the pinned client; None if no client is pinned.
        pinned_ts: Time when the client was pinned.
    """

    group: str = ""
    pinned_client_id: str | None = None
    pinned_ts: Moment | None = None


@dataclass(frozen=True, kw_only=True)
class ConsumerInfo(Record):
    """Configuration and state of a consumer.

    Attributes:
        stream_name: Stream that the consumer reads.
        name: Name of the consumer.
        created: Time of creation.
        config: Configuration, with the server's defaults filled in.
        delivered: Position of the last delivered message.
        ack_floor: Last position up to which every message is acknowledged.
        num_ack_pending: Number of messages delivered and not yet acknowledged.
        num_redelivered: Number of those that were delivered more than once.
        num_waiting: Number of waiting pulls.
        num_pending: Number of messages not yet delivered.
        cluster: Location in the cluster; None without a cluster.
        push_bound: True if a push consumer has a subscriber.
        paused: True if the consumer is paused.
        pause_remaining: Seconds until the pause ends.
        ts: Time of this report.
        priority_groups: State of the priority groups.
        reset_seq: Stream sequence at which the consumer starts after a reset; only in the reply to a reset
            (ADR-60).
    """

    stream_name: str
    name: str
    created: Moment | None = None
    config: ConsumerConfig = field(default_factory=ConsumerConfig)
    delivered: SequenceInfo = field(default_factory=SequenceInfo)
    ack_floor: SequenceInfo = field(default_factory=SequenceInfo)
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0
    num_pending: int = 0
    cluster: ClusterInfo | None = None
    push_bound: bool = False
    paused: bool = False
    pause_remaining: Seconds = 0.0
    ts: Moment | None = None
    priority_groups: tuple[PriorityGroupState, ...] = ()
    reset_seq: int | None = None


@dataclass(frozen=True, kw_only=True)
class PauseInfo(Record):
    """Result of pausing or resuming a consumer.

    Attributes:
        paused: True if the consumer is paused.
        pause_until: End of the pause.
        pause_remaining: Seconds until the pause ends.
    """

    paused: bool = False
    pause_until: Moment | None = None
    pause_remaining: Seconds = 0.0


@dataclass(frozen=True, kw_only=True)
class LostData(Record):
    """Data that the store of a stream has lost.

    Attributes:
        msgs: Sequences of the lost messages.
        bytes: Number of lost bytes.
    """

    msgs: tuple[int, ...] = ()
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamState(Record):
    """Content of a stream.

    Attributes:
        messages: Number of messages.
        bytes: Number of bytes, including the overhead of the store.
        first_seq: Sequence of the oldest message; 0 if the stream never had one.
        first_ts: Time of the oldest message; None if there is none.
        last_seq: Sequence of the newest message; unchanged when messages are removed.
        last_ts: Time of the newest message; None if there is none.
        num_subjects: Number of different subjects.
        subjects: Number of messages by subject, if requested.
        num_deleted: Number of deleted messages between the first and the last.
        deleted: Sequences of the deleted messages, if requested.
        lost: Data that the store has lost.
        consumer_count: Number of consumers.
    """

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    first_ts: Moment | None = None
    last_seq: int = 0
    last_ts: Moment | None = None
    num_subjects: int = 0
    subjects: Mapping[str, int] = field(default_factory=dict)
    num_deleted: int = 0
    deleted: tuple[int, ...] = ()
    lost: LostData | None = None
    consumer_count: int = 0


@dataclass(frozen=True, kw_only=True)
class SourceInfo(Record):
    """Replication state of a mirror or a source.

    Attributes:
        name: Name of the copied stream.
        external: Account or domain of the copied stream, if it is another.
        lag: Number of messages still to be copied.
        active: Seconds since the last message; negative if there was none.
        error: Error of the replication.
        filter_subject: Filter for the copied messages.
        subject_transforms: Filters for the copied messages, and their new subjects.
    """

    name: str
    external: ExternalStream | None = None
    lag: int = 0
    active: Seconds = 0.0
    error: ApiErrorInfo | None = None
    filter_subject: str | None = None
    subject_transforms: tuple[SubjectTransform, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StreamAlternate(Record):
    """Mirror that can be read instead of the stream; mirrors are listed nearest first.

    Attributes:
        name: Name of the mirror.
        domain: JetStream domain of the mirror.
        cluster: Cluster of the mirror.
    """

    name: str
    domain: str | None = None
    cluster: str | None = None


@dataclass(frozen=True, kw_only=True)
class StreamInfo(Record):
    """Configuration and state of a stream.

    Attributes:
        config: Configuration, with the server's defaults filled in.
        created: Time of creation.
        state: Content of the stream.
        domain: JetStream domain.
        cluster: Location in the cluster; None without a cluster.
        mirror: Replication state, if the stream is a mirror.
        sources: Replication state of the sources.
        alternates: Mirrors of the stream.
        ts: Time of this report.
        did_create: True in the reply to a creation, even if the same stream existed before.
    """

    config: StreamConfig
    created: Moment | None = None
    state: StreamState = field(default_factory=StreamState)
    domain: str | None = None
    cluster: ClusterInfo | None = None
    mirror: SourceInfo | None = None
    sources: tuple[SourceInfo, ...] = ()
    alternates: tuple[StreamAlternate, ...] = ()
    ts: Moment | None = None
    did_create: bool = False


@dataclass(frozen=True, kw_only=True)
class AccountLimits(Record):
    """Limits of an account; -1 is unlimited.

    Attributes:
        max_memory: Bytes of memory.
        max_storage: Bytes on disk.
        max_streams: Number of streams.
        max_consumers: Number of consumers.
        max_ack_pending: Unacknowledged messages per consumer.
        memory_max_stream_bytes: Bytes of one stream in memory.
        storage_max_stream_bytes: Bytes of one stream on disk.
        max_bytes_required: True if every stream must set ``max_bytes``.
    """

    max_memory: int = 0
    max_storage: int = 0
    max_streams: int = 0
    max_consumers: int = 0
    max_ack_pending: int = 0
    memory_max_stream_bytes: int = 0
    storage_max_stream_bytes: int = 0
    max_bytes_required: bool = False


@dataclass(frozen=True, kw_only=True)
class AccountTier(Record):
    """Usage and limits of an account in one tier.

    Attributes:
        memory: Bytes of memory in use.
        storage: Bytes on disk in use.
        reserved_memory: Bytes of memory that streams have reserved.
        reserved_storage: Bytes on disk that streams have reserved.
        streams: Number of streams.
        consumers: Number of consumers.
        limits: Limits of the tier.
    """

    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    streams: int = 0
    consumers: int = 0
    limits: AccountLimits = field(default_factory=AccountLimits)


@dataclass(frozen=True, kw_only=True)
class ApiStats(Record):
    """Usage of the JetStream API.

    Attributes:
        level: API level of the server.
        total: Number of requests.
        errors: Number of failed requests.
        inflight: Number of requests in flight.
    """

    level: int = 0
    total: int = 0
    errors: int = 0
    inflight: int = 0


@dataclass(frozen=True, kw_only=True)
class AccountInfo(AccountTier):
    """JetStream usage and limits of an account.

    Attributes:
        domain: JetStream domain.
        api: Usage of the JetStream API.
        tiers: Usage and limits by tier, if the account has tiers.
    """

    domain: str | None = None
    api: ApiStats = field(default_factory=ApiStats)
    tiers: Mapping[str, AccountTier] = field(default_factory=dict)
