"""What happens in the background, for those who want to know: see ``on_event``."""

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
    "MemberExpired",
    "MemberFenced",
    "PartitionUnknown",
    "warn",
]


class GroupWarning(UserWarning):
    """Something that a program goes on after, but that its author should know of."""


@dataclass(frozen=True, slots=True)
class AssignorFailed:
    """A group's own assignor raised, or gave what makes no sense; ``sticky`` dealt out instead.

    Attributes:
        group: Name of the group.
        assignor: Name of the assignor.
        error: What it did.
    """

    group: str
    assignor: str
    error: Exception


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A coordinator could not renew its lease in time, and another one took its groups. It begins anew.

    Attributes:
        coordinator_id: Which.
    """

    coordinator_id: str


@dataclass(frozen=True, slots=True)
class GroupTaken:
    """A coordinator has become the controller of a group whose controller is gone.

    Attributes:
        group: Name of the group.
        coordinator_id: Which coordinator.
        before: Id of the one that is gone.
    """

    group: str
    coordinator_id: str
    before: str


@dataclass(frozen=True, slots=True)
class MemberExpired:
    """A controller has removed a member that was silent for too long, or did not give back what it had.

    Attributes:
        group: Name of the group.
        consumer_id: Which member.
    """

    group: str
    consumer_id: str


@dataclass(frozen=True, slots=True)
class ControllerLost:
    """A consumer does not reach its group's controller. It goes on looking for it.

    Attributes:
        group: Name of the group.
        consumer_id: Which consumer.
        error: What it was told.
    """

    group: str
    consumer_id: str
    error: Exception


@dataclass(frozen=True, slots=True)
class MemberFenced:
    """A consumer has lost its place in the group, and all its partitions. It registers anew.

    Attributes:
        group: Name of the group.
        consumer_id: Which consumer.
        error: What it was told, None where it noticed by itself that it was silent for too long.
    """

    group: str
    consumer_id: str
    error: Exception | None


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """What was processed could not be committed; it is tried again, or comes again elsewhere.

    Attributes:
        group: Name of the group.
        consumer_id: Which consumer.
        error: Why.
    """

    group: str
    consumer_id: str
    error: Exception


@dataclass(frozen=True, slots=True)
class PartitionUnknown:
    """A consumer was given a partition that it does not know: the topic has grown since it was started.

    Nobody reads the partition until the consumer is started anew with the topic as it is now.

    Attributes:
        group: Name of the group.
        consumer_id: Which consumer.
        topic: The topic.
        partition: The partition.
    """

    group: str
    consumer_id: str
    topic: str
    partition: int


GroupEvent: TypeAlias = (
    AssignorFailed
    | LeaseLost
    | GroupTaken
    | MemberExpired
    | ControllerLost
    | MemberFenced
    | CommitFailed
    | PartitionUnknown
)
#: Called from the event loop; it must not block.
GroupEventHandler: TypeAlias = Callable[[GroupEvent], object]


def warn(event: GroupEvent) -> None:
    """Warn of what somebody should do something about: what handles events unless told otherwise."""
    if isinstance(event, AssignorFailed):
        warnings.warn(
            f"the assignor {event.assignor!r} of group {event.group!r} failed, 'sticky' dealt out instead: "
            f"{event.error!r}",
            GroupWarning,
            stacklevel=2,
        )
    elif isinstance(event, PartitionUnknown):
        warnings.warn(
            f"{event.consumer_id!r} of group {event.group!r} was given {event.topic}[{event.partition}], "
            "which it does not know: start it anew with the topic as it is now",
            GroupWarning,
            stacklevel=2,
        )
