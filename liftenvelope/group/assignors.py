"""Who gets which partition: pure functions, from what a group is to what it shall be.

An assignor gets a :class:`Situation` and returns the partitions of each member. It is called by the group's
controller whenever members come or go, and must give every partition that anybody reads to exactly one of
those who read its topic; what comes from an assignor of the user's own is checked for that.

==============  =====================================================================================
`range_`        of each topic, each member gets partitions that follow one another
`round_robin`   the partitions of all topics are dealt out in turn
`sticky`        as few partitions as possible change hands; the loads then differ by no more than one
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
        topic: The topic's name.
        partition: The partition's number, from 0 on.
    """

    topic: str
    partition: int


@dataclass(frozen=True)
class Situation:
    """What an assignor decides upon.

    Attributes:
        members: The topics that each member reads, by consumer id.
        partitions: How many partitions each topic has.
        previous: What each member had last; also of members and partitions that are no more.
    """

    members: Mapping[str, frozenset[str]]
    partitions: Mapping[str, int]
    previous: Mapping[str, Collection[TopicPartition]] = field(default_factory=dict)

    def readers(self, topic: str) -> list[str]:
        """The members that read a topic, in order of their ids."""
        return sorted(member for member, topics in self.members.items() if topic in topics)

    def wanted(self) -> list[TopicPartition]:
        """All partitions of topics that anybody reads, in order."""
        read = {topic for topics in self.members.values() for topic in topics}
        return [
            TopicPartition(topic, number)
            for topic in sorted(read & self.partitions.keys())
            for number in range(self.partitions[topic])
        ]


#: The partitions of each member, by consumer id; each member is in it.
Assignment: TypeAlias = dict[str, frozenset[TopicPartition]]
#: Deals out partitions. It must be a pure function: coordinators call it again after a failure.
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
    """Deal out the partitions of all topics in turn, passing over those who don't read the topic.

    Where all members read the same topics, their loads differ by no more than one.

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
    """Leave partitions where they are, and move only as many as it takes to balance the loads.

    Afterwards nobody has two partitions more than another who could take one of them. Where all members read
    the same topics, no assignment that is balanced as well moves fewer.

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
    """What stays with its member for the time being, and the partitions that are nobody's."""
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
    """Who should give which partition to whom, so that the loads come closer; None if that is done."""
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
    """The outcome of an assignor, once it is sure that it makes sense.

    Raises:
        GroupRequestError: A partition is given twice, not at all, or to somebody who does not read it.
    """
    given: Assignment = {member: frozenset() for member in situation.members}
    free = set(situation.wanted())
    for member, share in shares.items():
        if member not in given:
            raise GroupRequestError(f"the assignor gave partitions to {member!r}, which is no member")
        partitions = [TopicPartition(*partition) for partition in share]
        for partition in partitions:
            if partition not in free or partition.topic not in situation.members[member]:
                raise GroupRequestError(
                    f"the assignor gave {partition} to {member!r}: there is none, or it is another's"
                )
            free.remove(partition)
        given[member] = frozenset(partitions)
    if free:
        raise GroupRequestError(f"the assignor gave {min(free)} to nobody")
    return given


#: The assignors that every coordinator has, by the names that groups choose them by.
ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {"range": range_, "round_robin": round_robin, "sticky": sticky}
)
