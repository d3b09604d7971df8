"""What can be done about groups without being a member."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftenvelope._pb import groups_pb2 as pb
from liftenvelope.errors import CallTimeoutError, GroupError, TransportError, UsageTypeError
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.calls import DEFAULT_PREFIX, GroupCalls
from liftenvelope.group.errors import group_error
from liftenvelope.group.state import (
    DEFAULT_SESSION_TIMEOUT,
    Phase,
    TopicSpec,
    check_id,
    check_session_timeout,
    check_topics,
)
from liftenvelope.group.topics import Topic, spec_of
from liftenvelope.group.wire import offset_messages, raise_for, read_offsets, read_topics, topic_messages

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["GroupClient", "GroupInfo", "GroupList", "MemberInfo"]


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member of a group.

    Attributes:
        consumer_id: Its id.
        client_id: Which life of which process.
        topics: What it reads.
        assignment: Its partitions.
        session_timeout: Seconds of silence after which it is taken for dead.
    """

    consumer_id: str
    client_id: str
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]
    session_timeout: float


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group.

    Attributes:
        name: Its name.
        controller_id: The coordinator that has it.
        controller_subject: Where that one is asked.
        session_timeout: Seconds of silence after which members are taken for dead.
        generation: Counts its assignments.
        phase: Where it stands.
        topics: What is read.
        members: Who is in it.
        ephemeral: Whether it goes with its last member.
        assignor: What deals out the partitions.
    """

    name: str
    controller_id: str
    controller_subject: str
    session_timeout: float
    generation: int
    phase: Phase
    topics: tuple[TopicSpec, ...]
    members: tuple[MemberInfo, ...]
    ephemeral: bool
    assignor: str


@dataclass(frozen=True, slots=True)
class GroupList:
    """Groups that were asked for.

    Attributes:
        groups: Those that there are.
        unknown: The names that there is no group of.
    """

    groups: tuple[GroupInfo, ...]
    unknown: tuple[str, ...] = ()


class GroupClient:
    """Lists, makes, deletes and rewinds groups, on a NATS connection that you already have.

    Args:
        nc: A connected nats-py client.
        prefix: What the coordinators' subjects begin with. Default ``liftenvelope.groups``.
        timeout: How long a call may take in seconds. Default 5.

    Raises:
        UsageError: An argument makes no sense.

    Example::

        client = GroupClient(nc)
        await client.create_group("billing", topics=[JetStreamTopic.of_stream("ORDERS", ["orders"])])
        print((await client.list_groups()).groups)
    """

    def __init__(self, nc: Client, *, prefix: str = DEFAULT_PREFIX, timeout: float = 5.0) -> None:
        self._calls = GroupCalls(nc, prefix=prefix, timeout=timeout)

    async def list_groups(self, *names: str, timeout: float | None = None) -> GroupList:
        """The groups of those names, or all. The list of all may be some milliseconds old.

        Raises:
            GroupUnavailableError: No coordinator can answer.
            CallTimeoutError: No answer came in time.
            TransportError: The connection is closed or draining.
        """
        for name in names:
            check_id("group", name)
        request = pb.ListGroupsRequest(names=names)
        answer = await self._calls.any("ListGroups", request, pb.ListGroupsResponse, timeout)
        groups, unknown = [], []
        for group in answer.groups:
            if group.error.code == pb.NO_SUCH_GROUP:
                unknown.append(group.name)
                continue
            raise_for(group.error)
            groups.append(_info(group))
        return GroupList(tuple(groups), tuple(unknown))

    async def describe_group(self, name: str, *, timeout: float | None = None) -> GroupInfo:
        """One group.

        Raises:
            UnknownGroupError: There is none of that name.
            GroupUnavailableError, CallTimeoutError, TransportError: As for :meth:`list_groups`.
        """
        found = await self.list_groups(name, timeout=timeout)
        if not found.groups:
            raise group_error(pb.NO_SUCH_GROUP, f"there is no group {name!r}")
        return found.groups[0]

    async def create_group(
        self,
        name: str,
        *,
        session_timeout: float = DEFAULT_SESSION_TIMEOUT,
        topics: Iterable[Topic] = (),
        ephemeral: bool = False,
        assignor: str = "sticky",
        timeout: float | None = None,
    ) -> GroupInfo:
        """Make a group. One that is there, and the same, is taken.

        Args:
            name: Its name.
            session_timeout: Seconds of silence after which members are taken for dead that don't say
                otherwise, 0.1 to 3,600. Default 10.
            topics: What will be read; members bring theirs in any case.
            ephemeral: Whether it goes, with its offsets, when the last member leaves or dies.
            assignor: ``"sticky"``, ``"range"``, ``"round_robin"``, or one that the coordinators were given.
            timeout: How long that may take in seconds. Default: the client's.

        Raises:
            GroupExistsError: There is one of that name that is defined otherwise.
            GroupRequestError: An argument makes no sense.
            GroupUnavailableError, CallTimeoutError, TransportError: As for :meth:`list_groups`.
        """
        request = pb.CreateGroupRequest(
            name=check_id("group", name),
            session_timeout_ms=round(check_session_timeout(session_timeout) * 1_000),
            topics=topic_messages(check_topics(map(spec_of, topics)).values()),
            ephemeral=ephemeral,
            assignor=check_id("assignor", assignor),
        )
        answer = await self._calls.any("CreateGroup", request, pb.CreateGroupResponse, timeout)
        return _info(answer.group)

    async def delete_groups(
        self, *names: str, timeout: float | None = None
    ) -> dict[str, GroupError | CallTimeoutError | TransportError | None]:
        """Delete groups that are empty and not ephemeral.

        Returns:
            By name None, or why it was not deleted.
        """
        outcome: dict[str, GroupError | CallTimeoutError | TransportError | None] = {}
        for name in dict.fromkeys(names):
            try:
                await self.delete_group(name, timeout=timeout)
            except (GroupError, CallTimeoutError, TransportError) as exc:
                outcome[name] = exc
            else:
                outcome[name] = None
        return outcome

    async def delete_group(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a group that is empty and not ephemeral, with its offsets.

        Raises:
            UnknownGroupError: There is none.
            GroupNotEmptyError: It has members.
            EphemeralGroupError: It goes by itself.
            GroupUnavailableError, CallTimeoutError, TransportError: As for :meth:`list_groups`.
        """
        request = pb.DeleteGroupRequest(names=[check_id("group", name)])
        answer = await self._calls.controller(name, "DeleteGroup", request, pb.DeleteGroupResponse, timeout)
        for result in answer.results:
            raise_for(result.error)

    async def rewind(
        self, group: str, offsets: Mapping[tuple[str, int], int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int | GroupError]:
        """Set the offsets that a group goes on at, back or forth. Its members, if any, get them at once.

        Args:
            group: Name of the group.
            offsets: The offset that is to be read next, by topic and partition.
            timeout: How long that may take in seconds. Default: the client's.

        Returns:
            The offsets that were really set: one that does not exist, or not any more, becomes the nearest
            that does. Or why none was set.

        Raises:
            UnknownGroupError: There is no such group.
            GroupUnavailableError, CallTimeoutError, TransportError: As for :meth:`list_groups`.
        """
        wanted = {TopicPartition(*key): _offset(offset) for key, offset in offsets.items()}
        request = pb.RewindConsumerRequest(group=check_id("group", group), offsets=offset_messages(wanted))
        answer = await self._calls.controller(
            group, "RewindConsumer", request, pb.RewindConsumerResponse, timeout
        )
        return read_offsets(answer.offsets)

    async def committed(
        self, group: str, partitions: Iterable[tuple[str, int]] = (), *, timeout: float | None = None
    ) -> dict[TopicPartition, int | GroupError]:
        """The offset that a group reads next in each partition, -1 where nothing was committed.

        Args:
            group: Name of the group.
            partitions: Which, as topics and numbers; all of the group's if empty.
            timeout: How long that may take in seconds. Default: the client's.

        Raises:
            UnknownGroupError: There is no such group.
            GroupUnavailableError, CallTimeoutError, TransportError: As for :meth:`list_groups`.
        """
        request = pb.FetchOffsetsRequest(
            group=check_id("group", group),
            partitions=[pb.TopicPartition(topic=topic, partition=number) for topic, number in partitions],
        )
        answer = await self._calls.controller(
            group, "FetchOffsets", request, pb.FetchOffsetsResponse, timeout
        )
        return read_offsets(answer.offsets)


def _offset(offset: object) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise UsageTypeError(f"offsets must be int, not {offset!r}")
    # What is beyond 64 bits is beyond any partition: it is clamped all the same.
    return min(max(offset, -1), 2**63 - 1)


def _info(group: pb.Group) -> GroupInfo:
    return GroupInfo(
        name=group.name,
        controller_id=group.controller.id,
        controller_subject=group.controller.subject,
        session_timeout=group.session_timeout_ms / 1_000,
        generation=group.generation,
        phase=Phase(group.phase),
        topics=read_topics(group.topics),
        members=tuple(_member(member) for member in group.members),
        ephemeral=group.ephemeral,
        assignor=group.assignor,
    )


def _member(member: pb.Member) -> MemberInfo:
    return MemberInfo(
        consumer_id=member.consumer_id,
        client_id=member.client_id,
        topics=tuple(member.topics),
        assignment=tuple(TopicPartition(one.topic, one.partition) for one in member.assignment),
        session_timeout=member.session_timeout_ms / 1_000,
    )
