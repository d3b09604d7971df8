"""Administration of consumer groups for ``liftenvelope group``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

from liftenvelope.monitor.groups import GroupDescription, GroupOverview, GroupPartition

__all__ = ["Aim", "GroupAdmin", "Reset"]

#: New position of a group: ``earliest``, ``latest``, an offset, or a time.
Aim: TypeAlias = str | int | datetime


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
