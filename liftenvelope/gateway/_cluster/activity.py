"""The activity stream: one event for each change of a stream or a consumer group, in order.

Events are published in the background, so no call waits for them. Publishing is retried until the event is
stored. The event id is the sequence of the event in the activity stream. In Liftbridge the id is the index of
the operation in the Raft log. Each publish carries the expected last sequence, so two gateways that publish
at the same time never use the same id.

The compare-and-set that changes a stream also writes the event to the stream's record. The event stays there
until it is stored. If the gateway dies first, another gateway publishes the event. So events of streams are
delivered at least once. A duplicate appears only if the retry comes after JetStream's duplicate window of two
minutes. Events of groups are not recorded: unpublished ones are lost when the gateway dies.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from liftenvelope._backoff import Backoff
from liftenvelope._deadlines import Deadline
from liftenvelope._pb import api_pb2
from liftenvelope.consumers.tasks import background, cancel
from liftenvelope.errors import LiftEnvelopeError, WrongLastSequenceError
from liftenvelope.gateway._cluster.records import RecordedEvent

if TYPE_CHECKING:
    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.jetstream.context import JetStream

__all__ = ["ActivityLog", "created", "deleted", "paused", "readonly_set", "resumed"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Maximum number of events that wait while JetStream stores none. The oldest are dropped first.
_MOST_WAITING: Final = 10_000


def created(record: StreamRecord) -> api_pb2.ActivityStreamEvent:
    """Return the event for a created stream."""
    numbers = range(len(record.partitions))
    return _event("CREATE_STREAM", createStreamOp={"stream": record.name, "partitions": numbers})


def deleted(name: str) -> api_pb2.ActivityStreamEvent:
    """Return the event for a deleted stream."""
    return _event("DELETE_STREAM", deleteStreamOp={"stream": name})


def paused(name: str, partitions: list[int], resume_all: bool) -> api_pb2.ActivityStreamEvent:
    """Return the event for paused partitions."""
    op = {"stream": name, "partitions": partitions, "resumeAll": resume_all}
    return _event("PAUSE_STREAM", pauseStreamOp=op)


def resumed(name: str, partitions: list[int]) -> api_pb2.ActivityStreamEvent:
    """Return the event for resumed partitions."""
    return _event("RESUME_STREAM", resumeStreamOp={"stream": name, "partitions": partitions})


def readonly_set(name: str, partitions: list[int], readonly: bool) -> api_pb2.ActivityStreamEvent:
    """Return the event for partitions that were made readonly or writable."""
    op = {"stream": name, "partitions": partitions, "readonly": readonly}
    return _event("SET_STREAM_READONLY", setStreamReadonlyOp=op)


def _event(op: str, **details: Any) -> api_pb2.ActivityStreamEvent:
    return api_pb2.ActivityStreamEvent(op=getattr(api_pb2, op), **details)


@dataclass(slots=True)
class _PendingEvent:
    """An event that is not stored yet, or still in a stream's record."""

    event: api_pb2.ActivityStreamEvent
    token: str
    #: Name of the stream whose record holds the event; empty for none.
    stream: str = ""
    stored: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)


class ActivityLog:
    """Publishes events to the activity stream.

    Args:
        js: JetStream.
        record: Record of the activity stream.
        gateway: Id of this gateway.
        clear: Removes a stored event from a stream's record. Called with the stream's name and the event's
            token. Default: records are left as they are.

    Attributes:
        dropped: Number of events dropped because too many waited.
    """

    def __init__(
        self,
        js: JetStream,
        record: StreamRecord,
        *,
        gateway: str = "",
        clear: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        self._js = js
        self._subject = record.subject_of(0)
        self._stream = record.stream_of(0)
        self._gateway = gateway
        self._run_id = secrets.token_hex(4)
        self._clear = clear
        # Events by token, in the order of publishing.
        self._waiting: dict[str, _PendingEvent] = {}
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last = -1
        self.dropped = 0

    async def start(self) -> None:
        """Start to publish events in the background."""
        self._task = background(self._run(), name="activity stream", log=_log)

    async def close(self, *, timeout: float = 2.0) -> None:
        """Stop publishing, after a limited time to publish the waiting events.

        Args:
            timeout: Seconds to wait for the waiting events.
        """
        task, self._task = self._task, None
        if task is None:
            return
        deadline = Deadline(timeout)
        while self._waiting and not deadline.is_over and not task.done():
            await asyncio.sleep(0.01)
        await cancel([task])

    # Events of streams

    def recorded(self, event: api_pb2.ActivityStreamEvent) -> RecordedEvent:
        """Return an event in the form that the stream's record holds until the event is stored."""
        return RecordedEvent(
            token=secrets.token_hex(12),
            gateway=self._gateway,
            run=self._run_id,
            data=event.SerializeToString().hex(),
        )

    def tell(self, stream: str, events: Iterable[RecordedEvent]) -> None:
        """Queue the events in a stream's record for publishing, except those that wait already."""
        for event in events:
            if event.token in self._waiting:
                continue
            try:
                message = api_pb2.ActivityStreamEvent.FromString(bytes.fromhex(event.data))
            except (ValueError, DecodeError) as exc:
                # Not written by a gateway.
                _log.warning(
                    "skipped an event in the record of stream %s that can't be read: %s", stream, exc
                )
            else:
                self._add(_PendingEvent(message, event.token, stream))

    async def told(self, events: Iterable[RecordedEvent], *, timeout: float = 2.0) -> None:
        """Wait until events are stored; log a warning and return after the timeout.

        Args:
            events: Events that were passed to :meth:`tell`.
            timeout: Seconds to wait.
        """
        waiting = [self._waiting[event.token] for event in events if event.token in self._waiting]
        try:
            async with asyncio.timeout(timeout):
                for one in waiting:
                    await one.done.wait()
        except TimeoutError:
            _log.warning(
                "the activity stream stored nothing in time: %d events wait in this gateway's memory",
                len(waiting),
            )

    def is_left_over(self, event: RecordedEvent, alive: Iterable[str], *, of_the_dead: bool) -> bool:
        """Return True if this gateway must publish an event of its own earlier run or of a dead gateway.

        Args:
            event: The event, from a stream's record.
            alive: Ids of the live gateways.
            of_the_dead: True if this gateway publishes the events of dead gateways.
        """
        if event.gateway == self._gateway:
            return event.run != self._run_id
        return of_the_dead and event.gateway not in alive

    # Events of groups

    def group_joined(self, group: str, consumer: str, streams: Iterable[str]) -> None:
        """Queue the event for a consumer that joined a group."""
        op = {"groupId": group, "consumerId": consumer, "streams": streams}
        self._add(_PendingEvent(_event("JOIN_CONSUMER_GROUP", joinConsumerGroupOp=op), secrets.token_hex(12)))

    def group_left(self, group: str, consumer: str, *, expired: bool) -> None:
        """Queue the event for a consumer that left a group or, if ``expired``, was removed from it."""
        op = {"groupId": group, "consumerId": consumer, "expired": expired}
        self._add(
            _PendingEvent(_event("LEAVE_CONSUMER_GROUP", leaveConsumerGroupOp=op), secrets.token_hex(12))
        )

    def _add(self, waiting: _PendingEvent) -> None:
        if len(self._waiting) == _MOST_WAITING:
            self._waiting.pop(next(iter(self._waiting)))
            self.dropped += 1
        self._waiting[waiting.token] = waiting
        self._some.set()

    # Publishing

    async def _run(self) -> None:
        backoff = Backoff(first=0.1, longest=5.0)
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                one = next(iter(self._waiting.values()))
                try:
                    await self._settle(one)
                except LiftEnvelopeError as exc:
                    _log.warning(
                        "could not store an event in the activity stream, %d events wait: %s",
                        len(self._waiting),
                        exc,
                    )
                    await asyncio.sleep(backoff.next())
                    continue
                backoff.reset()
                self._waiting.pop(one.token, None)

    async def _settle(self, one: _PendingEvent) -> None:
        """Publish an event, then remove it from the stream's record."""
        if not one.stored:
            await self._publish(one.event, one.token)
            one.stored = True
            one.done.set()
        if one.stream and self._clear is not None:
            await self._clear(one.stream, one.token)

    async def _publish(self, event: api_pb2.ActivityStreamEvent, token: str) -> None:
        """Publish an event with the next sequence of the activity stream as its id."""
        while True:
            if self._last < 0:
                info = await self._js.api.request(f"STREAM.INFO.{self._stream}")
                self._last = int(info["state"]["last_seq"])
            event.id = self._last + 1
            expected, self._last = self._last, -1
            try:
                ack = await self._js.publish(
                    self._subject,
                    event.SerializeToString(),
                    expected_last_sequence=expected,
                    message_id=token,
                )
            except WrongLastSequenceError:
                continue  # another gateway took this sequence
            self._last = ack.sequence
            return
