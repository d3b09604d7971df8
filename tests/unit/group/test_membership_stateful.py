"""A group and its members on a network that is slow, forgets, and repeats; and controllers that die.

The model is small: who believes to own what. Two that believe so at once are the one thing that must not be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from liftenvelope.group._controller.offsets import OffsetSlots
from liftenvelope.group._member.session import MemberSession, RequestKind
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.errors import ConsumerIdInUseError, MemberFencedError
from liftenvelope.group.membership import Commit, Group, Registered, Registration
from liftenvelope.group.state import GroupState, Phase, TopicSpec
from liftenvelope.group.wire import decode_group, encode_group

TOPIC = TopicSpec("t", 3)
IDS = ("a", "b", "c")
#: How often what happens in a storm.
WEIGHTS = {
    "ask": 12,
    "arrive": 12,
    "hear": 10,
    "time_passes": 8,
    "give_back": 6,
    "commit": 3,
    "all_goes_well": 2,
    "give_up_waiting": 1,
    "get_lost": 1,
    "come": 1,
    "die": 0.5,
    "another_takes_over": 0.5,
    "rewind": 0.3,
}
EVENTS = tuple(WEIGHTS)
OFTEN = (True, True, True, True, False)
SELDOM = (False,) * 9 + (True,)
Pick: TypeAlias = Callable[[Sequence[Any]], Any]


@dataclass(eq=False)
class Member:
    """A consumer as the shell around the session would be."""

    name: str
    client_id: str
    session: MemberSession = field(default_factory=MemberSession)
    held: dict[TopicPartition, int] = field(default_factory=dict)
    generation: int = 0
    #: What it waits for the answer of.
    waiting: Any = None
    dead: bool = False

    def owned(self, now: float) -> set[TopicPartition]:
        return set(self.held) if self.session.owns(now) and not self.dead else set()


@dataclass(eq=False)
class Request:
    member: Member
    do: RequestKind
    generation: int
    sent_at: float


class GroupMachine(RuleBasedStateMachine):
    """Everything happens in any order."""

    @initialize(
        timeout=st.sampled_from([1.0, 2.0]),
        assignor=st.sampled_from(["sticky", "range"]),
        members=st.integers(0, 3),
        apart=st.booleans(),
    )
    def begin(self, timeout: float, assignor: str, members: int, apart: bool) -> None:
        self.now = 1_000.0
        self.clients = 0
        self.members: list[Member] = []
        self.network: list[Request] = []
        self.answers: list[tuple[Request, Any]] = []
        self.rewound: set[TopicPartition] = set()
        state = GroupState("g", session_timeout=timeout, assignor=assignor, topics={"t": TOPIC})
        self.stored = encode_group(state)
        #: Offset keys that are newer than the record: revision and content by number.
        self.keys: dict[int, tuple[int, dict[TopicPartition, int]]] = {}
        self.slots = OffsetSlots()
        self.writes = 0
        self.apart = apart
        self.group = Group(state, now=self.now, deals_apart=apart)
        self.offsets: dict[TopicPartition, int] = {}
        self.generation = 0
        self.checked = self.checked_whole = -1
        for _ in range(members):
            self.come(lambda _: IDS[len(self.members)])
        for _ in range(10):
            self.all_goes_well(lambda choices: choices[0])

    # Members

    def come(self, pick: Pick) -> None:
        if len(self.members) < 4:
            self.clients += 1
            self.members.append(Member(pick(IDS), str(self.clients)))

    def die(self, pick: Pick) -> None:
        member = pick(self.members)
        member.dead = True
        self.members.remove(member)

    def ask(self, pick: Pick) -> None:
        member = pick(self.members)
        self.look_at_the_clock(member)
        if member.waiting is None and member.session.next(self.now).wait <= 0:
            action = member.session.next(self.now)
            request = Request(member, action.do, member.session.generation, self.now)
            member.waiting = request
            self.network.append(request)

    def give_up_waiting(self, pick: Pick) -> None:
        member = pick(self.members)
        if member.waiting is not None:
            member.waiting = None
            member.session.unanswered(self.now)

    def give_back(self, pick: Pick) -> None:
        if leaving := [member for member in self.members if member.session.is_leaving]:
            member = pick(leaving)
            member.held = {}
            member.session.given_back(self.now)

    def look_at_the_clock(self, member: Member) -> None:
        if member.session.expires(self.now):
            member.held = {}

    # The network

    def arrive(self, pick: Pick) -> None:
        if not self.network:
            return
        request = pick(self.network)
        if pick(OFTEN):
            self.network.remove(request)  # or it arrives again
        answer = self.answer(request)
        if self.store(pick(SELDOM)):
            self.answers.append((request, answer))

    def get_lost(self, pick: Pick) -> None:
        if self.network:
            self.network.remove(pick(self.network))

    def hear(self, pick: Pick) -> None:
        if self.answers:
            request, answer = pick(self.answers)
            self.answers.remove((request, answer))
            self.take(request, answer)

    def take(self, request: Request, answer: Any) -> None:
        member = request.member
        if member.dead or member.waiting is not request:
            return
        member.waiting = None
        self.look_at_the_clock(member)
        session = member.session
        if isinstance(answer, Registered):
            if answer.rebalancing:
                session.waits(answer.generation, answer.session_timeout, self.now)
            else:
                session.registered(answer.generation, answer.session_timeout, request.sent_at, self.now)
                member.held, member.generation = dict(answer.assignment), answer.generation
        elif isinstance(answer, MemberFencedError):
            if session.fenced(self.now):
                member.held = {}
        elif answer.rebalancing:
            if session.is_inside and session.generation == request.generation:
                session.rebalances(self.now)
        elif session.is_inside:
            session.beaten(request.sent_at, self.now)

    # The controller

    def answer(self, request: Request) -> Any:
        member = request.member
        self.group.expire(self.now)
        try:
            if request.do is RequestKind.HEARTBEAT:
                return self.group.heartbeat(member.name, request.generation, self.now, member.client_id)
            registration = Registration(
                consumer_id=member.name,
                client_id=member.client_id,
                topics=(TOPIC,),
                generation=request.generation,
            )
            return self.group.register(registration, self.now)
        except MemberFencedError as exc:
            return exc
        except ConsumerIdInUseError as exc:
            return MemberFencedError(str(exc))  # in effect: it asks again

    def store(self, fails: bool) -> bool:
        """Store the group, or throw it away."""
        if self.group.is_due:
            deque(self.group.deal(), maxlen=0)
        if not self.group.changed:
            return True
        if fails:
            self.another_takes_over(lambda choices: choices[0])
            return False
        self.writes += 1
        if self.group.only_commits:
            number, content = self.slots.next(self.group.commits)
            self.slots.stored(number, content)
            self.keys[number] = self.writes, content
        else:
            self.stored = encode_group(self.group.state)
            self.keys.clear()
            self.slots.clear()
        self.group.changed = False
        return True

    def another_takes_over(self, _: Pick) -> None:
        self.group = Group(self.read(), now=self.now, deals_apart=self.apart)
        self.slots = OffsetSlots()
        for key, (__, content) in sorted(self.keys.items(), key=lambda item: item[1][0]):
            self.slots.stored(key, content)

    def read(self) -> GroupState:
        """Return the group as stored in the record and the offset keys."""
        state = decode_group(self.stored)
        for _, content in sorted(self.keys.values(), key=lambda item: item[0]):
            state.offsets |= content
        return state

    def time_passes(self, pick: Pick) -> None:
        self.now += pick((0.02, 0.1, 0.4, 1.1))
        if self.group.next_deadline() <= self.now:
            self.group.expire(self.now)
            self.store(pick(SELDOM))

    def commit(self, pick: Pick) -> None:
        member = pick(self.members)
        if not member.held:
            return
        partition = pick(sorted(member.held))
        offset = max(member.held[partition] + pick((-2, 1, 3)), 0)
        owned = partition in member.owned(self.now)
        commits = [Commit(partition, offset)]
        try:
            outcome = self.group.commit(member.name, member.generation, commits, member.client_id)
        except MemberFencedError:
            assert not owned
            return
        if self.store(pick(SELDOM)):
            assert outcome[partition] == self.group.state.offsets.get(partition, -1)
            assert self.read().offsets == self.group.state.offsets

    def rewind(self, pick: Pick) -> None:
        partition, offset = TopicPartition("t", pick(range(TOPIC.partitions))), pick(range(20))
        self.group.rewind({partition: offset})
        self.store(False)
        self.offsets[partition] = offset

    def all_goes_well(self, _: Pick) -> None:
        """For a moment nothing is slow: every member that has something to ask gets its answer."""
        self.group.expire(self.now)
        self.store(False)
        for member in self.members:
            self.look_at_the_clock(member)
            if member.session.is_leaving:
                member.held = {}
                member.session.given_back(self.now)
            action = member.session.next(self.now)
            if action.wait > 0 or member.waiting is not None:
                continue
            request = Request(member, action.do, member.session.generation, self.now)
            member.waiting = request
            answer = self.answer(request)
            self.store(False)
            self.take(request, answer)

    @rule(seed=st.integers(0, 2**32))
    def storm(self, seed: int) -> None:
        """Much happens, some of it more often than the rest."""
        random = Random(seed)

        def pick(choices: Sequence[Any]) -> Any:
            return random.choice(choices)

        for _ in range(60):
            self.happen(random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0], pick)

    @rule(what=st.sampled_from(EVENTS), data=st.data())
    def one_thing(self, what: str, data: st.DataObject) -> None:
        self.happen(what, lambda choices: data.draw(st.sampled_from(choices)))

    def happen(self, what: str, pick: Pick) -> None:
        if self.members or what not in ("die", "ask", "give_up_waiting", "commit"):
            getattr(self, what)(pick)
            self.nobody_owns_what_another_owns()
            self.what_is_stored_never_goes_back()
            self.a_stable_group_has_given_everything_once()

    # What must always hold

    @invariant()
    def nobody_owns_what_another_owns(self) -> None:
        owned: set[TopicPartition] = set()
        for member in getattr(self, "members", []):
            mine = member.owned(self.now)
            assert not owned & mine
            owned |= mine

    @invariant()
    def what_is_stored_never_goes_back(self) -> None:
        if not hasattr(self, "stored"):
            return
        if self.writes == self.checked:
            return
        state = self.read()
        self.checked = self.writes
        assert state.generation >= self.generation
        self.generation = state.generation
        for partition, offset in self.offsets.items():
            assert state.offsets.get(partition, -1) >= offset
        self.offsets = dict(state.offsets)

    @invariant()
    def a_stable_group_has_given_everything_once(self) -> None:
        if not hasattr(self, "stored"):
            return
        if self.writes == self.checked_whole:
            return
        state = self.read()
        self.checked_whole = self.writes
        given = [p for member in state.members.values() for p in member.assignment]
        assert len(set(given)) == len(given)
        if state.phase is Phase.STABLE:
            assert len(given) == TOPIC.partitions
            assert all(member.generation == state.generation for member in state.members.values())
        assert (state.phase is Phase.EMPTY) == (not state.members)

    def teardown(self) -> None:
        """Left alone with a network that works, the group becomes stable, and everybody knows it."""
        if not hasattr(self, "members"):
            return
        self.network.clear()
        self.answers.clear()
        names = {member.name: member for member in self.members}
        self.members = list(names.values())
        for member in self.members:
            member.waiting = None
        for _ in range(60):
            self.now += 0.25
            self.all_goes_well(lambda choices: choices[0])
        owned = [p for member in self.members for p in member.owned(self.now)]
        assert sorted(owned) == [TopicPartition("t", number) for number in range(TOPIC.partitions)] * bool(
            self.members
        )


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=25, stateful_step_count=8)
