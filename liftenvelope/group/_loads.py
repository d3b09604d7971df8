"""Levels the loads of members with few moves of partitions: the core of the ``sticky`` assignor."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

__all__ = ["Balance"]


class Balance:
    """Loads of the members, and the moves that level them.

    The rules, in this order: The member with the most partitions gives first; of several, the first by id. It
    gives of its first topic, by name, that a member with at least two partitions less reads. The reader with
    the fewest partitions takes; of several, the first by id. The partition with the highest number moves. So
    the result depends on nothing but the input.

    No rule is looked up by a scan. If all members read the same topics, the order of the givers does not
    depend on the takers, nor the other way round: each is a walk over the levels of the loads, down and up.

    Otherwise, members with the same topics share a heap of possible takers, and all members are in a heap of
    possible givers. An entry of a heap may be outdated. It is corrected when it reaches the top, so a move
    costs the logarithm of the number of members. A member that can't give is set aside. It can only give
    again after another member has become a better taker, because everybody that moves meanwhile has at most
    as many partitions.

    Args:
        members: Topics of each member, by id.
        owners: For each topic, the present owner of each partition; None for a partition that must be given.
            Topics are sorted, and each has readers.
    """

    def __init__(
        self, members: Mapping[str, frozenset[str]], owners: Mapping[str, Sequence[str | None]]
    ) -> None:
        self._topics = members
        self._loads = dict.fromkeys(sorted(members), 0)
        #: Numbers of the partitions that each member has, sorted, by topic.
        self._held: dict[str, dict[str, list[int]]] = {member: {} for member in self._loads}
        #: Topics of which a member has partitions, sorted.
        self._order: dict[str, list[str]] = {}
        self._takers: dict[frozenset[str], list[tuple[int, str]]] = {}
        self._takers_of: dict[str, list[list[tuple[int, str]]]] = {topic: [] for topic in owners}
        self._givers: list[tuple[int, str]] = []
        self._aside: list[tuple[int, str]] = []
        self._keep(owners)
        self._group_takers()
        self._give_out(owners)

    def shares(self) -> Iterator[tuple[str, Iterator[tuple[str, list[int]]]]]:
        """Yield each member with its topics and their partitions."""
        for member, held in self._held.items():
            yield member, iter(held.items())

    def level(self) -> None:
        """Move partitions until no member has two more than another member that could take one of them."""
        if len(self._takers) == 1:
            self._level_alike()
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

    # The start

    def _keep(self, owners: Mapping[str, Sequence[str | None]]) -> None:
        held = self._held
        for topic, numbers in owners.items():
            for number, owner in enumerate(numbers):
                if owner is not None:
                    held[owner].setdefault(topic, []).append(number)
        for member, topics in held.items():
            self._loads[member] = sum(map(len, topics.values()))

    def _group_takers(self) -> None:
        for member, load in self._loads.items():
            self._takers.setdefault(self._topics[member], []).append((load, member))
        for topics, takers in self._takers.items():
            heapq.heapify(takers)
            for topic in topics & self._takers_of.keys():
                self._takers_of[topic].append(takers)

    def _give_out(self, owners: Mapping[str, Sequence[str | None]]) -> None:
        alike = _upward(dict(self._loads)) if len(self._takers) == 1 else None
        for topic, numbers in owners.items():
            for number, owner in enumerate(numbers):
                if owner is None:
                    load, member = self._least(topic) if alike is None else next(alike)
                    insort(self._held[member].setdefault(topic, []), number)
                    self._loads[member] = load + 1

    # Moves

    def _level_alike(self) -> None:
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

    def _least(self, topic: str) -> tuple[int, str]:
        """Return load and id of the topic's reader with the fewest partitions."""
        return min([self._top(takers) for takers in self._takers_of[topic]])

    def _top(self, takers: list[tuple[int, str]]) -> tuple[int, str]:
        """Return the first entry of a heap, after correcting what is outdated.

        Every member has an entry with at most its load, because a new one is added when the load decreases.
        """
        while True:
            load, member = takers[0]
            actual = self._loads[member]
            if load == actual:
                return takers[0]
            if load < actual:
                heapq.heapreplace(takers, (actual, member))
            else:
                heapq.heappop(takers)

    def _move_of(self, giver: str) -> tuple[str, str] | None:
        """Return taker and topic of the giver's next move; None if it has none."""
        load = self._loads[giver]
        if load < 2:
            return None
        for topic in self._order[giver]:
            least, taker = self._least(topic)
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
        takers = self._takers[self._topics[giver]]
        least_before = self._top(takers)[0]
        self._loads[taker] += 1
        self._loads[giver] = load = self._loads[giver] - 1
        heapq.heappush(takers, (load, giver))
        for member in (giver, taker):
            heapq.heappush(self._givers, (-self._loads[member], member))
        if load < least_before:
            while self._aside and -self._aside[0][0] - load >= 2:
                heapq.heappush(self._givers, heapq.heappop(self._aside))


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
