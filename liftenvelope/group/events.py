"""Background events of consumers and coordinators, passed to ``on_event``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "AssignorFailed",
    "CommitFailed",
    "ControllerLost",
    "GroupEvent",
    "GroupEventHandler",
    "GroupTaken",
    "GroupWarning",
    "LeaseLost",
    "LeaveFailed",
    "MemberExpired",
    "MemberFenced",
    "PartitionRefused",
    "PartitionUnknown",
    "PartitionUnreadable",
    "warn",
]


class GroupWarning(UserWarning):
    """A problem that does not stop the program, but needs attention."""


@dataclass(frozen=True, slots=True)
class AssignorFailed:
    """A custom assignor failed or returned an invalid assignment; ``sticky`` was used instead.

    Attributes:
        group: Name of the group.
        assignor: Name of the assignor.
        error: The assignor's exception, or the fault in its assignment.
    """

    group: str
    assignor: str
    error: Exception


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A coordinator could not renew its lease in time, and another one took it over. It starts anew.

    Attributes:
        coordinator_id: Id of the coordinator.
    """

    coordinator_id: str


@dataclass(frozen=True, slots=True)
class GroupTaken:
    """A coordinator has become the controller of a group whose controller is gone.

    Attributes:
        group: Name of the group.
        coordinator_id: Id of the new controller.
        before: Id of the previous controller.
    """

    group: str
    coordinator_id: str
    before: str


@dataclass(frozen=True, slots=True)
class MemberExpired:
    """A controller removed a member that was silent for too long, or did not give its partitions back.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the member.
    """

    group: str
    consumer_id: str


@dataclass(frozen=True, slots=True)
class ControllerLost:
    """A consumer can't reach its group's controller. It keeps looking for one.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer.
        error: Error of the failed call.
    """

    group: str
    consumer_id: str
    error: Exception


@dataclass(frozen=True, slots=True)
class MemberFenced:
    """A consumer has lost its membership and all its partitions. It registers again.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer.
        error: Error of the refused call; None if the consumer noticed by itself that its session expired.
    """

    group: str
    consumer_id: str
    error: Exception | None


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """Processed offsets could not be committed. The commit is retried, or the messages are redelivered.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer.
        error: Error of the commit.
    """

    group: str
    consumer_id: str
    error: Exception


@dataclass(frozen=True, slots=True)
class LeaveFailed:
    """A consumer that was closed could not leave. Its partitions move after its session timeout.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer.
        error: Error of the call.
    """

    group: str
    consumer_id: str
    error: Exception


@dataclass(frozen=True, slots=True)
class PartitionUnknown:
    """A consumer was assigned a partition that it does not know: the topic has grown since it started.

    The partition is not read until the consumer is restarted with the current topic.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer.
        topic: Name of the topic.
        partition: Number of the partition.
    """

    group: str
    consumer_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class PartitionRefused:
    """JetStream has no resources to read a partition. The consumer retries for some minutes.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer.
        topic: Name of the topic.
        partition: Number of the partition.
        error: Error of JetStream.
    """

    group: str
    consumer_id: str
    topic: str
    partition: int
    error: Exception


@dataclass(frozen=True, slots=True)
class PartitionUnreadable:
    """All reading of a partition has failed for the consumer's ``timeout``. The consumer retries.

    A cause that lasts is a missing permission, or a domain of JetStream that can't be reached.

    Attributes:
        group: Name of the group.
        consumer_id: Id of the consumer.
        topic: Name of the topic.
        partition: Number of the partition.
        error: Error of the last attempt.
    """

    group: str
    consumer_id: str
    topic: str
    partition: int
    error: Exception


GroupEvent: TypeAlias = (
    AssignorFailed
    | LeaseLost
    | GroupTaken
    | MemberExpired
    | ControllerLost
    | MemberFenced
    | CommitFailed
    | LeaveFailed
    | PartitionRefused
    | PartitionUnknown
    | PartitionUnreadable
)
#: Called from the event loop; it must not block.
GroupEventHandler: TypeAlias = Callable[[GroupEvent], object]


def warn(event: GroupEvent) -> None:
    """Warn of events that need action. This is the default handler of events."""
    if isinstance(event, AssignorFailed):
        warnings.warn(
            f"assignor {event.assignor!r} of group {event.group!r} failed, 'sticky' was used instead: "
            f"{event.error!r}",
            GroupWarning,
            stacklevel=2,
        )
    elif isinstance(event, PartitionUnknown):
        warnings.warn(
            f"{event.consumer_id!r} of group {event.group!r} was assigned {event.topic}[{event.partition}], "
            "which it does not know: restart it with the current topic",
            GroupWarning,
            stacklevel=2,
        )
