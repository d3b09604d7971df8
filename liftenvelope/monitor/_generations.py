"""History of the generations of groups: who joined and left, and how many partitions moved. Sans-io."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from liftenvelope.monitor._snapshots import GroupSample

__all__ = ["Generation", "GenerationHistory"]

#: Names of members that an entry keeps.
_NAMES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Assignment of a group, as it was first seen.

    Attributes:
        at: Time of the sample that had it first, in seconds since 1970.
        number: Number of the generation; None if the servers do not tell.
        members: Number of members.
        joined, left: Some of the members that joined or left since the entry before, by their ids.
        joined_count, left_count: Number of all of them.
        moved: Number of partitions that another member reads; None if the servers do not tell.
        coordinator: Id of the coordinator.
    """

    at: float
    number: int | None
    members: int
    joined: Sequence[str] = ()
    joined_count: int = 0
    left: Sequence[str] = ()
    left_count: int = 0
    moved: int | None = None
    coordinator: str | None = None


class GenerationHistory:
    """Generations of each group since the first sample: the newest ones, oldest first.

    Args:
        limit: Most generations of a group.

    Example:
        >>> history = GenerationHistory(limit=10)
        >>> for at, number, members in ((1.0, 1, ["a"]), (2.0, 1, ["a"]), (3.0, 2, ["a", "b"])):
        ...     topics = {name: ("orders",) for name in members}
        ...     sample = GroupSample(name="g", at=at, state="stable", generation=number, members=topics)
        ...     history.add({"g": sample})
        >>> [(one.number, one.members, one.joined) for one in history.of("g")]
        [(1, 1, ()), (2, 2, ('b',))]
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last: dict[str, GroupSample] = {}
        self._found: dict[str, deque[Generation]] = {}

    def add(self, groups: Mapping[str, GroupSample]) -> None:
        """Add the groups of a sample, and forget those that are gone."""
        for name, group in groups.items():
            last = self._last.get(name)
            if last is None or _state(last) != _state(group):
                kept = self._found.setdefault(name, deque(maxlen=self._limit))
                kept.append(_generation(group, last))
        self._last = dict(groups)
        self._found = {name: kept for name, kept in self._found.items() if name in groups}

    def of(self, group: str) -> Sequence[Generation]:
        """Return the generations of a group, oldest first; none if it is not known."""
        return tuple(self._found.get(group, ()))


def _state(group: GroupSample) -> tuple[int | None, str | None, frozenset[str]]:
    return group.generation, group.coordinator, frozenset(group.members)


def _generation(group: GroupSample, last: GroupSample | None) -> Generation:
    joined: Iterable[str] = () if last is None else group.members.keys() - last.members.keys()
    left: Iterable[str] = () if last is None else last.members.keys() - group.members.keys()
    joined, left = sorted(joined), sorted(left)
    return Generation(
        at=group.at,
        number=group.generation,
        members=len(group.members),
        joined=tuple(joined[:_NAMES]),
        joined_count=len(joined),
        left=tuple(left[:_NAMES]),
        left_count=len(left),
        moved=None if last is None else _moved(group, last),
        coordinator=group.coordinator,
    )


def _moved(group: GroupSample, last: GroupSample) -> int | None:
    """Return the number of partitions with another member; None if no member of any is known."""
    owners = {(one.topic, one.partition): one.member for one in group.partitions}
    before = {(one.topic, one.partition): one.member for one in last.partitions}
    if not any((*owners.values(), *before.values())):
        return None
    return sum(before.get(key) != owner for key, owner in owners.items() if owner is not None)
