"""How a stream is set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from liftenvelope.errors import UsageError
from liftenvelope.jetstream._names import check_filter, check_stream_name
from liftenvelope.jetstream._records import Moment, OpenEnum, Record, Seconds

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
    """What a stream keeps."""

    #: All messages, until a limit is reached.
    LIMITS = "limits"
    #: Messages that a consumer has yet to acknowledge.
    INTEREST = "interest"
    #: Messages until they are acknowledged, each by one consumer.
    WORK_QUEUE = "workqueue"


class DiscardPolicy(OpenEnum):
    """What goes when a limit is reached."""

    OLD = "old"
    #: The new message: publishing it fails.
    NEW = "new"


class StorageType(OpenEnum):
    """Where a stream is kept."""

    FILE = "file"
    MEMORY = "memory"


class Compression(OpenEnum):
    """How a stream's files are compressed."""

    NONE = "none"
    S2 = "s2"


class PersistMode(OpenEnum):
    """When a message is acknowledged (server 2.12)."""

    #: Once it is written.
    DEFAULT = "default"
    #: Before: faster, and lost with the server.
    ASYNC = "async"


@dataclass(frozen=True, kw_only=True)
class Placement(Record):
    """Where a stream is to be kept.

    Attributes:
        cluster: The name of the cluster.
        tags: Tags that the servers must have.
        preferred: The server that is to lead it.
    """

    cluster: str | None = None
    tags: tuple[str, ...] = ()
    preferred: str | None = None


@dataclass(frozen=True, kw_only=True)
class SubjectTransform(Record):
    """A subject for another.

    Attributes:
        src: Which subjects; wildcards are allowed.
        dest: What becomes of them, such as ``orders.{{wildcard(1)}}``.
    """

    src: str = ""
    dest: str = ""


@dataclass(frozen=True, kw_only=True)
class ExternalStream(Record):
    """A stream in another account or domain.

    Attributes:
        api: The prefix of its API, such as ``$JS.hub.API``.
        deliver: The prefix that messages are sent under.
    """

    api: str
    deliver: str = ""


@dataclass(frozen=True, kw_only=True)
class SourceConsumer(Record):
    """The consumer that a stream is copied through (ADR-60, server 2.14).

    Attributes:
        name: Its name.
        deliver_subject: Where it sends to.
    """

    name: str | None = None
    deliver_subject: str | None = None


@dataclass(frozen=True, kw_only=True)
class StreamSource(Record):
    """A stream to copy from.

    Attributes:
        name: Its name.
        opt_start_seq: The sequence to begin at.
        opt_start_time: The moment to begin at, with a time zone.
        filter_subject: What to copy. Default: all.
        subject_transforms: What to copy, and under which subjects; not together with ``filter_subject``.
        external: Where it is, if elsewhere.
        consumer: The consumer to copy through, if not one that the server makes itself.
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
    """Sending messages on once they are stored.

    Attributes:
        src: Which subjects. Default: all.
        dest: The subject to send to.
        headers_only: Whether to leave out the payloads.
    """

    src: str | None = None
    dest: str
    headers_only: bool = False


@dataclass(frozen=True, kw_only=True)
class ConsumerLimits(Record):
    """Defaults, and limits, for the consumers of a stream.

    Attributes:
        inactive_threshold: After how many seconds without a reader they are removed. Default 0: none.
        max_ack_pending: How many messages may be without their ack. Default 0: none.
    """

    inactive_threshold: Seconds = 0.0
    max_ack_pending: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamConfig(Record):
    """The configuration of a stream, with every field of server 2.15.

    Only the name must be given. Spans of time are in seconds; -1 is without limit.

    Attributes:
        name: Its name: no dots, wildcards, slashes or white space.
        description: For humans; at most 4 KiB.
        subjects: The subjects that it records; wildcards are allowed. The server's default: its name.
        retention: What it keeps. Default LIMITS.
        max_consumers: How many consumers it may have. Default -1.
        max_msgs: How many messages it keeps at most. Default -1.
        max_bytes: How many bytes it keeps at most. Default -1.
        max_age: For how many seconds it keeps a message. Default 0: without end. At least 0.1.
        max_msgs_per_subject: How many messages it keeps on each subject. Default -1.
        max_msg_size: The largest message in bytes. Default -1: as large as the server takes.
        discard: What goes when a limit is reached. Default OLD.
        storage: Where it is kept. Default FILE.
        num_replicas: On how many servers it is kept, 1 to 5. Default 1.
        no_ack: Whether publishing is not acknowledged. Default false.
        duplicate_window: For how many seconds message ids are remembered. The server's default: 120, or
            ``max_age`` if that is less.
        placement: Where it is to be kept.
        mirror: The stream that it is a copy of; it records nothing else then.
        sources: Streams that it copies messages from.
        compression: How its files are compressed. Default NONE.
        first_seq: The sequence of its first message. Default 0: 1.
        subject_transform: What becomes of the subjects of messages before they are stored.
        republish: Where messages are sent on to.
        allow_direct: Whether any server that keeps it may answer for single messages. Default false.
        mirror_direct: Whether mirrors may as well. Default false.
        discard_new_per_subject: Whether ``discard`` NEW also holds for each subject. Default false.
        sealed: Whether nothing in it may change any more. It can't be unsealed. Default false.
        deny_delete: Whether messages can't be deleted. Default false.
        deny_purge: Whether it can't be purged. Default false.
        allow_rollup_hdrs: Whether a message may replace all before it. Default false.
        consumer_limits: Defaults and limits for its consumers.
        allow_msg_ttl: Whether messages may have times to live of their own (ADR-43). Default false.
        subject_delete_marker_ttl: For how many seconds a marker stays where a subject's last message went.
            Default 0: no markers.
        allow_msg_counter: Whether it keeps counters (ADR-49). Default false.
        allow_atomic: Whether batches can be published as one (ADR-50). Default false.
        allow_msg_schedules: Whether messages can be scheduled (ADR-51). Default false.
        persist_mode: When messages are acknowledged. Default DEFAULT.
        allow_batched: Whether batches can be published fast (ADR-50, server 2.14). Default false.
        metadata: Whatever you like; names that begin with ``_nats`` are the server's.
        template_owner: Of streams that older servers made from templates.

    Raises:
        UsageError: A name can't be a stream's, or a value has not the type of its field.

    Example:
        >>> config = StreamConfig(name="ORDERS", subjects=("orders.>",), max_age=3600)
        >>> config.to_json()
        {'name': 'ORDERS', 'subjects': ['orders.>'], 'max_age': 3600000000000}
    """

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
            raise UsageError(f"mirror and subjects exclude each other: {self.subjects!r}")
