"""Administration of groups without being a member."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftenvelope._checks import MAX_INT64, as_integer, as_seconds
from liftenvelope._deadlines import Deadline
from liftenvelope._pb import groups_pb2 as pb
from liftenvelope._showing import html_table
from liftenvelope.errors import CallTimeoutError, GroupError, TransportError
from liftenvelope.group._topics import Topic, spec_of
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.calls import DEFAULT_PREFIX, GroupCalls
from liftenvelope.group.errors import UnknownGroupError, group_error
from liftenvelope.group.state import (
    DEFAULT_SESSION_TIMEOUT,
    Phase,
    TopicSpec,
    check_id,
    check_session_timeout,
    check_topics,
)
from liftenvelope.group.wire import offset_messages, raise_for, read_offsets, read_topics, topic_messages

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["GroupClient", "GroupInfo", "GroupList", "MemberInfo"]

#: Existing groups to name in the error of a missing one.
_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member of a group.

    Attributes:
        consumer_id: Id of the member.
        client_id: Id of the consumer process; a restarted process has a new one.
        topics: Topics that the member reads.
        assignment: Partitions of the member.
        session_timeout: Seconds of silence after which the member is removed.
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
        name: Name of the group.
        controller_id: Id of the coordinator that controls the group.
        controller_subject: Subject prefix of that coordinator.
        session_timeout: Default session timeout of members, in seconds.
        generation: Number of the current assignment.
        phase: Phase of the group.
        topics: Topics of the group.
        members: Members of the group.
        ephemeral: The group is deleted when its last member leaves.
        assignor: Name of the assignor.
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

    def __repr__(self) -> str:
        sizes = f"<{len(self.topics)} topics>, <{len(self.members)} members>"
        return f"GroupInfo({self.name!r}, {self.phase.name}, generation {self.generation}, {sizes})"

    def _repr_html_(self) -> str:
        title = f"{self.name}: {self.phase.name}, generation {self.generation}"
        rows = (
            (member.consumer_id, member.topics, [f"{topic}/{number}" for topic, number in member.assignment])
            for member in self.members
        )
        return html_table(title, ("member", "topics", "partitions"), rows, len(self.members))


@dataclass(frozen=True, slots=True)
class GroupList:
    """Result of :meth:`GroupClient.list_groups`.

    Attributes:
        groups: Groups that exist.
        unknown: Requested names without a group.
    """

    groups: tuple[GroupInfo, ...]
    unknown: tuple[str, ...] = ()


class GroupClient:
    """Lists, creates, deletes and rewinds groups, on your own NATS connection.

    Args:
        nc: A connected nats-py client.
        prefix: Prefix of the coordinators' subjects. Default ``liftenvelope.groups``.
        timeout: Seconds for a call. Default 5.

    Raises:
        UsageError: An argument is malformed.

    Example::

        client = GroupClient(nc)
        await client.create_group("billing", topics=[JetStreamTopic.of_stream("ORDERS", ["orders"])])
        print((await client.list_groups()).groups)
    """

    def __init__(self, nc: Client, *, prefix: str = DEFAULT_PREFIX, timeout: float = 5.0) -> None:
        self._calls = GroupCalls(nc, prefix=prefix, timeout=timeout)

    async def list_groups(self, *names: str, timeout: float | None = None) -> GroupList:
        """Return the groups with these names, or all groups. The list of all may be some milliseconds old.

        Raises:
            GroupUnavailableError: No coordinator can answer.
            GroupLimitError: The description of a group is larger than a NATS message may be.
            CallTimeoutError: No answer came in time.
            TransportError: The connection is closed or draining.
        """
        for name in names:
            check_id("group", name)
        deadline = Deadline(self._calls.timeout if timeout is None else as_seconds("timeout", timeout))
        groups, unknown = [], []
        for listed in await self._listed(names, deadline):
            group = listed
            if not names and group.error.code == pb.LIMIT_EXCEEDED:  # no room in the list, but alone
                [group] = await self._listed([group.name], deadline, stored=True)
            if group.error.code == pb.NO_SUCH_GROUP:
                unknown += [group.name] if names else []
                continue
            raise_for(group.error)
            groups.append(_info(group))
        return GroupList(tuple(groups), tuple(unknown))

    async def _listed(
        self, names: Sequence[str], deadline: Deadline, *, stored: bool = False
    ) -> Sequence[pb.Group]:
        request = pb.ListGroupsRequest(names=names, stored=stored)
        return (await self._calls.any("ListGroups", request, pb.ListGroupsResponse, deadline.left)).groups

    async def describe_group(self, name: str, *, timeout: float | None = None) -> GroupInfo:
        """Return one group.

        Raises:
            UnknownGroupError: The group does not exist; the message names groups that do.
            GroupUnavailableError, CallTimeoutError, TransportError: As for :meth:`list_groups`.
        """
        found = await self.list_groups(name, timeout=timeout)
        if not found.groups:
            others = sorted(group.name for group in (await self.list_groups(timeout=timeout)).groups)
            raise group_error(pb.NO_SUCH_GROUP, f"there is no group {name!r}: {_existing(others)}")
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
        """Create a group, or return the existing one if it has the same definition.

        Args:
            name: Name of the group.
            session_timeout: Seconds of silence after which a member is removed, unless the member sets its
                own, 0.1 to 3,600. Default 10.
            topics: Topics of the group. Members add their own topics in any case.
            ephemeral: Delete the group and its offsets when the last member leaves or expires.
            assignor: ``"sticky"``, ``"range"``, ``"round_robin"``, or a custom assignor of the coordinators.
            timeout: Seconds for the call. Default: the client's.

        Raises:
            GroupExistsError: A group with this name has another definition.
            GroupRequestError: An argument is malformed.
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
            None for each deleted name, otherwise the error.
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
        """Delete a group and its offsets. The group must be empty and not ephemeral.

        Raises:
            UnknownGroupError: The group does not exist.
            GroupNotEmptyError: The group has members.
            EphemeralGroupError: The group is ephemeral and deletes itself.
            GroupUnavailableError, CallTimeoutError, TransportError: As for :meth:`list_groups`.
        """
        request = pb.DeleteGroupRequest(names=[check_id("group", name)])
        is_sent = False

        async def attempt(left: float) -> pb.DeleteGroupResponse:
            nonlocal is_sent
            deadline, is_repeated = Deadline(left), is_sent
            try:
                await self._calls.locate(name, left)
                is_sent = True
                return await self._calls.controller_once(
                    name, "DeleteGroup", request, pb.DeleteGroupResponse, deadline.left
                )
            except UnknownGroupError:
                if not is_repeated:
                    raise
                return pb.DeleteGroupResponse()  # deleted by an earlier attempt, whose answer was lost

        await self._calls.patiently(attempt, timeout)

    async def rewind(
        self, group: str, offsets: Mapping[tuple[str, int], int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int | GroupError]:
        """Set the offsets at which a group continues, back or forth. Members switch to them at once.

        Args:
            group: Name of the group.
            offsets: Offset to read next, by topic and partition.
            timeout: Seconds for the call. Default: the client's.

        Returns:
            For each partition the offset that was set, or an error. An offset out of range is clamped to the
            nearest one that exists.

        Raises:
            UnknownGroupError: The group does not exist.
            CallTimeoutError: No answer came in time. The coordinator looks every partition up, and may still
                set the offsets; the call is not repeated.
            GroupLimitError: The offsets are set, and the answer is larger than a NATS message may be: rewind
                fewer partitions at a time.
            GroupUnavailableError, TransportError: As for :meth:`list_groups`.
        """
        wanted = {TopicPartition(*key): _offset(offset) for key, offset in offsets.items()}
        request = pb.RewindConsumerRequest(group=check_id("group", group), offsets=offset_messages(wanted))
        answer = await self._calls.controller(
            group, "RewindConsumer", request, pb.RewindConsumerResponse, timeout, slow=True
        )
        return read_offsets(answer.offsets)

    async def committed(
        self, group: str, partitions: Iterable[tuple[str, int]] = (), *, timeout: float | None = None
    ) -> dict[TopicPartition, int | GroupError]:
        """Return the offset that a group reads next in each partition, -1 where nothing was committed.

        Args:
            group: Name of the group.
            partitions: Topics and partition numbers; empty for all of the group's.
            timeout: Seconds for the call. Default: the client's.

        Raises:
            UnknownGroupError: The group does not exist.
            GroupLimitError: The answer is larger than a NATS message may be: ask for fewer partitions.
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
    # An offset beyond 64 bits is beyond any partition: the coordinator clamps it anyway.
    return min(max(as_integer("offset", offset), -1), MAX_INT64)


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


def _existing(names: list[str]) -> str:
    """Return the part of an error that tells which groups exist."""
    if not names:
        return "no group exists, create it first"
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"the groups are {', '.join(names[:_NAMED])}{more}"
