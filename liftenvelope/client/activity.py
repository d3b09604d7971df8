"""Activity stream: changes to a cluster's streams and consumer groups as typed events."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from google.protobuf.message import DecodeError

from liftenvelope._pb import api_pb2
from liftenvelope.errors import NoSuchStreamError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from liftenvelope.client._reading.subscription import Subscription
    from liftenvelope.envelope import Message

__all__ = [
    "ACTIVITY_STREAM",
    "Activity",
    "ActivityEvent",
    "ActivityStream",
    "GroupJoined",
    "GroupLeft",
    "StreamCreated",
    "StreamDeleted",
    "StreamPaused",
    "StreamReadonlySet",
    "StreamResumed",
    "UnknownActivity",
    "read_activity",
]

#: Stream with the cluster's activity, in partition 0. It exists only if ``activity.stream.enabled`` is set.
ACTIVITY_STREAM: Final = "__activity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Common base of all activity events.

    Attributes:
        id: Index of the operation in the cluster's Raft log. Ids increase from event to event, with gaps.
        timestamp_ns: Time of recording, in nanoseconds since 1970.
        offset: Offset in the activity stream.

    To continue after an event, pass the event as ``start`` of :meth:`Client.activity`. Of a stored event, its
    id and offset are enough: ``Activity(id=id, offset=offset, timestamp_ns=0)``.
    """

    id: int
    timestamp_ns: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCreated(Activity):
    """A stream was created.

    Attributes:
        stream: Name of the stream.
        partitions: Numbers of its partitions.
    """

    stream: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDeleted(Activity):
    """A stream was deleted.

    Attributes:
        stream: Name of the stream.
    """

    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPaused(Activity):
    """Partitions of a stream were paused.

    Attributes:
        stream: Name of the stream.
        partitions: Numbers of the paused partitions.
        resume_all: True if a publish to one of these partitions resumes all of them.
    """

    stream: str
    partitions: tuple[int, ...]
    resume_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResumed(Activity):
    """Paused partitions of a stream were resumed.

    Attributes:
        stream: Name of the stream.
        partitions: Numbers of the resumed partitions.
    """

    stream: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReadonlySet(Activity):
    """Partitions of a stream were made read-only, or writable again.

    Attributes:
        stream: Name of the stream.
        partitions: Numbers of the partitions.
        readonly: True if these partitions are read-only now.
    """

    stream: str
    partitions: tuple[int, ...]
    readonly: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJoined(Activity):
    """A consumer joined a consumer group.

    Attributes:
        group: Name of the group.
        consumer: Id of the consumer.
        streams: Names of the streams that the consumer subscribes to.
    """

    group: str
    consumer: str
    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLeft(Activity):
    """A consumer is no longer in a consumer group.

    Attributes:
        group: Name of the group.
        consumer: Id of the consumer.
        expired: True if the coordinator removed the consumer after missed heartbeats, False if the consumer
            left.
    """

    group: str
    consumer: str
    expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownActivity(Activity):
    """An operation that this version does not know, or a message that is not an event.

    Newer servers may have more operations, and any client may publish to the activity stream.

    Attributes:
        op: Number of the operation. None if the message is not an event; ``id`` is 0 then.
        value: Raw value of the message.
    """

    op: int | None
    value: bytes


#: Any event of an :class:`ActivityStream`.
ActivityEvent: TypeAlias = (
    StreamCreated
    | StreamDeleted
    | StreamPaused
    | StreamResumed
    | StreamReadonlySet
    | GroupJoined
    | GroupLeft
    | UnknownActivity
)

_Read: TypeAlias = "Callable[[api_pb2.ActivityStreamEvent, Activity], ActivityEvent]"


def _place(at: Activity) -> dict[str, int]:
    return {"id": at.id, "timestamp_ns": at.timestamp_ns, "offset": at.offset}


def _created(event: api_pb2.ActivityStreamEvent, at: Activity) -> ActivityEvent:
    op = event.createStreamOp
    return StreamCreated(**_place(at), stream=op.stream, partitions=tuple(op.partitions))


def _deleted(event: api_pb2.ActivityStreamEvent, at: Activity) -> ActivityEvent:
    return StreamDeleted(**_place(at), stream=event.deleteStreamOp.stream)


def _paused(event: api_pb2.ActivityStreamEvent, at: Activity) -> ActivityEvent:
    op = event.pauseStreamOp
    return StreamPaused(
        **_place(at), stream=op.stream, partitions=tuple(op.partitions), resume_all=op.resumeAll
    )


def _resumed(event: api_pb2.ActivityStreamEvent, at: Activity) -> ActivityEvent:
    op = event.resumeStreamOp
    return StreamResumed(**_place(at), stream=op.stream, partitions=tuple(op.partitions))


def _readonly_set(event: api_pb2.ActivityStreamEvent, at: Activity) -> ActivityEvent:
    op = event.setStreamReadonlyOp
    return StreamReadonlySet(
        **_place(at), stream=op.stream, partitions=tuple(op.partitions), readonly=op.readonly
    )


def _joined(event: api_pb2.ActivityStreamEvent, at: Activity) -> ActivityEvent:
    op = event.joinConsumerGroupOp
    return GroupJoined(**_place(at), group=op.groupId, consumer=op.consumerId, streams=tuple(op.streams))


def _left(event: api_pb2.ActivityStreamEvent, at: Activity) -> ActivityEvent:
    op = event.leaveConsumerGroupOp
    return GroupLeft(**_place(at), group=op.groupId, consumer=op.consumerId, expired=op.expired)


#: Protobuf field and its reader by number of the operation.
_OPERATIONS: Final[dict[int, tuple[str, _Read]]] = {
    api_pb2.CREATE_STREAM: ("createStreamOp", _created),
    api_pb2.DELETE_STREAM: ("deleteStreamOp", _deleted),
    api_pb2.PAUSE_STREAM: ("pauseStreamOp", _paused),
    api_pb2.RESUME_STREAM: ("resumeStreamOp", _resumed),
    api_pb2.SET_STREAM_READONLY: ("setStreamReadonlyOp", _readonly_set),
    api_pb2.JOIN_CONSUMER_GROUP: ("joinConsumerGroupOp", _joined),
    api_pb2.LEAVE_CONSUMER_GROUP: ("leaveConsumerGroupOp", _left),
}


def read_activity(message: Message) -> ActivityEvent:
    """Decode a message of the activity stream into an event. Never raises.

    Args:
        message: A message of partition 0 of ``__activity``.

    Returns:
        The event; :class:`UnknownActivity` if this version does not know the operation or cannot decode the
        value.
    """
    offset, timestamp_ns = message.offset, message.timestamp_ns
    try:
        event = api_pb2.ActivityStreamEvent.FromString(message.value)
    except DecodeError:
        return UnknownActivity(id=0, timestamp_ns=timestamp_ns, offset=offset, op=None, value=message.value)
    at = Activity(id=event.id, timestamp_ns=timestamp_ns, offset=offset)
    field, read = _OPERATIONS.get(event.op, ("", None))
    # CREATE_STREAM is 0, the default of the proto3 field: only the operation's own field tells the two apart.
    if read is None or not event.HasField(field):
        return UnknownActivity(**_place(at), op=event.op, value=message.value)
    return read(event, at)


class ActivityStream:
    """Iterates over the events of a cluster in order. Made by :meth:`Client.activity`.

    Open it with ``async with``. It reconnects like a :class:`Subscription`, and raises the same errors. For
    one task at a time.

    A server that cannot confirm the record of an event at once, or that loses the leadership, records the
    event again. Such a copy is left out.

    Args:
        messages: Read of the activity stream, not open yet.
        after: Event that the read continues after. Its copies are left out as well.
    """

    def __init__(self, messages: Subscription, after: Activity | None = None) -> None:
        self._messages = messages
        self._after = after
        self._last_value: bytes | None = None
        #: Event that the blocking client took, and whose caller was interrupted before it got the event.
        self._kept: ActivityEvent | None = None

    @property
    def position(self) -> int | None:
        """Lower bound of the next event's offset; None until the start is known."""
        return self._messages.position if self._kept is None else self._kept.offset

    @property
    def finished(self) -> bool:
        """True once all events were returned: the read reached its end or was closed."""
        return self._messages.finished and self._kept is None

    async def open(self) -> Self:
        """Start the read; ``async with`` does it.

        Raises:
            NoSuchStreamError: The cluster keeps no activity stream: ``activity.stream.enabled`` is not set
                in the configuration of its servers.
            NotLeaderError: The activity stream had no leader until the timeout.
            CallTimeoutError: The server did not answer in time.
            TransportError: No broker could be reached.
        """
        try:
            await self._messages.open()
        except NoSuchStreamError as exc:
            text = (
                "the cluster keeps no activity stream (activity.stream.enabled is not set in the "
                "configuration of its servers), or it has only just started"
            )
            raise NoSuchStreamError(exc.code, text) from exc
        return self

    async def close(self) -> None:
        """End the read. Closing twice has no effect."""
        await self._messages.close()

    async def next(self, timeout: float | None = None) -> ActivityEvent | None:
        """Return the next event.

        Args:
            timeout: Seconds to wait for an event; None waits without limit.

        Returns:
            The event; None on timeout, or if there are no more events (:attr:`finished` is True then).

        Raises:
            LiftEnvelopeError: As iteration does.
        """
        if (kept := self._pop_kept()) is not None:
            return kept
        asked = time.monotonic()
        message = await self._messages.next(timeout)
        while message is not None and (event := self._new_event(message)) is None:
            left = None if timeout is None else max(0.0, asked + timeout - time.monotonic())
            message = await self._messages.next(left)
        return None if message is None else event

    def _take_back(self, event: ActivityEvent | None) -> None:
        """Keep an event of :meth:`next` for the next read: the caller was interrupted before it got it."""
        self._kept = event

    def _pop_kept(self) -> ActivityEvent | None:
        kept, self._kept = self._kept, None
        return kept

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ActivityEvent:
        if (kept := self._pop_kept()) is not None:
            return kept
        while (event := self._new_event(await anext(self._messages))) is None:
            pass
        return event

    def _new_event(self, message: Message) -> ActivityEvent | None:
        """Return the event of a message, or None for a copy of the event before.

        The values of two events differ in the id. Ids alone don't decide: anybody can publish to the activity
        stream, and a made-up high id would hide all later events.
        """
        if message.value == self._last_value:
            return None
        self._last_value = message.value
        event = read_activity(message)
        if self._after is not None and event.id and event.id == self._after.id:
            return None
        return event

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
