"""Administration of consumer groups for ``liftenvelope group``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeAlias

from liftenvelope.errors import CallTimeoutError, GroupError, LiftEnvelopeError, TransportError
from liftenvelope.monitor.groups import GroupDescription, GroupOverview, GroupPartition

__all__ = ["Aim", "GroupAdmin", "Reset", "ResetOutcome", "incomplete_deletion", "incomplete_reset"]

#: New position of a group: ``earliest``, ``latest``, an offset, or a time.
Aim: TypeAlias = str | int | datetime


class ResetOutcome(StrEnum):
    """Outcome of a reset in one partition."""

    PLANNED = "planned"
    RESET = "reset"
    FAILED = "failed"
    #: The group may go on at the old offset or at the new one: the request was not answered, or a member may
    #: have joined meanwhile.
    UNKNOWN = "unknown"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, kw_only=True)
class Reset:
    """Change of the position of a group in a partition.

    Attributes:
        topic: Topic or stream.
        partition: Number of the partition.
        old: Offset that the group would have read next; None if nothing was committed.
        new: Offset that it reads next after the change.
        outcome: Outcome of the change.
        error: Reason of a failure or of an unknown outcome; None without one.
    """

    topic: str
    partition: int
    old: int | None
    new: int
    outcome: ResetOutcome = ResetOutcome.PLANNED
    error: str | None = None

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"

    def failed(self, error: LiftEnvelopeError) -> Reset:
        """Return the change with the outcome that an error stands for."""
        # Lost connections and missing answers do not tell if the servers carried the request out.
        is_unknown = isinstance(error, CallTimeoutError | TransportError)
        outcome = ResetOutcome.UNKNOWN if is_unknown else ResetOutcome.FAILED
        return replace(self, outcome=outcome, error=str(error))


def incomplete_reset(name: str, changes: Sequence[Reset]) -> GroupError | None:
    """Return the error of a reset that was not made in all partitions, which it lists by outcome; or None."""
    listed = {one: f"{one} to {one.new}" for one in changes}
    return _incomplete(name, listed, "reset", "reset the group again")


def incomplete_deletion(name: str, changes: Sequence[Reset]) -> GroupError | None:
    """Return the error of a deletion that was not made in all partitions, or None: as for a reset."""
    return _incomplete(name, {one: str(one) for one in changes}, "deleted", "delete the group again")


def _incomplete(name: str, changes: Mapping[Reset, str], done: str, remedy: str) -> GroupError | None:
    """Return the error of changes that were not all made.

    Args:
        name: Name of the group.
        changes: Changes, with the texts for those that were made.
        done: Verb for those.
        remedy: What to do about unknown outcomes.
    """
    if all(one.outcome is ResetOutcome.RESET for one in changes):
        return None
    made = [text for one, text in changes.items() if one.outcome is ResetOutcome.RESET]
    parts = [
        f"{done.capitalize()}: {', '.join(made) or 'none'}",
        *(
            f"{outcome.capitalize()}: {_listed(found)}"
            for outcome in (ResetOutcome.FAILED, ResetOutcome.UNKNOWN, ResetOutcome.NOT_TRIED)
            if (found := [one for one in changes if one.outcome is outcome])
        ),
    ]
    text = f"group {name!r} was not {done} in all partitions. {'. '.join(parts)}"
    if any(one.outcome is ResetOutcome.UNKNOWN for one in changes):
        text = f"{text}. See group describe for the offsets in force, and {remedy}"
    return GroupError(text)


def _listed(changes: Sequence[Reset]) -> str:
    if any(one.error for one in changes):
        reasons = dict.fromkeys(one.error for one in changes)
        named = {text: ", ".join(str(one) for one in changes if one.error == text) for text in reasons}
        return "; ".join(f"{names}: {text}" for text, names in named.items())
    return ", ".join(map(str, changes))


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
        """Make changes, and return each with its outcome and the offset that was set."""
        ...

    async def delete(self, name: str, topics: Sequence[str]) -> None:
        """Delete a group and its positions.

        Raises:
            GroupError: The group has members, or some positions may not be deleted; the text lists them.
        """
        ...
