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

from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from liftenvelope.group._loads import Balance
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
    "sticky_steps",
    "without_pauses",
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
    shares: dict[str, list[TopicPartition]] = {member: [] for member in situation.members}
    readers_of = _readers_by_topic(situation.members)
    for topic, count in situation.partitions.items():
        readers = readers_of.get(topic, ())
        begin = 0
        for place, member in enumerate(readers):
            size = count // len(readers) + (place < count % len(readers))
            if size == 0:
                break  # nor is anything left for the members after this one
            shares[member] += [TopicPartition(topic, number) for number in range(begin, begin + size)]
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
    shares: dict[str, list[TopicPartition]] = {member: [] for member in situation.members}
    places = {member: place for place, member in enumerate(sorted(situation.members))}
    readers_of = _readers_by_topic(situation.members)
    turn = 0  # place of the member whose turn is next
    for topic in sorted(readers_of.keys() & situation.partitions.keys()):
        readers = readers_of[topic]
        first = bisect_left(readers, turn, key=places.__getitem__)
        for number in range(situation.partitions[topic]):
            member = readers[(first + number) % len(readers)]
            shares[member].append(TopicPartition(topic, number))
            turn = places[member] + 1
    return {member: frozenset(share) for member, share in shares.items()}


def _readers_by_topic(members: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    """Return the readers of each topic, sorted. Topics with the same readers share one list."""
    by_subscription: dict[frozenset[str], list[str]] = {}
    for member in sorted(members):
        by_subscription.setdefault(members[member], []).append(member)
    including: dict[str, list[int]] = {}
    for number, topics in enumerate(by_subscription):
        for topic in topics:
            including.setdefault(topic, []).append(number)
    groups = list(by_subscription.values())
    lists: dict[tuple[int, ...], list[str]] = {}
    for numbers in map(tuple, including.values()):
        if numbers not in lists:
            lists[numbers] = sorted(member for number in numbers for member in groups[number])
    return {topic: lists[tuple(numbers)] for topic, numbers in including.items()}


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
    return without_pauses(sticky_steps(situation))


def without_pauses(steps: Generator[None, None, Assignment]) -> Assignment:
    """Take all steps at once, and return the assignment."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            shares: Assignment = end.value
            return shares


def sticky_steps(situation: Situation) -> Generator[None, None, Assignment]:
    """Return what :func:`sticky` does, with a pause every few milliseconds."""
    balance = Balance(situation.members, _kept(situation))
    yield
    yield from balance.steps()
    return {
        member: frozenset([TopicPartition(topic, number) for topic, numbers in share for number in numbers])
        for member, share in balance.shares()
    }


def _kept(situation: Situation) -> dict[str, list[str | None]]:
    """Return the owners of each topic's partitions for now; None where a partition must get one."""
    read = {topic for topics in situation.members.values() for topic in topics}
    owners: dict[str, list[str | None]] = {
        topic: [None] * situation.partitions[topic] for topic in sorted(read & situation.partitions.keys())
    }
    for member in sorted(situation.members):
        topics = situation.members[member]
        for topic, number in situation.previous.get(member, ()):
            if topic in topics and topic in owners and 0 <= number < len(owners[topic]):
                owners[topic][number] = owners[topic][number] or member
    return owners


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
        topics = situation.members[member]
        for partition in partitions:
            if partition not in free or partition[0] not in topics:
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
