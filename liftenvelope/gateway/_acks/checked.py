"""Raw NATS messages for streams that check offsets.

JetStream checks the expected offset of a message only if the publisher sets a header. Raw publishers name the
expected offset in the envelope instead. So for these streams, and no others, a gateway is in the path of raw
NATS messages: the partition's leader receives them from the subject and publishes them to JetStream with the
header. As in Liftbridge, messages that arrive while the partition has no leader are neither stored nor acked.
Nor are messages that arrive while too many wait for JetStream.

A plain value expects offset 0, as in Liftbridge: it is stored only as the first message of its partition.

The :class:`~liftenvelope.gateway._acks.reader.PartitionAckReader` acks stored messages, as for all
streams. This module sends the refusals.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._logs.throttle import Throttle
from liftenvelope.consumers.tasks import cancel
from liftenvelope.envelope import Ack, Message, marshal_ack, unmarshal_message
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    EnvelopeError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    ResourcesExceededError,
    TransportError,
    UsageError,
    WrongLastSequenceError,
)
from liftenvelope.nats.link import Link
from liftenvelope.types import AckError

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from liftenvelope.gateway._clients.pending import Held
    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._protocol.subjects import AckInboxes
    from liftenvelope.jetstream.context import JetStream
    from liftenvelope.jetstream.publish_frames import PubAck

__all__ = ["CheckedIntake", "wait_for_intakes"]

#: Offset in an envelope that expects no particular offset.
_ANY_OFFSET: Final = -1
#: Offset that a plain value expects: Liftbridge reads its missing field as 0.
_FIRST_OFFSET: Final = 0
#: JetStream's error code for a lack of resources.
_NO_RESOURCES: Final = 10023
#: Timeout of one request and pause between two, in seconds.
_ONE_TRY, _PAUSE = 1.0, 0.01


class CheckedIntake:
    """Forwards raw messages of one partition from its subject to JetStream, with the expected offset.

    Args:
        js: JetStream, for its API and connection.
        record: Record of the stream.
        partition: Number of the partition.
        inboxes: Allowed ack inboxes and reply subjects.
        held: Bytes that wait for JetStream. If there is no room for a message, it is refused.
        on_error: Called with the error if a message is not stored for a reason other than its offset, and,
            now and then, if plain values are not.
    """

    def __init__(
        self,
        js: JetStream,
        record: StreamRecord,
        partition: int,
        *,
        inboxes: AckInboxes,
        held: Held,
        on_error: Callable[[LiftEnvelopeError], None],
    ) -> None:
        self._link = Link(js.api.nc)
        self._js = js
        self._record = record
        self._partition = partition
        self._intake = record.intake_of(partition)
        self._inboxes = inboxes
        self._held = held
        self._throttle = Throttle()
        self._on_error = on_error
        self._subscriptions: list[Subscription] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to forward messages.

        Raises:
            TransportError: The connection is closed or draining.
        """
        subject = self._record.subject_of(self._partition)
        # A queue group, so that each message is stored once even while two gateways believe that they lead.
        for queued, handler in ((subject, self._take), (_probe(self._record, self._partition), self._answer)):
            subscription = await self._link.subscribe(queued, handler, queue=self._intake[:-1])
            self._subscriptions.append(subscription)

    async def close(self) -> None:
        """Stop forwarding messages."""
        while self._subscriptions:  # a cancelled call leaves the others to the next
            await self._link.unsubscribe(self._subscriptions[-1])
            self._subscriptions.pop()
        await cancel(self._sending)

    async def _answer(self, msg: Msg) -> None:
        if self._inboxes.replies.admits(msg):
            self._send(msg.reply, b"")

    async def _take(self, msg: Msg) -> None:
        """Publish a message. nats-py passes on the next one after this one is sent, which keeps the order."""
        try:
            message = unmarshal_message(msg.data)
        except EnvelopeError:
            message = None  # a plain value
        expected = _FIRST_OFFSET if message is None else message.offset
        options: Any = {"retry_attempts": 0}  # a retry would change the order
        if expected != _ANY_OFFSET:
            options["expected_last_sequence"] = expected
        if message is not None and expected < _ANY_OFFSET:
            self._refuse(msg, message)
            return
        size = len(msg.data)
        if self._js.publish_async_pending >= self._js.max_outstanding or not self._held.add_now(size):
            self._refuse_for_room(msg)
            return
        with self._held.split(size) as held:
            try:
                stored = await self._js.publish_async(self._intake + msg.subject, msg.data, **options)
            except (TransportError, UsageError) as exc:
                self._on_error(exc)
                return
            held.keep_until(stored)
        stored.add_done_callback(partial(self._stored, msg, message))

    def _refuse_for_room(self, msg: Msg) -> None:
        text = "the message is not stored: too many others wait for JetStream"
        text += " (limits max_pending_bytes_per_client and max_pending_publishes_in_all)"
        error = ResourcesExceededError(503, text, err_code=_NO_RESOURCES)
        if self._throttle.admits("room", asyncio.get_running_loop().time()):
            self._on_error(error)
        if self._inboxes.replies.admits(msg):
            self._send(msg.reply, _refusal(error))

    def _stored(self, msg: Msg, message: Message | None, stored: asyncio.Future[PubAck]) -> None:
        if stored.cancelled():
            return
        error = stored.exception()
        if isinstance(error, WrongLastSequenceError):
            if message is not None:
                self._refuse(msg, message)
            elif self._throttle.admits("plain", asyncio.get_running_loop().time()):
                # A plain value names no inbox, so nobody else would hear of it.
                text = f"a plain value is not stored, as it is not the first message: {error.description}"
                self._on_error(WrongLastSequenceError(error.code, text, error.err_code))
        elif isinstance(error, LiftEnvelopeError) and not isinstance(error, NoJetStreamError):
            self._on_error(error)  # else the partition is paused or readonly: no ack
        is_unknown = isinstance(error, AckTimeoutError) or (isinstance(error, TransportError) and error.sent)
        if not is_unknown and self._inboxes.replies.admits(msg):
            self._send(msg.reply, _pub_ack(stored, error))  # an error would say that it is not stored

    def _refuse(self, msg: Msg, message: Message) -> None:
        """Send INCORRECT_OFFSET to the ack inbox, for every ack policy, as Liftbridge does."""
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
    """Return the answer that JetStream would send to the reply subject of a publish."""
    if error is not None:
        return _refusal(error)
    ack = stored.result()
    return json.dumps({"stream": ack.stream, "seq": ack.sequence}).encode()


def _refusal(error: BaseException) -> bytes:
    code, err_code = (error.code, error.err_code) if isinstance(error, JetStreamError) else (503, 0)
    return json.dumps({"error": {"code": code, "err_code": err_code, "description": str(error)}}).encode()


def _probe(record: StreamRecord, partition: int) -> str:
    return f"_lift.intake.{record.id}.{partition}"


async def wait_for_intakes(js: JetStream, known: Callable[[], StreamRecord | None]) -> None:
    """Wait until the leaders of all partitions of a stream forward messages, or until it is deleted.

    Has no time limit: messages that arrive earlier are lost, so the stream is not usable before. Does nothing
    for a stream that does not check offsets.

    Args:
        js: JetStream, for its API and connection.
        known: Returns the stream's record, or None if the stream does not exist.

    Raises:
        TransportError: The connection was closed.
    """
    record = known()
    if record is None or not record.checks_offsets:
        return
    for partition in range(len(record.partitions)):
        probe = _probe(record, partition)
        while (now := known()) is not None and now.id == record.id:
            try:
                await js.api.ask(probe, timeout=_ONE_TRY, repeat=True)
                break
            except (NoJetStreamError, CallTimeoutError):
                await asyncio.sleep(_PAUSE)  # no leader forwards them yet, or NATS does not answer
