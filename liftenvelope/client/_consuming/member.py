"""Member of a group: makes the calls that :mod:`liftenvelope.client._consuming.membership` decides on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from liftenvelope._deadlines import Deadline
from liftenvelope._pb import api_pb2
from liftenvelope.client._consuming.membership import Change, Do, Membership, StreamPartition
from liftenvelope.client._events import GroupCoordinatorReported, GroupMemberExpired
from liftenvelope.client.failures import call_error, decode
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
    from liftenvelope.client.core import ClientContext

__all__ = ["ConsumerMember"]

_NS: Final = 1e9
# Seconds after which a call to a silent coordinator is given up; less if the heartbeat interval is shorter.
_LONGEST_ATTEMPT: Final = 3.0


class ConsumerMember:
    """Keeps one consumer in its group: joins, sends heartbeats, and queues changes of the assignment.

    ``state`` decides the next action, and this class makes its calls. ``_lock`` serializes actions: the
    heartbeat task and ``confirm()`` may both want the same one.

    Attributes:
        state: Membership state machine.
        changes: Assignment changes in order, applied by :class:`~liftenvelope.client.Consumer`.
        has_joined: True if the group has, or may have, this member.
    """

    def __init__(self, context: ClientContext, group: str, consumer_id: str, streams: Sequence[str]) -> None:
        self.group = group
        self.consumer_id = consumer_id
        self.streams = tuple(streams)
        self.state = Membership()
        self.changes: asyncio.Queue[Change] = asyncio.Queue()
        self.has_joined = False
        self._context = context
        self._cluster = context.cluster
        self._notify = context.options.notify
        self._clock = asyncio.get_running_loop().time
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._error: LiftEnvelopeError | None = None
        #: Join whose answer is not used yet. It goes on if its caller is cancelled.
        self._joining: asyncio.Future[api_pb2.JoinConsumerGroupResponse | None] | None = None

    def identity(self, key: StreamPartition) -> GroupIdentity:
        """Return the identity to read a partition with: this member in the epoch that assigned the partition.

        A newer epoch that this member has only heard of must not be used: in that epoch the partition may
        belong to another member, and servers would fence off that member.

        Raises:
            FencedError: The partition is no longer assigned to this member.
        """
        if key not in self.state.assignment:
            stream, partition = key
            raise FencedError(f"{stream}[{partition}] is no longer assigned to consumer {self.consumer_id!r}")
        return GroupIdentity(self.group, self.state.assigned_epoch, self.consumer_id)

    async def settle(self, deadline: Deadline) -> None:
        """Join the group and wait for the first assignment.

        Raises:
            NoSuchStreamError: A stream does not exist.
            LiftEnvelopeError: The coordinator gave no assignment in time.
        """
        while not self.state.is_settled:
            await self._step(deadline)
            await self._unless_settled(deadline)

    async def keep(self) -> None:
        """Keep the membership alive until cancelled: heartbeats, coordinator changes, rejoins."""
        while True:
            wait = self.state.next(self._clock()).wait
            if wait > 0:
                await self._pause(wait)
            else:
                await self._step(Deadline(self._context.options.timeout))

    async def confirm(self, deadline: Deadline) -> frozenset[StreamPartition]:
        """Send a heartbeat now; return the partitions that the coordinator assigns to this member.

        Raises:
            NotMemberError: The consumer is no longer a member.
            LiftEnvelopeError: The coordinator did not answer in time.
        """
        try:
            async with asyncio.timeout(deadline.left):
                return await self._confirmed(deadline)
        except LiftEnvelopeError:
            raise
        except TimeoutError as exc:
            text = f"{self._about}: the group's coordinator did not answer in {deadline.timeout} s"
            raise CallTimeoutError(text) from exc

    async def _confirmed(self, deadline: Deadline) -> frozenset[StreamPartition]:
        before = self.state.answers
        while not (self.state.answers > before and self.state.is_settled):
            if self.state.next(self._clock()).do in (Do.JOIN, Do.LEAVE):
                text = "is no longer a member, and joins again: go on reading"
                raise NotMemberError(f"{self._about}: the consumer {text}, uncommitted messages come again")
            await self._step(deadline, hurried=self.state.is_settled)
            await self._unless_settled(deadline)
        return self.state.assignment

    def hurry(self) -> None:
        """Schedule a heartbeat soon, because the group may have changed."""
        self.state.hurry(self._clock())
        self._wake.set()

    async def leave(self, deadline: Deadline) -> None:
        """Leave the group. Has no effect if the consumer is no longer a member.

        A join under way is awaited first, for at most half of the time: servers carry it out even if its call
        is cancelled, and after the leave it would make a member that nobody keeps.

        Raises:
            LiftEnvelopeError: No server took the request in time. The member will expire.
        """
        request = api_pb2.LeaveConsumerGroupRequest(groupId=self.group, consumerId=self.consumer_id)
        answer = api_pb2.LeaveConsumerGroupResponse
        joining, self._joining = self._joining, None
        if joining is not None:
            try:
                await asyncio.wait({joining}, timeout=deadline.left / 2)
            finally:
                joining.cancel()
        try:
            await self._context.call("LeaveConsumerGroup", request, answer, deadline, self._about)
        except (NotMemberError, NoSuchGroupError):
            return

    @property
    def _about(self) -> str:
        return f"group {self.group!r}, consumer {self.consumer_id!r}"

    def _too_late(self) -> LiftEnvelopeError:
        text = f"{self._about}: the group's coordinator gave no assignment in time"
        return self._error or CallTimeoutError(text)

    async def _unless_settled(self, deadline: Deadline) -> None:
        """Wait until the next attempt, if the member is not settled; raise once the deadline is over."""
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
        """Run the next action of the state machine, if it is due."""
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
        state, before = self.state, self.has_joined
        self.has_joined = True
        try:
            found = await self._joined(deadline)
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
            # Two members create the group at once, the group was just deleted, or there is no leader yet.
            self._error = exc
            state.join_failed(self._clock())
        else:
            assert found is not None
            times = found.consumerTimeout / _NS, found.coordinatorTimeout / _NS
            state.joined(found.coordinator, found.epoch, *times, now=self._clock())

    async def _joined(self, deadline: Deadline) -> api_pb2.JoinConsumerGroupResponse | None:
        """Return the answer to a join: to one whose caller was cancelled, or to a new one."""
        request = api_pb2.JoinConsumerGroupRequest(
            groupId=self.group, consumerId=self.consumer_id, streams=self.streams
        )
        answer = api_pb2.JoinConsumerGroupResponse
        joining = self._joining
        if joining is None:
            call = self._context.call("JoinConsumerGroup", request, answer, deadline, self._about)
            joining = self._joining = asyncio.ensure_future(call)
            joining.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({joining})
        if self._joining is joining:  # and not taken by a leave
            self._joining = None
        if joining.cancelled():
            raise CallTimeoutError(f"{self._about}: the consumer left the group before it had joined")
        return joining.result()

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
            # A wrong epoch (the only GroupError left here), or the coordinator has moved.
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
            # A request without a stream name lists every stream.
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
            await self._context.call("ReportConsumerGroupCoordinator", request, answer, deadline, self._about)
        except LiftEnvelopeError as exc:
            error = exc
        self._notify(GroupCoordinatorReported(self.group, self.consumer_id, self.state.coordinator, error))
        self.state.reported(self._clock())


class _ElsewhereError(NotLeaderError):
    """The broker answered that it is not the coordinator. NotLeaderError itself: no broker is known."""
