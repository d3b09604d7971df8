"""What the server says of consumers, streams and the account. All times are in UTC; spans are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from liftenvelope.jetstream._records import Moment, Record, Seconds
from liftenvelope.jetstream.consumer_config import ConsumerConfig
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
    """An error that is part of an answer.

    Attributes:
        code: Its kind, in the manner of HTTP.
        err_code: JetStream's own number.
        description: The server's text.
    """

    code: int = 0
    err_code: int = 0
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class PeerInfo(Record):
    """One of the servers that a stream or a consumer is kept on.

    Attributes:
        name: The server's name.
        current: Whether it is up to date.
        observer: Whether it only looks on.
        offline: Whether it is thought to be down.
        active: How many seconds ago it was heard of.
        lag: How many operations it is behind.
        peer: Its id in the group.
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
    """Where a stream or a consumer is kept.

    Attributes:
        name: The cluster's name.
        raft_group: The name of its Raft group.
        leader: The name of the server that leads it; empty while there is none.
        leader_since: Since when.
        system_account: Whether its traffic runs in the system account.
        traffic_account: The account that its traffic runs in.
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
    """A position of a consumer.

    Attributes:
        consumer_seq: Counted in deliveries.
        stream_seq: The sequence in the stream.
        last_active: When it last moved.
    """

    consumer_seq: int = 0
    stream_seq: int = 0
    last_active: Moment | None = None


@dataclass(frozen=True, kw_only=True)
class PriorityGroupState(Record):
    """Who is served in a priority group (ADR-42).

    Attributes:
        group: Its name.
        pinned_client_id: The id of the pinned client; None if nobody is pinned.
        pinned_ts: Since when it is pinned.
    """

    group: str = ""
    pinned_client_id: str | None = None
    pinned_ts: Moment | None = None


@dataclass(frozen=True, kw_only=True)
class ConsumerInfo(Record):
    """A consumer, as the server sees it.

    Attributes:
        stream_name: The stream that it reads.
        name: Its name.
        created: When it was made.
        config: Its configuration, with what the server has filled in.
        delivered: The last message that was sent.
        ack_floor: The last one before which all are acknowledged.
        num_ack_pending: How many were sent and not yet acknowledged.
        num_redelivered: How many of these were sent more than once.
        num_waiting: How many pulls wait.
        num_pending: How many messages are yet to be sent.
        cluster: Where it is kept; None where there is no cluster.
        push_bound: Whether somebody listens to a push consumer.
        paused: Whether it is paused.
        pause_remaining: For how many seconds yet.
        ts: When this was said.
        priority_groups: The state of its priority groups.
        reset_seq: Of the answer to a reset: where it begins now (ADR-60).
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
    """What became of a pause, or of its end.

    Attributes:
        paused: Whether the consumer is paused.
        pause_until: Until when.
        pause_remaining: For how many seconds yet.
    """

    paused: bool = False
    pause_until: Moment | None = None
    pause_remaining: Seconds = 0.0


@dataclass(frozen=True, kw_only=True)
class LostData(Record):
    """What a stream's store has lost.

    Attributes:
        msgs: The sequences of the messages.
        bytes: How many bytes.
    """

    msgs: tuple[int, ...] = ()
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamState(Record):
    """What is in a stream.

    Attributes:
        messages: How many messages.
        bytes: How many bytes, with what the store adds.
        first_seq: The sequence of the oldest message; 0 for none ever.
        first_ts: When that came; None for none.
        last_seq: The sequence of the newest message; it stays when messages are removed.
        last_ts: When that came; None for none.
        num_subjects: How many different subjects.
        subjects: How many messages on each, if asked for.
        num_deleted: How many between the first and the last are gone.
        deleted: Their sequences, if asked for.
        lost: What the store has lost.
        consumer_count: How many consumers.
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
    """How far a mirror or a source has come.

    Attributes:
        name: The stream that is copied.
        external: Where that is, if elsewhere.
        lag: How many messages it is ahead.
        active: How many seconds ago something came; negative for never.
        error: What is wrong.
        filter_subject: What is copied of it.
        subject_transforms: What is copied of it, and under which subjects.
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
    """A mirror that may be read instead, the nearest first.

    Attributes:
        name: Its name.
        domain: Its JetStream domain.
        cluster: Its cluster.
    """

    name: str
    domain: str | None = None
    cluster: str | None = None


@dataclass(frozen=True, kw_only=True)
class StreamInfo(Record):
    """A stream, as the server sees it.

    Attributes:
        config: Its configuration, with what the server has filled in.
        created: When it was made.
        state: What is in it.
        domain: Its JetStream domain.
        cluster: Where it is kept; None where there is no cluster.
        mirror: How far it has come, if it is a mirror.
        sources: How far its sources have come.
        alternates: Mirrors of it.
        ts: When this was said.
        did_create: Of the answer to a creation: true, also where the same stream was there before.
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
    """What an account may use at most; -1 is without limit.

    Attributes:
        max_memory: Bytes of memory.
        max_storage: Bytes on disk.
        max_streams: Streams.
        max_consumers: Consumers.
        max_ack_pending: Messages without their ack, for each consumer.
        memory_max_stream_bytes: Bytes of one stream in memory.
        storage_max_stream_bytes: Bytes of one stream on disk.
        max_bytes_required: Whether every stream must name its ``max_bytes``.
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
    """What is used, and may be used at most, in one tier.

    Attributes:
        memory: Bytes of memory in use.
        storage: Bytes on disk in use.
        reserved_memory: Bytes of memory that streams have reserved.
        reserved_storage: Bytes on disk that streams have reserved.
        streams: How many streams there are.
        consumers: How many consumers there are.
        limits: What may be used at most.
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
    """How much the API was used.

    Attributes:
        level: The level of the API that the server speaks.
        total: How many requests.
        errors: How many of them failed.
        inflight: How many are under way.
    """

    level: int = 0
    total: int = 0
    errors: int = 0
    inflight: int = 0


@dataclass(frozen=True, kw_only=True)
class AccountInfo(AccountTier):
    """What an account uses of JetStream, and may use.

    Attributes:
        domain: The JetStream domain.
        api: How much the API was used.
        tiers: The same for each tier, where the account has tiers.
    """

    domain: str | None = None
    api: ApiStats = field(default_factory=ApiStats)
    tiers: Mapping[str, AccountTier] = field(default_factory=dict)
