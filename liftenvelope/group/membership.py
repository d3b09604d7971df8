"""One group as its controller sees it: who is in it, who has what, how far it is, and who is dead.

No I/O and no clock: sans-io. Times are seconds of any clock that does not go back.

**The life of an assignment.** While the group is STABLE, each member has its partitions, in the group's
generation. When somebody comes, goes or dies, it gets PREPARING: the heartbeats of all members are answered
by ``rebalancing``. Each member then stops reading, commits, still in the old generation, and registers
again with that generation's number, which says that it has given everything back. Once all have, the
partitions are dealt out anew, in the next generation. Who is silent for its session timeout is removed. So is
who lives but does not give back: while the group is changing, the heartbeats of those who have not given back
are answered, but don't prolong their sessions. Whoever was removed, or comes with an old generation, gets a
:class:`MemberFencedError` for everything.

So a partition changes hands only after the one who had it has given it back, or was silent for so long that
it knows by itself that it has lost it: see :class:`~liftenvelope.group.session.MemberSession`.

**A group is changed by calls and stored by whoever calls.** After each call :attr:`Group.changed` says
whether :attr:`Group.state` must be stored, and :attr:`Group.gone` whether the group is to be deleted.
Nothing is told to anybody before it is stored; where that fails, the object is thrown away and made anew of
what is stored.

**Liftbridge's own group calls** are a second face of the same core, for groups that are ``immediate``:
there, partitions move at once, with a new generation, and it is the server that fences readers by the
group's epoch.

==============================  ============================================================================
call of Liftbridge's API        here
==============================  ============================================================================
JoinConsumerGroup               :meth:`Group.register`, with a client id that was never used before, so that
                                a second join is refused (:class:`ConsumerIdInUseError`). The group is made
                                by the first one, ``ephemeral`` and ``immediate``. The epoch is
                                :attr:`GroupState.generation`, the coordinator its controller.
LeaveConsumerGroup              :meth:`Group.leave`
FetchConsumerGroupAssignments   :meth:`Group.heartbeat` with the epoch as generation, then
                                :meth:`Group.assignment_of`. A :class:`StaleGenerationError` is "epoch
                                differs", and no sign of life; the member asks for the metadata and comes
                                again.
ReportConsumerGroupCoordinator  nothing: leases decide who is controller, not members
FetchMetadata(groups)           :attr:`Group.state`: controller and generation
a stream is deleted or grows    :meth:`Group.set_topic`
==============================  ============================================================================

The generation of a group that was made anew is above those it ever had, so that no zombie of the old one
fences the members of the new one out, as Liftbridge's epoch 0 allows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from liftenvelope.errors import GroupError
from liftenvelope.group.assignors import (
    ASSIGNORS,
    Assignment,
    Assignor,
    Situation,
    TopicPartition,
    checked,
    sticky,
)
from liftenvelope.group.errors import (
    ConsumerIdInUseError,
    GroupLimitError,
    GroupRequestError,
    NotAssignedError,
    StaleGenerationError,
    UnknownMemberError,
)
from liftenvelope.group.state import (
    MAX_MEMBERS,
    GroupState,
    MemberState,
    Phase,
    TopicSpec,
    check_id,
    check_session_timeout,
    check_topics,
    merged_topics,
)

__all__ = ["Beat", "Commit", "Group", "Registered", "Registration"]

#: Seconds after which an ephemeral group goes that nobody has ever joined.
_UNJOINED: Final = 60.0
_LARGEST_OFFSET: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a consumer says when it registers.

    Attributes:
        consumer_id: Its id in the group.
        client_id: Who it is: never that of another process, nor of an earlier life of this one.
        topics: What it reads.
        session_timeout: Seconds of silence after which it is dead, None for the group's.
        generation: Of the partitions that it has given back, 0 if it never had any.
    """

    consumer_id: str
    client_id: str
    topics: tuple[TopicSpec, ...]
    session_timeout: float | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Registered:
    """What a consumer has.

    Attributes:
        generation: The member's: of its assignment, 0 if it has none yet.
        assignment: Its partitions, each with the offset to begin at, -1 where nothing was committed.
        session_timeout: Seconds of silence after which it is dead.
        rebalancing: Whether that holds no more: it is to give its partitions back and register again, or
            has done so and is to wait.
    """

    generation: int
    assignment: dict[TopicPartition, int]
    session_timeout: float
    rebalancing: bool


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat.

    Attributes:
        generation: The group's.
        rebalancing: Whether the group is about to change.
    """

    generation: int
    rebalancing: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """How far a partition is.

    Attributes:
        partition: Which.
        offset: The offset that is to be read next.
        rewind: Whether it may be lower than before: the member went back on purpose.
    """

    partition: TopicPartition
    offset: int
    rewind: bool = False


class Group:
    """One group, in the hands of its controller.

    Args:
        state: The group as it is stored. It belongs to this object from now on.
        assignors: What deals out partitions, by name. Default: the three of this package.
        now: The time. Every member has a whole session timeout from here on.

    Attributes:
        state: The group as it is.
        changed: Whether that is to be stored. For the caller to put back to false.
        gone: Whether the group is no more, and to be deleted where it is stored.
        assignor_failure: What the group's own assignor did wrong, so that ``sticky`` dealt out instead. For
            the caller to take away.

    Example:
        >>> group = Group(GroupState("billing"), now=0.0)
        >>> topics = (TopicSpec("orders", 2),)
        >>> anna = Registration(consumer_id="anna", client_id="1", topics=topics)
        >>> group.register(anna, now=0.0).assignment
        {TopicPartition(topic='orders', partition=0): -1, TopicPartition(topic='orders', partition=1): -1}
        >>> group.register(Registration(consumer_id="ben", client_id="2", topics=topics), now=1.0).rebalancing
        True
        >>> group.heartbeat("anna", 1, now=2.0)
        Beat(generation=1, rebalancing=True)
        >>> again = Registration(consumer_id="anna", client_id="1", topics=topics, generation=1)
        >>> list(group.register(again, now=2.0).assignment)
        [TopicPartition(topic='orders', partition=0)]
    """

    def __init__(
        self, state: GroupState, *, now: float, assignors: Mapping[str, Assignor] = ASSIGNORS
    ) -> None:
        self.state = state
        self.changed = False
        self.gone = False
        self.assignor_failure: Exception | None = None
        self._assignors = assignors
        self._deadlines: dict[str, float] = {}
        #: Until when an ephemeral group may be without any member.
        self._joined_by = math.inf
        self.restart(now)

    # Time

    def restart(self, now: float) -> None:
        """Give every member a whole session timeout: nobody could have been heard until now."""
        state = self.state
        self._deadlines = {name: now + member.session_timeout for name, member in state.members.items()}
        self._joined_by = now + _UNJOINED if state.ephemeral and not state.members else math.inf

    def next_deadline(self) -> float:
        """When :meth:`expire` has something to do, unless something happens before; infinity for never."""
        return min((self._joined_by, *self._deadlines.values()))

    def expire(self, now: float) -> tuple[str, ...]:
        """Remove who is dead, and return their ids."""
        dead = {name for name, deadline in self._deadlines.items() if deadline <= now}
        if self._joined_by <= now:
            self.gone = self.changed = True
        if dead:
            self._remove(dead)
        return tuple(sorted(dead))

    # Members

    def register(self, request: Registration, now: float) -> Registered:
        """Take a consumer in, or take note that it has given its partitions back, or tell what it has.

        Raises:
            GroupRequestError: The request makes no sense.
            ConsumerIdInUseError: Another client has the consumer id.
            TopicMismatchError: The group knows a topic otherwise.
            GroupLimitError: There is no room for it.
        """
        topics = self._check(request)
        merged = merged_topics(self.state.topics, topics)
        timeout = self.state.session_timeout if request.session_timeout is None else request.session_timeout
        member = self.state.members.get(request.consumer_id)
        grown = any(
            name in self.state.topics and spec != self.state.topics[name] for name, spec in merged.items()
        )
        if merged != self.state.topics:
            self.state.topics, self.changed = merged, True
        if member is None:
            member = self._add(request, frozenset(topics), timeout)
            self._begin_change()
        elif member.topics != topics.keys() or grown:
            member.topics, self.changed = frozenset(topics), True
            self._begin_change()
        if member.session_timeout != timeout:
            member.session_timeout, self.changed = timeout, True
        self._deadlines[member.consumer_id] = now + timeout
        if self.state.phase is Phase.PREPARING and request.generation == member.generation:
            self.changed = self.changed or not member.ready
            member.ready = True
            self._end_change()
        return self._registered(member)

    def _check(self, request: Registration) -> dict[str, TopicSpec]:
        check_id("consumer_id", request.consumer_id)
        check_id("client_id", request.client_id)
        if request.session_timeout is not None:
            check_session_timeout(request.session_timeout)
        topics = check_topics(request.topics)
        if not topics:
            raise GroupRequestError("topics: expected at least one")
        member = self.state.members.get(request.consumer_id)
        if member is not None and member.client_id != request.client_id:
            raise ConsumerIdInUseError(
                f"group {self.state.name!r} has a member {request.consumer_id!r} already, another client's; "
                f"if that one is dead, it goes {member.session_timeout:g} s after it was heard last"
            )
        if member is None and len(self.state.members) >= MAX_MEMBERS:
            raise GroupLimitError(f"group {self.state.name!r} has {MAX_MEMBERS} members already")
        return topics

    def _add(self, request: Registration, topics: frozenset[str], timeout: float) -> MemberState:
        member = MemberState(request.consumer_id, request.client_id, topics, timeout)
        self.state.members[request.consumer_id] = member
        self._deadlines[request.consumer_id] = math.inf
        self._joined_by = math.inf
        return member

    def _registered(self, member: MemberState) -> Registered:
        rebalancing = self.state.phase is Phase.PREPARING
        assignment = {} if rebalancing else self.assignment_of(member.consumer_id)
        return Registered(member.generation, assignment, member.session_timeout, rebalancing)

    def assignment_of(self, consumer_id: str) -> dict[TopicPartition, int]:
        """The partitions of a member, each with the offset to begin at, -1 where nothing was committed.

        Raises:
            UnknownMemberError: There is no such member.
        """
        partitions = sorted(self._member(consumer_id).assignment)
        return {partition: self.state.offsets.get(partition, -1) for partition in partitions}

    def registered(self, consumer_id: str, client_id: str = "") -> Registered:
        """What a member has, without any change.

        Raises:
            UnknownMemberError: There is no such member.
        """
        return self._registered(self._member(consumer_id, client_id))

    def heartbeat(self, consumer_id: str, generation: int, now: float, client_id: str = "") -> Beat:
        """Take note that a member lives.

        Raises:
            UnknownMemberError: There is no such member.
            StaleGenerationError: It is behind; this is no sign of life.
        """
        member = self._current(consumer_id, generation, client_id)
        rebalancing = self.state.phase is Phase.PREPARING
        if member.ready or not rebalancing:
            self._deadlines[consumer_id] = now + member.session_timeout
        return Beat(self.state.generation, rebalancing)

    def leave(self, consumer_id: str, client_id: str = "") -> None:
        """Let a member go.

        Raises:
            UnknownMemberError: There is no such member.
        """
        self._remove({self._member(consumer_id, client_id).consumer_id})

    def _member(self, consumer_id: str, client_id: str = "") -> MemberState:
        member = self.state.members.get(consumer_id)
        if member is None or (client_id and member.client_id != client_id):
            raise UnknownMemberError(
                f"{consumer_id!r} is no member of group {self.state.name!r}: it never was, has left, or was "
                "silent for longer than its session timeout; register it again"
            )
        return member

    def _current(self, consumer_id: str, generation: int, client_id: str) -> MemberState:
        member = self._member(consumer_id, client_id)
        if generation != member.generation:
            raise StaleGenerationError(
                f"{consumer_id!r} of group {self.state.name!r} is in generation {member.generation}, "
                f"not {generation}: register it again"
            )
        return member

    def _remove(self, names: Collection[str]) -> None:
        for name in names:
            del self.state.members[name]
            del self._deadlines[name]
        self._begin_change()
        if self.state.ephemeral and not self.state.members:
            self.gone = True

    # Change

    def _begin_change(self) -> None:
        """Have the partitions dealt out anew: at once, or when the members have given theirs back."""
        state = self.state
        self.changed = True
        if state.phase is not Phase.PREPARING:
            for member in state.members.values():
                member.ready = state.immediate
            state.phase = Phase.PREPARING
        self._end_change()

    def _end_change(self) -> None:
        """Deal out the partitions, if all members are ready."""
        state = self.state
        # Who has no assignment yet has nothing to give back, but may not know yet that it is in the group.
        if any(not member.ready for member in state.members.values()) and not state.immediate:
            return
        state.generation += 1
        state.rewound.clear()
        state.phase = Phase.STABLE if state.members else Phase.EMPTY
        shares = self._deal()
        for name, member in state.members.items():
            member.assignment = shares[name]
            member.generation = state.generation
            member.ready = False

    def _deal(self) -> Assignment:
        state = self.state
        situation = Situation(
            {name: member.topics for name, member in state.members.items()},
            {name: spec.partitions for name, spec in state.topics.items()},
            {name: member.assignment for name, member in state.members.items()},
        )
        assignor = self._assignors.get(state.assignor, sticky)
        if assignor in ASSIGNORS.values():
            return dict(checked(situation, assignor(situation)))
        try:
            return checked(situation, assignor(situation))
        except Exception as exc:  # noqa: BLE001 - the user's own code: whatever it does, the group goes on
            self.assignor_failure = exc
            return sticky(situation)

    # Offsets

    def commit(
        self, consumer_id: str, generation: int, commits: Iterable[Commit], client_id: str = ""
    ) -> dict[TopicPartition, int | GroupError]:
        """Take note how far a member is; an offset never goes back unless the member says so.

        Returns:
            By partition the offset that stands now, or why the commit does not count.

        Raises:
            UnknownMemberError, StaleGenerationError: The member is fenced; nothing was done.
        """
        member = self._current(consumer_id, generation, client_id)
        outcome: dict[TopicPartition, int | GroupError] = {}
        for commit in commits:
            partition = commit.partition
            if partition not in member.assignment:
                outcome[partition] = NotAssignedError(f"{_text(partition)} is not {consumer_id!r}'s")
            elif not 0 <= commit.offset <= _LARGEST_OFFSET:
                outcome[partition] = GroupRequestError(f"{_text(partition)}: offset {commit.offset}")
            else:
                outcome[partition] = self._commit(commit)
        return outcome

    def _commit(self, commit: Commit) -> int:
        stored = self.state.offsets.get(commit.partition, -1)
        is_wanted = commit.offset > stored or (commit.rewind and commit.offset != stored)
        if not is_wanted or commit.partition in self.state.rewound:
            return stored
        self.state.offsets[commit.partition] = commit.offset
        self.changed = True
        return commit.offset

    def committed(
        self, partitions: Collection[TopicPartition] = ()
    ) -> dict[TopicPartition, int | GroupError]:
        """The offset that is to be read next of each partition, -1 where nothing was committed.

        Args:
            partitions: Which; all of the group's topics if empty.
        """
        wanted: Iterable[TopicPartition] = partitions or (
            TopicPartition(name, number)
            for name, spec in sorted(self.state.topics.items())
            for number in range(spec.partitions)
        )
        return {
            partition: self.state.offsets.get(partition, -1)
            if self.state.knows(partition)
            else self._unknown(partition)
            for partition in wanted
        }

    def rewind(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set offsets, back or forth, whoever reads the partitions: the members get them anew.

        Raises:
            GroupRequestError: There is no such partition; nothing was done.
        """
        for partition, offset in offsets.items():
            if not self.state.knows(partition):
                raise self._unknown(partition)
            if not 0 <= offset <= _LARGEST_OFFSET:
                raise GroupRequestError(f"{_text(partition)}: offset {offset}")
        if not offsets:
            return
        self.state.offsets.update(offsets)
        self.changed = True
        assigned = {p for member in self.state.members.values() for p in member.assignment}
        if touched := assigned & offsets.keys():
            # What its reader commits from now on is of before.
            self.state.rewound |= touched
            self._begin_change()

    def set_topic(self, name: str, spec: TopicSpec | None) -> None:
        """Take note that a topic has another number of partitions, or is no more (None).

        Offsets of partitions that are no more are dropped.
        """
        if self.state.topics.get(name) == spec:
            return
        if spec is None:
            self.state.topics.pop(name)
        else:
            self.state.topics[name] = check_topics([spec])[name]
        for partition in [p for p in self.state.offsets if not self.state.knows(p)]:
            del self.state.offsets[partition]
        self.changed = True
        if any(name in member.topics for member in self.state.members.values()):
            self._begin_change()

    def _unknown(self, partition: TopicPartition) -> GroupRequestError:
        return GroupRequestError(f"group {self.state.name!r} has no {_text(partition)}")


def _text(partition: TopicPartition) -> str:
    return f"{partition.topic}[{partition.partition}]"
