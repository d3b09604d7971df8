"""How a consumer is set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from liftenvelope.errors import UsageError
from liftenvelope.jetstream._names import check_consumer_name, check_filter, check_group
from liftenvelope.jetstream._records import Moment, OpenEnum, Record, Seconds

__all__ = ["AckPolicy", "ConsumerConfig", "DeliverPolicy", "PriorityPolicy", "ReplayPolicy"]


class AckPolicy(OpenEnum):
    """Which messages are to be acknowledged."""

    #: Every single one.
    EXPLICIT = "explicit"
    #: The last one, for all before it.
    ALL = "all"
    #: None: what was sent is done with.
    NONE = "none"
    #: As ALL, by answers to the flow control of a push consumer (server 2.14).
    FLOW_CONTROL = "flow_control"


class DeliverPolicy(OpenEnum):
    """Where in the stream a consumer begins."""

    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"
    BY_START_TIME = "by_start_time"
    LAST_PER_SUBJECT = "last_per_subject"


class ReplayPolicy(OpenEnum):
    """How fast stored messages are delivered."""

    INSTANT = "instant"
    #: At the pace at which they came in.
    ORIGINAL = "original"


class PriorityPolicy(OpenEnum):
    """How the pulls of a priority group are chosen among (ADR-42)."""

    NONE = "none"
    #: Only pulls whose thresholds are passed.
    OVERFLOW = "overflow"
    #: One client alone, until it falls silent.
    PINNED_CLIENT = "pinned_client"
    #: The lowest ``priority`` first.
    PRIORITIZED = "prioritized"


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(Record):
    """The configuration of a consumer, with every field of server 2.15.

    All are optional. Spans of time are in seconds; None, 0 and empty mean that the server decides.

    Attributes:
        name: Its name. Default: one that the server makes up.
        durable_name: The same name, for one that outlasts its inactivity. Default None: it is removed after
            ``inactive_threshold``.
        description: For humans; at most 4 KiB.
        deliver_policy: Where it begins. Default ALL.
        opt_start_seq: The sequence that BY_START_SEQUENCE begins at.
        opt_start_time: The moment that BY_START_TIME begins at, with a time zone.
        ack_policy: Which messages are to be acknowledged. Default EXPLICIT.
        ack_wait: After how many seconds without an ack a message is sent again. The server's default: 30.
        max_deliver: How often a message is sent at most. The server's default: -1, without end.
        backoff: In place of ``ack_wait``: how long to wait after the first, second, ... delivery, in seconds.
        filter_subject: Deliver only what matches; not together with ``filter_subjects``.
        filter_subjects: Deliver only what matches one of them; they must not overlap.
        replay_policy: How fast. Default INSTANT.
        rate_limit_bps: The most bits per second; for push consumers.
        sample_freq: How many acks in a hundred are reported, such as "30%".
        max_waiting: How many pulls may wait. The server's default: 512.
        max_ack_pending: How many messages may be without their ack. The server's default: 1,000.
        flow_control: Whether a push consumer asks its reader to keep up.
        headers_only: Whether to leave out the payloads.
        max_batch: The most messages that one pull may ask for.
        max_expires: The longest that one pull may wait, in seconds.
        max_bytes: The most bytes that one pull may ask for.
        deliver_subject: Where a push consumer sends to. None, the default, makes a pull consumer.
        deliver_group: The queue group of a push consumer's readers.
        idle_heartbeat: How often a push consumer says that it is alive, in seconds.
        inactive_threshold: After how many seconds without a reader it is removed. The server's default: 5
            for one that is not durable.
        num_replicas: On how many servers its state is kept. Default 0: as many as the stream is.
        mem_storage: Whether its state is kept in memory alone.
        direct: Of servers' own consumers, for mirrors and sources.
        sourcing: Of servers' own consumers, for mirrors and sources (server 2.14).
        metadata: Whatever you like; names that begin with ``_nats`` are the server's.
        pause_until: Until when nothing is delivered, with a time zone (server 2.11).
        priority_groups: Names of its priority groups; servers use the first one (ADR-42).
        priority_policy: How their pulls are chosen among. Default NONE.
        priority_timeout: After how many seconds of silence a pinned client loses its pin. The server's
            default: 120.

    Raises:
        UsageError: A name can't be a consumer's, a value has not the type of its field, or two values
            exclude each other.

    Example:
        >>> config = ConsumerConfig(durable_name="worker", ack_wait=10)
        >>> config.to_json()
        {'durable_name': 'worker', 'ack_policy': 'explicit', 'ack_wait': 10000000000}
    """

    _always: ClassVar[frozenset[str]] = frozenset({"ack_policy"})

    name: str | None = None
    durable_name: str | None = None
    description: str | None = None
    deliver_policy: DeliverPolicy = DeliverPolicy.ALL
    opt_start_seq: int | None = None
    opt_start_time: Moment | None = None
    ack_policy: AckPolicy = AckPolicy.EXPLICIT
    ack_wait: Seconds | None = None
    max_deliver: int | None = None
    backoff: tuple[Seconds, ...] = ()
    filter_subject: str | None = None
    filter_subjects: tuple[str, ...] = ()
    replay_policy: ReplayPolicy = ReplayPolicy.INSTANT
    rate_limit_bps: int | None = None
    sample_freq: str | None = None
    max_waiting: int | None = None
    max_ack_pending: int | None = None
    flow_control: bool = False
    headers_only: bool = False
    max_batch: int | None = None
    max_expires: Seconds | None = None
    max_bytes: int | None = None
    deliver_subject: str | None = None
    deliver_group: str | None = None
    idle_heartbeat: Seconds | None = None
    inactive_threshold: Seconds | None = None
    num_replicas: int = 0
    mem_storage: bool = False
    direct: bool = False
    sourcing: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    pause_until: Moment | None = None
    priority_groups: tuple[str, ...] = ()
    priority_policy: PriorityPolicy = PriorityPolicy.NONE
    priority_timeout: Seconds | None = None

    def _check(self) -> None:
        for name in (self.name, self.durable_name):
            if name is not None:
                check_consumer_name(name)
        if self.name is not None and self.durable_name is not None and self.name != self.durable_name:
            raise UsageError(f"name {self.name!r} and durable_name {self.durable_name!r} must be the same")
        if self.filter_subject and self.filter_subjects:
            raise UsageError("filter_subject and filter_subjects exclude each other")
        if self.filter_subject:
            check_filter(self.filter_subject)
        for subject in self.filter_subjects:
            check_filter(subject)
        for group in self.priority_groups:
            check_group(group)

    @property
    def is_push(self) -> bool:
        """Whether the consumer sends to a subject by itself, so that nothing can be pulled from it."""
        return bool(self.deliver_subject)
