"""Liftbridge's consumer groups, served by the coordinators of :mod:`liftenvelope.group`.

Every gateway runs a coordinator under its own id, so that clients find a group's coordinator among the
brokers. Consumers of :mod:`liftenvelope.group` can use the same coordinator. The first consumer that joins
creates the group. A group is ephemeral, and reassigns partitions at once with a new epoch: see the table in
:mod:`liftenvelope.group.membership`. Clients may join and leave through any gateway, which forwards the call
to the coordinator. Heartbeats go to the coordinator itself.

Differences from Liftbridge: Epochs never restart, so readers of a deleted group can't fence out members of a
new group with the same name. Leases decide which gateway coordinates a group, not the reports of members.

**Members belong to certificates.** A member is bound to the common name of the certificate that joined it. A
client without a certificate has the empty name. Calls for a member that another name has joined end with
PERMISSION_DENIED: heartbeats, leaving, reports and Subscribe. The member's client id contains a hash of the
name. So the name is stored with the group, and any gateway can check it, also after a failover.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from liftenvelope._pb import api_pb2, groups_pb2
from liftenvelope.consumers.tasks import cancel
from liftenvelope.errors import GroupError
from liftenvelope.gateway._clients.authorization import client_name
from liftenvelope.gateway._protocol.requests import read_request
from liftenvelope.gateway._readers.reads import FENCED
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.bounds import jetstream_bounds
from liftenvelope.group.calls import GroupCalls
from liftenvelope.group.coordinator import Coordinator
from liftenvelope.group.directory import Definition
from liftenvelope.group.errors import (
    ConsumerIdInUseError,
    GroupExistsError,
    GroupRequestError,
    GroupUnavailableError,
    NotControllerError,
    StaleGenerationError,
    UnknownGroupError,
    UnknownMemberError,
)
from liftenvelope.group.events import GroupEvent, MemberExpired
from liftenvelope.group.membership import Registration
from liftenvelope.group.state import GroupState, Place, TopicSpec
from liftenvelope.group.wire import topic_messages
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._readers.reads import Read
    from liftenvelope.rpc.server import ServerCall

__all__ = ["GroupFace", "coordinator_id"]

_NS: Final = 1_000_000_000
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Client id of a member that joined with a certificate: a random token and the hash of the name in it.
_OWNED: Final = re.compile(r"[0-9a-f]{32}@([0-9a-f]{32})")
#: Attempts to join a group that is deleted, or changes its coordinator, at that moment.
_TRIES: Final = 5

#: Liftbridge's status and text for each refusal. Clients match on both.
_STATUSES: Final = {
    UnknownGroupError: (StatusCode.NOT_FOUND, "consumer group does not exist"),
    ConsumerIdInUseError: (
        StatusCode.FAILED_PRECONDITION,
        "consumer is already a member of the consumer group",
    ),
    UnknownMemberError: (StatusCode.FAILED_PRECONDITION, "consumer is not a member of the consumer group"),
    NotControllerError: (StatusCode.FAILED_PRECONDITION, "broker is not the consumer group coordinator"),
    StaleGenerationError: (
        StatusCode.FAILED_PRECONDITION,
        "client-provided group epoch differs from broker group epoch",
    ),
}


def coordinator_id(broker: str) -> str:
    """Return the coordinator id of a gateway, which must be a valid token of a NATS subject.

    Example:
        >>> coordinator_id("gateway-1"), coordinator_id("a.b")
        ('gateway-1', 'id-2e7336dc8eba87ef472df568c35482ab')
    """
    if _TOKEN.fullmatch(broker):
        return broker
    return f"id-{hashlib.sha256(broker.encode()).hexdigest()[:32]}"


def group_status(error: GroupError) -> RpcError:
    """Return the gRPC status for an error of a coordinator."""
    for kind, (code, text) in _STATUSES.items():
        if isinstance(error, kind):
            return RpcError(code, text)
    if isinstance(error, GroupRequestError):
        return RpcError(StatusCode.INVALID_ARGUMENT, str(error))
    if isinstance(error, GroupUnavailableError):
        return RpcError(StatusCode.UNAVAILABLE, str(error))
    return RpcError(StatusCode.FAILED_PRECONDITION, str(error))


class GroupFace:
    """Serves the consumer group methods of the API.

    Args:
        core: Parts of the gateway.
        consumer_timeout: Seconds of silence after which a member is dead. Default 15.
        coordinator_timeout: Seconds of silence after which members report a coordinator. Default 15.
        check: Called on each heartbeat with the client's name, a stream and the method ``Subscribe``. Raises
            RpcError if the client may no longer read the stream, so that its member expires from the group.
            Default: all clients may.
    """

    def __init__(
        self,
        core: Core,
        *,
        consumer_timeout: float = 15.0,
        coordinator_timeout: float = 15.0,
        check: Callable[[str, str, str], None] | None = None,
    ) -> None:
        self._core = core
        self._activity = core.activity
        self._check = check
        self._timeouts = (consumer_timeout, coordinator_timeout)
        timeout = core.options.ack_timeout
        self._coordinator = Coordinator(
            core.nc,
            coordinator_id=coordinator_id(core.options.id),
            replicas=core.options.replicas,
            lease=min(core.options.broker_ttl, consumer_timeout / 3),
            timeout=timeout,
            bounds=self._bounds,
            domain=core.options.domain,
            on_event=self._on_event,
            allowed_inboxes=core.options.limits.allowed_ack_inboxes,
        )
        self._jetstream_bounds = jetstream_bounds(core.js)
        self._calls = GroupCalls(core.nc, timeout=timeout)
        self._telling: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the coordinator.

        Raises:
            GroupError: JetStream did not answer in time, or another gateway uses the same id.
        """
        await self._coordinator.start()

    async def close(self) -> None:
        """Release the groups, so that other gateways take them over at once."""
        await cancel(self._telling)
        await self._coordinator.close()

    @property
    def hosted(self) -> Iterable[GroupState]:
        """States of the groups that this gateway coordinates."""
        return (host.group.state for host in self._coordinator.directory.hosts.values())

    def _on_event(self, event: GroupEvent) -> None:
        if isinstance(event, MemberExpired):
            self._activity.group_left(event.group, event.consumer_id, expired=True)

    async def _bounds(self, spec: TopicSpec, partition: int) -> tuple[int, int]:
        """Return a partition's oldest and next offset. A topic without places is the stream of that name."""
        if spec.places:
            return await self._jetstream_bounds(spec, partition)
        try:
            record = await self._core.partition(spec.name, partition)
        except RpcError:
            return await self._jetstream_bounds(spec, partition)  # no stream: any offset is accepted
        place = Place(record.stream_of(partition))
        return await self._jetstream_bounds(replace(spec, places=(place,)), 0)

    # Calls

    async def join(self, call: ServerCall, raw: bytes) -> bytes:
        """Serve JoinConsumerGroup."""
        request = read_request(api_pb2.JoinConsumerGroupRequest, raw, self._core.options.limits)
        _check(groupId=request.groupId, consumerId=request.consumerId)
        if not request.streams:
            raise RpcError(StatusCode.INVALID_ARGUMENT, "No streams provided")
        topics = await self._topics(request.streams)
        try:
            client = _new_client_id(client_name(call.peer_certificate))
            controller, epoch = await self._join(request.groupId, request.consumerId, client, topics)
        except GroupError as exc:
            raise group_status(exc) from exc
        self._activity.group_joined(request.groupId, request.consumerId, request.streams)
        consumer, coordinator = self._timeouts
        return api_pb2.JoinConsumerGroupResponse(
            coordinator=self._broker(controller),
            epoch=epoch,
            consumerTimeout=int(consumer * _NS),
            coordinatorTimeout=int(coordinator * _NS),
        ).SerializeToString()

    async def leave(self, call: ServerCall, raw: bytes) -> bytes:
        """Serve LeaveConsumerGroup."""
        request = read_request(api_pb2.LeaveConsumerGroupRequest, raw, self._core.options.limits)
        _check(groupId=request.groupId, consumerId=request.consumerId)
        try:
            state = await self._state(request.groupId)
            client = _checked_client_id(state, request.consumerId, client_name(call.peer_certificate))
            if not client:
                # An empty client id would also remove a member that another client joins meanwhile.
                raise UnknownMemberError(f"{request.consumerId!r} is not a member of {request.groupId!r}")
            await self._leave(request.groupId, request.consumerId, client)
        except GroupError as exc:
            raise group_status(exc) from exc
        self._activity.group_left(request.groupId, request.consumerId, expired=False)
        return api_pb2.LeaveConsumerGroupResponse().SerializeToString()

    async def assignments(self, call: ServerCall, raw: bytes) -> bytes:
        """Serve FetchConsumerGroupAssignments, which is also the heartbeat of a member."""
        request = read_request(api_pb2.FetchConsumerGroupAssignmentsRequest, raw, self._core.options.limits)
        _check(groupId=request.groupId, consumerId=request.consumerId)
        try:
            host = await self._coordinator.directory.host(request.groupId)
            name = client_name(call.peer_certificate)
            client = _checked_client_id(host.group.state, request.consumerId, name)
            self._check_streams(host.group.state, request.consumerId, name)
            host.heartbeat(request.consumerId, request.epoch, client)
            partitions = host.group.assignment_of(request.consumerId)
        except GroupError as exc:
            raise group_status(exc) from exc
        response = api_pb2.FetchConsumerGroupAssignmentsResponse(epoch=request.epoch)
        by_stream: dict[str, list[int]] = {}
        for stream, number in partitions:
            by_stream.setdefault(stream, []).append(number)
        for stream, numbers in by_stream.items():
            response.assignments.add(stream=stream, partitions=numbers)
        return response.SerializeToString()

    def _check_streams(self, state: GroupState, consumer: str, name: str) -> None:
        """Check that a client may still read the streams of its member."""
        member = state.members.get(consumer)
        if self._check is None or member is None:
            return
        for stream in sorted(member.topics):
            self._check(name, stream, "Subscribe")

    async def report(self, call: ServerCall, raw: bytes) -> bytes:
        """Serve ReportConsumerGroupCoordinator: looking up the group gives it a live coordinator."""
        request = read_request(api_pb2.ReportConsumerGroupCoordinatorRequest, raw, self._core.options.limits)
        _check(groupId=request.groupId, consumerId=request.consumerId, coordinator=request.coordinator)
        state = await self.find(request.groupId)
        if state is None:
            raise RpcError(StatusCode.FAILED_PRECONDITION, f"No such consumer group {request.groupId}")
        _checked_client_id(state, request.consumerId, client_name(call.peer_certificate))
        return api_pb2.ReportConsumerGroupCoordinatorResponse().SerializeToString()

    async def check_member(self, read: Read, name: str) -> None:
        """Check a read against the group's record: its member, its epoch and its partition.

        Sets ``read.confirmed``. Because of this check, a newer epoch fences an old member even if another
        gateway serves the newer member, and no client can fence members out with an epoch that the group
        never had. Clients without a certificate may read for a group without a record, as in Liftbridge.

        Args:
            read: The read. It must name a member.
            name: Name in the client's certificate, empty for none.

        Raises:
            RpcError: FAILED_PRECONDITION: the group has not reached that epoch, or the partition is not
                assigned to the member. PERMISSION_DENIED: another certificate has joined the member.
                UNAVAILABLE: the group's record can't be read.
        """
        assert read.member is not None
        group, epoch, consumer = read.member
        state = await self.find(group)
        if state is None and not name:
            return
        _checked_client_id(state, consumer, name)
        member = None if state is None else state.members.get(consumer)
        is_assigned = (
            member is not None and TopicPartition(read.record.name, read.partition) in member.assignment
        )
        if state is None or epoch > state.generation or not is_assigned:
            raise RpcError(StatusCode.FAILED_PRECONDITION, FENCED)
        read.confirmed = True

    # Metadata

    async def coordinators(self, groups: Iterable[str]) -> list[tuple[str, int] | None]:
        """Return the coordinator and the epoch of each group, None for a group that does not exist.

        Raises:
            RpcError: UNAVAILABLE: the record of a group can't be read.
        """
        found: list[tuple[str, int] | None] = []
        for name in groups:
            state = await self.find(name)
            found.append(None if state is None else (self._broker(state.controller_id), state.generation))
        return found

    async def find(self, name: str) -> GroupState | None:
        """Return a group's state, with a live coordinator; None if the group does not exist.

        Raises:
            RpcError: UNAVAILABLE: the group's record can't be read.
        """
        try:
            found = (await self._coordinator.directory.list([name]))[name]
        except GroupError as exc:
            raise group_status(exc) from exc
        return found if isinstance(found, GroupState) else None

    async def _state(self, name: str) -> GroupState:
        """Return a group's state, with a live coordinator.

        Raises:
            GroupError: The group does not exist, or its record can't be read.
        """
        found = (await self._coordinator.directory.list([name]))[name]
        if isinstance(found, GroupError):
            raise found
        return found

    def _broker(self, controller: str) -> str:
        """Return the id of the gateway that runs a coordinator; the coordinator's own id if none is known."""
        for broker in self._core.brokers.alive:
            if coordinator_id(broker) == controller:
                return broker
        return controller

    # Streams

    def stream_changed(self, before: StreamRecord | None, after: StreamRecord | None) -> None:
        """Reassign a stream's partitions in the background after they changed or the stream was deleted."""
        if before is None:
            return  # a new stream has no readers yet
        spec = None if after is None else TopicSpec(before.name, len(after.partitions))
        task = asyncio.create_task(self._set_topic(before.name, spec), name=f"tell groups of {before.name}")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _set_topic(self, name: str, spec: TopicSpec | None) -> None:
        try:
            await self._coordinator.set_topic(name, spec)
        except GroupError:
            return  # coordinator changed or JetStream failed: members find out by reading

    async def _topics(self, streams: Iterable[str]) -> tuple[TopicSpec, ...]:
        topics = []
        for name in dict.fromkeys(streams):
            try:
                record = await self._core.registry.find(name)
            except RpcError as exc:
                raise RpcError(StatusCode.FAILED_PRECONDITION, "stream does not exist") from exc
            topics.append(TopicSpec(name, len(record.partitions)))
        return tuple(topics)

    # Requests to the group's coordinator

    async def _join(
        self, group: str, consumer: str, client: str, topics: tuple[TopicSpec, ...]
    ) -> tuple[str, int]:
        """Create the group if needed and join it; return the id of its controller and its epoch."""
        definition = Definition(name=group, session_timeout=self._timeouts[0], ephemeral=True, immediate=True)
        attempt = 1
        while True:
            await self._create(definition)
            try:
                return await self._register(group, consumer, client, topics)
            except (UnknownGroupError, NotControllerError):
                if attempt == _TRIES:
                    raise
            attempt += 1

    async def _create(self, definition: Definition) -> None:
        try:
            await self._coordinator.directory.create(definition)
        except GroupExistsError:
            state = await self.find(definition.name)
            if state is not None and not state.immediate:
                raise  # not an immediate group: consumers of this API can't follow its protocol

    async def _register(
        self, group: str, consumer: str, client: str, topics: tuple[TopicSpec, ...]
    ) -> tuple[str, int]:
        """Register a consumer with this gateway or with the one that coordinates the group."""
        registration = Registration(consumer_id=consumer, client_id=client, topics=topics)
        try:
            host = await self._coordinator.directory.host(group)
        except NotControllerError:
            request = groups_pb2.RegisterConsumerRequest(
                group=group, consumer_id=consumer, client_id=client, topics=topic_messages(topics)
            )
            kind = groups_pb2.RegisterConsumerResponse
            answer = await self._calls.controller(group, "RegisterConsumer", request, kind)
            state = await self.find(group)
            if state is None:
                raise UnknownGroupError(f"group {group!r} is gone again") from None
            return state.controller_id, answer.generation
        registered = await host.run(lambda known, now: known.register(registration, now))
        return self._coordinator.id, registered.generation

    async def _leave(self, group: str, consumer: str, client: str) -> None:
        try:
            host = await self._coordinator.directory.host(group)
        except NotControllerError:
            request = groups_pb2.LeaveRequest(group=group, consumer_id=consumer, client_id=client)
            await self._calls.controller(group, "Leave", request, groups_pb2.LeaveResponse)
            return
        await host.run(lambda known, _: known.leave(consumer, client))


def _check(**given: str) -> None:
    for name, value in given.items():
        if not value:
            raise RpcError(StatusCode.INVALID_ARGUMENT, f"No {name} provided")


def _new_client_id(name: str) -> str:
    """Return a new, unique client id, so that a second join counts as another client.

    Args:
        name: Name in the client's certificate, empty for none.
    """
    token = secrets.token_hex(16)
    return f"{token}@{_owner(name)}" if name else token


def _owner(name: str) -> str:
    # A hash, because names may be longer than client ids.
    return hashlib.sha256(name.encode()).hexdigest()[:32] if name else ""


def _checked_client_id(state: GroupState | None, consumer: str, name: str) -> str:
    """Return a member's client id after checking its owner; empty if the member does not exist.

    Args:
        state: State of the group; None if the group does not exist.
        consumer: Consumer id of the member.
        name: Name in the caller's certificate, empty for none.

    Raises:
        RpcError: PERMISSION_DENIED: a client with another name has joined the member.
    """
    member = None if state is None else state.members.get(consumer)
    if state is None or member is None:
        return ""
    owned = _OWNED.fullmatch(member.client_id)
    if (owned[1] if owned else "") != _owner(name):
        text = f"consumer {consumer!r} of group {state.name!r} was joined with another certificate"
        raise RpcError(StatusCode.PERMISSION_DENIED, text)
    return member.client_id
