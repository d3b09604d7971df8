"""Consumer groups as ``liftenvelope group`` shows them, whoever coordinates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

__all__ = ["Aim", "GroupAdmin", "GroupDescription", "GroupOverview", "GroupPartition", "Reset"]

#: New position of a group: ``earliest``, ``latest``, an offset, or a time.
Aim: TypeAlias = str | int | datetime


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


@dataclass(frozen=True, kw_only=True)
class Reset:
    """Change of the position of a group in a partition.

    Attributes:
        topic: Topic or stream.
        partition: Number of the partition.
        old: Offset that the group would have read next; None if nothing was committed.
        new: Offset that it reads next now.
    """

    topic: str
    partition: int
    old: int | None
    new: int


class GroupAdmin(Protocol):
    """Administration of the groups of one kind of servers."""

    async def list_groups(self) -> list[GroupOverview]:
        """Return all groups."""
        ...

    async def describe(self, name: str, topics: Sequence[str]) -> GroupDescription:
        """Return a group, with its positions in these topics, or in all of its topics."""
        ...

    async def plan(self, found: GroupDescription, wanted: Sequence[GroupPartition], aim: Aim) -> list[Reset]:
        """Return the changes that move a group to a new position."""
        ...

    async def reset(self, name: str, plan: Sequence[Reset]) -> list[Reset]:
        """Make changes, and return them with the offsets that were set."""
        ...

    async def delete(self, name: str, topics: Sequence[str]) -> None:
        """Delete a group and its positions."""
        ...
