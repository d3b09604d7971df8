"""The activity stream: an event for each change of a stream or a consumer group, in their order.

An event is published in the background, so that no call waits for it, and again until it is stored. Its id,
which in Liftbridge is the number of the operation in the Raft log, is that of the event in the stream:
JetStream is told which one it expects, so two gateways that publish at once don't get the same.

What is done to a stream stands in the stream's record, by the same compare-and-set that does it, until the
event is stored: when the gateway dies before that, another one publishes it. It comes at least once; twice if
that takes longer than JetStream's window for duplicates, two minutes. Of groups, what is not published when a
gateway dies is lost.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from liftenvelope._pb import api_pb2
from liftenvelope.errors import LiftEnvelopeError, WrongLastSequenceError
from liftenvelope.gateway.records import RecordedEvent

if TYPE_CHECKING:
    from liftenvelope.gateway.records import StreamRecord
    from liftenvelope.jetstream.context import JetStream

__all__ = ["ActivityLog", "created", "deleted", "paused", "readonly_set", "resumed"]

_log: Final = logging.getLogger("liftenvelope.gateway")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
#: How many events may wait while JetStream stores none. The oldest go first.
_MOST_WAITING: Final = 10_000


def created(record: StreamRecord) -> api_pb2.ActivityStreamEvent:
    """A stream was made."""
    numbers = range(len(record.partitions))
    return _event("CREATE_STREAM", createStreamOp={"stream": record.name, "partitions": numbers})


def deleted(name: str) -> api_pb2.ActivityStreamEvent:
    """A stream was removed."""
    return _event("DELETE_STREAM", deleteStreamOp={"stream": name})


def paused(name: str, partitions: list[int], resume_all: bool) -> api_pb2.ActivityStreamEvent:
    """Partitions were paused."""
    op = {"stream": name, "partitions": partitions, "resumeAll": resume_all}
    return _event("PAUSE_STREAM", pauseStreamOp=op)


def resumed(name: str, partitions: list[int]) -> api_pb2.ActivityStreamEvent:
    """Partitions were woken."""
    return _event("RESUME_STREAM", resumeStreamOp={"stream": name, "partitions": partitions})


def readonly_set(name: str, partitions: list[int], readonly: bool) -> api_pb2.ActivityStreamEvent:
    """Partitions were made readonly, or writable."""
    op = {"stream": name, "partitions": partitions, "readonly": readonly}
    return _event("SET_STREAM_READONLY", setStreamReadonlyOp=op)


def _event(op: str, **details: Any) -> api_pb2.ActivityStreamEvent:
    return api_pb2.ActivityStreamEvent(op=getattr(api_pb2, op), **details)


@dataclass(slots=True)
class _Waiting:
    """An event that is yet to be stored."""

    event: api_pb2.ActivityStreamEvent
    token: str
    #: In whose record it stands; empty for none's.
    stream: str = ""
    stored: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)


class ActivityLog:
    """Publishes events.

    Args:
        js: JetStream.
        record: The activity stream.
        gateway: Id of this gateway.
        clear: Takes an event that is stored out of the record of a stream, by the stream's name and the
            event's token. Default: nothing is done.

    Attributes:
        dropped: How many events were given up because too many waited.
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
        # By their tokens, in order.
        self._waiting: dict[str, _Waiting] = {}
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last = -1
        self.dropped = 0

    async def start(self) -> None:
        """Publish from now on what happens."""
        self._task = asyncio.create_task(self._run(), name="activity stream")

    async def close(self, *, timeout: float = 2.0) -> None:
        """Publish what waits, if that is soon, and no more.

        Args:
            timeout: How long that may take, in seconds.
        """
        task, self._task = self._task, None
        if task is None:
            return
        deadline = asyncio.get_running_loop().time() + timeout
        while self._waiting and asyncio.get_running_loop().time() < deadline and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])

    # What happens to streams

    def recorded(self, event: api_pb2.ActivityStreamEvent) -> RecordedEvent:
        """Return an event as it is to stand in the stream's record until it is stored."""
        return RecordedEvent(
            token=secrets.token_hex(12),
            gateway=self._gateway,
            run=self._run_id,
            data=event.SerializeToString().hex(),
        )

    def tell(self, stream: str, events: Iterable[RecordedEvent]) -> None:
        """Publish events that stand in the record of a stream; those that wait already wait on."""
        for event in events:
            if event.token in self._waiting:
                continue
            try:
                message = api_pb2.ActivityStreamEvent.FromString(bytes.fromhex(event.data))
            except (ValueError, DecodeError) as exc:
                # Of somebody else who writes there.
                _log.warning("in the record of %s is an event that can't be read: %s", stream, exc)
            else:
                self._add(_Waiting(message, event.token, stream))

    async def told(self, events: Iterable[RecordedEvent], *, timeout: float = 2.0) -> None:
        """Wait until events are stored, if that is soon.

        Args:
            events: Events that were given to :meth:`tell`.
            timeout: How long that may take, in seconds.
        """
        waiting = [self._waiting[event.token] for event in events if event.token in self._waiting]
        try:
            async with asyncio.timeout(timeout):
                for one in waiting:
                    await one.done.wait()
        except TimeoutError:
            _log.warning(
                "the activity stream takes nothing: %d events wait in this gateway alone", len(waiting)
            )

    def is_left_over(self, event: RecordedEvent, alive: Iterable[str], *, of_the_dead: bool) -> bool:
        """Whether an event in a record is this gateway's to publish, though not of its doing.

        Args:
            event: The event.
            alive: The gateways that live.
            of_the_dead: Whether those of the dead are this one's.
        """
        if event.gateway == self._gateway:
            return event.run != self._run_id
        return of_the_dead and event.gateway not in alive

    # What happens to groups

    def group_joined(self, group: str, consumer: str, streams: Iterable[str]) -> None:
        """A consumer joined a group."""
        op = {"groupId": group, "consumerId": consumer, "streams": streams}
        self._add(_Waiting(_event("JOIN_CONSUMER_GROUP", joinConsumerGroupOp=op), secrets.token_hex(12)))

    def group_left(self, group: str, consumer: str, *, expired: bool) -> None:
        """A consumer left a group, or was dropped from it."""
        op = {"groupId": group, "consumerId": consumer, "expired": expired}
        self._add(_Waiting(_event("LEAVE_CONSUMER_GROUP", leaveConsumerGroupOp=op), secrets.token_hex(12)))

    def _add(self, waiting: _Waiting) -> None:
        if len(self._waiting) == _MOST_WAITING:
            self._waiting.pop(next(iter(self._waiting)))
            self.dropped += 1
        self._waiting[waiting.token] = waiting
        self._some.set()

    # Publishing

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                one = next(iter(self._waiting.values()))
                try:
                    await self._settle(one)
                except LiftEnvelopeError as exc:
                    _log.warning(
                        "the activity stream takes nothing, %d events wait: %s", len(self._waiting), exc
                    )
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                pause = _FIRST_PAUSE
                self._waiting.pop(one.token, None)

    async def _settle(self, one: _Waiting) -> None:
        """Publish one, and take it out of the record that it stands in."""
        if not one.stored:
            await self._publish(one.event, one.token)
            one.stored = True
            one.done.set()
        if one.stream and self._clear is not None:
            await self._clear(one.stream, one.token)

    async def _publish(self, event: api_pb2.ActivityStreamEvent, token: str) -> None:
        """Publish one as the next of the stream, whichever that is."""
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
                continue  # another gateway was quicker
            self._last = ack.sequence
            return
