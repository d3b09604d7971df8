"""The activity stream: what happens to streams and consumer groups of a cluster, as typed events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from google.protobuf.message import DecodeError

from liftenvelope._pb import api_pb2
from liftenvelope.client.subscribing import SubscribeMixin
from liftenvelope.errors import NoSuchStreamError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from liftenvelope.client.positions import Start, Stop
    from liftenvelope.client.subscription import Subscription
    from liftenvelope.envelope import Message

__all__ = [
    "ACTIVITY_STREAM",
    "Activity",
    "ActivityEvent",
    "ActivityMixin",
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

#: The stream that a cluster keeps its activity in, in partition 0, if it is configured to keep any.
ACTIVITY_STREAM: Final = "__activity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What all events have.

    Attributes:
        id: Index of the operation in the cluster's Raft log. It grows from event to event, with gaps. The
            same operation has the same id, should a cluster that loses its leader record it twice.
        timestamp_ns: When it was recorded, in nanoseconds since 1970.
        offset: Offset in the activity stream: reading goes on behind the event with ``start=offset + 1``.
    """

    id: int
    timestamp_ns: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCreated(Activity):
    """A stream was created.

    Attributes:
        stream: Its name.
        partitions: Numbers of its partitions.
    """

    stream: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDeleted(Activity):
    """A stream was deleted.

    Attributes:
        stream: Its name.
    """

    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPaused(Activity):
    """Partitions of a stream were paused.

    Attributes:
        stream: Its name.
        partitions: Numbers of the partitions.
        resume_all: Whether a publish to one of them wakes them all.
    """

    stream: str
    partitions: tuple[int, ...]
    resume_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResumed(Activity):
    """Partitions of a stream were woken.

    Attributes:
        stream: Its name.
        partitions: Numbers of the partitions.
    """

    stream: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReadonlySet(Activity):
    """Partitions of a stream were made read-only, or writable again.

    Attributes:
        stream: Its name.
        partitions: Numbers of the partitions.
        readonly: Whether they are read-only now.
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
        streams: Names of the streams that it wants to read.
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
        expired: Whether it was dropped because it was silent for too long; otherwise it left.
    """

    group: str
    consumer: str
    expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownActivity(Activity):
    """What this version of the package has no name for: an operation of a newer server, or no event at all.

    Attributes:
        op: Number of the operation; None where the message is no event (anyone may publish to the stream),
            and then ``id`` is 0.
        value: The bytes of the message.
    """

    op: int | None
    value: bytes


#: What :class:`ActivityStream` hands out.
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


#: By number of the operation: the field that describes it, and what reads that.
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
    """Return the event that a message of the activity stream holds.

    Args:
        message: A message of partition 0 of ``__activity``.

    Returns:
        The event; an :class:`UnknownActivity` for what this version does not know. It never raises.
    """
    offset, timestamp_ns = message.offset, message.timestamp_ns
    try:
        event = api_pb2.ActivityStreamEvent.FromString(message.value)
    except DecodeError:
        return UnknownActivity(id=0, timestamp_ns=timestamp_ns, offset=offset, op=None, value=message.value)
    at = Activity(id=event.id, timestamp_ns=timestamp_ns, offset=offset)
    field, read = _OPERATIONS.get(event.op, ("", None))
    # The first operation has number 0, which is also what is read where there is none.
    if read is None or not event.HasField(field):
        return UnknownActivity(**_place(at), op=event.op, value=message.value)
    return read(event, at)


class ActivityStream:
    """The events of a cluster, in order. Made by :meth:`Client.activity`; open it with ``async with``.

    Iterate over it. A lost connection is made again as that of a :class:`Subscription`, and the same errors
    are raised. For one task at a time.
    """

    def __init__(self, messages: Subscription) -> None:
        self._messages = messages

    @property
    def position(self) -> int | None:
        """Offset of the event that will be handed out next, or a later one; None before that is known."""
        return self._messages.position

    @property
    def finished(self) -> bool:
        """Whether everything was handed out, the read having come to its end or been closed."""
        return self._messages.finished

    async def open(self) -> Self:
        """Begin to read; ``async with`` does it.

        Raises:
            NoSuchStreamError: The cluster keeps no activity stream: ``activity.stream.enabled`` is not set
                in the configuration of its servers.
            NotLeaderError: The activity stream had no leader in all that time.
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
        """End the read. Closing twice is fine."""
        await self._messages.close()

    async def next(self, timeout: float | None = None) -> ActivityEvent | None:
        """Return the next event.

        Args:
            timeout: Seconds to wait for it, None for as long as it takes.

        Returns:
            The event. None if none came in time, or there will be no more: see :attr:`finished`.

        Raises:
            LiftEnvelopeError: What iterating would raise.
        """
        message = await self._messages.next(timeout)
        return None if message is None else read_activity(message)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ActivityEvent:
        return read_activity(await anext(self._messages))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class ActivityMixin(SubscribeMixin):
    """The part of the client that tells what happens in the cluster."""

    def activity(self, *, start: Start = "new", stop: Stop = None) -> ActivityStream:
        """Read what happens to streams and consumer groups. ``async with`` opens it.

        The servers record it if ``activity.stream.enabled`` is set in their configuration. An operation is
        recorded soon after it is done, and kept as long as the configuration says.

        Args:
            start: Where to begin, as :meth:`subscribe` has it: ``"new"`` after the newest event,
                ``"earliest"``, ``"latest"``, an offset such as ``event.offset + 1``, a time, or a cursor.
            stop: Where to end: None for never, ``"latest"`` after what is the newest event when it begins,
                an offset, or a time that has passed.

        Returns:
            The activity stream, not open yet.

        Raises:
            UsageError: An argument makes no sense; it is named.

        Example:
            >>> import asyncio, liftenvelope
            >>> from liftenvelope.client.activity import StreamCreated
            >>> from liftenvelope.testing import run_liftbridge
            >>> async def main(addresses):
            ...     async with liftenvelope.connect(addresses) as client:
            ...         async with client.activity(start="earliest") as events:
            ...             await client.create_stream("orders", "orders", partitions=2)
            ...             async for event in events:
            ...                 if isinstance(event, StreamCreated) and event.stream == "orders":
            ...                     return event.partitions
            >>> with run_liftbridge() as cluster:
            ...     asyncio.run(main(cluster.addresses))
            (0, 1)
        """
        return ActivityStream(self.subscribe(ACTIVITY_STREAM, start=start, stop=stop))
