"""Serves the calls of groups as a NATS micro service, so that ``nats micro`` lists it."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import nats.errors
from google.protobuf.message import DecodeError, Message
from nats.micro.service import Service, ServiceConfig
from nats.nuid import NUID

from liftenvelope._pb import groups_pb2 as pb
from liftenvelope._version import __version__
from liftenvelope.consumers.tasks import cancel
from liftenvelope.errors import GroupError
from liftenvelope.group._controller.concurrency import at_once
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.bounds import Bounds, clamped
from liftenvelope.group.directory import Definition, Directory
from liftenvelope.group.errors import (
    CoordinatorDefectError,
    GroupLimitError,
    GroupRequestError,
    GroupUnavailableError,
    RebalancingError,
)
from liftenvelope.group.names import ANY, METHODS, controller_subject
from liftenvelope.group.state import DEFAULT_SESSION_TIMEOUT, GroupState, TopicSpec
from liftenvelope.group.wire import (
    AROUND,
    error_message,
    group_message,
    offset_messages,
    read_commits,
    read_registration,
    read_topics,
    registered_message,
)
from liftenvelope.nats.link import Link, max_payload_of

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.micro.request import Request

    from liftenvelope.nats.replies import ReplySubjects

__all__ = ["SERVICE", "GroupService"]

#: Name of the micro service.
SERVICE: Final = "liftenvelope-groups"
#: Seconds to wait until the NATS server knows all subjects.
_START_WAIT: Final = 10.0
#: Most seconds that an answer waits for a group to be stable.
_LONGEST_WAIT: Final = 5.0
#: Most requests in progress. Further requests are told to retry.
_MOST_AT_ONCE: Final = 10_000


class GroupService:
    """Answers the requests of members and clients.

    Args:
        nc: NATS connection.
        prefix: Prefix of the subjects.
        coordinator_id: Id of the coordinator.
        directory: Groups of the coordinator.
        bounds: Returns the offset bounds of partitions.
        replies: Decides which reply subjects get an answer.
    """

    def __init__(
        self,
        nc: Client,
        prefix: str,
        coordinator_id: str,
        directory: Directory,
        bounds: Bounds,
        replies: ReplySubjects,
    ) -> None:
        self._nc = nc
        self._prefix = prefix
        self._id = coordinator_id
        self._directory = directory
        self._bounds = bounds
        self._requests = _AnswerableRequests(nc, replies)
        self._service: Service | None = None
        self._listings: dict[str, tuple[GroupState, pb.Group]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: Mapping[str, tuple[type[Message], Callable[[Any], Awaitable[Message]]]] = {
            "ListGroups": (pb.ListGroupsRequest, self._list_groups),
            "CreateGroup": (pb.CreateGroupRequest, self._create_group),
            "DeleteGroup": (pb.DeleteGroupRequest, self._delete_group),
            "RegisterConsumer": (pb.RegisterConsumerRequest, self._register_consumer),
            "Heartbeat": (pb.HeartbeatRequest, self._heartbeat),
            "RewindConsumer": (pb.RewindConsumerRequest, self._rewind_consumer),
            "Commit": (pb.CommitRequest, self._commit),
            "Leave": (pb.LeaveRequest, self._leave),
            "FetchOffsets": (pb.FetchOffsetsRequest, self._fetch_offsets),
        }

    async def start(self) -> None:
        """Start answering.

        Raises:
            TransportError: The connection was lost.
        """
        # nats-py's own call warns from Python 3.12 on, and users of this package can't change it.
        warnings.filterwarnings("ignore", r"datetime\.datetime\.utcnow", DeprecationWarning, r"nats\.micro")
        config = ServiceConfig(
            name=SERVICE,
            version=__version__,
            description="Consumer groups of liftenvelope",
            metadata={"coordinator": self._id},
        )
        # Not nats.micro.add_service: its service would keep its subscriptions if its start failed.
        self._service = service = Service(cast("Client", self._requests), config)
        await _to_its_end(service.start())
        at_any = service.add_group(name=f"{self._prefix}.any")
        here = service.add_group(name=controller_subject(self._prefix, self._id))
        for method in METHODS:
            handler = self._heartbeats if method == "Heartbeat" else self._handler(method)
            for group in (at_any, here) if method in ANY else (here,):
                await group.add_endpoint(name=method, handler=handler)
        await Link(self._nc).barrier(_START_WAIT)

    async def stop(self) -> None:
        """Stop answering, and cancel requests in progress."""
        service, self._service = self._service, None
        try:
            if service is not None:
                # A lost connection ends its subscriptions.
                with contextlib.suppress(nats.errors.Error, OSError):
                    await _to_its_end(service.stop())
        finally:
            await cancel(self._tasks)

    # Requests

    def _handler(self, method: str) -> Callable[[Request], Awaitable[None]]:
        async def handle(request: Request) -> None:
            # nats.micro calls handlers one after another, so a handler must not wait.
            if len(self._tasks) >= _MOST_AT_ONCE:
                error = GroupUnavailableError(f"{_MOST_AT_ONCE} requests are in progress already; retry")
                await self._respond(method, request, self._refusal(method, error))
                return
            task = asyncio.get_running_loop().create_task(self._answer(method, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return handle

    async def _heartbeats(self, request: Request) -> None:
        """Answer in place if the group is loaded, as it nearly always is; no task is needed."""
        try:
            beat = pb.HeartbeatRequest.FromString(request.data)
        except DecodeError:
            beat = pb.HeartbeatRequest()
        host = self._directory.hosts.get(beat.group)
        if host is None:
            await self._handler("Heartbeat")(request)
        else:
            await self._respond("Heartbeat", request, await self._outcome("Heartbeat", beat))

    async def _answer(self, method: str, request: Request) -> None:
        kind, _ = self._answers[method]
        try:
            message = kind.FromString(request.data)
        except DecodeError:
            error = GroupRequestError(f"the request is not a {kind.__name__}")
            await self._respond(method, request, self._refusal(method, error))
            return
        await self._respond(method, request, await self._outcome(method, message))

    async def _outcome(self, method: str, message: Message) -> Message:
        try:
            return await self._answers[method][1](message)
        except GroupError as exc:
            return self._refusal(method, exc)

    async def _respond(self, method: str, request: Request, answer: Message) -> None:
        data = answer.SerializeToString()
        if len(data) > (most := max_payload_of(self._nc)):
            error = GroupLimitError(
                f"the answer to {method} has {len(data)} bytes, and a NATS message at most {most}: raise "
                "max_payload of nats-server, ask for fewer groups or partitions, or have fewer partitions or "
                "shorter names in the group"
            )
            data = self._refusal(method, error).SerializeToString()
        try:
            await request.respond(data)
        except ValueError:
            return  # nats.micro raises this for a request without a reply subject
        except (nats.errors.Error, OSError):
            return  # the connection is closing: the caller's request times out

    @staticmethod
    def _refusal(method: str, error: GroupError) -> Message:
        kind: type[Message] = getattr(pb, f"{method}Response")
        return kind(error=error_message(error))

    # Methods

    async def _list_groups(self, request: pb.ListGroupsRequest) -> Message:
        found = await self._directory.list(request.names, stored=request.stored)
        for name in self._listings.keys() - self._directory.hosts.keys():
            del self._listings[name]
        groups = [self._listed(name, one) for name, one in found.items()]
        return pb.ListGroupsResponse(
            groups=groups if request.names else _fitting(groups, max_payload_of(self._nc))
        )

    def _listed(self, name: str, found: GroupState | GroupError) -> pb.Group:
        if not isinstance(found, GroupState):
            return pb.Group(name=name, error=error_message(found))
        state, message = self._listings.get(name, (None, pb.Group()))
        if state is not found:
            message = group_message(found, controller_subject(self._prefix, found.controller_id))
        if name in self._directory.hosts:
            # A host returns the same object until the next change, and all members ask for it after that.
            self._listings[name] = found, message
        return message

    async def _create_group(self, request: pb.CreateGroupRequest) -> Message:
        timeout = request.session_timeout_ms / 1_000 or DEFAULT_SESSION_TIMEOUT
        definition = Definition(
            name=request.name,
            session_timeout=timeout,
            topics=read_topics(request.topics),
            ephemeral=request.ephemeral,
            assignor=request.assignor or "sticky",
            immediate=request.immediate,
        )
        state = await self._directory.create(definition)
        return pb.CreateGroupResponse(group=self._listed(state.name, state))

    async def _delete_group(self, request: pb.DeleteGroupRequest) -> Message:
        answer = pb.DeleteGroupResponse()
        for name in dict.fromkeys(request.names):
            result = answer.results.add(name=name)
            try:
                await self._directory.delete(name)
            except GroupError as exc:
                result.error.CopyFrom(error_message(exc))
        return answer

    async def _register_consumer(self, request: pb.RegisterConsumerRequest) -> Message:
        host = await self._directory.host(request.group)
        wait = min(max(request.wait_ms / 1_000, 0.0), _LONGEST_WAIT)
        return registered_message(await host.register(read_registration(request), wait))

    async def _heartbeat(self, request: pb.HeartbeatRequest) -> Message:
        host = await self._directory.host(request.group)
        beat = host.heartbeat(request.consumer_id, request.generation, request.client_id)
        answer = pb.HeartbeatResponse(generation=beat.generation)
        if beat.rebalancing:
            error = RebalancingError("the group is rebalancing; give your partitions back and register again")
            answer.error.CopyFrom(error_message(error))
        return answer

    async def _rewind_consumer(self, request: pb.RewindConsumerRequest) -> Message:
        host = await self._directory.host(request.group)
        topics = await host.run(lambda group, _: dict(group.state.topics))
        offsets = {TopicPartition(one.topic, one.partition): one.offset for one in request.offsets}
        found = await at_once([partial(self._clamped, topics, *item) for item in offsets.items()])
        outcome = dict(zip(offsets, found, strict=True))
        wanted = {partition: offset for partition, offset in outcome.items() if isinstance(offset, int)}
        await host.run(lambda group, _: group.rewind(wanted))
        return pb.RewindConsumerResponse(offsets=offset_messages(outcome))

    async def _clamped(
        self, topics: Mapping[str, TopicSpec], partition: TopicPartition, offset: int
    ) -> int | GroupError:
        spec = topics.get(partition.topic)
        if spec is None or partition.partition >= spec.partitions:
            return GroupRequestError(f"topic {partition.topic!r} has no partition {partition.partition}")
        try:
            return clamped(offset, await self._bounds(spec, partition.partition))
        except GroupError as exc:
            return exc
        except Exception as exc:  # noqa: BLE001 - of the user's bounds: the caller must get an answer
            context = {"message": f"the bounds of topic {spec.name!r} failed", "exception": exc}
            asyncio.get_running_loop().call_exception_handler(context)
            return CoordinatorDefectError(f"the bounds of topic {spec.name!r} failed: {exc!r}")

    async def _commit(self, request: pb.CommitRequest) -> Message:
        host = await self._directory.host(request.group)
        commits = read_commits(request.offsets)
        outcome = await host.run(
            lambda group, _: group.commit(request.consumer_id, request.generation, commits, request.client_id)
        )
        return pb.CommitResponse(offsets=offset_messages(outcome))

    async def _leave(self, request: pb.LeaveRequest) -> Message:
        host = await self._directory.host(request.group)
        await host.run(lambda group, _: group.leave(request.consumer_id, request.client_id))
        return pb.LeaveResponse()

    async def _fetch_offsets(self, request: pb.FetchOffsetsRequest) -> Message:
        host = await self._directory.host(request.group)
        wanted = [TopicPartition(one.topic, one.partition) for one in request.partitions]
        return pb.FetchOffsetsResponse(
            offsets=offset_messages(await host.run(lambda group, _: group.committed(wanted)))
        )


class _AnswerableRequests:
    """What a micro service uses of a connection, without requests whose reply subject gets no answer.

    nats.micro answers some requests by itself, so they are checked before it gets them. A request without a
    reply subject is passed on: it gets no answer.

    Args:
        nc: NATS connection.
        replies: Decides which reply subjects get an answer.
    """

    def __init__(self, nc: Client, replies: ReplySubjects) -> None:
        self._nc = nc
        self._replies = replies
        self._nuid = NUID()  # of which nats.micro makes the id of the service

    async def subscribe(
        self, subject: str, queue: str = "", cb: Callable[[Msg], Awaitable[None]] | None = None
    ) -> Subscription:
        """Subscribe like ``nc``."""
        assert cb is not None  # nats.micro always gives one

        async def handle(msg: Msg) -> None:
            if not msg.reply or self._replies.admits(msg):
                await cb(msg)

        return await self._nc.subscribe(subject, queue=queue, cb=handle)

    async def flush(self) -> None:
        """Flush ``nc``."""
        await self._nc.flush()


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await work that flushes the connection; a cancellation waits for its end.

    nats-py drops the connection when it gets the answer to a cancelled flush.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    finally:
        await asyncio.wait([task])


def _fitting(groups: list[pb.Group], most: int) -> list[pb.Group]:
    """Return groups for one answer of at most ``most`` bytes; those without room have an error instead."""
    if sum(one.ByteSize() + AROUND for one in groups) <= most:
        return groups
    text = "the list has no room for the group: ask for it by name"
    brief = [pb.Group(name=one.name, error=error_message(GroupLimitError(text))) for one in groups]
    room = most - sum(one.ByteSize() + AROUND for one in brief)
    fitting = []
    for one, instead in zip(groups, brief, strict=True):
        more = one.ByteSize() - instead.ByteSize()
        is_in = more <= room
        room -= more if is_in else 0
        fitting.append(one if is_in else instead)
    return fitting
