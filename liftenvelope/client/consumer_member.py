"""A consumer's place in its group: the calls that :mod:`liftenvelope.client.membership` asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from liftenvelope._pb import api_pb2
from liftenvelope.client.cluster import Deadline
from liftenvelope.client.events import GroupCoordinatorReported, GroupMemberExpired
from liftenvelope.client.failures import call_error, decode
from liftenvelope.client.membership import Change, Do, Membership, StreamPartition
from liftenvelope.client.partition_read import GroupIdentity
from liftenvelope.errors import (
    AlreadyMemberError,
    CallTimeoutError,
    FencedError,
    GroupError,
    LiftEnvelopeError,
    NoSuchGroupError,
    NoSuchStreamError,
    NotLeaderError,
    NotMemberError,
    TransportError,
)
from liftenvelope.rpc.status import CallNotProcessedError, RpcError

if TYPE_CHECKING:
    from liftenvelope.client.core import ClientCore

__all__ = ["GroupMember"]

_NS: Final = 1e9
# A coordinator that does not answer at all is given up after so many seconds, or at the next heartbeat.
_LONGEST_ATTEMPT: Final = 3.0


class GroupMember:
    """Keeps one consumer in its group.

    Attributes:
        state: What is known of the place.
        changes: What has become different, in order, for whoever acts on it.
        has_joined: Whether the group has, or may have, this member.
    """

    def __init__(self, core: ClientCore, group: str, consumer_id: str, streams: Sequence[str]) -> None:
        self.group = group
        self.consumer_id = consumer_id
        self.streams = tuple(streams)
        self.state = Membership()
        self.changes: asyncio.Queue[Change] = asyncio.Queue()
        self.has_joined = False
        self._core = core
        self._cluster = core._cluster
        self._notify = core._options.notify
        self._clock = asyncio.get_running_loop().time
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._error: LiftEnvelopeError | None = None

    def identity(self, key: StreamPartition) -> GroupIdentity:
        """Return the member as it may read a partition: in the generation that gave it the partition.

        Not in one that it has only heard of: there the partition may be another member's, whom servers
        would fence off.

        Raises:
            FencedError: The partition is not this member's any more.
        """
        if key not in self.state.assignment:
            stream, partition = key
            raise FencedError(
                f"{stream}[{partition}] does not belong to consumer {self.consumer_id!r} any more"
            )
        return GroupIdentity(self.group, self.state.assigned_epoch, self.consumer_id)

    async def settle(self, deadline: Deadline) -> None:
        """Join, and find out about the first assignment.

        Raises:
            NoSuchStreamError: A stream does not exist.
            LiftEnvelopeError: It could not be done in time.
        """
        while not self.state.is_settled:
            await self._step(deadline)
            await self._unless_settled(deadline)

    async def keep(self) -> None:
        """Keep the place, for ever."""
        while True:
            wait = self.state.next(self._clock()).wait
            if wait > 0:
                await self._pause(wait)
            else:
                await self._step(Deadline(self._core._options.timeout))

    async def confirm(self, deadline: Deadline) -> frozenset[StreamPartition]:
        """Ask the coordinator now; return the partitions that are this member's.

        Raises:
            NotMemberError: It is no member any more.
            LiftEnvelopeError: The coordinator could not be asked in time.
        """
        before = self.state.answers
        while not (self.state.answers > before and self.state.is_settled):
            if self.state.next(self._clock()).do in (Do.JOIN, Do.LEAVE):
                raise NotMemberError(
                    f"{self._about}: the consumer is no member any more, and is joining anew"
                )
            await self._step(deadline, hurried=self.state.is_settled)
            await self._unless_settled(deadline)
        return self.state.assignment

    def hurry(self) -> None:
        """Ask the coordinator soon: there is reason to think that the group has changed."""
        self.state.hurry(self._clock())
        self._wake.set()

    async def leave(self, deadline: Deadline) -> None:
        """Leave the group. It does not matter if the consumer is no member any more.

        Raises:
            LiftEnvelopeError: No server could be told in time. The member expires then.
        """
        request = api_pb2.LeaveConsumerGroupRequest(groupId=self.group, consumerId=self.consumer_id)
        answer = api_pb2.LeaveConsumerGroupResponse
        try:
            await self._core._call("LeaveConsumerGroup", request, answer, deadline, self._about)
        except (NotMemberError, NoSuchGroupError):
            return

    @property
    def _about(self) -> str:
        return f"group {self.group!r}, consumer {self.consumer_id!r}"

    def _too_late(self) -> LiftEnvelopeError:
        text = f"{self._about}: the group's coordinator gave no assignment in time"
        return self._error or CallTimeoutError(text)

    async def _unless_settled(self, deadline: Deadline) -> None:
        """Wait for the next attempt, if one is needed and there is time for it."""
        if self.state.is_settled:
            return
        if deadline.is_over:
            raise self._too_late()
        await asyncio.sleep(min(self.state.next(self._clock()).wait, deadline.left))

    async def _pause(self, seconds: float) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _step(self, deadline: Deadline, *, hurried: bool = False) -> None:
        """Do what is next, if it is time for it."""
        async with self._lock:
            if hurried:
                self.state.hurry(self._clock())
            action = self.state.next(self._clock())
            if action.wait > 0:  # another task has done it in the meantime
                return
            match action.do:
                case Do.JOIN:
                    await self._join(deadline)
                case Do.LEAVE:
                    await self._leave_first(deadline)
                case Do.LOCATE:
                    await self._locate()
                case Do.REPORT:
                    await self._report()
                case Do.HEARTBEAT:
                    await self._heartbeat()

    async def _join(self, deadline: Deadline) -> None:
        request = api_pb2.JoinConsumerGroupRequest(
            groupId=self.group, consumerId=self.consumer_id, streams=self.streams
        )
        answer = api_pb2.JoinConsumerGroupResponse
        state, before = self.state, self.has_joined
        self.has_joined = True
        try:
            found = await self._core._call("JoinConsumerGroup", request, answer, deadline, self._about)
        except NoSuchStreamError:
            self.has_joined = False
            raise
        except (AlreadyMemberError, TransportError, CallTimeoutError) as exc:
            self._error = exc
            if isinstance(exc, CallNotProcessedError) and not before:
                self.has_joined = False
                state.join_failed(self._clock())
            else:
                state.join_unclear(self._clock())
        except (GroupError, NotLeaderError, RpcError) as exc:
            # Two that make the group at the same moment; or it vanished just then; or there is no leader yet.
            self._error = exc
            state.join_failed(self._clock())
        else:
            assert found is not None
            times = found.consumerTimeout / _NS, found.coordinatorTimeout / _NS
            state.joined(found.coordinator, found.epoch, *times, now=self._clock())

    async def _leave_first(self, deadline: Deadline) -> None:
        try:
            await self.leave(deadline)
        except LiftEnvelopeError as exc:
            self._error = exc
            self.state.join_unclear(self._clock())
        else:
            self.state.left(self._clock())

    async def _heartbeat(self) -> None:
        request = api_pb2.FetchConsumerGroupAssignmentsRequest(
            groupId=self.group, consumerId=self.consumer_id, epoch=self.state.epoch
        )
        try:
            found = await self._ask_coordinator(request.SerializeToString())
        except (NotMemberError, NoSuchGroupError) as exc:
            self._error = exc
            self._expire()
        except (GroupError, _ElsewhereError) as exc:
            # Of all that a group can refuse, what is left here is the epoch.
            self._error = exc
            self.state.moved(self._clock())
        except LiftEnvelopeError as exc:
            self._error = exc
            self.state.silent(self._clock())
        else:
            partitions = [(one.stream, number) for one in found.assignments for number in one.partitions]
            change = self.state.assigned(found.epoch, partitions, self._clock())
            if change:
                self.changes.put_nowait(change)

    async def _ask_coordinator(self, request: bytes) -> api_pb2.FetchConsumerGroupAssignmentsResponse:
        method = "FetchConsumerGroupAssignments"
        limit = Deadline(min(_LONGEST_ATTEMPT, self.state.interval))
        address = await self._cluster.broker_address(self.state.coordinator, limit)
        try:
            answer = await self._cluster.call_once(method, request, address, limit.left)
        except (RpcError, TransportError) as exc:
            error = call_error(method, exc, self._about)
            if isinstance(error, NotLeaderError):
                raise _ElsewhereError(error.code, error.description) from exc
            raise error from exc
        return decode(api_pb2.FetchConsumerGroupAssignmentsResponse, answer, self._about)

    def _expire(self) -> None:
        change = self.state.not_member(self._clock())
        if change.expired:
            self.changes.put_nowait(change)
            self._notify(GroupMemberExpired(self.group, self.consumer_id, change.revoked))

    async def _locate(self) -> None:
        deadline = Deadline(min(_LONGEST_ATTEMPT, self.state.interval))
        try:
            # Without a name it would list every stream.
            metadata = await self._cluster.fetch(self.streams[:1], [self.group], deadline=deadline)
        except LiftEnvelopeError as exc:
            self._error = exc
            self.state.not_located(self._clock())
            return
        found = metadata.groups.get(self.group)
        if found is None:
            self.state.not_located(self._clock())
        else:
            self.state.located(found.coordinator, found.epoch, self._clock())

    async def _report(self) -> None:
        request = api_pb2.ReportConsumerGroupCoordinatorRequest(
            groupId=self.group,
            consumerId=self.consumer_id,
            coordinator=self.state.coordinator,
            epoch=self.state.epoch,
        )
        answer = api_pb2.ReportConsumerGroupCoordinatorResponse
        deadline = Deadline(min(_LONGEST_ATTEMPT, self.state.interval))
        error: LiftEnvelopeError | None = None
        try:
            await self._core._call("ReportConsumerGroupCoordinator", request, answer, deadline, self._about)
        except LiftEnvelopeError as exc:
            error = exc
        self._notify(GroupCoordinatorReported(self.group, self.consumer_id, self.state.coordinator, error))
        self.state.reported(self._clock())


class _ElsewhereError(NotLeaderError):
    """The broker answered that it is not the coordinator, as opposed to none being known."""
