"""State of one group at its controller: members, assignment, committed offsets and expiry.

Sans-io. Times are seconds of any monotonic clock.

**Generations.** Each assignment has a number, the group's generation.

- EMPTY or STABLE: a join, leave, expiry, rewind or change of topics makes the group PREPARING, with no member
  ready. (In an ``immediate`` group every member is.)
- PREPARING: heartbeats are answered with ``rebalancing``. Each member stops reading, commits in the old
  generation, and registers with its number, which makes the member ready: it has given everything back.
- When all members are ready, the next generation begins with a new assignment: STABLE, or EMPTY.

**Expiry.** A member that is silent for its session timeout is removed. So is one that lives but does not give
back: while the group is PREPARING, heartbeats of members that are not ready do not extend their sessions.

**Fencing.** Every call of a removed member, or with an old generation, raises a :class:`MemberFencedError`.
Invariant: a partition gets a new owner only after the old one has given it back, or was silent for so long
that it knows its loss by itself: see :class:`~liftenvelope.group._member.session.MemberSession`.

**Storing.** After each call the caller stores :attr:`Group.state` if :attr:`Group.changed`, and deletes it if
:attr:`Group.gone`. If only :attr:`Group.commits` changed, storing these is enough. Nothing may be answered
before it is stored. If storing fails, the object is discarded and rebuilt from the stored state.

**Dealing apart.** With ``deals_apart`` a group whose members are all ready stays PREPARING until its caller
has run :meth:`Group.deal`, before it stores the state. Calls before that see the old generation: its commits
still count, and a member that joins takes part in the assignment.

**Liftbridge's own group calls** use the same core with ``immediate`` groups: partitions move at once, in a
new generation, and the server fences readers by the group's epoch.

==============================  ============================================================================
call of Liftbridge's API        here
==============================  ============================================================================
JoinConsumerGroup               :meth:`Group.register` with a client id that was never used, so that a second
                                join is refused. The first join creates the group, ``ephemeral`` and
                                ``immediate``. The epoch is :attr:`GroupState.generation`.
LeaveConsumerGroup              :meth:`Group.leave`
FetchConsumerGroupAssignments   :meth:`Group.heartbeat` with the epoch as generation, then
                                :meth:`Group.assignment_of`. A :class:`StaleGenerationError` is "epoch
                                differs": the member fetches the metadata and calls again.
ReportConsumerGroupCoordinator  no effect: leases choose the controller, not members
FetchMetadata(groups)           :attr:`Group.state`: controller and generation
stream deleted or grown         :meth:`Group.set_topic`
==============================  ============================================================================

A group that is created again starts above every generation that a group of its name ever had. So a zombie of
the old group can't fence the members of the new one, as it can with Liftbridge's epoch 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from typing import Final

from liftenvelope.errors import GroupError
from liftenvelope.group._requests import Beat, Commit, Registered, Registration
from liftenvelope.group.assignors import (
    ASSIGNORS,
    Assignment,
    Assignor,
    Situation,
    TopicPartition,
    checked,
    sticky,
    sticky_steps,
    without_pauses,
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
    name_of,
    offset_error,
)

__all__ = ["Beat", "Commit", "Group", "Registered", "Registration"]

#: Seconds after which an ephemeral group is deleted that no member has ever joined.
_UNJOINED: Final = 60.0


class Group:
    """One group at its controller.

    Args:
        state: Stored state of the group. The object owns it from now on.
        assignors: Assignors by name. Default: the three built-in ones.
        now: Current time. The session timeout of every member starts here.
        deals_apart: The caller calls :meth:`deal` when the group :attr:`is_due`, before it stores the state.
            So a long assignment does not block an event loop. Default: partitions are assigned within calls.

    Attributes:
        state: Current state of the group.
        commits: Offsets that have increased by commits since the state was stored.
        gone: The group must be deleted.
        assignor_failure: Error of the group's custom assignor, which made ``sticky`` take over. The
            caller resets this.

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
        self,
        state: GroupState,
        *,
        now: float,
        assignors: Mapping[str, Assignor] = ASSIGNORS,
        deals_apart: bool = False,
    ) -> None:
        self.state = state
        self.commits: dict[TopicPartition, int] = {}
        self.gone = False
        self.assignor_failure: Exception | None = None
        self._assignors = assignors
        self._deals_apart = deals_apart
        self._more_than_commits = False
        self._deadlines: dict[str, float] = {}
        #: Time by which an ephemeral group without members must be joined.
        self._joined_by = math.inf
        self.restart(now)

    @property
    def changed(self) -> bool:
        """True if something must be stored. The caller sets it to False after that."""
        return self._more_than_commits or bool(self.commits)

    @changed.setter
    def changed(self, is_changed: bool) -> None:
        self._more_than_commits = is_changed
        if not is_changed:
            self.commits = {}

    @property
    def only_commits(self) -> bool:
        """True if nothing but :attr:`commits` must be stored."""
        return bool(self.commits) and not self._more_than_commits

    # Time

    def restart(self, now: float) -> None:
        """Restart the session timeout of every member, because no heartbeat could be received until now."""
        state = self.state
        self._deadlines = {name: now + member.session_timeout for name, member in state.members.items()}
        self._joined_by = now + _UNJOINED if state.ephemeral and not state.members else math.inf

    def next_deadline(self) -> float:
        """Return the time at which :meth:`expire` must be called next; infinity for never."""
        return min((self._joined_by, *self._deadlines.values()))

    def expire(self, now: float) -> tuple[str, ...]:
        """Remove members whose sessions have expired, and return their ids."""
        dead = {name for name, deadline in self._deadlines.items() if deadline <= now}
        if self._joined_by <= now:
            self.gone = self.changed = True
        if dead:
            self._remove(dead)
        return tuple(sorted(dead))

    # Members

    def register(self, request: Registration, now: float) -> Registered:
        """Add a consumer, or mark it ready, or repeat its assignment.

        Raises:
            GroupRequestError: The request is malformed.
            ConsumerIdInUseError: Another client is a member with this consumer id.
            TopicMismatchError: The group knows a topic with other places.
            GroupLimitError: The group has its maximum of members or partitions.
        """
        topics = self._check(request)
        merged = merged_topics(self.state.topics, topics, self.state.is_read_by_others(request.consumer_id))
        timeout = self.state.session_timeout if request.session_timeout is None else request.session_timeout
        member = self.state.members.get(request.consumer_id)
        grown = any(
            merged[name] != spec for name, spec in self.state.topics.items() if merged[name] is not spec
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
            if not member.ready:
                member.ready = self.changed = True
            self._end_change()
        return self._registered(member)

    def _check(self, request: Registration) -> dict[str, TopicSpec]:
        check_id("consumer_id", request.consumer_id)
        check_id("client_id", request.client_id)
        if request.session_timeout is not None:
            check_session_timeout(request.session_timeout)
        topics = check_topics(request.topics)
        if not topics:
            raise GroupRequestError("topics must name at least one topic, got none")
        member = self.state.members.get(request.consumer_id)
        if member is not None and member.client_id != request.client_id:
            raise ConsumerIdInUseError(
                f"group {self.state.name!r} has another client with consumer_id {request.consumer_id!r}; "
                f"if that one is dead, its session ends {member.session_timeout:g} s after its last heartbeat"
            )
        if member is None and len(self.state.members) >= MAX_MEMBERS:
            raise GroupLimitError(f"group {self.state.name!r} already has {MAX_MEMBERS} members, the maximum")
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
        known = self.state.created_ns
        created_ns = {partition: known[partition] for partition in assignment if partition in known}
        return Registered(member.generation, assignment, member.session_timeout, rebalancing, created_ns)

    def assignment_of(self, consumer_id: str) -> dict[TopicPartition, int]:
        """Return a member's partitions, each with its start offset, -1 where nothing was committed.

        Raises:
            UnknownMemberError: The consumer is not a member.
        """
        partitions = sorted(self._member(consumer_id).assignment)
        return {partition: self.state.offsets.get(partition, -1) for partition in partitions}

    def registered(self, consumer_id: str, client_id: str = "") -> Registered:
        """Return a member's assignment without any change.

        Raises:
            UnknownMemberError: The consumer is not a member.
        """
        return self._registered(self._member(consumer_id, client_id))

    def heartbeat(self, consumer_id: str, generation: int, now: float, client_id: str = "") -> Beat:
        """Record a heartbeat and extend the member's session, unless it still has to give back.

        Raises:
            UnknownMemberError: The consumer is not a member.
            StaleGenerationError: The generation is not the member's; the session is not extended.
        """
        member = self._current(consumer_id, generation, client_id)
        rebalancing = self.state.phase is Phase.PREPARING
        if member.ready or not rebalancing:
            self._deadlines[consumer_id] = now + member.session_timeout
        return Beat(self.state.generation, rebalancing)

    def leave(self, consumer_id: str, client_id: str = "") -> None:
        """Remove a member that leaves.

        Raises:
            UnknownMemberError: The consumer is not a member.
        """
        self._remove({self._member(consumer_id, client_id).consumer_id})

    def _member(self, consumer_id: str, client_id: str = "") -> MemberState:
        member = self.state.members.get(consumer_id)
        if member is None or (client_id and member.client_id != client_id):
            raise UnknownMemberError(
                f"{consumer_id!r} is not a member of group {self.state.name!r}: it never joined, has left, "
                "or its session expired; register it again"
            )
        return member

    def _current(self, consumer_id: str, generation: int, client_id: str) -> MemberState:
        member = self._member(consumer_id, client_id)
        if generation != member.generation:
            raise StaleGenerationError(
                f"{consumer_id!r} of group {self.state.name!r} is in generation {member.generation}, "
                f"got {generation}: register it again"
            )
        return member

    def _remove(self, names: Collection[str]) -> None:
        for name in names:
            del self.state.members[name]
            del self._deadlines[name]
        self._begin_change()
        if self.state.ephemeral and not self.state.members:
            self.gone = True

    # Rebalancing

    def _begin_change(self) -> None:
        """Start a new assignment: at once for ``immediate`` groups, else when all members are ready."""
        state = self.state
        self.changed = True
        if state.phase is not Phase.PREPARING:
            for member in state.members.values():
                member.ready = state.immediate
            state.phase = Phase.PREPARING
        self._end_change()

    def _end_change(self) -> None:
        """Assign the partitions if all members are ready, unless the caller does."""
        state = self.state
        # A member without an assignment has nothing to give back, but may not know yet that it has joined.
        if any(not member.ready for member in state.members.values()) and not state.immediate:
            return
        if not self.is_due:
            self._begin_generation(without_pauses(self._shares()))

    @property
    def is_due(self) -> bool:
        """True if the caller must call :meth:`deal`: all members have given their partitions back."""
        state = self.state
        return (
            self._deals_apart
            and not state.immediate
            and state.phase is Phase.PREPARING
            and bool(state.members)
            and all(member.ready for member in state.members.values())
        )

    def deal(self) -> Iterator[None]:
        """Assign the partitions of a group that is due, with a pause every few milliseconds.

        Heartbeats may be recorded in the pauses. Any other change has to wait for the end.
        """
        self._begin_generation((yield from self._shares()))

    def _begin_generation(self, shares: Assignment) -> None:
        state = self.state
        state.generation += 1
        state.rewound.clear()
        state.phase = Phase.STABLE if state.members else Phase.EMPTY
        for name, member in state.members.items():
            member.assignment = shares[name]
            member.generation = state.generation
            member.ready = False

    def _shares(self) -> Generator[None, None, Assignment]:
        state = self.state
        situation = Situation(
            {name: member.topics for name, member in state.members.items()},
            {name: spec.partitions for name, spec in state.topics.items()},
            {name: member.assignment for name, member in state.members.items()},
        )
        assignor = self._assignors.get(state.assignor, sticky)
        if assignor is sticky:
            return (yield from sticky_steps(situation))
        if assignor in ASSIGNORS.values():
            return {name: frozenset(share) for name, share in assignor(situation).items()}
        try:
            return checked(situation, assignor(situation))
        except Exception as exc:  # noqa: BLE001 - user code: the group must survive any failure of it
            self.assignor_failure = exc
            return (yield from sticky_steps(situation))

    # Offsets

    def commit(
        self, consumer_id: str, generation: int, commits: Iterable[Commit], client_id: str = ""
    ) -> dict[TopicPartition, int | GroupError]:
        """Store a member's progress. An offset never goes back without ``rewind``.

        Returns:
            For each partition the offset that is committed now, or the error that refused the commit.

        Raises:
            UnknownMemberError, StaleGenerationError: The member is fenced. Nothing was committed.
        """
        member = self._current(consumer_id, generation, client_id)
        outcome: dict[TopicPartition, int | GroupError] = {}
        for commit in commits:
            partition = commit.partition
            if partition not in member.assignment:
                outcome[partition] = NotAssignedError(f"{name_of(partition)} is not {consumer_id!r}'s")
            elif (error := offset_error(partition, commit.offset)) is not None:
                outcome[partition] = error
            else:
                outcome[partition] = self._commit(commit)
        return outcome

    def _commit(self, commit: Commit) -> int:
        stored = self.state.offsets.get(commit.partition, -1)
        if commit.partition in self.state.rewound:
            return stored
        known = self.state.created_ns.get(commit.partition, 0)
        if commit.created_ns > known or (commit.rewind and 0 < commit.created_ns < known):
            self.state.created_ns[commit.partition] = commit.created_ns
            self.changed = True
        is_wanted = commit.offset > stored or (commit.rewind and commit.offset != stored)
        if not is_wanted:
            return stored
        self.state.offsets[commit.partition] = commit.offset
        if stored < 0 or commit.offset < stored:
            # The record gets these. Earlier versions read it alone, and must not choose another start for a
            # partition, nor undo a seek.
            self.changed = True
        else:
            self.commits[commit.partition] = commit.offset
        return commit.offset

    def committed(
        self, partitions: Collection[TopicPartition] = ()
    ) -> dict[TopicPartition, int | GroupError]:
        """Return the offset to read next of each partition, -1 where nothing was committed.

        Args:
            partitions: Partitions to look up; all of the group's topics if empty.
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
        """Set offsets, back or forth. If members read the partitions, the group rebalances.

        Raises:
            GroupRequestError: A partition does not exist, or an offset is out of range. Nothing was changed.
        """
        for partition, offset in offsets.items():
            if not self.state.knows(partition):
                raise self._unknown(partition)
            if (error := offset_error(partition, offset)) is not None:
                raise error
        if not offsets:
            return
        self.state.offsets.update(offsets)
        for partition in offsets:
            self.state.created_ns.pop(partition, None)  # whoever rewinds means the stream of today
        self.changed = True
        if touched := self._assigned() & offsets.keys():
            # Until the next assignment, commits of the previous readers must not undo the rewind.
            self.state.rewound |= touched
            self._begin_change()

    def set_topic(self, name: str, spec: TopicSpec | None) -> None:
        """Change a topic's number of partitions, or remove the topic (None).

        Offsets of partitions that no longer exist are dropped.
        """
        if self.state.topics.get(name) == spec:
            return
        if spec is None:
            self.state.topics.pop(name)
        else:
            self.state.topics[name] = check_topics([spec])[name]
        for partition in [p for p in self.state.offsets if not self.state.knows(p)]:
            del self.state.offsets[partition]
            self.state.created_ns.pop(partition, None)
        self.changed = True
        if any(name in member.topics for member in self.state.members.values()):
            # Until the next assignment, commits of their readers must not bring the offsets back.
            self.state.rewound |= {
                partition for partition in self._assigned() if not self.state.knows(partition)
            }
            self._begin_change()

    def _assigned(self) -> set[TopicPartition]:
        return {partition for member in self.state.members.values() for partition in member.assignment}

    def _unknown(self, partition: TopicPartition) -> GroupRequestError:
        return GroupRequestError(f"group {self.state.name!r} has no partition {name_of(partition)}")
