"""Stream configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from liftenvelope.errors import UsageError
from liftenvelope.jetstream._records import Moment, OpenEnum, Record, Seconds
from liftenvelope.jetstream.names import check_filter, check_stream_name

__all__ = [
    "Compression",
    "ConsumerLimits",
    "DiscardPolicy",
    "ExternalStream",
    "PersistMode",
    "Placement",
    "Republish",
    "RetentionPolicy",
    "SourceConsumer",
    "StorageType",
    "StreamConfig",
    "StreamSource",
    "SubjectTransform",
]


class RetentionPolicy(OpenEnum):
    """Policy for the messages that a stream keeps."""

    #: Keep all messages until a limit is reached.
    LIMITS = "limits"
    #: Keep messages that some consumer has not acknowledged yet.
    INTEREST = "interest"
    #: Keep each message until its one consumer acknowledges it.
    WORK_QUEUE = "workqueue"


class DiscardPolicy(OpenEnum):
    """Policy for a stream that has reached a limit."""

    #: Remove the oldest messages.
    OLD = "old"
    #: Reject the new message: publishing it fails.
    NEW = "new"


class StorageType(OpenEnum):
    """Storage of a stream."""

    FILE = "file"
    MEMORY = "memory"


class Compression(OpenEnum):
    """Compression of a stream's files."""

    NONE = "none"
    S2 = "s2"


class PersistMode(OpenEnum):
    """Time of the publish ack (server 2.12)."""

    #: Ack after the message is written.
    DEFAULT = "default"
    #: Ack before the message is written: faster, but the message is lost if the server fails.
    ASYNC = "async"


@dataclass(frozen=True, kw_only=True)
class Placement(Record):
    """Placement of a stream in a cluster.

    Attributes:
        cluster: Name of the cluster.
        tags: Tags that the servers must have.
        preferred: Preferred leader.
    """

    cluster: str | None = None
    tags: tuple[str, ...] = ()
    preferred: str | None = None


@dataclass(frozen=True, kw_only=True)
class SubjectTransform(Record):
    """Mapping from one subject to another.

    Attributes:
        src: Subjects to map; wildcards are allowed.
        dest: New subject, such as ``orders.{{wildcard(1)}}``.
    """

    src: str = ""
    dest: str = ""


@dataclass(frozen=True, kw_only=True)
class ExternalStream(Record):
    """Stream in another account or domain.

    Attributes:
        api: API prefix of that account or domain, such as ``$JS.hub.API``.
        deliver: Prefix of the subjects that messages are delivered to.
    """

    api: str
    deliver: str = ""


@dataclass(frozen=True, kw_only=True)
class SourceConsumer(Record):
    """Consumer that a stream is copied through (ADR-60, server 2.14).

    Attributes:
        name: Name of the consumer.
        deliver_subject: Subject that the consumer delivers to.
    """

    name: str | None = None
    deliver_subject: str | None = None


@dataclass(frozen=True, kw_only=True)
class StreamSource(Record):
    """Stream to copy messages from.

    Attributes:
        name: Name of the stream.
        opt_start_seq: First sequence to copy.
        opt_start_time: Time to start at, with a time zone.
        filter_subject: Filter for the messages to copy. Default: all.
        subject_transforms: Filters for the messages to copy, and their new subjects; excludes
            ``filter_subject``.
        external: Account or domain of the stream, if it is another.
        consumer: Consumer to copy through. Default: the server creates one.
    """

    name: str
    opt_start_seq: int | None = None
    opt_start_time: Moment | None = None
    filter_subject: str | None = None
    subject_transforms: tuple[SubjectTransform, ...] = ()
    external: ExternalStream | None = None
    consumer: SourceConsumer | None = None

    def _check(self) -> None:
        check_stream_name(self.name)


@dataclass(frozen=True, kw_only=True)
class Republish(Record):
    """Republishing of messages after they are stored.

    Attributes:
        src: Subjects to republish. Default: all.
        dest: Subject to republish to.
        headers_only: Omit the payloads.
    """

    src: str | None = None
    dest: str
    headers_only: bool = False


@dataclass(frozen=True, kw_only=True)
class ConsumerLimits(Record):
    """Defaults and limits for the consumers of a stream.

    Attributes:
        inactive_threshold: Seconds without a reader after which a consumer is removed. Default 0: no limit.
        max_ack_pending: Limit of unacknowledged messages. Default 0: no limit.
    """

    inactive_threshold: Seconds = 0.0
    max_ack_pending: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamConfig(Record):
    """Configuration of a stream, with every field of server 2.15.

    Only the name is required. Durations are in seconds; -1 is unlimited.

    Attributes:
        name: Name of the stream, without dots, wildcards, slashes or white space.
        description: Free text, at most 4 KiB.
        subjects: Subjects that the stream records; wildcards are allowed. The server's default: the name.
        retention: Policy for the messages that the stream keeps. Default LIMITS.
        max_consumers: Maximum number of consumers. Default -1.
        max_msgs: Maximum number of messages. Default -1.
        max_bytes: Maximum number of bytes. Default -1.
        max_age: Maximum age of a message in seconds, at least 0.1. Default 0: unlimited.
        max_msgs_per_subject: Maximum number of messages per subject. Default -1.
        max_msg_size: Maximum size of a message in bytes. Default -1: the server's own limit.
        discard: Policy when a limit is reached. Default OLD.
        storage: Storage type. Default FILE.
        num_replicas: Number of servers that hold the stream, 1 to 5. Default 1.
        no_ack: Disable publish acks. Default false.
        duplicate_window: Seconds that message ids are remembered. The server's default: 120, or ``max_age``
            if that is less.
        placement: Placement in a cluster.
        mirror: Stream to mirror; a mirror records no subjects.
        sources: Streams to copy messages from.
        compression: Compression of the files. Default NONE.
        first_seq: Sequence of the first message. Default 0, which means 1.
        subject_transform: Mapping applied to subjects before messages are stored.
        republish: Destination for republished messages.
        allow_direct: Allow every replica to serve direct reads. Default false.
        mirror_direct: Allow mirrors to serve direct reads as well. Default false.
        discard_new_per_subject: Apply ``discard`` NEW per subject as well. Default false.
        sealed: Forbid all changes to the content. A stream cannot be unsealed. Default false.
        deny_delete: Forbid deleting messages. Default false.
        deny_purge: Forbid purging. Default false.
        allow_rollup_hdrs: Allow a message to replace all earlier ones. Default false.
        consumer_limits: Defaults and limits for the consumers.
        allow_msg_ttl: Allow a TTL per message (ADR-43, server 2.11). Default false.
        subject_delete_marker_ttl: Seconds that a delete marker stays after the last message of a subject was
            removed (server 2.11). Default 0: no markers.
        allow_msg_counter: Keep counters (ADR-49, server 2.12). Default false.
        allow_atomic: Allow atomic batches (ADR-50, server 2.12). Default false.
        allow_msg_schedules: Allow scheduled messages (ADR-51, server 2.12). Default false.
        persist_mode: Time of the publish ack (server 2.12). Default DEFAULT.
        allow_batched: Allow fast batches (ADR-50, server 2.14). Default false.
        metadata: Free key-value pairs; names that begin with ``_nats`` belong to the server.
        template_owner: Template name, for streams that older servers created from a template.

    Raises:
        UsageError: A name or subject is invalid, or a value does not have the type of its field.

    Example:
        >>> config = StreamConfig(name="ORDERS", subjects=("orders.>",), max_age=3600)
        >>> config.to_json()
        {'name': 'ORDERS', 'subjects': ['orders.>'], 'max_age': 3600000000000}
    """

    _since: ClassVar[Mapping[str, str]] = {
        "allow_msg_ttl": "2.11",
        "subject_delete_marker_ttl": "2.11",
        "allow_msg_counter": "2.12",
        "allow_atomic": "2.12",
        "allow_msg_schedules": "2.12",
        "persist_mode": "2.12",
        "allow_batched": "2.14",
    }

    name: str
    description: str | None = None
    subjects: tuple[str, ...] = ()
    retention: RetentionPolicy = RetentionPolicy.LIMITS
    max_consumers: int = -1
    max_msgs: int = -1
    max_bytes: int = -1
    max_age: Seconds = 0.0
    max_msgs_per_subject: int = -1
    max_msg_size: int = -1
    discard: DiscardPolicy = DiscardPolicy.OLD
    storage: StorageType = StorageType.FILE
    num_replicas: int = 1
    no_ack: bool = False
    duplicate_window: Seconds | None = None
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: tuple[StreamSource, ...] = ()
    compression: Compression = Compression.NONE
    first_seq: int = 0
    subject_transform: SubjectTransform | None = None
    republish: Republish | None = None
    allow_direct: bool = False
    mirror_direct: bool = False
    discard_new_per_subject: bool = False
    sealed: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    allow_rollup_hdrs: bool = False
    consumer_limits: ConsumerLimits = field(default_factory=ConsumerLimits)
    allow_msg_ttl: bool = False
    subject_delete_marker_ttl: Seconds = 0.0
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_msg_schedules: bool = False
    persist_mode: PersistMode = PersistMode.DEFAULT
    allow_batched: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    template_owner: str | None = None

    def _check(self) -> None:
        check_stream_name(self.name)
        for subject in self.subjects:
            check_filter(subject)
        if self.mirror is not None and self.subjects:
            raise UsageError(
                f"mirror and subjects {self.subjects!r} exclude each other; leave one of them out"
            )
