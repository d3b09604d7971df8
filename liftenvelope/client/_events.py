"""Events of a client's background work, passed to ``on_event`` of ``connect``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "CheckpointFailed",
    "ClientEvent",
    "CursorAheadOfStream",
    "EventHandler",
    "GroupCoordinatorReported",
    "GroupLeaveFailed",
    "GroupMemberExpired",
    "GroupPartitionFenced",
    "LiftEnvelopeWarning",
    "MetadataRefreshed",
    "StoppedAtHighWatermark",
    "SubscriptionLost",
    "SubscriptionResumed",
    "warn",
    "warns_of",
]


class LiftEnvelopeWarning(UserWarning):
    """A condition that does not stop the program but needs attention."""


@dataclass(frozen=True, slots=True)
class MetadataRefreshed:
    """The client has fetched metadata from a broker.

    Attributes:
        address: ``host:port`` of the broker that answered.
        streams: Names of the requested streams; empty for all.
    """

    address: str
    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscriptionLost:
    """A subscription lost its connection, or its broker lost the partition. The client resubscribes.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        position: Offset at which the subscription continues, None if it had no position yet.
        error: Cause of the loss.
    """

    stream: str
    partition: int
    position: int | None
    error: Exception


@dataclass(frozen=True, slots=True)
class SubscriptionResumed:
    """A lost subscription was restored.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        position: Offset at which the subscription continues, None if it had no position yet.
        address: ``host:port`` of the broker that serves the subscription now.
    """

    stream: str
    partition: int
    position: int | None
    address: str


@dataclass(frozen=True, slots=True)
class StoppedAtHighWatermark:
    """A read up to the latest message ended at the high watermark, below the newest offset of the log.

    A server that was killed loses its high watermark until the next message is published to the partition.
    Then the hidden messages become readable again, at their offsets.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        high_watermark: Offset of the last readable message, -1 for none.
        newest_offset: Offset of the last message in the log.
    """

    stream: str
    partition: int
    high_watermark: int
    newest_offset: int

    def __str__(self) -> str:
        hidden = self.newest_offset - self.high_watermark
        return (
            f"{self.stream}[{self.partition}]: the read ends at the high watermark {self.high_watermark}; "
            f"{hidden} stored message(s) after it can't be read before another one is published"
        )


@dataclass(frozen=True, slots=True)
class CursorAheadOfStream:
    """A cursor is from an earlier stream of this name, and ignored.

    The cursor is beyond the end of its partition, or a group member saw that the stream was created again.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        cursor_id: Id of the cursor.
        offset: Offset in the cursor.
        newest_offset: Offset of the last message in the log, -1 for none.
        instead: Start position used instead: ``"earliest"``, ``"latest"`` or ``"new"``.
    """

    stream: str
    partition: int
    cursor_id: str
    offset: int
    newest_offset: int
    instead: str

    def __str__(self) -> str:
        return (
            f"{self.stream}[{self.partition}]: cursor {self.cursor_id!r} says {self.offset} and the newest "
            f"message is {self.newest_offset}: it is of an earlier stream. Begins at {self.instead!r} instead"
        )


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A cursor could not be stored in the background. The reader retries while it owns the partition.

    Attributes:
        cursor_id: Id of the cursor.
        stream: Name of the stream.
        partition: Number of the partition.
        offset: Offset that could not be stored.
        error: Cause of the failure.
    """

    cursor_id: str
    stream: str
    partition: int
    offset: int
    error: Exception

    def __str__(self) -> str:
        return (
            f"{self.stream}[{self.partition}]: the cursor {self.cursor_id!r} could not be set to "
            f"{self.offset}: {self.error}"
        )


@dataclass(frozen=True, slots=True)
class GroupMemberExpired:
    """A consumer expired after missed heartbeats, or its group vanished. It rejoins the group.

    The assignment after the rejoin may differ.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer.
        partitions: Streams and partitions assigned before.
    """

    group: str
    consumer_id: str
    partitions: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return (
            f"group {self.group!r}: {self.consumer_id!r} is no longer a member, and joins again. If it was "
            "silent for too long: the event loop must not be blocked for longer than the consumer timeout"
        )


@dataclass(frozen=True, slots=True)
class GroupPartitionFenced:
    """Another consumer reads a partition that the group has assigned to this one. The client retries.

    The conflict is temporary while a group changes. It is permanent if the group was recreated and a former
    member keeps reading with a higher epoch from the time before: that consumer must be stopped.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer that cannot read.
        stream: Name of the stream.
        partition: Number of the partition.
        epoch: Group epoch known to this consumer.
        attempts: Number of refusals in a row.
    """

    group: str
    consumer_id: str
    stream: str
    partition: int
    epoch: int
    attempts: int

    def __str__(self) -> str:
        return (
            f"{self.stream}[{self.partition}] is assigned to {self.consumer_id!r} of group {self.group!r} in "
            f"epoch {self.epoch}, and a consumer of a higher epoch reads it: one from before the group was "
            "made anew, which must be stopped"
        )


@dataclass(frozen=True, slots=True)
class GroupCoordinatorReported:
    """A consumer has reported its coordinator as unreachable, after the servers' coordinator timeout.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer.
        coordinator: Id of the unreachable broker.
        error: None if a server accepted the report, otherwise its failure. A single-node cluster has no other
            broker to take over.
    """

    group: str
    consumer_id: str
    coordinator: str
    error: Exception | None


@dataclass(frozen=True, slots=True)
class GroupLeaveFailed:
    """A closed consumer could not leave its group. Its partitions are reassigned when the consumer expires.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer.
        error: Cause of the failure.
    """

    group: str
    consumer_id: str
    error: Exception


ClientEvent: TypeAlias = (
    MetadataRefreshed
    | SubscriptionLost
    | SubscriptionResumed
    | StoppedAtHighWatermark
    | CursorAheadOfStream
    | CheckpointFailed
    | GroupMemberExpired
    | GroupPartitionFenced
    | GroupCoordinatorReported
    | GroupLeaveFailed
)
#: Called with every event, in the client's event loop: it must return quickly.
EventHandler: TypeAlias = Callable[[ClientEvent], object]

_WARNINGS = (
    StoppedAtHighWatermark,
    CursorAheadOfStream,
    CheckpointFailed,
    GroupMemberExpired,
)
# A few refusals in a row are normal while a group changes. This many mean a stale consumer is still running.
_REFUSALS_TO_WARN_OF = 10


def warns_of(event: ClientEvent) -> bool:
    """Return True if the default handler warns of an event."""
    return isinstance(event, _WARNINGS) or (
        isinstance(event, GroupPartitionFenced) and event.attempts == _REFUSALS_TO_WARN_OF
    )


def warn(event: ClientEvent) -> None:
    """Handle events by default: issue a Python warning for those that need attention."""
    if warns_of(event):
        warnings.warn(str(event), LiftEnvelopeWarning, stacklevel=2)
