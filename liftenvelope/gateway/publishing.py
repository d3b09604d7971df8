"""Publish, PublishAsync and PublishToSubject: requests become envelopes in JetStream.

What is stored is an envelope with the value, the key and the headers, so that it reads the same whichever way
it came. The ack is what JetStream says once it has the message. Only an ack inbox of the client's own goes
into the envelope: it is served like that of an envelope that came by NATS.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._pb import api_pb2
from liftenvelope._stream_names import RESERVED
from liftenvelope.envelope import new_message
from liftenvelope.errors import (
    AckTimeoutError,
    LiftEnvelopeError,
    NoJetStreamError,
    TransportError,
    UsageError,
)
from liftenvelope.gateway.failures import TOO_LARGE, status_of
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.gateway.core import Core
    from liftenvelope.gateway.records import StreamRecord
    from liftenvelope.gateway.streams import StreamService
    from liftenvelope.jetstream.publishing import PublishFuture
    from liftenvelope.rpc.server import ServerCall

__all__ = ["PublishService"]

_NONE: Final = api_pb2.NONE
_ANY_OFFSET: Final = -1
#: How long a PublishAsync call waits for acks once the client has sent all, in seconds, as in Liftbridge.
_LAST_ACKS: Final = 5.0
_E: Final = api_pb2.PublishAsyncError
_ASYNC_CODES: Final = {
    StatusCode.INVALID_ARGUMENT: _E.BAD_REQUEST,
    StatusCode.NOT_FOUND: _E.NOT_FOUND,
    StatusCode.FAILED_PRECONDITION: _E.READONLY,
    StatusCode.PERMISSION_DENIED: _E.PERMISSION_DENIED,
    StatusCode.UNKNOWN: _E.INCORRECT_OFFSET,
}


@dataclass(slots=True)
class _Target:
    """Where the messages for a partition go."""

    record: StreamRecord
    partition: int
    subject: str
    stream: str


class PublishService:
    """Stores messages.

    Args:
        core: The gateway's parts.
        streams: Wakes partitions.
    """

    def __init__(self, core: Core, streams: StreamService) -> None:
        self._core = core
        self._streams = streams
        self._targets: dict[tuple[str, int], _Target] = {}

    # One message

    async def publish(self, call: ServerCall, raw: bytes) -> bytes:
        """Serve Publish. Other than Liftbridge it waits for the ack also where the client set no deadline."""
        request = api_pb2.PublishRequest.FromString(raw)
        response = api_pb2.PublishResponse()
        try:
            target = await self._target(request)
            future = await self._store(target, request, own_inbox=True, timeout=call.timeout)
            if request.ackPolicy == _NONE:
                future.add_done_callback(_forget)
            else:
                sequence = (await future).sequence
                response.ack.CopyFrom(_ack(target, request, sequence))
        except (NoJetStreamError, LiftEnvelopeError) as exc:
            raise await self._explained(exc, request) from exc
        return response.SerializeToString()

    async def _target(self, request: api_pb2.PublishRequest) -> _Target:
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

    async def _new_target(self, name: str, partition: int) -> _Target:
        if not name:
            raise RpcError(StatusCode.INVALID_ARGUMENT, "no stream provided")
        if name in RESERVED:
            raise RpcError(StatusCode.INVALID_ARGUMENT, "Stream is reserved")
        record = await self._core.partition(name, partition)
        if record.partitions[partition].readonly:
            raise RpcError(StatusCode.FAILED_PRECONDITION, "readonly partition")
        if record.partitions[partition].paused:
            record = await self._streams.resume(name, partition)
        target = _Target(record, partition, record.subject_of(partition), record.stream_of(partition))
        self._targets[name, partition] = target
        return target

    async def _store(
        self, target: _Target, request: api_pb2.PublishRequest, *, own_inbox: bool, timeout: float | None
    ) -> PublishFuture:
        """Send a message to JetStream; return the future of its ack."""
        options: dict[str, Any] = {}
        if own_inbox and request.ackInbox:
            options = {
                "ack_inbox": request.ackInbox,
                "correlation_id": request.correlationId,
                "ack_policy": request.ackPolicy,
            }
        envelope = new_message(request.value, key=request.key, headers=request.headers, **options)
        self._check_size(envelope)
        expected = None
        if target.record.checks_offsets and request.expectedOffset != _ANY_OFFSET:
            # An offset is a sequence less one: so this is the sequence before.
            expected = request.expectedOffset
        seconds = timeout if timeout else self._core.options.ack_timeout
        if expected is None:
            return await self._core.js.publish_async(target.subject, envelope, timeout=seconds)
        if expected < 0:
            raise RpcError(StatusCode.INVALID_ARGUMENT, f"expectedOffset={expected}")
        return await self._core.js.publish_async(
            target.subject, envelope, timeout=seconds, expected_last_sequence=expected
        )

    def _check_size(self, envelope: bytes) -> None:
        if len(envelope) > min(self._core.options.max_message, self._core.nc.max_payload):
            raise RpcError(StatusCode.INVALID_ARGUMENT, TOO_LARGE)

    async def _explained(self, error: LiftEnvelopeError, request: api_pb2.PublishRequest) -> RpcError:
        """Return the status for what went wrong. Nobody recording the subject means that things changed."""
        if isinstance(error, NoJetStreamError):
            self._targets.pop((request.stream, request.partition), None)
            try:
                await self._new_target(request.stream, request.partition)
            except RpcError as exc:
                return exc
        return status_of(error)

    # Many

    async def publish_async(self, call: ServerCall) -> None:
        """Serve PublishAsync."""
        await _Session(self, self._core, call).run()

    # On a subject

    async def publish_to_subject(self, call: ServerCall, raw: bytes) -> bytes:
        """Serve PublishToSubject: whatever stream records the subject."""
        request = api_pb2.PublishToSubjectRequest.FromString(raw)
        if not request.subject:
            raise RpcError(StatusCode.UNKNOWN, "nats: invalid subject")
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
        self, request: api_pb2.PublishToSubjectRequest, ack: api_pb2.Ack, sent: PublishFuture
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
        name = stored.stream if found is None else found[0].name
        subject = request.subject if found is None else found[0].subject
        ack.stream, ack.partitionSubject, ack.msgSubject = name, subject, request.subject
        ack.offset, ack.ackPolicy = stored.sequence - 1, request.ackPolicy
        ack.ackInbox, ack.correlationId = request.ackInbox, request.correlationId
        ack.receptionTimestamp = ack.commitTimestamp = now


def _ack(target: _Target, request: api_pb2.PublishRequest, sequence: int) -> api_pb2.Ack:
    now = time.time_ns()
    return api_pb2.Ack(
        stream=target.record.name,
        partitionSubject=target.record.subject,
        msgSubject=target.subject,
        offset=sequence - 1,
        ackInbox=request.ackInbox,
        correlationId=request.correlationId,
        ackPolicy=request.ackPolicy,
        receptionTimestamp=now,
        commitTimestamp=now,
    )


def _forget(future: PublishFuture) -> None:
    """Of a message that nobody wants an ack of: nobody is told either that it failed."""
    if not future.cancelled():
        future.exception()


class _Session:
    """One PublishAsync call."""

    def __init__(self, service: PublishService, core: Core, call: ServerCall) -> None:
        self._service = service
        self._core = core
        self._call = call
        self._pending = 0
        self._answers: list[bytes] = []
        self._failed: TransportError | None = None
        self._idle = asyncio.Event()
        self._explaining: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Store what comes, and answer."""
        while (requests := await self._call.receive()) is not None:
            for raw in requests:
                await self._publish(raw)
            # Waits while the client takes no answers.
            await self._call.send(self._taken())
            if self._failed is not None:
                raise status_of(self._failed) from self._failed
        try:
            async with asyncio.timeout(_LAST_ACKS):
                while self._pending:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            pass  # what is without its ack stays so: its outcome is unknown
        await self._call.send(self._taken())

    async def _publish(self, raw: bytes) -> None:
        request = api_pb2.PublishRequest.FromString(raw)
        try:
            target = await self._service._target(request)
            future = await self._service._store(target, request, own_inbox=False, timeout=None)
        except (RpcError, UsageError, LiftEnvelopeError) as exc:
            self._answer(_refusal(status_of(exc), request.correlationId))
            return
        self._pending += 1
        future.add_done_callback(partial(self._stored, target, request))

    def _stored(self, target: _Target, request: api_pb2.PublishRequest, future: PublishFuture) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, LiftEnvelopeError):
            self._not_stored(error, request)
            return
        self._settled()
        if request.ackPolicy != _NONE and not future.cancelled():
            ack = _ack(target, request, future.result().sequence)
            response = api_pb2.PublishResponse(ack=ack, correlationId=request.correlationId)
            self._answer(response.SerializeToString())

    def _not_stored(self, error: LiftEnvelopeError, request: api_pb2.PublishRequest) -> None:
        if isinstance(error, AckTimeoutError | TransportError):
            # Whether it is stored is unknown: to say that it is not would be a lie.
            self._failed = error if isinstance(error, TransportError) else self._failed
            self._settled()
            return
        task = asyncio.get_running_loop().create_task(self._explain(error, request))
        self._explaining.add(task)
        task.add_done_callback(self._explaining.discard)

    async def _explain(self, error: LiftEnvelopeError, request: api_pb2.PublishRequest) -> None:
        status = await self._service._explained(error, request)
        self._answer(_refusal(status, request.correlationId))
        self._settled()

    def _settled(self) -> None:
        self._pending -= 1
        if not self._pending:
            self._idle.set()

    def _answer(self, response: bytes) -> None:
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._flush)
        self._answers.append(response)

    def _flush(self) -> None:
        self._call.send_nowait(self._taken())

    def _taken(self) -> list[bytes]:
        answers, self._answers = self._answers, []
        return answers


def _refusal(status: RpcError, correlation_id: str) -> bytes:
    code = _ASYNC_CODES.get(StatusCode(status.code), _E.INTERNAL)
    response = api_pb2.PublishResponse(correlationId=correlation_id)
    # Liftbridge sends an empty ack beside the error.
    response.ack.SetInParent()
    response.asyncError.code, response.asyncError.message = code, status.description
    return response.SerializeToString()
