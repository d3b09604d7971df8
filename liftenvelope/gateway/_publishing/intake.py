"""Takes in messages of publish calls: looks up their targets and stores them in JetStream.

A partition that copies from another stream is an exception: JetStream's ack holds the sequence in the source,
not in the copy. Such an envelope names the gateway's own ack inbox, and the partition's leader sends the ack.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import RESERVED
from liftenvelope._pb import api_pb2
from liftenvelope.envelope import new_message
from liftenvelope.errors import LiftEnvelopeError, NoJetStreamError, TransportError
from liftenvelope.gateway._protocol.failures import (
    TOO_LARGE,
    WRONG_OFFSET,
    has_no_room,
    not_stored,
    status_of,
)
from liftenvelope.gateway._publishing.targets import PublishTarget, ack_of
from liftenvelope.gateway._publishing.unrecorded import Unrecorded
from liftenvelope.nats.link import Link, max_payload_of
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Hashable

    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._streams.service import StreamService
    from liftenvelope.jetstream.publish_frames import PubAck

__all__ = ["Intake"]

_NONE: Final = api_pb2.NONE
_ANY_OFFSET: Final = -1
#: Longest seconds that a client can have a message wait for its ack, unless the gateway's own time is longer.
_LONGEST_ACK: Final = 60.0
#: Statuses of a publish that JetStream has no room for, or leaves unanswered for lack of room.
_STORAGE_CODES: Final = (StatusCode.INTERNAL, StatusCode.DEADLINE_EXCEEDED, StatusCode.UNAVAILABLE)
#: Least number of targets to keep.
_LEAST_ROOM: Final = 1_000
#: Header of an envelope that holds an ack.
_ACK_HEADER: Final = b"\xb9\x0e\x43\xb4\0\x08\0\x01"


class Intake:
    """Stores the messages of Publish and PublishAsync calls.

    Args:
        core: The gateway's parts.
        streams: Resumes paused partitions.
    """

    def __init__(self, core: Core, streams: StreamService) -> None:
        self._core = core
        self._link = Link(core.nc)
        self._streams = streams
        self._targets: dict[tuple[str, int], PublishTarget] = {}
        # Number of targets at which those of deleted streams are forgotten.
        self._room = _LEAST_ROOM
        self._sending: set[asyncio.Task[None]] = set()
        self._unrecorded = Unrecorded(self.find_again)

    async def target(self, request: api_pb2.PublishRequest, since: float | None = None) -> PublishTarget:
        """Return the target of a message, after checking the message and resuming a paused partition.

        Args:
            request: The request of the client.
            since: Time of the event loop when the request was received. Requests received together share a
                read of a record that this gateway does not know. Default: now.

        Raises:
            RpcError: INVALID_ARGUMENT: the stream is reserved, or it checks offsets and the ack policy is
                NONE. NOT_FOUND: the stream or partition does not exist. FAILED_PRECONDITION: the partition is
                readonly.
        """
        name, partition = request.stream, request.partition
        target = self._targets.get((name, partition))
        record = self._core.registry.known(name)
        if target is None or target.record is not record:
            try:
                target = await self._new_target(name, partition, since)
            except LiftEnvelopeError as exc:
                raise not_stored(status_of(exc)) from exc
        if target.record.checks_offsets and request.ackPolicy == _NONE:
            text = "stream with concurrency control must have AckPolicy set"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)
        return target

    async def _new_target(self, name: str, partition: int, since: float | None = None) -> PublishTarget:
        if name in RESERVED:
            raise RpcError(StatusCode.INVALID_ARGUMENT, "Stream is reserved")
        record = await self._core.partition(name, partition, since)
        if record.partitions[partition].readonly:
            raise RpcError(StatusCode.FAILED_PRECONDITION, "readonly partition")
        if record.to_resume(partition):
            record = await self._streams.resume(name, partition)
        target = PublishTarget(record, partition, record.subject_of(partition), record.stream_of(partition))
        if len(self._targets) >= self._room:
            self._forget_outdated()
        self._targets[name, partition] = target
        return target

    async def find_again(self, name: str, partition: int) -> PublishTarget:
        """Return the target of a partition whose subject no stream records any more, after resuming it.

        Another gateway may have changed the stream, and this one may not have heard of it. So the record is
        read, after the end of changes of the stream that this gateway makes.

        Raises:
            LiftEnvelopeError: As for :meth:`target`, or the record can't be read or changed now.
        """
        self._targets.pop((name, partition), None)
        await self._core.registry.refresh(name)
        await self._streams.settled(name)
        return await self._new_target(name, partition)

    def _forget_outdated(self) -> None:
        known = self._core.registry.known
        self._targets = {key: one for key, one in self._targets.items() if known(key[0]) is one.record}
        self._room = max(2 * len(self._targets), _LEAST_ROOM)

    async def check_replicas(self, target: PublishTarget, request: api_pb2.PublishRequest) -> None:
        """Check that a stored message may be acked.

        Raises:
            RpcError: DEADLINE_EXCEEDED: too few replicas are in sync for ``ALL``.
        """
        replicas = self._core.storage.replicas
        await replicas.check(target.record, target.partition, request.ackPolicy)

    def ack_seconds(self, timeout: float | None) -> float:
        """Return the seconds to wait for JetStream's ack of a message.

        Args:
            timeout: Timeout of the call; None or 0 for the gateway's ``ack_timeout``, as for a message whose
                client wants no ack: it takes a place among those that wait after its call has ended. A
                longer one than a minute counts as a minute.
        """
        usual = self._core.options.ack_timeout
        return min(timeout or usual, max(usual, _LONGEST_ACK))

    async def store(
        self,
        target: PublishTarget,
        request: api_pb2.PublishRequest,
        *,
        connection: Hashable,
        own_inbox: bool,
        received_ns: int,
        timeout: float | None,
    ) -> asyncio.Future[PubAck]:
        """Send a message to JetStream and return the future of its ack. Wait while it has no place.

        The publish is not retried, because a retry could change the order of messages.

        Args:
            target: Target of the message.
            request: The request of the client.
            connection: Connection of the client, which has a share of the places.
            own_inbox: Whether the client's ack inbox gets an ack as well.
            received_ns: Time when the gateway received the message, in ns since 1970.
            timeout: Timeout of the call; see :meth:`ack_seconds`.

        Raises:
            RpcError: INVALID_ARGUMENT: the envelope is too large. UNKNOWN: ``expectedOffset`` is below -1, so
                no message can have it.
        """
        options: dict[str, Any] = {}
        if own_inbox and request.ackInbox:
            options = {
                "ack_inbox": request.ackInbox,
                "correlation_id": request.correlationId,
                "ack_policy": request.ackPolicy,
            }
        envelope = new_message(request.value, key=request.key, headers=request.headers, **options)
        self.check_size(envelope)
        seconds = self.ack_seconds(timeout)
        if target.record.partitions[target.partition].source is not None:
            inbox_ns = received_ns if own_inbox else None
            storing = partial(self._store_in_copy, target, request, inbox_ns, timeout=seconds)
            return await self._core.places.send(connection, storing)
        expected = None
        if target.record.checks_offsets and request.expectedOffset != _ANY_OFFSET:
            # An offset is its sequence minus 1, so the expected offset equals the sequence before it.
            expected = request.expectedOffset
        publish = partial(
            self._core.call_js.publish_async, target.intake, envelope, timeout=seconds, retry_attempts=0
        )
        if expected is not None:
            if expected < 0:
                raise RpcError(StatusCode.UNKNOWN, WRONG_OFFSET)
            publish = partial(publish, expected_last_sequence=expected)
        return await self._core.places.send(connection, publish)

    async def _store_in_copy(
        self, target: PublishTarget, request: api_pb2.PublishRequest, inbox_ns: int | None, *, timeout: float
    ) -> asyncio.Future[PubAck]:
        """Store a message whose subject another stream records; the future has its sequence in the copy.

        Args:
            target: Target of the message.
            request: The request of the client.
            inbox_ns: Time of reception for the ack to the client's inbox, in ns; None for no such ack.
            timeout: Seconds to wait for the ack.
        """
        future = await self._core.copies.publish(
            target.record.name,
            target.stream,
            target.subject,
            request.value,
            key=request.key,
            headers=request.headers,
            timeout=timeout,
        )
        if inbox_ns is not None and request.ackPolicy != _NONE and request.ackInbox:
            future.add_done_callback(partial(self._pass_on, target, request, inbox_ns))
        return future

    def _pass_on(
        self,
        target: PublishTarget,
        request: api_pb2.PublishRequest,
        received_ns: int,
        future: asyncio.Future[PubAck],
    ) -> None:
        """Send the ack to the client's inbox as well: the envelope names the gateway's own inbox."""
        if future.cancelled() or future.exception() is not None:
            return
        ack = ack_of(target, request, future.result().sequence, received_ns).SerializeToString()
        task = asyncio.get_running_loop().create_task(self._send(request.ackInbox, _ACK_HEADER + ack))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, inbox: str, ack: bytes) -> None:
        # The connection may close or drain after JetStream's ack. An ack inbox then gets nothing, like one of
        # a gateway that dies here: the message is stored, and the call has its own ack.
        with suppress(TransportError):
            await self._link.publish(inbox, ack)

    @property
    def max_message(self) -> int:
        """Size of the largest envelope, in bytes."""
        return min(self._core.options.limits.max_message_bytes, max_payload_of(self._core.nc))

    def check_size(self, envelope: bytes) -> None:
        """Check that an envelope is not too large.

        Raises:
            RpcError: INVALID_ARGUMENT: the envelope is larger than :attr:`max_message`.
        """
        if len(envelope) > self.max_message:
            raise RpcError(StatusCode.INVALID_ARGUMENT, TOO_LARGE)

    async def explained(
        self, error: LiftEnvelopeError, name: str, partition: int, target: PublishTarget | None = None
    ) -> RpcError:
        """Return the status for a failed publish, with the storage fault of the partition if one is known.

        Args:
            error: The failure.
            name: Name of the stream.
            partition: Number of the partition.
            target: Target of a message that is not stored again if no stream records the subject. The
                partition has then changed: see :class:`Unrecorded`. Default none.
        """
        if isinstance(error, NoJetStreamError) and target is not None:
            reason = await self._unrecorded.reason(target)
            if reason is not None:
                return reason
        if has_no_room(error):
            self._core.faults.note(name, partition, str(error))
        status, cause = status_of(error), self._core.faults.cause(name, partition)
        if isinstance(error, NoJetStreamError):
            status = not_stored(status)
        if not cause or status.code not in _STORAGE_CODES:
            return status
        text = f"stream {name!r}, partition {partition}: {status.description}"
        return RpcError(status.code, text if cause in text else f"{text} ({cause})")
