"""Administration of consumer groups for ``liftenvelope group``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

from liftenvelope.errors import GroupError, LiftEnvelopeError
from liftenvelope.monitor.groups import GroupDescription, GroupOverview, GroupPartition

__all__ = ["Aim", "GroupAdmin", "Reset", "partial_reset"]

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

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


def partial_reset(
    name: str,
    changed: Sequence[Reset],
    failed: Sequence[tuple[Reset, LiftEnvelopeError]],
    skipped: Sequence[Reset] = (),
) -> GroupError:
    """Return the error of a reset that failed in some partitions. It names what was changed and what was not.

    Args:
        name: Name of the group.
        changed: Changes that were made.
        failed: Changes that failed, with the reasons.
        skipped: Changes that were not tried.
    """
    done = ", ".join(f"{one} to {one.new}" for one in changed) or "none"
    reasons = "; ".join(f"{one}: {error}" for one, error in failed)
    text = f"group {name!r} was not reset in all partitions. Reset: {done}. Failed: {reasons}"
    rest = f". Not tried: {', '.join(map(str, skipped))}" if skipped else ""
    return GroupError(text + rest)


class GroupAdmin(Protocol):
    """Administration of the groups of one kind of servers."""

    async def list_groups(self) -> list[GroupOverview]:
        """Return all groups."""
        ...

    async def describe(self, name: str, topics: Sequence[str]) -> GroupDescription:
        """Return a group, with its positions in these topics, or in all of its topics."""
        ...

    async def plan(self, wanted: Sequence[GroupPartition], aim: Aim) -> list[Reset]:
        """Return the changes that move a group to a new position."""
        ...

    async def reset(self, name: str, plan: Sequence[Reset]) -> list[Reset]:
        """Make changes, and return them with the offsets that were set."""
        ...

    async def delete(self, name: str, topics: Sequence[str]) -> None:
        """Delete a group and its positions."""
        ...
