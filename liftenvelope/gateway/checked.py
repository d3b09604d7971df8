"""Raw NATS messages for streams that check offsets.

JetStream checks the offset that a message is to get only where the publisher says so in a header, and those
who publish envelopes say so in the envelope. So of these streams, and of no others, a gateway is in the path
of what comes by raw NATS: the partition's leader takes it from the subject and publishes it to JetStream with
what it expects. As with Liftbridge, what comes while nobody leads the partition is not stored, nor acked.

Acks of what is stored come from the :class:`~liftenvelope.gateway.acks.AckReader`, as for all streams; the
refusals come from here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.envelope import Ack, Message, marshal_ack, unmarshal_message
from liftenvelope.errors import (
    EnvelopeError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    TransportError,
    UsageError,
    WrongLastSequenceError,
)
from liftenvelope.nats._link import Link
from liftenvelope.types import AckError

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from liftenvelope.gateway.records import StreamRecord
    from liftenvelope.gateway.subjects import AckInboxes
    from liftenvelope.jetstream._publish_frames import PubAck
    from liftenvelope.jetstream.context import JetStream

__all__ = ["CheckedIntake", "wait_for_intakes"]

#: The offset of an envelope that expects none.
_ANY_OFFSET: Final = -1
#: How long one question may take, and the pause between two, in seconds.
_ONE_TRY, _PAUSE = 1.0, 0.01


class CheckedIntake:
    """Takes the messages of one partition from its subject to JetStream.

    Args:
        js: JetStream, and with it the connection.
        record: The stream.
        partition: The partition.
        inboxes: Where acks may go.
        on_error: Told what could not be stored, for reasons other than its offset.
    """

    def __init__(
        self,
        js: JetStream,
        record: StreamRecord,
        partition: int,
        *,
        inboxes: AckInboxes,
        on_error: Callable[[LiftEnvelopeError], None],
    ) -> None:
        self._link = Link(js.api.nc)
        self._js = js
        self._record = record
        self._partition = partition
        self._intake = record.intake_of(partition)
        self._inboxes = inboxes
        self._on_error = on_error
        self._subscriptions: list[Subscription] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to take messages.

        Raises:
            TransportError: The connection is closed or draining.
        """
        subject = self._record.subject_of(self._partition)
        # A queue: as long as two gateways believe to lead, each message is stored once all the same.
        for queued, handler in ((subject, self._take), (_probe(self._record, self._partition), _answer)):
            subscription = await self._link.subscribe(queued, handler, queue=self._intake[:-1])
            self._subscriptions.append(subscription)

    async def close(self) -> None:
        """Take no more."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await self._link.unsubscribe(subscription)
        for task in self._sending:
            task.cancel()
        if self._sending:
            await asyncio.wait(self._sending)

    async def _take(self, msg: Msg) -> None:
        """Publish a message; the next one is taken when this one is on its way, so that order is kept."""
        try:
            message = unmarshal_message(msg.data)
        except EnvelopeError:
            message = None  # a plain value, which expects nothing
        expected = _ANY_OFFSET if message is None else message.offset
        options: Any = {"retry_attempts": 0}  # a retry would change the order
        if expected != _ANY_OFFSET:
            options["expected_last_sequence"] = expected
        if message is not None and expected < _ANY_OFFSET:
            self._refuse(msg, message)
            return
        try:
            stored = await self._js.publish_async(self._intake + msg.subject, msg.data, **options)
        except (TransportError, UsageError) as exc:
            self._on_error(exc)
            return
        stored.add_done_callback(partial(self._stored, msg, message))

    def _stored(self, msg: Msg, message: Message | None, stored: asyncio.Future[PubAck]) -> None:
        if stored.cancelled():
            return
        error = stored.exception()
        if isinstance(error, WrongLastSequenceError) and message is not None:
            self._refuse(msg, message)
        elif isinstance(error, LiftEnvelopeError) and not isinstance(error, NoJetStreamError):
            self._on_error(error)  # else the partition is paused or readonly: not stored, and no ack
        if msg.reply:
            self._send(msg.reply, _pub_ack(stored, error))

    def _refuse(self, msg: Msg, message: Message) -> None:
        """Tell that the offset is another one, whatever the ack policy is, as Liftbridge does."""
        if not self._inboxes.allows_on_nats(message.ack_inbox):
            now = asyncio.get_running_loop().time()
            if message.ack_inbox:
                self._inboxes.warn(self._record.name, self._partition, message.ack_inbox.encode(), now)
            return
        refusal = Ack(
            stream=self._record.name,
            partition_subject=self._record.subject,
            msg_subject=msg.subject,
            ack_inbox=message.ack_inbox,
            correlation_id=message.correlation_id,
            ack_policy=message.ack_policy,
            error=AckError.INCORRECT_OFFSET,
        )
        self._send(message.ack_inbox, marshal_ack(refusal))

    def _send(self, subject: str, payload: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._publish(subject, payload))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _publish(self, subject: str, payload: bytes) -> None:
        try:
            await self._link.publish(subject, payload)
        except TransportError as exc:
            self._on_error(exc)


def _pub_ack(stored: asyncio.Future[PubAck], error: BaseException | None) -> bytes:
    """What JetStream answers to a publisher that asked for it."""
    if error is None:
        ack = stored.result()
        answer: dict[str, Any] = {"stream": ack.stream, "seq": ack.sequence}
    else:
        code, err_code = (error.code, error.err_code) if isinstance(error, JetStreamError) else (503, 0)
        answer = {"error": {"code": code, "err_code": err_code, "description": str(error)}}
    return json.dumps(answer).encode()


def _probe(record: StreamRecord, partition: int) -> str:
    return f"_lift.intake.{record.id}.{partition}"


async def _answer(msg: Msg) -> None:
    await msg.respond(b"")


async def wait_for_intakes(js: JetStream, record: StreamRecord, *, timeout: float) -> None:
    """Wait until the messages of every partition are taken, if that is within the time.

    Args:
        js: JetStream, and with it the connection.
        record: A stream that checks offsets.
        timeout: How long to wait, in seconds.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    for partition in range(len(record.partitions)):
        while loop.time() < deadline:
            try:
                await js.api.ask(_probe(record, partition), timeout=_ONE_TRY)
                break
            except LiftEnvelopeError:
                await asyncio.sleep(_PAUSE)  # nobody takes them yet, or NATS is away
