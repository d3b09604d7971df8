"""The core of groups: what each call does, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from liftenvelope.errors import AlreadyMemberError, FencedError, GroupError, NotMemberError
from liftenvelope.group.assignors import Situation, TopicPartition
from liftenvelope.group.errors import (
    ConsumerIdInUseError,
    GroupLimitError,
    GroupRequestError,
    NotAssignedError,
    StaleGenerationError,
    TopicMismatchError,
    UnknownMemberError,
)
from liftenvelope.group.membership import Commit, Group, Registered, Registration
from liftenvelope.group.state import MAX_MEMBERS, GroupState, MemberState, Phase, Place, TopicSpec

TOPIC = TopicSpec("t", 4)
P = [TopicPartition("t", number) for number in range(4)]


def make(*, now: float = 0.0, **options: object) -> Group:
    return Group(GroupState("g", **options), now=now)  # type: ignore[arg-type]


def register(group: Group, name: str, now: float = 0.0, generation: int = 0, **options: Any) -> Registered:
    options = {"client_id": f"client of {name}", "topics": (TOPIC,), **options}
    request = Registration(consumer_id=name, generation=generation, **options)
    return group.register(request, now)


def stable(*names: str) -> Group:
    """A group of these members, at second 0."""
    group = make()
    for name in names:
        register(group, name)
        settle(group)
    return group


def settle(group: Group, now: float = 0.0) -> None:
    """Have every member give back what it has, as long as the group is changing."""
    while group.state.phase is Phase.PREPARING:
        for name, member in list(group.state.members.items()):
            register(group, name, now, member.generation)


def shares(group: Group) -> dict[str, list[int]]:
    return {
        name: sorted(number for _, number in m.assignment) for name, m in sorted(group.state.members.items())
    }


class TestRegistering:
    def test_the_first_gets_everything(self) -> None:
        group = make()
        registered = register(group, "a")
        assert registered == Registered(1, dict.fromkeys(P, -1), 10.0, rebalancing=False)
        assert group.changed

    def test_a_second_waits_until_the_first_has_given_back(self) -> None:
        group = stable("a")
        assert register(group, "b").rebalancing
        assert group.heartbeat("a", 1, now=1.0).rebalancing
        assert not register(group, "a", 1.0, generation=1).rebalancing
        assert shares(group) == {"a": [0, 1], "b": [2, 3]}
        assert group.registered("b").generation == 2

    def test_asking_again_tells_the_same_and_changes_nothing(self) -> None:
        group = stable("a", "b")
        group.changed = False
        before = group.registered("a")
        assert register(group, "a", 1.0, generation=0) == before
        assert register(group, "a", 1.0, generation=before.generation) == before
        assert not group.changed

    def test_a_late_copy_of_a_registration_gives_nothing_back(self) -> None:
        group = stable("a", "b")
        old = group.registered("a").generation - 1
        register(group, "c")
        answer = register(group, "a", 1.0, generation=old)
        assert answer.rebalancing
        assert answer.generation == old + 1
        assert not group.state.members["a"].ready

    def test_another_client_is_refused(self) -> None:
        group = stable("a")
        with pytest.raises(ConsumerIdInUseError, match="another client with consumer_id 'a'") as caught:
            register(group, "a", client_id="another")
        assert isinstance(caught.value, AlreadyMemberError)

    def test_one_who_is_new_but_thinks_otherwise_is_asked_again(self) -> None:
        group = stable("a")
        answer = register(group, "b", generation=7)
        assert answer.rebalancing
        assert answer.generation == 0
        register(group, "a", generation=1)
        phases = [group.state.phase]
        register(group, "b", generation=0)
        phases.append(group.state.phase)
        assert phases == [Phase.PREPARING, Phase.STABLE]

    def test_session_timeouts_are_the_members_own(self) -> None:
        group = make(session_timeout=5.0)
        assert register(group, "a").session_timeout == 5.0
        assert register(group, "a", session_timeout=7.0).session_timeout == 7.0
        assert group.next_deadline() == 7.0

    @pytest.mark.parametrize(
        "options",
        [
            {"topics": ()},
            {"topics": (TOPIC, TOPIC)},
            {"topics": (TopicSpec("t", 0),)},
            {"topics": (TopicSpec("", 1),)},
            {"topics": (TopicSpec("t", 2, (Place("S"),)),)},
            {"client_id": ""},
            {"client_id": "x" * 256},
            {"client_id": "\ud800"},
            {"client_id": "a\nb"},
            {"session_timeout": 0.05},
            {"session_timeout": math.nan},
            {"session_timeout": 3601.0},
        ],
    )
    def test_nonsense_is_refused(self, options: dict[str, Any]) -> None:
        group = make()
        with pytest.raises(GroupRequestError):
            register(group, "a", **options)
        assert not group.changed
        assert not group.state.members

    def test_limits(self) -> None:
        group = make(immediate=True, assignor="range")
        for number in range(MAX_MEMBERS):
            group.state.members[str(number)] = group.state.members.get("0") or make_member(group)
        with pytest.raises(GroupLimitError, match="1000 members"):
            register(group, "one too many")
        with pytest.raises(GroupLimitError, match="at most 10000 partitions, got 10001"):
            register(make(), "a", topics=(TopicSpec("t", 10_001),))


def make_member(group: Group) -> MemberState:
    register(group, "0")
    return group.state.members["0"]


class TestTopics:
    def test_a_topic_may_grow(self) -> None:
        group = stable("a")
        answer = register(group, "a", generation=1, topics=(TopicSpec("t", 6),))
        assert not answer.rebalancing
        assert len(answer.assignment) == 6
        # Who is behind does not make it smaller.
        assert len(register(group, "a", generation=2, topics=(TOPIC,)).assignment) == 6

    def test_a_topic_may_not_be_another(self) -> None:
        group = make()
        register(group, "a", topics=(TopicSpec("t", 1, (Place("S"),)),))
        for spec in (TopicSpec("t", 1, (Place("OTHER"),)), TopicSpec("t", 1), TopicSpec("t", 2)):
            with pytest.raises(TopicMismatchError, match="'t'"):
                register(group, "b", topics=(spec,))
        assert list(group.state.members) == ["a"]

    def test_places_of_an_earlier_version_go_with_the_first_member_that_gives_none(self) -> None:
        placed, bare = TopicSpec("t", 1, (Place("S"),)), TopicSpec("t", 1)
        group = make()
        register(group, "a", topics=(placed,))
        settle_with(group, {"a": (placed,)})
        group.commit("a", 1, [Commit(P[0], 5)])
        group.leave("a", client_id="client of a")
        for name in ("b", "c"):
            register(group, name, topics=(bare,))
        assert group.state.topics == {"t": bare}
        assert group.state.offsets == {P[0]: 5}
        with pytest.raises(TopicMismatchError):
            register(group, "a", topics=(placed,))

    def test_members_may_read_other_topics(self) -> None:
        group = stable("a")
        register(group, "b", topics=(TopicSpec("u", 2),))
        settle_with(group, {"a": (TOPIC,), "b": (TopicSpec("u", 2),)})
        assert shares(group) == {"a": [0, 1, 2, 3], "b": [0, 1]}

    def test_a_topic_can_go(self) -> None:
        group = stable("a")
        group.commit("a", 1, [Commit(P[0], 5)])
        group.set_topic("t", None)
        assert group.state.offsets == {}
        settle_with(group, {"a": (TopicSpec("u", 1),)})
        group.set_topic("never heard of", None)

    @pytest.mark.parametrize("steps", [[TopicSpec("t", 2)], [None], [None, TopicSpec("t", 2)]])
    def test_last_commit_of_its_reader_does_not_bring_the_offset_of_a_gone_partition_back(
        self, steps: list[TopicSpec | None]
    ) -> None:
        group = stable("a")
        group.commit("a", 1, [Commit(P[0], 5), Commit(P[3], 5)])
        for spec in steps:
            group.set_topic("t", spec)
        group.commit("a", 1, [Commit(P[0], 6), Commit(P[3], 6)])
        settle(group)  # registers four partitions, as if the topic had grown again
        kept = {P[0]: 6} if steps[0] is not None else {}
        assert group.state.offsets == kept
        group.commit("a", 2, [Commit(P[3], 1)])
        assert group.state.offsets == {**kept, P[3]: 1}

    def test_a_topic_that_nobody_reads_moves_nobody(self) -> None:
        group = make(topics={"old": TopicSpec("old", 1)})
        register(group, "a")
        group.changed = False
        group.set_topic("old", TopicSpec("old", 2))
        assert group.changed
        assert group.state.phase is Phase.STABLE


def settle_with(group: Group, topics: Mapping[str, tuple[TopicSpec, ...]]) -> None:
    while group.state.phase is Phase.PREPARING:
        for name, member in list(group.state.members.items()):
            register(group, name, generation=member.generation, topics=topics[name])


class TestTime:
    def test_the_dead_are_removed_and_the_rest_rebalanced(self) -> None:
        group = stable("a", "b")
        generation = group.state.generation
        group.heartbeat("a", generation, now=5.0)
        assert group.expire(9.9) == ()
        assert group.next_deadline() == 10.0
        assert group.expire(10.0) == ("b",)
        assert group.state.phase is Phase.PREPARING
        settle(group, 10.0)
        assert shares(group) == {"a": [0, 1, 2, 3]}

    def test_the_fenced_get_an_error_for_everything(self) -> None:
        group = stable("a", "b")
        generation = group.state.generation
        group.heartbeat("a", generation, now=5.0)
        group.expire(10.0)
        calls: list[Callable[[], object]] = [
            lambda: group.heartbeat("b", generation, now=10.0),
            lambda: group.commit("b", generation, [Commit(P[0], 1)]),
            lambda: group.leave("b"),
            lambda: group.assignment_of("b"),
        ]
        for call in calls:
            with pytest.raises(UnknownMemberError, match="register it again") as caught:
                call()
            assert isinstance(caught.value, FencedError | NotMemberError)
        settle(group, 10.0)
        with pytest.raises(StaleGenerationError, match=f"got {generation}"):
            group.heartbeat("a", generation, now=11.0)
        with pytest.raises(StaleGenerationError):
            group.commit("a", generation, [Commit(P[0], 1)])

    def test_another_client_of_the_same_id_does_not_pass_for_the_member(self) -> None:
        group = stable("a")
        with pytest.raises(UnknownMemberError):
            group.heartbeat("a", 1, now=1.0, client_id="the one before")
        with pytest.raises(UnknownMemberError):
            group.commit("a", 1, [], client_id="the one before")
        with pytest.raises(UnknownMemberError):
            group.leave("a", client_id="the one before")

    def test_a_stale_heartbeat_is_no_sign_of_life(self) -> None:
        group = stable("a")
        with pytest.raises(StaleGenerationError):
            group.heartbeat("a", 0, now=9.0)
        assert group.expire(10.0) == ("a",)

    def test_who_lives_but_does_not_give_back_is_removed(self) -> None:
        group = stable("a")
        register(group, "b", now=5.0)
        for now in (6.0, 9.0):
            assert group.heartbeat("a", 1, now=now).rebalancing
            register(group, "b", now=now)
            assert group.expire(now) == ()
        assert group.expire(10.0) == ("a",)
        assert shares(group) == {"b": [0, 1, 2, 3]}

    def test_after_a_restart_everybody_has_a_whole_session(self) -> None:
        group = stable("a", "b")
        again = Group(group.state, now=100.0)
        assert again.expire(109.9) == ()
        assert again.expire(110.0) == ("a", "b")
        assert again.state.phase is Phase.EMPTY
        assert again.next_deadline() == math.inf

    def test_generations_never_come_twice(self) -> None:
        group = stable("a")
        group.leave("a")
        assert group.state.generation == 2
        assert register(group, "a", 2.0, client_id="another").generation == 3


class TestEphemeral:
    def test_ephemeral_group_goes_with_its_last_member(self) -> None:
        group = make(ephemeral=True)
        register(group, "a")
        assert not group.gone
        group.leave("a")
        assert group.gone

    def test_ephemeral_group_goes_when_its_last_member_dies(self) -> None:
        group = make(ephemeral=True)
        register(group, "a")
        group.expire(10.0)
        assert group.gone

    def test_ephemeral_group_goes_if_nobody_joins(self) -> None:
        group = make(ephemeral=True)
        group.expire(59.9)
        assert not group.gone
        group.expire(60.0)
        assert group.gone

    def test_permanent_groups_stay_with_their_offsets(self) -> None:
        group = stable("a")
        group.commit("a", 1, [Commit(P[1], 5)])
        group.leave("a")
        assert not group.gone
        assert register(group, "a", 2.0, client_id="another").assignment[P[1]] == 5


class TestOffsets:
    def test_a_commit_never_goes_back_unless_it_says_so(self) -> None:
        group = stable("a")
        assert group.commit("a", 1, [Commit(P[0], 5)]) == {P[0]: 5}
        group.changed = False
        assert group.commit("a", 1, [Commit(P[0], 3)]) == {P[0]: 5}
        assert not group.changed
        assert group.commit("a", 1, [Commit(P[0], 3, rewind=True)]) == {P[0]: 3}
        assert group.changed
        assert group.committed([P[0], P[1]]) == {P[0]: 3, P[1]: -1}

    def test_each_partition_has_its_own_outcome(self) -> None:
        group = stable("a", "b")
        outcome = group.commit(
            "a", group.state.generation, [Commit(P[0], 1), Commit(P[3], 1), Commit(P[1], -1)]
        )
        assert outcome[P[0]] == 1
        assert isinstance(outcome[P[3]], NotAssignedError)
        assert isinstance(outcome[P[1]], GroupRequestError)
        unknown = TopicPartition("x", 0)
        assert isinstance(group.committed([unknown])[unknown], GroupError)

    def test_the_old_generation_may_commit_until_the_new_one(self) -> None:
        group = stable("a")
        register(group, "b")
        assert group.commit("a", 1, [Commit(P[0], 5)]) == {P[0]: 5}
        register(group, "a", generation=1)
        with pytest.raises(StaleGenerationError):
            group.commit("a", 1, [Commit(P[0], 6)])

    def test_a_rewind_reaches_the_members(self) -> None:
        group = stable("a")
        group.commit("a", 1, [Commit(P[0], 5)])
        group.rewind({P[0]: 2})
        assert group.heartbeat("a", 1, now=1.0).rebalancing
        # What is on its way of before does not undo it.
        assert group.commit("a", 1, [Commit(P[0], 6)]) == {P[0]: 2}
        assert register(group, "a", 1.0, generation=1).assignment[P[0]] == 2
        assert group.commit("a", 2, [Commit(P[0], 6)]) == {P[0]: 6}

    def test_creation_time_of_the_stream_stays_with_the_offset_until_a_rewind(self) -> None:
        group = stable("a")
        group.commit("a", 1, [Commit(P[0], 5, created_ns=100), Commit(P[1], 5)])
        assert not group.only_commits  # it is part of the record alone
        assert register(group, "a").created_ns == {P[0]: 100}
        group.changed = False
        group.commit("a", 1, [Commit(P[0], 6, created_ns=100), Commit(P[0], 7)])
        assert group.only_commits
        assert group.commit("a", 1, [Commit(P[1], 5, created_ns=200)]) == {P[1]: 5}
        assert register(group, "a").created_ns == {P[0]: 100, P[1]: 200}
        group.rewind({P[0]: 2})
        group.commit("a", 1, [Commit(P[0], 8, created_ns=100)])  # of before
        settle(group)
        assert register(group, "a").created_ns == {P[1]: 200}
        group.commit("a", 2, [Commit(P[0], 3, created_ns=300)])
        assert register(group, "a").created_ns == {P[0]: 300, P[1]: 200}
        group.set_topic("t", None)
        assert group.state.created_ns == {}

    def test_creation_time_of_the_stream_goes_back_by_a_seek_alone(self) -> None:
        group = stable("a")
        group.commit("a", 1, [Commit(P[0], 5, created_ns=200)])
        group.commit("a", 1, [Commit(P[0], 6, created_ns=100)])  # told by a broker that is behind
        assert register(group, "a").created_ns == {P[0]: 200}
        group.commit("a", 1, [Commit(P[0], 3, rewind=True)])
        assert register(group, "a").created_ns == {P[0]: 200}
        group.commit("a", 1, [Commit(P[0], 3, rewind=True, created_ns=100)])
        assert register(group, "a").created_ns == {P[0]: 100}

    def test_a_rewind_of_what_nobody_has_disturbs_nobody(self) -> None:
        group = make(topics={"t": TOPIC})
        group.rewind({P[0]: 2})
        assert group.state.phase is Phase.EMPTY
        assert register(group, "a").assignment[P[0]] == 2
        with pytest.raises(GroupRequestError, match=r"no partition x\[0\]"):
            group.rewind({TopicPartition("x", 0): 1})
        group.rewind({})


class TestAssignors:
    def test_the_users_own(self) -> None:
        def first_takes_all(situation: Situation) -> dict[str, list[TopicPartition]]:
            return {min(situation.members): situation.wanted()}

        group = Group(GroupState("g", assignor="mine"), now=0.0, assignors={"mine": first_takes_all})
        register(group, "a")
        register(group, "b")
        settle(group)
        assert shares(group) == {"a": [0, 1, 2, 3], "b": []}

    @pytest.mark.parametrize("fault", [lambda _: 1 / 0, lambda _: {}, lambda _: {"x": [1]}, lambda _: None])
    def test_one_that_fails_stops_nobody(self, fault: object) -> None:
        group = Group(GroupState("g", assignor="mine"), now=0.0, assignors={"mine": fault})  # type: ignore[dict-item]
        register(group, "a")
        assert shares(group) == {"a": [0, 1, 2, 3]}
        assert isinstance(group.assignor_failure, Exception)


class TestImmediate:
    """Groups of Liftbridge's own kind."""

    def test_partitions_move_at_once(self) -> None:
        group = make(immediate=True, ephemeral=True)
        first = register(group, "a")
        assert first.generation == 1
        second = register(group, "b")
        assert not second.rebalancing
        assert second.generation == 2
        with pytest.raises(StaleGenerationError):
            group.heartbeat("a", 1, now=1.0)
        assert not group.heartbeat("a", 2, now=1.0).rebalancing
        assert len(group.assignment_of("a")) == 2
        group.leave("a")
        assert len(group.assignment_of("b")) == 4
        group.set_topic("t", TopicSpec("t", 6))
        assert len(group.assignment_of("b")) == 6
