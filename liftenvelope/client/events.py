"""What happens to a client in the background, for those who want to know: see ``on_event`` of ``connect``."""

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
    "PublishFailed",
    "StoppedAtHighWatermark",
    "SubscriptionLost",
    "SubscriptionResumed",
    "warn",
]


class LiftEnvelopeWarning(UserWarning):
    """Something that a program goes on after, but that its author should know of."""


@dataclass(frozen=True, slots=True)
class MetadataRefreshed:
    """The client has asked a broker for metadata again.

    Attributes:
        address: ``host:port`` of the broker that answered.
        streams: Names of the streams that were asked for; empty for all.
    """

    address: str
    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscriptionLost:
    """A subscription lost its connection, or its broker lost the partition. It is being made again.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        position: The offset that it goes on at, None where it had not begun.
        error: Why.
    """

    stream: str
    partition: int
    position: int | None
    error: Exception


@dataclass(frozen=True, slots=True)
class SubscriptionResumed:
    """A subscription that was lost stands again.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        position: The offset that it goes on at, None where it had not begun.
        address: ``host:port`` of the broker that serves it now.
    """

    stream: str
    partition: int
    position: int | None
    address: str


@dataclass(frozen=True, slots=True)
class StoppedAtHighWatermark:
    """A read to the latest message ended before it, because no subscriber can see the last ones yet.

    A server that was killed forgets how far its log was committed, until the next message is published to the
    partition; then the hidden messages are to be seen again, at their offsets.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        high_watermark: Offset of the last message that was to be read, -1 for none.
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
    """A cursor is ahead of its partition, so that it is not heeded: it is of an earlier stream of that name.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        cursor_id: The cursor's id.
        offset: What it says.
        newest_offset: Offset of the last message in the log, -1 for none.
        instead: Where reading begins instead: ``"earliest"``, ``"latest"`` or ``"new"``.
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
class PublishFailed:
    """A message whose outcome nobody waits for was refused.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        error: Why.
    """

    stream: str
    partition: int
    error: Exception

    def __str__(self) -> str:
        return (
            f"{self.stream}[{self.partition}]: a message that nobody waits for was not stored: {self.error}"
        )


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A cursor could not be stored in the background. It is tried again, for as long as it is this reader's.

    Attributes:
        cursor_id: Id of the cursor.
        stream: Name of the stream.
        partition: Number of the partition.
        offset: The offset that was to be stored.
        error: Why.
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
    """A consumer was silent for too long, or its group vanished: it joins anew, with other partitions maybe.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer.
        partitions: The streams and partitions that it had.
    """

    group: str
    consumer_id: str
    partitions: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return (
            f"group {self.group!r}: {self.consumer_id!r} is no member any more, and joins anew. If it was "
            "silent for too long: the event loop must not be blocked for longer than the consumer timeout"
        )


@dataclass(frozen=True, slots=True)
class GroupPartitionFenced:
    """Another consumer reads a partition that the group has given to this one. It is tried again.

    That passes by itself while a group changes. It does not where a consumer that is no member any more goes
    on reading with a higher epoch, from before the group was made anew: that consumer must be stopped.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer that can't read.
        stream: Name of the stream.
        partition: Number of the partition.
        epoch: The generation of the group that this consumer knows.
        attempts: How often in a row it was refused.
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
    """A consumer could not reach its group's coordinator for longer than the servers allow, and said so.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer.
        coordinator: Id of the broker.
        error: Why no server took note, None where one did. A single node has nobody to take over.
    """

    group: str
    consumer_id: str
    coordinator: str
    error: Exception | None


@dataclass(frozen=True, slots=True)
class GroupLeaveFailed:
    """A consumer that was closed could not tell its group. Its partitions go to others when it expires.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer.
        error: Why.
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
    | PublishFailed
    | CheckpointFailed
    | GroupMemberExpired
    | GroupPartitionFenced
    | GroupCoordinatorReported
    | GroupLeaveFailed
)
#: Gets every event, in the client's event loop: it must return soon.
EventHandler: TypeAlias = Callable[[ClientEvent], object]

_WARNINGS = (
    StoppedAtHighWatermark,
    CursorAheadOfStream,
    CheckpointFailed,
    GroupMemberExpired,
    PublishFailed,
)
# One refusal is nothing: groups change. So many in a row are a consumer that nobody stopped.
_REFUSALS_TO_WARN_OF = 10


def warn(event: ClientEvent) -> None:
    """What becomes of events where no handler is given: a Python warning for those that need looking at."""
    if isinstance(event, _WARNINGS) or (
        isinstance(event, GroupPartitionFenced) and event.attempts == _REFUSALS_TO_WARN_OF
    ):
        warnings.warn(str(event), LiftEnvelopeWarning, stacklevel=2)
