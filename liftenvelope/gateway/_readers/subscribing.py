"""Serves Subscribe: sends the messages of a partition from the requested start to the requested stop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from liftenvelope import _native
from liftenvelope._pb import api_pb2
from liftenvelope.errors import LiftEnvelopeError, StreamNotFoundError
from liftenvelope.gateway._clients.authorization import client_name
from liftenvelope.gateway._partitions.feed import DeliveryFeed, ask_start
from liftenvelope.gateway._protocol.failures import status_of
from liftenvelope.gateway._protocol.requests import read_request
from liftenvelope.gateway._readers.positions import END_OF_READONLY, Bounds, bounds
from liftenvelope.gateway._readers.reads import CLOSED, DELETED, Read, may_send
from liftenvelope.gateway._readers.reverse import read_backwards
from liftenvelope.jetstream.counting import is_stored
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._readers.groups import GroupFace
    from liftenvelope.gateway._readers.reads import OpenReads
    from liftenvelope.gateway._streams.service import StreamService
    from liftenvelope.rpc.server import ServerCall

__all__ = ["SubscribeService"]

#: First response of a call: an empty message that confirms the subscription.
_HANDSHAKE: Final = b""
#: Text of Liftbridge, sent with its status INTERNAL. On FAILED_PRECONDITION, the Go client would look for
#: another leader.
_PAUSED: Final = "Failed to create stream reader: segment has been closed"


class SubscribeService:
    """Serves Subscribe.

    Args:
        core: The gateway's parts.
        streams: Resumes paused partitions.
        reads: The open subscriptions of this gateway.
        groups: Checks that a consumer group's member is assigned the partition.
    """

    def __init__(self, core: Core, streams: StreamService, reads: OpenReads, groups: GroupFace) -> None:
        self._core = core
        self._streams = streams
        self._reads = reads
        self._groups = groups

    async def subscribe(self, call: ServerCall) -> None:
        """Serve Subscribe.

        Raises:
            RpcError: RESOURCE_EXHAUSTED: the stop was reached, or there is nothing to read.
                FAILED_PRECONDITION: another gateway leads the partition, or the consumer is fenced.
                INVALID_ARGUMENT: the request contradicts itself. NOT_FOUND: the stream or partition does not
                exist. INTERNAL: the partition is paused, and the request does not resume it. If no message is
                at its start or after it, the status is FAILED_PRECONDITION, after the confirmation. Other
                statuses: the subscription was ended with them, or NATS failed.
        """
        # An honest reader may be slow, and RESOURCE_EXHAUSTED would tell it that all messages were read.
        call.exempt_answers()
        limits = self._core.options.limits
        request = read_request(api_pb2.SubscribeRequest, await call.one_request(), limits)
        if request.consumer.groupId and not request.consumer.consumerId:
            text = "Consumer id cannot be empty when group id is provided"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)
        record = await self._record(request)
        read = Read(record, request)
        if read.member is not None:
            await self._groups.check_member(read, client_name(call.peer_certificate))
            # The stream may have changed meanwhile.
            read.record = record = await self._record(request)
        if not read.any_replica:
            # Checked again because the checks above awaited. No await may follow before reads.add(): only
            # added reads are told of changes.
            self._core.check_leader(record.name, request.partition)
        self._reads.add(read)
        try:
            await self._serve(call, request, record, read)
        except StreamNotFoundError as exc:
            raise read.error or RpcError(StatusCode.NOT_FOUND, DELETED) from exc
        except LiftEnvelopeError as exc:
            raise read.error or status_of(exc) from exc
        finally:
            self._reads.remove(read)

    async def _record(self, request: api_pb2.SubscribeRequest) -> StreamRecord:
        name, partition = request.stream, request.partition
        record = await self._core.partition(name, partition)
        if request.HasField("consumer") and request.readISRReplica:
            text = "consumer groups can't read from ISR replicas"
            raise RpcError(StatusCode.INVALID_ARGUMENT, text)
        if not request.readISRReplica:
            self._core.check_leader(name, partition)
        if request.resume and record.to_resume(partition):
            return await self._streams.resume(name, partition)
        return record

    async def _serve(
        self, call: ServerCall, request: api_pb2.SubscribeRequest, record: StreamRecord, read: Read
    ) -> None:
        stream = record.stream_of(request.partition)
        is_paused = record.partitions[request.partition].paused
        if is_paused and (request.reverse or _looks_up_times(request)):
            raise RpcError(StatusCode.INTERNAL, _PAUSED)
        if request.reverse:
            confirm = partial(self._confirm, call, read)
            await read_backwards(self._core, call, request, record, read, confirm)
            return
        found = await self._bounds(request, record, stream)
        if found.is_over:
            # As in Liftbridge: the Go client reports an error before the confirmation as one of Subscribe.
            if await may_send(self._core, read):
                await call.send([_HANDSHAKE])
            raise read.error or RpcError(StatusCode.RESOURCE_EXHAUSTED, found.text)
        if is_paused:
            if not found.at_end:
                raise RpcError(StatusCode.INTERNAL, _PAUSED)
            # As in Liftbridge, which fails only when it waits for the next message.
            await self._confirm(call, read)
            raise read.error or RpcError(StatusCode.FAILED_PRECONDITION, CLOSED)
        feed = DeliveryFeed(self._core.read_js, stream, found.start + 1)
        read.feed = feed
        try:
            await feed.open()
            await self._confirm(call, read)
            await self._send_all(call, request, found, read, feed)
        finally:
            await feed.close()

    async def _confirm(self, call: ServerCall, read: Read) -> None:
        """Let a read that nothing refuses take over its partition, and confirm it to the client."""
        self._reads.take_over(read)
        if await may_send(self._core, read):
            await call.send([_HANDSHAKE])

    async def _bounds(self, request: api_pb2.SubscribeRequest, record: StreamRecord, stream: str) -> Bounds:
        state = await self._core.storage.state(stream)
        start_at = stop_before = None
        if request.startPosition == api_pb2.TIMESTAMP:
            start_at = await ask_start(self._core.js.api, stream, request.startTimestamp) - 1
        if request.stopPosition == api_pb2.STOP_TIMESTAMP:
            stop_before = await ask_start(self._core.js.api, stream, request.stopTimestamp + 1) - 1
            stop_before = min(stop_before, state.newest + 1)
        readonly = record.partitions[request.partition].readonly
        return bounds(request, state, readonly=readonly, start_at=start_at, stop_before=stop_before)

    async def _send_all(
        self,
        call: ServerCall,
        request: api_pb2.SubscribeRequest,
        found: Bounds,
        read: Read,
        feed: DeliveryFeed,
    ) -> None:
        framer = _native.gate.MessageFramer(request.stream, request.partition)
        stream = read.record.stream_of(request.partition)
        # Sequence = offset + 1, so the start offset is the sequence before the first message.
        framer.sequence, framer.pending = found.start, feed.pending
        quiet = True
        while True:
            if read.ended:
                if read.error is not None:
                    raise read.error
                return
            if read.became_readonly:
                found, quiet = await self._until_newest(request, read, found), False
                # Messages stored before the change may still be on their way, or missed by a lost consumer.
                feed.recount()
            if found.stop is not None and _is_over(found, framer, quiet):
                if not await is_stored(self._core.js.api, stream, framer.sequence + 1, found.stop + 1):
                    raise RpcError(StatusCode.RESOURCE_EXHAUSTED, found.text)
                quiet = False
                feed.replace_consumer()
            messages = await feed.take()
            if not messages:
                quiet, framer.pending = True, feed.pending
            if messages and await may_send(self._core, read):
                most = -1 if found.stop is None else found.stop + 1
                frames = framer.frame(messages, found.start + 1, most)
                self._reads.sent_bytes += len(frames)
                await call.send_framed(frames)

    async def _until_newest(self, request: api_pb2.SubscribeRequest, read: Read, found: Bounds) -> Bounds:
        """Return bounds that end at the newest message, because the partition became readonly."""
        read.became_readonly = False
        state = await self._core.storage.state(read.record.stream_of(request.partition))
        if found.stop is not None and found.stop <= state.newest:
            return found
        return Bounds(found.start, state.newest, True, END_OF_READONLY)


def _looks_up_times(request: api_pb2.SubscribeRequest) -> bool:
    return request.startPosition == api_pb2.TIMESTAMP or request.stopPosition == api_pb2.STOP_TIMESTAMP


def _is_over(found: Bounds, framer: _native.gate.MessageFramer, quiet: bool) -> bool:
    """Return whether all messages up to the stop were sent.

    If the message at the stop was removed, the read ends after the last message before it: when the consumer
    has nothing pending. The pending count comes from the last delivery, which may be older than a stop set
    since then. So the count is used only if ``quiet``: the last wait for messages returned none.
    """
    if found.stop is None:
        return False
    return framer.sequence > found.stop or (found.ends and quiet and not framer.pending)
