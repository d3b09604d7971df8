"""Publish, PublishAsync and PublishToSubject: requests become envelopes in JetStream.

What is stored is an envelope with the value, the key and the headers, so that it reads the same whichever way
it came. The ack is what JetStream says once it has the message. Only an ack inbox of the client's own goes
into the envelope: it is served like that of an envelope that came by NATS.
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
#: What a publish ends with that JetStream has no room for, or does not answer for want of it.
_STORAGE_CODES: Final = (StatusCode.INTERNAL, StatusCode.DEADLINE_EXCEEDED, StatusCode.UNAVAILABLE)
#: Of an envelope that holds an ack.
_ACK_HEADER: Final = b"\xb9\x0e\x43\xb4\0\x08\0\x01"


class PublishService:
    """Stores messages.

    Args:
        core: The gateway's parts.
        streams: Wakes partitions.
    """

    def __init__(self, core: Core, streams: StreamService) -> None:
        self._core = core
        self._streams = streams
        self._targets: dict[tuple[str, int], Target] = {}
        self._sending: set[asyncio.Task[None]] = set()

    # One message

    async def publish(self, call: ServerCall, raw: bytes) -> bytes:
        """Serve Publish. Other than Liftbridge it waits for the ack also where the client set no deadline."""
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
        """Where a message goes, once it is sure that it may, and that the partition is awake."""
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
        """Make sure that a message that is stored may be acked.

        Raises:
            RpcError: DEADLINE_EXCEEDED: too few replicas are in sync for ``ALL``.
        """
        replicas = self._core.storage.replicas
        await replicas.check(target.record, target.partition, request.ackPolicy)

    async def store(
        self, target: Target, request: api_pb2.PublishRequest, *, own_inbox: bool, timeout: float | None
    ) -> asyncio.Future[PubAck]:
        """Send a message to JetStream, not retried for the order's sake; return the future of its ack."""
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
            # An offset is a sequence less one: so this is the sequence before.
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
        """Send an ack to the client's inbox as well: the envelope names ours."""
        if future.cancelled() or future.exception() is not None:
            return
        ack = _ACK_HEADER + ack_of(target, request, future.result().sequence).SerializeToString()
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._core.nc.publish(request.ackInbox, ack))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    @property
    def max_message(self) -> int:
        """The largest envelope, in bytes."""
        return min(self._core.options.limits.max_message_bytes, self._core.nc.max_payload)

    def _check_size(self, envelope: bytes) -> None:
        if len(envelope) > self.max_message:
            raise RpcError(StatusCode.INVALID_ARGUMENT, TOO_LARGE)

    async def explained(self, error: LiftEnvelopeError, name: str, partition: int) -> RpcError:
        """Return the status for what went wrong. Nobody recording the subject means that things changed."""
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

    # Many

    async def publish_async(self, call: ServerCall) -> None:
        """Serve PublishAsync."""
        await PublishSession(self, self._core, call).run()

    # On a subject

    async def publish_to_subject(self, call: ServerCall, raw: bytes) -> bytes:
        """Serve PublishToSubject: whatever stream records the subject."""
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
            # As in Liftbridge: nobody answers, now or in time.
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
    """Of a message that nobody wants an ack of: nobody is told either that it failed."""
    if not future.cancelled():
        future.exception()
