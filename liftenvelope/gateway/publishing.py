"""Serves Publish, PublishAsync and PublishToSubject: stores requests as envelopes in JetStream.

Each message is stored as an envelope with the value, the key and the headers. It therefore reads the same
whether it came by gRPC or by NATS. The client's ack is made from JetStream's ack. The envelope holds an ack
inbox only if the client named one: that inbox gets its ack in the same way as that of an envelope published
on NATS.

A partition that copies from another stream is an exception: JetStream's ack holds the sequence in the source,
not in the copy. Such an envelope names the gateway's own ack inbox, and the partition's leader sends the ack.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._pb import api_pb2
from liftenvelope._stream_names import RESERVED
from liftenvelope.envelope import new_message
from liftenvelope.errors import (
    LiftEnvelopeError,
    NoJetStreamError,
)
from liftenvelope.gateway.failures import TOO_LARGE, has_no_room, status_of
from liftenvelope.gateway.publish_session import PublishSession
from liftenvelope.gateway.requests import read_request
from liftenvelope.gateway.subjects import check_published
from liftenvelope.gateway.targets import Target, ack_of
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.gateway.core import Core
    from liftenvelope.gateway.streams import StreamService
    from liftenvelope.jetstream._publish_frames import PubAck
    from liftenvelope.rpc.server import ServerCall

__all__ = ["PublishService"]

_NONE: Final = api_pb2.NONE
_ANY_OFFSET: Final = -1
#: Statuses of a publish that JetStream has no room for, or leaves unanswered for lack of room.
_STORAGE_CODES: Final = (StatusCode.INTERNAL, StatusCode.DEADLINE_EXCEEDED, StatusCode.UNAVAILABLE)
#: Header of an envelope that holds an ack.
_ACK_HEADER: Final = b"\xb9\x0e\x43\xb4\0\x08\0\x01"


class PublishService:
    """Serves the publish methods.

    Args:
        core: The gateway's parts.
        streams: Resumes paused partitions.
    """

    def __init__(self, core: Core, streams: StreamService) -> None:
        self._core = core
        self._streams = streams
        self._targets: dict[tuple[str, int], Target] = {}
        self._sending: set[asyncio.Task[None]] = set()

    # One message

    async def publish(self, call: ServerCall, raw: bytes) -> bytes:
        """Serve Publish. Unlike Liftbridge, wait for the ack even if the client set no deadline.

        Args:
            call: The call; its timeout limits the wait for JetStream's ack.
            raw: The serialized request.

        Raises:
            RpcError: The message was refused or not acked; see :meth:`target`, :meth:`store` and
                :meth:`check_replicas`.
        """
        request = read_request(api_pb2.PublishRequest, raw, self._core.options.limits)
        self._core.ack_inboxes.check(request.ackInbox)
        response = api_pb2.PublishResponse()
        try:
            target = await self.target(request)
            future = await self.store(target, request, own_inbox=True, timeout=call.timeout)
            if request.ackPolicy == _NONE:
                future.add_done_callback(_forget)
            else:
                sequence = (await future).sequence
                await self.check_replicas(target, request)
                response.ack.CopyFrom(ack_of(target, request, sequence))
        except LiftEnvelopeError as exc:
            raise await self.explained(exc, request.stream, request.partition) from exc
        return response.SerializeToString()

    async def target(self, request: api_pb2.PublishRequest) -> Target:
        """Return the target of a message, after checking the message and resuming a paused partition.

        Raises:
            RpcError: INVALID_ARGUMENT: no stream is named, the stream is reserved, or it checks offsets and
                the ack policy is NONE. NOT_FOUND: the stream or partition does not exist.
                FAILED_PRECONDITION: the partition is readonly.
        """
        name, partition = request.stream, request.partition
        target = self._targets.get((name, partition))
        record = self._core.registry.known(name)
        if target is None or target.record is not record:
            target = await self._new_target(name, partition)
        if target.record.checks_offsets and request.ackPolicy == _NONE:
            text = "stream with concurrency control must have AckPolicy set"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)
        return target

    async def _new_target(self, name: str, partition: int) -> Target:
        if not name:
            raise RpcError(StatusCode.INVALID_ARGUMENT, "no stream provided")
        if name in RESERVED:
            raise RpcError(StatusCode.INVALID_ARGUMENT, "Stream is reserved")
        record = await self._core.partition(name, partition)
        if record.partitions[partition].readonly:
            raise RpcError(StatusCode.FAILED_PRECONDITION, "readonly partition")
        if record.partitions[partition].paused:
            record = await self._streams.resume(name, partition)
        target = Target(record, partition, record.subject_of(partition), record.stream_of(partition))
        self._targets[name, partition] = target
        return target

    async def check_replicas(self, target: Target, request: api_pb2.PublishRequest) -> None:
        """Check that a stored message may be acked.

        Raises:
            RpcError: DEADLINE_EXCEEDED: too few replicas are in sync for ``ALL``.
        """
        replicas = self._core.storage.replicas
        await replicas.check(target.record, target.partition, request.ackPolicy)

    async def store(
        self, target: Target, request: api_pb2.PublishRequest, *, own_inbox: bool, timeout: float | None
    ) -> asyncio.Future[PubAck]:
        """Send a message to JetStream and return the future of its ack.

        The publish is not retried, because a retry could change the order of messages.

        Args:
            target: Target of the message.
            request: The request of the client.
            own_inbox: Whether the client's ack inbox gets an ack as well.
            timeout: Seconds to wait for JetStream's ack; None or 0 for the gateway's ``ack_timeout``.

        Raises:
            RpcError: INVALID_ARGUMENT: the envelope is too large, or ``expectedOffset`` is below -1.
        """
        options: dict[str, Any] = {}
        if own_inbox and request.ackInbox:
            options = {
                "ack_inbox": request.ackInbox,
                "correlation_id": request.correlationId,
                "ack_policy": request.ackPolicy,
            }
        envelope = new_message(request.value, key=request.key, headers=request.headers, **options)
        self._check_size(envelope)
        seconds = timeout or self._core.options.ack_timeout
        if target.record.partitions[target.partition].source is not None:
            return await self._store_in_copy(target, request, own_inbox=own_inbox, timeout=seconds)
        expected = None
        if target.record.checks_offsets and request.expectedOffset != _ANY_OFFSET:
            # An offset is its sequence minus 1, so the expected offset equals the sequence before it.
            expected = request.expectedOffset
        if expected is None:
            return await self._core.js.publish_async(
                target.intake, envelope, timeout=seconds, retry_attempts=0
            )
        if expected < 0:
            raise RpcError(StatusCode.INVALID_ARGUMENT, f"expectedOffset={expected}")
        return await self._core.js.publish_async(
            target.intake, envelope, timeout=seconds, expected_last_sequence=expected, retry_attempts=0
        )

    async def _store_in_copy(
        self, target: Target, request: api_pb2.PublishRequest, *, own_inbox: bool, timeout: float
    ) -> asyncio.Future[PubAck]:
        """Store a message whose subject another stream records; the future has its sequence in the copy."""
        future = await self._core.copies.publish(
            target.record.name,
            target.subject,
            request.value,
            key=request.key,
            headers=request.headers,
            timeout=timeout,
        )
        if own_inbox and request.ackPolicy != _NONE and request.ackInbox:
            future.add_done_callback(partial(self._pass_on, target, request))
        return future

    def _pass_on(
        self, target: Target, request: api_pb2.PublishRequest, future: asyncio.Future[PubAck]
    ) -> None:
        """Send the ack to the client's inbox as well: the envelope names the gateway's own inbox."""
        if future.cancelled() or future.exception() is not None:
            return
        ack = _ACK_HEADER + ack_of(target, request, future.result().sequence).SerializeToString()
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._core.nc.publish(request.ackInbox, ack))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    @property
    def max_message(self) -> int:
        """Size of the largest envelope, in bytes."""
        return min(self._core.options.limits.max_message_bytes, self._core.nc.max_payload)

    def _check_size(self, envelope: bytes) -> None:
        if len(envelope) > self.max_message:
            raise RpcError(StatusCode.INVALID_ARGUMENT, TOO_LARGE)

    async def explained(self, error: LiftEnvelopeError, name: str, partition: int) -> RpcError:
        """Return the status for a failed publish, with the storage fault of the partition if one is known.

        If no stream records the subject, the partition has changed. In that case the target is looked up
        again, and the error of that lookup is returned if it fails.
        """
        if isinstance(error, NoJetStreamError):
            self._targets.pop((name, partition), None)
            try:
                await self._new_target(name, partition)
            except RpcError as exc:
                return exc
        if has_no_room(error):
            self._core.faults.note(name, partition, str(error))
        status, cause = status_of(error), self._core.faults.cause(name, partition)
        if not cause or status.code not in _STORAGE_CODES:
            return status
        text = f"stream {name!r}, partition {partition}: {status.description}"
        return RpcError(status.code, text if cause in text else f"{text} ({cause})")

    # Message streams

    async def publish_async(self, call: ServerCall) -> None:
        """Serve PublishAsync; see :class:`~liftenvelope.gateway.publish_session.PublishSession`."""
        await PublishSession(self, self._core, call).run()

    # On a subject

    async def publish_to_subject(self, call: ServerCall, raw: bytes) -> bytes:
        """Serve PublishToSubject: publish on a subject that any stream may record.

        A message that is too large is answered with the ack error ``TOO_LARGE``.

        Raises:
            RpcError: UNKNOWN: no subject is named. INVALID_ARGUMENT: the subject or the ack inbox is not
                allowed. DEADLINE_EXCEEDED: no stream records the subject, or too few replicas are in sync.
        """
        request = read_request(api_pb2.PublishToSubjectRequest, raw, self._core.options.limits)
        if not request.subject:
            raise RpcError(StatusCode.UNKNOWN, "nats: invalid subject")
        check_published(request.subject)
        self._core.ack_inboxes.check(request.ackInbox)
        options: dict[str, Any] = {}
        if request.ackInbox:
            options = {
                "ack_inbox": request.ackInbox,
                "correlation_id": request.correlationId,
                "ack_policy": request.ackPolicy,
            }
        response = api_pb2.PublishToSubjectResponse()
        try:
            envelope = new_message(request.value, key=request.key, headers=request.headers, **options)
            self._check_size(envelope)
            sent = await self._core.js.publish_async(request.subject, envelope, timeout=call.timeout)
            if request.ackPolicy == _NONE:
                sent.add_done_callback(_forget)
            else:
                await self._await_ack(request, response.ack, sent)
        except RpcError as exc:
            if exc.description != TOO_LARGE:
                raise
            response.ack.CopyFrom(api_pb2.Ack(ackError=api_pb2.Ack.TOO_LARGE, msgSubject=request.subject))
            response.ack.correlationId = request.correlationId
        except LiftEnvelopeError as exc:
            raise status_of(exc) from exc
        return response.SerializeToString()

    async def _await_ack(
        self, request: api_pb2.PublishToSubjectRequest, ack: api_pb2.Ack, sent: asyncio.Future[PubAck]
    ) -> None:
        try:
            stored = await sent
        except NoJetStreamError:
            # Liftbridge lets the call time out when no stream records the subject.
            await asyncio.sleep(self._core.options.ack_timeout)
            text = f"no stream records {request.subject!r}"
            raise RpcError(StatusCode.DEADLINE_EXCEEDED, text) from None
        now = time.time_ns()
        found = self._core.partition_of(stored.stream)
        if found is not None:
            await self._core.storage.replicas.check(*found, request.ackPolicy)
        name = stored.stream if found is None else found[0].name
        subject = request.subject if found is None else found[0].subject
        ack.stream, ack.partitionSubject, ack.msgSubject = name, subject, request.subject
        ack.offset, ack.ackPolicy = stored.sequence - 1, request.ackPolicy
        ack.ackInbox, ack.correlationId = request.ackInbox, request.correlationId
        ack.receptionTimestamp = ack.commitTimestamp = now


def _forget(future: asyncio.Future[PubAck]) -> None:
    """Retrieve the error of a publish without an ack, so that asyncio does not log it as never retrieved."""
    if not future.cancelled():
        future.exception()
