"""Serves Publish, PublishAsync and PublishToSubject: stores requests as envelopes in JetStream.

Each message is stored as an envelope with the value, the key and the headers. It therefore reads the same
whether it came by gRPC or by NATS. The client's ack is made from JetStream's ack. The envelope holds an ack
inbox only if the client named one: that inbox gets its ack in the same way as that of an envelope published
on NATS.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._pb import api_pb2
from liftenvelope.envelope import new_message
from liftenvelope.errors import LiftEnvelopeError, NoJetStreamError
from liftenvelope.gateway._clients.counts import reason_of
from liftenvelope.gateway._protocol.failures import TOO_LARGE, WRONG_OFFSET, status_of
from liftenvelope.gateway._protocol.requests import read_request, without_content
from liftenvelope.gateway._publishing.intake import Intake
from liftenvelope.gateway._publishing.session import PublishSession
from liftenvelope.gateway._publishing.targets import ack_of
from liftenvelope.gateway._publishing.unrecorded import TRIES, TRY_PAUSE
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._publishing.targets import PublishTarget
    from liftenvelope.gateway._streams.service import StreamService
    from liftenvelope.jetstream.publish_frames import PubAck
    from liftenvelope.rpc.server import ServerCall

__all__ = ["PublishService"]

_NONE: Final = api_pb2.NONE
#: Errors that PublishToSubject answers with an ack, by their texts.
_ACK_ERRORS: Final = {TOO_LARGE: api_pb2.Ack.TOO_LARGE, WRONG_OFFSET: api_pb2.Ack.INCORRECT_OFFSET}


class PublishService:
    """Serves the publish methods.

    Args:
        core: The gateway's parts.
        streams: Resumes paused partitions.
    """

    def __init__(self, core: Core, streams: StreamService) -> None:
        self._core = core
        self._intake = Intake(core, streams)

    # One message

    async def publish(self, call: ServerCall) -> None:
        """Serve Publish. Unlike Liftbridge, wait for the ack even if the client set no deadline.

        Args:
            call: The call; its timeout limits the wait for JetStream's ack.

        Raises:
            RpcError: The message was refused or not acked; see
                :class:`~liftenvelope.gateway._publishing.intake.Intake`. RESOURCE_EXHAUSTED: the client has
                too many bytes pending.
        """
        raw = await call.one_request()
        received_ns = time.time_ns()
        counts = self._core.publishes["Publish"]
        with counts.one(len(raw)) as counted, self._core.quotas.hold(call, len(raw)) as held:
            request = read_request(api_pb2.PublishRequest, raw, self._core.options.limits)
            del raw  # not kept while the message waits for its ack
            self._core.ack_inboxes.check(request.ackInbox)
            if not request.stream:  # PublishAsync answers NOT_FOUND, as in Liftbridge
                raise RpcError(StatusCode.INVALID_ARGUMENT, "no stream provided")
            try:
                store = partial(
                    self._intake.store,
                    request=request,
                    connection=call.connection,
                    own_inbox=True,
                    received_ns=received_ns,
                    timeout=None if request.ackPolicy == _NONE else call.timeout,
                )
                target = await self._intake.target(request)
                response = api_pb2.PublishResponse()
                if request.ackPolicy == _NONE:
                    future = await store(target)
                    held.keep_until(future)
                    counted.settle_with(future)
                    future.add_done_callback(_forget)
                else:
                    target, sequence = await self._stored(store, target)
                    await self._intake.check_replicas(target, request)
                    response.ack.CopyFrom(ack_of(target, request, sequence, received_ns))
            except LiftEnvelopeError as exc:
                raise await self._intake.explained(exc, request.stream, request.partition) from exc
            await call.send([response.SerializeToString()])

    async def _stored(
        self, store: Callable[[PublishTarget], Awaitable[asyncio.Future[PubAck]]], target: PublishTarget
    ) -> tuple[PublishTarget, int]:
        """Store a message, and wait for its ack; return its target and sequence.

        If no stream records the subject, the message is not stored. It then comes after a pause of the
        partition, and resumes it as in Liftbridge. If the record has not changed, the subject may be
        recorded again in a moment, as after an election, or another gateway is making the partition readonly.
        """
        for _ in range(TRIES):
            try:
                return target, (await (await store(target))).sequence
            except NoJetStreamError:
                before = target
                target = await self._intake.find_again(before.record.name, before.partition)
                if target == before:
                    await asyncio.sleep(TRY_PAUSE)
        return target, (await (await store(target))).sequence

    # Message streams

    async def publish_async(self, call: ServerCall) -> None:
        """Serve PublishAsync; see :class:`~liftenvelope.gateway._publishing.session.PublishSession`."""
        await PublishSession(self._intake, self._core, call).run()

    # On a subject

    async def publish_to_subject(self, call: ServerCall) -> None:
        """Serve PublishToSubject: publish on a subject that any stream may record.

        A message that is too large is answered with the ack error ``TOO_LARGE``. A stream that checks offsets
        stores the message only as its first one, as in Liftbridge: the request names no expected offset,
        which stands for 0. Later messages are answered with ``INCORRECT_OFFSET``.

        Raises:
            RpcError: UNKNOWN: no subject is named. INVALID_ARGUMENT: the subject or the ack inbox is not
                allowed. DEADLINE_EXCEEDED: no stream records the subject, or too few replicas are in sync.
                RESOURCE_EXHAUSTED: the client has too many bytes pending.
        """
        raw = await call.one_request()
        received_ns = time.time_ns()
        counts = self._core.publishes["PublishToSubject"]
        with counts.one(len(raw)) as counted, self._core.quotas.hold(call, len(raw)) as held:
            request = read_request(api_pb2.PublishToSubjectRequest, raw, self._core.options.limits)
            del raw  # not kept while the message waits for its ack
            response = api_pb2.PublishToSubjectResponse()
            try:
                sent = await self._send(request, call)
                request = without_content(request)
                if request.ackPolicy == _NONE:
                    held.keep_until(sent)
                    counted.settle_with(sent)
                    sent.add_done_callback(_forget)
                else:
                    response.ack.CopyFrom(await self._acked(request, sent, received_ns))
            except LiftEnvelopeError as exc:
                status = status_of(exc)
                if status.description not in _ACK_ERRORS:
                    raise status from exc
                counted.fail(reason_of(exc))
                refusal = api_pb2.Ack(ackError=_ACK_ERRORS[status.description], msgSubject=request.subject)
                response.ack.CopyFrom(refusal)
                response.ack.correlationId = request.correlationId
            await call.send([response.SerializeToString()])

    async def _send(
        self, request: api_pb2.PublishToSubjectRequest, call: ServerCall
    ) -> asyncio.Future[PubAck]:
        """Publish an envelope on the subject of a request; return the future of JetStream's ack."""
        if not request.subject:
            raise RpcError(StatusCode.UNKNOWN, "nats: invalid subject")
        self._core.subjects.check_published(request.subject)
        self._core.ack_inboxes.check(request.ackInbox)
        options: dict[str, Any] = {"expected_offset": 0}
        if request.ackInbox:
            options |= {
                "ack_inbox": request.ackInbox,
                "correlation_id": request.correlationId,
                "ack_policy": request.ackPolicy,
            }
        envelope = new_message(request.value, key=request.key, headers=request.headers, **options)
        self._intake.check_size(envelope)
        seconds = self._intake.ack_seconds(None if request.ackPolicy == _NONE else call.timeout)
        publish = partial(self._core.call_js.publish_async, request.subject, envelope, timeout=seconds)
        return await self._core.places.send(call.connection, publish)

    async def _acked(
        self, request: api_pb2.PublishToSubjectRequest, sent: asyncio.Future[PubAck], received_ns: int
    ) -> api_pb2.Ack:
        """Wait for JetStream's ack; return the ack of the message."""
        try:
            stored = await sent
        except NoJetStreamError:
            # Liftbridge lets the call time out when no stream records the subject.
            await asyncio.sleep(self._core.options.ack_timeout)
            text = f"no stream records {request.subject!r}"
            raise RpcError(StatusCode.DEADLINE_EXCEEDED, text) from None
        committed_ns = time.time_ns()
        found = self._core.partition_of(stored.stream)
        if found is not None:
            await self._core.storage.replicas.check(*found, request.ackPolicy)
        return api_pb2.Ack(
            stream=stored.stream if found is None else found[0].name,
            partitionSubject=request.subject if found is None else found[0].subject,
            msgSubject=request.subject,
            offset=stored.sequence - 1,
            ackInbox=request.ackInbox,
            correlationId=request.correlationId,
            ackPolicy=request.ackPolicy,
            receptionTimestamp=received_ns,
            commitTimestamp=committed_ns,
        )


def _forget(future: asyncio.Future[PubAck]) -> None:
    """Retrieve the error of a publish without an ack, so that asyncio does not log it as never retrieved."""
    if not future.cancelled():
        future.exception()
