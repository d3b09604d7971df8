"""Levels the loads of members with few moves of partitions: the core of the ``sticky`` assignor."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Final

__all__ = ["Balance"]

#: Moves between two pauses, which take 1 to 5 ms.
_MOVES: Final = 256


class Balance:
    """Loads of the members, and the moves that level them.

    The rules, in this order: The member with the most partitions gives first; of several, the first by id. It
    gives of its first topic, by name, that a member with at least two partitions less reads. The reader with
    the fewest partitions takes; of several, the first by id. The partition with the highest number moves. So
    the result depends on nothing but the input.

    No rule is looked up by a scan. If all members read the same topics, the order of the givers does not
    depend on the takers, nor the other way round: each is a walk over the levels of the loads, down and up.

    Otherwise, the takers are in heaps (see :class:`_Takers`), and all members are in a heap of possible
    givers. An entry of a heap may be outdated. It is corrected when it reaches the top, so a move costs the
    logarithm of the number of members. A member that can't give is set aside. It can only give again after
    another member has become a better taker, because everybody that moves meanwhile has at most as many
    partitions.

    Args:
        members: Topics of each member, by id.
        owners: For each topic, the present owner of each partition; None for a partition that must be given.
            Topics are sorted, and each has readers.
    """

    def __init__(
        self, members: Mapping[str, frozenset[str]], owners: Mapping[str, Sequence[str | None]]
    ) -> None:
        self._loads = dict.fromkeys(sorted(members), 0)
        #: Numbers of the partitions that each member has, sorted, by topic.
        self._held: dict[str, dict[str, list[int]]] = {member: {} for member in self._loads}
        #: Topics of which a member has partitions, sorted.
        self._order: dict[str, list[str]] = {}
        self._givers: list[tuple[int, str]] = []
        self._aside: list[tuple[int, str]] = []
        self._keep(owners)
        self._takers = _Takers(members, self._loads, owners)
        self._owners = owners

    def shares(self) -> Iterator[tuple[str, Iterator[tuple[str, list[int]]]]]:
        """Yield each member with its topics and their partitions."""
        for member, held in self._held.items():
            yield member, iter(held.items())

    def steps(self) -> Iterator[None]:
        """Give and move partitions until no member has two more than another that could take one of them.

        Yields every few milliseconds, so that a caller with an event loop can let other tasks run.
        """
        for number, _ in enumerate(chain(self._give_out(), self._level())):
            if number % _MOVES == _MOVES - 1:
                yield

    def _level(self) -> Iterator[None]:
        if self._takers.are_alike:
            yield from self._level_alike()
            return
        self._order = {member: sorted(held) for member, held in self._held.items()}
        self._givers = [(-load, member) for member, load in self._loads.items()]
        heapq.heapify(self._givers)
        while self._givers:
            key = heapq.heappop(self._givers)
            if -key[0] != self._loads[key[1]]:
                continue  # outdated
            if (move := self._move_of(key[1])) is None:
                heapq.heappush(self._aside, key)
            else:
                self._move(key[1], *move)
            yield

    # The start

    def _keep(self, owners: Mapping[str, Sequence[str | None]]) -> None:
        held = self._held
        for topic, numbers in owners.items():
            for number, owner in enumerate(numbers):
                if owner is not None:
                    held[owner].setdefault(topic, []).append(number)
        for member, topics in held.items():
            self._loads[member] = sum(map(len, topics.values()))

    def _give_out(self) -> Iterator[None]:
        alike = _upward(dict(self._loads)) if self._takers.are_alike else None
        for topic, numbers in self._owners.items():
            for number, owner in enumerate(numbers):
                if owner is None:
                    load, member = self._takers.least(topic) if alike is None else next(alike)
                    insort(self._held[member].setdefault(topic, []), number)
                    self._loads[member] = load + 1
                    yield

    # Moves

    def _level_alike(self) -> Iterator[None]:
        order: dict[str, list[str]] = {}
        for (most, giver), (least, taker) in zip(_downward(self._loads), _upward(self._loads), strict=False):
            if most - least < 2:
                return
            held = self._held[giver]
            if giver not in order:
                order[giver] = sorted(held, reverse=True)
            topic = order[giver][-1]
            number = held[topic].pop()
            if not held[topic]:
                del held[order[giver].pop()]
            self._held[taker].setdefault(topic, []).append(number)
            yield

    def _move_of(self, giver: str) -> tuple[str, str] | None:
        """Return taker and topic of the giver's next move; None if it has none."""
        load = self._loads[giver]
        if load < 2:
            return None
        for topic in self._order[giver]:
            least, taker = self._takers.least(topic)
            if load - least >= 2:
                return taker, topic
        return None

    def _move(self, giver: str, taker: str, topic: str) -> None:
        numbers = self._held[giver][topic]
        number = numbers.pop()
        if not numbers:
            del self._held[giver][topic]
            self._order[giver].remove(topic)
        if topic not in self._held[taker]:
            self._held[taker][topic] = []
            insort(self._order[taker], topic)
        insort(self._held[taker][topic], number)
        self._loads[taker] += 1
        self._loads[giver] = load = self._loads[giver] - 1
        for member in (giver, taker):
            heapq.heappush(self._givers, (-self._loads[member], member))
        # Only a member that has been set aside can have two partitions more than the giver has now, because
        # the giver had the most of all others. The most of all never increases. So if no such member is
        # aside, the giver never takes again, unless it gives again first.
        if self._aside and -self._aside[0][0] - load >= 2 and self._takers.add(giver, load):
            while self._aside and -self._aside[0][0] - load >= 2:
                heapq.heappush(self._givers, heapq.heappop(self._aside))


class _Takers:
    """Finds the reader of a topic that has the fewest partitions.

    Members that read the same topics are a group with a heap. Each topic has a heap of its groups, so that
    many different subscriptions take no scan. The invariant: a member that may take has an entry with at most
    its load, and a group has an entry with at most the first entry of its own heap.

    Args:
        members: Topics of each member, by id.
        loads: Present load of each member. The object reads it whenever it is asked.
        topics: Topics with partitions.
    """

    def __init__(
        self, members: Mapping[str, frozenset[str]], loads: Mapping[str, int], topics: Collection[str]
    ) -> None:
        self._loads = loads
        by_topics: dict[frozenset[str], list[tuple[int, str]]] = {}
        for member, load in loads.items():
            by_topics.setdefault(members[member], []).append((load, member))
        self._groups = list(by_topics.values())
        self._topics = [[topic for topic in read if topic in topics] for read in by_topics]
        self._group_of: dict[str, int] = {}
        self._by_topic: dict[str, list[tuple[int, str, int]]] = {topic: [] for topic in topics}
        for number, group in enumerate(self._groups):
            self._group_of |= dict.fromkeys([member for _, member in group], number)
            heapq.heapify(group)
            for topic in self._topics[number]:
                self._by_topic[topic].append((*group[0], number))
        for groups in self._by_topic.values():
            heapq.heapify(groups)

    @property
    def are_alike(self) -> bool:
        """True if all members read the same topics."""
        return len(self._groups) == 1

    def least(self, topic: str) -> tuple[int, str]:
        """Return load and id of the topic's reader with the fewest partitions, the first by id of several."""
        groups, loads = self._by_topic[topic], self._loads
        while True:
            load, member, number = groups[0]
            group = self._groups[number]
            while group[0][0] < (actual := loads[group[0][1]]):
                heapq.heapreplace(group, (actual, group[0][1]))
            first = group[0]
            if first == (load, member):
                return first
            heapq.heapreplace(groups, (*first, number))

    def add(self, member: str, load: int) -> bool:
        """Let a member take again whose load has decreased; return True if a topic has a better taker now."""
        number = self._group_of[member]
        is_better = any(load < self.least(topic)[0] for topic in self._topics[number])
        group = self._groups[number]
        if (load, member) < group[0]:
            for topic in self._topics[number]:
                heapq.heappush(self._by_topic[topic], (load, member, number))
        heapq.heappush(group, (load, member))
        return is_better


def _downward(loads: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """Yield load and id of the member with the most partitions, if each that is yielded then gives one."""
    return _walk(loads, range(max(loads.values()), 0, -1))


def _upward(loads: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """Yield load and id of the member with the fewest partitions, if each that is yielded then gets one."""
    return _walk(loads, count(min(loads.values())))


def _walk(loads: Mapping[str, int], levels: Iterable[int]) -> Iterator[tuple[int, str]]:
    by_load: dict[int, list[str]] = {}
    for member, load in loads.items():
        by_load.setdefault(load, []).append(member)
    members: list[str] = []
    for level in levels:
        if level in by_load:
            members = sorted([*members, *by_load[level]])
        for member in members:
            yield level, member
