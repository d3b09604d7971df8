"""Errors, names, leases and messages of groups: small things that others build upon."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._pb import groups_pb2 as pb
from liftenvelope.errors import FencedError, GroupError, UsageError, UsageTypeError
from liftenvelope.group._controller.leases import Peer, Peers
from liftenvelope.group._topics import JetStreamTopic, spec_of
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.errors import CoordinatorDefectError, ErrorCode, code_of, group_error
from liftenvelope.group.names import check_prefix, check_token, token_of
from liftenvelope.group.state import MAX_PARTITIONS, GroupState, MemberState, Phase, Place, TopicSpec
from liftenvelope.group.wire import (
    decode_group,
    decode_offsets,
    encode_group,
    encode_offsets,
    error_message,
    group_parts,
    offset_messages,
    raise_for,
    read_offsets,
    read_topics,
    topic_messages,
)

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
PARTITIONS = st.builds(TopicPartition, NAMES, st.integers(0, 2**32 - 1))
PLACES = st.builds(Place, NAMES, NAMES)
TOPICS = st.builds(TopicSpec, NAMES, st.integers(1, 2**31), st.lists(PLACES, max_size=3).map(tuple))
SECONDS = st.integers(100, 3_600_000).map(lambda ms: ms / 1_000)
MEMBERS = st.builds(
    MemberState,
    NAMES,
    NAMES,
    st.frozensets(NAMES, max_size=3),
    SECONDS,
    st.integers(0, 2**63),
    st.booleans(),
    st.frozensets(PARTITIONS, max_size=4),
)
GROUPS = st.builds(
    GroupState,
    name=NAMES,
    session_timeout=SECONDS,
    topics=st.lists(TOPICS, max_size=3).map(lambda specs: {spec.name: spec for spec in specs}),
    ephemeral=st.booleans(),
    assignor=NAMES,
    immediate=st.booleans(),
    generation=st.integers(0, 2**64 - 1),
    phase=st.sampled_from(Phase),
    members=st.lists(MEMBERS, max_size=3).map(lambda all_: {one.consumer_id: one for one in all_}),
    offsets=st.dictionaries(PARTITIONS, st.integers(-1, 2**63 - 1), max_size=4),
    rewound=st.sets(PARTITIONS, max_size=3),
    controller_id=NAMES,
    controller_incarnation=NAMES,
    offsets_revision=st.integers(0, 2**64 - 1),
)


class TestWire:
    @given(GROUPS, st.integers(1, 2**63 - 1))
    def test_groups_survive_being_stored(self, state: GroupState, created_ns: int) -> None:
        state.created_ns = dict.fromkeys(list(state.offsets)[::2], created_ns)
        assert decode_group(encode_group(state)) == state

    def test_parts_of_a_large_group_are_the_record(self) -> None:
        members = {
            f"m{number}": MemberState(f"m{number}", "c", frozenset({"t"}), 1.0) for number in range(250)
        }
        state = GroupState("g", 10.0, {"t": TopicSpec("t", 1)}, members=members)
        parts = list(group_parts(state))
        assert len(parts) == 6  # the fields, three times members, the offsets, the topics
        assert decode_group(b"".join(parts)) == decode_group(encode_group(state)) == state

    @given(st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1), max_size=4))
    def test_offsets_survive_being_stored(self, offsets: dict[TopicPartition, int]) -> None:
        assert decode_offsets(encode_offsets(offsets)) == offsets

    @given(st.binary(max_size=60))
    def test_garbage_is_an_error_or_offsets(self, data: bytes) -> None:
        try:
            assert isinstance(decode_offsets(data), dict)
        except CoordinatorDefectError:
            return

    @given(st.binary(max_size=60))
    def test_garbage_is_an_error_or_a_group(self, data: bytes) -> None:
        try:
            assert isinstance(decode_group(data), GroupState)
        except CoordinatorDefectError:
            return

    @given(st.lists(TOPICS, max_size=3))
    def test_topics(self, specs: list[TopicSpec]) -> None:
        assert read_topics(topic_messages(specs)) == tuple(specs)

    def test_topics_that_no_group_may_have_are_not_kept(self) -> None:
        allowed, refused = (
            [pb.Topic(name="t", places=[pb.Place()] * places)]
            for places in (MAX_PARTITIONS, 2 * MAX_PARTITIONS)
        )
        assert read_topics(allowed) is read_topics(allowed)
        assert read_topics(refused) == read_topics(refused)
        assert read_topics(refused) is not read_topics(refused)

    def test_offsets_and_their_errors(self) -> None:
        good, bad = TopicPartition("t", 1), TopicPartition("t", 2)
        read = read_offsets(offset_messages({good: 5, bad: group_error(12, "not yours")}))
        assert read[good] == 5
        assert repr(read[bad]) == "NotAssignedError('not yours')"


class TestErrors:
    def test_every_code_has_its_error_and_back(self) -> None:
        assert {code.name: code.value for code in ErrorCode} == dict(pb.ErrorCode.items())
        for code in ErrorCode:
            if code is ErrorCode.OK:
                continue
            error = group_error(code, "why")
            assert code_of(error) is code
            assert type(pickle.loads(pickle.dumps(error))) is type(error)
            with pytest.raises(type(error), match="why"):
                raise_for(error_message(error))
        raise_for(pb.Error())

    def test_an_unknown_code_keeps_its_number(self) -> None:
        assert "99" in str(group_error(99, "new"))
        assert code_of(FencedError("of another package")) is ErrorCode.INTERNAL
        assert issubclass(CoordinatorDefectError, GroupError)


class TestNames:
    @given(st.sets(NAMES, min_size=2, max_size=2))
    def test_different_names_give_different_tokens(self, names: set[str]) -> None:
        one, other = map(token_of, names)
        assert one != other
        assert not set(one) & set(" .*>\t\r\n")
        assert one.isascii()

    @pytest.mark.parametrize("token", ["", "a.b", "a b", "é", "x" * 65])
    def test_no_tokens(self, token: str) -> None:
        with pytest.raises(UsageError, match="coordinator_id"):
            check_token("coordinator_id", token)

    def test_prefixes(self) -> None:
        assert check_prefix("a.b-c._d") == "a.b-c._d"
        for prefix in ("", ".a", "a.", "a..b", "a.*", "a b"):
            with pytest.raises(UsageError, match="prefix"):
                check_prefix(prefix)
        with pytest.raises(UsageTypeError):
            check_prefix(None)


class TestTopics:
    def test_what_makes_no_sense(self) -> None:
        for make in (
            lambda: JetStreamTopic("", (Place("S"),)),
            lambda: JetStreamTopic("t", ()),
            lambda: JetStreamTopic.of_streams("t", ["a.b"]),
            lambda: JetStreamTopic.of_streams("t", ["S", "S"]),
            lambda: JetStreamTopic.of_stream("S", ["a..b"]),
            lambda: JetStreamTopic.of_stream("S", "orders"),
            lambda: JetStreamTopic.of_streams("t", "S"),
            lambda: spec_of("t"),  # type: ignore[arg-type]
        ):
            with pytest.raises(ValueError, match=r"."):
                make()


def peer(name: str, incarnation: str = "1", lease: float = 2.0, *assignors: str) -> Peer:
    return Peer(name, incarnation, lease, frozenset({"sticky", *assignors}))


class TestPeers:
    def test_whoever_is_silent_for_a_lease_is_overdue(self) -> None:
        peers = Peers()
        assert peers.observe({"a": (1, peer("a")), "b": (2, peer("b"))}, now=0.0) == []
        assert peers.observe({"a": (3, peer("a")), "b": (2, peer("b"))}, now=1.9) == []
        assert peers.observe({"a": (3, peer("a")), "b": (2, peer("b"))}, now=2.0) == [("b", 2)]
        assert peers.lives("b", "1")  # until its key is deleted
        peers.forget("b")
        assert not peers.lives("b", "1")
        assert peers.lives("a", "1")
        assert not peers.lives("a", "2")

    def test_each_has_the_lease_that_it_says(self) -> None:
        peers = Peers()
        keys = {"a": (1, peer("a", lease=10.0))}
        peers.observe(keys, now=0.0)
        assert peers.observe(keys, now=9.9) == []
        assert peers.observe(keys, now=10.0) == [("a", 1)]

    def test_who_gets_a_group(self) -> None:
        peers = Peers()
        assert peers.choose("g", "sticky") is None
        keys = {name: (1, peer(name)) for name in "abc"}
        keys["d"] = 1, peer("d", "1", 2.0, "mine")
        peers.observe(keys, now=0.0)
        names = [f"g{number}" for number in range(400)]
        chosen = {name: peers.choose(name, "sticky") for name in names}
        counts = [sum(one is not None and one.id == name for one in chosen.values()) for name in "abcd"]
        assert min(counts) > 50
        mine = peers.choose("g", "mine")
        assert mine is not None
        assert mine.id == "d"
        # When one goes, only its own groups move.
        peers.forget("a")
        for name in names:
            before, after = chosen[name], peers.choose(name, "sticky")
            assert before is not None
            assert after == before or before.id == "a"
