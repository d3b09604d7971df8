"""Consumer groups as the command and the monitor show them, whichever server coordinates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["GroupDescription", "GroupOverview", "GroupPartition"]


@dataclass(frozen=True, kw_only=True)
class GroupOverview:
    """A line of the list of groups.

    Attributes:
        name: Name of the group.
        state: State of the group.
        members: Number of members.
        topics: Topics or streams that they read.
    """

    name: str
    state: str
    members: int
    topics: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class GroupPartition:
    """Position of a group in a partition. None is not known.

    Attributes:
        topic: Topic or stream.
        partition: Number of the partition.
        member: Id of the member that reads it.
        committed: Offset that the group reads next; None if nothing was committed.
        end: Offset of the next message of the partition.
        lag: Number of messages that the group has not processed.
    """

    topic: str
    partition: int
    member: str | None = None
    committed: int | None = None
    end: int | None = None
    lag: int | None = None


@dataclass(frozen=True, kw_only=True)
class GroupDescription:
    """A group with its members and partitions.

    Attributes:
        name: Name of the group.
        state: State of the group.
        coordinator: Id of the coordinator.
        generation: Number of the current assignment, which Liftbridge calls the epoch.
        members: Topics of each member, by the member's id.
        partitions: Positions of the group.
    """

    name: str
    state: str
    coordinator: str | None
    generation: int | None
    members: Mapping[str, Sequence[str]]
    partitions: Sequence[GroupPartition]
