"""The activity stream: an event for each change of a stream or a consumer group, in their order.

An event is published in the background, so that no call waits for it, and again until it is stored. Its id,
which in Liftbridge is the number of the operation in the Raft log, is that of the event in the stream:
JetStream is told which one it expects, so two gateways that publish at once don't get the same.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._pb import api_pb2
from liftenvelope.errors import LiftEnvelopeError, WrongLastSequenceError

if TYPE_CHECKING:
    from liftenvelope.gateway.records import StreamRecord
    from liftenvelope.jetstream.context import JetStream

__all__ = ["ActivityLog"]

_log: Final = logging.getLogger("liftenvelope.gateway")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
#: How many events may wait while JetStream stores none. The oldest go first.
_MOST_WAITING: Final = 10_000


class ActivityLog:
    """Publishes events.

    Args:
        js: JetStream.
        record: The activity stream.

    Attributes:
        dropped: How many events were given up because too many waited.
    """

    def __init__(self, js: JetStream, record: StreamRecord) -> None:
        self._js = js
        self._subject = record.subject_of(0)
        self._stream = record.stream_of(0)
        # Each with a token by which JetStream knows it again when it is sent twice.
        self._waiting: deque[tuple[api_pb2.ActivityStreamEvent, str]] = deque()
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

    # What happens

    async def stream_created(self, record: StreamRecord) -> None:
        """A stream was made."""
        numbers = range(len(record.partitions))
        self._add("CREATE_STREAM", createStreamOp={"stream": record.name, "partitions": numbers})

    async def stream_deleted(self, record: StreamRecord) -> None:
        """A stream was removed."""
        self._add("DELETE_STREAM", deleteStreamOp={"stream": record.name})

    async def stream_paused(self, record: StreamRecord, partitions: list[int], resume_all: bool) -> None:
        """Partitions were paused."""
        op = {"stream": record.name, "partitions": partitions, "resumeAll": resume_all}
        self._add("PAUSE_STREAM", pauseStreamOp=op)

    async def stream_resumed(self, record: StreamRecord, partitions: list[int]) -> None:
        """Partitions were woken."""
        self._add("RESUME_STREAM", resumeStreamOp={"stream": record.name, "partitions": partitions})

    async def stream_readonly_set(self, record: StreamRecord, partitions: list[int], readonly: bool) -> None:
        """Partitions were made readonly, or writable."""
        op = {"stream": record.name, "partitions": partitions, "readonly": readonly}
        self._add("SET_STREAM_READONLY", setStreamReadonlyOp=op)

    def group_joined(self, group: str, consumer: str, streams: Iterable[str]) -> None:
        """A consumer joined a group."""
        op = {"groupId": group, "consumerId": consumer, "streams": streams}
        self._add("JOIN_CONSUMER_GROUP", joinConsumerGroupOp=op)

    def group_left(self, group: str, consumer: str, *, expired: bool) -> None:
        """A consumer left a group, or was dropped from it."""
        op = {"groupId": group, "consumerId": consumer, "expired": expired}
        self._add("LEAVE_CONSUMER_GROUP", leaveConsumerGroupOp=op)

    def _add(self, op: str, **details: Any) -> None:
        event = api_pb2.ActivityStreamEvent(op=getattr(api_pb2, op), **details)
        if len(self._waiting) == _MOST_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append((event, secrets.token_hex(12)))
        self._some.set()

    # Publishing

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                event, token = self._waiting[0]
                try:
                    await self._publish(event, token)
                except LiftEnvelopeError as exc:
                    _log.warning(
                        "the activity stream takes nothing, %d events wait: %s", len(self._waiting), exc
                    )
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                pause = _FIRST_PAUSE
                if self._waiting and self._waiting[0][1] == token:
                    self._waiting.popleft()

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
