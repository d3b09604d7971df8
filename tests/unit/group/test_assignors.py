"""Assignors assign each partition once, evenly, and with few moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from cProfile import Profile
from itertools import cycle
from pstats import Stats
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftenvelope.group.assignors import (
    ASSIGNORS,
    Assignment,
    Assignor,
    Situation,
    TopicPartition,
    checked,
    range_,
    round_robin,
    sticky,
)
from liftenvelope.group.errors import GroupRequestError

TOPICS = ("a", "b", "c")
MEMBERS = tuple(f"m{number}" for number in range(6))
PARTITIONS = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 8))


@st.composite
def situations(draw: st.DrawFn, *, alike: bool = False) -> Situation:
    """Any group; with ``alike`` one whose members all read all topics, and had nothing twice."""
    names = draw(st.lists(st.sampled_from(MEMBERS), unique=True, max_size=6))
    partitions = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 8), max_size=3))
    subsets = st.frozensets(st.sampled_from(TOPICS), min_size=1)
    members = {name: frozenset(partitions) if alike else draw(subsets) for name in names}
    previous: Mapping[str, Iterable[TopicPartition]]
    if alike:
        owners = draw(st.dictionaries(PARTITIONS, st.sampled_from(MEMBERS), max_size=24))
        previous = {name: {p for p, owner in owners.items() if owner == name} for name in MEMBERS}
    else:
        previous = draw(st.dictionaries(st.sampled_from(MEMBERS), st.frozensets(PARTITIONS, max_size=12)))
    return Situation(members, partitions, {name: frozenset(share) for name, share in previous.items()})


def situation_of_many(random: Random, members: int, topics: int, subscriptions: int) -> Situation:
    """Return a larger group, in which a few members have had most of the partitions."""
    names = [f"t{number}" for number in range(topics)]
    choices = [frozenset(random.sample(names, random.randint(1, topics))) for _ in range(subscriptions)]
    reading = {f"m{number}": random.choice(choices) for number in range(members)}
    partitions = {name: random.randint(1, 12) for name in names}
    previous: dict[str, list[TopicPartition]] = {}
    owners = random.sample(sorted(reading), max(1, members // 3))
    for name, count in partitions.items():
        for number in range(count):
            previous.setdefault(random.choice(owners), []).append(TopicPartition(name, number))
    return Situation(reading, partitions, previous)


def slow_sticky(situation: Situation) -> Assignment:
    """Apply the rules of ``sticky`` literally: sort all members and topics again for each move."""
    free = set(situation.wanted())
    shares: dict[str, set[TopicPartition]] = {}
    for member in sorted(situation.members):
        topics = situation.members[member]
        shares[member] = {p for p in situation.previous.get(member, ()) if p in free and p.topic in topics}
        free -= shares[member]

    def least(topic: str) -> str:
        return min(situation.readers(topic), key=lambda member: (len(shares[member]), member))

    def move() -> tuple[str, str, TopicPartition] | None:
        for giver in sorted(shares, key=lambda member: (-len(shares[member]), member)):
            for topic in sorted({p.topic for p in shares[giver]}):
                if len(shares[giver]) - len(shares[least(topic)]) >= 2:
                    return giver, least(topic), max(p for p in shares[giver] if p.topic == topic)
        return None

    for partition in sorted(free):
        shares[least(partition.topic)].add(partition)
    while (next_move := move()) is not None:
        giver, taker, partition = next_move
        shares[giver].remove(partition)
        shares[taker].add(partition)
    return {member: frozenset(share) for member, share in shares.items()}


def slow_round_robin(situation: Situation) -> Assignment:
    """Deal literally: one member after the other is asked for each partition."""
    shares: dict[str, set[TopicPartition]] = {member: set() for member in situation.members}
    turns = cycle(sorted(situation.members))
    for partition in situation.wanted():
        member = next(member for member in turns if partition.topic in situation.members[member])
        shares[member].add(partition)
    return {member: frozenset(share) for member, share in shares.items()}


def loads(shares: Mapping[str, Iterable[TopicPartition]]) -> list[int]:
    return [len(list(share)) for share in shares.values()]


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)
@given(situation=situations())
def test_everything_is_given_once_to_who_reads_it(assignor: Assignor, situation: Situation) -> None:
    shares = assignor(situation)
    assert checked(situation, shares) == shares
    assert shares.keys() == situation.members.keys()


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)
@given(situation=situations())
def test_the_same_situation_gives_the_same(assignor: Assignor, situation: Situation) -> None:
    turned = Situation(
        dict(reversed(tuple(situation.members.items()))),
        dict(reversed(tuple(situation.partitions.items()))),
        dict(reversed(tuple(situation.previous.items()))),
    )
    assert assignor(situation) == assignor(turned)


@pytest.mark.parametrize(("assignor", "reference"), [(sticky, slow_sticky), (round_robin, slow_round_robin)])
@given(situation=situations())
def test_assignment_equals_the_one_found_by_scanning(
    assignor: Assignor, reference: Assignor, situation: Situation
) -> None:
    assert assignor(situation) == reference(situation)


@given(
    situation=st.builds(
        situation_of_many,
        st.randoms(use_true_random=False),
        members=st.integers(1, 40),
        topics=st.integers(1, 12),
        subscriptions=st.integers(1, 6),
    )
)
@settings(max_examples=40)
def test_sticky_equals_the_reference_for_many_members(situation: Situation) -> None:
    """Many moves, members that can't give until others have, and several heaps of takers."""
    assert sticky(situation) == slow_sticky(situation)


@given(situation=situations())
def test_range_gives_runs_that_differ_by_one(situation: Situation) -> None:
    shares = range_(situation)
    for topic in situation.partitions:
        runs = [sorted(p for t, p in shares[member] if t == topic) for member in situation.readers(topic)]
        assert all(run == list(range(run[0], run[0] + len(run))) for run in runs if run)
        if runs:
            sizes = [len(run) for run in runs]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("assignor", [round_robin, sticky])
@given(situation=situations(alike=True))
def test_loads_differ_by_one(assignor: Assignor, situation: Situation) -> None:
    counts = loads(assignor(situation))
    assert not counts or max(counts) - min(counts) <= 1


@given(situation=situations())
def test_sticky_leaves_nothing_that_one_move_would_better(situation: Situation) -> None:
    shares = sticky(situation)
    for giver, share in shares.items():
        for topic, _ in share:
            for taker in situation.readers(topic):
                assert len(shares[giver]) - len(shares[taker]) <= 1, (giver, taker)


@given(situation=situations(alike=True))
def test_sticky_moves_as_few_as_can_be(situation: Situation) -> None:
    """Only partitions above a member's share move. Members with most partitions get the larger shares."""
    shares = sticky(situation)
    wanted = set(situation.wanted())
    had = {name: wanted & set(situation.previous.get(name, ())) for name in situation.members}
    kept = sum(len(had[name] & shares[name]) for name in shares)
    if not shares:
        return
    base, larger = divmod(len(wanted), len(shares))
    most_first = sorted((len(share) for share in had.values()), reverse=True)
    best = sum(min(count, base + (place < larger)) for place, count in enumerate(most_first))
    assert kept == best


@given(situation=situations())
def test_sticky_again_moves_nothing(situation: Situation) -> None:
    shares = sticky(situation)
    assert sticky(Situation(situation.members, situation.partitions, shares)) == shares


def test_one_who_goes_disturbs_nobody_else() -> None:
    members = {name: frozenset({"t"}) for name in "abcd"}
    before = sticky(Situation(members, {"t": 12}))
    del members["d"]
    after = sticky(Situation(members, {"t": 12}, before))
    assert all(before[name] <= after[name] for name in members)


@pytest.mark.parametrize(
    ("shares", "complaint"),
    [
        ({}, r"gave t\[0\] to no member"),
        ({"x": [("t", 0)]}, "'x', which is not a member"),
        ({"a": [("t", 0), ("t", 0)]}, "is given twice"),
        ({"a": [("t", 1)]}, r"gave t\[1\] to 'a', .* does not exist"),
        ({"b": [("t", 0)]}, "is not read by the member"),
    ],
)
def test_what_makes_no_sense_is_refused(
    shares: Mapping[str, Iterable[TopicPartition]], complaint: str
) -> None:
    situation = Situation({"a": frozenset({"t"}), "b": frozenset({"u"})}, {"t": 1})
    with pytest.raises(GroupRequestError, match=complaint):
        checked(situation, shares)


def test_a_large_group_is_quick_enough() -> None:
    """No more than some thousand steps for what a group may have at most."""
    members = {f"m{number:04}": frozenset({"t"}) for number in range(1_000)}
    before = sticky(Situation(members, {"t": 10_000}))
    del members["m0000"]
    after = sticky(Situation(members, {"t": 10_000}, before))
    assert sum(len(before[name] - after[name]) for name in members) == 0


@pytest.mark.parametrize("each", [3, 20])
def test_sticky_takes_few_steps_for_members_with_topics_of_their_own(each: int) -> None:
    """Counts function calls. A scan of all subscriptions for each move made 250,000 and 1.7 million."""
    random = Random(each)
    names = [f"t{number:02}" for number in range(50)]
    members = {f"m{number:03}": frozenset(random.sample(names, each)) for number in range(500)}
    few = {member: members[member] for member in sorted(members)[:100]}
    partitions = dict.fromkeys(names, 100)
    before = sticky(Situation(few, partitions))
    assert len(set(members.values())) > 490
    with Profile() as profile:
        after = sticky(Situation(members, partitions, before))
    assert sum(loads(after)) == 5_000
    assert Stats(profile).total_calls < 30 * 5_000  # type: ignore[attr-defined]
