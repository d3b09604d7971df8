"""Assignors: pure functions that distribute the partitions of a group among its members.

An assignor gets a :class:`Situation` and returns the partitions of each member. The group's controller calls
it whenever members join or leave. Every partition of a topic that has readers must go to exactly one of the
topic's readers; the result of a custom assignor is checked for this.

==============  =====================================================================================
`range_`        gives each member consecutive partitions of each topic
`round_robin`   deals the partitions of all topics to the members in turn
`sticky`        moves as few partitions as possible; loads then differ by at most one
==============  =====================================================================================
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from liftenvelope.group.errors import GroupRequestError

__all__ = [
    "ASSIGNORS",
    "Assignment",
    "Assignor",
    "Situation",
    "TopicPartition",
    "checked",
    "range_",
    "round_robin",
    "sticky",
]


class TopicPartition(NamedTuple):
    """One partition of a topic.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition, from 0.
    """

    topic: str
    partition: int


@dataclass(frozen=True)
class Situation:
    """Input of an assignor.

    Attributes:
        members: The topics that each member reads, by consumer id.
        partitions: Number of partitions of each topic.
        previous: Last assignment of each member. Members and partitions in it may no longer exist.
    """

    members: Mapping[str, frozenset[str]]
    partitions: Mapping[str, int]
    previous: Mapping[str, Collection[TopicPartition]] = field(default_factory=dict)

    def readers(self, topic: str) -> list[str]:
        """Return the members that read a topic, sorted by id."""
        return sorted(member for member, topics in self.members.items() if topic in topics)

    def wanted(self) -> list[TopicPartition]:
        """Return all partitions of topics that have readers, sorted."""
        read = {topic for topics in self.members.values() for topic in topics}
        return [
            TopicPartition(topic, number)
            for topic in sorted(read & self.partitions.keys())
            for number in range(self.partitions[topic])
        ]


#: Partitions of each member by consumer id. Every member has an entry.
Assignment: TypeAlias = dict[str, frozenset[TopicPartition]]
#: Assigns partitions. It must be a pure function, because coordinators call it again after a failure.
Assignor: TypeAlias = Callable[[Situation], Mapping[str, Iterable[TopicPartition]]]


def range_(situation: Situation) -> Assignment:
    """Give each member a run of each topic's partitions; the first members get one more.

    Example:
        >>> shares = range_(Situation({"a": frozenset({"t"}), "b": frozenset({"t"})}, {"t": 3}))
        >>> [sorted(number for _, number in shares[member]) for member in "ab"]
        [[0, 1], [2]]
    """
    shares: dict[str, set[TopicPartition]] = {member: set() for member in situation.members}
    for topic, count in situation.partitions.items():
        readers = situation.readers(topic)
        begin = 0
        for place, member in enumerate(readers):
            size = count // len(readers) + (place < count % len(readers))
            shares[member].update(TopicPartition(topic, number) for number in range(begin, begin + size))
            begin += size
    return {member: frozenset(share) for member, share in shares.items()}


def round_robin(situation: Situation) -> Assignment:
    """Deal out the partitions of all topics in turn, skipping members that do not read the topic.

    If all members read the same topics, their loads differ by at most one.

    Example:
        >>> shares = round_robin(Situation({"a": frozenset({"t"}), "b": frozenset({"t"})}, {"t": 3}))
        >>> [sorted(number for _, number in shares[member]) for member in "ab"]
        [[0, 2], [1]]
    """
    shares: dict[str, set[TopicPartition]] = {member: set() for member in situation.members}
    turns = cycle(sorted(situation.members))
    for partition in situation.wanted():
        member = next(member for member in turns if partition.topic in situation.members[member])
        shares[member].add(partition)
    return {member: frozenset(share) for member, share in shares.items()}


def sticky(situation: Situation) -> Assignment:
    """Keep partitions with their members, and move only as many as it takes to balance the loads.

    Afterwards no member has two partitions more than another member that could take one of them. If all
    members read the same topics, no other equally balanced assignment moves fewer partitions.

    Example:
        >>> before = {"a": [TopicPartition("t", number) for number in range(4)]}
        >>> shares = sticky(Situation({"a": frozenset({"t"}), "b": frozenset({"t"})}, {"t": 4}, before))
        >>> len(shares["a"] & set(before["a"])), len(shares["b"])
        (2, 2)
    """
    shares, orphans = _kept(situation)
    for topic in sorted({partition.topic for partition in orphans}):
        heap = [(len(shares[member]), member) for member in situation.readers(topic)]
        heapq.heapify(heap)
        for partition in [partition for partition in orphans if partition.topic == topic]:
            load, member = heap[0]
            shares[member].add(partition)
            heapq.heapreplace(heap, (load + 1, member))
    while move := _next_move(situation, shares):
        giver, taker, partition = move
        shares[giver].remove(partition)
        shares[taker].add(partition)
    return {member: frozenset(share) for member, share in shares.items()}


def _kept(situation: Situation) -> tuple[dict[str, set[TopicPartition]], list[TopicPartition]]:
    """Return the partitions that stay with their members for now, and those without an owner."""
    wanted = situation.wanted()
    free = set(wanted)
    shares: dict[str, set[TopicPartition]] = {member: set() for member in sorted(situation.members)}
    for member, share in shares.items():
        topics = situation.members[member]
        share.update(p for p in situation.previous.get(member, ()) if p in free and p.topic in topics)
        free -= share
    return shares, [partition for partition in wanted if partition in free]


def _next_move(
    situation: Situation, shares: Mapping[str, set[TopicPartition]]
) -> tuple[str, str, TopicPartition] | None:
    """Return giver, taker and partition of the next move that balances the loads; None if balanced."""
    least: dict[str, str | None] = {}
    for giver in sorted(shares, key=lambda member: (-len(shares[member]), member)):
        for topic in sorted(situation.members[giver]):
            if topic not in least:
                readers = situation.readers(topic)
                least[topic] = min(readers, key=lambda member: (len(shares[member]), member))
            taker = least[topic]
            if taker is None or len(shares[giver]) - len(shares[taker]) < 2:
                continue
            movable = [partition for partition in shares[giver] if partition.topic == topic]
            if movable:
                return giver, taker, max(movable)
    return None


def checked(situation: Situation, shares: Mapping[str, Iterable[TopicPartition]]) -> Assignment:
    """Check the result of an assignor and return it.

    Raises:
        GroupRequestError: A partition is given twice, to no member, or to one that does not read its topic.
    """
    given: Assignment = {member: frozenset() for member in situation.members}
    free = set(situation.wanted())
    for member, share in shares.items():
        if member not in given:
            raise GroupRequestError(f"the assignor gave partitions to {member!r}, which is not a member")
        partitions = [TopicPartition(*partition) for partition in share]
        for partition in partitions:
            if partition not in free or partition.topic not in situation.members[member]:
                raise GroupRequestError(
                    f"the assignor gave {_shown(partition)} to {member!r}, which can't have it: the "
                    f"partition does not exist, is given twice, or its topic is not read by the member"
                )
            free.remove(partition)
        given[member] = frozenset(partitions)
    if free:
        raise GroupRequestError(f"the assignor gave {_shown(min(free))} to no member")
    return given


def _shown(partition: TopicPartition) -> str:
    return f"{partition.topic}[{partition.partition}]"


#: Built-in assignors of every coordinator, by name.
ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {"range": range_, "round_robin": round_robin, "sticky": sticky}
)
