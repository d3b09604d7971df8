"""Keeps a consumer in its group: a task that registers and sends heartbeats, and the member's other calls."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import nats.errors

from liftenvelope._backoff import Backoff
from liftenvelope._deadlines import Deadline
from liftenvelope._pb import groups_pb2 as pb
from liftenvelope.errors import GroupError, LiftEnvelopeError, TransportError
from liftenvelope.group._event_log import log
from liftenvelope.group._member.session import MemberSession, RequestKind
from liftenvelope.group._requests import Commit
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.calls import PASSING, GroupCalls
from liftenvelope.group.clock import time_since_boot
from liftenvelope.group.errors import (
    ConsumerIdInUseError,
    GroupExistsError,
    MemberFencedError,
    RebalancingError,
    UnknownGroupError,
)
from liftenvelope.group.events import ControllerLost, GroupEventHandler, MemberFenced
from liftenvelope.group.names import changed_subject
from liftenvelope.group.state import DEFAULT_SESSION_TIMEOUT, Phase, TopicSpec
from liftenvelope.group.wire import commit_messages, portions, read_created, read_offsets, topic_messages
from liftenvelope.nats.link import Link, last_error_of, max_payload_of

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

__all__ = ["Assigned", "GiveBack", "GroupMember", "Lost", "creation_of"]

#: Least and most seconds of one request, whatever the session timeout.
_SHORTEST_TRY: Final = 0.2
_LONGEST_TRY: Final = 5.0
#: Least fraction of an interval before the first heartbeat.
_EARLIEST: Final = 0.1
#: Least fraction of an interval before every other heartbeat.
_LEAST: Final = 0.8


@dataclass(frozen=True, slots=True)
class Assigned:
    """The member has these partitions, each with its start offset, -1 where nothing was committed.

    ``created_ns`` has the creation times of the streams that the offsets belong to, as far as they are known.
    """

    generation: int
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    created_ns: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The group is about to change: the member must give all partitions back."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The member has lost all partitions already."""


class GroupMember:
    """Membership of a consumer in its group.

    Args:
        nc: NATS connection.
        calls: Calls to coordinators.
        group: Name of the group.
        consumer_id: Id of the consumer.
        client_id: Id of this consumer object, which no other process or object ever had.
        topics: Topics to read.
        session_timeout: Session timeout in seconds; None for the group's.
        creation: Request that creates the group if it does not exist; None to not create it.
        on_event: Handler of background events.

    Attributes:
        session: State of the membership.
        changes: Changes of the assignment, in order.
        may_be_member: True once a registration was sent to a controller.
        refusal: Why the last registration gave no assignment; None if it gave one, or is the first.
    """

    def __init__(
        self,
        nc: Client,
        calls: GroupCalls,
        group: str,
        consumer_id: str,
        client_id: str,
        topics: Iterable[TopicSpec],
        *,
        session_timeout: float | None,
        creation: pb.CreateGroupRequest | None,
        on_event: GroupEventHandler,
    ) -> None:
        self.session = MemberSession(
            phase=random.uniform(_EARLIEST, 1.0), vary=lambda: random.uniform(_LEAST, 1.0)
        )
        if session_timeout is not None:
            self.session.session_timeout = session_timeout
        self.changes: asyncio.Queue[Assigned | GiveBack | Lost] = asyncio.Queue()
        self.may_be_member = False
        self.refusal: LiftEnvelopeError | None = None
        self._nc = nc
        self._calls = calls
        self._group = group
        self._consumer_id = consumer_id
        self._client_id = client_id
        self._topics = topic_messages(topics)
        self._session_timeout_ms = 0 if session_timeout is None else round(session_timeout * 1_000)
        self._creation = creation
        self._on_event = on_event
        self._wake = asyncio.Event()

    @property
    def owns(self) -> bool:
        """True while the partitions certainly belong to this member."""
        return self.session.owns(time_since_boot())

    def given_back(self) -> None:
        """Report that all partitions were given back."""
        self.session.given_back(time_since_boot())
        self._wake.set()

    # Task

    async def keep(self) -> None:
        """Register, and keep sending heartbeats, until cancelled.

        Raises:
            GroupError: The group refused the consumer, and retrying would not help.
            TransportError: The connection was closed.
        """
        subject = changed_subject(self._calls.prefix, self._group)
        subscription = await Link(self._nc).subscribe(subject, self._nudged)
        try:
            while True:
                await self._until_due()
                if self._nc.is_closed:
                    raise TransportError(f"the NATS connection is closed{last_error_of(self._nc)}")
                now = time_since_boot()
                if self.session.expires(now):
                    self._has_lost(None)
                    continue
                if self.session.next(now).do is RequestKind.REGISTER:
                    await self._register()
                else:
                    await self._heartbeat()
        finally:
            if not self._nc.is_closed:
                # A lost connection ends the subscription by itself.
                with contextlib.suppress(nats.errors.Error, OSError):
                    await subscription.unsubscribe()

    async def _nudged(self, msg: Msg) -> None:
        """Act at once on a message that the group is changing, or has changed."""
        if msg.data != b"%d %d" % (self.session.generation, Phase.STABLE):
            self.session.hurry(time_since_boot())
            self._wake.set()

    async def _until_due(self) -> None:
        while True:
            self._wake.clear()
            now = time_since_boot()
            wait = min(self.session.next(now).wait, self.session.until_expiry(now))
            if wait <= 0:
                return
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                return

    def _try_time(self) -> float:
        """Return the timeout of one request: a member must notice in time that it is not heard."""
        return min(max(self.session.interval, _SHORTEST_TRY), _LONGEST_TRY)

    async def _register(self) -> None:
        session = self.session
        timeout = self._try_time()
        request = pb.RegisterConsumerRequest(
            group=self._group,
            client_id=self._client_id,
            consumer_id=self._consumer_id,
            topics=self._topics,
            session_timeout_ms=self._session_timeout_ms,
            generation=session.generation,
            wait_ms=round(timeout / 2 * 1_000),
        )
        sent_at, deadline = time_since_boot(), Deadline(timeout)
        try:
            await self._calls.locate(self._group, timeout)
            self.may_be_member = True
            answer = await self._ask_register(request, deadline.left)
        except UnknownGroupError:
            if self._creation is None:
                raise
            await self._create(timeout)
        except (*PASSING, ConsumerIdInUseError) as exc:
            self.refusal = exc
            self._on_event(ControllerLost(self._group, self._consumer_id, exc))
            session.unanswered(time_since_boot())
        except MemberFencedError as exc:
            if session.fenced(time_since_boot()):
                self._has_lost(exc)
        else:
            self._has_registered(answer, sent_at)

    async def _ask_register(
        self, request: pb.RegisterConsumerRequest, timeout: float
    ) -> pb.RegisterConsumerResponse:
        # The caller looks at the error, because "rebalancing" comes with a generation.
        return await self._calls.controller_once(
            self._group, "RegisterConsumer", request, pb.RegisterConsumerResponse, timeout, passing=True
        )

    def _has_registered(self, answer: pb.RegisterConsumerResponse, sent_at: float) -> None:
        now, seconds = time_since_boot(), answer.session_timeout_ms / 1_000
        if answer.error.code == pb.REBALANCING:
            self.refusal = RebalancingError("another member has not given its partitions back yet")
            self.session.waits(answer.generation, seconds, now)
            return
        self.refusal = None
        self.session.registered(answer.generation, seconds, sent_at, now)
        offsets = {
            partition: offset
            for partition, offset in read_offsets(answer.partitions).items()
            if isinstance(offset, int)
        }
        named: dict[str, object] = {
            "group": self._group,
            "consumer_id": self._consumer_id,
            "generation": answer.generation,
        }
        text = "group %(group)s: %(consumer_id)s has %(partitions)d partitions in generation %(generation)d"
        named["partitions"] = len(answer.partitions)
        log.info(text, named, extra=named)
        self.changes.put_nowait(Assigned(answer.generation, offsets, read_created(answer.partitions)))

    async def _create(self, timeout: float) -> None:
        assert self._creation is not None
        try:
            await self._calls.any("CreateGroup", self._creation, pb.CreateGroupResponse, timeout)
        except PASSING:
            self.session.unanswered(time_since_boot())
        except GroupExistsError:
            # Another member was faster. Like any existing group, its group takes members with other topics.
            self.session.hurry(time_since_boot())
        else:
            self.session.hurry(time_since_boot())

    async def _heartbeat(self) -> bool:
        """Send a heartbeat; return True if it was answered."""
        session = self.session
        generation = session.generation
        request = pb.HeartbeatRequest(
            group=self._group,
            consumer_id=self._consumer_id,
            generation=generation,
            client_id=self._client_id,
        )
        sent_at = time_since_boot()
        timeout = min(self._try_time(), max(session.until_expiry(sent_at), 0.001))
        try:
            await self._calls.controller_once(
                self._group, "Heartbeat", request, pb.HeartbeatResponse, timeout
            )
        except RebalancingError:
            # Ignored if everything was given back while the request was in flight.
            is_current = session.generation == generation and session.is_inside
            if is_current and session.rebalances(time_since_boot()):
                self.changes.put_nowait(GiveBack())
        except (MemberFencedError, UnknownGroupError) as exc:
            if session.generation == generation and session.fenced(time_since_boot()):
                self._has_lost(exc)
        except PASSING as exc:
            self._on_event(ControllerLost(self._group, self._consumer_id, exc))
            session.unanswered(time_since_boot())
            return False
        else:
            if session.is_inside:
                session.beaten(sent_at, time_since_boot())
        return True

    def _has_lost(self, error: GroupError | None) -> None:
        self._on_event(MemberFenced(self._group, self._consumer_id, error))
        self.changes.put_nowait(Lost())

    # Other calls

    async def commit(
        self, generation: int, commits: Iterable[Commit], timeout: float
    ) -> dict[TopicPartition, int | GroupError]:
        """Commit the offsets to read next: in several requests if one message has no room for all.

        Raises:
            MemberFencedError: The generation has ended for this member.
            GroupError, CallTimeoutError, TransportError: Not all offsets could be stored. Committing those
                again that were stored changes nothing.
        """
        deadline, outcome = Deadline(timeout), dict[TopicPartition, int | GroupError]()
        # The other half of a message is for the names in the request, and for errors in the answer.
        for offsets in portions(commit_messages(commits), max_payload_of(self._nc) // 2):
            request = pb.CommitRequest(
                group=self._group,
                consumer_id=self._consumer_id,
                client_id=self._client_id,
                generation=generation,
                offsets=offsets,
            )
            left = deadline.left
            answer = await self._calls.controller(self._group, "Commit", request, pb.CommitResponse, left)
            outcome |= read_offsets(answer.offsets)
        return outcome

    async def confirm(self) -> bool:
        """Ask the group now whether this member keeps its partitions. During a rebalance it does not.

        Raises:
            GroupError: The group refused the heartbeat.
        """
        backoff = Backoff()
        # Without an answer this ends with the session, which keep() ends only while the connection is open.
        while self.session.is_inside and not await self._heartbeat() and not self._nc.is_closed:
            await asyncio.sleep(backoff.next())
        return self.session.is_inside and not self.session.is_leaving

    async def leave(self, timeout: float) -> None:
        """Leave the group.

        Raises:
            GroupError, CallTimeoutError, TransportError: The group was not told; it notices after a session
                timeout.
        """
        request = pb.LeaveRequest(group=self._group, consumer_id=self._consumer_id, client_id=self._client_id)
        try:
            await self._calls.controller(self._group, "Leave", request, pb.LeaveResponse, timeout)
        except (MemberFencedError, UnknownGroupError):
            return  # no longer a member, as wanted


def creation_of(
    group: str, session_timeout: float | None, topics: Iterable[TopicSpec], assignor: str, ephemeral: bool
) -> pb.CreateGroupRequest:
    """Return the request that creates a missing group."""
    seconds = DEFAULT_SESSION_TIMEOUT if session_timeout is None else session_timeout
    return pb.CreateGroupRequest(
        name=group,
        session_timeout_ms=round(seconds * 1_000),
        topics=topic_messages(topics),
        assignor=assignor,
        ephemeral=ephemeral,
    )
